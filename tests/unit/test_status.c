/* Statuses: every one has a name and a text; messages are one line and cut, never overrun. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "runtime/base/check.h"

static void test_status__every_code__has_name_and_text(void **state)
{
    (void)state;
    assert_string_equal(pkv_status_name(PKV_ERR_INVALID), "PKV_ERR_INVALID");
    assert_string_equal(pkv_status_text(PKV_OK), "ok");
    assert_string_equal(pkv_status_name((enum pkv_status)77), "PKV_?");
}

static void test_fail__control_bytes_and_long_text__one_line(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    text[3] = '\n';
    assert_status(PKV_FAIL(PKV_ERR_IO, "%s", text), PKV_ERR_IO);
    assert_int_equal(strlen(pkv_error_text()), 511);
    assert_null(strchr(pkv_error_text(), '\n'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status__every_code__has_name_and_text),
        cmocka_unit_test(test_fail__control_bytes_and_long_text__one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
