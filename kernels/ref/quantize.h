/* quantize.h: 32 activations to 8 bits, plain reference (kernels/cpu/quantize.h says what). */
#ifndef PKV_REF_QUANTIZE_H
#define PKV_REF_QUANTIZE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* x[32] to q8[32], *scale, sum[2]. */
static inline void pkvi_ref_quantize_block(const float *x, int8_t *q8, float *scale, int16_t *sum)
{
    float amax = 0.0f;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        finite = finite && isfinite(x[i]);
    }
    const bool zero = !finite || amax < 1e-30f;
    const float inverse = zero ? 0.0f : 127.0f / amax;
    *scale = !finite ? NAN : zero ? 0.0f : amax / 127.0f;
    for (int h = 0; h < 2; h++) {
        int total = 0;
        for (int i = 16 * h; i < 16 * h + 16; i++) {
            q8[i] = zero ? 0 : (int8_t)lrintf(x[i] * inverse);
            total += q8[i];
        }
        sum[h] = (int16_t)total;
    }
}

#endif
