/* half.h: 16-bit floats, one at a time, in plain C. Rounds to nearest, ties to even. */
#ifndef PKV_HALF_H
#define PKV_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t pkvi_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pkvi_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE binary16. The product shifts the exponent's bias and makes subnormals normal, exactly. */
static inline float pkvi_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t bits = magnitude >= 0x7c00u
                        ? (magnitude << 13) | 0x7f800000u
                        : pkvi_f32_bits(pkvi_f32_from_bits(magnitude << 13) * 0x1p112f);
    return pkvi_f32_from_bits(sign | bits);
}

static inline uint16_t pkvi_f32_to_f16(float value)
{
    uint32_t bits = pkvi_f32_bits(value), magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u; /* NaN */
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u; /* rounds to 65536 or more */
    } else if (magnitude < 0x38800000u) {
        /* Subnormal: adding 0.5 lets the FPU round at the last place, 2^-24. */
        half = pkvi_f32_bits(pkvi_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return (uint16_t)((bits >> 16 & 0x8000u) | half);
}

static inline float pkvi_bf16_to_f32(uint16_t half)
{
    return pkvi_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t pkvi_f32_to_bf16(float value)
{
    uint32_t bits = pkvi_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
