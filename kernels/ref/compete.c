/* compete.c: tokens that leave the ring compete with a hot set's slots, plain C. A unit is one KV
 * head. */
#include <string.h>

#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "runtime/base/thread.h"

static uint32_t least(const float *score, uint32_t begin, uint32_t end)
{
    uint32_t at = begin;
    for (uint32_t i = begin + 1; i < end; i++) {
        at = score[i] < score[at] ? i : at;
    }
    return at;
}

/* Which tokens are in slots. */
static void mark(const struct pkv_args_compete *args, uint32_t head, int32_t token, bool here)
{
    if (!args->resident || token < 0) {
        return;
    }
    const uint32_t bit = 1u << (uint32_t)token % PKV_PAGE_TOKENS;
    uint32_t *word = PKV_AT(uint32_t, args->resident) + (uint64_t)head * args->resident_stride +
                     (uint32_t)token / PKV_PAGE_TOKENS;
    *word = here ? *word | bit : *word & ~bit;
}

static void compete_head(void *context, uint32_t head, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_compete *args = context;
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint32_t begin = PKV_AT(const uint32_t, args->least_key)[head];
    uint32_t first = pkvi_view_first_key(&args->hot, head);
    float *score = PKV_AT(float, args->hot.score) + (uint64_t)head * args->hot.score_stride;
    int32_t *token = PKV_AT(int32_t, args->slot_token) + (uint64_t)head * args->slots;
    for (uint32_t i = 0; i < args->leave; i++) {
        const uint32_t key = args->slots + i;
        uint32_t slot;
        if (first > begin) {
            slot = --first;
        } else {
            slot = least(score, begin, args->slots);
            if (begin == args->slots || !(score[key] > score[slot])) {
                continue;
            }
        }
        mark(args, head, token[slot], false); /* -1 of a free one */
        mark(args, head, (int32_t)(args->first_token + i), true);
        score[slot] = score[key];
        token[slot] = (int32_t)(args->first_token + i);
        memcpy(pkvi_kv_entry(&args->hot, head, slot, entry_bytes),
               pkvi_kv_entry(&args->hot, head, key, entry_bytes), entry_bytes);
    }
    memmove(score + args->slots, score + args->slots + args->leave,
            (args->tokens - args->leave) * sizeof *score);
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_compete compete = *(const struct pkv_args_compete *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, compete_head, &compete,
                  compete.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_compete_scalar = {
    .op = PKV_OP_COMPETE,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_compete),
    .launch = launch,
    .cost = pkvi_cost_compete,
};
