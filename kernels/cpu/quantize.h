/*
 * quantize.h: rounding a row of activations to 8 bits, inside the kernel that produces it.
 *
 * A block of 32 values: scale = second largest |x| / 127, but at least largest / (127 +
 * PKV_ACT_SPILL_MAX); q = round to nearest even(x * (127 / second)); q8 = q, except that the
 * largest (the first of equals) keeps at most 127 of its q there and the rest as spill. A block
 * below 1e-30 is zero; one with a NaN or an infinity gets a NaN scale, so that what reads it
 * becomes NaN as well. Equal, bit for bit, to kernels/ref/quantize.h.
 */
#ifndef PKV_CPU_QUANTIZE_H
#define PKV_CPU_QUANTIZE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

#define PKV_QUANTIZE_TINY 1e-30f

/* The step of a block and its inverse; false: nothing to round, q8 is 0 and the block is done. */
PKV_INLINE bool pkvi_quantize_steps(float top, float second, int8_t *q8,
                                    struct pkv_act_block *block, float *inverse)
{
    const float top_steps = 127.0f + PKV_ACT_SPILL_MAX;
    if (!(top <= 3.4028235e38f) || top < PKV_QUANTIZE_TINY) {
        memset(q8, 0, 32);
        *block = (struct pkv_act_block){.scale = top < PKV_QUANTIZE_TINY ? 0.0f : NAN};
        return false;
    }
    const float by_second = second / 127.0f, by_top = top / top_steps;
    block->scale = by_second > by_top ? by_second : by_top;
    *inverse = by_second > by_top ? 127.0f / second : top_steps / top;
    return true;
}

/* q of the largest is known: what of it is beyond its q8. sums: of the q8. */
PKV_INLINE void pkvi_quantize_spill(int32_t q, uint32_t channel, int32_t low_sum, int32_t high_sum,
                                    struct pkv_act_block *block)
{
    const int32_t spill = q > 127 ? q - 127 : q < -127 ? q + 127 : 0;
    block->channel = (uint16_t)channel;
    block->spill = (int16_t)spill;
    block->sum[0] = (int16_t)(channel < 16 ? low_sum + spill : low_sum);
    block->sum[1] = (int16_t)(channel < 16 ? high_sum : high_sum + spill);
}

#if defined(PKV_ISA_AVX2) || defined(PKV_ISA_AVX512)

/* The two largest of 32 magnitudes in each element: as integers, which puts NaN above all. */
PKV_INLINE void pkvi_top_two(const __m256i m[4], __m128i *top, __m128i *second)
{
    const __m256i a = _mm256_max_epi32(m[0], m[1]), b = _mm256_max_epi32(m[2], m[3]);
    const __m256i c = _mm256_max_epi32(_mm256_min_epi32(m[0], m[1]), _mm256_min_epi32(m[2], m[3]));
    const __m256i t = _mm256_max_epi32(a, b), s = _mm256_max_epi32(_mm256_min_epi32(a, b), c);
    __m128i t0 = _mm256_castsi256_si128(t), t1 = _mm256_extracti128_si256(t, 1);
    __m128i s0 = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    s0 = _mm_max_epi32(s0, _mm_min_epi32(t0, t1));
    t0 = _mm_max_epi32(t0, t1);
    t1 = _mm_shuffle_epi32(t0, 0x4e);
    s0 = _mm_max_epi32(_mm_max_epi32(s0, _mm_shuffle_epi32(s0, 0x4e)), _mm_min_epi32(t0, t1));
    t0 = _mm_max_epi32(t0, t1);
    t1 = _mm_shuffle_epi32(t0, 0xb1);
    *second = _mm_max_epi32(_mm_max_epi32(s0, _mm_shuffle_epi32(s0, 0xb1)), _mm_min_epi32(t0, t1));
    *top = _mm_max_epi32(t0, t1);
}

/* x[32] to q8[32] and what they share. */
PKV_INLINE void pkvi_quantize_block(const float *x, int8_t *q8, struct pkv_act_block *block)
{
    __m256 v[4];
    __m256i magnitude[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        magnitude[i] = _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff));
    }
    __m128i top, second;
    pkvi_top_two(magnitude, &top, &second);
    float inverse;
    if (!pkvi_quantize_steps(_mm_cvtss_f32(_mm_castsi128_ps(top)),
                             _mm_cvtss_f32(_mm_castsi128_ps(second)), q8, block, &inverse)) {
        return;
    }
    uint32_t is_top = 0;
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
        const __m256i equal = _mm256_cmpeq_epi32(magnitude[i], _mm256_broadcastd_epi32(top));
        is_top |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(equal)) << 8 * i;
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
    }
    const uint32_t channel = (uint32_t)__builtin_ctz(is_top);
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(-127));
    _mm256_storeu_si256((__m256i *)(void *)q8, bytes);
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    const __m128 largest = _mm_mul_ss(_mm_load_ss(x + channel), _mm_set_ss(inverse));
    pkvi_quantize_spill(_mm_cvtss_si32(largest), channel, _mm256_extract_epi32(s, 0),
                        _mm256_extract_epi32(s, 4), block);
}

#elif defined(PKV_ISA_NEON)

PKV_INLINE void pkvi_quantize_block(const float *x, int8_t *q8, struct pkv_act_block *block)
{
    float32x4_t v[8];
    uint32x4_t top = vdupq_n_u32(0), second = top;
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        const uint32x4_t magnitude = vreinterpretq_u32_f32(vabsq_f32(v[i]));
        second = vmaxq_u32(second, vminq_u32(top, magnitude));
        top = vmaxq_u32(top, magnitude);
    }
    const uint32_t top_bits = vmaxvq_u32(top);
    /* The second largest: of the elements' seconds, and of their tops all but one that is it. */
    uint32_t tops[4], second_bits = vmaxvq_u32(second), left_out = 0;
    vst1q_u32(tops, top);
    for (uint32_t i = 0; i < 4; i++) {
        if (tops[i] == top_bits && !left_out) {
            left_out = 1;
        } else if (tops[i] > second_bits) {
            second_bits = tops[i];
        }
    }
    float largest, next, inverse;
    memcpy(&largest, &top_bits, sizeof largest);
    memcpy(&next, &second_bits, sizeof next);
    if (!pkvi_quantize_steps(largest, next, q8, block, &inverse)) {
        return;
    }
    int32_t sums[2];
    for (int h = 0; h < 2; h++) {
        int16x4_t q[4];
        for (int i = 0; i < 4; i++) {
            q[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + i], inverse)));
        }
        int8x16_t bytes =
            vcombine_s8(vqmovn_s16(vcombine_s16(q[0], q[1])), vqmovn_s16(vcombine_s16(q[2], q[3])));
        bytes = vmaxq_s8(bytes, vdupq_n_s8(-127));
        vst1q_s8(q8 + 16 * h, bytes);
        sums[h] = vaddlvq_s8(bytes);
    }
    uint32_t channel = 0;
    while (fabsf(x[channel]) != largest) {
        channel++;
    }
    pkvi_quantize_spill(vcvtns_s32_f32(x[channel] * inverse), channel, sums[0], sums[1], block);
}

#endif

/* One row; cols a multiple of 32. q8 [cols], block [cols / 32]. */
PKV_INLINE void pkvi_quantize_row(const float *x, uint32_t cols, int8_t *q8,
                                  struct pkv_act_block *block)
{
    for (uint32_t b = 0; b < cols / 32; b++) {
        pkvi_quantize_block(x + 32 * (uint64_t)b, q8 + 32 * (uint64_t)b, block + b);
    }
}

#endif
