/*
 * Chat templates: for every template in golden/chat.json and every conversation, our text equals
 * what Jinja made of it. Where the template raises, we refuse; we also refuse where it would lose a
 * system message or print it as a turn that its model does not know.
 */
#include "tests/support/pkv_test.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/chat.h"

#define MOST_MESSAGES 8u

static json_t *load(void)
{
    size_t bytes;
    char *text = pkvt_read_file(pkvt_path("golden/chat.json"), &bytes);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, &error);
    free(text);
    if (!root) {
        fail_msg("chat.json: line %d: %s", error.line, error.text);
    }
    return root;
}

static bool has_system(const struct pkv_chat_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(messages[i].role, "system") == 0) {
            return true;
        }
    }
    return false;
}

static void check_row(const char *name, const struct pkvi_chat_style *style, const json_t *talk,
                      bool generation, const json_t *want, int *equal, int *refused)
{
    struct pkv_chat_message messages[MOST_MESSAGES];
    size_t count = json_array_size(talk);
    assert_in_range(count, 1, MOST_MESSAGES);
    for (size_t i = 0; i < count; i++) {
        const json_t *message = json_array_get(talk, i), *content = json_array_get(message, 1);
        messages[i] =
            (struct pkv_chat_message){json_string_value(json_array_get(message, 0)),
                                      json_string_value(content), json_string_length(content)};
    }
    struct pkvi_chat_text text = {.bos = "<s>", .eos = "</s>", .bos_bytes = 3, .eos_bytes = 4};
    enum pkv_status status = pkvi_chat_write(style, messages, count, generation, &text);
    if (json_is_null(want)) {
        assert_int_equal(status, has_system(messages, count) && status == PKV_ERR_UNSUPPORTED
                                     ? PKV_ERR_UNSUPPORTED
                                     : PKV_ERR_INVALID);
        ++*refused;
    } else if (status != PKV_OK) {
        if (!has_system(messages, count)) {
            fail_msg("%s: %s, but the template gives \"%s\"", name, pkv_error_text(),
                     json_string_value(want));
        }
    } else {
        if (text.bytes != json_string_length(want) ||
            memcmp(text.data, json_string_value(want), text.bytes) != 0) {
            fail_msg("%s:\n%s\nwant:\n%s", name, text.data, json_string_value(want));
        }
        ++*equal;
    }
    pkvi_chat_text_fini(&text);
}

static void check_template(const json_t *talks, const json_t *template)
{
    const char *name = json_string_value(json_object_get(template, "name"));
    const json_t *text = json_object_get(template, "text");
    const json_t *rows = json_object_get(template, "rows");
    struct pkvi_chat_style style = {0};
    enum pkv_status status =
        pkvi_chat_style_read(json_string_value(text), json_string_length(text), &style);
    if (strncmp(name, "refused", 7) == 0) {
        assert_int_equal(status, PKV_ERR_UNSUPPORTED);
        assert_non_null(strstr(pkv_error_text(), "--chat-template"));
        return;
    }
    if (status != PKV_OK) {
        fail_msg("%s: %s", name, pkv_error_text());
    }
    int equal = 0, refused = 0;
    assert_int_equal(json_array_size(rows), json_array_size(talks));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        for (size_t g = 0; g < 2; g++) {
            check_row(name, &style, json_array_get(talks, i), g == 0,
                      json_array_get(json_array_get(rows, i), g), &equal, &refused);
        }
    }
    assert_in_range(equal, 14, 32); // no template gets by on refusals
    pkvi_chat_style_fini(&style);
}

static void test_chat__every_known_template__as_jinja(void **state)
{
    (void)state;
    json_t *root = load();
    const json_t *talks = json_object_get(root, "conversations");
    const json_t *templates = json_object_get(root, "templates");
    assert_in_range(json_array_size(templates), 24, 100);
    for (size_t i = 0; i < json_array_size(templates); i++) {
        check_template(talks, json_array_get(templates, i));
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat__every_known_template__as_jinja),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
