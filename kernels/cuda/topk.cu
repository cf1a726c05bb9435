/*
 * topk.cu: the k largest of each row, ties by the smaller index, and the row's log-sum-exp; twin of
 * kernels/ref/topk.c. A block a row (best.cuh). Reads a row five times, from the L2 cache but for
 * the first.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/best.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS PKV_SELECT_THREADS
#define WARPS (THREADS / 32)

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
    const uint64_t row = blockIdx.x;
    const float *x = PKV_AT(const float, args.x) + row * args.cols;
    float *values = PKV_AT(float, args.values) + row * args.k;
    int32_t *ids = PKV_AT(int32_t, args.ids) + row * args.k;
    pkvi_cuda_best<THREADS>(x, args.cols, args.k, {bins, part, found}, values, ids);
    if (args.lse) {
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
