/*
 * predict.c: what a query that is not there yet will attend to, plain reference. A unit is a KV
 * head of a span and a chunk of tokens.
 */
#include <string.h>

#include "kernels/cost.h"
#include "kernels/heap.h"
#include "kernels/ref/predict.h"
#include "runtime/base/thread.h"

struct work {
    const struct pkv_args_predict *args;
    const struct pkv_row_span *span;
    const struct pkv_kv_view *view;
    struct pkvi_recall_scratch scratch;
    uint32_t kv_head, chunk, chunks; /* chunks: of the whole context */
    uint32_t begin, end;             /* tokens */
};

static int32_t dot(const struct pkv_index *index, const uint8_t *page, uint32_t token,
                   const int8_t *code)
{
    int32_t sum = 0;
    for (uint32_t c = 0; c < index->channels; c++) {
        const uint32_t group = index->bits == 8 ? c / 4 : c / 8;
        const uint32_t byte = page[(group * PKV_PAGE_TOKENS + token) * 4 + c % 4];
        const uint32_t key = index->bits == 8 ? byte : c % 8 < 4 ? byte & 15u : byte >> 4;
        sum += code[c] * (int32_t)key;
    }
    return sum;
}

/* Adds the probabilities of one query head to those of its KV head. */
static void score_head(const struct work *w, uint32_t head, float *p)
{
    const struct pkv_args_predict *args = w->args;
    const struct pkvi_sketch sketch = pkvi_sketch_make(args, w->span, w->view, head);
    const uint32_t page_bytes = pkvi_index_page_bytes(&args->index);
    const uint8_t *pages = PKV_AT(const uint8_t, pkvi_recall_part(w->view, args->state.index)) +
                           w->kv_head * page_bytes;
    const float lse = PKV_AT(const float, pkvi_recall_part(w->view, args->state.lse))[head];
    const float share = (float)args->kv_heads / (float)args->heads;
    float largest = -INFINITY, sum = 0.0f;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t t = w->begin; t < w->end; t++) {
            const uint8_t *page =
                pages + (uint64_t)(t / PKV_PAGE_TOKENS) * args->kv_heads * page_bytes;
            const float score =
                sketch.unit * (float)dot(&args->index, page, t % PKV_PAGE_TOKENS, sketch.code);
            if (pass == 0) {
                largest = fmaxf(largest, score);
                p[t] += share * fminf(expf(score - lse), 1.0f);
            } else {
                sum += expf(score - largest);
            }
        }
    }
    w->scratch.largest[head * w->chunks + w->chunk] = largest;
    w->scratch.sum[head * w->chunks + w->chunk] = sum;
}

/* The best that are neither in a slot nor in the ring. */
static void choose(const struct work *w, const float *p)
{
    const struct pkv_recall_state *state = &w->args->state;
    const uint32_t ring = pkvi_ring_token(w->view, state);
    const uint32_t *resident = PKV_AT(const uint32_t, pkvi_recall_part(w->view, state->resident)) +
                               (uint64_t)w->kv_head * state->blocks;
    const uint64_t at = ((uint64_t)w->kv_head * w->chunks + w->chunk) * state->cap;
    struct pkvi_heap heap = {
        .value = w->scratch.best + at, .id = w->scratch.best_token + at, .capacity = state->cap};
    for (uint32_t t = w->begin; t < w->end && t < ring; t++) {
        if ((resident[t / PKV_PAGE_TOKENS] >> t % PKV_PAGE_TOKENS & 1u) == 0) {
            pkvi_heap_offer(&heap, p[t], (int32_t)t);
        }
    }
    pkvi_heap_sort(&heap);
    for (uint32_t i = heap.count; i < state->cap; i++) {
        heap.value[i] = -1.0f;
        heap.id[i] = -1;
    }
}

static void predict_chunk(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_predict *args = context;
    const uint32_t group = args->heads / args->kv_heads;
    struct work w = {.args = args, .span = PKV_AT(const struct pkv_row_span, args->spans)};
    w.chunks = pkvi_recall_chunks(args->state.blocks * PKV_PAGE_TOKENS);
    const uint32_t span = unit / (args->kv_heads * w.chunks);
    w.span += span;
    w.view = PKV_AT(const struct pkv_kv_view, args->views) + w.span->view;
    w.scratch = pkvi_recall_scratch(args->scratch, span, &args->state, args->heads, args->kv_heads);
    w.kv_head = unit / w.chunks % args->kv_heads;
    w.chunk = unit % w.chunks;
    const uint32_t tokens = pkvi_indexed_tokens(w.span, args->own);
    w.begin = w.chunk * PKV_PREDICT_CHUNK;
    w.end = w.begin + PKV_PREDICT_CHUNK < tokens ? w.begin + PKV_PREDICT_CHUNK : tokens;
    if (w.begin >= tokens) {
        return;
    }
    float *p = w.scratch.p + (uint64_t)w.kv_head * args->state.blocks * PKV_PAGE_TOKENS;
    memset(p + w.begin, 0, (w.end - w.begin) * sizeof *p);
    for (uint32_t head = w.kv_head * group; head < (w.kv_head + 1) * group; head++) {
        score_head(&w, head, p);
    }
    choose(&w, p);
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_predict predict = *(const struct pkv_args_predict *)args;
    const uint32_t chunks = pkvi_recall_chunks(predict.state.blocks * PKV_PAGE_TOKENS);
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, predict_chunk, &predict,
                  predict.span_count * predict.kv_heads * chunks);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_predict_scalar = {
    .op = PKV_OP_PREDICT,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_predict),
    .launch = launch,
    .cost = pkvi_cost_predict,
};
