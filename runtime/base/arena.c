/* arena.c: a pointer that only moves forward. */
#include "runtime/base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"

#define ALIGN_BYTES 64u

enum pkv_status pkvi_arena_init(struct pkvi_arena *arena, uint64_t bytes)
{
    uint64_t rounded = bytes == 0 ? ALIGN_BYTES : (bytes + ALIGN_BYTES - 1) & ~(uint64_t)63;
    uint8_t *base = bytes > UINT64_MAX / 2 ? NULL : aligned_alloc(ALIGN_BYTES, rounded);
    if (!base) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an arena of %llu bytes",
                        (unsigned long long)bytes);
    }
    memset(base, 0, rounded);
    *arena = (struct pkvi_arena){.base = base, .bytes = rounded};
    return PKV_OK;
}

void pkvi_arena_fini(struct pkvi_arena *arena)
{
    free(arena->base);
    *arena = (struct pkvi_arena){0};
}

void *pkvi_arena_take(struct pkvi_arena *arena, uint64_t count, uint64_t size_bytes)
{
    uint64_t bytes, end, at = arena->used_bytes;
    if (__builtin_mul_overflow(count, size_bytes, &bytes) || bytes > UINT64_MAX - ALIGN_BYTES ||
        __builtin_add_overflow(at, (bytes + ALIGN_BYTES - 1) & ~(uint64_t)63, &end)) {
        arena->used_bytes = UINT64_MAX;
        return NULL;
    }
    arena->used_bytes = end;
    return arena->base && end <= arena->bytes ? arena->base + at : NULL;
}
