/* Gated activations: every variant against libm in double, over the whole range of a gate. */
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>

static double activation(enum pkv_glu kind, double x)
{
    if (kind == PKV_GLU_SILU) {
        return x / (1.0 + exp(-x));
    }
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void check_shape(uint32_t cpu, enum pkv_glu kind, uint32_t rows, uint32_t cols)
{
    struct pkvt_rng rng = {rows + cols};
    uint64_t count = (uint64_t)rows * cols;
    float *gate = pkvt_normal(&rng, count, 4.0f), *up = pkvt_normal(&rng, count, 1.0f);
    double *want = pkvt_alloc(count * sizeof *want);
    for (uint64_t i = 0; i < count; i++) {
        want[i] = activation(kind, gate[i]) * up[i];
    }
    bool q8 = cols % 32 == 0;
    struct pkv_args_glu args = {.gate = pkvi_addr(gate),
                                .up = pkvi_addr(up),
                                .out = pkvt_act(rows, cols, true, q8),
                                .kind = kind,
                                .rows = rows,
                                .cols = cols};
    pkvt_run(cpu, PKV_OP_GLU, &args, 2);
    const float *got = PKV_AT(float, args.out.f32);
    pkvt_assert_close("glu", got, want, count, PKVT_EPS_F32, 1);
    if (q8) {
        pkvt_assert_quantised(&args.out, got, rows);
    }
    struct pkv_args_glu alone = args;
    alone.gate += (rows - 1) * cols * sizeof *gate;
    alone.up += (rows - 1) * cols * sizeof *up;
    alone.rows = 1;
    alone.out = pkvt_act(1, cols, true, false);
    pkvt_run(cpu, PKV_OP_GLU, &alone, 1);
    assert_memory_equal(PKV_AT(float, alone.out.f32), got + (uint64_t)(rows - 1) * cols,
                        cols * sizeof *got);
    free(gate);
    free(up);
    free(want);
    pkvt_act_free(&args.out);
    pkvt_act_free(&alone.out);
}

static void test_glu__every_variant_and_shape__close_to_double(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 3, 40}, cols[] = {5, 32, 100, 1536};
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t r = 0; r < 3; r++) {
            for (uint32_t c = 0; c < 4; c++) {
                check_shape(cpu, PKV_GLU_SILU, rows[r], cols[c]);
                check_shape(cpu, PKV_GLU_GELU, rows[r], cols[c]);
            }
        }
    }
}

/* Each value close to itself, not only to the largest one. */
static void test_glu__sweep_of_gates__relative_error_small(void **state)
{
    (void)state;
    enum { COUNT = 4001 };
    float *gate = pkvt_alloc(sizeof(float[COUNT])), *up = pkvt_alloc(sizeof(float[COUNT]));
    float *out = pkvt_alloc(sizeof(float[COUNT]));
    for (uint32_t i = 0; i < COUNT; i++) {
        gate[i] = -10.0f + (float)i * 0.005f;
        up[i] = 1.0f;
    }
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t kind = PKV_GLU_SILU; kind <= PKV_GLU_GELU; kind++) {
            struct pkv_args_glu args = {.gate = pkvi_addr(gate),
                                        .up = pkvi_addr(up),
                                        .out = {.cols = COUNT, .f32 = pkvi_addr(out)},
                                        .kind = (enum pkv_glu)kind,
                                        .rows = 1,
                                        .cols = COUNT};
            pkvt_run(cpu, PKV_OP_GLU, &args, 1);
            for (uint32_t i = 0; i < COUNT; i++) {
                double want = activation((enum pkv_glu)kind, gate[i]);
                /* 1 + tanh cancels for negative x: absolute there */
                double scale = kind == PKV_GLU_SILU ? fabs(want) : fabs((double)gate[i]);
                assert_true(fabs(out[i] - want) <= 1e-6 * scale);
            }
        }
    }
    free(gate);
    free(up);
    free(out);
}

static void test_glu__huge_gates__neither_nan_nor_lost(void **state)
{
    (void)state;
    static const float gates[8] = {-1e30f, -1000.0f, -89.0f, -88.0f, 88.0f, 89.0f, 1000.0f, 1e30f};
    float *gate = pkvt_alloc(sizeof gates), *up = pkvt_alloc(sizeof gates);
    float *out = pkvt_alloc(sizeof gates);
    for (uint32_t i = 0; i < 8; i++) {
        gate[i] = gates[i];
        up[i] = 1.0f;
    }
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t kind = PKV_GLU_SILU; kind <= PKV_GLU_GELU; kind++) {
            struct pkv_args_glu args = {.gate = pkvi_addr(gate),
                                        .up = pkvi_addr(up),
                                        .out = {.cols = 8, .f32 = pkvi_addr(out)},
                                        .kind = (enum pkv_glu)kind,
                                        .rows = 1,
                                        .cols = 8};
            pkvt_run(cpu, PKV_OP_GLU, &args, 1);
            for (uint32_t i = 0; i < 8; i++) {
                double want = gate[i] > 0 ? gate[i] : 0;
                assert_true(fabs(out[i] - want) <= 1e-30 + 1e-6 * want);
            }
        }
    }
    free(gate);
    free(up);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glu__every_variant_and_shape__close_to_double),
        cmocka_unit_test(test_glu__sweep_of_gates__relative_error_small),
        cmocka_unit_test(test_glu__huge_gates__neither_nan_nor_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
