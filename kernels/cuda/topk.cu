/*
 * topk.cu: the k largest of each row, ties by the smaller index, and the row's log-sum-exp; twin of
 * kernels/ref/topk.c. A block a row: radix select (select.cuh) finds the k-th key, a pass in index
 * order collects, a bitonic sort orders. Reads a row five times, from the L2 cache but for the
 * first.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/select.cuh"

#define THREADS PKV_SELECT_THREADS
#define WARPS (THREADS / 32)

static __device__ __forceinline__ void put(float *values, int32_t *ids, uint32_t at, float value,
                                           uint32_t id)
{
    values[at] = isnan(value) ? -INFINITY : value;
    ids[at] = (int32_t)id;
}

/* Larger keys in any order, then the first `wanted` of the k-th key's, at the end. */
static __device__ void collect(const float *x, uint32_t cols, uint32_t k,
                               const struct pkvi_cuda_select &found, uint32_t *part,
                               uint32_t *taken, float *values, int32_t *ids)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first_like = k - found.wanted;
    uint32_t like_before = 0;
    for (uint32_t begin = 0; begin < cols; begin += THREADS) {
        const uint32_t i = begin + threadIdx.x;
        const float value = i < cols ? x[i] : 0.0f;
        const uint32_t key = i < cols ? pkvi_cuda_order_key(value) : 0;
        const bool like = i < cols && key == found.key;
        const uint32_t votes = __ballot_sync(0xffffffffu, like);
        if (i < cols && key > found.key) {
            put(values, ids, atomicAdd(taken, 1u), value, i);
        }
        if (lane == 0) {
            part[warp] = (uint32_t)__popc(votes);
        }
        __syncthreads();
        uint32_t rank = like_before + (uint32_t)__popc(votes & ((1u << lane) - 1));
        for (uint32_t w = 0; w < WARPS; w++) {
            rank += w < warp ? part[w] : 0;
            like_before += part[w];
        }
        if (like && rank < found.wanted) {
            put(values, ids, first_like + rank, value, i);
        }
        __syncthreads();
    }
}

static __device__ __forceinline__ bool comes_before(float a, int32_t a_id, float b, int32_t b_id)
{
    return a > b || (a == b && a_id < b_id);
}

/* Bitonic merges that all push the larger to the smaller index: what is missing up to a power of
 * two counts as smallest and need not be there. */
static __device__ void sort(float *values, int32_t *ids, uint32_t k)
{
    for (uint32_t size = 2; size / 2 < k; size *= 2) {
        for (uint32_t distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
                const uint32_t other = distance == size / 2 ? i ^ (size - 1) : i ^ distance;
                if (other <= i || other >= k ||
                    !comes_before(values[other], ids[other], values[i], ids[i])) {
                    continue;
                }
                const float value = values[i];
                const int32_t id = ids[i];
                values[i] = values[other];
                ids[i] = ids[other];
                values[other] = value;
                ids[other] = id;
            }
        }
    }
}

/* Sums of 1024 values in float, of those in double. */
static __device__ float log_sum_exp(const float *x, uint32_t cols, float max, double *part)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float mine = 0.0f;
    for (uint32_t i = threadIdx.x; i < cols; i += THREADS) {
        mine += expf(x[i] - max);
    }
    double sum = (double)mine;
    for (uint32_t distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (lane == 0) {
        part[warp] = sum;
    }
    __syncthreads();
    sum = 0.0;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += part[w];
    }
    return (float)((double)max + log(sum));
}

static __global__ void __launch_bounds__(THREADS) topk(struct pkv_args_topk args)
{
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]);
    PKV_SHARED(uint32_t, part, [WARPS]);
    PKV_SHARED(double, sums, [WARPS]);
    PKV_SHARED(struct pkvi_cuda_select, found, [1]);
    PKV_SHARED(uint32_t, taken, [1]);
    const uint64_t row = blockIdx.x;
    const float *x = PKV_AT(const float, args.x) + row * args.cols;
    float *values = PKV_AT(float, args.values) + row * args.k;
    int32_t *ids = PKV_AT(int32_t, args.ids) + row * args.k;
    if (threadIdx.x == 0) {
        found[0] = {0, 0, args.k};
        taken[0] = 0;
    }
    __syncthreads();
    pkvi_cuda_select_key(x, args.cols, bins, part, found);
    collect(x, args.cols, args.k, found[0], part, taken, values, ids);
    sort(values, ids, args.k);
    if (args.lse) {
        __syncthreads();
        const float lse = log_sum_exp(x, args.cols, values[0], sums);
        if (threadIdx.x == 0) {
            PKV_AT(float, args.lse)[row] = lse;
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_topk *args = (const struct pkv_args_topk *)arguments;
    if (args->rows == 0 || args->k == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(topk, args->rows, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of topk");
}

const struct pkv_kernel pkvi_kernel_topk_cuda = {
    PKV_OP_TOPK, "cuda", 0, sizeof(struct pkv_args_topk), launch, pkvi_cost_topk,
};
