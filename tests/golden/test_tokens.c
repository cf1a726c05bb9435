/*
 * Token ids equal llama.cpp's for every row of tests/golden/tokens (made outside this project;
 * 0c1e570 of llama.cpp), with special tokens recognised and not. smollm2: from a copy of its
 * vocabulary; gemma3: from the model file, where it is there.
 */
#include "tests/support/pkv_test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/text.h"
#include "tests/support/gguf_builder.h"

static void check_ids(const struct pkv_tokenizer *tokenizer, json_t *row, const char *field,
                      uint32_t flags)
{
    json_t *text = json_object_get(row, "text"), *want = json_object_get(row, field);
    struct pkv_ids ids = {0};
    assert_ok(
        pkv_encode(tokenizer, json_string_value(text), json_string_length(text), flags, &ids));
    bool equal = ids.count == json_array_size(want);
    for (size_t i = 0; equal && i < ids.count; i++) {
        equal = ids.id[i] == json_integer_value(json_array_get(want, i));
    }
    if (!equal) {
        fprintf(stderr, "got: ");
        for (size_t i = 0; i < ids.count; i++) {
            fprintf(stderr, "%d ", ids.id[i]);
        }
        char *wanted = json_dumps(want, 0);
        fail_msg("%s of '%s': want %s", field, json_string_value(text), wanted);
    }
    pkv_ids_free(&ids);
}

static void check_model(const char *model_path, const char *rows_path)
{
    struct pkv_tokenizer *tokenizer;
    json_error_t error;
    json_t *file = json_load_file(rows_path, JSON_ALLOW_NUL, &error);
    assert_non_null(file);
    json_t *rows = json_object_get(file, "rows"), *row;
    size_t i;
    assert_true(json_array_size(rows) >= 79);
    assert_ok(pkv_tokenizer_open(model_path, &tokenizer));
    json_array_foreach(rows, i, row)
    {
        check_ids(tokenizer, row, "ids_special", PKV_ENCODE_SPECIAL);
        check_ids(tokenizer, row, "ids_plain", 0);
    }
    pkv_tokenizer_close(tokenizer);
    json_decref(file);
}

/* smollm2's vocabulary with another pre-tokenizer: only the cutting into words differs. */
static struct pkv_tokenizer *open_with_pre(const char *pre)
{
    static const char key[] = "tokenizer.ggml.pre\x08\0\0\0\x06\0\0\0\0\0\0\0smollm";
    size_t bytes, pre_bytes = strlen(pre), key_bytes = sizeof key - 1;
    char *file = pkvt_read_file(pkvt_path("golden/tokens/vocab_smollm2.gguf"), &bytes);
    char *found = memmem(file, bytes, key, key_bytes);
    assert_non_null(found);
    size_t head = (size_t)(found - file) + key_bytes - 6, tail = bytes - head - 6;
    char *changed = malloc(bytes + pre_bytes);
    memcpy(changed, file, head);
    changed[head - 8] = (char)pre_bytes;
    memcpy(changed + head, pre, pre_bytes);
    memcpy(changed + head + pre_bytes, file + head + 6, tail);
    struct pkv_tokenizer *tokenizer;
    assert_ok(pkv_tokenizer_open(pkvt_memory_file(changed, head + pre_bytes + tail), &tokenizer));
    free(changed);
    free(file);
    return tokenizer;
}

static void check_pre(const char *pre)
{
    struct pkv_tokenizer *tokenizer = open_with_pre(pre);
    json_t *file = json_load_file(pkvt_path("golden/tokens/tokens_pre.json"), JSON_ALLOW_NUL, NULL);
    json_t *row;
    size_t i;
    assert_true(json_array_size(json_object_get(file, "rows")) >= 99);
    json_array_foreach(json_object_get(file, "rows"), i, row)
    {
        check_ids(tokenizer, row, pre, 0);
    }
    pkv_tokenizer_close(tokenizer);
    json_decref(file);
}

static void test_tokens__other_pre_tokenizers__equal(void **state)
{
    (void)state;
    check_pre("default");
    check_pre("gpt-2");
    check_pre("llama-bpe");
    check_pre("qwen2");
}

static void test_tokens__smollm2__equal(void **state)
{
    (void)state;
    check_model(pkvt_path("golden/tokens/vocab_smollm2.gguf"),
                pkvt_path("golden/tokens/tokens_smollm2.json"));
}

static void test_tokens__gemma3__equal(void **state)
{
    (void)state;
    const char *path = pkvt_model_path("gemma3");
    if (!path) {
        skip();
    }
    check_model(path, pkvt_path("golden/tokens/tokens_gemma3.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens__smollm2__equal),
        cmocka_unit_test(test_tokens__other_pre_tokenizers__equal),
        cmocka_unit_test(test_tokens__gemma3__equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
