/* quantize.h: 32 activations to 8 bits, plain reference (kernels/cpu/quantize.h says what). */
#ifndef PKV_REF_QUANTIZE_H
#define PKV_REF_QUANTIZE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

static inline void pkvi_ref_quantize_block(const float x[32], int8_t q8[32],
                                           struct pkv_act_block *block)
{
    const float top_steps = 127.0f + PKV_ACT_SPILL_MAX;
    float top = 0.0f, second = 0.0f;
    bool finite = true;
    memset(q8, 0, 32);
    *block = (struct pkv_act_block){0};
    for (uint16_t i = 0; i < 32; i++) {
        const float magnitude = fabsf(x[i]);
        finite = finite && isfinite(x[i]);
        if (magnitude > top) {
            second = top;
            top = magnitude;
            block->channel = i;
        } else if (magnitude > second) {
            second = magnitude;
        }
    }
    if (!finite || top < 1e-30f) {
        block->channel = 0;
        block->scale = finite ? 0.0f : NAN;
        return;
    }
    const bool by_second = second / 127.0f > top / top_steps;
    const float inverse = by_second ? 127.0f / second : top_steps / top;
    block->scale = by_second ? second / 127.0f : top / top_steps;
    for (int i = 0; i < 32; i++) {
        const long q = lrintf(x[i] * inverse);
        const long low = q > 127 ? 127 : q < -127 ? -127 : q;
        q8[i] = (int8_t)low;
        if (i == block->channel) {
            block->spill = (int16_t)(q - low);
        }
        block->sum[i / 16] = (int16_t)(block->sum[i / 16] + (i == block->channel ? q : low));
    }
}

#endif
