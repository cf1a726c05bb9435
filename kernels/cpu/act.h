/* act.h: the results of a row on their way out: float32, 8 bits, or both. */
#ifndef PKV_CPU_ACT_H
#define PKV_CPU_ACT_H

#include "kernels/addr.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/vec.h"
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
                          PKV_AT(struct pkv_act_block, out->block) + at / 32);
    }
}

/* 32 channels of a row from vectors; `at` = row * cols + col, a multiple of 32 with q8. */
PKV_INLINE void act_put_32(const struct pkv_act *out, uint64_t at, struct v16 low, struct v16 high)
{
    float block[32], *values = out->f32 ? PKV_AT(float, out->f32) + at : block;
    v16_store(values, low);
    v16_store(values + 16, high);
    if (out->q8) {
        pkvi_quantize_block(values, PKV_AT(int8_t, out->q8) + at,
                            PKV_AT(struct pkv_act_block, out->block) + at / 32);
    }
}

/* The last `count` <= 16 channels of a row that is no multiple of 32: it has no q8. */
PKV_INLINE void act_put_part(const struct pkv_act *out, uint64_t at, struct v16 values,
                             uint32_t count)
{
    if (out->f32) {
        v16_store_part(PKV_AT(float, out->f32) + at, values, count);
    }
}

#endif
