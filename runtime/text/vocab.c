/*
 * vocab.c: the pieces of a vocabulary, their kinds, and the way from text to id.
 *
 * Owns: copies of all texts. Refuses to know: how text is cut into pieces.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define FREE UINT32_MAX

static uint64_t load_u64(const char *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static uint64_t load_u32(const char *data)
{
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9fb21c651e98df25u;
    return hash ^ (hash >> 32);
}

/* Pieces are short: whole words, then the last 8 bytes, which may overlap them. */
static uint32_t hash_text(const char *data, size_t bytes)
{
    uint64_t hash = bytes * 0x9e3779b97f4a7c15u;
    if (bytes >= 8) {
        for (size_t i = 0; i + 8 <= bytes; i += 8) {
            hash = mix(hash, load_u64(data + i));
        }
        hash = mix(hash, load_u64(data + bytes - 8));
    } else if (bytes >= 4) {
        hash = mix(hash, load_u32(data) << 32 | load_u32(data + bytes - 4));
    } else if (bytes > 0) {
        const unsigned char *c = (const unsigned char *)data;
        hash = mix(hash, (uint64_t)c[0] << 16 | (uint64_t)c[bytes / 2] << 8 | c[bytes - 1]);
    }
    hash = mix(hash, hash >> 29);
    return (uint32_t)hash;
}

static bool piece_is(const struct pkvi_vocab *vocab, uint32_t id, const char *text, size_t bytes)
{
    const struct pkvi_piece *piece = &vocab->piece[id];
    return piece->text_bytes == bytes && memcmp(vocab->blob + piece->text_at, text, bytes) == 0;
}

/* The slot that holds the text, or the free one where it would go. */
static struct pkvi_slot *slot_of(const struct pkvi_vocab *vocab, const char *text, size_t bytes,
                                 uint32_t hash)
{
    for (uint32_t at = hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        struct pkvi_slot *slot = &vocab->slot[at];
        if (slot->id == FREE || (slot->hash == hash && piece_is(vocab, slot->id, text, bytes))) {
            return slot;
        }
    }
}

int32_t pkvi_vocab_find(const struct pkvi_vocab *vocab, const char *text, size_t bytes)
{
    if (bytes == 0 || bytes > vocab->most_text_bytes) {
        return -1;
    }
    const struct pkvi_slot *slot = slot_of(vocab, text, bytes, hash_text(text, bytes));
    return slot->id == FREE ? -1 : (int32_t)slot->id;
}

void pkvi_vocab_set_out(struct pkvi_vocab *vocab, uint32_t id, const char *data, uint32_t bytes)
{
    struct pkvi_piece *piece = &vocab->piece[id];
    memcpy(vocab->blob + vocab->blob_bytes, data, bytes);
    piece->out_at = vocab->blob_bytes;
    piece->out_bytes = bytes;
    vocab->blob_bytes += bytes;
}

bool pkvi_vocab_is_control(const struct pkvi_vocab *vocab, int32_t id)
{
    return vocab->kind[id] == PKVI_TOKEN_CONTROL || vocab->kind[id] == PKVI_TOKEN_UNKNOWN;
}

/* Sum of all texts (an array is lengths of 8 bytes and texts); with as much decoded output behind
 * it, it must suit 32-bit offsets. */
static enum pkv_status measure(const struct pkvi_gguf *gguf, const struct pkvi_gguf_key *tokens,
                               struct pkvi_vocab *vocab)
{
    uint64_t total = tokens->value_bytes - 8 * tokens->count;
    if (total > UINT32_MAX / 2) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_TOKENS ": %llu bytes of text, at most 2 GiB",
                        pkvi_gguf_path(gguf), (unsigned long long)total);
    }
    vocab->blob_bytes = (uint32_t)total;
    return PKV_OK;
}

static enum pkv_status allocate(struct pkvi_vocab *vocab)
{
    size_t slots = 16;
    while (slots < (size_t)vocab->count * 2) {
        slots *= 2;
    }
    vocab->slot_mask = (uint32_t)(slots - 1);
    vocab->piece = malloc(vocab->count * sizeof *vocab->piece);
    vocab->kind = malloc(vocab->count);
    vocab->is_end = calloc(vocab->count, sizeof *vocab->is_end);
    vocab->blob = malloc((size_t)vocab->blob_bytes * 2 + 1);
    vocab->slot = malloc(slots * sizeof *vocab->slot);
    if (!vocab->piece || !vocab->kind || !vocab->is_end || !vocab->blob || !vocab->slot) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %u tokens", vocab->count);
    }
    memset(vocab->slot, 0xff, slots * sizeof *vocab->slot);
    return PKV_OK;
}

static enum pkv_status read_texts(const struct pkvi_gguf *gguf, const struct pkvi_gguf_key *tokens,
                                  struct pkvi_vocab *vocab)
{
    uint32_t at = 0;
    for (uint32_t id = 0; id < vocab->count; id++) {
        struct pkvi_str text;
        PKV_TRY(pkvi_gguf_array_str(gguf, tokens, id, &text));
        uint32_t bytes = (uint32_t)text.bytes;
        vocab->piece[id] = (struct pkvi_piece){at, bytes, at, bytes};
        if (bytes == 0) {
            continue; // never found; decodes to nothing
        }
        memcpy(vocab->blob + at, text.data, bytes);
        if (bytes > vocab->most_text_bytes) {
            vocab->most_text_bytes = bytes;
        }
        uint32_t hash = hash_text(text.data, bytes);
        struct pkvi_slot *slot = slot_of(vocab, text.data, bytes, hash);
        if (slot->id != FREE) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_TOKENS ": tokens %u and %u are both '%.*s'",
                            pkvi_gguf_path(gguf), slot->id, id, (int)(bytes < 64 ? bytes : 64),
                            text.data);
        }
        *slot = (struct pkvi_slot){hash, id};
        at += bytes;
    }
    vocab->most_out_bytes = vocab->most_text_bytes;
    return PKV_OK;
}

static enum pkv_status read_kinds(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab)
{
    const struct pkvi_gguf_key *types = pkvi_gguf_find_key(gguf, KEY_TYPES);
    if (!types) {
        memset(vocab->kind, PKVI_TOKEN_NORMAL, vocab->count);
        return PKV_OK;
    }
    if (!types->is_array || types->count != vocab->count) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_TYPES ": %llu entries, expected %u, as tokens",
                        pkvi_gguf_path(gguf), (unsigned long long)types->count, vocab->count);
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        int32_t kind;
        PKV_TRY(pkvi_gguf_array_i32(types, id, &kind));
        if (kind < 0 || kind > PKVI_TOKEN_BYTE) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_TYPES ": entry %u is %d, expected 0 to %d",
                            pkvi_gguf_path(gguf), id, kind, PKVI_TOKEN_BYTE);
        }
        vocab->kind[id] = kind == 0 ? PKVI_TOKEN_UNUSED : (uint8_t)kind;
    }
    return PKV_OK;
}

/* "<0x41>" as a byte, -1 if it is none. */
static int byte_of(const char *text, uint32_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const char *high = memchr(digits, text[3], 16), *low = memchr(digits, text[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

static enum pkv_status decode_kinds(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab)
{
    for (uint32_t id = 0; id < vocab->count; id++) {
        const struct pkvi_piece *piece = &vocab->piece[id];
        if (vocab->kind[id] == PKVI_TOKEN_UNUSED) {
            pkvi_vocab_set_out(vocab, id, "", 0);
        } else if (vocab->kind[id] == PKVI_TOKEN_BYTE) {
            const char *text = vocab->blob + piece->text_at;
            int byte = byte_of(text, piece->text_bytes);
            if (byte < 0) {
                return PKV_FAIL(PKV_ERR_CORRUPT,
                                "%s: " KEY_TOKENS ": byte token %u is '%.*s', expected '<0x00>'",
                                pkvi_gguf_path(gguf), id,
                                (int)(piece->text_bytes < 64 ? piece->text_bytes : 64), text);
            }
            char c = (char)byte;
            pkvi_vocab_set_out(vocab, id, &c, 1);
        }
    }
    return PKV_OK;
}

/*
 * Ends of text and turn are known by name, since files name at most one of them. The first group
 * cannot be anything else, so the name makes it a control token even where the file's type is
 * wrong; the second is ordinary HTML in Gemma's vocabulary and counts only as a control token.
 */
static void mark_ends(struct pkvi_vocab *vocab)
{
    static const char *const sure[] = {"<|im_end|>",      "<|eot_id|>",        "<|eom_id|>",
                                       "<|end|>",         "<end_of_turn>",     "<|endoftext|>",
                                       "<|end_of_text|>", "<end_of_utterance>"};
    static const char *const if_control[] = {"</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>"};
    for (size_t i = 0; i < sizeof sure / sizeof sure[0]; i++) {
        int32_t id = pkvi_vocab_find(vocab, sure[i], strlen(sure[i]));
        if (id >= 0) {
            vocab->is_end[id] = true;
            vocab->kind[id] = PKVI_TOKEN_CONTROL;
        }
    }
    for (size_t i = 0; i < sizeof if_control / sizeof if_control[0]; i++) {
        int32_t id = pkvi_vocab_find(vocab, if_control[i], strlen(if_control[i]));
        if (id >= 0 && vocab->kind[id] == PKVI_TOKEN_CONTROL) {
            vocab->is_end[id] = true;
        }
    }
}

enum pkv_status pkvi_vocab_open(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab_out)
{
    const struct pkvi_gguf_key *tokens = pkvi_gguf_find_key(gguf, KEY_TOKENS);
    *vocab_out = (struct pkvi_vocab){0};
    if (!tokens || !tokens->is_array || tokens->type != PKVI_GGUF_STRING || tokens->count == 0 ||
        tokens->count > INT32_MAX) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_TOKENS ": %s, expected an array of strings",
                        pkvi_gguf_path(gguf),
                        !tokens              ? "absent"
                        : tokens->count == 0 ? "empty"
                                             : "of another type or too long");
    }
    vocab_out->count = (uint32_t)tokens->count;
    enum pkv_status status = measure(gguf, tokens, vocab_out);
    if (status == PKV_OK) {
        status = allocate(vocab_out);
    }
    if (status == PKV_OK) {
        status = read_texts(gguf, tokens, vocab_out);
    }
    if (status == PKV_OK) {
        status = read_kinds(gguf, vocab_out);
    }
    if (status == PKV_OK) {
        status = decode_kinds(gguf, vocab_out);
    }
    if (status != PKV_OK) {
        pkvi_vocab_fini(vocab_out);
        return status;
    }
    mark_ends(vocab_out);
    return PKV_OK;
}

void pkvi_vocab_fini(struct pkvi_vocab *vocab)
{
    free(vocab->piece);
    free(vocab->kind);
    free(vocab->is_end);
    free(vocab->blob);
    free(vocab->slot);
    *vocab = (struct pkvi_vocab){0};
}
