/* Soft-capping: every variant against tanh in double, small and huge values alike. */
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

static void test_softcap__every_variant__close_to_double(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 1001 };
    struct pkvt_rng rng = {7};
    float *x = pkvt_normal(&rng, ROWS * COLS, 40.0f);
    float *y = pkvt_alloc(ROWS * COLS * sizeof *y);
    for (uint32_t i = 0; i < 400; i++) {
        x[i] = ldexpf(1.0f + (float)i / 400.0f, (int)i / 4 - 60) * (i % 2 ? 1.0f : -1.0f);
    }
    PKVT_FOR_EACH_CPU(cpu)
    {
        memcpy(y, x, ROWS * COLS * sizeof *y);
        struct pkv_args_softcap args = {
            .x = pkvi_addr(y), .cap = 30.0f, .rows = ROWS, .cols = COLS};
        pkvt_run(cpu, PKV_OP_SOFTCAP, &args, 2);
        for (uint32_t i = 0; i < ROWS * COLS; i++) {
            double want = 30.0 * tanh(x[i] / 30.0);
            assert_true(fabs(y[i] - want) <= 4e-7 * fabs(want));
        }
    }
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softcap__every_variant__close_to_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
