/* tier_case.c: the public tier driven with a made-up model. */
#include "tests/support/tier_case.h"

#include <math.h>
#include <string.h>

enum { Q, K, V };
enum { GAP_MOST = 8 };

static const struct pkv_layer_info layers[PKVT_TIER_LAYERS] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 32},
    {.kind = PKV_LAYER_SLIDING,
     .window = PKVT_TIER_WINDOW,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 64},
    {.heads = 6, .kv_heads = 3, .head_dim = 16},
};

struct pkv_tier_config pkvt_tier_config(void)
{
    struct pkv_tier_config config = pkv_tier_config_default();
    config.layer = layers;
    config.layers = PKVT_TIER_LAYERS;
    config.context_tokens = PKVT_TIER_CONTEXT;
    config.sequences = 2;
    config.parked_sequences = 1;
    config.step_rows = PKVT_TIER_STEP_ROWS;
    config.kv_type = PKV_KV_F32;
    config.kv_recent = 20;
    return config;
}

struct pkv_tier_config pkvt_tier_least(struct pkv_device *device)
{
    struct pkv_tier_config config = pkvt_tier_config();
    struct pkv_tier_sizes sizes;
    config.kv_budget_bytes = 1;
    assert_status(pkv_tier_plan(device, &config, &sizes), PKV_ERR_RANGE);
    config.kv_budget_bytes = sizes.least_budget_bytes;
    return config;
}

struct pkv_tier_config pkvt_tier_dense(void)
{
    struct pkv_tier_config config = pkvt_tier_config();
    config.kv_policy = PKV_KV_DEVICE;
    config.sequences = 3;
    config.parked_sequences = 0;
    return config;
}

enum pkv_status pkvt_tier_open(struct pkvt_tier *t, struct pkv_device *device,
                               const struct pkv_tier_config *config)
{
    const uint64_t bytes =
        (uint64_t)PKVT_TIER_CONTEXT * (PKVT_TIER_COLS + GAP_MOST) * sizeof(float);
    memset(t, 0, sizeof *t);
    t->device = device;
    enum pkv_status status = pkv_tier_plan(device, config, &t->sizes);
    status = status == PKV_OK ? pkv_memory_alloc(device, 4 * bytes, &t->q) : status;
    t->k = t->q + bytes;
    t->v = t->k + bytes;
    t->out = t->v + bytes;
    return status == PKV_OK ? pkv_tier_open(device, config, &t->tier) : status;
}

void pkvt_tier_close(struct pkvt_tier *t)
{
    pkv_tier_close(t->tier);
    pkv_memory_free(t->device, t->q);
}

static float value(uint32_t what, uint32_t layer, uint32_t id, uint32_t position, uint32_t column)
{
    struct pkvt_rng rng = {.state = ((uint64_t)id << 40) ^ ((uint64_t)position << 20) ^
                                    ((uint64_t)column << 8) ^ ((uint64_t)layer << 2) ^ what};
    return pkvt_rng_uniform(&rng, -2.0f, 2.0f);
}

static uint32_t cols_of(uint32_t what, uint32_t layer)
{
    return (what == Q ? layers[layer].heads : layers[layer].kv_heads) * layers[layer].head_dim;
}

/* The part and the position of a row. */
static const struct pkvt_tier_part *part_of(const struct pkvt_tier_part *parts, uint32_t row,
                                            uint32_t *position_out)
{
    while (row >= parts->rows) {
        row -= parts->rows;
        parts++;
    }
    *position_out = parts->first + row;
    return parts;
}

static enum pkv_status write(struct pkvt_tier *t, const struct pkvt_tier_part *parts, uint32_t what,
                             uint32_t layer, uint32_t first_row, uint32_t rows, uint32_t gap)
{
    static float host[PKVT_TIER_CONTEXT * (PKVT_TIER_COLS + GAP_MOST)];
    const uint32_t cols = cols_of(what, layer), stride = cols + gap;
    const pkv_addr to[] = {t->q, t->k, t->v};
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t at = 0;
        const struct pkvt_tier_part *part = part_of(parts, first_row + r, &at);
        for (uint32_t c = 0; c < stride; c++) {
            host[r * stride + c] = c < cols ? value(what, layer, part->ids[at], at, c) : NAN;
        }
    }
    return pkv_tier_write(t->tier, to[what], host, (size_t)rows * stride * sizeof *host);
}

enum pkv_status pkvt_tier_layer(struct pkvt_tier *t, const struct pkvt_tier_part *parts,
                                uint32_t count, uint32_t layer, uint32_t first_row, uint32_t rows,
                                uint32_t gap, pkvt_tier_out out)
{
    static float host[PKVT_TIER_CONTEXT * PKVT_TIER_COLS];
    const uint32_t cols = cols_of(Q, layer), kv_cols = cols_of(K, layer);
    enum pkv_status status = PKV_OK;
    assert_true(count > 0);
    for (uint32_t what = Q; status == PKV_OK && what <= V; what++) {
        status = write(t, parts, what, layer, first_row, rows, gap);
    }
    const struct pkv_tier_rows args = {.layer = layer,
                                       .first_row = first_row,
                                       .rows = rows,
                                       .q = t->q,
                                       .k = t->k,
                                       .v = t->v,
                                       .out = t->out,
                                       .q_stride = gap ? cols + gap : 0,
                                       .k_stride = gap ? kv_cols + gap : 0,
                                       .v_stride = gap ? kv_cols + gap : 0};
    status = status == PKV_OK ? pkv_tier_attend(t->tier, &args) : status;
    const size_t bytes = (size_t)rows * cols * sizeof *host;
    status = status == PKV_OK ? pkv_tier_read(t->tier, host, t->out, bytes) : status;
    for (uint32_t r = 0; status == PKV_OK && r < rows; r++) {
        memcpy(out[layer][first_row + r], host + (size_t)r * cols, cols * sizeof *host);
    }
    return status;
}

enum pkv_status pkvt_tier_pass(struct pkvt_tier *t, const struct pkvt_tier_part *parts,
                               uint32_t count, uint32_t piece, pkvt_tier_out out)
{
    struct pkv_tier_part part[3];
    uint32_t rows = 0;
    for (uint32_t p = 0; p < count; p++) {
        part[p] = (struct pkv_tier_part){.seq = parts[p].seq, .rows = parts[p].rows};
        rows += parts[p].rows;
    }
    enum pkv_status status = pkv_tier_begin(t->tier, part, count);
    for (uint32_t l = 0; l < PKVT_TIER_LAYERS; l++) {
        for (uint32_t at = 0; status == PKV_OK && at < rows;) {
            const uint32_t left = rows - at, n = piece > 0 && piece < left ? piece : left;
            status = pkvt_tier_layer(t, parts, count, l, at, n, l == 2 ? 5 : 0, out);
            at += n;
        }
    }
    return status == PKV_OK ? pkv_tier_end(t->tier) : status;
}

uint32_t pkvt_tier_want(const uint32_t *ids, uint32_t position, uint32_t layer, double *want_out)
{
    const struct pkv_layer_info *info = &layers[layer];
    const uint32_t dim = info->head_dim, group = info->heads / info->kv_heads;
    const uint32_t first =
        info->window > 0 && position + 1 > info->window ? position + 1 - info->window : 0;
    for (uint32_t h = 0; h < info->heads; h++) {
        double sum = 0, *want = want_out + (size_t)h * dim;
        memset(want, 0, dim * sizeof *want);
        for (uint32_t t = first; t <= position; t++) {
            double score = 0;
            for (uint32_t c = 0; c < dim; c++) {
                score += (double)value(Q, layer, ids[position], position, h * dim + c) *
                         (double)value(K, layer, ids[t], t, h / group * dim + c);
            }
            score = exp(score / sqrt((double)dim));
            sum += score;
            for (uint32_t c = 0; c < dim; c++) {
                want[c] += score * (double)value(V, layer, ids[t], t, h / group * dim + c);
            }
        }
        for (uint32_t c = 0; c < dim; c++) {
            want[c] /= sum;
        }
    }
    return info->heads * dim;
}
