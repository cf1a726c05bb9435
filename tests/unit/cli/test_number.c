/* Numbers as people type them: the whole text and in range, or refused. */
#include "tests/support/pkv_test.h"

#include <math.h>
#include <string.h>

#include "runtime/cli/number.c"

static void test_int__good_texts__their_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } rows[] = {{"0", 0},
                {"-1", -1},
                {"007", 7},
                {"-0", 0},
                {"128", 128},
                {"9223372036854775807", INT64_MAX},
                {"-5", -5},
                {"-9223372036854775807", -INT64_MAX},
                {"000000000000000000000000000000001", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = 99;
        assert_true(pkvi_number_int(rows[i].text, INT64_MIN, INT64_MAX, &value));
        assert_int_equal(value, rows[i].value);
    }
}

static void test_int__bad_texts__refused_and_nothing_written(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       " 1",
                                       "1 ",
                                       "+1",
                                       "--1",
                                       "-",
                                       "1.0",
                                       "0x10",
                                       "1e3",
                                       "nan",
                                       "inf",
                                       "1\n",
                                       "1,2",
                                       "\xff",
                                       "１",
                                       "1k",
                                       "99999999999999999999999",
                                       "9223372036854775808",
                                       "-9223372036854775808"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = 99;
        if (pkvi_number_int(rows[i], INT64_MIN, INT64_MAX, &value)) {
            fail_msg("'%s' was read as %lld", rows[i], (long long)value);
        }
        assert_int_equal(value, 99);
    }
}

static void test_int__limits__both_allowed_and_nothing_beyond(void **state)
{
    (void)state;
    int64_t value = 0;
    assert_true(pkvi_number_int("-2", -2, 5, &value));
    assert_true(pkvi_number_int("5", -2, 5, &value));
    assert_false(pkvi_number_int("-3", -2, 5, &value));
    assert_false(pkvi_number_int("6", -2, 5, &value));
}

static void test_real__good_texts__their_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } rows[] = {{"0", 0.0},     {"0.8", 0.8},   {".5", 0.5},     {"5.", 5.0},
                {"1e-3", 1e-3}, {"-1.5", -1.5}, {"1E+02", 100.0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = 99.0;
        assert_true(pkvi_number_real(rows[i].text, -100.0, 100.0, false, &value));
        assert_true(value == rows[i].value);
    }
}

static void test_real__bad_texts__refused_and_nothing_written(void **state)
{
    (void)state;
    static const char *const rows[] = {"",     ".",     "-",     "nan",      "NaN", "inf",
                                       "-inf", "1e999", "1e",    "1e+",      "0x1", " 1",
                                       "1 ",   "1,5",   "1.2.3", "infinity", "1f",  "101",
                                       "-101", "+1",    "1e5e5", "1__0",     "\xff"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = 99.0;
        if (pkvi_number_real(rows[i], -100.0, 100.0, false, &value)) {
            fail_msg("'%s' was read as %g", rows[i], value);
        }
        assert_true(value == 99.0);
    }
}

static void test_real__least_not_allowed__refused(void **state)
{
    (void)state;
    double value = 0.0;
    assert_true(pkvi_number_real("0", 0.0, 1.0, false, &value));
    assert_false(pkvi_number_real("0", 0.0, 1.0, true, &value));
    assert_false(pkvi_number_real("1e-999", 0.0, 1.0, true, &value));
    assert_true(pkvi_number_real("1", 0.0, 1.0, true, &value));
}

static void test_size__units__bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } rows[] = {{"1", 1},
                {"4096", 4096},
                {"3KiB", 3072},
                {"64MiB", 67108864},
                {"4GiB", 4294967296},
                {"8589934591GiB", 8589934591 * (int64_t)1073741824}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t bytes = 99;
        assert_true(pkvi_number_size(rows[i].text, INT64_MAX, &bytes));
        assert_int_equal(bytes, rows[i].bytes);
    }
}

static void test_size__bad_texts__refused_and_nothing_written(void **state)
{
    (void)state;
    static const char *const rows[] = {"",
                                       "0",
                                       "0GiB",
                                       "-1",
                                       "1.5GiB",
                                       "1 GiB",
                                       "GiB",
                                       "1GB",
                                       "1gib",
                                       "1GiBx",
                                       "1K",
                                       "1e9",
                                       "8589934592GiB",
                                       "18446744073709551616",
                                       "nan",
                                       "1TiB",
                                       "+1",
                                       " 1",
                                       "1KiB ",
                                       "9223372036854775807KiB"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t bytes = 99;
        if (pkvi_number_size(rows[i], INT64_MAX, &bytes)) {
            fail_msg("'%s' was read as %lld", rows[i], (long long)bytes);
        }
        assert_int_equal(bytes, 99);
    }
}

static void test_next__list__every_number_and_the_place_of_a_mistake(void **state)
{
    (void)state;
    const char text[] = "1 20\t\n 300\r\n4 5x";
    size_t at = 0;
    int32_t id = 0;
    static const int32_t want[] = {1, 20, 300, 4};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pkvi_number_next(text, sizeof text - 1, &at, 300, &id), 1);
        assert_int_equal(id, want[i]);
    }
    assert_int_equal(pkvi_number_next(text, sizeof text - 1, &at, 300, &id), -1);
    assert_string_equal(text + at, "5x");
    at = 0;
    assert_int_equal(pkvi_number_next("301", 3, &at, 300, &id), -1);
    assert_int_equal(pkvi_number_next("-1", 2, &at, 300, &id), -1);
    assert_int_equal(pkvi_number_next("1\0002", 3, &at, 300, &id), -1);
    assert_int_equal(pkvi_number_next(" \n", 2, &at, 300, &id), 0);
    assert_int_equal(pkvi_number_next(NULL, 0, &(size_t){0}, 300, &id), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int__good_texts__their_values),
        cmocka_unit_test(test_int__bad_texts__refused_and_nothing_written),
        cmocka_unit_test(test_int__limits__both_allowed_and_nothing_beyond),
        cmocka_unit_test(test_real__good_texts__their_values),
        cmocka_unit_test(test_real__bad_texts__refused_and_nothing_written),
        cmocka_unit_test(test_real__least_not_allowed__refused),
        cmocka_unit_test(test_size__units__bytes),
        cmocka_unit_test(test_size__bad_texts__refused_and_nothing_written),
        cmocka_unit_test(test_next__list__every_number_and_the_place_of_a_mistake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
