/*
 * snapkv-keep: snapkv as published: what is generated is never dropped, beyond the budget, which
 * the prompt's slots and ring alone are charged with. Source: Li et al., SnapKV, arXiv:2404.14469.
 * It runs at its own bytes, which grow with what is generated: no rival on equal ones. Departures:
 * one set for the query heads of a KV head, and sinks, as snapkv has them; a second prompt chooses
 * anew among all that is there.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(snapkv_keep) = {
    .abi = PKV_POLICY_ABI,
    .name = "snapkv-keep",
    .source = "SnapKV, arXiv:2404.14469",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_KEEP,
               .key = PKV_KEY_NONE,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.0f,
               .pool = 7},
};
