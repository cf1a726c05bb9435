/*
 * pyramidinfer: a layer chooses which rows of a prompt the next one still sees, so that deeper
 * layers have ever fewer entries; what is generated is thinned out once it is older than the recent
 * tokens. Source: Yang et al., PyramidInfer, arXiv:2405.12532, and its public code of 2024-11 with
 * the settings for models of 7B and 8B, the file for transformers 4.31 ("legacy"). All lengths are
 * those of that code, to the entry: top-k by a cosine over the layers, a window of
 * floor(0.2 * tokens) + 1 rows (its author calls the "+ 1" a leftover), zones of 16 that may begin
 * with the prompt's last token.
 * Flaws of the public code that are not copied:
 *   - rows of history are multiplied by the ramp in place, again at every compression;
 *   - the file for transformers 4.46 compares a layer's entries with the count of all tokens, so
 *     that deep layers lose their prompt and the sinks within some 15 steps;
 *   - with an interval of 2 or 3 (its settings for 13B and 70B) it cannot decode: it joins rows of
 *     history of unequal width;
 *   - a history of window x entries, half floats that a float32 column makes float32;
 *   - masks are not gathered, so that batches must be of equal length and without padding;
 *   - a prompt of one token, or in pieces, or a second one, is taken for something else;
 *   - logits of rows that the last layer drops are missing: perplexity is that of other tokens.
 * Departures: the last layer drops no rows; a second prompt is fed token by token, as what is
 * generated; one of each of equal scores is taken by its place, the first.
 */
#include "pivotkv/impl/policy_ops.h"

static const struct pkv_prune prune = {
    .shape = PKV_PRUNE_COSINE,
    .interval = 1,
    .least = 64,
    .sinks = 4,
    .recent_ratio = 0.2,
    .ratio = 1.0,
    .decay = 0.9,
    .ramp = 1.2f,
    .zone = 16,
    .zone_ratio = 0.9,
    .zone_decay = 0.1,
};

PKV_POLICY(pyramidinfer) = {
    .abi = PKV_POLICY_ABI,
    .name = "pyramidinfer",
    .source = "PyramidInfer, arXiv:2405.12532, its public code",
    .recipe = {.pool = 1},
    .prune = &prune,
};
