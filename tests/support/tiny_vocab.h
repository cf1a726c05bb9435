/* tiny_vocab.h: a vocabulary made by tests: one token a byte, "hi", and markers. */
#ifndef PKV_TEST_TINY_VOCAB_H
#define PKV_TEST_TINY_VOCAB_H

#include "pivotkv/text.h"

/* Values of tokenizer.ggml.token_type. */
enum { PKVT_NORMAL = 1, PKVT_CONTROL = 3, PKVT_USER = 4 };

#define PKVT_TINY_BOS 256
#define PKVT_TINY_EOS 257
#define PKVT_TINY_MARKER 259 /* id of the first marker; 0 to 255 are the bytes, 258 is "hi" */

/*
 * template: a file in tests/, or NULL. name: general.name. markers: up to 8, NULL behind them, all
 * of one token type. Fails the test if it cannot be opened.
 */
struct pkv_tokenizer *pkvt_tiny_vocab(const char *template, const char *name,
                                      const char *const *markers, int32_t type);

#endif
