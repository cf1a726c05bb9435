/* RMS norm, of x or x + shift: every variant against sums in double; rows do not depend on one
 * another. */
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

/* Of x + shift, where there is one. */
static void reference(const float *x, const float *shift, const float *weight, uint32_t cols,
                      double eps, double *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < cols; i++) {
        y[i] = shift ? (double)x[i] + (double)shift[i] : (double)x[i];
        sum += y[i] * y[i];
    }
    for (uint32_t i = 0; i < cols; i++) {
        y[i] = y[i] / sqrt(sum / cols + eps) * weight[i];
    }
}

static void check_shape(uint32_t cpu, uint32_t rows, uint32_t cols, bool q8, bool indexed,
                        bool shifted)
{
    struct pkvt_rng rng = {rows * 1000u + cols};
    float *x = pkvt_normal(&rng, (uint64_t)rows * cols, 3.0f);
    float *weight = pkvt_normal(&rng, cols, 1.0f);
    float *shift = pkvt_normal(&rng, cols, 2.0f);
    int32_t *index = pkvt_alloc(rows * sizeof *index);
    double *want = pkvt_alloc((uint64_t)rows * cols * sizeof *want);
    for (uint32_t r = 0; r < rows; r++) {
        index[r] = indexed ? (int32_t)pkvt_rng_below(&rng, rows) : (int32_t)r;
        reference(x + (uint64_t)index[r] * cols, shifted ? shift : NULL, weight, cols, 1e-5,
                  want + (uint64_t)r * cols);
    }
    struct pkv_args_norm args = {.x = pkvi_addr(x),
                                 .shift = shifted ? pkvi_addr(shift) : 0,
                                 .row_index = indexed ? pkvi_addr(index) : 0,
                                 .weight = pkvi_addr(weight),
                                 .out = pkvt_act(rows, cols, true, q8),
                                 .eps = 1e-5f,
                                 .rows = rows,
                                 .cols = cols};
    pkvt_run(cpu, PKV_OP_NORM, &args, 2);
    const float *got = PKV_AT(float, args.out.f32);
    pkvt_assert_close("norm", got, want, (uint64_t)rows * cols, PKVT_EPS_F32, 4);
    if (q8) {
        pkvt_assert_quantised(&args.out, got, rows);
    }

    /* the last row alone, 8 bits only where they are made: the same bits */
    struct pkv_args_norm alone = args;
    alone.x = pkvi_addr(x + (uint64_t)index[rows - 1] * cols);
    alone.row_index = 0;
    alone.rows = 1;
    alone.out = pkvt_act(1, cols, !q8, q8);
    pkvt_run(cpu, PKV_OP_NORM, &alone, 1);
    uint64_t last = (uint64_t)(rows - 1) * cols;
    if (q8) {
        assert_memory_equal(PKV_AT(int8_t, alone.out.q8), PKV_AT(int8_t, args.out.q8) + last, cols);
        const struct pkv_act_block *all = PKV_AT(struct pkv_act_block, args.out.block);
        assert_memory_equal(PKV_AT(struct pkv_act_block, alone.out.block), all + last / 32,
                            cols / 32 * sizeof *all);
    } else {
        assert_memory_equal(PKV_AT(float, alone.out.f32), got + last, cols * sizeof *got);
    }

    /* as a residual: exactly x + y */
    float *residual = pkvt_normal(&rng, (uint64_t)rows * cols, 2.0f);
    float *before = pkvt_alloc((uint64_t)rows * cols * sizeof *before);
    memcpy(before, residual, (uint64_t)rows * cols * sizeof *before);
    struct pkv_args_norm post = args;
    post.residual = pkvi_addr(residual);
    pkvt_run(cpu, PKV_OP_NORM, &post, 2);
    for (uint64_t i = 0; i < (uint64_t)rows * cols; i++) {
        assert_true(residual[i] == before[i] + got[i]);
    }
    free(x);
    free(weight);
    free(shift);
    free(index);
    free(want);
    free(residual);
    free(before);
    pkvt_act_free(&args.out);
    pkvt_act_free(&alone.out);
}

static void test_norm__every_variant_and_shape__close_to_double(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 3, 33}, cols[] = {7, 32, 64, 100, 576, 2048};
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t r = 0; r < 3; r++) {
            for (uint32_t c = 0; c < 6; c++) {
                check_shape(cpu, rows[r], cols[c], cols[c] % 32 == 0, (r + c) % 2, false);
                check_shape(cpu, rows[r], cols[c], cols[c] % 32 == 0, (r + c) % 2, true);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm__every_variant_and_shape__close_to_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
