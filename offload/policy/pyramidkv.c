/*
 * pyramidkv: snapkv with slots falling linearly over the layers, from 1.95 of the mean in the first
 * to 0.05 in the last. Source: Cai et al., PyramidKV, arXiv:2406.02069, with the public code's beta
 * = 20. Departures: those of snapkv; and the slots of all layers add up to the budget (the public
 * code rounds the step between layers down, which gives its deep layers up to 11.7 % more than its
 * rivals get).
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(pyramidkv) = {
    .abi = PKV_POLICY_ABI,
    .name = "pyramidkv",
    .source = "PyramidKV, arXiv:2406.02069",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_DROP,
               .key = PKV_KEY_NONE,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.0f,
               .pool = 7,
               .slope = 0.95f},
};
