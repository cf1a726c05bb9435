/* QUANTIZE: every variant gives the scalar one's bits, and those are right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "runtime/base/thread.h"
#include "tests/support/weights.h"

enum { ROWS = 9, COLS = 160, VALUES = ROWS * COLS };

struct result {
    float f32[VALUES], scale[VALUES / 32];
    int8_t q8[VALUES];
    int16_t sum[VALUES / 16];
};

static struct pkvi_pool *pool;

static void run(const struct pkv_kernel *kernel, const float *x, struct result *out)
{
    memset(out, 0x55, sizeof *out);
    const struct pkv_args_quantize args = {
        .x = pkvi_addr(x),
        .out = {COLS, pkvi_addr(out->f32), pkvi_addr(out->q8), pkvi_addr(out->scale),
                pkvi_addr(out->sum)},
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
            x[32 + i] = i == 3 ? 127.0f : (float)i + 0.5f;
            x[64 + i] = 0.0f;
            x[96 + i] = 1e-35f * (float)i;
            x[128 + i] = i % 2 ? 3.4e38f : -3.4e38f;
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
    for (uint32_t i = 0; i < VALUES; i++) {
        const float scale = out.scale[i / 32];
        assert_true(abs(out.q8[i]) <= 127);
        assert_true(fabsf((float)out.q8[i] * scale - x[i]) <= 0.50001f * scale);
    }
    for (uint32_t i = 0; i < VALUES / 16; i++) {
        int sum = 0;
        for (uint32_t j = 0; j < 16; j++) {
            sum += out.q8[16 * i + j];
        }
        assert_int_equal(out.sum[i], sum);
    }
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
        assert_true(isnan(out.scale[0]) && isnan(out.scale[1]) && isfinite(out.scale[2]));
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
