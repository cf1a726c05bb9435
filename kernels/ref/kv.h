/* kv.h: values of K or V in each number format, plain reference. */
#ifndef PKV_REF_KV_H
#define PKV_REF_KV_H

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/kernels.h"

/* 32 values as i8 times one f16 scale, which is rounded first so that it is the one divided by. */
static inline void pkvi_ref_kv_store_q8(const float *x, int8_t *q, uint8_t *scale)
{
    float max = 0.0f;
    for (uint32_t i = 0; i < 32; i++) {
        max = fmaxf(max, fabsf(x[i]));
    }
    uint16_t half = pkvi_f32_to_f16(fminf(max / 127.0f, 65504.0f));
    float step = pkvi_f16_to_f32(half), inverse = step > 0.0f ? 1.0f / step : 0.0f;
    for (uint32_t i = 0; i < 32; i++) {
        q[i] = (int8_t)fmaxf(-127.0f, fminf(127.0f, rintf(x[i] * inverse)));
    }
    memcpy(scale, &half, sizeof half);
}

/* `out`: half an entry. count a multiple of 32 for q8_0. */
static inline void pkvi_ref_kv_store(enum pkv_kv_type type, const float *x, uint32_t count,
                                     uint8_t *out)
{
    if (type == PKV_KV_F32) {
        memcpy(out, x, count * sizeof *x);
    } else if (type == PKV_KV_Q8_0) {
        for (uint32_t i = 0; i < count / 32; i++) {
            pkvi_ref_kv_store_q8(x + 32 * i, (int8_t *)out + 32 * i, out + count + 2 * i);
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            uint16_t half = type == PKV_KV_F16 ? pkvi_f32_to_f16(x[i]) : pkvi_f32_to_bf16(x[i]);
            memcpy(out + 2 * i, &half, sizeof half);
        }
    }
}

/* Value i of half an entry with `count` values. */
static inline float pkvi_ref_kv_load(enum pkv_kv_type type, const uint8_t *in, uint32_t count,
                                     uint32_t i)
{
    uint16_t half;
    float value;
    switch (type) {
    case PKV_KV_F32:
        memcpy(&value, in + 4 * i, sizeof value);
        return value;
    case PKV_KV_Q8_0:
        memcpy(&half, in + count + i / 32 * 2, sizeof half);
        return (float)(int8_t)in[i] * pkvi_f16_to_f32(half);
    case PKV_KV_BF16:
        memcpy(&half, in + 2 * i, sizeof half);
        return pkvi_bf16_to_f32(half);
    case PKV_KV_F16:
    case PKV_KV_TYPE_COUNT:
        break;
    }
    memcpy(&half, in + 2 * i, sizeof half);
    return pkvi_f16_to_f32(half);
}

#endif
