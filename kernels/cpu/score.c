/*
 * score.c: how much rows attend to keys. K goes 16 keys at a time into a panel whose lanes are
 * keys; blocks of row heads take their scores from it; a key's sum runs over rows in ascending
 * order, one lane a key.
 */
#include <math.h>

#include "kernels/cost.h"
#include "kernels/cpu/kv_panel.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/product.h"
#include "kernels/kernels.h"
#include "kernels/score_plan.h"
#include "runtime/base/thread.h"

struct work {
    const struct pkv_args_score *args;
    struct pkvi_score_unit unit;
    uint32_t group, row_heads, block_rows, entry_bytes;
    /* worker's scratch */
    float *panel;  /* [head_dim][16] */
    float *scores; /* [PKV_BLOCK_ROWS][16] */
    float *q;      /* [blocks][head_dim][PKV_BLOCK_ROWS] */
};

static const float *lse_of(const struct work *work, uint32_t row_head)
{
    const struct pkv_args_score *args = work->args;
    const uint32_t row = work->unit.span->first_row + args->skip_rows + row_head / work->group;
    return PKV_AT(const float, args->lse) + (uint64_t)row * args->heads +
           work->unit.kv_head * work->group + row_head % work->group;
}

static void pack_queries(const struct work *work)
{
    const struct pkv_args_score *args = work->args;
    for (uint32_t i = 0; i < work->row_heads; i++) {
        const uint32_t row = work->unit.span->first_row + args->skip_rows + i / work->group;
        const uint32_t head = work->unit.kv_head * work->group + i % work->group;
        const float *q = PKV_AT(const float, args->q) + (uint64_t)row * args->q_stride +
                         (uint64_t)head * args->head_dim;
        float *out = work->q + (uint64_t)(i / work->block_rows) * PKV_BLOCK_ROWS * args->head_dim +
                     i % work->block_rows;
        for (uint32_t channel = 0; channel < args->head_dim; channel++) {
            out[channel * PKV_BLOCK_ROWS] = q[channel];
        }
    }
}

PKV_INLINE struct v16 probability(const struct pkv_args_score *args, const float *score, float lse)
{
    struct v16 s = v16_load(score), shift = v16_set1(-lse);
    if (args->softcap > 0) {
        s = v16_tanh(v16_mul(s, v16_set1(args->scale / args->softcap)));
        return v16_exp(v16_fma(s, v16_set1(args->softcap), shift));
    }
    return v16_exp(v16_fma(s, v16_set1(args->scale), shift));
}

/* What a block of row heads adds to 16 keys from `key` on. */
static struct v16 add_block(const struct work *work, uint32_t block, uint32_t key, struct v16 sum)
{
    const struct pkv_args_score *args = work->args;
    const uint32_t first = block * work->block_rows, left = work->row_heads - first;
    const uint32_t rows = left < work->block_rows ? left : work->block_rows;
    product(rows, 1, PKV_BLOCK_ROWS, work->q + (uint64_t)block * PKV_BLOCK_ROWS * args->head_dim,
            work->panel, args->head_dim, work->scores, 16);
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t row = (first + i) / work->group;
        const uint32_t last = work->unit.first_row_key + args->skip_rows + row;
        if (last < key) {
            continue;
        }
        const float weight = (args->weight + (float)row * args->weight_step) / (float)work->group;
        struct v16 p = probability(args, work->scores + 16 * i, *lse_of(work, first + i));
        if (last - key < 15) {
            p = v16_where_lanes(0, last - key + 1, p, v16_set1(0.0f));
        }
        sum = v16_fma(p, v16_set1(weight), sum);
    }
    return sum;
}

/* 16 keys, of which [begin, end) are the unit's. */
static void score_keys(const struct work *work, uint32_t key, uint32_t begin, uint32_t end)
{
    const struct pkv_args_score *args = work->args;
    const struct pkv_kv_view *view = work->unit.view;
    kv_keys(args->kv_type,
            pkvi_kv_entry_or_tile(view, &args->tile, work->unit.kv_head, key, work->entry_bytes),
            work->entry_bytes, args->head_dim, work->panel);
    struct v16 sum = v16_set1(0.0f);
    const uint32_t blocks = (work->row_heads + work->block_rows - 1) / work->block_rows;
    for (uint32_t block = 0; block < blocks; block++) {
        sum = add_block(work, block, key, sum);
    }
    float all[16];
    v16_store(all, sum);
    float *out = PKV_AT(float, view->score) + (uint64_t)work->unit.kv_head * view->score_stride;
    for (uint32_t k = begin; k < end; k++) {
        const bool fresh = k >= work->unit.first_row_key || args->keep == 0.0f;
        out[k] = fresh ? all[k - key] : args->keep * out[k] + all[k - key];
    }
}

static void score_unit(void *context, uint32_t number, uint32_t worker)
{
    const struct pkv_args_score *args = context;
    struct work work = {.args = args,
                        .unit = pkvi_score_unit(args, number),
                        .group = args->heads / args->kv_heads,
                        .entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim)};
    const struct pkv_row_span *span = work.unit.span;
    work.row_heads = span->rows > args->skip_rows ? (span->rows - args->skip_rows) * work.group : 0;
    const uint32_t blocks = (work.row_heads + PKV_BLOCK_ROWS - 1) / PKV_BLOCK_ROWS;
    work.block_rows = blocks > 0 ? (work.row_heads + blocks - 1) / blocks : 1;
    work.panel = PKV_AT(
        float, args->scratch + worker * pkvi_score_worker_bytes(args->rows, args->heads,
                                                                args->kv_heads, args->head_dim));
    work.scores = work.panel + 16 * args->head_dim;
    work.q = work.scores + 16 * PKV_SCORE_BLOCK;
    pack_queries(&work);
    for (uint32_t key = work.unit.begin / 16 * 16; key < work.unit.end; key += 16) {
        score_keys(&work, key, key > work.unit.begin ? key : work.unit.begin,
                   key + 16 < work.unit.end ? key + 16 : work.unit.end);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_score score = *(const struct pkv_args_score *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, score_unit, &score,
                  pkvi_score_units(&score));
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_score) = {
    .op = PKV_OP_SCORE,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_score),
    .launch = launch,
    .cost = pkvi_cost_score,
};
