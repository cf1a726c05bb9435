/*
 * math.h: exponential and hyperbolic tangent on 16 lanes, the same bits on every instruction set.
 *
 * Coefficients: minimax fits of our own (Remez in 40 digits; exp2: reweighted least squares, 1 at
 * 0). Largest relative error over every 7th float: exp 8.5e-8 and tanh 1.6e-7 in [-87, 0], exp2
 * 1.6e-7 in [-126, 0] (float32 itself: 6e-8).
 */
#ifndef PKV_CPU_MATH_H
#define PKV_CPU_MATH_H

#include "kernels/cpu/vec.h"

/* Below this exp() is taken as 0, so that results never are subnormal. */
#define V16_EXP_LOWEST (-87.0f)

/* e^x for x <= 0 (and a little above), relative error below 1e-7; exactly 0 for x < -87 and -inf.
 * x = n ln 2 + f; adding 1.5 * 2^23 leaves n in the low bits. */
PKV_INLINE struct v16 v16_exp(struct v16 x)
{
    const struct v16 shift = v16_set1(0x1.8p23f);
    struct v16 t = v16_fma(x, v16_set1(0x1.715476p+0f), shift);
    struct v16 n = v16_sub(t, shift);
    struct v16 f = v16_fma(n, v16_set1(-0x1.62e400p-1f), x);
    f = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), f);
    struct v16 p = v16_set1(0x1.6a23d0p-10f);
    p = v16_fma(p, f, v16_set1(0x1.123a20p-7f));
    p = v16_fma(p, f, v16_set1(0x1.5558f2p-5f));
    p = v16_fma(p, f, v16_set1(0x1.555492p-3f));
    p = v16_fma(p, f, v16_set1(0x1.fffffcp-2f));
    p = v16_fma(v16_mul(f, f), p, f);
    p = v16_add(p, v16_set1(1.0f));
    return v16_where_below(x, v16_set1(V16_EXP_LOWEST), v16_set1(0.0f), v16_scale2(p, t));
}

/* 2^x for -126 <= x <= 127, relative error below 2e-7; exactly 1 for 0. */
PKV_INLINE struct v16 v16_exp2(struct v16 x)
{
    const struct v16 shift = v16_set1(0x1.8p23f);
    struct v16 t = v16_add(x, shift);
    struct v16 f = v16_sub(x, v16_sub(t, shift));
    struct v16 p = v16_set1(0x1.5bda40p-10f);
    p = v16_fma(p, f, v16_set1(0x1.3ce8acp-7f));
    p = v16_fma(p, f, v16_set1(0x1.c6b6d8p-5f));
    p = v16_fma(p, f, v16_set1(0x1.ebf9c2p-3f));
    p = v16_fma(p, f, v16_set1(0x1.62e42ap-1f));
    p = v16_fma(p, f, v16_set1(1.0f));
    return v16_scale2(p, t);
}

/* tanh(x), relative error below 2e-7. Near 0 the quotient would cancel: a polynomial there. */
PKV_INLINE struct v16 v16_tanh(struct v16 x)
{
    struct v16 size = v16_abs(x), one = v16_set1(1.0f);
    struct v16 e = v16_exp(v16_mul(size, v16_set1(-2.0f)));
    struct v16 far = v16_div(v16_sub(one, e), v16_add(one, e));
    struct v16 zero = v16_set1(0.0f);
    far = v16_where_below(x, zero, v16_sub(zero, far), far);
    struct v16 x2 = v16_mul(x, x);
    struct v16 p = v16_set1(0x1.0d5036p-6f);
    p = v16_fma(p, x2, v16_set1(-0x1.af7cccp-5f));
    p = v16_fma(p, x2, v16_set1(0x1.10cef6p-3f));
    p = v16_fma(p, x2, v16_set1(-0x1.555452p-2f));
    struct v16 near = v16_fma(v16_mul(p, x2), x, x);
    return v16_where_below(size, v16_set1(0.55f), near, far);
}

/* 1 / (1 + e^-x), without overflow. */
PKV_INLINE struct v16 v16_sigmoid(struct v16 x)
{
    struct v16 one = v16_set1(1.0f);
    struct v16 e = v16_exp(v16_sub(v16_set1(0.0f), v16_abs(x)));
    return v16_div(v16_where_below(x, v16_set1(0.0f), e, one), v16_add(one, e));
}

#endif
