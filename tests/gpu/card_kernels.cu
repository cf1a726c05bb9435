/* card_kernels.cu: see card.h. */
#include "kernels/cuda/lang.h"

#include "kernels/addr.h"
#include "tests/gpu/card.h"

#if !defined(__CUDACC__)
#include <unistd.h>
#endif

static __device__ void wait_us(uint32_t us)
{
#if defined(__CUDACC__)
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < 1000ull * us);
#else
    usleep(us);
#endif
}

static __global__ void delay(uint32_t us)
{
    wait_us(us);
}

static __global__ void step(uint64_t *x, uint64_t value, uint32_t delay_us)
{
    if (delay_us > 0) {
        wait_us(delay_us);
    }
    *x = *x * 3 + value;
}

/* A warp a piece; four 16-byte loads of a lane are under way at once. */
static __global__ void gather(const uint4 *source, const uint64_t *first, uint4 *target,
                              uint32_t words, uint32_t pieces)
{
    const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    for (uint32_t p = (blockIdx.x * blockDim.x + threadIdx.x) / 32; p < pieces; p += warps) {
        const uint4 *from = source + first[p];
        uint4 *to = target + (uint64_t)p * words;
        for (uint32_t w = lane; w < words; w += 128) {
            uint4 value[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (w + 32 * i < words) {
                    value[i] = from[w + 32 * i];
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (w + 32 * i < words) {
                    to[w + 32 * i] = value[i];
                }
            }
        }
    }
}

static __global__ void read_memory(const uint4 *memory, uint64_t words, uint32_t *sum)
{
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    uint32_t mine = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += 4 * stride) {
        uint4 value[4] = {};
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (i + j * stride < words) {
                value[j] = memory[i + j * stride];
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            mine += value[j].x ^ value[j].y ^ value[j].z ^ value[j].w;
        }
    }
    if (mine == 0x9e3779b9u) { /* so that the loads are not dropped */
        *sum = mine;
    }
}

extern "C" {

cudaError_t pkvt_launch_gather(cudaStream_t stream, const struct pkvt_gather *args)
{
    PKV_LAUNCH(gather, args->blocks, PKVT_GATHER_THREADS, 0, stream,
               PKV_AT(const uint4, args->source), PKV_AT(const uint64_t, args->first),
               PKV_AT(uint4, args->target), args->words, args->pieces);
    return cudaGetLastError();
}

cudaError_t pkvt_launch_read(cudaStream_t stream, const struct pkvt_read *args, uint32_t blocks)
{
    PKV_LAUNCH(read_memory, blocks, 512, 0, stream, PKV_AT(const uint4, args->memory),
               args->bytes / sizeof(uint4), PKV_AT(uint32_t, args->sum));
    return cudaGetLastError();
}

cudaError_t pkvt_launch_delay(cudaStream_t stream, uint32_t us)
{
    PKV_LAUNCH(delay, 1, 1, 0, stream, us);
    return cudaGetLastError();
}

cudaError_t pkvt_launch_step(cudaStream_t stream, pkv_addr x, uint64_t value, uint32_t delay_us)
{
    PKV_LAUNCH(step, 1, 1, 0, stream, PKV_AT(uint64_t, x), value, delay_us);
    return cudaGetLastError();
}

} // extern "C"
