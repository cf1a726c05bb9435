/*
 * glu.cu: gated activations; twin of kernels/ref/glu.c. A warp takes 32 channels. Reads 8 bytes a
 * value. Source: Shazeer, arXiv:2002.05202.
 */
#include "kernels/cost.h"
#include "kernels/cuda/act.cuh"

#define THREADS 256u

/* x sigmoid(x), or x sigmoid(2u), which is gelu's 0.5 x (1 + tanh(u)) and does not cancel. */
static __device__ __forceinline__ float gated(enum pkv_glu kind, float x)
{
    const float twice_sqrt_2_over_pi = 1.5957691f;
    float u = x;
    if (kind == PKV_GLU_GELU) {
        u = twice_sqrt_2_over_pi * x * fmaf(x * x, 0.044715f, 1.0f);
    }
    return x / (1.0f + expf(-u));
}

static __global__ void __launch_bounds__(THREADS) glu(struct pkv_args_glu args)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t col = (blockIdx.y * THREADS + threadIdx.x) / 32 * 32;
    if (col < args.cols) { /* all lanes of a warp or none */
        const uint32_t row = blockIdx.x, count = args.cols - col < 32 ? args.cols - col : 32;
        const uint64_t at = (uint64_t)row * args.cols + col + lane;
        float y = 0.0f;
        if (lane < count) {
            y = gated(args.kind, PKV_AT(const float, args.gate)[at]) *
                PKV_AT(const float, args.up)[at];
        }
        pkvi_cuda_act_put(args.out, row, col, count, y);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_glu *args = (const struct pkv_args_glu *)arguments;
    if (args->rows == 0 || args->cols == 0) {
        return PKV_OK;
    }
    const dim3 grid(args->rows, (args->cols - 1) / THREADS + 1);
    PKV_LAUNCH(glu, grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of glu");
}

const struct pkv_kernel pkvi_kernel_glu_cuda = {
    PKV_OP_GLU, "cuda", 0, sizeof(struct pkv_args_glu), launch, pkvi_cost_glu,
};
