/*
 * embed.cu: rows of the embedding table; twin of kernels/ref/embed.c. A thread takes 8 channels.
 * Reads the row's codes (4 bytes of each 64, so 8 times as much from DRAM), writes 4 bytes a value.
 */
#include "kernels/cuda/weights.cuh"
#include "kernels/linear_plan.h"

#define THREADS 128u

template <int TYPE>
static __global__ void __launch_bounds__(THREADS) embed(struct pkv_args_embed args)
{
    const uint32_t row = blockIdx.x, width = args.table.cols;
    const uint32_t col = 8 * (blockIdx.y * THREADS + threadIdx.x);
    if (col >= width) {
        return;
    }
    const uint32_t id = (uint32_t)PKV_AT(const int32_t, args.ids)[row];
    const uint8_t *group = PKV_AT(const uint8_t, args.table.data) +
                           id / PKV_PACK_ROWS * pkvi_cuda_group_bytes<TYPE>(width);
    float *x = PKV_AT(float, args.x) + (uint64_t)row * width + col;
    const uint32_t count = width - col < 8 ? width - col : 8;
    float values[8];
    pkvi_cuda_octet<TYPE>(group, id % PKV_PACK_ROWS, col, count, values);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        if (i < count) {
            x[i] = values[i] * args.scale;
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_embed *args = (const struct pkv_args_embed *)arguments;
    if (args->rows == 0 || args->table.cols == 0) {
        return PKV_OK;
    }
    const dim3 grid(args->rows, (args->table.cols - 1) / (8 * THREADS) + 1);
    const cudaStream_t stream = pkvi_cuda_native(native_stream);
#define LAUNCH(TYPE) PKV_LAUNCH((embed<TYPE>), grid, THREADS, 0, stream, *args)
    PKV_CUDA_EACH_TYPE(args->table.type, LAUNCH)
#undef LAUNCH
    return pkvi_cuda_check(cudaGetLastError(), "launch of embed");
}

const struct pkv_kernel pkvi_kernel_embed_cuda = {
    PKV_OP_EMBED, "cuda", 0, sizeof(struct pkv_args_embed), launch, pkvi_cost_embed,
};
