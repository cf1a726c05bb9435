/*
 * score.c: how much rows attend to keys, plain reference. A unit is one KV head of a span and some
 * keys; rows run in ascending order outside, so that a key's sum is the same however keys are cut.
 */
#include <math.h>

#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "kernels/ref/ref.h"
#include "kernels/score_plan.h"
#include "runtime/base/thread.h"

/* Probability of one key, of all query heads that read the KV head. */
static float probability(const struct pkv_args_score *args, const uint8_t *entry, uint32_t row,
                         uint32_t kv_head)
{
    const uint32_t group = args->heads / args->kv_heads;
    float sum = 0.0f;
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float *q = PKV_AT(const float, args->q) + (uint64_t)row * args->q_stride +
                         (uint64_t)head * args->head_dim;
        float score = 0.0f;
        for (uint32_t i = 0; i < args->head_dim; i++) {
            score += q[i] * pkvi_ref_kv_load(args->kv_type, entry, args->head_dim, i);
        }
        score *= args->scale;
        score = args->softcap > 0 ? args->softcap * tanhf(score / args->softcap) : score;
        sum += expf(score - PKV_AT(const float, args->lse)[(uint64_t)row * args->heads + head]);
    }
    return sum;
}

static void score_unit(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_score *args = context;
    const struct pkvi_score_unit unit = pkvi_score_unit(args, number);
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint32_t group = args->heads / args->kv_heads;
    float *out = PKV_AT(float, unit.view->score) + (uint64_t)unit.kv_head * unit.view->score_stride;
    for (uint32_t key = unit.begin; key < unit.end; key++) {
        const uint8_t *entry =
            pkvi_kv_entry_or_tile(unit.view, &args->tile, unit.kv_head, key, entry_bytes);
        float sum = 0.0f;
        for (uint32_t r = args->skip_rows; r < unit.span->rows; r++) {
            if (unit.first_row_key + r >= key) {
                const float weight =
                    args->weight + (float)(r - args->skip_rows) * args->weight_step;
                sum += weight / (float)group *
                       probability(args, entry, unit.span->first_row + r, unit.kv_head);
            }
        }
        const bool fresh = key >= unit.first_row_key || args->keep == 0.0f;
        out[key] = fresh ? sum : args->keep * out[key] + sum;
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_score score = *(const struct pkv_args_score *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, score_unit, &score,
                  pkvi_score_units(&score));
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_score_scalar = {
    .op = PKV_OP_SCORE,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_score),
    .launch = launch,
    .cost = pkvi_cost_score,
};
