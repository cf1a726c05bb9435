/*
 * quantize.cu: rows of activations to 8 bits; twin of kernels/ref/quantize.c. A warp takes 32
 * channels. Reads 4 bytes a value, writes 1.4 (and 4 more where it copies).
 */
#include "kernels/cuda/act.cuh"
#include "kernels/linear_plan.h"

#define THREADS 256u

static __global__ void __launch_bounds__(THREADS) quantize(struct pkv_args_quantize args)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t col = (blockIdx.y * THREADS + threadIdx.x) / 32 * 32;
    if (col < args.cols) { /* all lanes of a warp or none */
        const uint32_t row = blockIdx.x, count = args.cols - col < 32 ? args.cols - col : 32;
        const float *x = PKV_AT(const float, args.x) + (uint64_t)row * args.cols + col;
        pkvi_cuda_act_put(args.out, row, col, count, lane < count ? x[lane] : 0.0f);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    struct pkv_args_quantize args = *(const struct pkv_args_quantize *)arguments;
    if (args.rows == 0 || args.cols == 0) {
        return PKV_OK;
    }
    if (args.out.f32 == args.x) { /* it is there */
        args.out.f32 = 0;
    }
    const dim3 grid(args.rows, (args.cols - 1) / THREADS + 1);
    PKV_LAUNCH(quantize, grid, THREADS, 0, pkvi_cuda_native(native_stream), args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of quantize");
}

const struct pkv_kernel pkvi_kernel_quantize_cuda = {
    PKV_OP_QUANTIZE, "cuda", 0, sizeof(struct pkv_args_quantize), launch, pkvi_cost_quantize,
};
