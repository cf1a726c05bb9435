/*
 * ref.h: what the plain reference kernels share.
 *
 * They are the scalar variant: readable C in the canonical order of kernels.h. Sums over a row's
 * channels go to 16 partial sums by channel number mod 16, added as a tree: pairs at distance 8,
 * 4, 2, 1. That is the order of the vector variants too, whatever their width.
 */
#ifndef PKV_REF_H
#define PKV_REF_H

#include <math.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/kernels.h"
#include "kernels/ref/quantize.h"

#define PKV_LANES 16u

static inline float pkvi_ref_tree(float part[PKV_LANES])
{
    for (uint32_t distance = PKV_LANES / 2; distance > 0; distance /= 2) {
        for (uint32_t i = 0; i < distance; i++) {
            part[i] += part[i + distance];
        }
    }
    return part[0];
}

/* 1 / sqrt(mean(x^2) + eps), of x + shift where there is one */
static inline float pkvi_ref_rms_scale(const float *x, const float *shift, uint32_t count,
                                       float eps)
{
    float part[PKV_LANES] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const float value = shift ? x[i] + shift[i] : x[i];
        part[i % PKV_LANES] += value * value;
    }
    return 1.0f / sqrtf(pkvi_ref_tree(part) / (float)count + eps);
}

/* Write `count` <= 32 channels of a row from `col`, a multiple of 32, on: f32, q8 or both. */
static inline void pkvi_ref_act_put(const struct pkv_act *out, uint32_t row, uint32_t col,
                                    const float *values, uint32_t count)
{
    uint64_t at = (uint64_t)row * out->cols + col;
    if (out->f32) {
        memcpy(PKV_AT(float, out->f32) + at, values, count * sizeof *values);
    }
    if (out->q8) {
        pkvi_ref_quantize_block(values, PKV_AT(int8_t, out->q8) + at,
                                PKV_AT(struct pkv_act_block, out->block) + at / 32);
    }
}

#endif
