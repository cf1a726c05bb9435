/*
 * spm.c: SentencePiece BPE (Llama 2, Gemma): ordinary text to ids.
 *
 * Owns: scores, byte tokens, the rule for spaces. Pieces are joined by the score of what they make;
 * characters that no piece covers become byte tokens.
 *
 * Text is cut beforehand wherever no piece of the vocabulary has these two characters side by
 * side: no join can cross such a place, so the ids are the same, and the work stays in the cache
 * (in Gemma's vocabulary nearly every word starts at such a place).
 * Source: Kudo, Richardson, "SentencePiece", 2018; the order of joins is llama.cpp's.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"
#include "runtime/text/utf8.h"

#define KEY_SCORES "tokenizer.ggml.scores"
#define KEY_SPACE "tokenizer.ggml.add_space_prefix"

static const char SPACE[3] = {'\xe2', '\x96', '\x81'}; /* U+2581 stands for a space */

#define FOLLOWERS 257 /* first byte of a character; 256 = U+2581, which is everywhere */
#define BITS_WORDS ((256 * FOLLOWERS + 63) / 64)

struct pkvi_spm {
    const struct pkvi_vocab *vocab;
    bool adds_space;
    uint32_t *priority;           /* [vocab] smaller joins first */
    int32_t byte_id[256];         /* -1: left out */
    uint64_t touches[BITS_WORDS]; /* last byte of a character, then FOLLOWERS: in some piece */
};

static bool can_be_made(const struct pkvi_vocab *vocab, uint32_t id)
{
    return vocab->kind[id] == PKVI_TOKEN_NORMAL || vocab->kind[id] == PKVI_TOKEN_USER ||
           vocab->kind[id] == PKVI_TOKEN_UNUSED;
}

/* Greater scores get smaller numbers: flip the bits of the float so that they sort, and turn. */
static uint32_t priority_of(float score)
{
    uint32_t bits;
    score += 0.0f; // -0 is 0
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static enum pkv_status read_scores(const struct pkvi_gguf *gguf, struct pkvi_spm *spm)
{
    const struct pkvi_gguf_key *scores = pkvi_gguf_find_key(gguf, KEY_SCORES);
    uint32_t count = spm->vocab->count;
    if (!scores || !scores->is_array || scores->count != count) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: " KEY_SCORES ": %llu entries, expected %u, as tokens",
                        pkvi_gguf_path(gguf), (unsigned long long)(scores ? scores->count : 0),
                        count);
    }
    spm->priority = malloc(count * sizeof *spm->priority);
    if (!spm->priority) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %u scores", count);
    }
    for (uint32_t id = 0; id < count; id++) {
        float score;
        PKV_TRY(pkvi_gguf_array_f32(scores, id, &score));
        spm->priority[id] = priority_of(score);
    }
    return PKV_OK;
}

static bool is_space(const char *text, size_t bytes)
{
    return bytes >= sizeof SPACE && memcmp(text, SPACE, sizeof SPACE) == 0;
}

/* Bit of "a character that ends in byte `last`, then the character at text". */
static uint32_t touch_bit(char last, const char *text, size_t bytes)
{
    bool space = text[0] == SPACE[0] && is_space(text, bytes);
    uint32_t follower = space ? 256 : (unsigned char)text[0];
    return (unsigned char)last * FOLLOWERS + follower;
}

/* Length of the next character; what is not UTF-8 goes byte by byte. */
static size_t character(const char *text, size_t bytes)
{
    int length = (unsigned char)text[0] < 0x80 ? 1 : pkvi_utf8_look(text, bytes);
    return length > 0 ? (size_t)length : 1;
}

/* What of a piece touches. */
static void note_touches(struct pkvi_spm *spm, const char *text, uint32_t bytes)
{
    for (uint32_t at = 0, step; at < bytes; at += step) {
        step = (uint32_t)character(text + at, bytes - at);
        if (at > 0) {
            uint32_t bit = touch_bit(text[at - 1], text + at, bytes - at);
            spm->touches[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
    }
}

/* U+2581 is a space in what a piece decodes to. */
static void decode_piece(struct pkvi_vocab *vocab, uint32_t id, char *scratch)
{
    const char *text = vocab->blob + vocab->piece[id].text_at;
    uint32_t bytes = vocab->piece[id].text_bytes, count = 0;
    for (uint32_t at = 0; at < bytes; count++) {
        bool space = text[at] == SPACE[0] && is_space(text + at, bytes - at);
        scratch[count] = space ? ' ' : text[at];
        at += space ? (uint32_t)sizeof SPACE : 1;
    }
    if (count < bytes) {
        pkvi_vocab_set_out(vocab, id, scratch, count);
    }
}

/* A byte's token is "<0x41>", else the byte itself as a piece, else the unknown token. */
static void find_bytes(struct pkvi_spm *spm, int32_t unk)
{
    for (int byte = 0; byte < 256; byte++) {
        static const char digits[] = "0123456789ABCDEF";
        char name[6] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        char text = (char)byte;
        int32_t id = pkvi_vocab_find(spm->vocab, name, sizeof name);
        if (id < 0) {
            id = pkvi_vocab_find(spm->vocab, &text, 1);
        }
        spm->byte_id[byte] = id >= 0 ? id : unk;
    }
}

enum pkv_status pkvi_spm_open(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab, int32_t unk,
                              struct pkvi_spm **spm_out)
{
    struct pkvi_spm *spm = calloc(1, sizeof *spm);
    char *scratch = malloc((size_t)vocab->most_text_bytes + 1);
    enum pkv_status status = PKV_OK;
    bool found;
    if (!spm || !scratch) {
        status = PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: tables of SPM");
        goto err_free;
    }
    spm->vocab = vocab;
    spm->adds_space = true;
    status = pkvi_gguf_bool(gguf, KEY_SPACE, &found, &spm->adds_space);
    if (status == PKV_OK) {
        status = read_scores(gguf, spm);
    }
    if (status != PKV_OK) {
        goto err_free;
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        if (can_be_made(vocab, id)) {
            note_touches(spm, vocab->blob + vocab->piece[id].text_at, vocab->piece[id].text_bytes);
        }
        if (vocab->kind[id] == PKVI_TOKEN_NORMAL) {
            decode_piece(vocab, id, scratch);
        }
    }
    find_bytes(spm, unk);
    free(scratch);
    *spm_out = spm;
    return PKV_OK;
err_free:
    free(scratch);
    pkvi_spm_close(spm);
    return status;
}

void pkvi_spm_close(struct pkvi_spm *spm)
{
    if (spm) {
        free(spm->priority);
        free(spm);
    }
}

bool pkvi_spm_adds_space(const struct pkvi_spm *spm)
{
    return spm->adds_space;
}

struct text {
    const struct pkvi_spm *spm;
    const char *data;
};

static int32_t join(const void *context, const struct pkvi_symbol *left,
                    const struct pkvi_symbol *right, uint32_t *priority_out)
{
    const struct text *text = context;
    const struct pkvi_spm *spm = text->spm;
    int32_t id =
        pkvi_vocab_find(spm->vocab, text->data + left->at, (size_t)left->bytes + right->bytes);
    if (id < 0 || !can_be_made(spm->vocab, (uint32_t)id)) {
        return -1;
    }
    *priority_out = spm->priority[id];
    return id;
}

/* Join what the encoder holds, append its ids and let the encoder be empty. */
static enum pkv_status flush(const struct pkvi_spm *spm, struct pkvi_encoder *encoder,
                             struct pkv_ids *ids)
{
    struct pkvi_merge *merge = &encoder->merge;
    struct text text = {spm, encoder->buffer};
    pkvi_merge_run(merge, join, &text);
    for (int32_t i = merge->count ? 0 : -1; i >= 0; i = merge->symbol[i].next) {
        const struct pkvi_symbol *symbol = &merge->symbol[i];
        const char *data = encoder->buffer + symbol->at;
        int32_t id = symbol->id; // of a join
        if (id < 0) {
            id = pkvi_vocab_find(spm->vocab, data, symbol->bytes);
            id = id >= 0 && can_be_made(spm->vocab, (uint32_t)id) ? id : -1;
        }
        if (id >= 0) {
            PKV_TRY(pkv_ids_append(ids, id));
            continue;
        }
        for (uint32_t j = 0; j < symbol->bytes; j++) {
            int32_t byte_id = spm->byte_id[(unsigned char)data[j]];
            if (byte_id >= 0) {
                PKV_TRY(pkv_ids_append(ids, byte_id));
            }
        }
    }
    merge->count = 0;
    return PKV_OK;
}

/* One character more, with the joins of those before it done if it touches none of them. */
static enum pkv_status add(const struct pkvi_spm *spm, struct pkvi_encoder *encoder, uint32_t *used,
                           const char *text, size_t bytes, struct pkv_ids *ids)
{
    if (*used > 0) {
        uint32_t bit = touch_bit(encoder->buffer[*used - 1], text, bytes);
        if (!(spm->touches[bit / 64] >> (bit % 64) & 1)) {
            PKV_TRY(flush(spm, encoder, ids));
            *used = 0;
        }
    }
    if (*used + bytes > encoder->buffer_bytes) {
        size_t room = encoder->buffer_bytes ? encoder->buffer_bytes * 2 : 256;
        char *buffer = realloc(encoder->buffer, room);
        if (!buffer) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: a word of %u bytes", *used);
        }
        encoder->buffer = buffer;
        encoder->buffer_bytes = room;
    }
    memcpy(encoder->buffer + *used, text, bytes);
    PKV_TRY(pkvi_merge_add(&encoder->merge, *used, (uint32_t)bytes, -1));
    *used += (uint32_t)bytes;
    return PKV_OK;
}

enum pkv_status pkvi_spm_encode(const struct pkvi_spm *spm, struct pkvi_encoder *encoder,
                                const char *text, size_t bytes, bool add_space, struct pkv_ids *ids)
{
    uint32_t used = 0;
    if (add_space) {
        PKV_TRY(add(spm, encoder, &used, SPACE, sizeof SPACE, ids));
    }
    for (size_t at = 0, step; at < bytes; at += step) {
        step = character(text + at, bytes - at);
        bool space = text[at] == ' ';
        PKV_TRY(
            add(spm, encoder, &used, space ? SPACE : text + at, space ? sizeof SPACE : step, ids));
    }
    return flush(spm, encoder, ids);
}
