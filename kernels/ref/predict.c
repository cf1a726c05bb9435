/*
 * predict.c: what a query that is not there yet will attend to, plain reference. A unit is a KV
 * head of a span and a chunk of tokens.
 */
#include <string.h>

#include "kernels/cost.h"
#include "kernels/heap.h"
#include "kernels/ref/predict.h"
#include "runtime/base/thread.h"

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

/* exp(score - largest) of one query head. */
static void score_head(const struct pkvi_predict_unit *unit, uint32_t head)
{
    const struct pkv_args_predict *args = unit->args;
    const struct pkvi_sketch sketch = pkvi_sketch_make(args, unit->span, unit->view, head);
    const uint32_t page_bytes = pkvi_index_page_bytes(&args->index);
    const uint8_t *pages = PKV_AT(const uint8_t, pkvi_recall_part(unit->view, args->state.index)) +
                           unit->kv_head * page_bytes;
    float *score = unit->scratch.score + (uint64_t)head * args->state.blocks * PKV_PAGE_TOKENS;
    float largest = -INFINITY, sum = 0.0f;
    for (uint32_t t = unit->begin; t < unit->end; t++) {
        const uint8_t *page = pages + (uint64_t)(t / PKV_PAGE_TOKENS) * args->kv_heads * page_bytes;
        const int32_t product = dot(&args->index, page, t % PKV_PAGE_TOKENS, sketch.code);
        score[t] = sketch.unit * ((float)product - sketch.middle);
        largest = fmaxf(largest, score[t]);
    }
    for (uint32_t t = unit->begin; t < unit->end; t++) {
        score[t] = expf(score[t] - largest);
        sum += score[t];
    }
    unit->scratch.largest[head * unit->chunks + unit->chunk] = largest;
    unit->scratch.sum[head * unit->chunks + unit->chunk] = sum;
}

/* The best that are neither in a slot nor in the ring. */
static void choose(const struct pkvi_predict_unit *unit, const float *p)
{
    const struct pkv_recall_state *state = &unit->args->state;
    const uint32_t ring = pkvi_ring_token(unit->view, state);
    const uint32_t *resident =
        PKV_AT(const uint32_t, pkvi_recall_part(unit->view, state->resident)) +
        (uint64_t)unit->kv_head * state->blocks;
    const uint64_t at = ((uint64_t)unit->kv_head * unit->chunks + unit->chunk) * state->cap;
    struct pkvi_heap heap = {.value = unit->scratch.best + at,
                             .id = unit->scratch.best_token + at,
                             .capacity = state->cap};
    for (uint32_t t = unit->begin; t < unit->end && t < ring; t++) {
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

static void score_chunk(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_predict *args = context;
    const struct pkvi_predict_unit unit = pkvi_predict_unit(args, number);
    const uint32_t group = args->heads / args->kv_heads, first = unit.kv_head * group;
    for (uint32_t head = first; unit.begin < unit.end && head < first + group; head++) {
        score_head(&unit, head);
    }
}

static void choose_chunk(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_predict *args = context;
    const struct pkvi_predict_unit unit = pkvi_predict_unit(args, number);
    const uint32_t group = args->heads / args->kv_heads, first = unit.kv_head * group;
    const uint64_t tokens = args->state.blocks * PKV_PAGE_TOKENS;
    if (unit.begin >= unit.end) {
        return;
    }
    float *p = unit.scratch.p + unit.kv_head * tokens;
    memset(p + unit.begin, 0, (unit.end - unit.begin) * sizeof *p);
    for (uint32_t head = first; head < first + group; head++) {
        const float factor = pkvi_predict_factor(&unit, head);
        for (uint32_t t = unit.begin; t < unit.end; t++) {
            p[t] += factor * unit.scratch.score[head * tokens + t];
        }
    }
    choose(&unit, p);
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_predict predict = *(const struct pkv_args_predict *)args;
    struct pkvi_pool *pool = ((const struct pkvi_cpu_stream *)native_stream)->pool;
    pkvi_pool_run(pool, score_chunk, &predict, pkvi_predict_units(&predict));
    pkvi_pool_run(pool, choose_chunk, &predict, pkvi_predict_units(&predict));
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_predict_scalar = {
    .op = PKV_OP_PREDICT,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_predict),
    .launch = launch,
    .cost = pkvi_cost_predict,
};
