/*
 * merge.c: join neighbouring symbols, best pair first, until no pair joins.
 *
 * Owns: the chain of symbols and the heap of joins. Refuses to know: what joins, and why.
 * A heap entry says only (priority, symbol); it is stale if the symbol's join has another priority
 * by now. So entries need no removal, and n symbols cost O(n log n) even if they are all equal.
 */
#include <stdlib.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"

static enum pkv_status grow(struct pkvi_merge *merge)
{
    size_t capacity = merge->capacity ? merge->capacity * 2 : 64;
    struct pkvi_symbol *symbol = realloc(merge->symbol, capacity * sizeof *symbol);
    if (symbol) {
        merge->symbol = symbol;
    }
    // One entry for each pair, and two more for each of at most `capacity` joins.
    uint64_t *heap = symbol ? realloc(merge->heap, 3 * capacity * sizeof *heap) : NULL;
    if (!heap) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: a word of %zu characters", merge->count);
    }
    merge->heap = heap;
    merge->capacity = capacity;
    return PKV_OK;
}

enum pkv_status pkvi_merge_add(struct pkvi_merge *merge, uint32_t at, uint32_t bytes, int32_t id)
{
    if (merge->count == merge->capacity) {
        PKV_TRY(grow(merge));
    }
    int32_t index = (int32_t)merge->count++;
    merge->symbol[index] = (struct pkvi_symbol){at, bytes, id, index - 1, -1, -1, 0};
    if (index > 0) {
        merge->symbol[index - 1].next = index;
    }
    return PKV_OK;
}

static void heap_push(struct pkvi_merge *merge, uint64_t entry)
{
    size_t at = merge->heap_count++;
    while (at > 0 && merge->heap[(at - 1) / 2] > entry) {
        merge->heap[at] = merge->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    merge->heap[at] = entry;
}

static uint64_t heap_pop(struct pkvi_merge *merge)
{
    uint64_t *heap = merge->heap, least = heap[0], last = heap[--merge->heap_count];
    size_t at = 0, count = merge->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= last) {
            break;
        }
        heap[at] = heap[child];
    }
    heap[at] = last;
    return least;
}

/* Look up again whether a symbol joins with the next one. */
static void look(struct pkvi_merge *merge, int32_t index, pkvi_join_fn join, const void *context)
{
    struct pkvi_symbol *left = &merge->symbol[index];
    left->joined = -1;
    if (left->next >= 0) {
        left->joined = join(context, left, &merge->symbol[left->next], &left->priority);
    }
    if (left->joined >= 0) {
        heap_push(merge, (uint64_t)left->priority << 32 | (uint32_t)index);
    }
}

void pkvi_merge_run(struct pkvi_merge *merge, pkvi_join_fn join, const void *context)
{
    merge->heap_count = 0;
    for (size_t i = 0; i + 1 < merge->count; i++) {
        look(merge, (int32_t)i, join, context);
    }
    while (merge->heap_count > 0) {
        uint64_t entry = heap_pop(merge);
        int32_t index = (int32_t)(uint32_t)entry;
        struct pkvi_symbol *left = &merge->symbol[index];
        if (left->joined < 0 || left->priority != (uint32_t)(entry >> 32)) {
            continue;
        }
        struct pkvi_symbol *right = &merge->symbol[left->next];
        left->bytes += right->bytes;
        left->id = left->joined;
        left->next = right->next;
        right->joined = -1; // swallowed: its own entries are stale
        if (left->next >= 0) {
            merge->symbol[left->next].prev = index;
        }
        if (left->prev >= 0) {
            look(merge, left->prev, join, context);
        }
        look(merge, index, join, context);
    }
}

void pkvi_merge_fini(struct pkvi_merge *merge)
{
    free(merge->symbol);
    free(merge->heap);
    *merge = (struct pkvi_merge){0};
}
