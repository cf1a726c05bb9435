/* KEEP: every variant against sorting sums by hand: sinks, ties, all, none, a long row. */
#include "tests/support/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t kv_heads, count, stay, window, sinks, levels;
};

static bool is_before(const float *sum, uint32_t sinks, uint32_t a, uint32_t b)
{
    if (a < sinks || b < sinks) {
        return a < b;
    }
    return sum[a] > sum[b] || (sum[a] == sum[b] && a < b);
}

static void check(uint32_t cpu, const struct shape *s)
{
    struct pkvt_rng rng = {s->count + s->stay};
    const uint32_t stride = s->count + s->window + 3;
    float *score = pkvt_alloc((uint64_t)s->kv_heads * stride * sizeof *score);
    float *sum = pkvt_alloc((s->count + 1) * sizeof *sum);
    float *scratch = pkvt_alloc((s->count + 1) * sizeof *scratch);
    int32_t *index = pkvt_alloc((s->stay + s->window + 1) * sizeof *index);
    for (uint32_t i = 0; i < s->count; i++) {
        sum[i] = 0;
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            const float value = (float)pkvt_rng_below(&rng, s->levels) / 8.0f; /* sums are exact */
            score[h * stride + i] = value;
            sum[i] += value;
        }
    }
    index[s->stay + s->window] = 77;
    const struct pkv_args_keep args = {.score = pkvi_addr(score),
                                       .index = pkvi_addr(index),
                                       .scratch = pkvi_addr(scratch),
                                       .kv_heads = s->kv_heads,
                                       .score_stride = stride,
                                       .count = s->count,
                                       .stay = s->stay,
                                       .window = s->window,
                                       .sinks = s->sinks};
    pkvt_run(cpu, PKV_OP_KEEP, &args, 2);
    for (uint32_t i = 0, at = 0; i < s->count; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < s->count; j++) {
            better += j != i && is_before(sum, s->sinks, j, i);
        }
        if (better < s->stay) {
            assert_int_equal(index[at++], i);
        }
    }
    for (uint32_t i = 0; i < s->window; i++) {
        assert_int_equal(index[s->stay + i], s->count + i);
    }
    assert_int_equal(index[s->stay + s->window], 77);
    free(index);
    free(scratch);
    free(sum);
    free(score);
}

static void test_keep__every_shape__as_sorted(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 0, 9},        {1, 2, 1, 1, 4, 9},       {3, 100, 64, 21, 4, 1000},
        {2, 31, 30, 5, 0, 2},      {2, 33, 32, 40, 4, 1},    {4, 1025, 700, 200, 4, 50},
        {8, 2100, 1, 1, 0, 30000}, {1, 500, 500, 100, 4, 9}, {3, 1600, 1100, 33, 9, 1u << 20},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check(cpu, &shapes[i]);
        }
    }
}

/* What no row attended to, or what is no number, is never before a number. */
static void test_keep__not_a_number__last(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        float *score = pkvt_alloc(4 * sizeof *score), *scratch = pkvt_alloc(4 * sizeof *scratch);
        int32_t *index = pkvt_alloc(2 * sizeof *index);
        const float values[] = {0.5f, NAN, -1.0f, NAN};
        memcpy(score, values, sizeof values);
        const struct pkv_args_keep args = {.score = pkvi_addr(score),
                                           .index = pkvi_addr(index),
                                           .scratch = pkvi_addr(scratch),
                                           .kv_heads = 1,
                                           .score_stride = 4,
                                           .count = 4,
                                           .stay = 2};
        pkvt_run(cpu, PKV_OP_KEEP, &args, 1);
        assert_int_equal(index[0], 0);
        assert_int_equal(index[1], 2);
        free(index);
        free(scratch);
        free(score);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep__every_shape__as_sorted),
        cmocka_unit_test(test_keep__not_a_number__last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
