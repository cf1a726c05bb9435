/* thin.c: a zone of entries is thinned out, plain C. A unit is one KV head; each chooses anew, all
 * the same. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "runtime/base/thread.h"

/* What all KV heads together give a key. */
static float sum_of(const struct pkv_args_thin *args, uint32_t key)
{
    float plain = 0.0f, weighted = 0.0f;
    for (uint32_t h = 0; h < args->kv_heads; h++) {
        const uint64_t at = (uint64_t)h * args->view.score_stride + key;
        plain += PKV_AT(const float, args->view.score)[at];
        weighted += PKV_AT(const float, args->weighted)[at];
    }
    const float sum = args->scale * plain + args->weighted_scale * weighted;
    return isnan(sum) ? -INFINITY : sum;
}

static void choose(const struct pkv_args_thin *args, bool *dropped)
{
    float sum[PKV_THIN_MOST];
    for (uint32_t i = 0; i < args->zone; i++) {
        sum[i] = sum_of(args, args->zone_first + i);
    }
    for (uint32_t i = 0; i < args->zone; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < args->zone; j++) {
            better += sum[j] > sum[i] || (sum[j] == sum[i] && j < i);
        }
        dropped[i] = better >= args->stay;
    }
}

static void thin_head(void *context, uint32_t head, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_thin *args = context;
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint32_t begin = args->first_key + (args->zone - args->stay);
    const uint32_t zone_end = args->zone_first + args->zone;
    bool dropped[PKV_THIN_MOST];
    choose(args, dropped);
    uint32_t to = begin > args->zone_first ? begin : args->zone_first;
    for (uint32_t from = args->first_key; from < begin; from++) {
        if (from >= args->zone_first && dropped[from - args->zone_first]) {
            continue;
        }
        while (to < zone_end && !dropped[to - args->zone_first]) {
            to++;
        }
        memcpy(pkvi_kv_entry(&args->view, head, to++, entry_bytes),
               pkvi_kv_entry(&args->view, head, from, entry_bytes), entry_bytes);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_thin thin = *(const struct pkv_args_thin *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, thin_head, &thin,
                  thin.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_thin_scalar = {
    .op = PKV_OP_THIN,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_thin),
    .launch = launch,
    .cost = pkvi_cost_thin,
};
