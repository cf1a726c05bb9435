/*
 * saved.c: a sequence to a file and back: which blocks of which layer, in which order. The form of
 * the file is saved_format.c's, the way of the bytes the tier's.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/device/device.h"
#include "runtime/session/saved_format.h"
#include "runtime/session/session.h"

#define PIECE_BYTES ((uint64_t)4 << 20)

/* Blocks on their way, between file and tier. */
struct piece {
    struct pkv_seq *seq;
    pkv_addr memory; /* pinned; the session's: after a failure a copy may still be running */
    uint64_t bytes;
    uint64_t *checksums; /* of a layer */
};

enum pkv_status pkvi_session_piece(struct pkv_session *s, uint64_t *bytes_out)
{
    uint64_t most = PIECE_BYTES;
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const uint64_t bytes = pkvi_tier_block_bytes(s->tier, l);
        most = bytes > most ? bytes : most;
    }
    *bytes_out = most;
    return s->piece != 0 ? PKV_OK
                         : pkvi_mem_alloc(s->model->device, PKV_MEM_PINNED, most, &s->piece);
}

static enum pkv_status open_piece(struct pkv_seq *seq, uint32_t tokens, struct piece *piece)
{
    *piece = (struct piece){.seq = seq};
    PKV_TRY(pkvi_session_piece(seq->session, &piece->bytes));
    piece->memory = seq->session->piece;
    piece->checksums = malloc(pkvi_pages_of(tokens) * sizeof *piece->checksums);
    if (!piece->checksums) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "checksums of %u tokens", tokens);
    }
    return PKV_OK;
}

static uint32_t long_rope(const struct pkv_session *s)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < s->model->rope_count; i++) {
        bits |= (uint32_t)pkvi_session_long_rope(s, i) << i;
    }
    return bits;
}

/* ---- save ---- */

/* Blocks of a sliding layer: all that its ring still holds, so that what was saved can be cut as
 * far as what was not. */
static uint32_t first_block(const struct pkv_seq *seq, uint32_t layer)
{
    const struct pkv_session *s = seq->session;
    const struct pkv_layer_info *info = &s->model->layer[layer].info;
    if (info->kind == PKV_LAYER_GLOBAL) {
        return 0;
    }
    const uint32_t ring = pkvi_tier_layer_pages(&s->tier_config, layer);
    const uint32_t written = pkvi_pages_of(seq->high), first = written > ring ? written - ring : 0;
    const uint32_t seen = seq->tokens >= info->window ? seq->tokens - info->window + 1 : 0;
    return first < seen / PKV_PAGE_TOKENS ? first : seen / PKV_PAGE_TOKENS;
}

/* Words about the hot set, if it has one: [pkvi_tier_hot_words()]; NULL: no memory. */
static uint32_t *describe_hot(const struct pkv_seq *seq, struct pkvi_saved_header *header)
{
    const struct pkv_session *s = seq->session;
    const uint32_t count = pkvi_tier_hot_words(&s->tier_config);
    uint32_t *words = calloc(count + 1, sizeof *words);
    struct pkvi_hot_saved hot = {.bytes = 0};
    if (words) {
        pkvi_tier_hot_describe(s->tier, seq->index, &hot, words);
    }
    if (hot.bytes > 0) {
        header->hot_recipe = hot.recipe;
        header->hot_bytes = hot.bytes;
        header->hot_ring_pages = hot.ring_pages;
        header->hot_words = count;
    }
    return words;
}

static struct pkvi_saved_layer *describe(const struct pkv_seq *seq,
                                         const struct pkv_saved_info *info,
                                         struct pkvi_saved_header *header, uint32_t **words_out)
{
    const struct pkv_session *s = seq->session;
    const uint32_t layers = s->model->info.layers;
    struct pkvi_saved_layer *table = calloc(layers, sizeof *table);
    *header = (struct pkvi_saved_header){.version = PKVI_SAVED_VERSION,
                                         .header_bytes = sizeof *header,
                                         .identity = s->model->identity,
                                         .kv_type = s->config.kv_type,
                                         .block_tokens = PKV_PAGE_TOKENS,
                                         .layers = layers,
                                         .tokens = seq->tokens,
                                         .id_count = info->id_count,
                                         .long_rope = long_rope(s),
                                         .note_bytes = info->note_bytes};
    memcpy(header->magic, PKVI_SAVED_MAGIC, sizeof header->magic);
    *words_out = describe_hot(seq, header);
    for (uint32_t l = 0; table && l < layers; l++) {
        const struct pkv_layer_info *layer = &s->model->layer[l].info;
        const uint32_t first = first_block(seq, l);
        table[l] = (struct pkvi_saved_layer){.kind = layer->kind,
                                             .kv_heads = layer->kv_heads,
                                             .head_dim = layer->head_dim,
                                             .window = layer->window,
                                             .first_block = first,
                                             .block_count = pkvi_pages_of(seq->tokens) - first};
    }
    if (table) {
        header->file_bytes = pkvi_saved_bytes(header, table);
        header->checksum = pkvi_hash(header, offsetof(struct pkvi_saved_header, checksum), 0);
    }
    return table;
}

static void write_part(struct pkvi_new_file *file, const void *data, size_t bytes)
{
    const uint64_t checksum = pkvi_hash(data, bytes, 0);
    pkvi_new_file_write(file, data, bytes);
    pkvi_new_file_write(file, &checksum, sizeof checksum);
}

/* Slots of the last block that no token of the sequence is in: whatever stood there before. */
static void clear_rest(const struct pkv_seq *seq, uint32_t layer, char *block)
{
    const struct pkv_layer_info *info = &seq->session->model->layer[layer].info;
    const uint32_t used = seq->tokens % PKV_PAGE_TOKENS;
    const uint64_t entry = pkvi_kv_entry_bytes(seq->session->config.kv_type, info->head_dim);
    for (uint32_t h = 0; used > 0 && h < info->kv_heads; h++) {
        memset(block + (h * (uint64_t)PKV_PAGE_TOKENS + used) * entry, 0,
               (PKV_PAGE_TOKENS - used) * entry);
    }
}

static enum pkv_status write_layer(struct piece *piece, const struct pkvi_saved_layer *layer,
                                   uint32_t l, struct pkvi_new_file *file)
{
    struct pkv_session *s = piece->seq->session;
    const uint64_t bytes = pkvi_tier_block_bytes(s->tier, l);
    const uint32_t most = (uint32_t)(piece->bytes / bytes);
    char *memory = pkvi_host(piece->memory);
    for (uint32_t done = 0; done < layer->block_count;) {
        const uint32_t left = layer->block_count - done, count = left < most ? left : most;
        PKV_TRY(pkvi_session_check(s, pkvi_tier_seq_read(s->tier, piece->seq->index, l,
                                                         layer->first_block + done, count,
                                                         piece->memory)));
        if (count == left) {
            clear_rest(piece->seq, l, memory + (count - 1) * bytes);
        }
        for (uint32_t i = 0; i < count; i++, done++) {
            piece->checksums[done] = pkvi_saved_checksum(memory + i * bytes, bytes, l, done);
        }
        pkvi_new_file_write(file, memory, count * bytes);
    }
    pkvi_new_file_write(file, piece->checksums, layer->block_count * sizeof *piece->checksums);
    return PKV_OK;
}

/* Where a piece of a hot set's bytes ends. */
static uint64_t next_piece(uint64_t at, uint64_t bytes)
{
    return bytes - at < PKVI_SAVED_PIECE_BYTES ? bytes : at + PKVI_SAVED_PIECE_BYTES;
}

static enum pkv_status write_hot(const struct piece *piece, uint64_t bytes,
                                 struct pkvi_new_file *file)
{
    struct pkv_session *s = piece->seq->session;
    uint64_t checksum = 0;
    for (uint64_t at = 0, end; at < bytes; at = end) {
        end = next_piece(at, bytes);
        PKV_TRY(pkvi_session_check(
            s, pkvi_tier_hot_move(s->tier, piece->seq->index, at, end - at, piece->memory, false)));
        checksum = pkvi_hash(pkvi_host(piece->memory), end - at, checksum);
        pkvi_new_file_write(file, pkvi_host(piece->memory), end - at);
    }
    pkvi_new_file_write(file, &checksum, sizeof checksum);
    return PKV_OK;
}

static enum pkv_status write_all(struct pkv_seq *seq, const struct pkv_saved_info *info,
                                 struct pkvi_new_file *file)
{
    struct pkvi_saved_header header;
    struct piece piece;
    uint32_t *words = NULL;
    struct pkvi_saved_layer *table = describe(seq, info, &header, &words);
    enum pkv_status status = open_piece(seq, seq->tokens, &piece);
    if (status == PKV_OK && (!table || !words)) {
        status = PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u layers", header.layers);
    }
    if (status == PKV_OK) {
        pkvi_new_file_write(file, &header, sizeof header);
        write_part(file, table, header.layers * sizeof *table);
        write_part(file, info->ids, info->id_count * sizeof *info->ids);
        write_part(file, info->note_bytes > 0 ? info->note : "", info->note_bytes);
    }
    for (uint32_t l = 0; status == PKV_OK && l < header.layers; l++) {
        status = write_layer(&piece, &table[l], l, file);
    }
    if (status == PKV_OK && header.hot_bytes > 0) {
        write_part(file, words, header.hot_words * sizeof *words);
        status = write_hot(&piece, header.hot_bytes, file);
    }
    free(words);
    free(piece.checksums);
    free(table);
    return status;
}

enum pkv_status pkv_seq_save(struct pkv_seq *seq, const char *path,
                             const struct pkv_saved_info *info)
{
    struct pkvi_new_file file;
    if (seq->tokens == 0 || info->id_count < seq->tokens || info->id_count > INT32_MAX) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "save a sequence of %u tokens with %u ids: expected at least one token, "
                        "and an id for each",
                        seq->tokens, info->id_count);
    }
    if (info->note_bytes > PKV_SAVED_NOTE_BYTES) {
        return PKV_FAIL(PKV_ERR_RANGE, "save a sequence: a note of %llu bytes, at most %llu",
                        (unsigned long long)info->note_bytes,
                        (unsigned long long)PKV_SAVED_NOTE_BYTES);
    }
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(pkvi_session_keeps_all(seq->session, "save a sequence"));
    PKV_TRY(pkvi_new_file_open(path, 0600, &file));
    const enum pkv_status status = write_all(seq, info, &file);
    if (status == PKV_OK) {
        return pkvi_new_file_commit(&file);
    }
    pkvi_new_file_discard(&file);
    return status;
}

enum pkv_status pkv_saved_probe(const char *path)
{
    struct pkvi_new_file file;
    PKV_TRY(pkvi_new_file_open(path, 0600, &file));
    pkvi_new_file_discard(&file);
    return PKV_OK;
}

/* ---- load ---- */

static enum pkv_status check_model(const struct pkv_session *s, const struct pkv_saved *saved)
{
    const struct pkvi_saved_header *h = &saved->header;
    bool same = h->identity == s->model->identity && h->layers == s->model->info.layers;
    for (uint32_t l = 0; same && l < h->layers; l++) {
        const struct pkv_layer_info *info = &s->model->layer[l].info;
        const struct pkvi_saved_layer *layer = &saved->layer[l];
        same = layer->kind == (uint32_t)info->kind && layer->kv_heads == info->kv_heads &&
               layer->head_dim == info->head_dim && layer->window == info->window;
    }
    if (!same) {
        return PKV_FAIL(PKV_ERR_INVALID, "%.200s: saved with another model", saved->path);
    }
    if (h->kv_type != (uint32_t)s->config.kv_type) {
        return PKV_FAIL(PKV_ERR_INVALID, "%.200s: K and V are %s, those of the session %s",
                        saved->path, pkv_kv_type_name((enum pkv_kv_type)h->kv_type),
                        pkv_kv_type_name(s->config.kv_type));
    }
    if (h->long_rope != long_rope(s)) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "%.200s: saved with other rotary frequencies: those of %s contexts",
                        saved->path, h->long_rope != 0 ? "long" : "short");
    }
    if (h->tokens > s->config.context_tokens) {
        return PKV_FAIL(PKV_ERR_RANGE, "%.200s: %u tokens, room for %u", saved->path, h->tokens,
                        s->config.context_tokens);
    }
    for (uint32_t i = 0; i < h->id_count; i++) {
        if ((uint32_t)saved->ids[i] >= s->model->info.vocab) {
            return PKV_FAIL(PKV_ERR_RANGE, "%.200s: token id %d at place %u: expected 0 to %u",
                            saved->path, saved->ids[i], i, s->model->info.vocab - 1);
        }
    }
    return PKV_OK;
}

/* From block `first` on: a ring may have less room than the one that was saved. */
static enum pkv_status read_layer(struct piece *piece, const struct pkv_saved *saved, uint32_t l,
                                  uint32_t first)
{
    struct pkv_session *s = piece->seq->session;
    const struct pkvi_saved_layer *layer = &saved->layer[l];
    const uint64_t bytes = pkvi_tier_block_bytes(s->tier, l);
    const uint32_t most = (uint32_t)(piece->bytes / bytes);
    const uint64_t offset = pkvi_saved_offset(saved, l);
    char *memory = pkvi_host(piece->memory);
    PKV_TRY(pkvi_saved_read(saved, offset + layer->block_count * bytes, piece->checksums,
                            layer->block_count * sizeof *piece->checksums));
    for (uint32_t done = first - layer->first_block; done < layer->block_count;) {
        const uint32_t left = layer->block_count - done, count = left < most ? left : most;
        PKV_TRY(pkvi_saved_read(saved, offset + done * bytes, memory, count * bytes));
        for (uint32_t i = 0; i < count; i++) {
            if (piece->checksums[done + i] !=
                pkvi_saved_checksum(memory + i * bytes, bytes, l, done + i)) {
                return PKV_FAIL(PKV_ERR_CORRUPT,
                                "%.200s: damaged: the checksum of block %u of layer %u does not "
                                "hold",
                                saved->path, layer->first_block + done + i, l);
            }
        }
        PKV_TRY(pkvi_session_check(s, pkvi_tier_seq_write(s->tier, piece->seq->index, l,
                                                          layer->first_block + done, count,
                                                          piece->memory)));
        done += count;
    }
    return PKV_OK;
}

static enum pkv_status read_words(const struct pkv_saved *saved, uint32_t **words_out)
{
    const uint64_t offset = pkvi_saved_hot_offset(saved);
    const uint64_t bytes = saved->header.hot_words * sizeof **words_out;
    uint64_t checksum = 0;
    *words_out = malloc(bytes + 1);
    if (!*words_out) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "hot set of %llu bytes", (unsigned long long)bytes);
    }
    PKV_TRY(pkvi_saved_read(saved, offset, *words_out, bytes));
    PKV_TRY(pkvi_saved_read(saved, offset + bytes, &checksum, sizeof checksum));
    if (checksum != pkvi_hash(*words_out, bytes, 0)) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%.200s: damaged: the checksum of the hot set's words does not hold",
                        saved->path);
    }
    return PKV_OK;
}

/* The bytes are read, and must be right, also where the tier makes other hot sets. */
static enum pkv_status read_pieces(const struct piece *piece, const struct pkv_saved *saved,
                                   bool adopted)
{
    struct pkv_session *s = piece->seq->session;
    const uint64_t offset = pkvi_saved_hot_bytes_offset(saved), bytes = saved->header.hot_bytes;
    uint64_t checksum = 0, expected = 0;
    for (uint64_t at = 0, end; at < bytes; at = end) {
        end = next_piece(at, bytes);
        PKV_TRY(pkvi_saved_read(saved, offset + at, pkvi_host(piece->memory), end - at));
        checksum = pkvi_hash(pkvi_host(piece->memory), end - at, checksum);
        if (adopted) {
            PKV_TRY(pkvi_session_check(s, pkvi_tier_hot_move(s->tier, piece->seq->index, at,
                                                             end - at, piece->memory, true)));
        }
    }
    PKV_TRY(pkvi_saved_read(saved, offset + bytes, &expected, sizeof expected));
    if (checksum != expected) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%.200s: damaged: the checksum of the hot set does not hold", saved->path);
    }
    return PKV_OK;
}

static enum pkv_status read_hot(const struct piece *piece, const struct pkv_saved *saved)
{
    const struct pkvi_saved_header *h = &saved->header;
    const struct pkvi_hot_saved hot = {
        .recipe = h->hot_recipe, .bytes = h->hot_bytes, .ring_pages = h->hot_ring_pages};
    struct pkv_session *s = piece->seq->session;
    uint32_t *words = NULL;
    bool adopted = false;
    if (h->hot_bytes == 0) {
        return PKV_OK;
    }
    enum pkv_status status = read_words(saved, &words);
    if (status == PKV_OK) {
        status = pkvi_tier_hot_adopt(s->tier, piece->seq->index, &hot, words, &adopted);
        status = status == PKV_ERR_CORRUPT ? status : pkvi_session_check(s, status);
    }
    if (status == PKV_OK) {
        status = read_pieces(piece, saved, adopted);
    }
    free(words);
    return status;
}

static enum pkv_status read_all(struct pkv_seq *seq, const struct pkv_saved *saved)
{
    struct pkv_session *s = seq->session;
    struct piece piece;
    const uint32_t tokens = saved->header.tokens, blocks = pkvi_pages_of(tokens);
    uint32_t high = tokens;
    enum pkv_status status = open_piece(seq, tokens, &piece);
    if (status == PKV_OK) {
        status = pkvi_session_check(s, pkvi_tier_seq_fill(s->tier, seq->index, tokens));
    }
    for (uint32_t l = 0; status == PKV_OK && l < saved->header.layers; l++) {
        uint32_t first = saved->layer[l].first_block;
        if (saved->layer[l].kind == PKV_LAYER_SLIDING) {
            const uint32_t ring = pkvi_tier_layer_pages(&s->tier_config, l);
            first = blocks > ring && blocks - ring > first ? blocks - ring : first;
            if (first > 0 && (first + ring) * PKV_PAGE_TOKENS > high) {
                high = (first + ring) * PKV_PAGE_TOKENS; /* as if so many had been written */
            }
        }
        status = read_layer(&piece, saved, l, first);
    }
    if (status == PKV_OK) {
        status = pkvi_session_check(s, pkvi_tier_seq_filled(s->tier, seq->index));
    }
    if (status == PKV_OK) {
        status = read_hot(&piece, saved);
    }
    seq->tokens = tokens;
    seq->high = high;
    free(piece.checksums);
    return status;
}

enum pkv_status pkv_seq_load(struct pkv_session *session, struct pkv_saved *saved,
                             struct pkv_seq **seq_out)
{
    struct pkv_seq *seq = NULL;
    PKV_TRY(pkvi_session_rest(session));
    PKV_TRY(pkvi_session_keeps_all(session, "load a sequence"));
    PKV_TRY(check_model(session, saved));
    PKV_TRY(pkv_seq_open(session, &seq));
    const enum pkv_status status = read_all(seq, saved);
    if (status != PKV_OK) {
        pkv_seq_close(seq);
        return status;
    }
    *seq_out = seq;
    return PKV_OK;
}
