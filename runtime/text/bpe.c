/*
 * bpe.c: byte-level BPE: ordinary text to ids.
 *
 * Owns: the table of merges and the letters that stand for bytes. Source: GPT-2 (Radford et al.,
 * 2019), whose vocabulary writes each byte as one printable character.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"
#include "runtime/text/utf8.h"

#define KEY_MERGES "tokenizer.ggml.merges"
#define FREE UINT64_MAX

struct letter {
    char text[2];
    uint8_t bytes;
};

struct pair {
    uint64_t key; /* left << 32 | right, FREE = none */
    uint32_t rank;
    int32_t joined;
};

struct pkvi_bpe {
    const struct pkvi_vocab *vocab;
    struct pkvi_split *split;
    bool ignores_merges;
    struct letter letter[256];
    int32_t byte_id[256]; /* -1: the vocabulary lacks it */
    struct pair *pair;
    uint32_t pair_shift; /* table of 2^(64 - shift) */
    uint32_t pair_mask;
};

/* Bytes that print as they are keep their code point; the others get U+0100, U+0101, ... */
static void make_letters(struct letter letter[256])
{
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool prints = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        uint32_t code = prints ? byte : next++;
        if (code < 0x80) {
            letter[byte] = (struct letter){{(char)code, 0}, 1};
        } else {
            letter[byte] =
                (struct letter){{(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))}, 2};
        }
    }
}

/* From letters back to bytes; other characters stay. In place: bytes are never longer. */
static void decode_pieces(const struct letter letter[256], struct pkvi_vocab *vocab, char *scratch)
{
    int16_t byte_of[0x800]; // by code point, of those of at most 2 bytes in UTF-8
    memset(byte_of, 0xff, sizeof byte_of);
    for (int16_t byte = 0; byte < 256; byte++) {
        const struct letter *l = &letter[byte];
        unsigned char first = (unsigned char)l->text[0], second = (unsigned char)l->text[1];
        byte_of[l->bytes == 1 ? first : (first & 0x1f) << 6 | (second & 0x3f)] = byte;
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        if (vocab->kind[id] != PKVI_TOKEN_NORMAL) {
            continue;
        }
        const char *text = vocab->blob + vocab->piece[id].text_at;
        uint32_t bytes = vocab->piece[id].text_bytes, count = 0;
        for (uint32_t i = 0; i < bytes;) {
            unsigned char c = (unsigned char)text[i];
            bool two = (c & 0xe0) == 0xc0 && i + 1 < bytes && (text[i + 1] & 0xc0) == 0x80;
            int byte = c < 0x80 ? byte_of[c] : -1;
            if (two) {
                byte = byte_of[(c & 0x1f) << 6 | (text[i + 1] & 0x3f)];
            }
            scratch[count++] = byte >= 0 ? (char)byte : text[i];
            i += two && byte >= 0 ? 2 : 1;
        }
        if (count != bytes || memcmp(scratch, text, count) != 0) {
            pkvi_vocab_set_out(vocab, id, scratch, count);
        }
    }
}

static uint32_t pair_slot(const struct pkvi_bpe *bpe, uint64_t key)
{
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> bpe->pair_shift);
    while (bpe->pair[at].key != key && bpe->pair[at].key != FREE) {
        at = (at + 1) & bpe->pair_mask;
    }
    return at;
}

/* "LEFT RIGHT": the ids of both and of what they join to. */
static enum pkv_status read_merge(const struct pkvi_gguf *gguf, struct pkvi_bpe *bpe,
                                  uint64_t index, struct pkvi_str text, char *scratch)
{
    const struct pkvi_vocab *vocab = bpe->vocab;
    const char *space = text.bytes > 2 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
    size_t left_bytes = space ? (size_t)(space - text.data) : 0;
    size_t right_bytes = space ? text.bytes - left_bytes - 1 : 0;
    int32_t left = -1, right = -1, joined = -1;
    if (right_bytes > 0 && left_bytes + right_bytes <= vocab->most_text_bytes) {
        memcpy(scratch, text.data, left_bytes);
        memcpy(scratch + left_bytes, space + 1, right_bytes);
        left = pkvi_vocab_find(vocab, text.data, left_bytes);
        right = pkvi_vocab_find(vocab, space + 1, right_bytes);
        joined = pkvi_vocab_find(vocab, scratch, left_bytes + right_bytes);
    }
    if (left < 0 || right < 0 || joined < 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: " KEY_MERGES ": entry %llu is '%.*s', expected two tokens that "
                        "make a third one, with a space between",
                        pkvi_gguf_path(gguf), (unsigned long long)index,
                        (int)(text.bytes < 64 ? text.bytes : 64), text.data);
    }
    if (pkvi_vocab_is_control(vocab, joined)) {
        return PKV_OK; // ordinary text must not make control tokens
    }
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    struct pair *pair = &bpe->pair[pair_slot(bpe, key)];
    if (pair->key == FREE) { // of equal merges the first counts
        *pair = (struct pair){key, (uint32_t)index, joined};
    }
    return PKV_OK;
}

static enum pkv_status read_merges(const struct pkvi_gguf *gguf, struct pkvi_bpe *bpe,
                                   char *scratch)
{
    const struct pkvi_gguf_key *merges = pkvi_gguf_find_key(gguf, KEY_MERGES);
    if (!merges || !merges->is_array || merges->type != PKVI_GGUF_STRING ||
        merges->count > INT32_MAX) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_MERGES ": %s, expected an array of strings",
                        pkvi_gguf_path(gguf), merges ? "of another type or too long" : "absent");
    }
    uint32_t bits = 4;
    while (((uint64_t)1 << bits) < merges->count * 2) {
        bits++;
    }
    size_t slots = (size_t)1 << bits;
    bpe->pair_shift = 64 - bits;
    bpe->pair_mask = (uint32_t)(slots - 1);
    bpe->pair = malloc(slots * sizeof *bpe->pair);
    if (!bpe->pair) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %llu merges",
                        (unsigned long long)merges->count);
    }
    memset(bpe->pair, 0xff, slots * sizeof *bpe->pair);
    for (uint64_t i = 0; i < merges->count; i++) {
        struct pkvi_str text;
        PKV_TRY(pkvi_gguf_array_str(gguf, merges, i, &text));
        PKV_TRY(read_merge(gguf, bpe, i, text, scratch));
    }
    return PKV_OK;
}

enum pkv_status pkvi_bpe_open(const struct pkvi_gguf *gguf, const char *pre,
                              struct pkvi_vocab *vocab, struct pkvi_bpe **bpe_out)
{
    struct pkvi_bpe *bpe = calloc(1, sizeof *bpe);
    char *scratch = malloc((size_t)vocab->most_text_bytes + 1);
    enum pkv_status status = PKV_OK;
    if (!bpe || !scratch) {
        status = PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: tables of byte-level BPE");
        goto err_free;
    }
    bpe->vocab = vocab;
    status = pkvi_split_open(pre, &bpe->split);
    if (status != PKV_OK) {
        goto err_free;
    }
    bpe->ignores_merges = pkvi_split_ignores_merges(bpe->split);
    make_letters(bpe->letter);
    for (int byte = 0; byte < 256; byte++) {
        int32_t id = pkvi_vocab_find(vocab, bpe->letter[byte].text, bpe->letter[byte].bytes);
        bpe->byte_id[byte] = id >= 0 && pkvi_vocab_is_control(vocab, id) ? -1 : id;
    }
    status = read_merges(gguf, bpe, scratch);
    if (status != PKV_OK) {
        goto err_free;
    }
    decode_pieces(bpe->letter, vocab, scratch);
    free(scratch);
    *bpe_out = bpe;
    return PKV_OK;
err_free:
    free(scratch);
    pkvi_bpe_close(bpe);
    return status;
}

void pkvi_bpe_close(struct pkvi_bpe *bpe)
{
    if (bpe) {
        pkvi_split_close(bpe->split);
        free(bpe->pair);
        free(bpe);
    }
}

bool pkvi_bpe_adds_bos(const struct pkvi_bpe *bpe)
{
    return pkvi_split_adds_bos(bpe->split);
}

static int32_t join(const void *context, const struct pkvi_symbol *left,
                    const struct pkvi_symbol *right, uint32_t *priority_out)
{
    const struct pkvi_bpe *bpe = context;
    if (left->id < 0 || right->id < 0) {
        return -1;
    }
    uint64_t key = (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id;
    const struct pair *pair = &bpe->pair[pair_slot(bpe, key)];
    *priority_out = pair->rank;
    return pair->key == FREE ? -1 : pair->joined;
}

struct encode {
    const struct pkvi_bpe *bpe;
    struct pkvi_encoder *encoder;
    struct pkv_ids *ids;
};

/* The id of a word that is a token as it is, -1 if it is none. */
static int32_t whole_word(const struct pkvi_bpe *bpe, struct pkvi_encoder *encoder,
                          const char *text, size_t bytes)
{
    size_t most = bpe->vocab->most_text_bytes, count = 0;
    if (bytes > most) {
        return -1;
    }
    for (size_t i = 0; i < bytes; i++) {
        const struct letter *letter = &bpe->letter[(unsigned char)text[i]];
        if (count + letter->bytes > most) {
            return -1;
        }
        memcpy(encoder->buffer + count, letter->text, letter->bytes);
        count += letter->bytes;
    }
    int32_t id = pkvi_vocab_find(bpe->vocab, encoder->buffer, count);
    return id >= 0 && pkvi_vocab_is_control(bpe->vocab, id) ? -1 : id;
}

/* Bytes that the vocabulary lacks are left out, as elsewhere: there is no token to say them. */
static enum pkv_status encode_word(void *context, const char *text, size_t bytes)
{
    struct encode *encode = context;
    const struct pkvi_bpe *bpe = encode->bpe;
    struct pkvi_merge *merge = &encode->encoder->merge;
    if (bpe->ignores_merges) {
        int32_t id = whole_word(bpe, encode->encoder, text, bytes);
        if (id >= 0) {
            return pkv_ids_append(encode->ids, id);
        }
    }
    merge->count = 0;
    for (size_t i = 0; i < bytes; i++) {
        PKV_TRY(pkvi_merge_add(merge, (uint32_t)i, 1, bpe->byte_id[(unsigned char)text[i]]));
    }
    pkvi_merge_run(merge, join, bpe);
    for (int32_t i = merge->count ? 0 : -1; i >= 0; i = merge->symbol[i].next) {
        if (merge->symbol[i].id >= 0) {
            PKV_TRY(pkv_ids_append(encode->ids, merge->symbol[i].id));
        }
    }
    return PKV_OK;
}

/* Bytes that are not UTF-8 never reach the patterns: each is a word of its own. */
enum pkv_status pkvi_bpe_encode(const struct pkvi_bpe *bpe, struct pkvi_encoder *encoder,
                                const char *text, size_t bytes, struct pkv_ids *ids)
{
    struct encode encode = {bpe, encoder, ids};
    if (!encoder->match) {
        PKV_TRY(pkvi_split_match_open(&encoder->match));
    }
    if (!encoder->buffer) {
        encoder->buffer = malloc((size_t)bpe->vocab->most_text_bytes + 1);
        if (!encoder->buffer) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: a buffer for one word");
        }
    }
    size_t start = 0, at = 0;
    while (at < bytes) {
        int length = pkvi_utf8_look(text + at, bytes - at);
        if (length > 0) {
            at += (size_t)length;
            continue;
        }
        PKV_TRY(pkvi_split_run(bpe->split, encoder->match, text + start, at - start, encode_word,
                               &encode));
        PKV_TRY(encode_word(&encode, text + at, 1));
        start = ++at;
    }
    return pkvi_split_run(bpe->split, encoder->match, text + start, at - start, encode_word,
                          &encode);
}
