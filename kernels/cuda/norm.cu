/*
 * norm.cu: RMS norm of rows, a block a row; twin of kernels/ref/norm.c. Reads a row twice, the
 * second time from cache. Source: Zhang, Sennrich, arXiv:1910.07467.
 */
#include "kernels/cost.h"
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS 256u

static __device__ __forceinline__ float shifted(const float *x, const float *shift, uint32_t col)
{
    return shift ? __fadd_rn(x[col], shift[col]) : x[col];
}

static __global__ void __launch_bounds__(THREADS) norm(struct pkv_args_norm args)
{
    PKV_SHARED(float, part, [THREADS / 32]);
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
    const int32_t *index = PKV_AT(const int32_t, args.row_index);
    const float *x =
        PKV_AT(const float, args.x) + (uint64_t)(index ? (uint32_t)index[row] : row) * args.cols;
    const float *weight = PKV_AT(const float, args.weight);
    const float *shift = PKV_AT(const float, args.shift);
    float *residual = PKV_AT(float, args.residual);
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x; col < args.cols; col += THREADS) {
        const float value = shifted(x, shift, col);
        sum += value * value;
    }
    sum = pkvi_cuda_block_sum(sum, part);
    const float scale = 1.0f / sqrtf(sum / (float)args.cols + args.eps);
    for (uint32_t col = threadIdx.x - lane; col < args.cols; col += THREADS) {
        const uint32_t count = args.cols - col < 32 ? args.cols - col : 32;
        const float y = lane < count
                            ? __fmul_rn(shifted(x, shift, col + lane) * scale, weight[col + lane])
                            : 0.0f;
        if (!residual) {
            pkvi_cuda_act_put(args.out, row, col, count, y);
        } else if (lane < count) { /* rounded on its own, as without a residual */
            float *to = residual + (uint64_t)row * args.cols + col + lane;
            *to = __fadd_rn(*to, y);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_norm *args = (const struct pkv_args_norm *)arguments;
    if (args->rows == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(norm, args->rows, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of norm");
}

const struct pkv_kernel pkvi_kernel_norm_cuda = {
    PKV_OP_NORM, "cuda", 0, sizeof(struct pkv_args_norm), launch, pkvi_cost_norm,
};
