/* act.h: the results of a row on their way out: float32, 8 bits, or both. */
#ifndef PKV_CPU_ACT_H
#define PKV_CPU_ACT_H

#include "kernels/addr.h"
#include "kernels/cpu/quantize.h"
#include "kernels/kernels.h"

/* Write `count` channels of a row from `col` on. With q8 both are multiples of 32. */
PKV_INLINE void act_put(const struct pkv_act *out, uint32_t row, uint32_t col, const float *values,
                        uint32_t count)
{
    uint64_t at = (uint64_t)row * out->cols + col;
    if (out->f32) {
        memcpy(PKV_AT(float, out->f32) + at, values, count * sizeof *values);
    }
    if (out->q8) {
        pkvi_quantize_row(values, count, PKV_AT(int8_t, out->q8) + at,
                          PKV_AT(float, out->scale) + at / 32, PKV_AT(int16_t, out->sum) + at / 16);
    }
}

#endif
