/* Packed matrices give back the values of the file's rows. */
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/pack_layout.h"
#include "tests/support/weights.h"

static void check_matrix(enum pkv_weight_type type, uint32_t rows, uint32_t cols)
{
    struct pkvt_rng rng = {rows * 131 + cols + type};
    uint8_t *source = pkvt_weights_random(type, rows, cols, &rng);
    void *packed = pkvt_weights_pack(type, rows, cols, source);
    const struct pkv_matrix matrix = {type, rows, cols, pkvi_addr(packed), 0};
    float *want = malloc(cols * sizeof *want), *got = malloc(cols * sizeof *got);
    assert_true(want && got);
    for (uint32_t row = 0; row < rows; row++) {
        pkvi_weight_dequantize(type, source + row * pkvi_weight_row_bytes(type, cols), cols, want);
        pkvi_pack_dequantize_row(&matrix, row, got);
        for (uint32_t i = 0; i < cols; i++) {
            if (!(got[i] == want[i])) {
                fail_msg("%s %ux%u row %u value %u: got %.9g, want %.9g",
                         pkvi_weight_type_name(type), rows, cols, row, i, (double)got[i],
                         (double)want[i]);
            }
        }
    }
    free(got);
    free(want);
    free(packed);
    free(source);
}

static void test_pack__every_type__values_come_back(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 256}, {16, 256}, {17, 512}, {40, 1024}};
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        for (uint32_t s = 0; s < 4; s++) {
            check_matrix((enum pkv_weight_type)t, shapes[s][0], shapes[s][1]);
        }
        if (pkvi_weight_block_values((enum pkv_weight_type)t) <= 32) {
            check_matrix((enum pkv_weight_type)t, 33, 96);
        }
    }
    check_matrix(PKV_W_F16, 5, 33);
}

static void test_pack__groups_one_by_one__same_bytes(void **state)
{
    (void)state;
    struct pkvt_rng rng = {5};
    const uint32_t rows = 70, cols = 256;
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        const enum pkv_weight_type type = (enum pkv_weight_type)t;
        uint8_t *source = pkvt_weights_random(type, rows, cols, &rng);
        void *whole = pkvt_weights_pack(type, rows, cols, source);
        const uint64_t bytes = pkvi_pack_bytes(type, rows, cols);
        void *parts = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_non_null(parts);
        for (uint32_t g = 5; g-- > 0;) {
            pkvi_pack_rows(type, rows, cols, source, g, 1, parts);
        }
        assert_memory_equal(whole, parts, bytes);
        free(parts);
        free(whole);
        free(source);
    }
}

static void test_pack__every_type__within_a_tenth_of_the_file(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        const enum pkv_weight_type type = (enum pkv_weight_type)t;
        const uint64_t file = 1600 * pkvi_weight_row_bytes(type, 2560);
        assert_true(10 * pkvi_pack_bytes(type, 1600, 2560) <= 11 * file);
        assert_int_equal(pkvi_layouts[t].record_bytes % 32, 0);
    }
}

static void test_pack__lanes_beyond_the_last_row__zero(void **state)
{
    (void)state;
    struct pkvt_rng rng = {6};
    uint8_t *source = pkvt_weights_random(PKV_W_Q4_1, 3, 32, &rng);
    uint8_t *packed = pkvt_weights_pack(PKV_W_Q4_1, 3, 32, source);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t byte = 12; byte < 64; byte++) {
            assert_int_equal(packed[64 * i + byte], 0);
        }
    }
    free(packed);
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack__every_type__values_come_back),
        cmocka_unit_test(test_pack__groups_one_by_one__same_bytes),
        cmocka_unit_test(test_pack__every_type__within_a_tenth_of_the_file),
        cmocka_unit_test(test_pack__lanes_beyond_the_last_row__zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
