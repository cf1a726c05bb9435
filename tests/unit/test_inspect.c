/* What `inspect` says: every file that opens is described; a refused one gives the loader's words.
 */
#include "tests/support/pkv_test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/model.h"
#include "runtime/model/arch.h"

static json_t *inspect_json(const char *path)
{
    char *text = NULL;
    json_error_t error;
    assert_ok(pkv_model_inspect(path, true, &text));
    assert_null(strchr(text, '\n'));
    json_t *all = json_loads(text, 0, &error);
    if (!all) {
        fail_msg("%s: no JSON: %s", path, error.text);
    }
    free(text);
    return all;
}

static void test_inspect__json__file_model_layers_keys_tensors(void **state)
{
    (void)state;
    json_t *all = inspect_json(pkvt_path("golden/tiny/gemma3.gguf"));
    const char *architecture, *kind, *key, *key_use, *tensor, *tensor_type;
    int version, shards, supported, width, window, rows;
    double theta;
    assert_int_equal(json_unpack(all, "{s:i, s:i, s:b, s:{s:s, s:i}}", "gguf_version", &version,
                                 "shards", &shards, "supported", &supported, "model",
                                 "architecture", &architecture, "width", &width),
                     0);
    assert_true(version == 3 && shards == 1 && supported == 1 && width == 128);
    assert_string_equal(architecture, "gemma3");
    json_t *layers = json_object_get(all, "layers"), *keys = json_object_get(all, "keys");
    json_t *tensors = json_object_get(all, "tensors");
    assert_int_equal(json_array_size(layers), 6);
    assert_int_equal(json_array_size(tensors), 80);
    assert_int_equal(json_unpack(json_array_get(layers, 4), "{s:s, s:i, s:F}", "kind", &kind,
                                 "window", &window, "rope_theta", &theta),
                     0);
    assert_string_equal(kind, "sliding");
    assert_true(window == 64 && theta == 10000.0);
    assert_int_equal(
        json_unpack(json_array_get(keys, 0), "{s:s, s:s}", "name", &key, "use", &key_use), 0);
    assert_string_equal(key, "general.architecture");
    assert_string_equal(key_use, "model");
    assert_int_equal(json_unpack(json_array_get(tensors, 0), "{s:s, s:s, s:[i,i!]}", "name",
                                 &tensor, "type", &tensor_type, "shape", &width, &rows),
                     0);
    assert_string_equal(tensor, "token_embd.weight");
    assert_string_equal(tensor_type, "F16");
    assert_true(width == 128 && rows == 320);
    json_decref(all);
}

static void test_inspect__text__says_what_is_used(void **state)
{
    (void)state;
    char *text = NULL;
    assert_ok(pkv_model_inspect(pkvt_path("golden/tiny/gemma2.gguf"), false, &text));
    static const char *const words[] = {"gemma2",
                                        "GGUF version 3",
                                        "sliding window of 64 tokens",
                                        "soft cap 5",
                                        "logits' soft cap 10",
                                        "token ids only",
                                        "remark     general.file_type = 1",
                                        "model      gemma2.block_count = 2"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!strstr(text, words[i])) {
            fail_msg("'%s' is missing in: %s", words[i], text);
        }
    }
    free(text);
}

static void test_inspect__split_file__all_shards(void **state)
{
    (void)state;
    json_t *all = inspect_json(pkvt_path("golden/tiny/llama_split-00003-of-00003.gguf"));
    int shards, bytes;
    assert_int_equal(json_unpack(all, "{s:i, s:i}", "shards", &shards, "file_bytes", &bytes), 0);
    assert_int_equal(shards, 3);
    assert_int_equal(bytes, 141408 + 269856 + 268768);
    json_decref(all);
}

static void test_inspect__refused_file__the_loaders_words_and_no_text(void **state)
{
    (void)state;
    static const char *const names[] = {
        "truncated_header",  "truncated_data", "offset_beyond_file",
        "huge_tensor_count", "huge_string",    "dims_overflow",
        "duplicate_tensor",  "missing_key",    "version_99",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char relative[128], expected[512];
        snprintf(relative, sizeof relative, "golden/malformed/%s.gguf", names[i]);
        const char *path = pkvt_path(relative);
        struct pkvi_gguf *gguf = NULL;
        struct pkvi_arch arch;
        enum pkv_status status = pkvi_gguf_open(path, &gguf);
        if (status == PKV_OK) {
            status = pkvi_arch_read(gguf, &arch);
            pkvi_gguf_close(gguf);
        }
        assert_true(status != PKV_OK);
        snprintf(expected, sizeof expected, "%s", pkv_error_text());
        for (int json = 0; json < 2; json++) {
            char *text = NULL;
            assert_status(pkv_model_inspect(path, json, &text), status);
            assert_string_equal(pkv_error_text(), expected);
            assert_non_null(strstr(expected, names[i]));
            assert_null(text);
        }
    }
    assert_status(pkv_model_inspect(NULL, false, NULL), PKV_ERR_INVALID);
}

static void test_inspect__real_models__described(void **state)
{
    (void)state;
    static const char *const models[] = {"smollm2", "gemma3"};
    for (size_t i = 0; i < 2; i++) {
        const char *path = pkvt_model_path(models[i]);
        if (path) {
            json_t *all = inspect_json(path);
            int has_text = 0;
            assert_int_equal(json_unpack(all, "{s:{s:b}}", "tokenizer", "has_text", &has_text), 0);
            assert_true(has_text);
            json_decref(all);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inspect__json__file_model_layers_keys_tensors),
        cmocka_unit_test(test_inspect__text__says_what_is_used),
        cmocka_unit_test(test_inspect__split_file__all_shards),
        cmocka_unit_test(test_inspect__refused_file__the_loaders_words_and_no_text),
        cmocka_unit_test(test_inspect__real_models__described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
