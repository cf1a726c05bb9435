/*
 * rehearsal.c: from a model's calibration to what a device needs to ask for missing entries.
 *
 * Rows of Wq are taken from the packed matrix on the device; those of quantised matrices become
 * q8_0, which adds at most a 254th of a row's largest value of 32, float ones stay what they are.
 */
#include "runtime/session/rehearsal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/pack.h"
#include "runtime/base/check.h"
#include "runtime/base/layout.h"
#include "runtime/device/device.h"

/* Standard deviations that codes reach to either side. With 3 the keys of rare tokens, which are
 * what some layers look for, are cut off: miss-mass recall of two layers of SmolLM2 was 0.07 and
 * 0.27, 0.62 and 0.53 with 4. */
#define SPREAD 4.0f
#define LEAST_STEP 1e-6f

/* The residual comes from the layer before, if there is one. */
static bool looks_ahead(const struct pkv_session *s, uint32_t layer)
{
    return layer > 0 && s->policy.recipe.query != PKV_QUERY_PREV;
}

static enum pkv_weight_type row_type(const struct pkv_matrix *q)
{
    return pkvi_weight_is_quantised(q->type) ? PKV_W_Q8_0 : q->type;
}

uint64_t pkvi_rehearsal_lay_out(struct pkv_session *s, pkv_addr base)
{
    uint64_t top = base;
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const struct pkvi_model_layer *layer = &s->model->layer[l];
        const uint32_t channels = pkvi_tier_index_channels(&s->tier_config, l);
        const uint64_t values = (uint64_t)layer->info.kv_heads * channels;
        const uint32_t rows = layer->info.heads * channels;
        struct pkvi_rehearsal *out = &s->rehearsal[l];
        *out = (struct pkvi_rehearsal){0};
        s->index[l] = (struct pkv_index){.channels = channels};
        if (channels == 0) {
            continue;
        }
        s->index[l].bits = s->policy.recipe.index_bits;
        s->index[l].channel = pkvi_take(&top, values * sizeof(uint16_t));
        s->index[l].mean = pkvi_take(&top, values * sizeof(float));
        s->index[l].step = pkvi_take(&top, values * sizeof(float));
        if (!looks_ahead(s, l)) {
            continue;
        }
        out->q =
            (struct pkv_matrix){.type = row_type(&layer->q), .rows = rows, .cols = layer->q.cols};
        out->q.data = pkvi_take(&top, pkvi_pack_bytes(out->q.type, rows, layer->q.cols));
        out->q.bias = layer->q.bias ? pkvi_take(&top, rows * sizeof(float)) : 0;
        out->shift =
            s->policy.recipe.no_shift ? 0 : pkvi_take(&top, s->model->info.width * sizeof(float));
    }
    return top - base;
}

/* A buffer that device memory goes through. */
struct filler {
    struct pkv_session *session;
    pkv_addr staging; /* pinned */
    float *row;       /* [width] */
    unsigned char *rows;
    uint16_t *channel; /* [most kv_heads * channels] */
    float *mean, *sd;  /* [most kv_heads * head_dim] */
    double *freq;      /* [most pairs] */
};

static enum pkv_status move(struct filler *f, pkv_addr device, uint64_t bytes, bool load)
{
    struct pkv_span span = {
        .dst = load ? device : f->staging, .src = load ? f->staging : device, .bytes = bytes};
    PKV_TRY(pkvi_copy_async(f->session->compute, &span, 1));
    return pkvi_stream_sync(f->session->compute);
}

static enum pkv_status put(struct filler *f, pkv_addr device, const void *from, uint64_t bytes)
{
    memcpy(pkvi_host(f->staging), from, bytes);
    return move(f, device, bytes, true);
}

/* A row as a file has it. */
static void encode_row(enum pkv_weight_type type, const float *x, uint32_t cols, unsigned char *out)
{
    if (type == PKV_W_F32) {
        memcpy(out, x, cols * sizeof *x);
        return;
    }
    if (type != PKV_W_Q8_0) {
        for (uint32_t i = 0; i < cols; i++) {
            const uint16_t half =
                type == PKV_W_F16 ? pkvi_f32_to_f16(x[i]) : pkvi_f32_to_bf16(x[i]);
            memcpy(out + 2 * i, &half, sizeof half);
        }
        return;
    }
    for (uint32_t b = 0; b < cols; b += 32, out += 34) {
        float largest = 0.0f;
        for (uint32_t i = 0; i < 32; i++) {
            largest = fmaxf(largest, fabsf(x[b + i]));
        }
        const uint16_t half = pkvi_f32_to_f16(largest / 127.0f);
        const float step = pkvi_f16_to_f32(half), inverse = step > 0.0f ? 1.0f / step : 0.0f;
        memcpy(out, &half, sizeof half);
        for (uint32_t i = 0; i < 32; i++) {
            const float code = rintf(x[b + i] * inverse);
            out[2 + i] = (unsigned char)(int8_t)fmaxf(-127.0f, fminf(127.0f, code));
        }
    }
}

/* The index's rows of a layer's Wq. */
static enum pkv_status fill_rows(struct filler *f, uint32_t l)
{
    const struct pkvi_model_layer *layer = &f->session->model->layer[l];
    const struct pkv_matrix *to = &f->session->rehearsal[l].q;
    const uint32_t channels = f->session->index[l].channels, head_dim = layer->info.head_dim;
    const uint32_t group = layer->info.heads / layer->info.kv_heads;
    const uint64_t row_bytes = pkvi_weight_row_bytes(to->type, to->cols);
    struct pkv_matrix from = layer->q;
    PKV_TRY(move(f, from.data, pkvi_pack_bytes(from.type, from.rows, from.cols), false));
    from.data = f->staging;
    for (uint32_t r = 0; r < to->rows; r++) {
        const uint32_t head = r / channels;
        const uint32_t channel = f->channel[head / group * channels + r % channels];
        pkvi_pack_dequantize_row(&from, head * head_dim + channel, f->row);
        encode_row(to->type, f->row, to->cols, f->rows + r * row_bytes);
    }
    pkvi_pack_rows(to->type, to->rows, to->cols, f->rows, 0,
                   (to->rows + PKV_PACK_ROWS - 1) / PKV_PACK_ROWS, pkvi_host(f->staging));
    PKV_TRY(move(f, to->data, pkvi_pack_bytes(to->type, to->rows, to->cols), true));
    if (to->bias == 0) {
        return PKV_OK;
    }
    PKV_TRY(move(f, layer->q.bias, layer->q.rows * sizeof(float), false));
    float *bias = (float *)(void *)f->rows;
    for (uint32_t r = 0; r < to->rows; r++) {
        const uint32_t head = r / channels;
        const uint32_t channel = f->channel[head / group * channels + r % channels];
        bias[r] = ((const float *)pkvi_host(f->staging))[head * head_dim + channel];
    }
    return put(f, to->bias, bias, to->rows * sizeof *bias);
}

/* Keys of a layer as this session keeps them. */
static enum pkv_status find_keys(struct filler *f, const struct pkv_calibration *calibration,
                                 uint32_t l)
{
    const struct pkv_session *s = f->session;
    const struct pkvi_model_layer *layer = &s->model->layer[l];
    const struct pkvi_model_rope *rope = &s->model->rope[layer->rope];
    const uint64_t bytes = layer->info.rope_pairs * sizeof *f->freq;
    PKV_TRY(move(f, pkvi_session_long_rope(s, layer->rope) ? rope->freq_long : rope->freq, bytes,
                 false));
    memcpy(f->freq, pkvi_host(f->staging), bytes);
    pkvi_calibration_keys(calibration, &layer->info, l, f->freq, rope->gain,
                          s->config.context_tokens, f->mean, f->sd);
    return PKV_OK;
}

static enum pkv_status fill_index(struct filler *f, uint32_t l)
{
    const struct pkv_index *index = &f->session->index[l];
    const struct pkv_layer_info *info = &f->session->model->layer[l].info;
    const uint32_t values = info->kv_heads * index->channels;
    float *mean = (float *)(void *)f->rows, *step = mean + values;
    for (uint32_t i = 0; i < values; i++) {
        const uint32_t at = i / index->channels * info->head_dim + f->channel[i];
        const float width = 2.0f * SPREAD * f->sd[at] / (float)((1u << index->bits) - 1);
        mean[i] = f->mean[at];
        step[i] = width > LEAST_STEP ? width : LEAST_STEP;
    }
    PKV_TRY(put(f, index->channel, f->channel, values * sizeof *f->channel));
    PKV_TRY(put(f, index->mean, mean, values * sizeof *mean));
    return put(f, index->step, step, values * sizeof *step);
}

static enum pkv_status fill_layers(struct filler *f, const struct pkv_calibration *calibration)
{
    const struct pkv_session *s = f->session;
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const struct pkv_layer_info *info = &s->model->layer[l].info;
        const struct pkvi_layer_calibration *cal = &calibration->layer[l];
        const uint32_t channels = s->index[l].channels;
        if (channels == 0) {
            continue;
        }
        PKV_TRY(find_keys(f, calibration, l));
        for (uint32_t h = 0; h < info->kv_heads; h++) {
            pkvi_calibration_channels(calibration, info, l, h, f->sd, channels,
                                      f->channel + h * channels);
        }
        PKV_TRY(fill_index(f, l));
        if (s->rehearsal[l].q.rows > 0) {
            PKV_TRY(fill_rows(f, l));
        }
        if (s->rehearsal[l].shift != 0) {
            const bool mid = s->policy.recipe.query == PKV_QUERY_MID;
            PKV_TRY(put(f, s->rehearsal[l].shift, mid ? cal->delta_mid : cal->delta_ahead,
                        s->model->info.width * sizeof(float)));
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_rehearsal_fill(struct pkv_session *s,
                                    const struct pkv_calibration *calibration)
{
    struct filler f = {.session = s};
    uint64_t staging = s->model->info.width * sizeof(float), rows = 0, channels = 0;
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const struct pkvi_model_layer *layer = &s->model->layer[l];
        const struct pkv_matrix *q = &layer->q;
        const uint64_t packed = pkvi_pack_bytes(q->type, q->rows, q->cols);
        const uint64_t row = (uint64_t)q->rows * (q->cols + 2ull) * sizeof(float);
        staging = packed > staging ? packed : staging;
        staging = row > staging ? row : staging;
        rows = row > rows ? row : rows;
        channels = layer->info.kv_heads * layer->info.head_dim > channels
                       ? layer->info.kv_heads * layer->info.head_dim
                       : channels;
    }
    enum pkv_status status = pkvi_mem_alloc(s->model->device, PKV_MEM_PINNED, staging, &f.staging);
    f.row = malloc(s->model->info.width * sizeof *f.row);
    f.rows = malloc(rows);
    f.channel = malloc(channels * sizeof *f.channel);
    f.mean = malloc(channels * sizeof *f.mean);
    f.sd = malloc(channels * sizeof *f.sd);
    f.freq = malloc(channels * sizeof *f.freq);
    const bool there = f.row && f.rows && f.channel && f.mean && f.sd && f.freq;
    if (status == PKV_OK && !there) {
        status = PKV_FAIL(PKV_ERR_NO_MEMORY, "rows of Wq for rehearsal: %llu bytes",
                          (unsigned long long)rows);
    }
    if (status == PKV_OK) {
        status = fill_layers(&f, calibration);
    }
    pkvi_mem_free(s->model->device, PKV_MEM_PINNED, f.staging);
    free(f.row);
    free(f.rows);
    free(f.channel);
    free(f.mean);
    free(f.sd);
    free(f.freq);
    return status;
}
