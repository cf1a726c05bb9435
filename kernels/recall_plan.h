/* recall_plan.h: what PREDICT leaves for RECALL, and where. */
#ifndef PKV_RECALL_PLAN_H
#define PKV_RECALL_PLAN_H

#include "kernels/kv_view.h"

static inline uint32_t pkvi_recall_chunks(uint32_t tokens)
{
    return (tokens + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
}

/* Tokens whose index pages PREDICT reads. */
static inline uint32_t pkvi_indexed_tokens(const struct pkv_row_span *span)
{
    return span->first_position / PKV_PAGE_TOKENS * PKV_PAGE_TOKENS;
}

/* The ring's first token: none from there on is recalled. */
static inline uint32_t pkvi_ring_token(const struct pkv_kv_view *view,
                                       const struct pkv_recall_state *state)
{
    return view->key_shift + state->slots;
}

/* A part of a hot set's state; of KV head or query head h the caller goes on by its stride. */
static inline pkv_addr pkvi_recall_part(const struct pkv_kv_view *view, uint64_t part)
{
    return view->score + part;
}

/* Of one span. */
struct pkvi_recall_scratch {
    float *p;            /* [kv_heads][blocks * 32] */
    float *best;         /* [kv_heads][chunks][cap], descending */
    int32_t *best_token; /* likewise; -1 where there are no more */
    /* Within PREDICT: */
    float *score;   /* [heads][blocks * 32]; where a variant keeps it */
    float *largest; /* [heads][chunks] score */
    float *sum;     /* likewise: of exp(score - largest) */
};

/* In 4-byte words. */
struct pkvi_recall_sizes {
    uint64_t p, best, score, sums, span;
};

static inline struct pkvi_recall_sizes pkvi_recall_sizes(const struct pkv_recall_state *state,
                                                         uint32_t heads, uint32_t kv_heads)
{
    const uint64_t chunks = pkvi_recall_chunks(state->blocks * PKV_PAGE_TOKENS);
    struct pkvi_recall_sizes sizes = {
        .p = (uint64_t)kv_heads * state->blocks * PKV_PAGE_TOKENS,
        .best = kv_heads * chunks * state->cap,
        .score = (uint64_t)heads * state->blocks * PKV_PAGE_TOKENS,
        .sums = heads * chunks,
    };
    sizes.span = (sizes.p + 2 * sizes.best + sizes.score + 2 * sizes.sums + 15) / 16 * 16;
    return sizes;
}

static inline struct pkvi_recall_scratch pkvi_recall_scratch(pkv_addr scratch, uint32_t span,
                                                             const struct pkv_recall_state *state,
                                                             uint32_t heads, uint32_t kv_heads)
{
    const struct pkvi_recall_sizes sizes = pkvi_recall_sizes(state, heads, kv_heads);
    float *words = PKV_AT(float, scratch) + span * sizes.span;
    return (struct pkvi_recall_scratch){
        .p = words,
        .best = words + sizes.p,
        .best_token = PKV_AT(int32_t, scratch) + span * sizes.span + sizes.p + sizes.best,
        .score = words + sizes.p + 2 * sizes.best,
        .largest = words + sizes.p + 2 * sizes.best + sizes.score,
        .sum = words + sizes.p + 2 * sizes.best + sizes.score + sizes.sums,
    };
}

/* A unit of PREDICT: a KV head of a span and a chunk of its tokens. */
struct pkvi_predict_unit {
    const struct pkv_args_predict *args;
    const struct pkv_row_span *span;
    const struct pkv_kv_view *view;
    struct pkvi_recall_scratch scratch;
    uint32_t kv_head, chunk, chunks; /* chunks: of the whole context */
    uint32_t begin, end;             /* tokens; none where begin >= end */
};

static inline uint32_t pkvi_predict_units(const struct pkv_args_predict *args)
{
    return args->span_count * args->kv_heads *
           pkvi_recall_chunks(args->state.blocks * PKV_PAGE_TOKENS);
}

static inline struct pkvi_predict_unit pkvi_predict_unit(const struct pkv_args_predict *args,
                                                         uint32_t number)
{
    struct pkvi_predict_unit unit = {.args = args,
                                     .span = PKV_AT(const struct pkv_row_span, args->spans)};
    unit.chunks = pkvi_recall_chunks(args->state.blocks * PKV_PAGE_TOKENS);
    const uint32_t span = number / (args->kv_heads * unit.chunks);
    unit.span += span;
    unit.view = PKV_AT(const struct pkv_kv_view, args->views) + unit.span->view;
    unit.scratch =
        pkvi_recall_scratch(args->scratch, span, &args->state, args->heads, args->kv_heads);
    unit.kv_head = number / unit.chunks % args->kv_heads;
    unit.chunk = number % unit.chunks;
    unit.begin = unit.chunk * PKV_PREDICT_CHUNK;
    const uint32_t tokens = pkvi_indexed_tokens(unit.span);
    unit.end = unit.begin + PKV_PREDICT_CHUNK < tokens ? unit.begin + PKV_PREDICT_CHUNK : tokens;
    return unit;
}

/* The rotary pair of an index's channels 2i and 2i + 1, the first of which is `channel`; -1: they
 * are not rotated. */
static inline int32_t pkvi_index_pair(uint32_t channel, uint32_t pairs, uint32_t halves)
{
    const uint32_t pair = halves ? channel : channel / 2;
    return pair < pairs ? (int32_t)pair : -1;
}

#endif
