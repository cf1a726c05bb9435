/* recall.c: what PREDICT found comes into the slots, plain C. A unit is a KV head of a span. */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/heap.h"
#include "kernels/recall_plan.h"
#include "runtime/base/thread.h"

struct work {
    const struct pkv_args_recall *args;
    const struct pkv_row_span *span;
    const struct pkv_kv_view *view;
    struct pkvi_recall_scratch scratch;
    uint32_t kv_head, chunks, chunks_used, tokens;
    float *key;     /* of slots, then the ring */
    int32_t *token; /* of slots */
    uint32_t *resident;
    int32_t *swap;
};

static struct work work_of(const struct pkv_args_recall *args, uint32_t span, uint32_t kv_head)
{
    const struct pkv_recall_state *state = &args->state;
    struct work w = {.args = args, .kv_head = kv_head};
    w.span = PKV_AT(const struct pkv_row_span, args->spans) + span;
    w.view = PKV_AT(const struct pkv_kv_view, args->views) + w.span->view;
    w.scratch = pkvi_recall_scratch(args->scratch, span, state, args->heads, args->kv_heads);
    w.chunks = pkvi_recall_chunks(state->blocks * PKV_PAGE_TOKENS);
    w.tokens = pkvi_indexed_tokens(w.span);
    w.chunks_used = pkvi_recall_chunks(w.tokens);
    w.key = PKV_AT(float, w.view->score) + (uint64_t)kv_head * w.view->score_stride;
    w.token = PKV_AT(int32_t, pkvi_recall_part(w.view, state->slot_token)) +
              (uint64_t)kv_head * state->slots;
    w.resident = PKV_AT(uint32_t, pkvi_recall_part(w.view, state->resident)) +
                 (uint64_t)kv_head * state->blocks;
    w.swap =
        PKV_AT(int32_t, pkvi_recall_part(w.view, state->swap)) + (uint64_t)kv_head * state->cap * 2;
    return w;
}

static void mark(const struct work *w, int32_t token, bool here)
{
    const uint32_t bit = 1u << (uint32_t)token % PKV_PAGE_TOKENS;
    uint32_t *word = &w->resident[(uint32_t)token / PKV_PAGE_TOKENS];
    *word = here ? *word | bit : *word & ~bit;
}

/* Slots that tokens are in begin here. */
static uint32_t first_slot(const struct work *w)
{
    return pkvi_view_first_key(w->view, w->kv_head);
}

static void start(const struct work *w)
{
    memset(w->resident, 0, w->args->state.blocks * sizeof *w->resident);
    for (uint32_t i = first_slot(w); i < w->args->state.slots; i++) {
        mark(w, w->token[i], true);
    }
}

static void update_keys(const struct work *w)
{
    const float *p = w->scratch.p + (uint64_t)w->kv_head * w->args->state.blocks * PKV_PAGE_TOKENS;
    const uint32_t slots = w->args->state.slots, ring = pkvi_ring_token(w->view, &w->args->state);
    const uint32_t end = w->span->first_position - ring; /* tokens of the ring */
    for (uint32_t i = first_slot(w); i < slots; i++) {
        w->key[i] = w->args->decay * w->key[i] + p[w->token[i]];
    }
    for (uint32_t i = 0; i < end; i++) {
        float *key = &w->key[slots + i];
        *key = ring + i < w->tokens ? w->args->decay * *key + p[ring + i] : 0.0f;
    }
}

/* Tokens, the best first. */
struct list {
    const float *p;
    const int32_t *token;
    uint32_t count;
};

struct list_room {
    float p[PKV_RECALL_CAP];
    int32_t token[PKV_RECALL_CAP];
};

/* The first of both together, of equal ones those of `a`. */
static struct list merge(const struct list *a, const struct list *b, uint32_t cap,
                         struct list_room *room)
{
    uint32_t i = 0, j = 0, count = 0;
    while (count < cap && (i < a->count || j < b->count)) {
        const bool first = j == b->count || (i < a->count && a->p[i] >= b->p[j]);
        room->p[count] = first ? a->p[i] : b->p[j];
        room->token[count] = first ? a->token[i] : b->token[j];
        i += first;
        j += !first;
        count++;
    }
    return (struct list){room->p, room->token, count};
}

/* The best of all chunks, which ascend as tokens do. */
static struct list best_of_all(const struct work *w, struct list_room room[2])
{
    const uint32_t cap = w->args->state.cap;
    struct list best = {.count = 0};
    for (uint32_t c = 0; c < w->chunks_used; c++) {
        const uint64_t at = ((uint64_t)w->kv_head * w->chunks + c) * cap;
        struct list own = {w->scratch.best + at, w->scratch.best_token + at, 0};
        while (own.count < cap && own.token[own.count] >= 0) {
            own.count++;
        }
        best = best.count == 0 ? own : merge(&best, &own, cap, &room[c % 2]);
    }
    return best;
}

/* Would a token with this p take the slot of this key? */
static bool takes(const struct work *w, float p, float key)
{
    return p > w->args->hysteresis * key;
}

/* The `count` slots with the least keys, as a heap that the least of them is the root of. */
static void find_least(const struct work *w, uint32_t count, struct pkvi_heap *heap)
{
    heap->count = 0;
    heap->capacity = count;
    for (uint32_t i = first_slot(w); i < w->args->state.slots; i++) {
        pkvi_heap_offer(heap, -w->key[i], (int32_t)i);
    }
    pkvi_heap_sort(heap);
    for (uint32_t i = 0; i < heap->count; i++) {
        heap->value[i] = -heap->value[i];
        heap->id[i] = -heap->id[i];
    }
}

/* Slots that a token with this p would take, as a heap of (key, -slot): the root goes first. At
 * most `count` will go. */
static void find_victims(const struct work *w, float p, uint32_t count, struct pkvi_heap *heap)
{
    for (uint32_t i = first_slot(w); i < w->args->state.slots; i++) {
        if (!takes(w, p, w->key[i])) {
            continue;
        }
        if (heap->count == heap->capacity) {
            find_least(w, count, heap);
            return;
        }
        heap->value[heap->count] = w->key[i];
        heap->id[heap->count++] = -(int32_t)i;
    }
    pkvi_heap_make(heap);
}

static void fetch(const struct work *w, uint32_t slot, uint32_t token)
{
    const struct pkv_args_recall *args = w->args;
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const pkv_addr block =
        PKV_AT(const pkv_addr,
               args->blocks)[w->span->view * args->blocks_stride + token / PKV_PAGE_TOKENS];
    memcpy(pkvi_kv_entry(w->view, w->kv_head, slot, entry_bytes),
           PKV_AT(const uint8_t, block) +
               ((uint64_t)w->kv_head * PKV_PAGE_TOKENS + token % PKV_PAGE_TOKENS) * entry_bytes,
           entry_bytes);
}

static uint32_t swap_in(const struct work *w)
{
    struct list_room room[2], slots;
    const struct list come = best_of_all(w, room);
    struct pkvi_heap go = {.value = slots.p, .id = slots.token, .capacity = PKV_RECALL_CAP};
    if (come.count == 0) {
        return 0;
    }
    find_victims(w, come.p[0], come.count, &go);
    uint32_t count = 0;
    while (count < come.count && go.count > 0 && takes(w, come.p[count], go.value[0])) {
        const uint32_t slot = (uint32_t)-go.id[0];
        const int32_t token = come.token[count];
        w->swap[2 * count] = token;
        w->swap[2 * count + 1] = w->token[slot];
        mark(w, w->token[slot], false);
        mark(w, token, true);
        w->token[slot] = token;
        w->key[slot] = come.p[count];
        fetch(w, slot, (uint32_t)token);
        pkvi_heap_drop(&go);
        count++;
    }
    return count;
}

static void recall_head(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_recall *args = context;
    const struct work w = work_of(args, unit / args->kv_heads, unit % args->kv_heads);
    uint32_t count = 0;
    if (args->start) {
        start(&w);
    } else {
        update_keys(&w);
        count = swap_in(&w);
    }
    for (uint32_t i = 2 * count; i < 2 * args->state.cap; i++) {
        w.swap[i] = -1;
    }
    if (count > 0) {
        __atomic_fetch_add(PKV_AT(uint32_t, args->counter) + w.kv_head, count, __ATOMIC_RELAXED);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_recall recall = *(const struct pkv_args_recall *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, recall_head, &recall,
                  recall.span_count * recall.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_recall_scalar = {
    .op = PKV_OP_RECALL,
    .variant = "scalar",
    .caps = PKV_CAP_READS_HOST,
    .args_bytes = sizeof(struct pkv_args_recall),
    .launch = launch,
    .cost = pkvi_cost_recall,
};
