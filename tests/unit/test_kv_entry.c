/* KV number formats: names go both ways, entries have the sizes that kernels.h says. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "kernels/kernels.h"

static void test_kv_type__every_type__name_parses_back(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < PKV_KV_TYPE_COUNT; type++) {
        enum pkv_kv_type parsed = PKV_KV_TYPE_COUNT;
        assert_ok(pkv_kv_type_parse(pkv_kv_type_name((enum pkv_kv_type)type), &parsed));
        assert_int_equal(parsed, type);
    }
    assert_null(pkv_kv_type_name(PKV_KV_TYPE_COUNT));
}

static void test_kv_type__unknown_name__says_what_is_expected(void **state)
{
    (void)state;
    enum pkv_kv_type type = PKV_KV_F32;
    assert_status(pkv_kv_type_parse("q4_0", &type), PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "'q4_0'"));
    assert_status(pkv_kv_type_parse(NULL, &type), PKV_ERR_INVALID);
    assert_int_equal(type, PKV_KV_F32);
}

static void test_kv_entry__head_of_64__bytes(void **state)
{
    (void)state;
    assert_int_equal(pkvi_kv_entry_bytes(PKV_KV_F16, 64), 256);
    assert_int_equal(pkvi_kv_entry_bytes(PKV_KV_BF16, 64), 256);
    assert_int_equal(pkvi_kv_entry_bytes(PKV_KV_F32, 64), 512);
    assert_int_equal(pkvi_kv_entry_bytes(PKV_KV_Q8_0, 64), 136);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_type__every_type__name_parses_back),
        cmocka_unit_test(test_kv_type__unknown_name__says_what_is_expected),
        cmocka_unit_test(test_kv_entry__head_of_64__bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
