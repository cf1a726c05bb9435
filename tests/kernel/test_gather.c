/* GATHER: rows move up in place, against a copy made before; those behind stay as they are. */
#include "tests/support/kernel_test.h"

#include <stdlib.h>
#include <string.h>

static void check(uint32_t cpu, uint32_t all, uint32_t one_in, uint32_t cols)
{
    struct pkvt_rng rng = {all + cols};
    const uint64_t bytes = (uint64_t)all * cols * sizeof(float);
    float *x = pkvt_normal(&rng, (uint64_t)all * cols, 1.0f), *before = pkvt_alloc(bytes);
    float *moved = pkvt_alloc(bytes);
    int32_t *index = pkvt_alloc(all * sizeof *index);
    uint32_t rows = 0;
    memcpy(moved, x, bytes);
    memcpy(before, x, bytes);
    for (uint32_t i = 0; i < all; i++) {
        if (one_in == 0 || pkvt_rng_below(&rng, one_in) > 0 || i + 1 == all) {
            index[rows++] = (int32_t)i;
        }
    }
    const struct pkv_args_gather args = {
        .x = pkvi_addr(moved), .index = pkvi_addr(index), .rows = rows, .cols = cols};
    pkvt_run(cpu, PKV_OP_GATHER, &args, 2);
    for (uint32_t i = 0; i < rows; i++) {
        assert_memory_equal(moved + (uint64_t)i * cols,
                            before + (uint64_t)(uint32_t)index[i] * cols, cols * sizeof *moved);
    }
    assert_memory_equal(moved + (uint64_t)rows * cols, before + (uint64_t)rows * cols,
                        bytes - (uint64_t)rows * cols * sizeof *moved);
    free(index);
    free(moved);
    free(before);
    free(x);
}

static void test_gather__every_shape__as_a_copy(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 0, 1},    {2, 2, 7},     {9, 3, 64},    {40, 2, 576},
                                         {100, 0, 32}, {257, 10, 33}, {300, 3, 258}, {700, 5, 12}};
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check(cpu, shapes[i][0], shapes[i][1], shapes[i][2]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather__every_shape__as_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
