/* The tokenizer of a file: what it says, what it refuses, what becomes of markers and odd bytes. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "pivotkv/text.h"
#include "runtime/text/text.h"
#include "tests/support/vocab_builder.h"

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_STRING = 8 };
enum { HELLO = 259, SPACE_W = 260, IM_START = 261, IM_END = 262, TOOL = 263 };

static void expect_ids(const struct pkv_tokenizer *tokenizer, const char *text, size_t bytes,
                       uint32_t flags, const int32_t *want, size_t count)
{
    struct pkv_ids ids = {0};
    assert_ok(pkv_encode(tokenizer, text, bytes, flags, &ids));
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ids.id[i], want[i]);
    }
    pkv_ids_free(&ids);
}

#define EXPECT(tokenizer, text, flags, ...)                                                        \
    expect_ids((tokenizer), (text), sizeof(text) - 1, (flags), (const int32_t[]){__VA_ARGS__},     \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_query__small_bpe__what_the_file_says(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_bpe());
    struct pkv_tokenizer_info info;
    pkv_tokenizer_query(tokenizer, &info);
    assert_int_equal(info.vocab, 264);
    assert_true(info.has_text);
    assert_false(info.add_bos);
    assert_int_equal(info.bos, IM_START);
    assert_int_equal(info.eos, IM_END);
    assert_int_equal(info.eot, IM_END);
    assert_int_equal(info.unk, -1);
    assert_int_equal(info.pad, -1);
    assert_string_equal(info.model, "gpt2");
    assert_string_equal(info.pre, "smollm");
    assert_null(info.chat_family);
    assert_non_null(info.chat_problem);
    assert_true(pkv_token_is_control(tokenizer, IM_END));
    assert_true(pkv_token_is_end(tokenizer, IM_END));
    assert_false(pkv_token_is_end(tokenizer, IM_START));
    assert_false(pkv_token_is_control(tokenizer, TOOL));
    assert_false(pkv_token_is_end(tokenizer, -1));
    assert_false(pkv_token_is_control(tokenizer, 264));
    assert_int_equal(pkvi_tokenizer_find(tokenizer, "<|im_end|>", 10), IM_END);
    assert_int_equal(pkvi_tokenizer_find(tokenizer, "<|im_end|", 9), -1);
    pkv_tokenizer_close(tokenizer);
}

/* The template ends turns with another token than the file's eos and eot. */
static void test_query__template__its_end_of_turn_is_an_end(void **state)
{
    (void)state;
    struct pkvt_gguf *gguf = pkvt_small_bpe();
    struct pkv_tokenizer_info info;
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.eos_token_id", 256);
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.eot_token_id", 257);
    pkvt_gguf_set_str(gguf, "tokenizer.chat_template",
                      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    pkv_tokenizer_query(tokenizer, &info);
    assert_string_equal(info.chat_family, "chatml");
    assert_null(info.chat_problem);
    assert_int_equal(info.eot, IM_END);
    assert_true(pkv_token_is_end(tokenizer, IM_END));
    assert_true(pkv_token_is_end(tokenizer, 256));
    assert_true(pkv_token_is_end(tokenizer, 257));
    pkv_tokenizer_close(tokenizer);
}

static void test_query__spm_without_keys__llama_defaults(void **state)
{
    (void)state;
    struct pkvt_gguf *gguf = pkvt_small_spm();
    struct pkv_tokenizer_info info;
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    pkv_tokenizer_query(tokenizer, &info);
    assert_true(info.add_bos);
    assert_int_equal(info.unk, 0);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_int_equal(info.pad, -1);
    assert_string_equal(info.pre, "");
    assert_true(pkv_token_is_end(tokenizer, 2));
    assert_true(pkv_token_is_end(tokenizer, info.eot)); // <end_of_turn>
    assert_int_not_equal(info.eot, 2);
    pkv_tokenizer_close(tokenizer);
}

static void test_encode__bpe__merges_markers_and_bytes(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_bpe());
    EXPECT(tokenizer, "hello w", 0, HELLO, SPACE_W);
    EXPECT(tokenizer, "hellhel", 0, 258, 256, 'l');
    EXPECT(tokenizer, "<|im_end|>", PKV_ENCODE_SPECIAL, IM_END);
    EXPECT(tokenizer, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT(tokenizer, "hello<tool> w", 0, HELLO, TOOL, SPACE_W);
    EXPECT(tokenizer, "<|im_start|>he", PKV_ENCODE_SPECIAL | PKV_ENCODE_BOS, IM_START, IM_START,
           256);
    EXPECT(tokenizer, "he\xffhe\xc3(\xed\xa0\x80\0\xf0\x9f", 0, 256, 0xff, 256, 0xc3, '(', 0xed,
           0xa0, 0x80, 0, 0xf0, 0x9f);
    expect_ids(tokenizer, "", 0, PKV_ENCODE_BOS, (const int32_t[]){IM_START}, 1);
    expect_ids(tokenizer, NULL, 0, 0, NULL, 0);
    pkv_tokenizer_close(tokenizer);
}

static void test_encode__spm__space_prefix_scores_and_bytes(void **state)
{
    (void)state;
    enum { SP = 259, A = 260, B, C, E, SP_A, AB, BC, SP_AB, ABC, SP_SP, TURN, SPM_TOOL };
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(pkvt_small_spm());
    EXPECT(tokenizer, "ab", 0, SP_AB);     // ab (-2) first, then with the space
    EXPECT(tokenizer, "abc", 0, SP_AB, C); // SP ab (-4) before abc (-5)
    EXPECT(tokenizer, "cabc", 0, SP, C, ABC);
    EXPECT(tokenizer, "bbc", 0, SP, B, BC);
    EXPECT(tokenizer, " a", 0, SP, SP_A); // SP a (-3) goes before SP SP (-6)
    EXPECT(tokenizer, "a\xc3\xa9z", 0, SP_A, E, 3 + 'z');
    EXPECT(tokenizer, "a<tool>a", 0, SP_A, SPM_TOOL, SP_A);
    EXPECT(tokenizer, "</s>a", PKV_ENCODE_SPECIAL, 2, SP_A);
    EXPECT(tokenizer, "</s>", 0, SP, 3 + '<', 3 + '/', 3 + 's', 3 + '>');
    EXPECT(tokenizer, "<0x41>", 0, SP, 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1', 3 + '>');
    EXPECT(tokenizer, "\xe2\x96\x81\xe2\x96", 0, SP_SP, 3 + 0xe2, 3 + 0x96);
    EXPECT(tokenizer, "a", PKV_ENCODE_BOS, 1, SP_A);
    struct pkv_ids ids = {0};
    assert_ok(pkvi_tokenizer_encode_plain(tokenizer, "a</s>", 5, true, &ids));
    assert_int_equal(ids.id[0], A); // goes on with a text: no space
    assert_int_equal(ids.count, 5);
    pkv_ids_free(&ids);
    pkv_tokenizer_close(tokenizer);
}

/* A merge or a whole word that would be a control token is not taken. */
static void test_encode__text_of_control_token__ordinary(void **state)
{
    (void)state;
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o",
                                         "i m", "s t", "st o",  "sto p"};
    struct pkvt_vocab *vocab = test_calloc(1, sizeof *vocab);
    for (int byte = '!'; byte <= '~'; byte++) {
        pkvt_vocab_add(vocab, (const char[]){(char)byte, 0}, 1, 0);
    }
    static const char *const words[] = {"he", "ll", "hell", "im", "xyz", "st", "sto"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        pkvt_vocab_add(vocab, words[i], 1, 0);
    }
    pkvt_vocab_add(vocab, "hello", 3, 0);
    pkvt_vocab_add(vocab, "stop", 4, 0);
    static const char *const pres[] = {"gpt-2", "llama-bpe"};
    for (size_t i = 0; i < 2; i++) {
        struct pkvt_gguf *gguf = pkvt_vocab_gguf(vocab, "gpt2");
        pkvt_gguf_set_strs(gguf, "tokenizer.ggml.merges", merges, 8);
        pkvt_gguf_set_str(gguf, "tokenizer.ggml.pre", pres[i]);
        pkvt_gguf_set_u32(gguf, "tokenizer.ggml.eos_token_id", 102); // "stop"
        struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
        EXPECT(tokenizer, "hello", 0, 96, 'o' - '!');
        EXPECT(tokenizer, "hello", PKV_ENCODE_SPECIAL, 101);
        EXPECT(tokenizer, "stop", 0, 100, 'p' - '!');
        assert_true(pkv_token_is_control(tokenizer, 102));
        assert_true(pkv_token_is_end(tokenizer, 102));
        if (i == 0) {
            EXPECT(tokenizer, "xyz", 0, 'x' - '!', 'y' - '!', 'z' - '!');
        } else {
            EXPECT(tokenizer, "xyz", 0, 98); // llama-bpe takes whole words first
        }
        EXPECT(tokenizer, "im \x01", 0, 97); // bytes without a token are left out
        pkv_tokenizer_close(tokenizer);
    }
    pkvt_vocab_fini(vocab);
    test_free(vocab);
}

static void test_encode__phi3__white_space_behind_markers_dropped(void **state)
{
    (void)state;
    struct pkvt_gguf *gguf = pkvt_small_bpe();
    pkvt_gguf_set_str(gguf, "general.name", "My Phi-3 mini");
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    EXPECT(tokenizer, "<|im_end|> \n\the<tool>\n", PKV_ENCODE_SPECIAL, IM_END, 256, TOOL);
    assert_true(pkvi_tokenizer_strips_after(tokenizer, IM_END));
    assert_false(pkvi_tokenizer_strips_after(tokenizer, 256));
    pkv_tokenizer_close(tokenizer);
}

static void test_encode__too_long_or_no_bos__ids_as_before(void **state)
{
    (void)state;
    struct pkvt_gguf *gguf = pkvt_small_bpe();
    struct pkv_ids ids = {0};
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    assert_ok(pkv_ids_append(&ids, 7));
    assert_status(pkv_encode(tokenizer, "", ((size_t)1 << 30) + 1, PKV_ENCODE_BOS, &ids),
                  PKV_ERR_RANGE);
    assert_int_equal(ids.count, 1);
    pkv_tokenizer_close(tokenizer);
    gguf = pkvt_small_bpe();
    pkvt_gguf_drop_key(gguf, "tokenizer.ggml.bos_token_id");
    tokenizer = pkvt_open_tokenizer(gguf);
    assert_status(pkv_encode(tokenizer, "he", 2, PKV_ENCODE_BOS, &ids), PKV_ERR_UNSUPPORTED);
    assert_int_equal(ids.count, 1);
    pkv_ids_free(&ids);
    pkv_tokenizer_close(tokenizer);
}

static void test_open__no_vocab__ids_only(void **state)
{
    (void)state;
    struct pkv_tokenizer *tokenizer;
    struct pkv_tokenizer_info info;
    struct pkv_ids ids = {0};
    const char *data;
    size_t bytes;
    assert_ok(pkv_tokenizer_open(pkvt_path("golden/malformed/ok.gguf"), &tokenizer));
    pkv_tokenizer_query(tokenizer, &info);
    assert_false(info.has_text);
    assert_int_equal(info.vocab, 32);
    assert_int_equal(info.eos, -1);
    assert_status(pkv_encode(tokenizer, "a", 1, 0, &ids), PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "no_vocab"));
    pkv_token_bytes(tokenizer, 1, true, &data, &bytes);
    assert_int_equal(bytes, 0);
    assert_false(pkv_token_is_end(tokenizer, 1));
    pkv_tokenizer_close(tokenizer);
    pkv_tokenizer_close(NULL);
}

/* One thing wrong in a small file; the message says where. */
static void refuse(struct pkvt_gguf *gguf, enum pkv_status want, const char *part)
{
    int status = pkvt_try_tokenizer(gguf);
    if (status != want || !strstr(pkv_error_text(), part)) {
        fail_msg("got %s '%s', want %s with '%s'", pkv_status_name(status), pkv_error_text(),
                 pkv_status_name(want), part);
    }
}

static struct pkvt_gguf *with_merge(const char *merge)
{
    const char *const merges[] = {"h e", merge};
    struct pkvt_gguf *gguf = pkvt_small_bpe();
    pkvt_gguf_set_strs(gguf, "tokenizer.ggml.merges", merges, 2);
    return gguf;
}

static struct pkvt_gguf *without(struct pkvt_gguf *gguf, const char *key)
{
    pkvt_gguf_drop_key(gguf, key);
    return gguf;
}

static struct pkvt_gguf *with_id(const char *key, uint32_t id)
{
    struct pkvt_gguf *gguf = pkvt_small_bpe();
    pkvt_gguf_set_u32(gguf, key, id);
    return gguf;
}

static struct pkvt_gguf *with_str(struct pkvt_gguf *gguf, const char *key, const char *value)
{
    pkvt_gguf_set_str(gguf, key, value);
    return gguf;
}

static struct pkvt_gguf *with_array(struct pkvt_gguf *gguf, const char *key, uint32_t type,
                                    uint64_t count)
{
    static const int32_t ones[1024];
    pkvt_gguf_set(gguf, key, type, true, count, ones, count * 4);
    return gguf;
}

static void test_open__broken_keys__refused_naming_them(void **state)
{
    (void)state;
    enum pkv_status corrupt = PKV_ERR_CORRUPT, unsupported = PKV_ERR_UNSUPPORTED;
    static const char tokens[] = "tokenizer.ggml.tokens", types[] = "tokenizer.ggml.token_type";
    static const char merges[] = "tokenizer.ggml.merges", scores[] = "tokenizer.ggml.scores";
    refuse(without(pkvt_small_bpe(), "tokenizer.ggml.model"), corrupt, "tokenizer.ggml.model");
    refuse(with_str(pkvt_small_bpe(), "tokenizer.ggml.model", "t5"), unsupported, "'t5'");
    refuse(with_str(pkvt_small_bpe(), "tokenizer.ggml.pre", "gpt-5"), unsupported, "'gpt-5'");
    refuse(without(pkvt_small_bpe(), tokens), corrupt, tokens);
    refuse(with_str(pkvt_small_bpe(), tokens, "a"), corrupt, tokens);
    refuse(with_array(pkvt_small_bpe(), tokens, TYPE_I32, 264), corrupt, tokens);
    refuse(with_array(pkvt_small_bpe(), tokens, TYPE_STRING, 0), corrupt, "empty");
    refuse(with_array(pkvt_small_bpe(), types, TYPE_I32, 263), corrupt, types);
    refuse(with_array(pkvt_small_bpe(), types, TYPE_F32, 264), corrupt, types);
    refuse(with_array(pkvt_small_spm(), scores, TYPE_F32, 271), corrupt, scores);
    refuse(without(pkvt_small_spm(), scores), corrupt, scores);
    refuse(without(pkvt_small_bpe(), merges), corrupt, merges);
    refuse(with_array(pkvt_small_bpe(), merges, TYPE_I32, 4), corrupt, merges);
    static const char *const bad[] = {"", " ", "he", "he ", " he", "h  e", "h x", "zz y", "h l l"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refuse(with_merge(bad[i]), corrupt, "tokenizer.ggml.merges: entry 1 ");
    }
    static const char *const ids[] = {
        "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.eot_token_id",
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        refuse(with_id(ids[i], 264), corrupt, ids[i]);
        refuse(with_str(pkvt_small_bpe(), ids[i], "1"), corrupt, ids[i]);
    }
    struct pkvt_gguf *gguf = without(pkvt_small_bpe(), "tokenizer.ggml.bos_token_id");
    pkvt_gguf_set_bool(gguf, "tokenizer.ggml.add_bos_token", true);
    refuse(gguf, corrupt, "tokenizer.ggml.add_bos_token");
}

static void test_open__broken_entries__refused_naming_them(void **state)
{
    (void)state;
    struct pkvt_vocab *vocab = test_calloc(1, sizeof *vocab);
    pkvt_vocab_add(vocab, "a", 1, 0);
    pkvt_vocab_add(vocab, "b", 1, 0);
    pkvt_vocab_add(vocab, "", 1, 0);
    pkvt_vocab_add(vocab, "", 1, 0); // empty ones may repeat: nothing ever finds them
    assert_int_equal(pkvt_try_tokenizer(pkvt_vocab_gguf(vocab, "llama")), PKV_OK);
    pkvt_vocab_add(vocab, "a", 1, 0);
    refuse(pkvt_vocab_gguf(vocab, "llama"), PKV_ERR_CORRUPT, "tokens 0 and 4 are both 'a'");
    vocab->text[4][0] = 'c';
    vocab->kind[3] = 7;
    refuse(pkvt_vocab_gguf(vocab, "llama"), PKV_ERR_CORRUPT, "entry 3 is 7");
    vocab->kind[3] = -1;
    refuse(pkvt_vocab_gguf(vocab, "llama"), PKV_ERR_CORRUPT, "entry 3 is -1");
    vocab->kind[3] = 1;
    vocab->kind[1] = 6;
    refuse(pkvt_vocab_gguf(vocab, "llama"), PKV_ERR_CORRUPT, "byte token 1");
    vocab->kind[1] = 1;
    vocab->score[2] = __builtin_nanf("");
    refuse(pkvt_vocab_gguf(vocab, "llama"), PKV_ERR_CORRUPT, "tokenizer.ggml.scores");
    pkvt_vocab_fini(vocab);
    test_free(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query__small_bpe__what_the_file_says),
        cmocka_unit_test(test_query__template__its_end_of_turn_is_an_end),
        cmocka_unit_test(test_query__spm_without_keys__llama_defaults),
        cmocka_unit_test(test_encode__bpe__merges_markers_and_bytes),
        cmocka_unit_test(test_encode__spm__space_prefix_scores_and_bytes),
        cmocka_unit_test(test_encode__text_of_control_token__ordinary),
        cmocka_unit_test(test_encode__phi3__white_space_behind_markers_dropped),
        cmocka_unit_test(test_encode__too_long_or_no_bos__ids_as_before),
        cmocka_unit_test(test_open__no_vocab__ids_only),
        cmocka_unit_test(test_open__broken_keys__refused_naming_them),
        cmocka_unit_test(test_open__broken_entries__refused_naming_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
