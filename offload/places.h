/*
 * places.h: numbered places (host blocks, device pages) that are handed out, shared and given back.
 * Knows numbers only.
 */
#ifndef PKV_OFFLOAD_PLACES_H
#define PKV_OFFLOAD_PLACES_H

#include "pivotkv/types.h"

#define PKVI_NO_PLACE UINT32_MAX

struct pkvi_places {
    uint32_t count, free_count;
    uint32_t *free; /* a stack: the lowest numbers lie on top at first */
    uint32_t *refs; /* [count]; 0 = free */
};

/* Bytes that open() takes. */
uint64_t pkvi_places_bytes(uint32_t count);
enum pkv_status pkvi_places_open(struct pkvi_places *places, uint32_t count);
void pkvi_places_close(struct pkvi_places *places);

/* A free place, with one owner; PKVI_NO_PLACE where all are taken. Cost: O(1), as the others. */
uint32_t pkvi_places_take(struct pkvi_places *places);
void pkvi_places_retain(struct pkvi_places *places, uint32_t place); /* one owner more */
/* One owner less; the last one frees it. */
void pkvi_places_release(struct pkvi_places *places, uint32_t place);

#endif
