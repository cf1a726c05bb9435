/* text.h: token ids and back, chat templates. */
#ifndef PIVOTKV_TEXT_H
#define PIVOTKV_TEXT_H

#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_tokenizer;

/*
 * The tokenizer of a GGUF file, without its weights. PKV_ERR_UNSUPPORTED names a tokenizer model or
 * pre-tokenizer we do not have. A file with `no_vocab` opens; only ids can be used then.
 * Threads: a tokenizer is read-only after open; any number of threads may use it.
 */
PKV_API enum pkv_status pkv_tokenizer_open(const char *path, struct pkv_tokenizer **tokenizer_out);
PKV_API void pkv_tokenizer_close(struct pkv_tokenizer *tokenizer);

struct pkv_tokenizer_info {
    uint32_t vocab;
    bool has_text;                   /* false: no_vocab */
    bool add_bos;                    /* what the file says */
    int32_t bos, eos, eot, unk, pad; /* -1 = none; eot: end of turn of the chat template's family */
    const char *model, *pre;         /* "gpt2" or "llama"; "smollm", ... */
    const char *chat_family;         /* recognised family, NULL if none or unknown */
    const char *chat_problem;        /* why chat_family is NULL, one line */
};
PKV_API void pkv_tokenizer_query(const struct pkv_tokenizer *tokenizer,
                                 struct pkv_tokenizer_info *info_out);

enum pkv_encode_flag {
    PKV_ENCODE_SPECIAL = 1, /* markers in the text become control tokens */
    PKV_ENCODE_BOS = 2,     /* a BOS token first */
};

/* A growing list of ids; init with { 0 }, free with pkv_ids_free(). */
struct pkv_ids {
    int32_t *id;
    size_t count, capacity;
};
PKV_API void pkv_ids_free(struct pkv_ids *ids);
PKV_API enum pkv_status pkv_ids_append(struct pkv_ids *ids, int32_t id);

/*
 * Append the ids of a text (any bytes; invalid UTF-8 is encoded byte by byte) to `ids`. Bytes for
 * which the vocabulary has no token are left out. Tokens that the file marks as user-defined are
 * found in any text; control tokens never come out of it without PKV_ENCODE_SPECIAL.
 * PKV_ERR_NO_MEMORY; PKV_ERR_RANGE: more than 1 GiB; PKV_ERR_UNSUPPORTED: no vocabulary, or no BOS
 * token: `ids` is as before. Cost: linear in bytes (times log of a word's length).
 */
PKV_API enum pkv_status pkv_encode(const struct pkv_tokenizer *tokenizer, const char *text,
                                   size_t bytes, uint32_t flags, struct pkv_ids *ids);

/* The bytes a token adds to a text; "" for control tokens unless `special`. Borrowed from the
 * tokenizer. */
PKV_API void pkv_token_bytes(const struct pkv_tokenizer *tokenizer, int32_t id, bool special,
                             const char **data_out, size_t *bytes_out);
PKV_API bool pkv_token_is_control(const struct pkv_tokenizer *tokenizer, int32_t id);
/* End of text, end of turn: generation stops there. */
PKV_API bool pkv_token_is_end(const struct pkv_tokenizer *tokenizer, int32_t id);

/*
 * Streaming: bytes come out as soon as they are whole UTF-8 characters; at most 3 bytes wait.
 * Bytes that can never become a character come out as U+FFFD, one for each maximal invalid part.
 * Joined output = the whole text, however it is cut. SPM: the space before the first word of a text
 * is dropped where the file adds one; whoever continues a text sets `first` to false.
 */
struct pkv_detok {
    const struct pkv_tokenizer *tokenizer;
    bool special, first;
    unsigned char held[4];
    uint32_t held_bytes;
};
PKV_API void pkv_detok_init(struct pkv_detok *detok, const struct pkv_tokenizer *tokenizer,
                            bool special);
/* Bytes that are now certain; out must hold 3 * token bytes + 16. Returns their number. */
PKV_API size_t pkv_detok_push(struct pkv_detok *detok, int32_t id, char *out, size_t out_bytes);
/* What is still held, as U+FFFD. */
PKV_API size_t pkv_detok_finish(struct pkv_detok *detok, char *out, size_t out_bytes);
/* Most bytes that one push can give, for this tokenizer. */
PKV_API size_t pkv_detok_most_bytes(const struct pkv_tokenizer *tokenizer);

struct pkv_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t content_bytes;
};

/*
 * Append the ids of a conversation in a template family ("chatml", "llama2", "llama3", "gemma",
 * "mistral", "phi3", "zephyr"; NULL = the file's own). Only the template's own markers become
 * control tokens, never those in contents. add_generation: open the assistant's turn at the end. A
 * BOS token is put first where the family's template has one. PKV_ERR_UNSUPPORTED: no family known,
 * naming --chat-template; or a role the template does not have. PKV_ERR_INVALID: no messages, roles
 * in an order that the template forbids, or an unknown family. `ids` is as before then.
 * docs/chat.md has the exact rules.
 */
PKV_API enum pkv_status pkv_chat_encode(const struct pkv_tokenizer *tokenizer, const char *family,
                                        const struct pkv_chat_message *messages, size_t count,
                                        bool add_generation, struct pkv_ids *ids);
/* The same as text, for looking at; *text_out is freed with free(). */
PKV_API enum pkv_status pkv_chat_render(const struct pkv_tokenizer *tokenizer, const char *family,
                                        const struct pkv_chat_message *messages, size_t count,
                                        bool add_generation, char **text_out, size_t *bytes_out);
/* The family's end-of-turn token, -1 if the vocabulary lacks it. NULL = the file's own family. */
PKV_API int32_t pkv_chat_end_of_turn(const struct pkv_tokenizer *tokenizer, const char *family);

#ifdef __cplusplus
}
#endif
#endif
