/* softcap.cu: x = cap * tanh(x / cap) in place; twin of kernels/ref/softcap.c. Reads and writes 8
 * bytes a value. */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/device.cuh"
#include "kernels/kernels.h"

#define THREADS 256u
#define MAX_BLOCKS 4096u

static __global__ void __launch_bounds__(THREADS) softcap(float *x, float cap, uint64_t count)
{
    const uint64_t stride = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        x[i] = cap * tanhf(x[i] / cap);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_softcap *args = (const struct pkv_args_softcap *)arguments;
    const uint64_t count = (uint64_t)args->rows * args->cols;
    if (count == 0) {
        return PKV_OK;
    }
    const uint64_t blocks = (count + THREADS - 1) / THREADS;
    PKV_LAUNCH(softcap, (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), THREADS, 0,
               pkvi_cuda_native(native_stream), PKV_AT(float, args->x), args->cap, count);
    return pkvi_cuda_check(cudaGetLastError(), "launch of softcap");
}

const struct pkv_kernel pkvi_kernel_softcap_cuda = {
    PKV_OP_SOFTCAP, "cuda", 0, sizeof(struct pkv_args_softcap), launch, pkvi_cost_softcap,
};
