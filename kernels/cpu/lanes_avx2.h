/* lanes_avx2.h: lanes.h with AVX2, FMA and F16C: two registers of 8. */
#ifndef PKV_CPU_LANES_AVX2_H
#define PKV_CPU_LANES_AVX2_H

#define PKV_TILE_ROWS 4 /* 8 sums, 2 vectors of codes, 1 of activations: all registers */

/*
 * gcc turns chains of integer adds into trees, whose leaves it then spills: with 8 sums of 8 terms
 * that costs half the speed.
 */
#define PKV_KEEP_ORDER(vector) __asm__("" : "+x"(vector))
#define PKV_SIGNED_NEEDS_SUM 0 /* dot_quads reads x_sum for signed codes */

struct pkvi_f16x {
    __m256 v[2];
};
struct pkvi_i16x {
    __m256i v[2];
};

PKV_INLINE struct pkvi_f16x pkvi_f16x_set1(float x)
{
    return (struct pkvi_f16x){{_mm256_set1_ps(x), _mm256_set1_ps(x)}};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_load(const float *x)
{
    return (struct pkvi_f16x){{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}};
}

PKV_INLINE void pkvi_f16x_store(float *x, struct pkvi_f16x a)
{
    _mm256_storeu_ps(x, a.v[0]);
    _mm256_storeu_ps(x + 8, a.v[1]);
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_add(struct pkvi_f16x a, struct pkvi_f16x b)
{
    return (struct pkvi_f16x){{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_mul(struct pkvi_f16x a, struct pkvi_f16x b)
{
    return (struct pkvi_f16x){{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
}

/* a * b + c, rounded once */
PKV_INLINE struct pkvi_f16x pkvi_f16x_fma(struct pkvi_f16x a, struct pkvi_f16x b,
                                          struct pkvi_f16x c)
{
    return (struct pkvi_f16x){
        {_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i16x(struct pkvi_i16x a)
{
    return (struct pkvi_f16x){{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}};
}

/* 16 IEEE halves */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_f16(const uint8_t *x)
{
    const __m128i *halves = (const __m128i *)(const void *)x;
    return (struct pkvi_f16x){
        {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_bf16(const uint8_t *x)
{
    struct pkvi_f16x out;
    for (int h = 0; h < 2; h++) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(x + 16 * h));
        out.v[h] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
    return out;
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_widen_u8(__m128i bytes)
{
    return (struct pkvi_f16x){
        {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)))}};
}

/* (byte >> shift) & mask */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_u8(const uint8_t *x, int shift, int mask)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)x);
    return pkvi_f16x_widen_u8(
        _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), _mm_set1_epi8((char)mask)));
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i8(const uint8_t *x)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)x);
    return (struct pkvi_f16x){
        {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
         _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))}};
}

/* Quad j of 8 rows: codes of 4 values a row. */
PKV_INLINE __m256i quad_half(const struct pkvi_codes c, const uint8_t *planes, const int j,
                             const int h)
{
    const int per_low = 8 / c.low, low_at = c.low * (j % per_low);
    const uint8_t *low_from = planes + 64 * (j / per_low) + 32 * h;
    __m256i q = _mm256_load_si256((const __m256i *)(const void *)low_from);
    if (c.low < 8) {
        q = low_at > 0 ? _mm256_srli_epi16(q, low_at) : q;
        q = _mm256_and_si256(q, _mm256_set1_epi8((char)((1 << c.low) - 1)));
    }
    if (c.high > 0) {
        const int per_high = 8 / c.high, up = c.low - c.high * (j % per_high);
        const uint8_t *high_from = planes + 64 * c.low + 64 * (j / per_high) + 32 * h;
        __m256i high = _mm256_load_si256((const __m256i *)(const void *)high_from);
        high = up >= 0 ? _mm256_slli_epi16(high, up) : _mm256_srli_epi16(high, -up);
        q = _mm256_or_si256(
            q, _mm256_and_si256(high, _mm256_set1_epi8((char)(((1 << c.high) - 1) << c.low))));
    }
    return q;
}

/* Write quad j of 16 rows, 64 bytes. */
PKV_INLINE void pkvi_quad_unpack(const struct pkvi_codes c, const uint8_t *planes, const int j,
                                 uint8_t *to)
{
    for (int h = 0; h < 2; h++) {
        _mm256_store_si256((__m256i *)(void *)(to + 32 * h), quad_half(c, planes, j, h));
    }
}

/* q * x, pairs added in int16: exact below 8 bits; for signed codes see dot_quads. */
PKV_INLINE __m256i pair_products(const struct pkvi_codes c, __m256i q, __m256i x)
{
    if (c.width == 8) {
        /* |q| * (x with q's sign): at most 2 * 128 * 127 */
        return _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    }
    return _mm256_maddubs_epi16(q, x);
}

/*
 * sum[i] = products of quads [j0, j1) with row i of x [rows][32] (a block from quad 0 on), summed.
 * Products of two values meet in int16; `carry` of those (2 * 127 * (2^width - 1) each at most) fit
 * in int16, then they are widened.
 */
PKV_INLINE void pkvi_dot_quads(const struct pkvi_codes c, const uint8_t *planes, const int j0,
                               const int j1, const int rows, const int8_t *x, const int32_t *x_sum,
                               struct pkvi_i16x *sum)
{
    (void)x_sum;
    const int carry = c.width <= 4 ? j1 - j0 : c.width == 5 ? 4 : c.width == 6 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1);
    PKV_UNROLL
    for (int first = j0; first < j1; first += carry) {
        __m256i s[PKV_TILE_ROWS][2];
        PKV_UNROLL
        for (int j = first; j < first + carry; j++) {
            const __m256i q0 = quad_half(c, planes, j, 0), q1 = quad_half(c, planes, j, 1);
            PKV_UNROLL
            for (int i = 0; i < rows; i++) {
                int32_t four;
                __builtin_memcpy(&four, x + 32 * i + 4 * j, 4);
                const __m256i xi = _mm256_set1_epi32(four);
                const __m256i p0 = pair_products(c, q0, xi), p1 = pair_products(c, q1, xi);
                s[i][0] = j == first ? p0 : _mm256_add_epi16(s[i][0], p0);
                s[i][1] = j == first ? p1 : _mm256_add_epi16(s[i][1], p1);
                PKV_KEEP_ORDER(s[i][0]);
                PKV_KEEP_ORDER(s[i][1]);
            }
        }
        PKV_UNROLL
        for (int i = 0; i < rows; i++) {
            for (int h = 0; h < 2; h++) {
                const __m256i wide = _mm256_madd_epi16(s[i][h], ones);
                sum[i].v[h] = first == j0 ? wide : _mm256_add_epi32(sum[i].v[h], wide);
            }
        }
    }
}

/*
 * sum += codes of value `channel` * spill. Codes of a byte each are read from that byte on, which
 * brings it to the bottom of each word (and reads 3 bytes behind the planes).
 */
PKV_INLINE void pkvi_add_spill(const struct pkvi_codes c, const uint8_t *planes, uint32_t channel,
                               int32_t spill, struct pkvi_i16x *sum)
{
    const int j = (int)(channel / 4), byte = (int)(channel % 4);
    const __m256i factor = _mm256_set1_epi32(spill), low = _mm256_set1_epi32(0xff);
    for (int h = 0; h < 2; h++) {
        __m256i q;
        if (c.low == 8) {
            const uint8_t *from = planes + 64 * j + 32 * h + byte;
            q = _mm256_loadu_si256((const __m256i *)(const void *)from);
        } else {
            q = _mm256_srl_epi32(quad_half(c, planes, j, h), _mm_cvtsi32_si128(8 * byte));
        }
        if (c.width == 8) {
            q = _mm256_srai_epi32(_mm256_slli_epi32(q, 24), 24);
            sum->v[h] = _mm256_add_epi32(sum->v[h], _mm256_mullo_epi32(q, factor));
        } else { /* the upper halves of q are 0, so those of factor do not matter */
            q = _mm256_madd_epi16(_mm256_and_si256(q, low), factor);
            sum->v[h] = _mm256_add_epi32(sum->v[h], q);
        }
    }
}

#endif
