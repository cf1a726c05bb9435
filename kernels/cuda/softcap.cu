/* softcap.cu: x = cap * tanh(x / cap) in place; twin of kernels/ref/softcap.c. Reads and writes 8 bytes a value. */
#include <cuda_runtime.h>

#include <stdint.h>

static __global__ void softcap(float *x, float cap, uint64_t count)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        x[i] = cap * tanhf(x[i] / cap);
    }
}

/* x: f32 [count], device memory. The work is enqueued; cudaSuccess or the launch's error. */
extern "C" cudaError_t pkvi_cuda_softcap(float *x, float cap, uint64_t count, cudaStream_t stream)
{
    const unsigned threads = 256;
    uint64_t blocks = (count + threads - 1) / threads;
    if (count == 0) {
        return cudaSuccess;
    }
    softcap<<<(unsigned)(blocks < 4096 ? blocks : 4096), threads, 0, stream>>>(x, cap, count);
    return cudaGetLastError();
}
