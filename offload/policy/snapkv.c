/*
 * snapkv: what the last rows of a prompt attend to, max-pooled, and the recent tokens.
 * Source: Li et al., SnapKV, arXiv:2404.14469. Departures: all rows of the window count in one
 * score for the query heads of a KV head together (the public code keeps a set for every query
 * head, four times the bytes with GQA); sinks are kept; what leaves the ring during generation is
 * dropped, so that the bytes stay what was asked for (the paper keeps everything generated).
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(snapkv) = {
    .abi = PKV_POLICY_ABI,
    .name = "snapkv",
    .source = "SnapKV, arXiv:2404.14469",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_DROP,
               .key = PKV_KEY_NONE,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.0f,
               .pool = 7},
};
