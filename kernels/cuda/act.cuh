/*
 * act.cuh: 32 channels of activations by a warp, a channel a lane: as they are, as 8 bits, or both.
 * Bit-equal to kernels/ref/quantize.h.
 */
#ifndef PKV_CUDA_ACT_CUH
#define PKV_CUDA_ACT_CUH

#include "kernels/addr.h"
#include "kernels/cuda/device.cuh"
#include "kernels/kernels.h"

/* All lanes call; `block` is the warp's, *q8 the lane's. */
static __device__ __forceinline__ void pkvi_cuda_quantize(float x, int8_t *q8,
                                                          struct pkv_act_block *block)
{
    const float top_steps = 127.0f + PKV_ACT_SPILL_MAX;
    const uint32_t lane = threadIdx.x % 32;
    const float magnitude = fabsf(x), top = pkvi_cuda_warp_max(magnitude);
    const uint32_t tops = __ballot_sync(0xffffffffu, magnitude == top);
    const uint32_t channel = tops ? (uint32_t)__ffs((int)tops) - 1 : 0;
    const float second = pkvi_cuda_warp_max(lane == channel ? 0.0f : magnitude);
    const bool finite = __all_sync(0xffffffffu, isfinite(x));
    if (!finite || top < 1e-30f) {
        *q8 = 0;
        if (lane == 0) {
            *block = {finite ? 0.0f : nanf(""), {0, 0}, 0, 0};
        }
        return;
    }
    const bool by_second = second / 127.0f > top / top_steps;
    const float inverse = by_second ? 127.0f / second : top_steps / top;
    const int q = __float2int_rn(x * inverse);
    const int low = q > 127 ? 127 : q < -127 ? -127 : q;
    int sum = lane == channel ? q : low;
    for (uint32_t distance = 8; distance > 0; distance /= 2) { /* of 16 lanes each */
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    const int other = __shfl_sync(0xffffffffu, sum, 16);
    const int spill = __shfl_sync(0xffffffffu, q - low, channel);
    *q8 = (int8_t)low;
    if (lane == 0) {
        block->scale = by_second ? second / 127.0f : top / top_steps;
        block->sum[0] = (int16_t)sum;
        block->sum[1] = (int16_t)other;
        block->spill = (int16_t)spill;
        block->channel = (uint16_t)channel;
    }
}

/*
 * Channels [col, col + count) of a row, count <= 32 and col a multiple of 32: value of lane i is
 * channel col + i. All lanes call. 8 bits only where count is 32.
 */
static __device__ __forceinline__ void pkvi_cuda_act_put(const struct pkv_act &out, uint32_t row,
                                                         uint32_t col, uint32_t count, float value)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t at = (uint64_t)row * out.cols + col;
    if (out.f32 && lane < count) {
        PKV_AT(float, out.f32)[at + lane] = value;
    }
    if (out.q8) {
        int8_t q8;
        pkvi_cuda_quantize(value, &q8, PKV_AT(struct pkv_act_block, out.block) + at / 32);
        PKV_AT(int8_t, out.q8)[at + lane] = q8;
    }
}

#endif
