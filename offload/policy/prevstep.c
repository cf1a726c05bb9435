/*
 * prevstep: pivot, but the query is that of the layer's own step before: the hint that costs
 * nothing. A control.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(prevstep) = {
    .abi = PKV_POLICY_ABI,
    .name = "prevstep",
    .source = "docs/recall.md: a control; FreeKV, arXiv:2505.13109 (query of the step before)",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_COMPETE,
               .key = PKV_KEY_PREDICTED,
               .query = PKV_QUERY_PREV,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.2f,
               .pool = 7,
               .decay = 0.9f,
               .index_share = 0.5f,
               .index_bits = 4,
               .recall_share = 0.005f,
               .recall_least = 8,
               .hysteresis = 0.1f},
};
