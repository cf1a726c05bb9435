/*
 * place.cu: filling a hot set; twin of kernels/ref/place.c, to the bit. `choose`, a block a KV
 * head, pools scores into scratch, finds the least that is taken (select.cuh), and writes tokens in
 * ascending order; it reads the scores five times, from the L2 cache but for the first. `gather`
 * then copies entries, a warp each, many of them at a time: they may lie in host memory.
 */
#include "kernels/cost.h"
#include "kernels/cuda/collect.cuh"
#include "kernels/cuda/kv.cuh"

#define THREADS PKV_SELECT_THREADS
#define WARPS (THREADS / 32)
#define COPY_THREADS 256u
#define COPY_WARPS (COPY_THREADS / 32)
#define COPY_BLOCKS 64u /* of a KV head, at most */

/* Twin of kernels/place_hash.h. */
static __device__ __forceinline__ float place_hash(uint32_t seed, uint32_t head, uint32_t token)
{
    uint64_t x = ((uint64_t)seed << 32 | token) + (uint64_t)(head + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)(uint32_t)(x >> 40) * 0x1p-24f;
}

/* The largest score within reach of a token. */
static __device__ __forceinline__ float pooled(const struct pkv_args_place &args, uint32_t head,
                                               const float *score, uint32_t token)
{
    if (args.pick == PKV_PLACE_RANDOM) {
        return place_hash(args.seed, head, token);
    }
    if (!score) {
        return 0.0f;
    }
    const uint32_t reach = args.pool / 2, begin = token > reach ? token - reach : 0;
    const uint32_t end = args.end - token > reach ? token + reach + 1 : args.end;
    float most = -INFINITY;
    for (uint32_t i = begin; i < end; i++) {
        most = fmaxf(most, score[i]);
    }
    return most;
}

/* Scores of the slots and of the ring; slots without a token. */
static __device__ void keep_scores(const struct pkv_args_place &args, const float *score,
                                   uint32_t first, int32_t *token, float *kept)
{
    for (uint32_t key = threadIdx.x; key < args.slots; key += THREADS) {
        if (key < first) {
            token[key] = -1;
            kept[key] = 0.0f;
            continue;
        }
        const uint32_t t = (uint32_t)token[key];
        kept[key] = t < args.sinks ? INFINITY : score ? __fmul_rn(args.gain, score[t]) : 0.0f;
    }
    for (uint32_t t = args.end + threadIdx.x; t < args.tokens; t += THREADS) {
        kept[args.slots + (t - args.end)] = score ? __fmul_rn(args.gain, score[t]) : 0.0f;
    }
}

static __global__ void __launch_bounds__(THREADS, 1) choose(struct pkv_args_place args)
{
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]);
    PKV_SHARED(uint32_t, part, [WARPS]);
    PKV_SHARED(struct pkvi_cuda_select, found, [1]);
    const uint32_t head = blockIdx.x;
    const uint32_t first = pkvi_cuda_view_first_key(args.to, head);
    const uint32_t room = args.slots - first, sinks = min(args.sinks, room);
    const uint32_t wanted = min(room - sinks, args.end - sinks);
    const float *score = args.from.score ? PKV_AT(const float, args.from.score) +
                                               (uint64_t)head * args.from.score_stride
                                         : NULL;
    float *value =
        PKV_AT(float, args.scratch) + head * ((uint64_t)args.end + 2 * (uint64_t)args.slots);
    int32_t *token = PKV_AT(int32_t, args.slot_token) + (uint64_t)head * args.slots;
    float *kept = PKV_AT(float, args.to.score) + (uint64_t)head * args.to.score_stride;
    for (uint32_t t = threadIdx.x; t < args.end; t += THREADS) {
        value[t] = pooled(args, head, score, t);
    }
    for (uint32_t i = threadIdx.x; i < sinks; i += THREADS) {
        token[first + i] = (int32_t)i;
    }
    if (threadIdx.x == 0) {
        found[0] = {0, 0, wanted};
    }
    __syncthreads();
    if (wanted > 0) {
        pkvi_cuda_select_key(value + sinks, args.end - sinks, bins, part, found);
        pkvi_cuda_collect(value, sinks, args.end, found[0], part, token + first + sinks);
    }
    __syncthreads();
    keep_scores(args, score, first, token, kept);
}

static __device__ __forceinline__ const uint8_t *
source(const struct pkv_args_place &args, uint32_t head, uint32_t token, uint32_t entry_bytes)
{
    const uint32_t page = token / PKV_PAGE_TOKENS;
    if (page >= args.from.first_page) {
        return pkvi_cuda_page(args.from, head, page) + token % PKV_PAGE_TOKENS * entry_bytes;
    }
    return PKV_AT(const uint8_t, PKV_AT(const pkv_addr, args.blocks)[page]) +
           ((uint64_t)head * PKV_PAGE_TOKENS + token % PKV_PAGE_TOKENS) * entry_bytes;
}

static __global__ void __launch_bounds__(COPY_THREADS, 4) gather(struct pkv_args_place args)
{
    const uint32_t head = blockIdx.y, first = pkvi_cuda_view_first_key(args.to, head);
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    const int32_t *token = PKV_AT(const int32_t, args.slot_token) + (uint64_t)head * args.slots;
    for (uint32_t key = first + blockIdx.x * COPY_WARPS + threadIdx.x / 32; key < args.slots;
         key += gridDim.x * COPY_WARPS) {
        uint8_t *to = pkvi_cuda_page(args.to, head, key / PKV_PAGE_TOKENS) +
                      key % PKV_PAGE_TOKENS * entry_bytes;
        pkvi_cuda_copy_entry(to, source(args, head, (uint32_t)token[key], entry_bytes),
                             entry_bytes);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_place *args = (const struct pkv_args_place *)arguments;
    const uint32_t blocks = (args->slots + COPY_WARPS - 1) / COPY_WARPS;
    if (args->kv_heads == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(choose, args->kv_heads, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    if (blocks > 0) {
        PKV_LAUNCH(gather, dim3(blocks < COPY_BLOCKS ? blocks : COPY_BLOCKS, args->kv_heads),
                   COPY_THREADS, 0, pkvi_cuda_native(native_stream), *args);
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of place");
}

const struct pkv_kernel pkvi_kernel_place_cuda = {
    PKV_OP_PLACE, "cuda",          PKV_CAP_READS_HOST, sizeof(struct pkv_args_place),
    launch,       pkvi_cost_place,
};
