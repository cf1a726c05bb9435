/*
 * window: the first tokens and the latest ones.
 * Source: Xiao et al., StreamingLLM, arXiv:2309.17453: 4 sinks. Departures: keys keep the rotation
 * of their true positions (the paper counts positions within the cache); the whole budget but one
 * page a KV head, which holds the sinks, is the ring.
 */
#include "pivotkv/impl/policy_ops.h"

PKV_POLICY(window) = {
    .abi = PKV_POLICY_ABI,
    .name = "window",
    .source = "StreamingLLM, arXiv:2309.17453",
    .recipe = {.prompt = PKV_PROMPT_TAIL,
               .leave = PKV_LEAVE_DROP,
               .key = PKV_KEY_NONE,
               .sinks = 4,
               .pool = 1,
               .ring_share = 1.0f},
};
