/* The values of stored rows, bit for bit: tests/golden/dequant/rows.txt. */
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "tests/support/pkv_test.h"

static enum pkv_weight_type type_named(const char *name)
{
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        if (strcmp(pkvi_weight_type_name((enum pkv_weight_type)t), name) == 0) {
            return (enum pkv_weight_type)t;
        }
    }
    fail_msg("no weight type is named %s", name);
    return PKV_W_COUNT;
}

static size_t unhex(const char *text, uint8_t *bytes_out)
{
    size_t count = strlen(text) / 2;
    for (size_t i = 0; i < count; i++) {
        const char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        bytes_out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return count;
}

static void check_row(const char *name, const char *stored, const char *values)
{
    static uint8_t row[1 << 14], want_bytes[1 << 14];
    static float want[1 << 12], got[1 << 12];
    const enum pkv_weight_type type = type_named(name);
    const size_t row_bytes = unhex(stored, row);
    const uint32_t cols = (uint32_t)(unhex(values, want_bytes) / 4);
    memcpy(want, want_bytes, cols * sizeof *want);
    assert_int_equal(row_bytes, pkvi_weight_row_bytes(type, cols));
    pkvi_weight_dequantize(type, row, cols, got);
    for (uint32_t i = 0; i < cols; i++) {
        if (memcmp(&got[i], &want[i], 4) != 0 && !(got[i] == 0.0f && want[i] == 0.0f)) {
            fail_msg("%s value %u: got %.9g, want %.9g", name, i, (double)got[i], (double)want[i]);
        }
    }
}

static void test_dequantize__stored_rows__same_bits(void **state)
{
    (void)state;
    char *text = pkvt_read_file(pkvt_path("golden/dequant/rows.txt"), NULL);
    uint32_t rows = 0;
    char *line_end, *word_end;
    for (char *line = strtok_r(text, "\n", &line_end); line;
         line = strtok_r(NULL, "\n", &line_end)) {
        const char *name = strtok_r(line, " ", &word_end);
        const char *stored = strtok_r(NULL, " ", &word_end);
        const char *values = strtok_r(NULL, " ", &word_end);
        assert_true(name && stored && values);
        check_row(name, stored, values);
        rows++;
    }
    assert_int_equal(rows, 22);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dequantize__stored_rows__same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
