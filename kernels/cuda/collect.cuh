/* collect.cuh: what a block has selected (select.cuh), in ascending order of places. */
#ifndef PKV_CUDA_COLLECT_CUH
#define PKV_CUDA_COLLECT_CUH

#include "kernels/cuda/select.cuh"

/* Values larger than the least that is taken, and those like it, before thread i of a block's step;
 * both together in a word. */
template <uint32_t THREADS>
static __device__ __forceinline__ uint32_t pkvi_cuda_rank_of(bool larger, bool like, uint32_t *part,
                                                             uint32_t *all_out)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
    const uint32_t larger_votes = __ballot_sync(PKV_WARP_ALL, larger);
    const uint32_t like_votes = __ballot_sync(PKV_WARP_ALL, like);
    if (lane == 0) {
        part[warp] = (uint32_t)__popc(larger_votes) | (uint32_t)__popc(like_votes) << 16;
    }
    __syncthreads();
    uint32_t rank = (uint32_t)__popc(larger_votes & below) | (uint32_t)__popc(like_votes & below)
                                                                 << 16;
    uint32_t all = 0;
    for (uint32_t w = 0; w < THREADS / 32; w++) {
        rank += w < warp ? part[w] : 0;
        all += part[w];
    }
    __syncthreads();
    *all_out = all;
    return rank;
}

/* The tokens from `begin` on with values that are larger than the found one, and the first of those
 * like it, in ascending order. */
template <uint32_t THREADS = PKV_SELECT_THREADS, class VALUES>
static __device__ void pkvi_cuda_collect(VALUES value, uint32_t begin, uint32_t end,
                                         const struct pkvi_cuda_select &found, uint32_t *part,
                                         int32_t *token)
{
    uint32_t larger_before = 0, like_before = 0;
    for (uint32_t first = begin; first < end; first += THREADS) {
        const uint32_t t = first + threadIdx.x;
        const uint32_t key = t < end ? pkvi_cuda_order_key(value[t]) : 0;
        const bool larger = t < end && key > found.key, like = t < end && key == found.key;
        uint32_t all;
        const uint32_t rank = pkvi_cuda_rank_of<THREADS>(larger, like, part, &all);
        const uint32_t alike = like_before + (rank >> 16);
        if (larger || (like && alike < found.wanted)) {
            token[larger_before + (rank & 0xffffu) + min(alike, found.wanted)] = (int32_t)t;
        }
        larger_before += all & 0xffffu;
        like_before += all >> 16;
    }
}

#endif
