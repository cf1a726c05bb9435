/* Log lines: level, both formats, hostile text, and silence without a sink. */
#include "tests/support/pkv_test.h"

#include <jansson.h>
#include <string.h>

#include "runtime/base/log.h"

struct heard {
    uint32_t count;
    enum pkv_log_level level;
    char line[2048];
};

static void hear(void *context, enum pkv_log_level level, const char *line)
{
    struct heard *heard = context;
    heard->count++;
    heard->level = level;
    strncpy(heard->line, line, sizeof heard->line - 1);
}

static void test_log__no_sink__silent(void **state)
{
    (void)state;
    struct heard heard = {0};
    pkvi_log(PKV_LOG_ERROR, "test", "nobody hears");
    pkv_log_set(PKV_LOG_DEBUG, false, hear, &heard);
    pkv_log_set(PKV_LOG_DEBUG, false, NULL, NULL);
    pkvi_log(PKV_LOG_ERROR, "test", "nobody hears");
    assert_int_equal(heard.count, 0);
}

static void test_log__levels__only_urgent_enough(void **state)
{
    (void)state;
    struct heard heard = {0};
    pkv_log_set(PKV_LOG_WARN, false, hear, &heard);
    pkvi_log(PKV_LOG_INFO, "test", "no");
    assert_int_equal(heard.count, 0);
    pkvi_log(PKV_LOG_WARN, "device", "ring full %d times", 3);
    assert_int_equal(heard.count, 1);
    assert_int_equal(heard.level, PKV_LOG_WARN);
    assert_string_equal(heard.line, "device: ring full 3 times");
    pkv_log_set(PKV_LOG_WARN, false, NULL, NULL);
}

static void test_log__text_with_control_bytes__one_line(void **state)
{
    (void)state;
    struct heard heard = {0};
    pkv_log_set(PKV_LOG_INFO, false, hear, &heard);
    pkvi_log(PKV_LOG_INFO, "test", "a\nb\x1b[1m");
    assert_string_equal(heard.line, "test: a?b?[1m");
    pkv_log_set(PKV_LOG_INFO, false, NULL, NULL);
}

/* Whatever the text, the line is JSON and fits. */
static void test_log__json_of_random_bytes__parses(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct pkvt_rng rng = {3};
    pkv_log_set(PKV_LOG_INFO, true, hear, &heard);
    for (uint32_t i = 0; i < 3000; i++) {
        char text[1500];
        uint32_t length = pkvt_rng_below(&rng, sizeof text), at = 0;
        static const char *const pieces[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\"",
                                             "\\",       "\xed\xa0\x80", "\xc0\x80"};
        while (at + 5 < length) {
            uint32_t kind = pkvt_rng_below(&rng, 9);
            const char *piece = kind < 7 ? pieces[kind] : (char[]){(char)pkvt_rng_u64(&rng), '\0'};
            at += (uint32_t)snprintf(text + at, sizeof text - at, "%s", piece);
        }
        text[at] = '\0';
        pkvi_log(PKV_LOG_INFO, "test", "%s", text);
        assert_in_range(strlen(heard.line), 10, 1023);
        json_t *line = json_loads(heard.line, 0, NULL);
        assert_non_null(line);
        assert_string_equal(json_string_value(json_object_get(line, "level")), "info");
        assert_string_equal(json_string_value(json_object_get(line, "area")), "test");
        assert_true(json_is_integer(json_object_get(line, "time_ns")));
        json_decref(line);
    }
    pkvi_log(PKV_LOG_INFO, "test", "tab\t \xe2\x82\xac \"x\"");
    assert_non_null(strstr(heard.line, "\"text\": \"tab\\u0009 \xe2\x82\xac \\\"x\\\"\"}"));
    pkv_log_set(PKV_LOG_INFO, false, NULL, NULL);
}

static void test_log_level__names__round_trip(void **state)
{
    (void)state;
    enum pkv_log_level level = PKV_LOG_INFO;
    for (int i = PKV_LOG_ERROR; i <= PKV_LOG_DEBUG; i++) {
        assert_ok(pkv_log_level_parse(pkv_log_level_name((enum pkv_log_level)i), &level));
        assert_int_equal(level, i);
    }
    assert_status(pkv_log_level_parse("loud", &level), PKV_ERR_INVALID);
    assert_status(pkv_log_level_parse(NULL, &level), PKV_ERR_INVALID);
    assert_null(pkv_log_level_name((enum pkv_log_level)9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log__no_sink__silent),
        cmocka_unit_test(test_log__levels__only_urgent_enough),
        cmocka_unit_test(test_log__text_with_control_bytes__one_line),
        cmocka_unit_test(test_log__json_of_random_bytes__parses),
        cmocka_unit_test(test_log_level__names__round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
