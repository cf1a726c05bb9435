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
    w.tokens = pkvi_indexed_tokens(w.span, args->own);
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

static void merge_lse(const struct work *w)
{
    const struct pkv_args_recall *args = w->args;
    const uint32_t group = args->heads / args->kv_heads;
    float *lse = PKV_AT(float, pkvi_recall_part(w->view, args->state.lse));
    for (uint32_t head = w->kv_head * group; head < (w->kv_head + 1) * group; head++) {
        const float *largest = w->scratch.largest + head * w->chunks;
        const float *sum = w->scratch.sum + head * w->chunks;
        float most = -INFINITY, total = 0.0f;
        for (uint32_t c = 0; c < w->chunks_used; c++) {
            most = fmaxf(most, largest[c]);
        }
        for (uint32_t c = 0; c < w->chunks_used; c++) {
            total += sum[c] * expf(largest[c] - most);
        }
        lse[head] = w->chunks_used > 0 ? most + logf(total) : 0.0f;
    }
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

/* The best of all chunks, descending. */
static struct pkvi_heap merge_best(const struct work *w, float *value, int32_t *id)
{
    const uint32_t cap = w->args->state.cap;
    struct pkvi_heap heap = {.value = value, .id = id, .capacity = cap};
    for (uint32_t c = 0; c < w->chunks_used; c++) {
        const uint64_t at = ((uint64_t)w->kv_head * w->chunks + c) * cap;
        /* of equal ones the earlier comes first in a chunk, and chunks ascend: no later one
         * displaces it */
        for (uint32_t i = 0; i < cap && w->scratch.best_token[at + i] >= 0; i++) {
            pkvi_heap_offer(&heap, w->scratch.best[at + i], w->scratch.best_token[at + i]);
        }
    }
    pkvi_heap_sort(&heap);
    return heap;
}

/* The slots with the least keys, at most `count`, ascending: as the largest of their negatives. */
static struct pkvi_heap find_victims(const struct work *w, float *value, int32_t *id,
                                     uint32_t count)
{
    struct pkvi_heap heap = {.value = value, .id = id, .capacity = count};
    for (uint32_t i = first_slot(w); i < w->args->state.slots; i++) {
        pkvi_heap_offer(&heap, -w->key[i], (int32_t)i);
    }
    pkvi_heap_sort(&heap);
    return heap;
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
    float best[PKV_RECALL_CAP], least[PKV_RECALL_CAP];
    int32_t token[PKV_RECALL_CAP], slot[PKV_RECALL_CAP];
    const struct pkvi_heap come = merge_best(w, best, token);
    const struct pkvi_heap go = find_victims(w, least, slot, come.count);
    uint32_t count = 0;
    while (count < come.count && count < go.count &&
           best[count] > w->args->hysteresis * -least[count]) {
        const uint32_t at = (uint32_t)slot[count];
        w->swap[2 * count] = token[count];
        w->swap[2 * count + 1] = w->token[at];
        mark(w, w->token[at], false);
        mark(w, token[count], true);
        w->token[at] = token[count];
        w->key[at] = best[count];
        fetch(w, at, (uint32_t)token[count]);
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
    merge_lse(&w);
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
