/* QUANTIZE: every variant gives the scalar one's bits, and those are right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "runtime/base/thread.h"
#include "tests/support/kernel_test.h"
#include "tests/support/weights.h"

enum { ROWS = 9, COLS = 160, VALUES = ROWS * COLS };

struct result {
    float f32[VALUES];
    int8_t q8[VALUES];
    struct pkv_act_block block[VALUES / 32];
};

static struct pkvi_pool *pool;

static void run(const struct pkv_kernel *kernel, const float *x, struct result *out)
{
    memset(out, 0x55, sizeof *out);
    const struct pkv_args_quantize args = {
        .x = pkvi_addr(x),
        .out = {COLS, pkvi_addr(out->f32), pkvi_addr(out->q8), pkvi_addr(out->block)},
        .rows = ROWS,
        .cols = COLS,
    };
    struct pkvi_cpu_stream stream = {pool};
    assert_ok(kernel->launch(&stream, &args));
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
    static float x[VALUES];
    static struct result want, got;
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_QUANTIZE, kernels);
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
        run(kernels[0], x, &want);
        for (uint32_t k = 1; k < count; k++) {
            run(kernels[k], x, &got);
            assert_memory_equal(&got, &want, sizeof got);
        }
    }
}

static void test_quantize__random_rows__within_half_a_step(void **state)
{
    (void)state;
    static float x[VALUES];
    static struct result out;
    const struct pkv_kernel *kernels[8];
    pkvt_kernels(PKV_OP_QUANTIZE, kernels);
    struct pkvt_rng rng = {2};
    fill(x, &rng);
    run(kernels[0], x, &out);
    assert_memory_equal(out.f32, x, sizeof x);
    const struct pkv_act act = {COLS, pkvi_addr(out.f32), pkvi_addr(out.q8), pkvi_addr(out.block)};
    pkvt_assert_quantised(&act, x, ROWS);
}

static void test_quantize__nan_or_infinity__scale_is_nan(void **state)
{
    (void)state;
    static float x[VALUES];
    static struct result out;
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_QUANTIZE, kernels);
    struct pkvt_rng rng = {3};
    for (uint32_t k = 0; k < count; k++) {
        fill(x, &rng);
        x[5] = NAN;
        x[32 + 31] = -INFINITY;
        run(kernels[k], x, &out);
        assert_true(isnan(out.block[0].scale) && isnan(out.block[1].scale) &&
                    isfinite(out.block[2].scale));
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(out.q8[i], 0);
        }
    }
}

static int open_pool(void **state)
{
    (void)state;
    return pkvi_pool_open(2, &pool) == PKV_OK ? 0 : -1;
}

static int close_pool(void **state)
{
    (void)state;
    pkvi_pool_close(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__random_rows__every_variant_equal),
        cmocka_unit_test(test_quantize__random_rows__within_half_a_step),
        cmocka_unit_test(test_quantize__nan_or_infinity__scale_is_nan),
    };
    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
