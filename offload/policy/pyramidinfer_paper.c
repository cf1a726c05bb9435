/*
 * pyramidinfer-paper: pyramidinfer with the shape that the paper has instead of its code: a
 * proportion of the prompt that is multiplied by a decay in every layer, not below a floor, and the
 * 40 % of recent tokens that its ablation found best. Source: Yang et al., PyramidInfer,
 * arXiv:2405.12532. The paper gives no numbers for proportion, decay and floor: 1, 0.9 and 64 are
 * ours and keep 59 % of a long prompt's entries over 32 layers, about the 60 % of its ablation.
 * Departures: as in the code, a layer keeps the entries of the rows that entered it, and drops what
 * the next ones do not see; generated tokens are thinned out as the code does (the paper's "fixed
 * number of pivotal entries" is not in it).
 */
#include "pivotkv/impl/policy_ops.h"

static const struct pkv_prune prune = {
    .shape = PKV_PRUNE_DECAY,
    .interval = 1,
    .least = 64,
    .sinks = 4,
    .recent_ratio = 0.4,
    .ratio = 1.0,
    .decay = 0.9,
    .ramp = 1.2f,
    .zone = 16,
    .zone_ratio = 0.9,
    .zone_decay = 0.1,
};

PKV_POLICY(pyramidinfer_paper) = {
    .abi = PKV_POLICY_ABI,
    .name = "pyramidinfer-paper",
    .source = "PyramidInfer, arXiv:2405.12532",
    .recipe = {.pool = 1},
    .prune = &prune,
};
