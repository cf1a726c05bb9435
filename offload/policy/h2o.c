/*
 * h2o: heavy hitters, by the attention that all rows so far paid to them, and the recent tokens,
 * half of the budget each.
 * Source: Zhang et al., H2O, arXiv:2306.14048. Departures: one score for the query heads of a KV
 * head together; the prompt's rows count causally (the public code's do not); 32 tokens leave the
 * ring at a time; sinks are kept.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(h2o) = {
    .abi = PKV_POLICY_ABI,
    .name = "h2o",
    .source = "H2O, arXiv:2306.14048",
    .recipe = {.prompt = PKV_PROMPT_ALL_ROWS,
               .leave = PKV_LEAVE_COMPETE,
               .key = PKV_KEY_MASS,
               .sinks = 4,
               .pool = 1,
               .ring_share = 0.5f,
               .decay = 1.0f},
};
