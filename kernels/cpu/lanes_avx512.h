/* lanes_avx512.h: lanes.h with AVX-512 (F, BW, VNNI): one register of 16. */
#ifndef PKV_CPU_LANES_AVX512_H
#define PKV_CPU_LANES_AVX512_H

#define PKV_TILE_ROWS 8
#define PKV_SIGNED_NEEDS_SUM 1 /* dot_quads reads x_sum for signed codes */

struct pkvi_f16x {
    __m512 v;
};
struct pkvi_i16x {
    __m512i v;
};

PKV_INLINE struct pkvi_f16x pkvi_f16x_set1(float x)
{
    return (struct pkvi_f16x){_mm512_set1_ps(x)};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_load(const float *x)
{
    return (struct pkvi_f16x){_mm512_loadu_ps(x)};
}

PKV_INLINE void pkvi_f16x_store(float *x, struct pkvi_f16x a)
{
    _mm512_storeu_ps(x, a.v);
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_add(struct pkvi_f16x a, struct pkvi_f16x b)
{
    return (struct pkvi_f16x){_mm512_add_ps(a.v, b.v)};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_mul(struct pkvi_f16x a, struct pkvi_f16x b)
{
    return (struct pkvi_f16x){_mm512_mul_ps(a.v, b.v)};
}

/* a * b + c, rounded once */
PKV_INLINE struct pkvi_f16x pkvi_f16x_fma(struct pkvi_f16x a, struct pkvi_f16x b,
                                          struct pkvi_f16x c)
{
    return (struct pkvi_f16x){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i16x(struct pkvi_i16x a)
{
    return (struct pkvi_f16x){_mm512_cvtepi32_ps(a.v)};
}

/* 16 IEEE halves */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_f16(const uint8_t *x)
{
    return (struct pkvi_f16x){
        _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x))};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_bf16(const uint8_t *x)
{
    const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)x);
    return (struct pkvi_f16x){
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}

/* (byte >> shift) & mask */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_u8(const uint8_t *x, int shift, int mask)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)x);
    return (struct pkvi_f16x){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(
        _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), _mm_set1_epi8((char)mask))))};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i8(const uint8_t *x)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)x);
    return (struct pkvi_f16x){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

PKV_INLINE __m512i shift_bytes(__m512i bytes, int left)
{
    return left >= 0 ? _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(left))
                     : _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(-left));
}

/* Quad j of 16 rows: codes of 4 values a row. */
PKV_INLINE __m512i quad(const struct pkvi_codes c, const uint8_t *planes, const int j)
{
    const int per_low = 8 / c.low;
    __m512i q = _mm512_loadu_si512(planes + 64 * (j / per_low));
    if (c.low < 8) {
        q = shift_bytes(q, -c.low * (j % per_low));
        q = _mm512_and_si512(q, _mm512_set1_epi8((char)((1 << c.low) - 1)));
    }
    if (c.high > 0) {
        const int per_high = 8 / c.high;
        const __m512i high = _mm512_loadu_si512(planes + 64 * c.low + 64 * (j / per_high));
        const __m512i mask = _mm512_set1_epi8((char)(((1 << c.high) - 1) << c.low));
        q = _mm512_or_si512(
            q, _mm512_and_si512(shift_bytes(high, c.low - c.high * (j % per_high)), mask));
    }
    return q;
}

/* Write quad j of 16 rows, 64 bytes. */
PKV_INLINE void pkvi_quad_unpack(const struct pkvi_codes c, const uint8_t *planes, const int j,
                                 uint8_t *to)
{
    _mm512_storeu_si512(to, quad(c, planes, j));
}

/*
 * sum[i] = products of quads [j0, j1) with row i of x [rows][32] (a block from quad 0 on), summed.
 * The instruction wants unsigned codes: signed ones are raised by 128, which x_sum[i], the sum of
 * those values of x, takes away again.
 */
PKV_INLINE void pkvi_dot_quads(const struct pkvi_codes c, const uint8_t *planes, const int j0,
                               const int j1, const int rows, const int8_t *x, const int32_t *x_sum,
                               struct pkvi_i16x *sum)
{
    PKV_UNROLL
    for (int i = 0; i < rows; i++) {
        sum[i].v = c.width == 8 ? _mm512_set1_epi32(-128 * x_sum[i]) : _mm512_setzero_si512();
    }
    PKV_UNROLL
    for (int j = j0; j < j1; j++) {
        __m512i q = quad(c, planes, j);
        q = c.width == 8 ? _mm512_xor_si512(q, _mm512_set1_epi8((char)0x80)) : q;
        PKV_UNROLL
        for (int i = 0; i < rows; i++) {
            int32_t four;
            __builtin_memcpy(&four, x + 32 * i + 4 * j, 4);
            sum[i].v = _mm512_dpbusd_epi32(sum[i].v, q, _mm512_set1_epi32(four));
        }
    }
}

/* sum += codes of value `channel` * spill. Reads 3 bytes behind planes of a byte a code. */
PKV_INLINE void pkvi_add_spill(const struct pkvi_codes c, const uint8_t *planes, uint32_t channel,
                               int32_t spill, struct pkvi_i16x *sum)
{
    const int j = (int)(channel / 4), byte = (int)(channel % 4);
    const __m512i factor = _mm512_set1_epi32(spill);
    __m512i q = c.low == 8 ? _mm512_loadu_si512(planes + 64 * j + byte)
                           : _mm512_srl_epi32(quad(c, planes, j), _mm_cvtsi32_si128(8 * byte));
    q = _mm512_and_si512(q, _mm512_set1_epi32(0xff));
    if (c.width == 8) { /* the sign of a byte */
        const __m512i sign = _mm512_set1_epi32(0x80);
        q = _mm512_sub_epi32(_mm512_xor_si512(q, sign), sign);
    }
    sum->v = _mm512_add_epi32(sum->v, _mm512_mullo_epi32(q, factor));
}

#endif
