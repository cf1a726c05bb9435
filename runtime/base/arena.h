/* arena.h: many pieces of one block, freed together. */
#ifndef PKV_BASE_ARENA_H
#define PKV_BASE_ARENA_H

#include <stdint.h>

#include "pivotkv/status.h"

/*
 * Zeroed, it is a measuring arena: it gives out nothing and counts. So one layout function both
 * plans (run it on a measuring arena, read used_bytes) and builds (run it on an arena of that
 * size).
 */
struct pkvi_arena {
    uint8_t *base;
    uint64_t bytes;
    uint64_t used_bytes; /* UINT64_MAX once a sum has passed 64 bits */
};

/* Zeroed memory, 64-byte aligned. */
enum pkv_status pkvi_arena_init(struct pkvi_arena *arena, uint64_t bytes);
void pkvi_arena_fini(struct pkvi_arena *arena);

/*
 * count pieces of size_bytes, 64-byte aligned. NULL: it measures, or it is full (used_bytes >
 * bytes then, and stays so).
 */
void *pkvi_arena_take(struct pkvi_arena *arena, uint64_t count, uint64_t size_bytes);

#endif
