/* vocab_builder.h: small vocabularies for tests of the tokenizer. */
#ifndef PKV_TEST_VOCAB_BUILDER_H
#define PKV_TEST_VOCAB_BUILDER_H

#include <stdint.h>

#include "tests/support/gguf_builder.h"

struct pkv_tokenizer;

struct pkvt_vocab {
    char *text[1024];
    int32_t kind[1024]; /* 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
    float score[1024];
    uint32_t count;
};

void pkvt_vocab_add(struct pkvt_vocab *vocab, const char *text, int32_t kind, float score);
void pkvt_vocab_fini(struct pkvt_vocab *vocab);
/* Tokens, kinds and scores of a vocabulary as keys; `model` as in tokenizer.ggml.model. */
struct pkvt_gguf *pkvt_vocab_gguf(const struct pkvt_vocab *vocab, const char *model);

/*
 * Byte-level BPE, pre-tokenizer smollm: ids 0..255 the bytes in order, then "he" "ll" "hell"
 * "hello" and " w" (merges), <|im_start|> and <|im_end|> (control), <tool> (user-defined).
 */
struct pkvt_gguf *pkvt_small_bpe(void);
/*
 * SPM with a space before the text: <unk> <s> </s>, 3..258 the bytes in order, then U+2581, letters
 * a b c and e with acute accent, some words of them, <end_of_turn> (control), <tool>
 * (user-defined).
 */
struct pkvt_gguf *pkvt_small_spm(void);

/* Writes and opens; frees the gguf. Fails the test if it does not open. */
struct pkv_tokenizer *pkvt_open_tokenizer(struct pkvt_gguf *gguf);
/* The same without failing: the status, the tokenizer closed again. */
int pkvt_try_tokenizer(struct pkvt_gguf *gguf);

#endif
