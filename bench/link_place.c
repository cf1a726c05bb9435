/* link_place.c: owns the order in which a walk visits the places of a region. */
#include "bench/link.h"

uint64_t pkvi_link_places(enum link_pattern pattern, uint64_t bytes, uint64_t piece_bytes)
{
    uint64_t pitch = pattern == LINK_STRIDED ? piece_bytes * LINK_STRIDE : piece_bytes;
    return bytes / pitch;
}

/*
 * A permutation of 0 .. count-1 that needs no table: steps that lose nothing (an odd factor, a
 * shifted xor) on the next power of two, repeated until the result lies within.
 */
static uint64_t permuted(uint64_t index, uint64_t count, uint64_t key)
{
    uint32_t bits = 1;
    while (bits < 63 && (uint64_t)1 << bits < count) {
        bits++;
    }
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    do {
        index = (index ^ key) & mask;
        for (int round = 0; round < 3; round++) {
            index = (index * 0x9e3779b97f4a7c15u) & mask;
            index ^= index >> (bits + 1) / 2;
        }
    } while (index >= count);
    return index;
}

uint64_t pkvi_link_place(enum link_pattern pattern, uint64_t bytes, uint64_t piece_bytes,
                         uint64_t key, uint64_t index)
{
    uint64_t count = pkvi_link_places(pattern, bytes, piece_bytes);
    uint64_t place = index % count;
    switch (pattern) {
    case LINK_STRIDED:
        return place * LINK_STRIDE * piece_bytes;
    case LINK_GATHER:
        return permuted(place, count, key) * piece_bytes;
    default:
        return place * piece_bytes;
    }
}
