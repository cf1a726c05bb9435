/* Top-k: every variant against sorting the whole row; log-sum-exp against double. */
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>

struct candidate {
    float value;
    int32_t id;
};

static int descending(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->value != y->value) {
        return x->value > y->value ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static double log_sum_exp(const float *x, uint32_t count)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        max = fmax(max, x[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        sum += exp(x[i] - max);
    }
    return max + log(sum);
}

static void check_row(const float *x, uint32_t cols, uint32_t k, const int32_t *ids,
                      const float *values, float lse)
{
    struct candidate *sorted = pkvt_alloc(cols * sizeof *sorted);
    for (uint32_t i = 0; i < cols; i++) {
        sorted[i] = (struct candidate){x[i], (int32_t)i};
    }
    qsort(sorted, cols, sizeof *sorted, descending);
    for (uint32_t i = 0; i < k; i++) {
        assert_int_equal(ids[i], sorted[i].id);
        assert_true(values[i] == sorted[i].value);
    }
    double want = log_sum_exp(x, cols);
    assert_true(fabs(lse - want) <= 1e-6 * fmax(1.0, fabs(want)));
    free(sorted);
}

static void check_shape(uint32_t cpu, uint32_t rows, uint32_t cols, uint32_t k, bool many_ties)
{
    struct pkvt_rng rng = {cols + k};
    float *x = pkvt_normal(&rng, (uint64_t)rows * cols, 5.0f);
    for (uint64_t i = 0; many_ties && i < (uint64_t)rows * cols; i++) {
        x[i] = rintf(x[i]);
    }
    int32_t *ids = pkvt_alloc((uint64_t)rows * k * sizeof *ids);
    float *values = pkvt_alloc((uint64_t)rows * k * sizeof *values);
    float *lse = pkvt_alloc(rows * sizeof *lse);
    struct pkv_args_topk args = {.x = pkvi_addr(x),
                                 .ids = pkvi_addr(ids),
                                 .values = pkvi_addr(values),
                                 .lse = pkvi_addr(lse),
                                 .rows = rows,
                                 .cols = cols,
                                 .k = k};
    pkvt_run(cpu, PKV_OP_TOPK, &args, 2);
    for (uint32_t r = 0; r < rows; r++) {
        check_row(x + (uint64_t)r * cols, cols, k, ids + (uint64_t)r * k, values + (uint64_t)r * k,
                  lse[r]);
    }
    free(x);
    free(ids);
    free(values);
    free(lse);
}

static void test_topk__every_variant_and_shape__as_sorted(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t ties = 0; ties < 2; ties++) {
            check_shape(cpu, 1, 1, 1, ties);
            check_shape(cpu, 3, 31, 31, ties);
            check_shape(cpu, 2, 1000, 1, ties);
            check_shape(cpu, 9, 1003, 40, ties);
            check_shape(cpu, 1, 49152, 256, ties);
            check_shape(cpu, 2, 5000, 5000, ties);
        }
    }
}

static void test_topk__ascending_and_infinite__as_sorted(void **state)
{
    (void)state;
    enum { COLS = 4096, K = 7 };
    float *x = pkvt_alloc(COLS * sizeof *x), *values = pkvt_alloc(K * sizeof *values);
    float *lse = pkvt_alloc(sizeof *lse);
    int32_t *ids = pkvt_alloc(K * sizeof *ids);
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < COLS; i++) {
            x[i] = i % 3 ? -INFINITY : (float)i * 0.01f;
        }
        struct pkv_args_topk args = {.x = pkvi_addr(x),
                                     .ids = pkvi_addr(ids),
                                     .values = pkvi_addr(values),
                                     .lse = pkvi_addr(lse),
                                     .rows = 1,
                                     .cols = COLS,
                                     .k = K};
        pkvt_run(cpu, PKV_OP_TOPK, &args, 1);
        check_row(x, COLS, K, ids, values, *lse);
    }
    free(x);
    free(values);
    free(lse);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk__every_variant_and_shape__as_sorted),
        cmocka_unit_test(test_topk__ascending_and_infinite__as_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
