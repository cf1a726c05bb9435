/* recall_plan.c: bytes of what PREDICT leaves for RECALL. */
#include "kernels/recall_plan.h"

uint64_t pkvi_recall_scratch_bytes(const struct pkv_recall_state *state, uint32_t spans,
                                   uint32_t heads, uint32_t kv_heads)
{
    return spans * pkvi_recall_sizes(state, heads, kv_heads).span * sizeof(float);
}
