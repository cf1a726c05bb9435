/* Rotary embedding: table and rotation of every variant against double; channels left alone stay.
 */
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

static void test_rope_table__far_positions__angles_in_double(void **state)
{
    (void)state;
    enum { ROWS = 40, PAIRS = 37 };
    int32_t *position = pkvt_alloc(ROWS * sizeof *position);
    double *freq = pkvt_alloc(PAIRS * sizeof *freq);
    float *table = pkvt_alloc(ROWS * PAIRS * 2 * sizeof *table);
    for (int32_t r = 0; r < ROWS; r++) {
        position[r] = r * 26000;
    }
    for (uint32_t i = 0; i < PAIRS; i++) {
        freq[i] = pow(10000.0, -(double)i / PAIRS);
    }
    PKVT_FOR_EACH_CPU(cpu)
    {
        struct pkv_args_rope_table args = {.positions = pkvi_addr(position),
                                           .freq = pkvi_addr(freq),
                                           .table = pkvi_addr(table),
                                           .gain = 1.25,
                                           .rows = ROWS,
                                           .pairs = PAIRS};
        pkvt_run(cpu, PKV_OP_ROPE_TABLE, &args, 2);
        for (uint32_t i = 0; i < ROWS * PAIRS; i++) {
            double angle = position[i / PAIRS] * freq[i % PAIRS];
            assert_true(fabs(table[2 * i] - 1.25 * cos(angle)) < 1.3e-7);
            assert_true(fabs(table[2 * i + 1] - 1.25 * sin(angle)) < 1.3e-7);
        }
    }
    free(position);
    free(freq);
    free(table);
}

struct shape {
    uint32_t rows, heads, kv_heads, head_dim, pairs, halves;
    bool norm, gain;
};

static void reference(const struct shape *s, const float *table, const float *weight, double *x)
{
    if (weight) {
        double sum = 0;
        for (uint32_t i = 0; i < s->head_dim; i++) {
            sum += x[i] * x[i];
        }
        for (uint32_t i = 0; i < s->head_dim; i++) {
            x[i] = x[i] / sqrt(sum / s->head_dim + 1e-6) * weight[i];
        }
    }
    for (uint32_t i = 0; i < s->pairs; i++) {
        double *a = s->halves ? x + i : x + 2 * i, *b = s->halves ? a + s->pairs : a + 1;
        double re = *a * table[2 * i] - *b * table[2 * i + 1];
        *b = *a * table[2 * i + 1] + *b * table[2 * i];
        *a = re;
    }
}

/* 1 / rms of every head of q, in double. */
static double *reference_gain(const struct shape *s, const float *q, uint32_t stride)
{
    double *want = pkvt_alloc((uint64_t)s->rows * s->heads * sizeof *want);
    for (uint32_t i = 0; i < s->rows * s->heads; i++) {
        const float *x = q + (uint64_t)(i / s->heads) * stride + i % s->heads * s->head_dim;
        double sum = 0;
        for (uint32_t c = 0; c < s->head_dim; c++) {
            sum += (double)x[c] * x[c];
        }
        want[i] = 1 / sqrt(sum / s->head_dim + 1e-6);
    }
    return want;
}

/* q or k of all rows, in double. */
static double *reference_all(const struct shape *s, const float *x, uint32_t heads, uint32_t stride,
                             const float *table, const float *weight)
{
    double *want = pkvt_alloc((uint64_t)s->rows * stride * sizeof *want);
    for (uint64_t i = 0; i < (uint64_t)s->rows * stride; i++) {
        want[i] = x[i];
    }
    for (uint32_t r = 0; r < s->rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            reference(s, table + (uint64_t)r * s->pairs * 2, weight,
                      want + (uint64_t)r * stride + h * s->head_dim);
        }
    }
    return want;
}

static void check_shape(uint32_t cpu, const struct shape *s)
{
    struct pkvt_rng rng = {s->head_dim * 10u + s->pairs};
    uint32_t q_stride = s->heads * s->head_dim + 16, k_stride = s->kv_heads * s->head_dim + 3;
    uint64_t q_count = (uint64_t)s->rows * q_stride, k_count = (uint64_t)s->rows * k_stride;
    float *q = pkvt_normal(&rng, q_count, 2.0f), *k = pkvt_normal(&rng, k_count, 2.0f);
    float *q_alone = pkvt_alloc(q_stride * sizeof *q), *k_alone = pkvt_alloc(k_stride * sizeof *k);
    memcpy(q_alone, q + q_count - q_stride, q_stride * sizeof *q);
    memcpy(k_alone, k + k_count - k_stride, k_stride * sizeof *k);
    float *table = pkvt_normal(&rng, (uint64_t)s->rows * s->pairs * 2, 0.7f);
    float *q_norm = pkvt_normal(&rng, s->head_dim, 1.0f);
    float *k_norm = pkvt_normal(&rng, s->head_dim, 1.0f);
    double *q_want = reference_all(s, q, s->heads, q_stride, table, s->norm ? q_norm : NULL);
    double *k_want = reference_all(s, k, s->kv_heads, k_stride, table, s->norm ? k_norm : NULL);
    const uint32_t row_heads = s->rows * s->heads;
    float *gain = pkvt_alloc((row_heads + 1) * sizeof *gain);
    float *gain_alone = pkvt_alloc(s->heads * sizeof *gain_alone);
    double *gain_want = reference_gain(s, q, q_stride);
    struct pkv_args_rope args = {.q = pkvi_addr(q),
                                 .k = pkvi_addr(k),
                                 .table = pkvi_addr(table),
                                 .q_norm = s->norm ? pkvi_addr(q_norm) : 0,
                                 .k_norm = s->norm ? pkvi_addr(k_norm) : 0,
                                 .q_gain = s->gain ? pkvi_addr(gain) : 0,
                                 .eps = 1e-6f,
                                 .rows = s->rows,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .pairs = s->pairs,
                                 .halves = s->halves,
                                 .q_stride = q_stride,
                                 .k_stride = k_stride};
    pkvt_run(cpu, PKV_OP_ROPE, &args, 2);
    pkvt_assert_close("rope q", q, q_want, q_count, PKVT_EPS_F32, 4);
    pkvt_assert_close("rope k", k, k_want, k_count, PKVT_EPS_F32, 4);
    for (uint32_t i = s->heads * s->head_dim; i < q_stride; i++) {
        assert_true(q[i] == (float)q_want[i]); /* padding is left alone */
    }
    if (s->gain) {
        pkvt_assert_close("rope gain", gain, gain_want, row_heads, PKVT_EPS_F32, 4);
    }
    assert_true(isnan(gain[s->gain ? row_heads : 0])); /* and nothing behind it */
    args.q = pkvi_addr(q_alone);
    args.q_gain = s->gain ? pkvi_addr(gain_alone) : 0;
    args.k = pkvi_addr(k_alone);
    args.table = pkvi_addr(table + (uint64_t)(s->rows - 1) * s->pairs * 2);
    args.rows = 1;
    pkvt_run(cpu, PKV_OP_ROPE, &args, 1);
    assert_memory_equal(q_alone, q + q_count - q_stride, q_stride * sizeof *q);
    assert_memory_equal(k_alone, k + k_count - k_stride, k_stride * sizeof *k);
    if (s->gain) {
        assert_memory_equal(gain_alone, gain + row_heads - s->heads, s->heads * sizeof *gain);
    }
    void *all[] = {q,      k,      q_alone, k_alone, table,     q_norm,
                   k_norm, q_want, k_want,  gain,    gain_want, gain_alone};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

static void test_rope__every_variant_and_shape__close_to_double(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {1, 9, 3, 64, 32, 0, false, false},  {5, 9, 3, 64, 32, 1, false, false},
        {33, 4, 1, 256, 128, 1, true, true}, {2, 2, 2, 80, 40, 0, true, false},
        {3, 3, 1, 96, 24, 1, true, true},    {3, 3, 1, 96, 24, 0, false, false},
        {2, 1, 1, 10, 5, 0, true, true},     {2, 1, 1, 10, 5, 1, false, false},
        {7, 4, 2, 128, 64, 0, true, true},   {1, 1, 1, 32, 11, 1, false, false},
        {1, 1, 1, 32, 11, 0, false, false},  {1, 5, 1, 64, 32, 1, true, true},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check_shape(cpu, &shapes[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_table__far_positions__angles_in_double),
        cmocka_unit_test(test_rope__every_variant_and_shape__close_to_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
