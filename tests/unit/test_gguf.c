/*
 * GGUF files: what is in them is read as it is; whatever number of the format is wrong, wherever
 * the file ends, the answer is a refusal in one line that names the file.
 */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/pack.h"
#include "runtime/model/gguf.h"
#include "tests/support/gguf_builder.h"

/* Sanitizers take more memory than a limit would leave them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* Every value type, strings of odd lengths, tensors of three formats. */
static struct pkvt_gguf *make_file(void)
{
    static const char *const words[] = {"", "a", "\xe2\x82\xac", "four"};
    struct pkvt_gguf *gguf = pkvt_gguf_new();
    uint8_t number[16] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    double pi = 3.25;
    int32_t ids[3] = {-1, 0, 7};
    float scores[2] = {0.5f, -2.0f};
    uint8_t flags[3] = {1, 0, 1};
    pkvt_gguf_set_str(gguf, "general.architecture", "llama");
    pkvt_gguf_set_u32(gguf, "t.u32", 70000);
    pkvt_gguf_set_f32(gguf, "t.f32", 1.5f);
    pkvt_gguf_set_bool(gguf, "t.bool", true);
    pkvt_gguf_set(gguf, "t.u8", 0, false, 1, number, 1);
    pkvt_gguf_set(gguf, "t.i8", 1, false, 1, number, 1);
    pkvt_gguf_set(gguf, "t.u16", 2, false, 1, number, 2);
    pkvt_gguf_set(gguf, "t.i16", 3, false, 1, number, 2);
    pkvt_gguf_set(gguf, "t.i32", 5, false, 1, number, 4);
    pkvt_gguf_set(gguf, "t.u64", 10, false, 1, number, 8);
    pkvt_gguf_set(gguf, "t.i64", 11, false, 1, number, 8);
    pkvt_gguf_set(gguf, "t.f64", 12, false, 1, &pi, 8);
    pkvt_gguf_set_strs(gguf, "t.words", words, 4);
    pkvt_gguf_set(gguf, "t.none", 8, true, 0, number, 0);
    pkvt_gguf_set(gguf, "t.ids", 5, true, 3, ids, sizeof ids);
    pkvt_gguf_set(gguf, "t.scores", 6, true, 2, scores, sizeof scores);
    pkvt_gguf_set(gguf, "t.flags", 7, true, 3, flags, sizeof flags);
    pkvt_gguf_add_tensor(gguf, "a.weight", 8, 3 * 34, 2, (uint64_t[]){32, 3});
    pkvt_gguf_add_tensor(gguf, "b.weight", 0, 60, 3, (uint64_t[]){5, 3, 1});
    pkvt_gguf_add_tensor(gguf, "c.weight", 14, 420, 1, (uint64_t[]){512});
    for (int i = 0; i < 60; i++) {
        gguf->tensor[1].data[i] = (uint8_t)(200 + i);
    }
    pkvt_gguf_write(gguf);
    return gguf;
}

static struct pkvi_gguf *open_bytes(const void *bytes, size_t count)
{
    struct pkvi_gguf *gguf = NULL;
    assert_ok(pkvi_gguf_open(pkvt_memory_file(bytes, count), &gguf));
    return gguf;
}

static void check_message(const char *label, const char *path, enum pkv_status status)
{
    const char *text = pkv_error_text();
    if (status == PKV_OK || strchr(text, '\n') || !strstr(text, path)) {
        fail_msg("%s: %s, message '%s'", label, pkv_status_name(status), text);
    }
}

/* The status, after checking that a refusal is one line with the file's name. */
static enum pkv_status try_bytes(const void *bytes, size_t count, const char *label)
{
    struct pkvi_gguf *gguf = NULL;
    const char *path = pkvt_memory_file(bytes, count);
    enum pkv_status status = pkvi_gguf_open(path, &gguf);
    if (status != PKV_OK) {
        assert_null(gguf);
        check_message(label, path, status);
    }
    pkvi_gguf_close(gguf);
    return status;
}

static void refuse_bytes(const void *bytes, size_t count, enum pkv_status expected,
                         const char *words)
{
    enum pkv_status status = try_bytes(bytes, count, words);
    if (status != expected || !strstr(pkv_error_text(), words)) {
        fail_msg("want %s with '%s', got %s: %s", pkv_status_name(expected), words,
                 pkv_status_name(status), pkv_error_text());
    }
}

static void test_gguf__every_value_type__read(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    static const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"t.u8", 254}, {"t.u16", 65534}, {"t.u32", 70000}};
    for (size_t i = 0; i < 3; i++) {
        uint32_t value = 0;
        bool found = false;
        assert_ok(pkvi_gguf_u32(gguf, numbers[i].name, &found, &value));
        assert_true(found);
        assert_int_equal(value, numbers[i].value);
    }
    float real = 0;
    bool flag = false;
    struct pkvi_str str;
    assert_ok(pkvi_gguf_f32(gguf, "t.f32", NULL, &real));
    assert_true(real == 1.5f);
    assert_ok(pkvi_gguf_f32(gguf, "t.f64", NULL, &real));
    assert_true(real == 3.25f);
    assert_ok(pkvi_gguf_bool(gguf, "t.bool", NULL, &flag));
    assert_true(flag);
    assert_ok(pkvi_gguf_str(gguf, "general.architecture", NULL, &str));
    assert_true(pkvi_str_equal(str, "llama"));
    assert_int_equal(pkvi_gguf_key_count(gguf), 17);
    assert_int_equal(pkvi_gguf_version(gguf), 3);
    assert_int_equal(pkvi_gguf_file_bytes(gguf), made->file_bytes);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__wrong_or_missing_value__refused_by_name(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    uint64_t infinity = 0x7ff0000000000000u;
    pkvt_gguf_set(made, "t.inf", 12, false, 1, &infinity, 8);
    pkvt_gguf_write(made);
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    uint32_t value = 5;
    float real = 5;
    bool flag = true, found = true;
    struct pkvi_str str = {NULL, 5};
    static const char *const not_u32[] = {
        "t.i8",  "t.i16",  "t.i32",   "t.i64",  "t.u64",
        "t.f32", "t.bool", "t.words", "t.none", "general.architecture"};
    for (size_t i = 0; i < sizeof not_u32 / sizeof not_u32[0]; i++) {
        assert_status(pkvi_gguf_u32(gguf, not_u32[i], &found, &value), PKV_ERR_CORRUPT);
        assert_non_null(strstr(pkv_error_text(), not_u32[i]));
    }
    assert_int_equal(value, 5);
    assert_status(pkvi_gguf_f32(gguf, "t.u32", NULL, &real), PKV_ERR_CORRUPT);
    assert_status(pkvi_gguf_f32(gguf, "t.inf", NULL, &real), PKV_ERR_CORRUPT);
    assert_status(pkvi_gguf_bool(gguf, "t.u8", NULL, &flag), PKV_ERR_CORRUPT);
    assert_status(pkvi_gguf_str(gguf, "t.u8", NULL, &str), PKV_ERR_CORRUPT);
    assert_status(pkvi_gguf_u32(gguf, "t.absent", NULL, &value), PKV_ERR_CORRUPT);
    assert_non_null(strstr(pkv_error_text(), "t.absent"));
    assert_ok(pkvi_gguf_u32(gguf, "t.absent", &found, &value));
    assert_false(found);
    assert_true(value == 5 && real == 5 && str.bytes == 5);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__arrays__elements_read(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    const struct pkvi_gguf_key *words = pkvi_gguf_find_key(gguf, "t.words");
    const struct pkvi_gguf_key *none = pkvi_gguf_find_key(gguf, "t.none");
    const struct pkvi_gguf_key *ids = pkvi_gguf_find_key(gguf, "t.ids");
    const struct pkvi_gguf_key *scores = pkvi_gguf_find_key(gguf, "t.scores");
    struct pkvi_str str;
    int32_t id;
    float score;
    assert_true(words->is_array && words->count == 4);
    assert_ok(pkvi_gguf_array_str(gguf, words, 0, &str));
    assert_true(pkvi_str_equal(str, ""));
    assert_ok(pkvi_gguf_array_str(gguf, words, 2, &str));
    assert_true(pkvi_str_equal(str, "\xe2\x82\xac"));
    assert_ok(pkvi_gguf_array_str(gguf, words, 3, &str));
    assert_true(pkvi_str_equal(str, "four"));
    assert_status(pkvi_gguf_array_str(gguf, words, 4, &str), PKV_ERR_RANGE);
    assert_status(pkvi_gguf_array_str(gguf, none, 0, &str), PKV_ERR_RANGE);
    assert_status(pkvi_gguf_array_str(gguf, ids, 0, &str), PKV_ERR_CORRUPT);
    assert_ok(pkvi_gguf_array_i32(ids, 0, &id));
    assert_int_equal(id, -1);
    assert_ok(pkvi_gguf_array_i32(ids, 2, &id));
    assert_int_equal(id, 7);
    assert_status(pkvi_gguf_array_i32(ids, 3, &id), PKV_ERR_RANGE);
    assert_status(pkvi_gguf_array_i32(words, 0, &id), PKV_ERR_CORRUPT);
    assert_status(pkvi_gguf_array_i32(scores, 0, &id), PKV_ERR_CORRUPT);
    assert_ok(pkvi_gguf_array_f32(scores, 1, &score));
    assert_true(score == -2.0f);
    assert_status(pkvi_gguf_array_f32(ids, 0, &score), PKV_ERR_CORRUPT);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

/* A download that starts again, or a copy still running: the file shrinks under an open model. */
static void test_gguf__file_shrinks_after_open__error_not_signal(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    const char *path = pkvt_memory_file(made->file, made->file_bytes);
    struct pkvi_gguf *gguf = NULL;
    uint8_t read[60];
    assert_ok(pkvi_gguf_open(path, &gguf));
    const struct pkvi_gguf_tensor *b = pkvi_gguf_find_tensor(gguf, "b.weight");
    uint64_t keys = pkvi_gguf_key_count(gguf);
    assert_int_equal(truncate(path, 64), 0);
    assert_status(pkvi_gguf_read(gguf, b, 0, 60, read), PKV_ERR_IO);
    assert_non_null(strstr(pkv_error_text(), path));
    assert_non_null(strstr(pkv_error_text(), "shorter"));
    assert_int_equal(pkvi_gguf_key_count(gguf), keys); // the tables are copies
    assert_true(pkvi_str_equal(b->name, "b.weight"));
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__tensors__found_with_their_bytes(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    assert_int_equal(pkvi_gguf_tensor_count(gguf), 3);
    const struct pkvi_gguf_tensor *b = pkvi_gguf_find_tensor(gguf, "b.weight");
    assert_non_null(b);
    assert_ptr_equal(b, pkvi_gguf_tensor_at(gguf, 1));
    assert_true(b->dim_count == 3 && b->dim[0] == 5 && b->dim[1] == 3 && b->dim[3] == 1);
    assert_true(b->supported && b->weight_type == PKV_W_F32 && b->bytes == 60);
    uint8_t read[60];
    assert_ok(pkvi_gguf_read(gguf, b, 0, 60, read));
    assert_memory_equal(read, made->tensor[1].data, 60);
    assert_ok(pkvi_gguf_read(gguf, b, 13, 40, read));
    assert_memory_equal(read, (const uint8_t *)made->tensor[1].data + 13, 40);
    assert_int_equal(pkvi_gguf_find_tensor(gguf, "a.weight")->weight_type, PKV_W_Q8_0);
    assert_int_equal(pkvi_gguf_find_tensor(gguf, "c.weight")->bytes, 420);
    assert_null(pkvi_gguf_find_tensor(gguf, "b.weigh"));
    assert_null(pkvi_gguf_find_tensor(gguf, ""));
    assert_null(pkvi_gguf_find_key(gguf, "t.u321"));
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

/* Our table of block sizes agrees with the kernels'. */
static void test_gguf__block_sizes__those_of_the_kernels(void **state)
{
    (void)state;
    static const uint32_t ggml_type[PKV_W_COUNT] = {0, 1, 30, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14};
    for (uint32_t i = 0; i < PKV_W_COUNT; i++) {
        uint32_t values = 0, bytes = 0;
        assert_true(pkvi_gguf_ggml_type_block(ggml_type[i], &values, &bytes));
        assert_int_equal(values, pkvi_weight_block_values((enum pkv_weight_type)i));
        assert_int_equal(bytes, pkvi_weight_block_bytes((enum pkv_weight_type)i));
    }
    assert_null(pkvi_gguf_ggml_type_name(4));
    assert_null(pkvi_gguf_ggml_type_name(1000));
}

static void test_gguf__unsupported_and_unknown_formats__open(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    made->tensor[0].type = 20; /* IQ4_NL: size known */
    made->tensor[1].type = 999;
    pkvt_gguf_write(made);
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    const struct pkvi_gguf_tensor *a = pkvi_gguf_find_tensor(gguf, "a.weight");
    const struct pkvi_gguf_tensor *b = pkvi_gguf_find_tensor(gguf, "b.weight");
    assert_true(!a->supported && a->bytes == 54 && a->offset);
    assert_true(!b->supported && b->bytes == 0 && !b->offset && b->ggml_type == 999);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__cut_anywhere__refused(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    for (size_t bytes = 0; bytes < made->file_bytes; bytes++) {
        if (try_bytes(made->file, bytes, "cut") == PKV_OK) {
            fail_msg("opened with %zu of %zu bytes", bytes, made->file_bytes);
        }
    }
    refuse_bytes(made->file, made->file_bytes - 1, PKV_ERR_CORRUPT,
                 "tensor 'c.weight' needs 420 bytes at offset 192 of the data, 419 bytes present");
    pkvt_gguf_free(made);
}

static bool is_kind(const struct pkvt_gguf_field *field, const char *kind)
{
    return strcmp(field->kind, kind) == 0;
}

/* Any number of the format, replaced by each of these, is refused or still describes the file. */
static void test_gguf__any_number_changed__refused_or_consistent(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    uint8_t *file = malloc(made->file_bytes);
    unsigned refused = 0, opened = 0;
    for (size_t i = 0; i < made->field_count; i++) {
        const struct pkvt_gguf_field *field = &made->field[i];
        uint64_t old = 0;
        memcpy(&old, made->file + field->at, field->bytes);
        const uint64_t tries[] = {0,
                                  1,
                                  2,
                                  old + 1,
                                  old - 1,
                                  old + 32,
                                  old ^ 0x80,
                                  UINT32_MAX,
                                  UINT64_MAX,
                                  UINT64_MAX - 7,
                                  1u << 31,
                                  1ull << 60,
                                  1ull << 63,
                                  0x100000000,
                                  UINT64_MAX - 31,
                                  old * 2,
                                  100000,
                                  made->file_bytes,
                                  INT64_MAX};
        for (size_t t = 0; t < sizeof tries / sizeof tries[0]; t++) {
            memcpy(file, made->file, made->file_bytes);
            memcpy(file + field->at, &tries[t], field->bytes);
            if (memcmp(file, made->file, made->file_bytes) == 0) {
                continue;
            }
            enum pkv_status status = try_bytes(file, made->file_bytes, field->kind);
            /* Fewer tensors than there are is a shorter list of the same file: what is missing is
             * found by who wants it. */
            bool may_open = (is_kind(field, "tensor count") && tries[t] < old) ||
                            is_kind(field, "version") || is_kind(field, "tensor type") ||
                            is_kind(field, "bool") || is_kind(field, "dim") ||
                            is_kind(field, "value type") || is_kind(field, "element type");
            if (status == PKV_OK && !may_open) {
                fail_msg("%s at %zu: %llu instead of %llu was accepted", field->kind, field->at,
                         (unsigned long long)tries[t], (unsigned long long)old);
            }
            status == PKV_OK ? opened++ : refused++;
        }
    }
    assert_true(refused > 1000 && opened < refused / 10);
    free(file);
    pkvt_gguf_free(made);
}

/* Every byte of the tables flipped: never a crash, refusals name the file. */
static void test_gguf__any_byte_flipped__no_crash(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    for (size_t at = 0; at < made->tables_bytes; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            made->file[at] ^= (uint8_t)(1u << bit);
            (void)try_bytes(made->file, made->file_bytes, "flip");
            made->file[at] ^= (uint8_t)(1u << bit);
        }
    }
    pkvt_gguf_free(made);
}

/* Writes a number into the file's i-th field of a kind and wants it refused with these words. */
static void refuse_number(const char *kind, unsigned index, uint64_t value, enum pkv_status status,
                          const char *words)
{
    struct pkvt_gguf *made = make_file();
    for (size_t i = 0; i < made->field_count; i++) {
        if (is_kind(&made->field[i], kind) && index-- == 0) {
            memcpy(made->file + made->field[i].at, &value, made->field[i].bytes);
            break;
        }
    }
    refuse_bytes(made->file, made->file_bytes, status, words);
    pkvt_gguf_free(made);
}

static void test_gguf__wrong_numbers__named_with_found_and_expected(void **state)
{
    (void)state;
    refuse_number("magic", 0, 0x6c6d6767, PKV_ERR_CORRUPT, "not a GGUF file");
    refuse_number("version", 0, 1, PKV_ERR_UNSUPPORTED, "version is 1, supported are 2 and 3");
    refuse_number("version", 0, 0x03000000, PKV_ERR_UNSUPPORTED, "big-endian");
    refuse_number("tensor count", 0, 1ull << 60, PKV_ERR_CORRUPT, "1152921504606846976 tensors");
    refuse_number("key count", 0, UINT64_MAX, PKV_ERR_CORRUPT, "18446744073709551615 keys");
    refuse_number("name length", 3, 0, PKV_ERR_CORRUPT, "key 4 of 17");
    refuse_number("string length", 0, UINT64_MAX - 15, PKV_ERR_CORRUPT, "general.architecture");
    refuse_number("array count", 0, UINT64_MAX / 8, PKV_ERR_CORRUPT, "t.words");
    refuse_number("value type", 1, 13, PKV_ERR_CORRUPT, "'t.u32' has value type 13");
    refuse_number("element type", 0, 9, PKV_ERR_UNSUPPORTED, "'t.words' is an array of arrays");
    refuse_number("bool", 0, 2, PKV_ERR_CORRUPT, "'t.bool' holds 2");
    refuse_number("dim count", 0, 5, PKV_ERR_CORRUPT, "'a.weight' has 5 dimensions");
    refuse_number("dim", 1, 1ull << 59, PKV_ERR_CORRUPT, "'a.weight'");
    refuse_number("dim", 0, 48, PKV_ERR_CORRUPT, "multiple of 32 for Q8_0");
    refuse_number("dim", 1, 0, PKV_ERR_CORRUPT, "'a.weight' is 0");
    refuse_number("offset", 1, UINT64_MAX - 31, PKV_ERR_CORRUPT,
                  "'b.weight' needs 60 bytes at offset 18446744073709551584 of the data, 0 bytes");
    refuse_number("offset", 1, 129, PKV_ERR_CORRUPT, "offset 129, expected a multiple of 32");
    refuse_number("offset", 2, 128, PKV_ERR_CORRUPT, "'b.weight'");
}

static void test_gguf__version_2__opens(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    made->version = 2;
    pkvt_gguf_write(made);
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    assert_int_equal(pkvi_gguf_version(gguf), 2);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__alignment_key__used_and_checked(void **state)
{
    (void)state;
    static const uint32_t good[] = {8, 16, 64, 4096}, bad[] = {0, 1, 4, 24, 0x80000001u};
    struct pkvt_gguf *made = make_file();
    for (size_t i = 0; i < 4; i++) {
        made->alignment = good[i];
        pkvt_gguf_set_u32(made, "general.alignment", good[i]);
        pkvt_gguf_write(made);
        struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
        uint8_t read[60];
        assert_ok(pkvi_gguf_read(gguf, pkvi_gguf_find_tensor(gguf, "b.weight"), 0, 60, read));
        assert_memory_equal(read, made->tensor[1].data, 60);
        pkvi_gguf_close(gguf);
    }
    made->alignment = 32;
    for (size_t i = 0; i < 5; i++) {
        pkvt_gguf_set_u32(made, "general.alignment", bad[i]);
        pkvt_gguf_write(made);
        refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "general.alignment");
    }
    pkvt_gguf_set_u32(made, "general.alignment", 0x80000000u);
    pkvt_gguf_write(made);
    refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "");
    pkvt_gguf_set_str(made, "general.alignment", "32");
    pkvt_gguf_write(made);
    refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "expected u32");
    pkvt_gguf_free(made);
}

static void test_gguf__names__unique_and_utf8(void **state)
{
    (void)state;
    struct pkvt_gguf *made = make_file();
    strcpy(made->tensor[2].name, "a.weight");
    pkvt_gguf_write(made);
    refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "two tensors are named 'a.weight'");
    strcpy(made->tensor[2].name, "c.\xc0\xafight");
    pkvt_gguf_write(made);
    refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "not valid UTF-8 at byte 2");
    strcpy(made->tensor[2].name, "c.weight");
    strcpy(made->key[2].name, "t.u32");
    pkvt_gguf_write(made);
    refuse_bytes(made->file, made->file_bytes, PKV_ERR_CORRUPT, "two keys are named 't.u32'");
    pkvt_gguf_free(made);
}

static void test_gguf__no_tensors__opens(void **state)
{
    (void)state;
    struct pkvt_gguf *made = pkvt_gguf_new();
    pkvt_gguf_write(made);
    struct pkvi_gguf *gguf = open_bytes(made->file, made->file_bytes);
    assert_int_equal(pkvi_gguf_tensor_count(gguf), 0);
    assert_int_equal(pkvi_gguf_key_count(gguf), 0);
    pkvi_gguf_close(gguf);
    pkvt_gguf_free(made);
}

static void test_gguf__not_a_file__io_error(void **state)
{
    (void)state;
    struct pkvi_gguf *gguf = NULL;
    char path[] = "/tmp/pkv_gguf_XXXXXX", fifo[64];
    assert_non_null(mkdtemp(path));
    snprintf(fifo, sizeof fifo, "%s/fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_status(pkvi_gguf_open(path, &gguf), PKV_ERR_IO);
    assert_non_null(strstr(pkv_error_text(), "is a folder"));
    assert_status(pkvi_gguf_open(fifo, &gguf), PKV_ERR_IO);
    assert_status(pkvi_gguf_open("/dev/null", &gguf), PKV_ERR_IO);
    assert_status(pkvi_gguf_open("", &gguf), PKV_ERR_IO);
    unlink(fifo);
    assert_status(pkvi_gguf_open(fifo, &gguf), PKV_ERR_IO);
    assert_non_null(strstr(pkv_error_text(), "No such file"));
    rmdir(path);
    assert_null(gguf);
    refuse_bytes("", 0, PKV_ERR_CORRUPT, "0 bytes");
}

/* A long path must not push the reason out of the message. */
static void test_gguf__long_path__reason_still_told(void **state)
{
    (void)state;
    struct pkvi_gguf *gguf = NULL;
    char path[3000];
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 9, "end.gguf", 9);
    assert_status(pkvi_gguf_open(path, &gguf), PKV_ERR_IO);
    assert_non_null(strstr(pkv_error_text(), "end.gguf: cannot open: File name too long"));
}

static void test_gguf__malformed_files__refused_in_small_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"truncated_header",  "truncated_data", "offset_beyond_file",
                                        "huge_tensor_count", "huge_string",    "dims_overflow",
                                        "duplicate_tensor",  "version_99"};
    static const char *const words[] = {
        "truncated",    "tensor '",          "blk.0.attn_q.weight", "1152921504606846976 tensors",
        "general.name", "token_embd.weight", "blk.0.attn_k.weight", "version is 99"};
    struct rlimit old, small;
    getrlimit(RLIMIT_DATA, &old);
    small = old;
    small.rlim_cur = SANITIZED ? old.rlim_cur : 100u << 20;
    setrlimit(RLIMIT_DATA, &small);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char relative[128];
        snprintf(relative, sizeof relative, "golden/malformed/%s.gguf", names[i]);
        struct pkvi_gguf *gguf = NULL;
        const char *path = pkvt_path(relative);
        enum pkv_status status = pkvi_gguf_open(path, &gguf);
        check_message(names[i], names[i], status);
        if (!strstr(pkv_error_text(), words[i])) {
            fail_msg("%s: '%s' does not say '%s'", names[i], pkv_error_text(), words[i]);
        }
    }
    struct pkvi_gguf *gguf = NULL;
    assert_ok(pkvi_gguf_open(pkvt_path("golden/malformed/ok.gguf"), &gguf));
    pkvi_gguf_close(gguf);
    setrlimit(RLIMIT_DATA, &old);
}

/* ---- shards ---- */

struct shards {
    char folder[64];
    char path[3][128];
    struct pkvt_gguf *made[3];
};

static void set_u16(struct pkvt_gguf *gguf, const char *name, uint16_t value)
{
    pkvt_gguf_set(gguf, name, 2, false, 1, &value, 2);
}

static void write_shard(const struct shards *shards, int i)
{
    pkvt_gguf_write(shards->made[i]);
    FILE *file = fopen(shards->path[i], "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(shards->made[i]->file, 1, shards->made[i]->file_bytes, file),
                     shards->made[i]->file_bytes);
    fclose(file);
}

static void make_shards(struct shards *shards)
{
    strcpy(shards->folder, "/tmp/pkv_shards_XXXXXX");
    assert_non_null(mkdtemp(shards->folder));
    for (int i = 0; i < 3; i++) {
        char name[32];
        struct pkvt_gguf *made = shards->made[i] = pkvt_gguf_new();
        snprintf(shards->path[i], sizeof shards->path[i], "%s/m-%05d-of-00003.gguf", shards->folder,
                 i + 1);
        set_u16(made, "split.no", (uint16_t)i);
        set_u16(made, "split.count", 3);
        pkvt_gguf_set_u32(made, "split.tensors.count", 3);
        snprintf(name, sizeof name, "t%d.weight", i);
        pkvt_gguf_add_tensor(made, name, 0, 16, 1, (uint64_t[]){4})->data[0] = (uint8_t)(i + 1);
        write_shard(shards, i);
    }
}

static void free_shards(struct shards *shards)
{
    for (int i = 0; i < 3; i++) {
        unlink(shards->path[i]);
        pkvt_gguf_free(shards->made[i]);
    }
    rmdir(shards->folder);
}

static void refuse_shards(const struct shards *shards, int named, enum pkv_status expected,
                          const char *words)
{
    struct pkvi_gguf *gguf = NULL;
    enum pkv_status status = pkvi_gguf_open(shards->path[named], &gguf);
    if (status != expected || !strstr(pkv_error_text(), words)) {
        fail_msg("want %s with '%s', got %s: %s", pkv_status_name(expected), words,
                 pkv_status_name(status), pkv_error_text());
    }
    assert_null(gguf);
}

static void test_gguf_shards__any_named__all_opened(void **state)
{
    (void)state;
    struct shards shards;
    make_shards(&shards);
    for (int i = 0; i < 3; i++) {
        struct pkvi_gguf *gguf = NULL;
        assert_ok(pkvi_gguf_open(shards.path[i], &gguf));
        assert_int_equal(pkvi_gguf_shard_count(gguf), 3);
        assert_int_equal(pkvi_gguf_tensor_count(gguf), 3);
        const struct pkvi_gguf_tensor *t = pkvi_gguf_find_tensor(gguf, "t2.weight");
        uint8_t first = 0;
        assert_true(t && t->shard == 2);
        assert_ok(pkvi_gguf_read(gguf, t, 0, 1, &first));
        assert_int_equal(first, 3);
        assert_string_equal(pkvi_gguf_path(gguf), shards.path[0]);
        pkvi_gguf_close(gguf);
    }
    free_shards(&shards);
}

static void test_gguf_shards__missing_or_foreign__refused(void **state)
{
    (void)state;
    struct shards shards;
    make_shards(&shards);
    set_u16(shards.made[1], "split.no", 2);
    write_shard(&shards, 1);
    refuse_shards(&shards, 0, PKV_ERR_CORRUPT, "00002-of-00003.gguf: key 'split.no' is 2");
    set_u16(shards.made[1], "split.no", 1);
    set_u16(shards.made[1], "split.count", 4);
    write_shard(&shards, 1);
    refuse_shards(&shards, 2, PKV_ERR_CORRUPT, "key 'split.count' is 4, expected 3");
    set_u16(shards.made[1], "split.count", 3);
    pkvt_gguf_set_u32(shards.made[1], "split.tensors.count", 9);
    write_shard(&shards, 1);
    refuse_shards(&shards, 0, PKV_ERR_CORRUPT, "key 'split.tensors.count' is 9, expected 3");
    pkvt_gguf_drop_key(shards.made[1], "split.tensors.count");
    write_shard(&shards, 1);
    refuse_shards(&shards, 0, PKV_ERR_CORRUPT, "key 'split.tensors.count' is missing");
    pkvt_gguf_set_u32(shards.made[1], "split.tensors.count", 3);
    strcpy(shards.made[1]->tensor[0].name, "t0.weight");
    write_shard(&shards, 1);
    refuse_shards(&shards, 0, PKV_ERR_CORRUPT, "two tensors are named 't0.weight'");
    strcpy(shards.made[1]->tensor[0].name, "t1.weight");
    pkvt_gguf_add_tensor(shards.made[1], "extra", 0, 16, 1, (uint64_t[]){4});
    write_shard(&shards, 1);
    refuse_shards(&shards, 0, PKV_ERR_CORRUPT, "'split.tensors.count' is 3, expected 4");
    unlink(shards.path[1]);
    refuse_shards(&shards, 2, PKV_ERR_IO, "00002-of-00003.gguf: cannot open");
    free_shards(&shards);
}

static void test_gguf_shards__wrong_names__refused(void **state)
{
    (void)state;
    struct pkvi_gguf *gguf = NULL;
    struct shards shards;
    make_shards(&shards);
    assert_status(pkvi_gguf_open("x-00004-of-00003.gguf", &gguf), PKV_ERR_INVALID);
    assert_status(pkvi_gguf_open("x-00000-of-00003.gguf", &gguf), PKV_ERR_INVALID);
    assert_status(pkvi_gguf_open("x-00001-of-00000.gguf", &gguf), PKV_ERR_INVALID);
    char renamed[128];
    snprintf(renamed, sizeof renamed, "%s/whole.gguf", shards.folder);
    assert_int_equal(rename(shards.path[0], renamed), 0);
    assert_status(pkvi_gguf_open(renamed, &gguf), PKV_ERR_CORRUPT);
    assert_non_null(strstr(pkv_error_text(), "split.count"));
    assert_int_equal(rename(renamed, shards.path[0]), 0);
    free_shards(&shards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf__every_value_type__read),
        cmocka_unit_test(test_gguf__wrong_or_missing_value__refused_by_name),
        cmocka_unit_test(test_gguf__arrays__elements_read),
        cmocka_unit_test(test_gguf__file_shrinks_after_open__error_not_signal),
        cmocka_unit_test(test_gguf__tensors__found_with_their_bytes),
        cmocka_unit_test(test_gguf__block_sizes__those_of_the_kernels),
        cmocka_unit_test(test_gguf__unsupported_and_unknown_formats__open),
        cmocka_unit_test(test_gguf__cut_anywhere__refused),
        cmocka_unit_test(test_gguf__any_number_changed__refused_or_consistent),
        cmocka_unit_test(test_gguf__any_byte_flipped__no_crash),
        cmocka_unit_test(test_gguf__wrong_numbers__named_with_found_and_expected),
        cmocka_unit_test(test_gguf__version_2__opens),
        cmocka_unit_test(test_gguf__alignment_key__used_and_checked),
        cmocka_unit_test(test_gguf__names__unique_and_utf8),
        cmocka_unit_test(test_gguf__no_tensors__opens),
        cmocka_unit_test(test_gguf__not_a_file__io_error),
        cmocka_unit_test(test_gguf__long_path__reason_still_told),
        cmocka_unit_test(test_gguf__malformed_files__refused_in_small_memory),
        cmocka_unit_test(test_gguf_shards__any_named__all_opened),
        cmocka_unit_test(test_gguf_shards__missing_or_foreign__refused),
        cmocka_unit_test(test_gguf_shards__wrong_names__refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
