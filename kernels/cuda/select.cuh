/*
 * select.cuh: which of many values is the k-th largest: radix select by three digits, in a block.
 * Source: Alabi et al., J. Exp. Algorithmics 17, 2012. Reads the values three times.
 */
#ifndef PKV_CUDA_SELECT_CUH
#define PKV_CUDA_SELECT_CUH

#include "kernels/cuda/device.cuh"

#define PKV_SELECT_THREADS 1024u /* of a block that selects, in one dimension: most of them */
#define PKV_SELECT_BINS 2048u

/* Ascending keys for ascending values; -0 and 0 are equal, NaN is as small as -inf. */
static __device__ __forceinline__ uint32_t pkvi_cuda_order_key(float value)
{
    const float x = isnan(value) ? -INFINITY : value == 0.0f ? 0.0f : value;
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Where the k-th largest lies: digits found so far, and how many keys like it are wanted. */
struct pkvi_cuda_select {
    uint32_t key, mask, wanted;
};

/* One digit of the k-th key: `bins` = a histogram of the keys that share the digits before. */
template <uint32_t THREADS>
static __device__ void pkvi_cuda_find_digit(const uint32_t *bins, uint32_t shift, uint32_t bits,
                                            uint32_t *part, struct pkvi_cuda_select *found)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, wanted = found->wanted;
    constexpr uint32_t bins_a_thread = PKV_SELECT_BINS / THREADS;
    const uint32_t first = PKV_SELECT_BINS - 1 - threadIdx.x * bins_a_thread; /* from the top */
    uint32_t mine = 0;
    for (uint32_t i = 0; i < bins_a_thread; i++) {
        mine += bins[first - i];
    }
    uint32_t through = mine; /* keys of the bins down to the thread's last */
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, through, distance);
        through += lane >= distance ? below : 0;
    }
    if (lane == 31) {
        part[warp] = through;
    }
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++) {
        through += part[w];
    }
    uint32_t before = through - mine;
    if (before < wanted && wanted <= through) { /* one thread */
        uint32_t bin = first;
        while (before + bins[bin] < wanted) {
            before += bins[bin--];
        }
        found->key |= bin << shift;
        found->mask |= ((1u << bits) - 1) << shift;
        found->wanted = wanted - before;
    }
    __syncthreads();
}

/* Begin with found = {0, 0, k}, 0 < k <= count; found->wanted becomes how many of the values with
 * found->key belong to the k largest. x[i]: of a pointer, or of what has that operator. bins:
 * [PKV_SELECT_BINS], part: one a warp; all threads call. */
template <uint32_t THREADS = PKV_SELECT_THREADS, class VALUES>
static __device__ void pkvi_cuda_select_key(VALUES x, uint32_t count, uint32_t *bins,
                                            uint32_t *part, struct pkvi_cuda_select *found)
{
    static const uint32_t shifts[] = {21, 10, 0}, bits[] = {11, 11, 10};
    for (uint32_t digit = 0; digit < 3; digit++) {
        for (uint32_t i = threadIdx.x; i < PKV_SELECT_BINS; i += THREADS) {
            bins[i] = 0;
        }
        __syncthreads();
        const uint32_t key = found->key, mask = found->mask;
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            const uint32_t mine = pkvi_cuda_order_key(x[i]);
            if ((mine & mask) == key) {
                atomicAdd(&bins[mine >> shifts[digit] & ((1u << bits[digit]) - 1)], 1u);
            }
        }
        __syncthreads();
        pkvi_cuda_find_digit<THREADS>(bins, shifts[digit], bits[digit], part, found);
    }
}

#endif
