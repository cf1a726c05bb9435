/*
 * calibration.c: what a pass over a text tells about a model: sums, on the host and in double, of
 * what the two halves of every unit leave on the device. Refuses to know the file of it.
 */
#include "runtime/session/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/device/device.h"
#include "runtime/session/session.h"

#define STEP_ROWS 512u
#define RANDOM_TOKENS 2048u

/* ---- measuring ---- */

struct measure {
    struct pkv_session *session;
    struct pkv_calibration *out;
    /* [out->value_count], in the places of the values that come of them: of the residual entering a
     * layer for delta_ahead, after its attention for delta_mid, of keys and their squares, of
     * squares of queries, of cosines. */
    double *sum;
    pkv_addr pinned;       /* what is read back: */
    float *before, *after; /* [rows][width]: of a layer's attention */
    float *q, *k;          /* [rows][q columns], [rows][k columns] */
    float *table;          /* [rows][pairs][2], of ROPE */
    uint32_t position;     /* of the first row */
    uint32_t count;        /* tokens in all */
};

static double *sums(const struct measure *m, const float *values)
{
    return m->sum + (values - m->out->values);
}

static void add_columns(double *sum, const float *rows, uint32_t cols, uint32_t first,
                        uint32_t count)
{
    for (uint32_t r = first; r < count; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            sum[c] += (double)rows[(size_t)r * cols + c];
        }
    }
}

/* Pairs in ascending order of their first channel. */
struct pair {
    uint32_t first, second;
};

static struct pair pair_of(const struct pkv_layer_info *info, uint32_t number)
{
    if (info->rope_halves && number < info->rope_pairs) {
        return (struct pair){number, number + info->rope_pairs};
    }
    return (struct pair){2 * number, 2 * number + 1};
}

/* A row's keys as they were before RoPE. */
static void turn_back(const struct pkv_layer_info *info, const float *table, float *k)
{
    for (uint32_t h = 0; h < info->kv_heads; h++, k += info->head_dim) {
        for (uint32_t i = 0; i < info->rope_pairs; i++) {
            const struct pair pair = pair_of(info, i);
            const float c = table[2 * i], s = table[2 * i + 1], square = c * c + s * s;
            const float a = k[pair.first], b = k[pair.second];
            k[pair.first] = (a * c + b * s) / square;
            k[pair.second] = (b * c - a * s) / square;
        }
    }
}

static void add_pairs(const struct pkv_layer_info *info, const float *k, double *sum)
{
    for (uint32_t h = 0; h < info->kv_heads; h++, k += info->head_dim) {
        for (uint32_t i = 0; i < info->head_dim / 2; i++) {
            const struct pair pair = pair_of(info, i);
            *sum++ += (double)k[pair.first] * (double)k[pair.second];
        }
    }
}

static void add_keys(const struct measure *m, const struct pkvi_layer_calibration *layer,
                     const struct pkv_layer_info *info, uint32_t first, uint32_t count)
{
    const uint32_t cols = info->kv_heads * info->head_dim;
    const uint32_t group = info->heads / info->kv_heads;
    double *squares = sums(m, layer->key_sd), *power = sums(m, layer->query_power);
    for (uint32_t r = first; r < count; r++) {
        turn_back(info, m->table + (size_t)r * info->rope_pairs * 2, m->k + (size_t)r * cols);
    }
    add_columns(sums(m, layer->key_mean), m->k, cols, first, count);
    for (uint32_t r = first; r < count; r++) {
        const float *k = m->k + (size_t)r * cols;
        add_pairs(info, k, sums(m, layer->key_pair));
        const float *q = m->q + (size_t)r * info->heads * info->head_dim;
        for (uint32_t c = 0; c < cols; c++) {
            squares[c] += (double)k[c] * (double)k[c];
        }
        for (uint32_t h = 0; h < info->heads; h++, q += info->head_dim) {
            double *of_group = power + (size_t)(h / group) * info->head_dim;
            for (uint32_t c = 0; c < info->head_dim; c++) {
                of_group[c] += (double)q[c] * (double)q[c];
            }
        }
    }
}

static double cosine(const float *a, const float *b, uint32_t cols)
{
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (uint32_t c = 0; c < cols; c++) {
        ab += (double)a[c] * (double)b[c];
        aa += (double)a[c] * (double)a[c];
        bb += (double)b[c] * (double)b[c];
    }
    return aa > 0.0 && bb > 0.0 ? ab / (sqrt(aa) * sqrt(bb)) : 1.0;
}

/* Rows of the pass that are at `from` or behind it. */
static uint32_t first_row(const struct measure *m, uint32_t from, uint32_t rows)
{
    const uint32_t skip = from > m->position ? from - m->position : 0;
    return skip < rows ? skip : rows;
}

static void add_layer(struct measure *m, uint32_t l, uint32_t rows)
{
    const uint32_t width = m->out->width;
    const struct pkvi_layer_calibration *layer = &m->out->layer[l];
    const uint32_t of_delta = first_row(m, PKVI_CALIBRATION_DELTA_ROWS, rows);
    const uint32_t of_keys = first_row(m, PKVI_CALIBRATION_KEY_ROWS, rows);
    add_columns(sums(m, layer->delta_ahead), m->before, width, of_delta, rows);
    add_columns(sums(m, layer->delta_mid), m->after, width, of_delta, rows);
    add_keys(m, layer, &m->session->model->layer[l].info, of_keys, rows);
    for (uint32_t r = of_keys; r < rows; r++) {
        const size_t at = (size_t)r * width;
        m->sum[l] += cosine(m->before + at, m->after + at, width);
    }
}

static enum pkv_status read_back(const struct measure *m, const struct pkv_span *spans,
                                 uint32_t count)
{
    PKV_TRY(pkvi_copy_async(m->session->compute, spans, count));
    return pkvi_stream_sync(m->session->compute);
}

static struct pkv_span span(const float *to, pkv_addr from, uint64_t values)
{
    return (struct pkv_span){
        .dst = (pkv_addr)(uintptr_t)to, .src = from, .bytes = values * sizeof(float)};
}

/* A layer with all rows of a pass: rows do not go through it in tiles, as they are few. */
static enum pkv_status measure_unit(struct measure *m, struct pkvi_pass *pass)
{
    const struct pkvi_buffers *b = &m->session->buffers;
    const struct pkvi_model_layer *layer = &m->session->model->layer[pass->layer];
    const uint64_t rows = pass->all_rows, hidden = rows * m->out->width;
    const uint32_t l = pass->layer;
    const struct pkv_span before = span(m->before, pass->lane->x, hidden);
    PKV_TRY(read_back(m, &before, 1));
    PKV_TRY(pkvi_pass_attention(pass));
    const struct pkv_span after[] = {
        span(m->after, pass->lane->x, hidden), span(m->q, b->q, rows * layer->q.rows),
        span(m->k, b->k, rows * layer->k.rows),
        span(m->table, pass->lane->rope[layer->rope], rows * layer->info.rope_pairs * 2)};
    PKV_TRY(read_back(m, after, 4));
    add_layer(m, l, (uint32_t)rows);
    return pkvi_pass_feed_forward(pass);
}

static enum pkv_status measure_pass(struct measure *m, const struct pkv_step_part *part)
{
    struct pkvi_pass pass;
    PKV_TRY(pkvi_check_parts(m->session, part, 1, m->session->config.step_rows));
    enum pkv_status status = pkvi_pass_begin(m->session, PKVI_LANE_STEP, part, 1, &pass);
    while (status == PKV_OK && pkvi_pass_has_unit(&pass)) {
        status = measure_unit(m, &pass);
    }
    if (status == PKV_OK) {
        status = pkvi_pass_end(&pass, part, 1, NULL);
    }
    m->position += part->count;
    m->session->broken = m->session->broken || status != PKV_OK;
    return status;
}

/* ---- from sums to values ---- */

static void finish_layer(const struct measure *m, uint32_t l)
{
    const struct pkv_calibration *c = m->out;
    const struct pkvi_layer_calibration *layer = &c->layer[l];
    const struct pkv_layer_info *info = &m->session->model->layer[l].info;
    const double rows = m->count - PKVI_CALIBRATION_DELTA_ROWS;
    const double keys = m->count - PKVI_CALIBRATION_KEY_ROWS;
    const double queries = keys * (info->heads / info->kv_heads);
    float *value = c->values + (layer->delta_ahead - c->values);
    c->values[l] = (float)fmax(-1.0, fmin(1.0, m->sum[l] / keys));
    for (uint32_t i = 0; l > 0 && i < c->width; i++) {
        const struct pkvi_layer_calibration *previous = &c->layer[l - 1];
        const double entering = sums(m, layer->delta_ahead)[i];
        value[i] = (float)((entering - sums(m, previous->delta_ahead)[i]) / rows);
        value[c->width + i] = (float)((entering - sums(m, previous->delta_mid)[i]) / rows);
    }
    const size_t channels = (size_t)info->kv_heads * info->head_dim;
    value += (size_t)2 * c->width;
    for (size_t i = 0; i < channels; i++) {
        const double mean = sums(m, layer->key_mean)[i] / keys;
        const double variance = sums(m, layer->key_sd)[i] / keys - mean * mean;
        value[i] = (float)mean;
        value[channels + i] = (float)sqrt(fmax(variance, 0.0));
        value[2 * channels + channels / 2 + i] = (float)(sums(m, layer->query_power)[i] / queries);
    }
    value += 2 * channels;
    for (size_t i = 0; i < channels / 2; i++) {
        const uint32_t half = info->head_dim / 2;
        const struct pair pair = pair_of(info, (uint32_t)(i % half));
        const double *mean = sums(m, layer->key_mean) + i / half * info->head_dim;
        value[i] =
            (float)((sums(m, layer->key_pair)[i] - mean[pair.first] * mean[pair.second] / keys) /
                    keys);
    }
}

static enum pkv_status take_memory(struct measure *m)
{
    const struct pkv_session *s = m->session;
    const uint64_t rows = s->config.step_rows, width = m->out->width;
    const uint64_t values = rows * (2 * width + s->q_cols + 2ull * s->kv_cols);
    m->sum = calloc(m->out->value_count, sizeof *m->sum);
    if (!m->sum) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "calibration: %llu sums",
                        (unsigned long long)m->out->value_count);
    }
    PKV_TRY(pkvi_mem_alloc(s->model->device, PKV_MEM_PINNED, values * sizeof(float), &m->pinned));
    m->before = pkvi_host(m->pinned);
    m->after = m->before + rows * width;
    m->q = m->after + rows * width;
    m->k = m->q + rows * s->q_cols;
    m->table = m->k + rows * s->kv_cols; /* of one KV head there are at least as many channels */
    return PKV_OK;
}

static enum pkv_status measure_all(struct measure *m, const int32_t *ids)
{
    struct pkv_seq *seq = NULL;
    PKV_TRY(take_memory(m));
    PKV_TRY(pkv_seq_open(m->session, &seq));
    while (m->position < m->count) {
        const uint32_t most = m->session->config.step_rows, left = m->count - m->position;
        const struct pkv_step_part part = {
            .seq = seq, .ids = ids + m->position, .count = left < most ? left : most};
        PKV_TRY(measure_pass(m, &part));
    }
    for (uint32_t l = 0; l < m->out->layers; l++) {
        finish_layer(m, l);
    }
    return pkvi_calibration_seal(m->out);
}

static enum pkv_status check_request(const struct pkv_model *model, size_t count)
{
    struct pkv_device_info device;
    PKV_TRY(pkv_device_query(model->device, &device));
    if ((device.caps & PKV_CAP_NO_DATA) != 0) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "calibration: device %s computes nothing that could be measured",
                        device.name);
    }
    if (count < PKV_CALIBRATION_LEAST_TOKENS || count > model->info.context) {
        return PKV_FAIL(PKV_ERR_RANGE, "calibration with %zu tokens: expected %u to %u", count,
                        PKV_CALIBRATION_LEAST_TOKENS, model->info.context);
    }
    return PKV_OK;
}

static enum pkv_status measure_from(struct pkv_model *model, const int32_t *ids, uint32_t count,
                                    uint32_t step_rows, enum pkv_calibration_source source,
                                    struct pkv_calibration **out)
{
    struct pkv_session_config config = pkv_session_config_default();
    struct measure m = {.count = count};
    config.context_tokens = count;
    config.step_rows = step_rows;
    PKV_TRY(pkv_session_open(model, &config, &m.session));
    enum pkv_status status = pkvi_calibration_new(model, count, source, &m.out);
    if (status == PKV_OK) {
        status = measure_all(&m, ids);
    }
    free(m.sum);
    /* a copy into it may still run after a failure: the session waits */
    struct pkv_device *device = model->device;
    pkv_session_close(m.session);
    pkvi_mem_free(device, PKV_MEM_PINNED, m.pinned);
    if (status != PKV_OK) {
        pkv_calibration_close(m.out);
        return status;
    }
    *out = m.out;
    return PKV_OK;
}

enum pkv_status pkvi_calibration_measure(struct pkv_model *model, const int32_t *ids, size_t count,
                                         uint32_t step_rows, struct pkv_calibration **out)
{
    PKV_TRY(check_request(model, count));
    return measure_from(model, ids, (uint32_t)count, step_rows, PKV_CALIBRATION_GIVEN, out);
}

/* ---- the text ---- */

static enum pkv_status add_text(const struct pkv_tokenizer *tokenizer, struct pkv_ids *ids)
{
    struct pkv_tokenizer_info info;
    pkv_tokenizer_query(tokenizer, &info);
    for (const char *const *text = pkvi_calibration_text; info.has_text && *text; text++) {
        const bool bos = info.add_bos && ids->count == 0;
        PKV_TRY(pkv_encode(tokenizer, *text, strlen(*text), bos ? PKV_ENCODE_BOS : 0, ids));
    }
    return PKV_OK;
}

/* Numbers of splitmix64 (Steele, Lea, Flood 2014). */
static enum pkv_status add_random(uint32_t vocab, uint32_t count, struct pkv_ids *ids)
{
    for (uint64_t i = 1; i <= count; i++) {
        uint64_t z = i * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        PKV_TRY(pkv_ids_append(ids, (int32_t)((z ^ (z >> 31)) % vocab)));
    }
    return PKV_OK;
}

static enum pkv_status own_ids(const struct pkv_model *model, struct pkv_ids *ids,
                               enum pkv_calibration_source *source_out)
{
    struct pkv_tokenizer *tokenizer = NULL;
    PKV_TRY(pkv_tokenizer_open(model->path, &tokenizer));
    enum pkv_status status = add_text(tokenizer, ids);
    pkv_tokenizer_close(tokenizer);
    *source_out = PKV_CALIBRATION_BUILT_IN;
    if (status == PKV_OK && ids->count == 0) {
        *source_out = PKV_CALIBRATION_RANDOM;
        status = add_random(model->info.vocab, RANDOM_TOKENS, ids);
    }
    return status;
}

enum pkv_status pkv_calibration_run(struct pkv_model *model, const int32_t *ids, size_t count,
                                    struct pkv_calibration **out)
{
    if (ids) {
        return pkvi_calibration_measure(model, ids, count, STEP_ROWS, out);
    }
    struct pkv_ids own = {0};
    enum pkv_calibration_source source = PKV_CALIBRATION_BUILT_IN;
    enum pkv_status status = own_ids(model, &own, &source);
    if (own.count > model->info.context) {
        own.count = model->info.context;
    }
    if (status == PKV_OK) {
        status = check_request(model, own.count);
    }
    if (status == PKV_OK) {
        status = measure_from(model, own.id, (uint32_t)own.count, STEP_ROWS, source, out);
    }
    pkv_ids_free(&own);
    return status;
}

/* ---- keys ---- */

/* Means of cos and sin of angle * p over the positions p of [0, tokens). */
static void mean_turn(double angle, uint32_t tokens, double *cos_out, double *sin_out)
{
    const double n = tokens, half = sin(0.5 * angle);
    const double ratio = fabs(half) > 1e-12 ? sin(0.5 * n * angle) / (n * half) : 1.0;
    *cos_out = ratio * cos(0.5 * (n - 1.0) * angle);
    *sin_out = ratio * sin(0.5 * (n - 1.0) * angle);
}

void pkvi_calibration_keys(const struct pkv_calibration *c, const struct pkv_layer_info *info,
                           uint32_t layer, const double *freq, double gain, uint32_t tokens,
                           float *mean_out, float *sd_out)
{
    const struct pkvi_layer_calibration *of = &c->layer[layer];
    const size_t channels = (size_t)info->kv_heads * info->head_dim;
    memcpy(mean_out, of->key_mean, channels * sizeof *mean_out);
    memcpy(sd_out, of->key_sd, channels * sizeof *sd_out);
    for (uint32_t i = 0; i < info->rope_pairs; i++) {
        double cosine, sine, cosine2, sine2;
        mean_turn(freq[i], tokens, &cosine, &sine);
        mean_turn(2.0 * freq[i], tokens, &cosine2, &sine2);
        for (uint32_t h = 0; h < info->kv_heads; h++) {
            const struct pair pair = pair_of(info, i);
            const size_t a = (size_t)h * info->head_dim + pair.first;
            const size_t b = (size_t)h * info->head_dim + pair.second;
            const double x = (double)of->key_mean[a], y = (double)of->key_mean[b];
            const double xx = (double)of->key_sd[a] * (double)of->key_sd[a] + x * x;
            const double yy = (double)of->key_sd[b] * (double)of->key_sd[b] + y * y;
            const double xy = (double)of->key_pair[(size_t)h * (info->head_dim / 2) + i] + x * y;
            /* squares of x cos - y sin and x sin + y cos */
            const double middle = 0.5 * (xx + yy), turn = 0.5 * (xx - yy) * cosine2 - xy * sine2;
            const double u = x * cosine - y * sine, v = x * sine + y * cosine;
            mean_out[a] = (float)(gain * u);
            mean_out[b] = (float)(gain * v);
            sd_out[a] = (float)(gain * sqrt(fmax(middle + turn - u * u, 0.0)));
            sd_out[b] = (float)(gain * sqrt(fmax(middle - turn - v * v, 0.0)));
        }
    }
}

static double weight(const float *power, const float *sd, struct pair pair)
{
    const double a = (double)sd[pair.first], b = (double)sd[pair.second];
    return (double)power[pair.first] * a * a + (double)power[pair.second] * b * b;
}

void pkvi_calibration_channels(const struct pkv_calibration *c, const struct pkv_layer_info *info,
                               uint32_t layer, uint32_t kv_head, const float *sd, uint32_t r,
                               uint16_t *channels_out)
{
    const size_t head = (size_t)kv_head * info->head_dim;
    const float *power = c->layer[layer].query_power + head;
    const uint32_t pairs = info->head_dim / 2;
    sd += head;
    for (uint32_t i = 0; i < pairs; i++) { /* some 64 times 64: once a model */
        const double own = weight(power, sd, pair_of(info, i));
        uint32_t before = 0;
        for (uint32_t j = 0; j < pairs; j++) {
            const double other = weight(power, sd, pair_of(info, j));
            before += other > own || (j < i && other == own);
        }
        if (before < r / 2) {
            *channels_out++ = (uint16_t)pair_of(info, i).first;
            *channels_out++ = (uint16_t)pair_of(info, i).second;
        }
    }
}
