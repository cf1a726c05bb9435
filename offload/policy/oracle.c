/*
 * oracle: at every step and layer, the entries that the step's own query attends to most, and the
 * recent tokens: what a perfect prediction would do with as many slots. A control: it reads all it
 * chooses from.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(oracle) = {
    .abi = PKV_POLICY_ABI,
    .name = "oracle",
    .source = "docs/algorithms.md: a control",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_DROP,
               .key = PKV_KEY_NONE,
               .pick = PKV_PICK_TOP,
               .window_rows = 64,
               .window_ramp = 1.0f,
               .pool = 1},
};
