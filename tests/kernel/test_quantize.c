/* QUANTIZE: every variant gives the scalar one's bits, and those are right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/kernel_test.h"

enum { ROWS = 9, COLS = 160, VALUES = ROWS * COLS };

struct result {
    float f32[VALUES];
    int8_t q8[VALUES];
    struct pkv_act_block block[VALUES / 32];
};

static void run(uint32_t cpu, const float *x, struct result *out)
{
    memset(out, 0x55, sizeof *out);
    const struct pkv_args_quantize args = {
        .x = pkvi_addr(x),
        .out = {COLS, pkvi_addr(out->f32), pkvi_addr(out->q8), pkvi_addr(out->block)},
        .rows = ROWS,
        .cols = COLS,
    };
    pkvt_run(cpu, PKV_OP_QUANTIZE, &args, 2);
}

static void fill(float *x, struct pkvt_rng *rng)
{
    for (uint32_t i = 0; i < VALUES; i++) {
        x[i] = pkvt_rng_normal(rng) * powf(10.0f, (float)pkvt_rng_below(rng, 9) - 4.0f);
    }
}

static void test_quantize__random_rows__every_variant_equal(void **state)
{
    (void)state;
    float *x = pkvt_alloc(sizeof(float[VALUES]));
    struct result *want = pkvt_alloc(sizeof *want), *got = pkvt_alloc(sizeof *got);
    struct pkvt_rng rng = {1};
    for (uint32_t round = 0; round < 20; round++) {
        fill(x, &rng);
        for (uint32_t i = 0; i < 32; i++) { /* halves, which round to even, and extremes */
            x[i] = (float)i - 15.5f;
            x[32 + i] = i == 3 || i == 21 ? -127.0f : (float)i + 0.5f;
            x[64 + i] = 0.0f;
            x[96 + i] = 1e-35f * (float)i;
            x[128 + i] = i % 2 ? 3.4e38f : -3.4e38f;
            x[160 + i] = i == round ? -1e6f : 1.0f; /* more than a spill holds */
            x[192 + i] = i == 31 - round ? 300.0f : (float)i / 31.0f;
            x[224 + i] = i == round ? -5.0f : 0.0f;
        }
        run(PKV_CPU_SCALAR, x, want);
        PKVT_FOR_EACH_CPU(cpu)
        {
            run(cpu, x, got);
            assert_memory_equal(got, want, sizeof *got);
        }
    }
    free(x);
    free(want);
    free(got);
}

static void test_quantize__random_rows__within_half_a_step(void **state)
{
    (void)state;
    float *x = pkvt_alloc(sizeof(float[VALUES]));
    struct result *out = pkvt_alloc(sizeof *out);
    struct pkvt_rng rng = {2};
    fill(x, &rng);
    run(PKV_CPU_SCALAR, x, out);
    assert_memory_equal(out->f32, x, sizeof out->f32);
    const struct pkv_act act = {COLS, pkvi_addr(out->f32), pkvi_addr(out->q8),
                                pkvi_addr(out->block)};
    pkvt_assert_quantised(&act, x, ROWS);
    free(x);
    free(out);
}

static void test_quantize__nan_or_infinity__scale_is_nan(void **state)
{
    (void)state;
    float *x = pkvt_alloc(sizeof(float[VALUES]));
    struct result *out = pkvt_alloc(sizeof *out);
    struct pkvt_rng rng = {3};
    PKVT_FOR_EACH_CPU(cpu)
    {
        fill(x, &rng);
        x[5] = NAN;
        x[32 + 31] = -INFINITY;
        run(cpu, x, out);
        assert_true(isnan(out->block[0].scale) && isnan(out->block[1].scale) &&
                    isfinite(out->block[2].scale));
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(out->q8[i], 0);
        }
    }
    free(x);
    free(out);
}

/* Rows that are no multiple of 32: copied, the memory beside them untouched. */
static void test_quantize__odd_columns_without_codes__copied(void **state)
{
    (void)state;
    enum { ODD = 45, COUNT = 3 * ODD };
    struct pkvt_rng rng = {4};
    float *x = pkvt_normal(&rng, COUNT, 1.0f), *out = pkvt_alloc(sizeof(float[COUNT + 1]));
    PKVT_FOR_EACH_CPU(cpu)
    {
        memset(out, 0x55, sizeof(float[COUNT + 1]));
        const float beyond = out[COUNT];
        const struct pkv_args_quantize args = {
            .x = pkvi_addr(x), .out = {ODD, pkvi_addr(out), 0, 0}, .rows = 3, .cols = ODD};
        pkvt_run(cpu, PKV_OP_QUANTIZE, &args, 2);
        assert_memory_equal(out, x, sizeof(float[COUNT]));
        assert_true(out[COUNT] == beyond);
    }
    free(x);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__random_rows__every_variant_equal),
        cmocka_unit_test(test_quantize__random_rows__within_half_a_step),
        cmocka_unit_test(test_quantize__nan_or_infinity__scale_is_nan),
        cmocka_unit_test(test_quantize__odd_columns_without_codes__copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
