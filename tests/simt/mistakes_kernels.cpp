/* mistakes_kernels.cpp: mistakes.h, in CUDA as kernels/cuda is written. */
#include "mistakes.h"

#include "kernels/cuda/lang.h"

#define THREADS MISTAKE_THREADS
#define ALL 0xffffffffu

static __device__ float warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL, value, distance);
    }
    return value;
}

/* What does not belong to the reduction. */
static __device__ void spoil(float *shared, const float *x, unsigned n, float *out,
                             enum mistake mistake)
{
    const unsigned t = threadIdx.x;
    if (mistake == PAST_SHARED && t == 0) {
        shared[THREADS + n % 4] = 1.0f;
    }
    if (mistake == ABSENT_LANES && t < 16) {
        shared[t] = __shfl_xor_sync(ALL, shared[t], 1);
    }
    if (mistake == PAST_OUTPUT && t == 0) {
        out[gridDim.x + 1] = shared[0];
    }
    if (mistake == LANES_TRADE && t < 32) {
        shared[32 + t] = (float)t;
        shared[64 + t] = shared[63 - t];
    }
    if (mistake == MISALIGNED && t == 0) {
        const uint4 word = *reinterpret_cast<const uint4 *>(x + 1);
        shared[1] = __uint_as_float(word.x) + __uint_as_float(word.w);
    }
}

static __global__ void sum(const float *x, unsigned n, float *out, enum mistake mistake)
{
    PKV_SHARED(float, shared, [THREADS]);
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    if (mistake != UNSET || t != 17) {
        shared[t] = i < n + (mistake == PAST_INPUT) ? x[i] : 0.0f;
    }
    if (mistake == EARLY_END && t == THREADS - 1) {
        return;
    }
    if (mistake != NO_BARRIER) {
        __syncthreads();
    }
    for (unsigned width = THREADS / 2; width > 0; width /= 2) {
        if (t < width) {
            shared[t] += shared[t + width];
        }
        if (mistake == DIVERGENT && t >= width) {
            __syncthreads();
        } else if (mistake != LOOP_BARRIER || width != 64) {
            __syncthreads();
        }
    }
    spoil(shared, x, n, out, mistake);
    if (t == 0 && mistake == BLOCKS_ADD) {
        out[0] += shared[0];
    } else if (t == 0) {
        out[blockIdx.x] = shared[0];
    }
}

/* Two buffers: a tile is summed, against the order in which it was copied, while the next comes. */
static __global__ void tiles(const float *x, unsigned count, float *out, enum mistake mistake)
{
    PKV_DYN_SHARED(float, buffer);
    const unsigned t = threadIdx.x; /* of 64, four values each */
    __pipeline_memcpy_async(buffer + 4 * t, x + 4 * t, 16);
    __pipeline_commit();
    for (unsigned tile = 0; tile < count; tile++) {
        const float *here = buffer + tile % 2 * MISTAKE_TILE;
        float *next = buffer + (tile + 1) % 2 * MISTAKE_TILE;
        if (tile + 1 < count) {
            __pipeline_memcpy_async(next + 4 * t, x + (tile + 1) * MISTAKE_TILE + 4 * t, 16);
        }
        __pipeline_commit();
        if (mistake != NO_COPY_WAIT) {
            __pipeline_wait_prior(1);
        }
        if (mistake != NO_COPY_BARRIER) {
            __syncthreads();
        }
        float mine = 0.0f;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned at = MISTAKE_TILE - 1 - 4 * t - i;
            const bool is_last = tile + 1 == count && at == MISTAKE_TILE - 1;
            mine += mistake == COPY_UNUSED && is_last ? 0.0f : here[at];
        }
        mine = warp_sum(mine);
        if (t % 32 == 0) {
            atomicAdd(&out[tile], mine);
        }
        if (mistake != NO_END_BARRIER) {
            __syncthreads();
        }
    }
    __pipeline_wait_prior(0);
}

static __global__ void product(const unsigned *a, const unsigned *b, float *d, enum mistake mistake)
{
    const unsigned row = threadIdx.x / 4, pair = threadIdx.x % 4;
    const unsigned low = mistake == FRAGMENT ? row : row + 8;
    const unsigned left[4] = {a[row * 8 + pair], a[low * 8 + pair], a[row * 8 + pair + 4],
                              a[low * 8 + pair + 4]};
    const unsigned right[2] = {b[row * 8 + pair], b[row * 8 + pair + 4]};
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    pkvi_mma_m16n8k16(sums, left, right);
    for (unsigned i = 0; i < 4; i++) {
        d[(row + i / 2 * 8) * 8 + 2 * pair + i % 2] = sums[i];
    }
}

static __global__ void scale(float *x, float factor, float offset, unsigned n)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = x[i] * factor + offset;
    }
}

cudaError_t mistake_sum(const float *x, unsigned n, unsigned blocks, float *out,
                        enum mistake mistake, cudaStream_t stream)
{
    PKV_LAUNCH(sum, blocks, THREADS, 0, stream, x, n, out, mistake);
    return cudaGetLastError();
}

cudaError_t mistake_tiles(const float *x, unsigned count, float *out, enum mistake mistake,
                          cudaStream_t stream)
{
    PKV_LAUNCH(tiles, 1, 64, 2 * MISTAKE_TILE * sizeof(float), stream, x, count, out, mistake);
    return cudaGetLastError();
}

cudaError_t mistake_product(const void *a, const void *b, float *d, enum mistake mistake,
                            cudaStream_t stream)
{
    PKV_LAUNCH(product, 1, 32, 0, stream, static_cast<const unsigned *>(a),
               static_cast<const unsigned *>(b), d, mistake);
    return cudaGetLastError();
}

cudaError_t mistake_scale(float *x, float factor, float offset, unsigned n, cudaStream_t stream)
{
    PKV_LAUNCH(scale, (n + 127) / 128, 128, 0, stream, x, factor, offset, n);
    return cudaGetLastError();
}
