/* score_plan.c: scratch of SCORE. */
#include "kernels/score_plan.h"

uint64_t pkvi_score_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t kv_heads,
                                  uint32_t head_dim, uint32_t threads)
{
    return threads * pkvi_score_worker_bytes(rows, heads, kv_heads, head_dim);
}
