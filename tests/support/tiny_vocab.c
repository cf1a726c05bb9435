/* tiny_vocab.c: see tiny_vocab.h. */
#include "tests/support/tiny_vocab.h"

#include <stdbool.h>
#include <stdlib.h>

#include "tests/support/gguf_builder.h"
#include "tests/support/pkv_test.h"

/* GPT-2's letter for a byte, as UTF-8. */
static void byte_letter(unsigned byte, char out[3])
{
    unsigned code = byte, next = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool plain = (b > 32 && b < 127) || (b > 160 && b < 173) || b > 173;
        code = plain ? b : next++;
    }
    if (code < 128) {
        out[0] = (char)code;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        out[2] = '\0';
    }
}

struct pkv_tokenizer *pkvt_tiny_vocab(const char *template, const char *name,
                                      const char *const *markers, int32_t type)
{
    char letters[256][3];
    const char *tokens[300], *merges[] = {"h i"};
    int32_t types[300];
    size_t count = 0;
    for (; count < 256; count++) {
        byte_letter((unsigned)count, letters[count]);
        tokens[count] = letters[count];
        types[count] = PKVT_NORMAL;
    }
    tokens[count] = "<s>";
    types[count++] = PKVT_CONTROL;
    tokens[count] = "</s>";
    types[count++] = PKVT_CONTROL;
    tokens[count] = "hi";
    types[count++] = PKVT_NORMAL;
    for (size_t i = 0; markers[i]; i++) {
        tokens[count] = markers[i];
        types[count++] = type;
    }
    struct pkvt_gguf *gguf = pkvt_gguf_new();
    pkvt_gguf_set_str(gguf, "general.architecture", "llama");
    pkvt_gguf_set_str(gguf, "general.name", name);
    pkvt_gguf_set_str(gguf, "tokenizer.ggml.model", "gpt2");
    pkvt_gguf_set_str(gguf, "tokenizer.ggml.pre", "gpt-2");
    pkvt_gguf_set_strs(gguf, "tokenizer.ggml.tokens", tokens, count);
    pkvt_gguf_set(gguf, "tokenizer.ggml.token_type", 5, true, count, types, count * sizeof *types);
    pkvt_gguf_set_strs(gguf, "tokenizer.ggml.merges", merges, 1);
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.bos_token_id", PKVT_TINY_BOS);
    pkvt_gguf_set_u32(gguf, "tokenizer.ggml.eos_token_id", PKVT_TINY_EOS);
    if (template) {
        char *text = pkvt_read_file(pkvt_path(template), NULL);
        pkvt_gguf_set_str(gguf, "tokenizer.chat_template", text);
        free(text);
    }
    pkvt_gguf_write(gguf);
    struct pkv_tokenizer *tokenizer;
    assert_ok(pkv_tokenizer_open(pkvt_memory_file(gguf->file, gguf->file_bytes), &tokenizer));
    pkvt_gguf_free(gguf);
    return tokenizer;
}
