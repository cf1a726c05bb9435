/*
 * quantize.h: rounding a row of activations to 8 bits, inside the kernel that produces it.
 *
 * A block of 32 values: scale = max|x| / 127, q8 = round to nearest even(x * (127 / max|x|)), sums
 * of q8 over 16. A block below 1e-30 is zero; one with a NaN or an infinity gets a NaN scale, so
 * that what reads it becomes NaN as well. Equal, bit for bit, to kernels/ref/quantize.c.
 */
#ifndef PKV_CPU_QUANTIZE_H
#define PKV_CPU_QUANTIZE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

#define PKV_QUANTIZE_TINY 1e-30f

/* The scale of a block from its largest magnitude; 0 or NaN: its q8 are all 0. */
PKV_INLINE float pkvi_quantize_scale(float amax)
{
    if (!(amax <= 3.4028235e38f)) {
        return NAN;
    }
    return amax < PKV_QUANTIZE_TINY ? 0.0f : amax / 127.0f;
}

#if defined(PKV_ISA_AVX2) || defined(PKV_ISA_AVX512)

/* x[32] to q8[32], *scale, sum[2]. */
PKV_INLINE void pkvi_quantize_block(const float *x, int8_t *q8, float *scale, int16_t *sum)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    /* Magnitudes compare as integers; that also puts NaN above everything. */
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(half));
    *scale = pkvi_quantize_scale(amax);
    if (!(*scale > 0.0f)) {
        memset(q8, 0, 32);
        sum[0] = sum[1] = 0;
        return;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / amax);
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q8, bytes);
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    sum[0] = (int16_t)_mm256_extract_epi32(s, 0);
    sum[1] = (int16_t)_mm256_extract_epi32(s, 4);
}

#elif defined(PKV_ISA_NEON)

PKV_INLINE void pkvi_quantize_block(const float *x, int8_t *q8, float *scale, int16_t *sum)
{
    float32x4_t v[8];
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    const uint32_t bits = vmaxvq_u32(top);
    float amax;
    memcpy(&amax, &bits, sizeof(amax));
    *scale = pkvi_quantize_scale(amax);
    if (!(*scale > 0.0f)) {
        memset(q8, 0, 32);
        sum[0] = sum[1] = 0;
        return;
    }
    const float inverse = 127.0f / amax;
    for (int h = 0; h < 2; h++) {
        int16x4_t q[4];
        for (int i = 0; i < 4; i++) {
            q[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + i], inverse)));
        }
        const int16x8_t low = vcombine_s16(q[0], q[1]), high = vcombine_s16(q[2], q[3]);
        vst1q_s8(q8 + 16 * h, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
        sum[h] = vaddvq_s16(vaddq_s16(low, high));
    }
}

#endif

/* One row; cols a multiple of 32. q8[cols], scale[cols / 32], sum[cols / 16]. */
PKV_INLINE void pkvi_quantize_row(const float *x, uint32_t cols, int8_t *q8, float *scale,
                                  int16_t *sum)
{
    for (uint32_t b = 0; b < cols / 32; b++) {
        pkvi_quantize_block(x + 32 * (uint64_t)b, q8 + 32 * (uint64_t)b, scale + b,
                            sum + 2 * (uint64_t)b);
    }
}

#endif
