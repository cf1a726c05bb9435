/* norm.h: the scale of an RMS norm, shared by NORM and the QK-norm of ROPE. */
#ifndef PKV_CPU_NORM_H
#define PKV_CPU_NORM_H

#include <math.h>

#include "kernels/cpu/vec.h"

/* 1 / sqrt(mean(x^2) + eps); squares go to 16 partial sums by channel mod 16. */
PKV_INLINE float rms_scale(const float *x, uint32_t count, float eps)
{
    struct v16 sum = v16_set1(0.0f);
    uint32_t i = 0;
    for (; i + V16_LANES <= count; i += V16_LANES) {
        struct v16 part = v16_load(x + i);
        sum = v16_fma(part, part, sum);
    }
    if (i < count) {
        struct v16 part = v16_load_part(x + i, count - i);
        sum = v16_fma(part, part, sum);
    }
    return 1.0f / sqrtf(v16_sum(sum) / (float)count + eps);
}

#endif
