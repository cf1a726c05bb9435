/*
 * simde_avx512.h: AVX-512 intrinsics for machines without it, included before everything else when
 * kernels/cpu is compiled as `avx512_simde` (cmake/simde.cmake). SIMDe has most of them; the rest
 * is spelt out here, a lane at a time.
 */
#ifndef PKV_TEST_SIMDE_AVX512_H
#define PKV_TEST_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <stdint.h>
#include <string.h>

#define PKV_SIMDE_WIDEN(name, from_type, from_vector, to_type, to_vector, convert)                 \
    static inline to_vector pkvt_##name(from_vector a)                                             \
    {                                                                                              \
        from_type in[16];                                                                          \
        to_type out[16];                                                                           \
        to_vector result;                                                                          \
        memcpy(in, &a, sizeof in);                                                                 \
        for (int i = 0; i < 16; i++) {                                                             \
            out[i] = convert(in[i]);                                                               \
        }                                                                                          \
        memcpy(&result, out, sizeof result);                                                       \
        return result;                                                                             \
    }

#define PKV_SIMDE_F16_TO_F32(half) _cvtsh_ss(half)
#define PKV_SIMDE_F32_TO_F16(value) _cvtss_sh(value, 0)

PKV_SIMDE_WIDEN(cvtepi32_ps, int32_t, __m512i, float, __m512, (float))
PKV_SIMDE_WIDEN(cvtepi8_epi32, int8_t, __m128i, int32_t, __m512i, (int32_t))
PKV_SIMDE_WIDEN(cvtepu8_epi32, uint8_t, __m128i, int32_t, __m512i, (int32_t))
PKV_SIMDE_WIDEN(cvtepu16_epi32, uint16_t, __m256i, int32_t, __m512i, (int32_t))
PKV_SIMDE_WIDEN(cvtepi32_epi16, int32_t, __m512i, int16_t, __m256i, (int16_t))
PKV_SIMDE_WIDEN(cvtph_ps, uint16_t, __m256i, float, __m512, PKV_SIMDE_F16_TO_F32)
PKV_SIMDE_WIDEN(cvtps_ph, float, __m512, uint16_t, __m256i, PKV_SIMDE_F32_TO_F16)

static inline uint16_t pkvt_cmpneq_epi32_mask(__m512i a, __m512i b)
{
    int32_t x[16], y[16];
    uint16_t mask = 0;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 16; i++) {
        mask = (uint16_t)(mask | (x[i] != y[i]) << i);
    }
    return mask;
}

#define _mm512_cvtepi32_ps(a) pkvt_cvtepi32_ps(a)
#define _mm512_cvtepi8_epi32(a) pkvt_cvtepi8_epi32(a)
#define _mm512_cvtepu8_epi32(a) pkvt_cvtepu8_epi32(a)
#define _mm512_cvtepu16_epi32(a) pkvt_cvtepu16_epi32(a)
#define _mm512_cvtepi32_epi16(a) pkvt_cvtepi32_epi16(a)
#define _mm512_cvtph_ps(a) pkvt_cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) pkvt_cvtps_ph(a)
#define _mm512_cmpneq_epi32_mask(a, b) pkvt_cmpneq_epi32_mask((a), (b))

#endif
