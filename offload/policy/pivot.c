/*
 * pivot: slots start with what the last rows of the prompt attend to; then, before every layer,
 * its query is rehearsed from the residual behind the attention of the layer before, and the best
 * entries that are missing come back for those that were predicted least.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(pivot) = {
    .abi = PKV_POLICY_ABI,
    .name = "pivot",
    .source = "docs/recall.md; InfiniGen, arXiv:2406.19707 (rehearsal); PyramidInfer, "
              "arXiv:2405.12532 (window)",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_COMPETE,
               .key = PKV_KEY_PREDICTED,
               .query = PKV_QUERY_MID,
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
