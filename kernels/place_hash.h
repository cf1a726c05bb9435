/* place_hash.h: a number in [0, 1) of every (seed, KV head, token): the control that picks blindly.
 * Source: the finaliser of SplitMix64, Steele et al., OOPSLA 2014. */
#ifndef PKV_PLACE_HASH_H
#define PKV_PLACE_HASH_H

#include <stdint.h>

static inline float pkvi_place_hash(uint32_t seed, uint32_t head, uint32_t token)
{
    uint64_t x = ((uint64_t)seed << 32 | token) + (uint64_t)(head + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)(x >> 40) * 0x1p-24f;
}

#endif
