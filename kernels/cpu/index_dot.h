/*
 * index_dot.h: codes of an index times codes of queries, 16 tokens at once. Integers, so exact; how
 * an index page lies in memory stands in kernels.h.
 */
#ifndef PKV_CPU_INDEX_DOT_H
#define PKV_CPU_INDEX_DOT_H

#include "kernels/cpu/vec.h"
#include "kernels/kernels.h"

#define INDEX_DOT_HEADS 4u /* queries that share what is loaded: sums stay in registers */

/* Codes of queries, four channels a word. */
struct index_query {
    int32_t quad[PKV_INDEX_CHANNELS / 4][INDEX_DOT_HEADS];
    int32_t sum[INDEX_DOT_HEADS];   /* of all codes of a query */
    int32_t begin[INDEX_DOT_HEADS]; /* what a sum of products begins with */
};

/* Bytes from one group of channels of a page to the next. */
#define INDEX_GROUP_BYTES (4 * PKV_PAGE_TOKENS)

#if defined(PKV_ISA_AVX512)

/* dot[h]: of the 16 tokens whose first group is at `codes`. bits and heads are constants. */
PKV_INLINE void index_dot(const uint32_t bits, const uint32_t heads, const uint8_t *codes,
                          const struct index_query *query, uint32_t channels, struct v16 *dot)
{
    __m512i sum[INDEX_DOT_HEADS];
    const __m512i low = _mm512_set1_epi8(15);
    const uint32_t quads = channels / 4;
    for (uint32_t h = 0; h < heads; h++) {
        sum[h] = _mm512_set1_epi32(query->begin[h]);
    }
    for (uint32_t j = 0; j < quads; j += 8 / bits) {
        const __m512i all = _mm512_loadu_si512(codes);
        codes += INDEX_GROUP_BYTES;
        const __m512i first = bits == 8 ? all : _mm512_and_si512(all, low);
        PKV_UNROLL
        for (uint32_t h = 0; h < heads; h++) {
            sum[h] = _mm512_dpbusd_epi32(sum[h], first, _mm512_set1_epi32(query->quad[j][h]));
        }
        if (bits == 4) {
            const __m512i second = _mm512_and_si512(_mm512_srli_epi16(all, 4), low);
            PKV_UNROLL
            for (uint32_t h = 0; h < heads; h++) {
                sum[h] =
                    _mm512_dpbusd_epi32(sum[h], second, _mm512_set1_epi32(query->quad[j + 1][h]));
            }
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        dot[h].r[0] = _mm512_cvtepi32_ps(sum[h]);
    }
}

#elif defined(PKV_ISA_AVX2)

/* Groups whose products fit in 16 bits: 2 words of 2 * 15 * 127 each. */
#define INDEX_CARRY 4u

/* gcc makes trees of chains of integer adds, and spills their leaves: three times as slow. */
#define INDEX_KEEP_ORDER(vector) __asm__("" : "+x"(vector))

PKV_INLINE __m256i index_load(const uint8_t *codes)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)codes);
}

/* sum[h][r] += products of `groups` <= INDEX_CARRY groups of 4-bit codes. */
PKV_INLINE void index_add_4(const uint32_t heads, const uint8_t *codes,
                            const int32_t (*quad)[INDEX_DOT_HEADS], const uint32_t groups,
                            __m256i sum[INDEX_DOT_HEADS][2])
{
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i pairs[INDEX_DOT_HEADS][2];
    for (uint32_t h = 0; h < heads; h++) {
        pairs[h][0] = pairs[h][1] = _mm256_setzero_si256();
    }
    PKV_UNROLL
    for (uint32_t g = 0; g < groups; g++) {
        const __m256i all[2] = {index_load(codes + g * INDEX_GROUP_BYTES),
                                index_load(codes + g * INDEX_GROUP_BYTES + 32)};
        __m256i code[2][2];
        for (uint32_t r = 0; r < 2; r++) {
            code[0][r] = _mm256_and_si256(all[r], low);
            code[1][r] = _mm256_and_si256(_mm256_srli_epi16(all[r], 4), low);
        }
        PKV_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            PKV_UNROLL
            for (uint32_t h = 0; h < heads; h++) {
                const __m256i q = _mm256_set1_epi32(quad[2 * g + half][h]);
                for (uint32_t r = 0; r < 2; r++) {
                    pairs[h][r] =
                        _mm256_add_epi16(pairs[h][r], _mm256_maddubs_epi16(code[half][r], q));
                    INDEX_KEEP_ORDER(pairs[h][r]);
                }
            }
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < 2; r++) {
            sum[h][r] = _mm256_add_epi32(sum[h][r], _mm256_madd_epi16(pairs[h][r], ones));
        }
    }
}

/* The same of one group of 8-bit codes: products of even and of odd channels in 32 bits. */
PKV_INLINE void index_add_8(const uint32_t heads, const uint8_t *codes, const int32_t *quad,
                            __m256i sum[INDEX_DOT_HEADS][2])
{
    for (uint32_t r = 0; r < 2; r++) {
        const __m256i all = index_load(codes + 32 * r);
        const __m256i even = _mm256_and_si256(all, _mm256_set1_epi16(0xff));
        const __m256i odd = _mm256_srli_epi16(all, 8);
        for (uint32_t h = 0; h < heads; h++) {
            const __m256i q = _mm256_set1_epi32(quad[h]);
            const __m256i q_even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
            sum[h][r] = _mm256_add_epi32(sum[h][r], _mm256_madd_epi16(even, q_even));
            sum[h][r] =
                _mm256_add_epi32(sum[h][r], _mm256_madd_epi16(odd, _mm256_srai_epi16(q, 8)));
        }
    }
}

/* dot[h]: of the 16 tokens whose first group is at `codes`. bits and heads are constants. */
PKV_INLINE void index_dot(const uint32_t bits, const uint32_t heads, const uint8_t *codes,
                          const struct index_query *query, uint32_t channels, struct v16 *dot)
{
    __m256i sum[INDEX_DOT_HEADS][2];
    for (uint32_t h = 0; h < heads; h++) {
        sum[h][0] = sum[h][1] = _mm256_set1_epi32(query->begin[h]);
    }
    const uint32_t groups = channels * bits / 32;
    uint32_t g = 0;
    for (; bits == 4 && g + INDEX_CARRY <= groups; g += INDEX_CARRY) {
        index_add_4(heads, codes + g * INDEX_GROUP_BYTES, query->quad + 2 * g, INDEX_CARRY, sum);
    }
    for (; g < groups; g++) {
        if (bits == 4) {
            index_add_4(heads, codes + g * INDEX_GROUP_BYTES, query->quad + 2 * g, 1, sum);
        } else {
            index_add_8(heads, codes + g * INDEX_GROUP_BYTES, query->quad[g], sum);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < 2; r++) {
            dot[h].r[r] = _mm256_cvtepi32_ps(sum[h][r]);
        }
    }
}

#else

/* dot[h]: of the 16 tokens whose first group is at `codes`. bits and heads are constants. Codes of
 * 8 bits are lowered by 128 to be signed, which the sum of the query's puts back. */
PKV_INLINE void index_dot(const uint32_t bits, const uint32_t heads, const uint8_t *codes,
                          const struct index_query *query, uint32_t channels, struct v16 *dot)
{
    int32x4_t sum[INDEX_DOT_HEADS][4];
    const uint8x16_t low = vdupq_n_u8(15), top = vdupq_n_u8(128);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < 4; r++) {
            sum[h][r] = vdupq_n_s32(query->begin[h] + (bits == 8 ? 128 * query->sum[h] : 0));
        }
    }
    for (uint32_t j = 0; j < channels / 4; j += 8 / bits) {
        for (uint32_t r = 0; r < 4; r++) {
            const uint8x16_t all = vld1q_u8(codes + 16 * r);
            const int8x16_t first =
                vreinterpretq_s8_u8(bits == 8 ? veorq_u8(all, top) : vandq_u8(all, low));
            const int8x16_t second = vreinterpretq_s8_u8(vshrq_n_u8(all, 4));
            PKV_UNROLL
            for (uint32_t h = 0; h < heads; h++) {
                const int32x4_t q = vdupq_n_s32(query->quad[j][h]);
                sum[h][r] = vdotq_s32(sum[h][r], first, vreinterpretq_s8_s32(q));
                if (bits == 4) {
                    const int32x4_t next = vdupq_n_s32(query->quad[j + 1][h]);
                    sum[h][r] = vdotq_s32(sum[h][r], second, vreinterpretq_s8_s32(next));
                }
            }
        }
        codes += INDEX_GROUP_BYTES;
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t r = 0; r < 4; r++) {
            dot[h].r[r] = vcvtq_f32_s32(sum[h][r]);
        }
    }
}

#endif

#endif
