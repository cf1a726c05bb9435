/* best.cuh: the largest of many values in descending order, of equal ones the first, by a block:
 * select.cuh finds the least of them, collect.cuh their places, a bitonic sort orders. */
#ifndef PKV_CUDA_BEST_CUH
#define PKV_CUDA_BEST_CUH

#include "kernels/cuda/collect.cuh"

/*
 * A list into order: list.before(a, b) of two places, list.swap(a, b). Bitonic merges that all push
 * what comes first to the smaller place: what is missing up to a power of two comes last and need
 * not be there. What threads wrote before is seen; what they swap is not without a barrier.
 */
template <uint32_t THREADS, class LIST>
static __device__ void pkvi_cuda_sort(LIST list, uint32_t count)
{
    for (uint32_t size = 2; size / 2 < count; size *= 2) {
        for (uint32_t distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
                const uint32_t other = distance == size / 2 ? i ^ (size - 1) : i ^ distance;
                if (other > i && other < count && list.before(other, i)) {
                    list.swap(i, other);
                }
            }
        }
    }
}

struct pkvi_cuda_ranking {
    float *value; /* descending */
    int32_t *id;  /* of equal ones ascending */

    __device__ __forceinline__ bool before(uint32_t a, uint32_t b) const
    {
        return value[a] > value[b] || (value[a] == value[b] && id[a] < id[b]);
    }

    __device__ __forceinline__ void swap(uint32_t a, uint32_t b) const
    {
        const float of_a = value[a];
        const int32_t id_of_a = id[a];
        value[a] = value[b];
        id[a] = id[b];
        value[b] = of_a;
        id[b] = id_of_a;
    }
};

/* Shared memory that is free again on return. */
struct pkvi_cuda_best_room {
    uint32_t *bins;                 /* [PKV_SELECT_BINS] */
    uint32_t *part;                 /* one a warp */
    struct pkvi_cuda_select *found; /* [1] */
};

/* The `wanted` best of `count`, wanted <= count: top[i] and its place id[i]; NaN counts as -inf.
 * What threads wrote before is seen, and what they write here once it returns; all call. */
template <uint32_t THREADS, class VALUES>
static __device__ void pkvi_cuda_best(VALUES value, uint32_t count, uint32_t wanted,
                                      const struct pkvi_cuda_best_room &room, float *top,
                                      int32_t *id)
{
    if (wanted == 0) {
        return;
    }
    if (threadIdx.x == 0) {
        *room.found = {0, 0, wanted};
    }
    __syncthreads();
    pkvi_cuda_select_key<THREADS>(value, count, room.bins, room.part, room.found);
    pkvi_cuda_collect<THREADS>(value, 0, count, *room.found, room.part, id);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < wanted; i += THREADS) {
        const float x = value[(uint32_t)id[i]];
        top[i] = isnan(x) ? -INFINITY : x;
    }
    pkvi_cuda_sort<THREADS>(pkvi_cuda_ranking{top, id}, wanted);
    __syncthreads();
}

#endif
