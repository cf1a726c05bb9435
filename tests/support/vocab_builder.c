/* vocab_builder.c: small vocabularies for tests of the tokenizer. */
#include "tests/support/vocab_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/text.h"
#include "tests/support/pkv_test.h"

enum { TYPE_I32 = 5, TYPE_F32 = 6 };

void pkvt_vocab_add(struct pkvt_vocab *vocab, const char *text, int32_t kind, float score)
{
    vocab->text[vocab->count] = strdup(text);
    vocab->kind[vocab->count] = kind;
    vocab->score[vocab->count++] = score;
}

void pkvt_vocab_fini(struct pkvt_vocab *vocab)
{
    for (uint32_t i = 0; i < vocab->count; i++) {
        free(vocab->text[i]);
    }
    vocab->count = 0;
}

struct pkvt_gguf *pkvt_vocab_gguf(const struct pkvt_vocab *vocab, const char *model)
{
    struct pkvt_gguf *gguf = pkvt_gguf_new();
    pkvt_gguf_set_str(gguf, "general.architecture", "llama");
    pkvt_gguf_set_str(gguf, "tokenizer.ggml.model", model);
    pkvt_gguf_set_strs(gguf, "tokenizer.ggml.tokens", (const char *const *)vocab->text,
                       vocab->count);
    pkvt_gguf_set(gguf, "tokenizer.ggml.token_type", TYPE_I32, true, vocab->count, vocab->kind,
                  vocab->count * sizeof vocab->kind[0]);
    pkvt_gguf_set(gguf, "tokenizer.ggml.scores", TYPE_F32, true, vocab->count, vocab->score,
                  vocab->count * sizeof vocab->score[0]);
    return gguf;
}

/* GPT-2's printable character for a byte, in UTF-8. */
static void letter(unsigned byte, char text[3])
{
    unsigned code = byte, others = 0;
    for (unsigned b = 0; b <= byte; b++) {
        int prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (!prints && b == byte) {
            code = 256 + others;
        }
        others += !prints;
    }
    memset(text, 0, 3);
    text[0] = (char)(code < 128 ? code : 0xc0 | code >> 6);
    if (code >= 128) {
        text[1] = (char)(0x80 | (code & 63));
    }
}

struct pkvt_gguf *pkvt_small_bpe(void)
{
    static const char *const words[] = {"he", "ll", "hell", "hello", "\xc4\xa0w"};
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xc4\xa0 w"};
    struct pkvt_vocab *vocab = calloc(1, sizeof *vocab);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[3];
        letter(byte, text);
        pkvt_vocab_add(vocab, text, 1, 0);
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        pkvt_vocab_add(vocab, words[i], 1, 0);
    }
    pkvt_vocab_add(vocab, "<|im_start|>", 3, 0);
    pkvt_vocab_add(vocab, "<|im_end|>", 3, 0);
    pkvt_vocab_add(vocab, "<tool>", 4, 0);
    struct pkvt_gguf *gguf = pkvt_vocab_gguf(vocab, "gpt2");
    pkvt_gguf_drop_key(gguf, "tokenizer.ggml.scores");
    pkvt_gguf_set_str(gguf, "tokenizer.ggml.pre", "smollm");
    pkvt_gguf_set_strs(gguf, "tokenizer.ggml.merges", merges, sizeof merges / sizeof merges[0]);
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.bos_token_id", 261);
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.eos_token_id", 262);
    pkvt_vocab_fini(vocab);
    free(vocab);
    return gguf;
}

#define SP "\xe2\x96\x81"

struct pkvt_gguf *pkvt_small_spm(void)
{
    static const char *const words[] = {SP,   "a",  "b",     "c",   "\xc3\xa9", SP "a",
                                        "ab", "bc", SP "ab", "abc", SP SP};
    static const float scores[] = {-20, -21, -22, -23, -24, -3, -2, -2, -4, -5, -6};
    struct pkvt_vocab *vocab = calloc(1, sizeof *vocab);
    pkvt_vocab_add(vocab, "<unk>", 2, 0);
    pkvt_vocab_add(vocab, "<s>", 3, 0);
    pkvt_vocab_add(vocab, "</s>", 3, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[7];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        pkvt_vocab_add(vocab, text, 6, 0);
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        pkvt_vocab_add(vocab, words[i], 1, scores[i]);
    }
    pkvt_vocab_add(vocab, "<end_of_turn>", 3, 0);
    pkvt_vocab_add(vocab, "<tool>", 4, 0);
    struct pkvt_gguf *gguf = pkvt_vocab_gguf(vocab, "llama");
    pkvt_vocab_fini(vocab);
    free(vocab);
    return gguf;
}

struct pkv_tokenizer *pkvt_open_tokenizer(struct pkvt_gguf *gguf)
{
    struct pkv_tokenizer *tokenizer;
    pkvt_gguf_write(gguf);
    assert_ok(pkv_tokenizer_open(pkvt_memory_file(gguf->file, gguf->file_bytes), &tokenizer));
    pkvt_gguf_free(gguf);
    return tokenizer;
}

int pkvt_try_tokenizer(struct pkvt_gguf *gguf)
{
    struct pkv_tokenizer *tokenizer = NULL;
    pkvt_gguf_write(gguf);
    int status = pkv_tokenizer_open(pkvt_memory_file(gguf->file, gguf->file_bytes), &tokenizer);
    if (status == PKV_OK) {
        pkv_tokenizer_close(tokenizer);
    }
    pkvt_gguf_free(gguf);
    return status;
}
