/*
 * pivot-ahead: pivot, but the query is rehearsed from the residual that enters the layer before:
 * twice the time for entries to come, from a worse guess.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(pivot_ahead) = {
    .abi = PKV_POLICY_ABI,
    .name = "pivot-ahead",
    .source = "docs/recall.md; InfiniGen, arXiv:2406.19707",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_COMPETE,
               .key = PKV_KEY_PREDICTED,
               .query = PKV_QUERY_AHEAD,
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
