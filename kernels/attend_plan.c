/* attend_plan.c: how much scratch attention takes. Knows nothing of instruction sets. */
#include "kernels/attend_plan.h"

uint64_t pkvi_attend_worker_bytes(uint32_t group, uint32_t head_dim)
{
    /* Plain reference: one split of K and V, and the values of one split and of every head. */
    uint64_t floats = (uint64_t)head_dim * (2 * PKV_SPLIT_KEYS + 1 + group) + 2 * (uint64_t)group;
    return (floats * sizeof(float) + 63) / 64 * 64;
}

uint64_t pkvi_attend_scratch_bytes(uint32_t max_rows, uint32_t max_keys, uint32_t heads,
                                   uint32_t kv_heads, uint32_t head_dim, uint32_t threads)
{
    (void)max_rows;
    (void)max_keys;
    return threads * pkvi_attend_worker_bytes(heads / kv_heads, head_dim);
}
