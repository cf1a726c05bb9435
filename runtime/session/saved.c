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

static enum pkv_status open_piece(struct pkv_seq *seq, uint32_t tokens, struct piece *piece)
{
    struct pkv_session *s = seq->session;
    *piece = (struct piece){.seq = seq, .bytes = PIECE_BYTES};
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const uint64_t bytes = pkvi_tier_block_bytes(s->tier, l);
        piece->bytes = bytes > piece->bytes ? bytes : piece->bytes;
    }
    if (s->piece == 0) {
        PKV_TRY(pkvi_mem_alloc(s->model->device, PKV_MEM_PINNED, piece->bytes, &s->piece));
    }
    piece->memory = s->piece;
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

static struct pkvi_saved_layer *describe(const struct pkv_seq *seq,
                                         const struct pkv_saved_info *info,
                                         struct pkvi_saved_header *header)
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

static enum pkv_status write_all(struct pkv_seq *seq, const struct pkv_saved_info *info,
                                 struct pkvi_new_file *file)
{
    struct pkvi_saved_header header;
    struct piece piece;
    struct pkvi_saved_layer *table = describe(seq, info, &header);
    enum pkv_status status = open_piece(seq, seq->tokens, &piece);
    if (status == PKV_OK && !table) {
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
