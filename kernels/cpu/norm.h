/* norm.h: the scale of an RMS norm, shared by NORM and the QK-norm of ROPE. */
#ifndef PKV_CPU_NORM_H
#define PKV_CPU_NORM_H

#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/vec.h"

/* Values [i, i + count) of x + shift; shift may be NULL. */
PKV_INLINE struct v16 shifted(const float *x, const float *shift, uint32_t i, uint32_t count)
{
    const bool whole = count == V16_LANES;
    struct v16 part = whole ? v16_load(x + i) : v16_load_part(x + i, count);
    if (shift) {
        part = v16_add(part, whole ? v16_load(shift + i) : v16_load_part(shift + i, count));
    }
    return part;
}

/* 1 / sqrt(mean((x + shift)^2) + eps); squares go to 16 partial sums by channel mod 16. */
PKV_INLINE float rms_scale(const float *x, const float *shift, uint32_t count, float eps)
{
    struct v16 sum = v16_set1(0.0f);
    uint32_t i = 0;
    for (; i + V16_LANES <= count; i += V16_LANES) {
        struct v16 part = shifted(x, shift, i, V16_LANES);
        sum = v16_fma(part, part, sum);
    }
    if (i < count) {
        struct v16 part = shifted(x, shift, i, count - i);
        sum = v16_fma(part, part, sum);
    }
    return 1.0f / sqrtf(v16_sum(sum) / (float)count + eps);
}

#endif
