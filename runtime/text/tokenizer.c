/*
 * tokenizer.c: the tokenizer of a GGUF file: opening, what the file says, and text to ids.
 *
 * Owns: the parts of a tokenizer. Refuses to know: how they cut text.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"

#define MOST_BYTES ((size_t)1 << 30) /* of one text; 3 times as many have 32-bit positions */

void pkv_ids_free(struct pkv_ids *ids)
{
    free(ids->id);
    *ids = (struct pkv_ids){0};
}

enum pkv_status pkv_ids_append(struct pkv_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? ids->capacity * 2 : 64;
        int32_t *grown =
            capacity <= SIZE_MAX / 8 ? realloc(ids->id, capacity * sizeof *grown) : NULL;
        if (!grown) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "a list of %zu token ids", capacity);
        }
        ids->id = grown;
        ids->capacity = capacity;
    }
    ids->id[ids->count++] = id;
    return PKV_OK;
}

/* ---- open ----------------------------------------------------------------------------------- */

/* A string of the file, terminated; NULL if absent. It must not hold a 0 byte if `is_name`. */
static enum pkv_status copy_string(const struct pkvi_gguf *gguf, const char *key, bool is_name,
                                   char **text_out, size_t *bytes_out)
{
    struct pkvi_str value;
    bool found;
    *text_out = NULL;
    PKV_TRY(pkvi_gguf_str(gguf, key, &found, &value));
    if (!found) {
        return PKV_OK;
    }
    if (is_name && (value.bytes > 255 || memchr(value.data, 0, value.bytes))) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s: not a name", pkvi_gguf_path(gguf), key);
    }
    char *text = malloc(value.bytes + 1);
    if (!text) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s: %s: %llu bytes", pkvi_gguf_path(gguf), key,
                        (unsigned long long)value.bytes);
    }
    memcpy(text, value.data, value.bytes);
    text[value.bytes] = '\0';
    *text_out = text;
    if (bytes_out) {
        *bytes_out = value.bytes;
    }
    return PKV_OK;
}

/* An id that the file names; `otherwise` if it does not and that token exists. 2^32 - 1 = none. */
static enum pkv_status read_id(const struct pkvi_gguf *gguf, const char *key, uint32_t count,
                               int32_t otherwise, int32_t *id_out)
{
    uint32_t id;
    bool found;
    PKV_TRY(pkvi_gguf_u32(gguf, key, &found, &id));
    if (!found) {
        *id_out = otherwise >= 0 && (uint32_t)otherwise < count ? otherwise : -1;
    } else if (id == UINT32_MAX) {
        *id_out = -1;
    } else if (id >= count) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s: %u, but there are %u tokens",
                        pkvi_gguf_path(gguf), key, id, count);
    } else {
        *id_out = (int32_t)id;
    }
    return PKV_OK;
}

static enum pkv_status read_ids(const struct pkvi_gguf *gguf, struct pkv_tokenizer *tokenizer,
                                bool is_spm)
{
    uint32_t count = tokenizer->vocab.count;
    PKV_TRY(read_id(gguf, "tokenizer.ggml.bos_token_id", count, is_spm ? 1 : -1, &tokenizer->bos));
    PKV_TRY(read_id(gguf, "tokenizer.ggml.eos_token_id", count, is_spm ? 2 : -1, &tokenizer->eos));
    PKV_TRY(
        read_id(gguf, "tokenizer.ggml.unknown_token_id", count, is_spm ? 0 : -1, &tokenizer->unk));
    PKV_TRY(read_id(gguf, "tokenizer.ggml.padding_token_id", count, -1, &tokenizer->pad));
    return read_id(gguf, "tokenizer.ggml.eot_token_id", count, -1, &tokenizer->eot);
}

/* Generation stops at this token, and text of a user must not make it. */
static void make_end(struct pkv_tokenizer *tokenizer, int32_t id)
{
    if (id >= 0) {
        tokenizer->vocab.is_end[id] = true;
        if (tokenizer->vocab.kind[id] == PKVI_TOKEN_USER) {
            tokenizer->vocab.kind[id] = PKVI_TOKEN_CONTROL;
        }
    }
}

/*
 * What the file names. Where "<s>" is the BOS, "</s>" is an end too (user-defined in Phi-3's files;
 * in Gemma's vocabulary both are HTML). Before merges and markers are made.
 */
static void make_named_ends(struct pkv_tokenizer *tokenizer)
{
    struct pkvi_vocab *vocab = &tokenizer->vocab;
    int32_t bos = tokenizer->bos;
    make_end(tokenizer, tokenizer->eos);
    make_end(tokenizer, tokenizer->eot);
    if (bos >= 0 && pkvi_vocab_find(vocab, "<s>", 3) == bos) {
        make_end(tokenizer, pkvi_vocab_find(vocab, "</s>", 4));
    }
    if (bos >= 0 && vocab->kind[bos] == PKVI_TOKEN_USER) {
        vocab->kind[bos] = PKVI_TOKEN_CONTROL;
    }
}

/* A turn ends with what the chat template says, else the file's EOT, else a token of usual name. */
static void find_end_of_turn(struct pkv_tokenizer *tokenizer)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"};
    int32_t of_template = tokenizer->chat_family ? pkv_chat_end_of_turn(tokenizer, NULL) : -1;
    if (of_template >= 0) {
        tokenizer->eot = of_template;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && tokenizer->eot < 0; i++) {
        tokenizer->eot = pkvi_vocab_find(&tokenizer->vocab, names[i], strlen(names[i]));
    }
    make_end(tokenizer, tokenizer->eot);
}

static enum pkv_status read_add_bos(const struct pkvi_gguf *gguf, struct pkv_tokenizer *tokenizer)
{
    static const char key[] = "tokenizer.ggml.add_bos_token";
    bool found, asked = tokenizer->spm || pkvi_bpe_adds_bos(tokenizer->bpe);
    PKV_TRY(pkvi_gguf_bool(gguf, key, &found, &asked));
    if (found && asked && tokenizer->bos < 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s is true, but there is no bos_token_id",
                        pkvi_gguf_path(gguf), key);
    }
    tokenizer->add_bos = asked && tokenizer->bos >= 0;
    return PKV_OK;
}

/* llama.cpp's rule; the file does not say it. */
static enum pkv_status read_strips(const struct pkvi_gguf *gguf, struct pkv_tokenizer *tokenizer)
{
    struct pkvi_str name;
    bool found;
    PKV_TRY(pkvi_gguf_str(gguf, "general.name", &found, &name));
    for (uint64_t i = 0; found && i + 4 <= name.bytes; i++) {
        uint64_t rest = name.bytes - i;
        if (strncasecmp(name.data + i, "phi3", 4) == 0 ||
            (rest >= 5 && strncasecmp(name.data + i, "phi-3", 5) == 0)) {
            tokenizer->strips_after_markers = true;
        }
    }
    return PKV_OK;
}

/* no_vocab: how many ids there are is said by "ARCHITECTURE.vocab_size" or the embedding. */
static enum pkv_status open_without_text(const struct pkvi_gguf *gguf,
                                         struct pkv_tokenizer *tokenizer)
{
    char *architecture = NULL;
    char key[320];
    uint32_t count = 0;
    bool found = false;
    PKV_TRY(copy_string(gguf, "general.architecture", true, &architecture, NULL));
    if (architecture) {
        (void)snprintf(key, sizeof key, "%s.vocab_size", architecture);
        free(architecture);
        PKV_TRY(pkvi_gguf_u32(gguf, key, &found, &count));
    }
    const struct pkvi_gguf_tensor *embedding = pkvi_gguf_find_tensor(gguf, "token_embd.weight");
    if (!found && embedding && embedding->dim[1] <= INT32_MAX) {
        count = (uint32_t)embedding->dim[1];
    }
    tokenizer->vocab.count = count;
    tokenizer->bos = tokenizer->eos = tokenizer->eot = tokenizer->unk = tokenizer->pad = -1;
    return PKV_OK;
}

static enum pkv_status open_text(const struct pkvi_gguf *gguf, struct pkv_tokenizer *tokenizer)
{
    bool is_spm = strcmp(tokenizer->model, "llama") == 0;
    struct pkvi_vocab *vocab = &tokenizer->vocab;
    PKV_TRY(pkvi_vocab_open(gguf, vocab));
    PKV_TRY(read_ids(gguf, tokenizer, is_spm));
    make_named_ends(tokenizer);
    if (is_spm) {
        PKV_TRY(pkvi_spm_open(gguf, vocab, tokenizer->unk, &tokenizer->spm));
    } else {
        const char *pre = tokenizer->pre[0] ? tokenizer->pre : "default";
        PKV_TRY(pkvi_bpe_open(gguf, pre, vocab, &tokenizer->bpe));
    }
    PKV_TRY(read_add_bos(gguf, tokenizer));
    PKV_TRY(read_strips(gguf, tokenizer));
    find_end_of_turn(tokenizer);
    PKV_TRY(pkvi_markers_open(vocab, false, &tokenizer->user_markers));
    return pkvi_markers_open(vocab, true, &tokenizer->all_markers);
}

static enum pkv_status open_all(const struct pkvi_gguf *gguf, struct pkv_tokenizer *tokenizer)
{
    PKV_TRY(copy_string(gguf, "tokenizer.ggml.model", true, &tokenizer->model, NULL));
    PKV_TRY(copy_string(gguf, "tokenizer.ggml.pre", true, &tokenizer->pre, NULL));
    PKV_TRY(copy_string(gguf, "tokenizer.chat_template", false, &tokenizer->chat_template,
                        &tokenizer->template_bytes));
    if (!tokenizer->model) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: tokenizer.ggml.model: absent, expected a string",
                        pkvi_gguf_path(gguf));
    }
    if (!tokenizer->pre && !(tokenizer->pre = calloc(1, 1))) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: one byte");
    }
    tokenizer->chat_family = pkvi_chat_family(tokenizer->chat_template, tokenizer->template_bytes,
                                              &tokenizer->chat_problem);
    if (strcmp(tokenizer->model, "no_vocab") == 0 || strcmp(tokenizer->model, "none") == 0) {
        return open_without_text(gguf, tokenizer);
    }
    if (strcmp(tokenizer->model, "gpt2") != 0 && strcmp(tokenizer->model, "llama") != 0) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: tokenizer.ggml.model: '%.64s' is a tokenizer we do not have (we have: "
                        "gpt2 llama)",
                        pkvi_gguf_path(gguf), tokenizer->model);
    }
    return open_text(gguf, tokenizer);
}

enum pkv_status pkvi_tokenizer_from_gguf(const struct pkvi_gguf *gguf,
                                         struct pkv_tokenizer **tokenizer_out)
{
    struct pkv_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %zu bytes", sizeof *tokenizer);
    }
    enum pkv_status status = open_all(gguf, tokenizer);
    if (status != PKV_OK) {
        pkv_tokenizer_close(tokenizer);
        return status;
    }
    *tokenizer_out = tokenizer;
    return PKV_OK;
}

enum pkv_status pkv_tokenizer_open(const char *path, struct pkv_tokenizer **tokenizer_out)
{
    struct pkvi_gguf *gguf;
    if (!path || !tokenizer_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "pkv_tokenizer_open: NULL argument");
    }
    PKV_TRY(pkvi_gguf_open(path, &gguf));
    enum pkv_status status = pkvi_tokenizer_from_gguf(gguf, tokenizer_out);
    pkvi_gguf_close(gguf);
    return status;
}

void pkv_tokenizer_close(struct pkv_tokenizer *tokenizer)
{
    if (!tokenizer) {
        return;
    }
    pkvi_markers_close(tokenizer->user_markers);
    pkvi_markers_close(tokenizer->all_markers);
    pkvi_bpe_close(tokenizer->bpe);
    pkvi_spm_close(tokenizer->spm);
    pkvi_vocab_fini(&tokenizer->vocab);
    free(tokenizer->model);
    free(tokenizer->pre);
    free(tokenizer->chat_template);
    free(tokenizer);
}

/* ---- what the file says ---------------------------------------------------------------------- */

static bool has_text(const struct pkv_tokenizer *tokenizer)
{
    return tokenizer->bpe || tokenizer->spm;
}

void pkv_tokenizer_query(const struct pkv_tokenizer *tokenizer, struct pkv_tokenizer_info *info_out)
{
    *info_out = (struct pkv_tokenizer_info){
        .vocab = tokenizer->vocab.count,
        .has_text = has_text(tokenizer),
        .add_bos = tokenizer->add_bos,
        .bos = tokenizer->bos,
        .eos = tokenizer->eos,
        .eot = tokenizer->eot,
        .unk = tokenizer->unk,
        .pad = tokenizer->pad,
        .model = tokenizer->model,
        .pre = tokenizer->pre,
        .chat_family = tokenizer->chat_family,
        .chat_problem = tokenizer->chat_problem,
    };
}

static bool is_id(const struct pkv_tokenizer *tokenizer, int32_t id)
{
    return has_text(tokenizer) && id >= 0 && (uint32_t)id < tokenizer->vocab.count;
}

bool pkv_token_is_control(const struct pkv_tokenizer *tokenizer, int32_t id)
{
    return is_id(tokenizer, id) && pkvi_vocab_is_control(&tokenizer->vocab, id);
}

bool pkv_token_is_end(const struct pkv_tokenizer *tokenizer, int32_t id)
{
    return is_id(tokenizer, id) && tokenizer->vocab.is_end[id];
}

int32_t pkvi_tokenizer_find(const struct pkv_tokenizer *tokenizer, const char *text, size_t bytes)
{
    return has_text(tokenizer) ? pkvi_vocab_find(&tokenizer->vocab, text, bytes) : -1;
}

const char *pkvi_tokenizer_template(const struct pkv_tokenizer *tokenizer, size_t *bytes_out)
{
    *bytes_out = tokenizer->template_bytes;
    return tokenizer->chat_template;
}

bool pkvi_tokenizer_strips_after(const struct pkv_tokenizer *tokenizer, int32_t id)
{
    static const char *const never[] = {"<unk>", "<s>", "<|endoftext|>"};
    if (!tokenizer->strips_after_markers || !is_id(tokenizer, id)) {
        return false;
    }
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
        if (pkvi_vocab_find(&tokenizer->vocab, never[i], strlen(never[i])) == id) {
            return false;
        }
    }
    return tokenizer->vocab.kind[id] == PKVI_TOKEN_USER ||
           pkvi_vocab_is_control(&tokenizer->vocab, id);
}

/* ---- text to ids ------------------------------------------------------------------------------
 */

static enum pkv_status encode_between(const struct pkv_tokenizer *tokenizer,
                                      struct pkvi_encoder *encoder, const char *text, size_t bytes,
                                      bool follows_text, struct pkv_ids *ids)
{
    if (bytes == 0) {
        return PKV_OK;
    }
    if (tokenizer->bpe) {
        return pkvi_bpe_encode(tokenizer->bpe, encoder, text, bytes, ids);
    }
    bool add_space = pkvi_spm_adds_space(tokenizer->spm) && !follows_text;
    return pkvi_spm_encode(tokenizer->spm, encoder, text, bytes, add_space, ids);
}

/* Markers one by one, and what stands between them. */
static enum pkv_status encode_parts(const struct pkv_tokenizer *tokenizer,
                                    struct pkvi_encoder *encoder, const struct pkvi_marker *marker,
                                    size_t count, const char *text, size_t bytes, bool follows_text,
                                    struct pkv_ids *ids)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (marker[i].at < at) {
            continue; // white space that a marker before it swallowed
        }
        PKV_TRY(
            encode_between(tokenizer, encoder, text + at, marker[i].at - at, follows_text, ids));
        PKV_TRY(pkv_ids_append(ids, marker[i].id));
        at = marker[i].at + tokenizer->vocab.piece[marker[i].id].text_bytes;
        while (at < bytes && isspace((unsigned char)text[at]) &&
               pkvi_tokenizer_strips_after(tokenizer, marker[i].id)) {
            at++;
        }
        follows_text = false;
    }
    return encode_between(tokenizer, encoder, text + at, bytes - at, follows_text, ids);
}

static enum pkv_status encode(const struct pkv_tokenizer *tokenizer,
                              const struct pkvi_markers *markers, const char *text, size_t bytes,
                              bool follows_text, struct pkv_ids *ids)
{
    struct pkvi_encoder encoder = {0};
    struct pkvi_marker *marker = NULL;
    size_t count = 0, before = ids->count;
    if (bytes == 0) {
        return PKV_OK;
    }
    if (bytes > MOST_BYTES) {
        return PKV_FAIL(PKV_ERR_RANGE, "text: %zu bytes, at most %zu can be encoded at once", bytes,
                        MOST_BYTES);
    }
    enum pkv_status status = pkvi_markers_find(markers, text, bytes, &marker, &count);
    if (status == PKV_OK) {
        status = encode_parts(tokenizer, &encoder, marker, count, text, bytes, follows_text, ids);
    }
    free(marker);
    free(encoder.buffer);
    pkvi_split_match_close(encoder.match);
    pkvi_merge_fini(&encoder.merge);
    if (status != PKV_OK) {
        ids->count = before;
    }
    return status;
}

static enum pkv_status check_text(const struct pkv_tokenizer *tokenizer)
{
    if (!has_text(tokenizer)) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "the model file has no vocabulary (tokenizer.ggml.model is '%s'): only "
                        "token ids can be used with it",
                        tokenizer->model);
    }
    return PKV_OK;
}

enum pkv_status pkv_encode(const struct pkv_tokenizer *tokenizer, const char *text, size_t bytes,
                           uint32_t flags, struct pkv_ids *ids)
{
    bool special = flags & PKV_ENCODE_SPECIAL;
    size_t before = ids->count;
    PKV_TRY(check_text(tokenizer));
    if (flags & PKV_ENCODE_BOS) {
        if (tokenizer->bos < 0) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the model file names no BOS token");
        }
        PKV_TRY(pkv_ids_append(ids, tokenizer->bos));
    }
    enum pkv_status status =
        encode(tokenizer, special ? tokenizer->all_markers : tokenizer->user_markers, text, bytes,
               false, ids);
    if (status != PKV_OK) {
        ids->count = before;
    }
    return status;
}

enum pkv_status pkvi_tokenizer_encode_plain(const struct pkv_tokenizer *tokenizer, const char *text,
                                            size_t bytes, bool follows_text, struct pkv_ids *ids)
{
    PKV_TRY(check_text(tokenizer));
    return encode(tokenizer, tokenizer->user_markers, text, bytes, follows_text, ids);
}
