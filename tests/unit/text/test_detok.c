/* Streaming text out: bytes as soon as they are whole characters, nothing lost or doubled. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "pivotkv/text.h"
#include "tests/support/vocab_builder.h"

#define SPM_BYTE(b) (3 + (unsigned char)(b))
enum { SPM_SPACE = 259, SPM_A = 260, SPM_SPACE_A = 264, SPM_SPACE_SPACE = 269 };

struct stream {
    struct pkv_detok detok;
    char text[256];
    size_t bytes;
};

static void push(struct stream *stream, int32_t id)
{
    stream->bytes += pkv_detok_push(&stream->detok, id, stream->text + stream->bytes,
                                    sizeof stream->text - stream->bytes);
}

static void expect(struct stream *stream, const char *text)
{
    stream->text[stream->bytes] = '\0';
    assert_string_equal(stream->text, text);
}

static void finish(struct stream *stream)
{
    stream->bytes += pkv_detok_finish(&stream->detok, stream->text + stream->bytes,
                                      sizeof stream->text - stream->bytes);
}

static void test_detok__character_cut_into_bytes__whole(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_spm());
    struct stream stream = {.bytes = 0};
    pkv_detok_init(&stream.detok, tokenizer, false);
    const char *text = "\xf0\x9f\x99\x82\xe4\xb8\xad\xc3\xa9";
    static const char *const after[] = {"",
                                        "",
                                        "",
                                        "\xf0\x9f\x99\x82",
                                        "\xf0\x9f\x99\x82",
                                        "\xf0\x9f\x99\x82",
                                        "\xf0\x9f\x99\x82\xe4\xb8\xad",
                                        "\xf0\x9f\x99\x82\xe4\xb8\xad",
                                        "\xf0\x9f\x99\x82\xe4\xb8\xad\xc3\xa9"};
    for (size_t i = 0; i < strlen(text); i++) {
        push(&stream, SPM_BYTE(text[i]));
        expect(&stream, after[i]);
    }
    finish(&stream);
    expect(&stream, text);
    pkv_tokenizer_close(tokenizer);
}

/* The Unicode standard's example of maximal parts (chapter 3, "U+FFFD substitution"). */
static void test_detok__never_a_character__one_mark_a_maximal_part(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_spm());
    struct stream stream = {.bytes = 0};
    const char *bytes = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
    pkv_detok_init(&stream.detok, tokenizer, false);
    for (size_t i = 0; i < strlen(bytes); i++) {
        push(&stream, SPM_BYTE(bytes[i]));
    }
#define MARK "\xef\xbf\xbd"
    expect(&stream, "a" MARK MARK MARK "b" MARK "c" MARK MARK "d");
    push(&stream, SPM_BYTE(0xf0));
    push(&stream, SPM_BYTE(0x9f));
    finish(&stream);
    expect(&stream, "a" MARK MARK MARK "b" MARK "c" MARK MARK "d" MARK);
    finish(&stream);
    expect(&stream, "a" MARK MARK MARK "b" MARK "c" MARK MARK "d" MARK);
    pkv_tokenizer_close(tokenizer);
}

static void test_detok__spm_first_word__loses_one_space(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_spm());
    struct stream stream = {.bytes = 0};
    pkv_detok_init(&stream.detok, tokenizer, false);
    push(&stream, 1); // <s> says nothing and is not the first word
    push(&stream, SPM_SPACE_A);
    push(&stream, SPM_SPACE_A);
    expect(&stream, "a a");
    stream.bytes = 0;
    pkv_detok_init(&stream.detok, tokenizer, false);
    push(&stream, SPM_SPACE_SPACE);
    push(&stream, SPM_A);
    expect(&stream, " a");
    stream.bytes = 0;
    pkv_detok_init(&stream.detok, tokenizer, false);
    push(&stream, SPM_A);
    push(&stream, SPM_SPACE);
    push(&stream, SPM_A);
    expect(&stream, "a a");
    pkv_tokenizer_close(tokenizer);
}

static void test_detok__no_space_prefix_or_bpe__space_stays(void **state)
{
    (void)state;
    struct pkvt_gguf *gguf = pkvt_small_spm();
    pkvt_gguf_set_bool(gguf, "tokenizer.ggml.add_space_prefix", false);
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    struct stream stream = {.bytes = 0};
    pkv_detok_init(&stream.detok, tokenizer, false);
    push(&stream, SPM_SPACE_A);
    expect(&stream, " a");
    pkv_tokenizer_close(tokenizer);
    tokenizer = pkvt_open_tokenizer(pkvt_small_bpe());
    stream.bytes = 0;
    pkv_detok_init(&stream.detok, tokenizer, false);
    push(&stream, 260);
    expect(&stream, " w");
    pkv_tokenizer_close(tokenizer);
}

static void test_detok__control_tokens__only_if_special(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_bpe());
    for (int special = 0; special < 2; special++) {
        struct stream stream = {.bytes = 0};
        pkv_detok_init(&stream.detok, tokenizer, special);
        push(&stream, 261);
        push(&stream, 259);
        push(&stream, 263);
        push(&stream, 262);
        push(&stream, -1);
        push(&stream, 264);
        push(&stream, INT32_MAX);
        expect(&stream, special ? "<|im_start|>hello<tool><|im_end|>" : "hello<tool>");
    }
    pkv_tokenizer_close(tokenizer);
}

static void test_token_bytes__bytes_and_unknown_ids__raw(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_spm());
    const char *data;
    size_t bytes;
    pkv_token_bytes(tokenizer, SPM_BYTE(0x00), false, &data, &bytes);
    assert_int_equal(bytes, 1);
    assert_int_equal(data[0], 0);
    pkv_token_bytes(tokenizer, SPM_BYTE(0xf0), false, &data, &bytes);
    assert_int_equal(bytes, 1);
    assert_int_equal((unsigned char)data[0], 0xf0);
    pkv_token_bytes(tokenizer, 100000, true, &data, &bytes);
    assert_int_equal(bytes, 0);
    assert_true(pkv_detok_most_bytes(tokenizer) >= 3 * strlen("<end_of_turn>") + 16);
    pkv_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detok__character_cut_into_bytes__whole),
        cmocka_unit_test(test_detok__never_a_character__one_mark_a_maximal_part),
        cmocka_unit_test(test_detok__spm_first_word__loses_one_space),
        cmocka_unit_test(test_detok__no_space_prefix_or_bpe__space_stays),
        cmocka_unit_test(test_detok__control_tokens__only_if_special),
        cmocka_unit_test(test_token_bytes__bytes_and_unknown_ids__raw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
