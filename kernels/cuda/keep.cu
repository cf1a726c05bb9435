/*
 * keep.cu: which rows of a prompt go on behind a layer; twin of kernels/ref/keep.c, to the bit.
 * One block: sums over KV heads to scratch, the least that stays (select.cuh), then places in
 * ascending order. Reads the scores once and the sums four times, from the L2 cache.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/collect.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS PKV_SELECT_THREADS

static __global__ void __launch_bounds__(THREADS, 1) keep(struct pkv_args_keep args)
{
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]);
    PKV_SHARED(uint32_t, part, [THREADS / 32]);
    PKV_SHARED(struct pkvi_cuda_select, found, [1]);
    const uint32_t sinks = min(args.sinks, args.stay), wanted = args.stay - sinks;
    const float *score = PKV_AT(const float, args.score);
    float *sum = PKV_AT(float, args.scratch);
    int32_t *index = PKV_AT(int32_t, args.index);
    for (uint32_t key = sinks + threadIdx.x; key < args.count; key += THREADS) {
        float of_key = 0.0f;
        for (uint32_t h = 0; h < args.kv_heads; h++) {
            of_key += score[(uint64_t)h * args.score_stride + key];
        }
        sum[key] = of_key;
    }
    for (uint32_t i = threadIdx.x; i < sinks; i += THREADS) {
        index[i] = (int32_t)i;
    }
    for (uint32_t i = threadIdx.x; i < args.window; i += THREADS) {
        index[args.stay + i] = (int32_t)(args.count + i);
    }
    if (threadIdx.x == 0) {
        found[0] = {0, 0, wanted};
    }
    __syncthreads();
    if (wanted > 0) {
        pkvi_cuda_select_key(sum + sinks, args.count - sinks, bins, part, found);
        pkvi_cuda_collect(sum, sinks, args.count, found[0], part, index + sinks);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_keep *args = (const struct pkv_args_keep *)arguments;
    PKV_LAUNCH(keep, 1, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of keep");
}

const struct pkv_kernel pkvi_kernel_keep_cuda = {
    PKV_OP_KEEP, "cuda", 0, sizeof(struct pkv_args_keep), launch, pkvi_cost_keep,
};
