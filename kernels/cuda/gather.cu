/*
 * gather.cu: rows move up in place; twin of kernels/ref/gather.c. A thread has a column, so that
 * none waits for another: of BATCH rows it reads all before it writes any, and a row is never read
 * from above where it goes. Loads of a batch are in flight together.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/kernels.h"

#define THREADS 64u /* few, so that narrow rows are spread over the device */
#define BATCH 16u

static __global__ void __launch_bounds__(THREADS) move_up(struct pkv_args_gather args)
{
    const uint32_t col = blockIdx.x * THREADS + threadIdx.x;
    const int32_t *index = PKV_AT(const int32_t, args.index);
    if (col >= args.cols) {
        return;
    }
    float *x = PKV_AT(float, args.x) + col;
    for (uint32_t first = 0; first < args.rows; first += BATCH) {
        const uint32_t count = min(args.rows - first, BATCH);
        float value[BATCH];
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if (i < count) {
                value[i] = x[(uint64_t)(uint32_t)index[first + i] * args.cols];
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if (i < count) {
                x[(uint64_t)(first + i) * args.cols] = value[i];
            }
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_gather *args = (const struct pkv_args_gather *)arguments;
    const uint32_t blocks = (args->cols + THREADS - 1) / THREADS;
    if (blocks == 0 || args->rows == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(move_up, blocks, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of gather");
}

const struct pkv_kernel pkvi_kernel_gather_cuda = {
    PKV_OP_GATHER, "cuda", 0, sizeof(struct pkv_args_gather), launch, pkvi_cost_gather,
};
