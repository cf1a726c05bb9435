/* saved_format.c: owns the checks of a saved sequence's file, and opening one. */
#include "runtime/session/saved_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/hash.h"

#define MOST_LAYERS 65536u
#define CHECKSUM_BYTES sizeof(uint64_t)

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t pkvi_saved_block_bytes(const struct pkvi_saved_header *header,
                                const struct pkvi_saved_layer *layer)
{
    return times(pkvi_kv_entry_bytes((enum pkv_kv_type)header->kv_type, layer->head_dim),
                 (uint64_t)layer->kv_heads * PKV_PAGE_TOKENS);
}

/* All before the first block. */
static uint64_t head_bytes(const struct pkvi_saved_header *header)
{
    uint64_t bytes = sizeof *header;
    bytes += header->layers * sizeof(struct pkvi_saved_layer) + CHECKSUM_BYTES;
    bytes += header->id_count * sizeof(int32_t) + CHECKSUM_BYTES;
    return add(bytes, add(header->note_bytes, CHECKSUM_BYTES));
}

static uint64_t layer_bytes(const struct pkvi_saved_header *header,
                            const struct pkvi_saved_layer *layer)
{
    return times(add(pkvi_saved_block_bytes(header, layer), CHECKSUM_BYTES), layer->block_count);
}

/* The first `count` layers, and all before them. */
static uint64_t bytes_before(const struct pkvi_saved_header *header,
                             const struct pkvi_saved_layer *layers, uint32_t count)
{
    uint64_t bytes = head_bytes(header);
    for (uint32_t l = 0; l < count; l++) {
        bytes = add(bytes, layer_bytes(header, &layers[l]));
    }
    return bytes;
}

static uint64_t words_bytes(const struct pkvi_saved_header *header)
{
    return header->hot_words * sizeof(uint32_t) + CHECKSUM_BYTES;
}

uint64_t pkvi_saved_bytes(const struct pkvi_saved_header *header,
                          const struct pkvi_saved_layer *layers)
{
    const uint64_t bytes = bytes_before(header, layers, header->layers);
    return header->hot_bytes == 0
               ? bytes
               : add(add(bytes, words_bytes(header)), add(header->hot_bytes, CHECKSUM_BYTES));
}

uint64_t pkvi_saved_hot_words(const struct pkvi_saved_header *header,
                              const struct pkvi_saved_layer *layers)
{
    uint64_t words = 0;
    for (uint32_t l = 0; l < header->layers; l++) {
        words += layers[l].kind == PKV_LAYER_GLOBAL ? 1 + 2ull * layers[l].kv_heads : 0;
    }
    return words;
}

uint64_t pkvi_saved_offset(const struct pkv_saved *saved, uint32_t layer)
{
    return bytes_before(&saved->header, saved->layer, layer);
}

uint64_t pkvi_saved_hot_offset(const struct pkv_saved *saved)
{
    return bytes_before(&saved->header, saved->layer, saved->header.layers);
}

uint64_t pkvi_saved_hot_bytes_offset(const struct pkv_saved *saved)
{
    return pkvi_saved_hot_offset(saved) + words_bytes(&saved->header);
}

uint64_t pkvi_saved_checksum(const void *block, uint64_t bytes, uint32_t layer, uint32_t number)
{
    return pkvi_hash(block, bytes, (uint64_t)layer << 32 | number);
}

static enum pkv_status bad(const char *name, const char *what, uint64_t found, const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: %s is %llu, expected %s", name, what,
                    (unsigned long long)found, expected);
}

enum pkv_status pkvi_saved_check_header(const struct pkvi_saved_header *h, const char *name)
{
    if (memcmp(h->magic, PKVI_SAVED_MAGIC, sizeof h->magic) != 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: not a file of a saved sequence", name);
    }
    if (h->version != PKVI_SAVED_VERSION) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%.200s: a saved sequence of version %u, this program reads version %u",
                        name, h->version, PKVI_SAVED_VERSION);
    }
    if (h->checksum != pkvi_hash(h, offsetof(struct pkvi_saved_header, checksum), 0)) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: the header's checksum does not hold",
                        name);
    }
    if (h->header_bytes != sizeof *h) {
        return bad(name, "the header's size", h->header_bytes, "96");
    }
    if (h->kv_type >= PKV_KV_TYPE_COUNT) {
        return bad(name, "the type of K and V", h->kv_type, "0 to 3");
    }
    if (h->block_tokens != PKV_PAGE_TOKENS) {
        return bad(name, "the number of tokens in a block", h->block_tokens, "32");
    }
    if (h->layers == 0 || h->layers > MOST_LAYERS) {
        return bad(name, "the number of layers", h->layers, "1 to 65536");
    }
    if (h->tokens == 0 || h->tokens > INT32_MAX) {
        return bad(name, "the number of tokens", h->tokens, "1 to 2147483647");
    }
    if (h->id_count < h->tokens || h->id_count > INT32_MAX) {
        return bad(name, "the number of ids", h->id_count, "at least that of tokens");
    }
    if (h->note_bytes > PKV_SAVED_NOTE_BYTES) {
        return bad(name, "the note's size", h->note_bytes, "at most 16777216");
    }
    return PKV_OK;
}

static bool layer_is_right(const struct pkvi_saved_header *h, const struct pkvi_saved_layer *l)
{
    const uint32_t blocks = pkvi_pages_of(h->tokens);
    if (l->kv_heads == 0 || l->kv_heads > UINT16_MAX || l->head_dim == 0 ||
        l->head_dim > UINT16_MAX || l->first_block > blocks ||
        l->block_count != blocks - l->first_block) {
        return false;
    }
    if (l->kind == PKV_LAYER_GLOBAL) {
        return l->first_block == 0;
    }
    const uint32_t seen = h->tokens >= l->window ? h->tokens - l->window + 1 : 0;
    return l->kind == PKV_LAYER_SLIDING && l->window > 0 &&
           (uint64_t)l->first_block * PKV_PAGE_TOKENS <= seen;
}

enum pkv_status pkvi_saved_check_layers(const struct pkvi_saved_header *header,
                                        const struct pkvi_saved_layer *layers, const char *name)
{
    for (uint32_t l = 0; l < header->layers; l++) {
        if (!layer_is_right(header, &layers[l])) {
            const struct pkvi_saved_layer *layer = &layers[l];
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%.200s: damaged: layer %u (kind %u, %u KV heads of %u, window %u) "
                            "has blocks %u to %u of %u tokens",
                            name, l, layer->kind, layer->kv_heads, layer->head_dim, layer->window,
                            layer->first_block, layer->first_block + layer->block_count,
                            header->tokens);
        }
    }
    const uint64_t words = header->hot_bytes > 0 ? pkvi_saved_hot_words(header, layers) : 0;
    if (header->hot_words != words) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: %u words about a hot set, expected %llu",
                        name, header->hot_words, (unsigned long long)words);
    }
    if (pkvi_saved_bytes(header, layers) != header->file_bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%.200s: damaged: %llu bytes by its header, %llu by its parts", name,
                        (unsigned long long)header->file_bytes,
                        (unsigned long long)pkvi_saved_bytes(header, layers));
    }
    return PKV_OK;
}

enum pkv_status pkvi_saved_read(const struct pkv_saved *saved, uint64_t offset, void *to,
                                uint64_t bytes)
{
    char *at = to;
    while (bytes > 0) {
        const ssize_t got = pread(saved->file, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return PKV_FAIL(PKV_ERR_IO, "%.200s: cannot read: %s", saved->path, strerror(errno));
        }
        if (got == 0) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: ends at byte %llu, within its parts",
                            saved->path, (unsigned long long)offset);
        }
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return PKV_OK;
}

/* A part with its checksum, into new memory; one byte more, which is 0. */
static enum pkv_status read_part(const struct pkv_saved *saved, const char *what, uint64_t *offset,
                                 uint64_t bytes, void **out)
{
    uint64_t checksum = 0;
    char *part = malloc(bytes + 1);
    if (!part) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%.200s: %s: %llu bytes", saved->path, what,
                        (unsigned long long)bytes);
    }
    part[bytes] = '\0';
    *out = part;
    PKV_TRY(pkvi_saved_read(saved, *offset, part, bytes));
    PKV_TRY(pkvi_saved_read(saved, *offset + bytes, &checksum, sizeof checksum));
    *offset += bytes + sizeof checksum;
    if (checksum != pkvi_hash(part, bytes, 0)) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: the checksum of the %s does not hold",
                        saved->path, what);
    }
    return PKV_OK;
}

static enum pkv_status read_head(struct pkv_saved *s, uint64_t file_bytes)
{
    uint64_t offset = sizeof s->header;
    if (file_bytes < sizeof s->header) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: not a file of a saved sequence", s->path);
    }
    PKV_TRY(pkvi_saved_read(s, 0, &s->header, sizeof s->header));
    PKV_TRY(pkvi_saved_check_header(&s->header, s->path));
    if (file_bytes != s->header.file_bytes || head_bytes(&s->header) > file_bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: %llu bytes, expected %llu", s->path,
                        (unsigned long long)file_bytes, (unsigned long long)s->header.file_bytes);
    }
    PKV_TRY(read_part(s, "table of layers", &offset, s->header.layers * sizeof *s->layer,
                      (void **)&s->layer));
    PKV_TRY(pkvi_saved_check_layers(&s->header, s->layer, s->path));
    PKV_TRY(read_part(s, "ids", &offset, s->header.id_count * sizeof *s->ids, (void **)&s->ids));
    PKV_TRY(read_part(s, "note", &offset, s->header.note_bytes, (void **)&s->note));
    for (uint32_t i = 0; i < s->header.id_count; i++) {
        if (s->ids[i] < 0) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: token id %d at place %u", s->path,
                            s->ids[i], i);
        }
    }
    return PKV_OK;
}

static enum pkv_status open_file(struct pkv_saved *s, const char *path)
{
    struct stat info;
    s->path = strdup(path);
    if (!s->path) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "name of a file");
    }
    s->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->file < 0 || fstat(s->file, &info) != 0) {
        return PKV_FAIL(PKV_ERR_IO, "%.200s: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return PKV_FAIL(PKV_ERR_IO, "%.200s: is no regular file", path);
    }
    return read_head(s, (uint64_t)info.st_size);
}

enum pkv_status pkv_saved_open(const char *path, struct pkv_saved **saved_out)
{
    if (!path || path[0] == '\0') {
        return PKV_FAIL(PKV_ERR_INVALID, "open a saved sequence: no path");
    }
    struct pkv_saved *s = calloc(1, sizeof *s);
    if (!s) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "saved sequence: %zu bytes", sizeof *s);
    }
    s->file = -1;
    const enum pkv_status status = open_file(s, path);
    if (status != PKV_OK) {
        pkv_saved_close(s);
        return status;
    }
    *saved_out = s;
    return PKV_OK;
}

void pkv_saved_close(struct pkv_saved *s)
{
    if (!s) {
        return;
    }
    if (s->file >= 0) {
        close(s->file);
    }
    free(s->note);
    free(s->ids);
    free(s->layer);
    free(s->path);
    free(s);
}

void pkv_saved_query(const struct pkv_saved *saved, struct pkv_saved_info *info_out)
{
    *info_out = (struct pkv_saved_info){.tokens = saved->header.tokens,
                                        .ids = saved->ids,
                                        .id_count = saved->header.id_count,
                                        .note = saved->note,
                                        .note_bytes = saved->header.note_bytes,
                                        .file_bytes = saved->header.file_bytes};
}
