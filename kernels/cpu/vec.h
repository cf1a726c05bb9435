/*
 * vec.h: 16 float lanes, whatever the machine's vectors are: two AVX2, one AVX-512, four NEON
 * registers. A kernel written on struct v16 sums in the same order on all of them, and gives the
 * same bits (fused multiply-adds everywhere). Knows nothing of operations.
 */
#ifndef PKV_CPU_VEC_H
#define PKV_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

#define V16_LANES 16u

/* One register: the only part an instruction set has to provide. */
#if defined(PKV_ISA_AVX512)

typedef __m512 vreg;
#define V16_REGS 1
/* Rows of a register-blocked product: as many accumulators as hide the latency of an FMA. */
#define PKV_BLOCK_ROWS 12u

#define vreg_set1 _mm512_set1_ps
#define vreg_load _mm512_loadu_ps
#define vreg_store _mm512_storeu_ps
#define vreg_add _mm512_add_ps
#define vreg_sub _mm512_sub_ps
#define vreg_mul _mm512_mul_ps
#define vreg_div _mm512_div_ps
#define vreg_fma _mm512_fmadd_ps
#define vreg_max _mm512_max_ps
#define vreg_min _mm512_min_ps
#define vreg_abs _mm512_abs_ps

/* value * 2^n, n in the low bits of `steps` */
PKV_INLINE vreg vreg_scale2(vreg value, vreg steps)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value),
                                                _mm512_slli_epi32(_mm512_castps_si512(steps), 23)));
}

/* x < limit ? a : b */
PKV_INLINE vreg vreg_where_below(vreg x, vreg limit, vreg a, vreg b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}

/* mask lanes that are all ones take a, those that are 0 take b */
PKV_INLINE vreg vreg_where_mask(const uint32_t *mask, vreg a, vreg b)
{
    __mmask16 lanes = _mm512_cmpneq_epi32_mask(_mm512_loadu_si512(mask), _mm512_setzero_si512());
    return _mm512_mask_blend_ps(lanes, b, a);
}

/* lane i: of a where bit i is set, else of b */
PKV_INLINE vreg vreg_where_bits(uint32_t bits, vreg a, vreg b)
{
    return _mm512_mask_blend_ps((__mmask16)bits, b, a);
}

/* bit i: lane i of a >= that of b */
PKV_INLINE uint32_t vreg_reaches(vreg a, vreg b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

PKV_INLINE vreg vreg_from_f16(const uint8_t *in)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)in));
}

PKV_INLINE vreg vreg_from_bf16(const uint8_t *in)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)in));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

PKV_INLINE vreg vreg_from_i8(const uint8_t *in)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)in)));
}

PKV_INLINE void vreg_to_f16(uint8_t *out, vreg value)
{
    _mm256_storeu_si256((__m256i *)(void *)out,
                        _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Bits rounded to the nearest even upper half, in the upper half. */
PKV_INLINE void vreg_to_bf16(uint8_t *out, vreg value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

#elif defined(PKV_ISA_AVX2)

typedef __m256 vreg;
#define V16_REGS 2
#define PKV_BLOCK_ROWS 6u

#define vreg_set1 _mm256_set1_ps
#define vreg_load _mm256_loadu_ps
#define vreg_store _mm256_storeu_ps
#define vreg_add _mm256_add_ps
#define vreg_sub _mm256_sub_ps
#define vreg_mul _mm256_mul_ps
#define vreg_div _mm256_div_ps
#define vreg_fma _mm256_fmadd_ps
#define vreg_max _mm256_max_ps
#define vreg_min _mm256_min_ps

PKV_INLINE vreg vreg_abs(vreg value)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
}

/* value * 2^n, n in the low bits of `steps` */
PKV_INLINE vreg vreg_scale2(vreg value, vreg steps)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value),
                                                _mm256_slli_epi32(_mm256_castps_si256(steps), 23)));
}

/* x < limit ? a : b */
PKV_INLINE vreg vreg_where_below(vreg x, vreg limit, vreg a, vreg b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
}

/* mask lanes that are all ones take a, those that are 0 take b */
PKV_INLINE vreg vreg_where_mask(const uint32_t *mask, vreg a, vreg b)
{
    __m256i lanes = _mm256_loadu_si256((const __m256i *)(const void *)mask);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(lanes));
}

/* lane i: of a where bit i is set, else of b */
PKV_INLINE vreg vreg_where_bits(uint32_t bits, vreg a, vreg b)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lane);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
}

/* bit i: lane i of a >= that of b */
PKV_INLINE uint32_t vreg_reaches(vreg a, vreg b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

PKV_INLINE vreg vreg_from_f16(const uint8_t *in)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in));
}

PKV_INLINE vreg vreg_from_bf16(const uint8_t *in)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)in));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

PKV_INLINE vreg vreg_from_i8(const uint8_t *in)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)in)));
}

PKV_INLINE void vreg_to_f16(uint8_t *out, vreg value)
{
    _mm_storeu_si128((__m128i *)(void *)out,
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Bits rounded to the nearest even upper half. */
PKV_INLINE void vreg_to_bf16(uint8_t *out, vreg value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    bits = _mm256_srli_epi32(bits, 16);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_packus_epi32(_mm256_castsi256_si128(bits),
                                                              _mm256_extracti128_si256(bits, 1)));
}

#elif defined(PKV_ISA_NEON)

typedef float32x4_t vreg;
#define V16_REGS 4
#define PKV_BLOCK_ROWS 6u

#define vreg_set1 vdupq_n_f32
#define vreg_load vld1q_f32
#define vreg_store vst1q_f32
#define vreg_add vaddq_f32
#define vreg_sub vsubq_f32
#define vreg_mul vmulq_f32
#define vreg_div vdivq_f32
#define vreg_max vmaxq_f32
#define vreg_min vminq_f32
#define vreg_abs vabsq_f32

PKV_INLINE vreg vreg_fma(vreg a, vreg b, vreg c)
{
    return vfmaq_f32(c, a, b);
}

/* value * 2^n, n in the low bits of `steps` */
PKV_INLINE vreg vreg_scale2(vreg value, vreg steps)
{
    return vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(value), vshlq_n_s32(vreinterpretq_s32_f32(steps), 23)));
}

/* x < limit ? a : b */
PKV_INLINE vreg vreg_where_below(vreg x, vreg limit, vreg a, vreg b)
{
    return vbslq_f32(vcltq_f32(x, limit), a, b);
}

/* mask lanes that are all ones take a, those that are 0 take b */
PKV_INLINE vreg vreg_where_mask(const uint32_t *mask, vreg a, vreg b)
{
    return vbslq_f32(vld1q_u32(mask), a, b);
}

/* lane i: of a where bit i is set, else of b */
PKV_INLINE vreg vreg_where_bits(uint32_t bits, vreg a, vreg b)
{
    static const uint32_t lane[4] = {1, 2, 4, 8};
    return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), vld1q_u32(lane)), a, b);
}

/* bit i: lane i of a >= that of b */
PKV_INLINE uint32_t vreg_reaches(vreg a, vreg b)
{
    static const uint32_t lane[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgeq_f32(a, b), vld1q_u32(lane)));
}

PKV_INLINE vreg vreg_from_f16(const uint8_t *in)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(in)));
}

PKV_INLINE vreg vreg_from_bf16(const uint8_t *in)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(in)), 16));
}

PKV_INLINE vreg vreg_from_i8(const uint8_t *in)
{
    uint32_t four;
    memcpy(&four, in, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

PKV_INLINE void vreg_to_f16(uint8_t *out, vreg value)
{
    vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(value)));
}

/* Bits rounded to the nearest even upper half. */
PKV_INLINE void vreg_to_bf16(uint8_t *out, vreg value)
{
    uint32x4_t bits = vreinterpretq_u32_f32(value);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    vst1_u8(out, vreinterpret_u8_u16(vshrn_n_u32(bits, 16)));
}

#endif

#define VREG_LANES (V16_LANES / V16_REGS)

PKV_INLINE float vec_f16_to_f32(uint16_t half)
{
#if defined(PKV_ISA_NEON)
    float16x4_t all = vreinterpret_f16_u16(vdup_n_u16(half));
    return vgetq_lane_f32(vcvt_f32_f16(all), 0);
#else
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#endif
}

struct v16 {
    vreg r[V16_REGS];
};

#define V16_EACH(i) for (uint32_t i = 0; i < V16_REGS; i++)

#define V16_BINARY(name)                                                                           \
    PKV_INLINE struct v16 v16_##name(struct v16 a, struct v16 b)                                   \
    {                                                                                              \
        V16_EACH(i)                                                                                \
        {                                                                                          \
            a.r[i] = vreg_##name(a.r[i], b.r[i]);                                                  \
        }                                                                                          \
        return a;                                                                                  \
    }
V16_BINARY(add)
V16_BINARY(sub)
V16_BINARY(mul)
V16_BINARY(div)
V16_BINARY(max)
V16_BINARY(min)
V16_BINARY(scale2)
#undef V16_BINARY

PKV_INLINE struct v16 v16_set1(float value)
{
    struct v16 out;
    V16_EACH(i)
    {
        out.r[i] = vreg_set1(value);
    }
    return out;
}

PKV_INLINE struct v16 v16_load(const float *in)
{
    struct v16 out;
    V16_EACH(i)
    {
        out.r[i] = vreg_load(in + i * VREG_LANES);
    }
    return out;
}

PKV_INLINE void v16_store(float *out, struct v16 value)
{
    V16_EACH(i)
    {
        vreg_store(out + i * VREG_LANES, value.r[i]);
    }
}

/* The first `count` <= 16 lanes; the others are 0. */
PKV_INLINE struct v16 v16_load_part(const float *in, uint32_t count)
{
    float all[V16_LANES] = {0};
    memcpy(all, in, count * sizeof *all);
    return v16_load(all);
}

PKV_INLINE void v16_store_part(float *out, struct v16 value, uint32_t count)
{
    float all[V16_LANES];
    v16_store(all, value);
    memcpy(out, all, count * sizeof *all);
}

/* a * b + c, rounded once */
PKV_INLINE struct v16 v16_fma(struct v16 a, struct v16 b, struct v16 c)
{
    V16_EACH(i)
    {
        c.r[i] = vreg_fma(a.r[i], b.r[i], c.r[i]);
    }
    return c;
}

PKV_INLINE struct v16 v16_abs(struct v16 a)
{
    V16_EACH(i)
    {
        a.r[i] = vreg_abs(a.r[i]);
    }
    return a;
}

/* x < limit ? a : b */
PKV_INLINE struct v16 v16_where_below(struct v16 x, struct v16 limit, struct v16 a, struct v16 b)
{
    V16_EACH(i)
    {
        b.r[i] = vreg_where_below(x.r[i], limit.r[i], a.r[i], b.r[i]);
    }
    return b;
}

/* Lanes begin <= lane < end of a, the others of b. */
PKV_INLINE struct v16 v16_where_lanes(uint32_t begin, uint32_t end, struct v16 a, struct v16 b)
{
    uint32_t mask[V16_LANES];
    for (uint32_t lane = 0; lane < V16_LANES; lane++) {
        mask[lane] = lane >= begin && lane < end ? UINT32_MAX : 0;
    }
    V16_EACH(i)
    {
        b.r[i] = vreg_where_mask(mask + i * VREG_LANES, a.r[i], b.r[i]);
    }
    return b;
}

/* Lane i: of a where bit i is set, else of b. */
PKV_INLINE struct v16 v16_where_bits(uint32_t bits, struct v16 a, struct v16 b)
{
    V16_EACH(i)
    {
        b.r[i] = vreg_where_bits(bits >> i * VREG_LANES, a.r[i], b.r[i]);
    }
    return b;
}

/* Bit i: lane i of a >= that of b. */
PKV_INLINE uint32_t v16_reaches(struct v16 a, struct v16 b)
{
    uint32_t bits = 0;
    V16_EACH(i)
    {
        bits |= vreg_reaches(a.r[i], b.r[i]) << i * VREG_LANES;
    }
    return bits;
}

/* Lanes 1, 0, 3, 2, 5, 4, ... */
PKV_INLINE struct v16 v16_swap_pairs(struct v16 a)
{
    V16_EACH(i)
    {
#if defined(PKV_ISA_NEON)
        a.r[i] = vrev64q_f32(a.r[i]);
#elif defined(PKV_ISA_AVX512)
        a.r[i] = _mm512_shuffle_ps(a.r[i], a.r[i], 0xb1);
#else
        a.r[i] = _mm256_permute_ps(a.r[i], 0xb1);
#endif
    }
    return a;
}

/* Sum of the lanes as a tree: pairs at distance 8, 4, 2, 1. */
PKV_INLINE float v16_sum(struct v16 a)
{
#if defined(PKV_ISA_NEON)
    float32x4_t four = vaddq_f32(vaddq_f32(a.r[0], a.r[2]), vaddq_f32(a.r[1], a.r[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
#else
#if defined(PKV_ISA_AVX512)
    __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256(a.r[0]),
                      _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.r[0]), 1)));
#else
    __m256 eight = _mm256_add_ps(a.r[0], a.r[1]);
#endif
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

PKV_INLINE float v16_largest(struct v16 a)
{
#if defined(PKV_ISA_NEON)
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.r[0], a.r[2]), vmaxq_f32(a.r[1], a.r[3])));
#else
#if defined(PKV_ISA_AVX512)
    __m256 eight =
        _mm256_max_ps(_mm512_castps512_ps256(a.r[0]),
                      _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.r[0]), 1)));
#else
    __m256 eight = _mm256_max_ps(a.r[0], a.r[1]);
#endif
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#endif
}

PKV_INLINE struct v16 v16_from_f16(const uint8_t *in)
{
    struct v16 out;
    V16_EACH(i)
    {
        out.r[i] = vreg_from_f16(in + i * VREG_LANES * 2);
    }
    return out;
}

PKV_INLINE struct v16 v16_from_bf16(const uint8_t *in)
{
    struct v16 out;
    V16_EACH(i)
    {
        out.r[i] = vreg_from_bf16(in + i * VREG_LANES * 2);
    }
    return out;
}

PKV_INLINE struct v16 v16_from_i8(const uint8_t *in)
{
    struct v16 out;
    V16_EACH(i)
    {
        out.r[i] = vreg_from_i8(in + i * VREG_LANES);
    }
    return out;
}

PKV_INLINE void v16_to_f16(uint8_t *out, struct v16 value)
{
    V16_EACH(i)
    {
        vreg_to_f16(out + i * VREG_LANES * 2, value.r[i]);
    }
}

PKV_INLINE void v16_to_bf16(uint8_t *out, struct v16 value)
{
    V16_EACH(i)
    {
        vreg_to_bf16(out + i * VREG_LANES * 2, value.r[i]);
    }
}

#endif
