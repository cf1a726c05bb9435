/*
 * kv_panel.h: K and V of a page, in any number format, as float32 panels of 16 lanes: keys are
 * the lanes of K, channels those of V. Entries of a page lie one behind the other.
 */
#ifndef PKV_CPU_KV_PANEL_H
#define PKV_CPU_KV_PANEL_H

#include "kernels/cpu/vec.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

/* One value of half an entry (K or V). */
PKV_INLINE float kv_value(enum pkv_kv_type type, const uint8_t *half_entry, uint32_t head_dim,
                          uint32_t channel)
{
    uint16_t half;
    float value;
    if (type == PKV_KV_F32) {
        memcpy(&value, half_entry + 4 * channel, sizeof value);
        return value;
    }
    if (type == PKV_KV_Q8_0) {
        memcpy(&half, half_entry + head_dim + channel / 32 * 2, sizeof half);
        return (float)(int8_t)half_entry[channel] * vec_f16_to_f32(half);
    }
    memcpy(&half, half_entry + 2 * channel, sizeof half);
    return type == PKV_KV_F16 ? vec_f16_to_f32(half) : pkvi_bf16_to_f32(half);
}

/* The scale of 32 channels of q8_0. */
PKV_INLINE float kv_scale(const uint8_t *half_entry, uint32_t head_dim, uint32_t channel)
{
    uint16_t half;
    memcpy(&half, half_entry + head_dim + channel / 32 * 2, sizeof half);
    return vec_f16_to_f32(half);
}

#if defined(PKV_ISA_AVX2) || defined(PKV_ISA_AVX512)

#define KV_BLOCK 8u /* channels of 16 keys that are transposed at a time */

PKV_INLINE __m128i kv_load_128(const uint8_t *in)
{
    return _mm_loadu_si128((const __m128i *)(const void *)in);
}

/* 8 channels of 16 keys, 16 bits each: x[i] holds keys i and i + 8, out[c] channel c of all. */
PKV_INLINE void kv_transpose_16(const __m256i x[8], __m256i out[8])
{
    __m256i a[8], b[8];
    for (uint32_t i = 0; i < 4; i++) {
        a[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        a[i + 4] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        out[4 * i] = _mm256_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        out[4 * i + 1] = _mm256_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        out[4 * i + 2] = _mm256_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        out[4 * i + 3] = _mm256_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
}

/* 8 channels from `in` on of 16 consecutive entries, 16 bits each: keys[channel]. */
PKV_INLINE void kv_store_keys_16(const uint8_t *in, size_t entry_bytes, uint8_t keys[8][32])
{
    __m256i x[8], channel[8];
    for (uint32_t i = 0; i < 8; i += 4) {
        /* four bases: the other entries are at once, twice and three times the step from them */
        const uint8_t *low = in + i * entry_bytes, *high = low + 8 * entry_bytes;
        for (uint32_t j = 0; j < 4; j++) {
            x[i + j] =
                _mm256_inserti128_si256(_mm256_castsi128_si256(kv_load_128(low + j * entry_bytes)),
                                        kv_load_128(high + j * entry_bytes), 1);
        }
    }
    kv_transpose_16(x, channel);
    for (uint32_t i = 0; i < 8; i++) {
        _mm256_storeu_si256((__m256i *)(void *)keys[i], channel[i]);
    }
}

PKV_INLINE void kv_transpose_32(const __m256 x[8], float *out)
{
    __m256 a[8], b[8];
    for (uint32_t i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < 2; j++) {
            __m256d low = _mm256_castps_pd(a[4 * i + j]), high = _mm256_castps_pd(a[4 * i + j + 2]);
            b[4 * i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            b[4 * i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + 16 * i, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_storeu_ps(out + 16 * (i + 4), _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

/* 8 channels of 16 keys to panel[8][16]; scale: of the keys, for q8_0. */
PKV_INLINE void kv_transpose(enum pkv_kv_type type, const uint8_t *entry, uint32_t entry_bytes,
                             uint32_t channel, const float *scale, float *panel)
{
    if (type == PKV_KV_F16 || type == PKV_KV_BF16) {
        uint8_t keys[8][32];
        kv_store_keys_16(entry + 2 * channel, entry_bytes, keys);
        for (uint32_t i = 0; i < 8; i++) {
            v16_store(panel + 16 * i,
                      type == PKV_KV_F16 ? v16_from_f16(keys[i]) : v16_from_bf16(keys[i]));
        }
        return;
    }
    for (uint32_t first = 0; first < 16; first += 8) {
        __m256 x[8];
        for (uint32_t i = 0; i < 8; i++) {
            const uint8_t *key = entry + (first + i) * entry_bytes;
            if (type == PKV_KV_F32) {
                x[i] = _mm256_loadu_ps((const float *)(const void *)(key + 4 * channel));
            } else {
                __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(key + channel));
                x[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                                     _mm256_set1_ps(scale[first + i]));
            }
        }
        kv_transpose_32(x, panel + first);
    }
}

#elif defined(PKV_ISA_NEON)

#define KV_BLOCK 4u

PKV_INLINE void kv_transpose(enum pkv_kv_type type, const uint8_t *entry, uint32_t entry_bytes,
                             uint32_t channel, const float *scale, float *panel)
{
    for (uint32_t first = 0; first < 16; first += 4) {
        float32x4_t x[4];
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *key = entry + (first + i) * entry_bytes;
            if (type == PKV_KV_F16) {
                x[i] = vreg_from_f16(key + 2 * channel);
            } else if (type == PKV_KV_BF16) {
                x[i] = vreg_from_bf16(key + 2 * channel);
            } else if (type == PKV_KV_F32) {
                x[i] = vreinterpretq_f32_u8(vld1q_u8(key + 4 * channel));
            } else {
                x[i] = vmulq_n_f32(vreg_from_i8(key + channel), scale[first + i]);
            }
        }
        float32x4x2_t a = vzipq_f32(x[0], x[2]), b = vzipq_f32(x[1], x[3]);
        float32x4x2_t low = vzipq_f32(a.val[0], b.val[0]), high = vzipq_f32(a.val[1], b.val[1]);
        vst1q_f32(panel + first, low.val[0]);
        vst1q_f32(panel + 16 + first, low.val[1]);
        vst1q_f32(panel + 32 + first, high.val[0]);
        vst1q_f32(panel + 48 + first, high.val[1]);
    }
}

#endif

/* K of 16 consecutive entries of a page: panel f32 [head_dim][16]. */
PKV_INLINE void kv_keys_of(enum pkv_kv_type type, const uint8_t *entry, uint32_t entry_bytes,
                           uint32_t head_dim, float *panel)
{
    float scale[V16_LANES] = {0};
    uint32_t channel = 0;
    for (; channel + KV_BLOCK <= head_dim; channel += KV_BLOCK) {
        for (uint32_t key = 0; type == PKV_KV_Q8_0 && channel % 32 == 0 && key < 16; key++) {
            scale[key] = kv_scale(entry + key * entry_bytes, head_dim, channel);
        }
        kv_transpose(type, entry, entry_bytes, channel, scale, panel + channel * 16);
    }
    for (; channel < head_dim; channel++) {
        for (uint32_t key = 0; key < 16; key++) {
            panel[channel * 16 + key] =
                kv_value(type, entry + key * entry_bytes, head_dim, channel);
        }
    }
}

/* The same of a type that is known at run time. */
static void kv_keys(enum pkv_kv_type type, const uint8_t *entry, uint32_t entry_bytes,
                    uint32_t head_dim, float *panel)
{
    switch (type) {
#define KEYS_CASE(known)                                                                           \
    case known:                                                                                    \
        kv_keys_of(known, entry, entry_bytes, head_dim, panel);                                    \
        break;
        KEYS_CASE(PKV_KV_F16)
        KEYS_CASE(PKV_KV_BF16)
        KEYS_CASE(PKV_KV_F32)
        KEYS_CASE(PKV_KV_Q8_0)
#undef KEYS_CASE
    case PKV_KV_TYPE_COUNT:
        break;
    }
}

/* 16 channels of one V, all of them below head_dim. */
PKV_INLINE struct v16 kv_channels(enum pkv_kv_type type, const uint8_t *value, uint32_t head_dim,
                                  uint32_t channel)
{
    switch (type) {
    case PKV_KV_F32:
        return v16_load((const float *)(const void *)(value + 4 * channel));
    case PKV_KV_BF16:
        return v16_from_bf16(value + 2 * channel);
    case PKV_KV_Q8_0:
        return v16_mul(v16_from_i8(value + channel), v16_set1(kv_scale(value, head_dim, channel)));
    case PKV_KV_F16:
    case PKV_KV_TYPE_COUNT:
        break;
    }
    return v16_from_f16(value + 2 * channel);
}

/* The last channels of a head that is no multiple of 16; 0 beyond it. */
PKV_INLINE struct v16 kv_last_channels(enum pkv_kv_type type, const uint8_t *value,
                                       uint32_t head_dim, uint32_t channel)
{
    float all[V16_LANES] = {0};
    for (uint32_t i = 0; channel + i < head_dim; i++) {
        all[i] = kv_value(type, value, head_dim, channel + i);
    }
    return v16_load(all);
}

#endif
