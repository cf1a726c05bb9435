/*
 * ring.c: head and tail only grow; a position is taken modulo the capacity. Records occupy whole
 * cache lines. One that would cross the end starts at the beginning; a skip header fills the rest.
 * Each side keeps its last look at the other's counter, so that most calls touch no shared line.
 */
#include "runtime/base/ring.h"

#include <stdbool.h>
#include <stdlib.h>

#include "runtime/base/check.h"

#define LINE_BYTES 64u
#define HEADER_BYTES 16u

struct header {
    uint64_t bytes; /* of the whole record; a multiple of LINE_BYTES */
    uint64_t skip;  /* 1: no record, go on at the beginning */
};

enum pkv_status pkvi_ring_init(struct pkvi_ring *ring, uint64_t capacity_bytes)
{
    if (capacity_bytes < 1024 || (capacity_bytes & (capacity_bytes - 1)) != 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "ring of %llu bytes: expected a power of two from 1024",
                        (unsigned long long)capacity_bytes);
    }
    *ring = (struct pkvi_ring){.capacity_bytes = capacity_bytes};
    ring->data = aligned_alloc(LINE_BYTES, capacity_bytes);
    if (!ring->data) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a ring of %llu bytes",
                        (unsigned long long)capacity_bytes);
    }
    return PKV_OK;
}

void pkvi_ring_fini(struct pkvi_ring *ring)
{
    free(ring->data);
    ring->data = NULL;
}

uint32_t pkvi_ring_record_max_bytes(const struct pkvi_ring *ring)
{
    /* half: an empty ring has room for it wherever its head stands */
    return (uint32_t)(ring->capacity_bytes / 2 - HEADER_BYTES);
}

static struct header *header_at(const struct pkvi_ring *ring, uint64_t position)
{
    return (struct header *)(void *)(ring->data + (position & (ring->capacity_bytes - 1)));
}

void *pkvi_ring_reserve(struct pkvi_ring *ring, uint32_t bytes)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t need = ((uint64_t)bytes + HEADER_BYTES + LINE_BYTES - 1) & ~(uint64_t)(LINE_BYTES - 1);
    uint64_t to_end = ring->capacity_bytes - (tail & (ring->capacity_bytes - 1));
    uint64_t skip = need > to_end ? to_end : 0;
    if (ring->capacity_bytes - (tail - ring->seen_head) < skip + need) {
        ring->seen_head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (ring->capacity_bytes - (tail - ring->seen_head) < skip + need) {
            return NULL;
        }
    }
    if (skip > 0) {
        *header_at(ring, tail) = (struct header){.bytes = skip, .skip = 1};
    }
    struct header *header = header_at(ring, tail + skip);
    *header = (struct header){.bytes = need};
    ring->reserved_bytes = skip + need;
    return (uint8_t *)header + HEADER_BYTES;
}

void pkvi_ring_commit(struct pkvi_ring *ring)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    atomic_store_explicit(&ring->tail, tail + ring->reserved_bytes, memory_order_release);
}

static bool is_empty(struct pkvi_ring *ring, uint64_t head)
{
    if (head == ring->seen_tail) {
        ring->seen_tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    }
    return head == ring->seen_tail;
}

void *pkvi_ring_peek(struct pkvi_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (is_empty(ring, head)) {
        return NULL;
    }
    struct header *header = header_at(ring, head);
    if (header->skip) { /* the record behind it was published with it */
        head += header->bytes;
        atomic_store_explicit(&ring->head, head, memory_order_release);
        header = header_at(ring, head);
    }
    return (uint8_t *)header + HEADER_BYTES;
}

void pkvi_ring_pop(struct pkvi_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    atomic_store_explicit(&ring->head, head + header_at(ring, head)->bytes, memory_order_release);
}
