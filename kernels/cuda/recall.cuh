/* recall.cuh: what PREDICT leaves for RECALL, and where, in kernels; twin of kernels/recall_plan.h.
 */
#ifndef PKV_CUDA_RECALL_CUH
#define PKV_CUDA_RECALL_CUH

#include "kernels/cuda/best.cuh"
#include "kernels/cuda/kv.cuh"

/* Of a span and KV head; what is of query heads, of all of them. */
struct pkvi_cuda_recall {
    const struct pkv_row_span *span;
    const struct pkv_kv_view *view;
    uint32_t tokens;     /* whose index pages PREDICT reads */
    uint32_t ring;       /* the ring's first token */
    uint32_t chunks;     /* of the whole context */
    uint32_t *resident;  /* [blocks] */
    float *p;            /* [blocks * 32] */
    float *best;         /* [chunks][cap], descending */
    int32_t *best_token; /* likewise; -1 where there are no more */
    float *largest;      /* [heads][chunks] score */
    float *sum;          /* likewise: of exp(score - largest) */
};

/* A part of a hot set's state. */
template <class T>
static __device__ __forceinline__ T *pkvi_cuda_recall_part(const struct pkvi_cuda_recall &recall,
                                                           uint64_t part)
{
    return (T *)(PKV_AT(uint8_t, recall.view->score) + part); /* in this order: LDG */
}

/* ARGS: pkv_args_predict or pkv_args_recall. */
template <class ARGS>
static __device__ __forceinline__ struct pkvi_cuda_recall
pkvi_cuda_recall_of(const ARGS &args, uint32_t span, uint32_t kv_head)
{
    const struct pkv_recall_state &state = args.state;
    const uint32_t context = state.blocks * PKV_PAGE_TOKENS;
    struct pkvi_cuda_recall recall;
    recall.span = PKV_AT(const struct pkv_row_span, args.spans) + span;
    recall.view = PKV_AT(const struct pkv_kv_view, args.views) + recall.span->view;
    recall.tokens = recall.span->first_position / PKV_PAGE_TOKENS * PKV_PAGE_TOKENS;
    recall.ring = recall.view->key_shift + state.slots;
    recall.chunks = (context + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
    recall.resident =
        pkvi_cuda_recall_part<uint32_t>(recall, state.resident) + (uint64_t)kv_head * state.blocks;
    const uint64_t p = (uint64_t)args.kv_heads * context, score = (uint64_t)args.heads * context;
    const uint64_t sums = (uint64_t)args.heads * recall.chunks;
    const uint64_t best = (uint64_t)args.kv_heads * recall.chunks * state.cap;
    const uint64_t at = span * ((p + 2 * best + score + 2 * sums + 15) / 16 * 16);
    const uint64_t mine = (uint64_t)kv_head * recall.chunks * state.cap;
    float *words = PKV_AT(float, args.scratch) + at;
    recall.p = words + (uint64_t)kv_head * context;
    recall.best = words + p + mine;
    recall.best_token = PKV_AT(int32_t, args.scratch) + at + p + best + mine;
    recall.largest = words + p + 2 * best + score;
    recall.sum = recall.largest + sums;
    return recall;
}

#endif
