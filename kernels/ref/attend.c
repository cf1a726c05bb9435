/*
 * attend.c: causal attention, plain reference in the canonical order of kernels.h. A unit is one
 * row and one KV head with all query heads that read it. Loops run over keys or channels
 * innermost, so that the compiler may vectorise what the order of a sum allows.
 */
#include <math.h>
#include <string.h>

#include "kernels/attend_plan.h"
#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "kernels/ref/ref.h"
#include "runtime/base/thread.h"

/* One split of one KV head, in float32: K by channel, V by key. In the worker's scratch. */
struct split {
    uint32_t begin, end; /* keys seen, counted from the split's first */
    float *k;            /* [head_dim][PKV_SPLIT_KEYS] */
    float *v;            /* [PKV_SPLIT_KEYS][head_dim] */
};

/* Attention of one query head so far: the largest score, the sum of exp(score - max), and the
 * values weighted so. */
struct partial {
    float max, sum, *values; /* [head_dim] */
};

static void load_split(const struct pkv_args_attend *args, const struct pkv_kv_view *view,
                       uint32_t kv_head, uint32_t first_key, const struct split *split)
{
    uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    for (uint32_t j = split->begin; j < split->end; j++) {
        const uint8_t *entry =
            pkvi_kv_entry_or_tile(view, &args->tile, kv_head, first_key + j, entry_bytes);
        for (uint32_t i = 0; i < args->head_dim; i++) {
            split->k[i * PKV_SPLIT_KEYS + j] =
                pkvi_ref_kv_load(args->kv_type, entry, args->head_dim, i);
            split->v[j * args->head_dim + i] =
                pkvi_ref_kv_load(args->kv_type, entry + entry_bytes / 2, args->head_dim, i);
        }
    }
}

/* Scores become exp(score - max). */
static void softmax(const struct split *split, float *score, struct partial *partial)
{
    float max = -INFINITY, part[PKV_LANES] = {0};
    for (uint32_t j = split->begin; j < split->end; j++) {
        max = score[j] > max ? score[j] : max;
    }
    for (uint32_t j = split->begin; j < split->end; j++) {
        score[j] = expf(score[j] - max);
        part[j % PKV_LANES] += score[j];
    }
    partial->max = max;
    partial->sum = pkvi_ref_tree(part);
}

static void attend_split(const struct pkv_args_attend *args, const float *q,
                         const struct split *split, struct partial *partial)
{
    float score[PKV_SPLIT_KEYS] = {0};
    for (uint32_t i = 0; i < args->head_dim; i++) {
        for (uint32_t j = split->begin; j < split->end; j++) {
            score[j] += q[i] * split->k[i * PKV_SPLIT_KEYS + j];
        }
    }
    for (uint32_t j = split->begin; j < split->end; j++) {
        score[j] *= args->scale;
        if (args->softcap > 0) {
            score[j] = args->softcap * tanhf(score[j] / args->softcap);
        }
    }
    softmax(split, score, partial);
    memset(partial->values, 0, args->head_dim * sizeof *partial->values);
    for (uint32_t j = split->begin; j < split->end; j++) {
        for (uint32_t i = 0; i < args->head_dim; i++) {
            partial->values[i] += score[j] * split->v[j * args->head_dim + i];
        }
    }
}

static void merge(struct partial *total, const struct partial *partial, uint32_t head_dim)
{
    float max = total->max > partial->max ? total->max : partial->max;
    float keep = expf(total->max - max), take = expf(partial->max - max);
    total->max = max;
    total->sum = total->sum * keep + partial->sum * take;
    for (uint32_t i = 0; i < head_dim; i++) {
        total->values[i] = total->values[i] * keep + partial->values[i] * take;
    }
}

/* What earlier launches came to, or nothing. */
static void start(const struct pkv_args_attend *args, uint32_t row, uint32_t head,
                  struct partial *total)
{
    total->max = -INFINITY;
    total->sum = 0.0f;
    memset(total->values, 0, args->head_dim * sizeof *total->values);
    if (args->carry_in) {
        struct pkvi_carry carry = pkvi_attend_carry(args, row, head);
        total->max = *carry.max;
        total->sum = *carry.sum;
        memcpy(total->values, carry.values, args->head_dim * sizeof *total->values);
    }
}

static void finish(const struct pkv_args_attend *args, uint32_t row, uint32_t head,
                   const struct partial *total)
{
    if (args->carry_out) {
        struct pkvi_carry carry = pkvi_attend_carry(args, row, head);
        *carry.max = total->max;
        *carry.sum = total->sum;
        memcpy(carry.values, total->values, args->head_dim * sizeof *total->values);
        return;
    }
    float inverse = 1.0f / total->sum;
    for (uint32_t i = 0; i < args->head_dim; i++) {
        total->values[i] *= inverse;
    }
    for (uint32_t i = 0; i < args->head_dim; i += PKV_ACT_BLOCK) {
        uint32_t count = args->head_dim - i < PKV_ACT_BLOCK ? args->head_dim - i : PKV_ACT_BLOCK;
        pkvi_ref_act_put(&args->out, row, head * args->head_dim + i, total->values + i, count);
    }
    if (args->lse) {
        PKV_AT(float, args->lse)
        [(uint64_t)row * args->heads + head] = total->max + logf(total->sum);
    }
}

/* Worker's scratch: a split of K and V, values of a split, and totals of each head of the group. */
struct workspace {
    struct split split;
    float *values;  /* [head_dim] */
    float *maximum; /* [group] */
    float *sum;     /* [group] */
    float *total;   /* [group][head_dim] */
};

static struct workspace workspace_of(const struct pkv_args_attend *args, uint32_t worker)
{
    uint32_t group = args->heads / args->kv_heads, head_dim = args->head_dim;
    uint64_t bytes = pkvi_attend_worker_bytes(group, head_dim);
    float *k = PKV_AT(float, args->scratch + worker * bytes);
    float *v = k + PKV_SPLIT_KEYS * head_dim;
    float *values = v + PKV_SPLIT_KEYS * head_dim;
    float *maximum = values + head_dim, *sum = maximum + group;
    return (struct workspace){{0, 0, k, v}, values, maximum, sum, sum + group};
}

static void attend_unit(void *context, uint32_t unit, uint32_t worker)
{
    const struct pkv_args_attend *args = context;
    uint32_t row = unit / args->kv_heads, kv_head = unit % args->kv_heads;
    uint32_t group = args->heads / args->kv_heads, head_dim = args->head_dim;
    const struct pkv_row_span *span =
        pkvi_span_of_covered(PKV_AT(const struct pkv_row_span, args->spans), &row);
    const struct pkv_kv_view *view = PKV_AT(const struct pkv_kv_view, args->views) + span->view;
    uint32_t position = pkvi_span_key(view, span) + (row - span->first_row);
    struct pkvi_keys keys = pkvi_attend_keys(args, position, position);
    const uint32_t first_key = pkvi_view_first_key(view, kv_head);
    keys.begin = keys.begin > first_key ? keys.begin : first_key;
    const float *q = PKV_AT(const float, args->q) + (uint64_t)row * args->q_stride;

    struct workspace work = workspace_of(args, worker);
    for (uint32_t g = 0; g < group; g++) {
        struct partial total = {.values = work.total + g * head_dim};
        start(args, row, kv_head * group + g, &total);
        work.maximum[g] = total.max;
        work.sum[g] = total.sum;
    }
    for (uint32_t base = keys.begin / PKV_SPLIT_KEYS * PKV_SPLIT_KEYS; base < keys.end;
         base += PKV_SPLIT_KEYS) {
        work.split.begin = keys.begin > base ? keys.begin - base : 0;
        work.split.end = keys.end - base < PKV_SPLIT_KEYS ? keys.end - base : PKV_SPLIT_KEYS;
        load_split(args, view, kv_head, base, &work.split);
        for (uint32_t g = 0; g < group; g++) {
            struct partial partial = {.values = work.values};
            struct partial total = {work.maximum[g], work.sum[g], work.total + g * head_dim};
            attend_split(args, q + (kv_head * group + g) * head_dim, &work.split, &partial);
            merge(&total, &partial, head_dim);
            work.maximum[g] = total.max;
            work.sum[g] = total.sum;
        }
    }
    for (uint32_t g = 0; g < group; g++) {
        struct partial total = {work.maximum[g], work.sum[g], work.total + g * head_dim};
        finish(args, row, kv_head * group + g, &total);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_attend attend = *(const struct pkv_args_attend *)args;
    pkvi_pool_run(
        ((const struct pkvi_cpu_stream *)native_stream)->pool, attend_unit, &attend,
        pkvi_span_rows(PKV_AT(const struct pkv_row_span, attend.spans), attend.span_count) *
            attend.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_attend_scalar = {
    .op = PKV_OP_ATTEND,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_attend),
    .launch = launch,
    .cost = pkvi_cost_attend,
};
