/*
 * philox.h: Philox4x32-10, random numbers as a pure function of (key, counter).
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef PKV_TEXT_PHILOX_H
#define PKV_TEXT_PHILOX_H

#include <stdint.h>

static inline void pkvi_philox4x32(const uint32_t key[2], const uint32_t counter[4],
                                   uint32_t words_out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * x0, b = (uint64_t)0xcd9e8d57u * x2;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    words_out[0] = x0;
    words_out[1] = x1;
    words_out[2] = x2;
    words_out[3] = x3;
}

#endif
