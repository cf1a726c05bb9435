/*
 * product.h: out[r][lane] = sum over i, ascending, of a[r][i] * b[i][lane] for a few rows and 16
 * lanes, all sums in registers.
 */
#ifndef PKV_CPU_PRODUCT_H
#define PKV_CPU_PRODUCT_H

#include "kernels/cpu/vec.h"

/* rows <= PKV_BLOCK_ROWS and the strides of a (floats from row to row, from i to i) are constants
 * where this is inlined. b: f32 [count][16]. */
PKV_INLINE void product_rows(uint32_t rows, uint32_t row_stride, uint32_t step, const float *a,
                             const float *b, uint32_t count, float *out, uint32_t out_stride)
{
    struct v16 sum[PKV_BLOCK_ROWS];
    for (uint32_t r = 0; r < rows; r++) {
        sum[r] = v16_set1(0.0f);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct v16 column = v16_load(b);
        for (uint32_t r = 0; r < rows; r++) {
            sum[r] = v16_fma(v16_set1(a[r * row_stride]), column, sum[r]);
        }
        a += step;
        b += V16_LANES;
    }
    for (uint32_t r = 0; r < rows; r++) {
        v16_store(out + (uint64_t)r * out_stride, sum[r]);
    }
}

/* The same with a row count that is known only now. */
PKV_INLINE void product(uint32_t rows, uint32_t row_stride, uint32_t step, const float *a,
                        const float *b, uint32_t count, float *out, uint32_t out_stride)
{
#define PRODUCT_CASE(n)                                                                            \
    case n:                                                                                        \
        product_rows(n, row_stride, step, a, b, count, out, out_stride);                           \
        break;
    switch (rows) {
        PRODUCT_CASE(1)
        PRODUCT_CASE(2)
        PRODUCT_CASE(3)
        PRODUCT_CASE(4)
        PRODUCT_CASE(5)
        PRODUCT_CASE(6)
#if defined(PKV_ISA_AVX512)
        PRODUCT_CASE(7)
        PRODUCT_CASE(8)
        PRODUCT_CASE(9)
        PRODUCT_CASE(10)
        PRODUCT_CASE(11)
        PRODUCT_CASE(12)
#endif
    default:
        break;
    }
#undef PRODUCT_CASE
}

#endif
