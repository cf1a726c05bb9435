/* device.cuh: what several CUDA kernels share: the stream of a launch, reductions, number formats.
 */
#ifndef PKV_CUDA_DEVICE_CUH
#define PKV_CUDA_DEVICE_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lang.h"

#define PKV_WARP_ALL 0xffffffffu

/* Of what launch() gets. */
static inline cudaStream_t pkvi_cuda_native(const void *native_stream)
{
    return ((const struct pkvi_cuda_stream *)native_stream)->stream;
}

/* The sum over the lanes of a warp in each of them; all lanes call. Bits are the same in each. */
static __device__ __forceinline__ float pkvi_cuda_warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(PKV_WARP_ALL, value, distance);
    }
    return value;
}

/* NaN only where every lane has it. */
static __device__ __forceinline__ float pkvi_cuda_warp_max(float value)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(PKV_WARP_ALL, value, distance));
    }
    return value;
}

/*
 * The sum over a block of whole warps in one dimension, in each of its threads; all threads call.
 * part: shared memory, a float a warp; free again on return.
 */
static __device__ __forceinline__ float pkvi_cuda_block_sum(float value, float *part)
{
    value = pkvi_cuda_warp_sum(value);
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) {
        sum += part[warp];
    }
    __syncthreads();
    return sum;
}

/* 16-bit floats as they lie in memory. Rounded to nearest, ties to even. */
static __device__ __forceinline__ float pkvi_cuda_f16_to_f32(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint16_t pkvi_cuda_f32_to_f16(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

static __device__ __forceinline__ float pkvi_cuda_bf16_to_f32(uint16_t bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

static __device__ __forceinline__ uint16_t pkvi_cuda_f32_to_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* Two f16 in a word, the first in the low half. */
static __device__ __forceinline__ float2 pkvi_cuda_f16x2_to_f32(unsigned word)
{
    return make_float2(pkvi_cuda_f16_to_f32((uint16_t)(word & 0xffffu)),
                       pkvi_cuda_f16_to_f32((uint16_t)(word >> 16)));
}

static __device__ __forceinline__ float2 pkvi_cuda_bf16x2_to_f32(unsigned word)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

static __device__ __forceinline__ unsigned pkvi_cuda_f32_to_f16x2(float low, float high)
{
    return pkvi_cuda_f32_to_f16(low) | (unsigned)pkvi_cuda_f32_to_f16(high) << 16;
}

/* Bit i of a bitmap, whatever other threads do to the rest of its word. */
static __device__ __forceinline__ void pkvi_cuda_set_bit(uint32_t *words, uint32_t i)
{
    atomicOr(&words[i / 32], 1u << i % 32);
}

static __device__ __forceinline__ void pkvi_cuda_clear_bit(uint32_t *words, uint32_t i)
{
    atomicAnd(&words[i / 32], ~(1u << i % 32));
}

/* 16 bytes at once; the address is a multiple of 16. */
static __device__ __forceinline__ uint4 pkvi_cuda_load16(const void *from)
{
    return *static_cast<const uint4 *>(from);
}

static __device__ __forceinline__ void pkvi_cuda_store16(void *to, uint4 value)
{
    *static_cast<uint4 *>(to) = value;
}

#endif
