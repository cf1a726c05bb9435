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

/* Names of files and keys are quoted in messages: what a terminal would obey or choke on is
 * replaced. */
static void test_fail__bytes_that_are_no_utf8__replaced(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"no\x80vocab", "no?vocab"},  {"\xff.gguf", "?.gguf"},
        {"\xc2\x9b.", "??."},         {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac"},
        {"\xed\xa0\x80", "???"},      {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xe2\x82", "??"},           {"\xc0\xaf", "??"},
        {"\xf4\x90\x80\x80", "????"}, {"a\x1b[0m", "a?[0m"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)PKV_FAIL(PKV_ERR_IO, "%s", cases[i][0]);
        assert_string_equal(pkv_error_text(), cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status__every_code__has_name_and_text),
        cmocka_unit_test(test_fail__control_bytes_and_long_text__one_line),
        cmocka_unit_test(test_fail__bytes_that_are_no_utf8__replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
