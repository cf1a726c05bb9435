/* heap.h: the k largest of a row, in place in the output: a heap whose root is the worst kept. */
#ifndef PKV_HEAP_H
#define PKV_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct pkvi_heap {
    float *value;
    int32_t *id;
    uint32_t count, capacity;
};

/* Smaller, or equal with the larger id. */
static inline bool pkvi_heap_worse(const struct pkvi_heap *heap, uint32_t a, uint32_t b)
{
    return heap->value[a] < heap->value[b] ||
           (heap->value[a] == heap->value[b] && heap->id[a] > heap->id[b]);
}

static inline void pkvi_heap_swap(struct pkvi_heap *heap, uint32_t a, uint32_t b)
{
    float value = heap->value[a];
    int32_t id = heap->id[a];
    heap->value[a] = heap->value[b];
    heap->id[a] = heap->id[b];
    heap->value[b] = value;
    heap->id[b] = id;
}

static inline void pkvi_heap_sift_down(struct pkvi_heap *heap, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->count) {
            return;
        }
        if (child + 1 < heap->count && pkvi_heap_worse(heap, child + 1, child)) {
            child++;
        }
        if (!pkvi_heap_worse(heap, child, at)) {
            return;
        }
        pkvi_heap_swap(heap, child, at);
        at = child;
    }
}

/* Ids come in ascending order, so an equal value never displaces what is there. */
static inline void pkvi_heap_offer(struct pkvi_heap *heap, float value, int32_t id)
{
    if (heap->count < heap->capacity) {
        uint32_t at = heap->count++;
        heap->value[at] = value;
        heap->id[at] = id;
        while (at > 0 && pkvi_heap_worse(heap, at, (at - 1) / 2)) {
            pkvi_heap_swap(heap, at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    } else if (heap->capacity > 0 && value > heap->value[0]) {
        heap->value[0] = value;
        heap->id[0] = id;
        pkvi_heap_sift_down(heap, 0);
    }
}

/* Taking the worst off to the end, again and again, leaves a descending row. */
static inline void pkvi_heap_sort(struct pkvi_heap *heap)
{
    uint32_t count = heap->count;
    while (heap->count > 1) {
        heap->count--;
        pkvi_heap_swap(heap, 0, heap->count);
        pkvi_heap_sift_down(heap, 0);
    }
    heap->count = count;
}

/* Of values in any order. */
static inline void pkvi_heap_make(struct pkvi_heap *heap)
{
    for (uint32_t at = heap->count / 2; at-- > 0;) {
        pkvi_heap_sift_down(heap, at);
    }
}

/* Without its root. */
static inline void pkvi_heap_drop(struct pkvi_heap *heap)
{
    heap->count--;
    heap->value[0] = heap->value[heap->count];
    heap->id[0] = heap->id[heap->count];
    pkvi_heap_sift_down(heap, 0);
}

#endif
