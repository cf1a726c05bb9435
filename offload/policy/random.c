/*
 * random: at every step and layer any entries, and the recent tokens. A control: what a policy that
 * knows nothing does with as many slots.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(random) = {
    .abi = PKV_POLICY_ABI,
    .name = "random",
    .source = "docs/algorithms.md: a control",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_DROP,
               .key = PKV_KEY_NONE,
               .pick = PKV_PICK_RANDOM,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.0f,
               .pool = 1},
};
