/*
 * pivot-norecall: what `pivot` does without an index and without recall: the control at equal
 * bytes. Slots start with what the last rows of the prompt attend to (weights rising from 1 to 1.2,
 * as in PyramidInfer, arXiv:2405.12532); then their keys are the decayed mass that attention gives
 * them, and tokens that leave the ring compete with them.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(pivot_norecall) = {
    .abi = PKV_POLICY_ABI,
    .name = "pivot-norecall",
    .source = "PyramidInfer, arXiv:2405.12532 (window); docs/algorithms.md (keys)",
    .recipe = {.prompt = PKV_PROMPT_WINDOW,
               .leave = PKV_LEAVE_COMPETE,
               .key = PKV_KEY_MASS,
               .sinks = 4,
               .window_rows = 64,
               .window_ramp = 1.2f,
               .pool = 7,
               .decay = 0.9f},
};
