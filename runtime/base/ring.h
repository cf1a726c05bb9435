/*
 * ring.h: a queue of records of any size between one producer and one consumer thread.
 * Fixed capacity; no lock, no allocation after init. A record is contiguous and 16-byte aligned.
 */
#ifndef PKV_BASE_RING_H
#define PKV_BASE_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "pivotkv/status.h"

struct pkvi_ring {
    uint8_t *data;
    uint64_t capacity_bytes;
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever published */
    uint64_t seen_head, reserved_bytes; /* the producer's */
    _Alignas(64) _Atomic uint64_t head; /* bytes ever popped */
    uint64_t seen_tail;                 /* the consumer's */
};

/* capacity_bytes: a power of two, at least 1 KiB. */
enum pkv_status pkvi_ring_init(struct pkvi_ring *ring, uint64_t capacity_bytes);
void pkvi_ring_fini(struct pkvi_ring *ring);

/* Most bytes of one record. */
uint32_t pkvi_ring_record_max_bytes(const struct pkvi_ring *ring);

/*
 * Producer: room for one record, or NULL while the ring is too full. Seen by the consumer after
 * commit; reserving again before that gives the same room.
 */
void *pkvi_ring_reserve(struct pkvi_ring *ring, uint32_t bytes);
void pkvi_ring_commit(struct pkvi_ring *ring);

/* Consumer: the oldest record, or NULL; it stays until popped. */
void *pkvi_ring_peek(struct pkvi_ring *ring);
void pkvi_ring_pop(struct pkvi_ring *ring);

#endif
