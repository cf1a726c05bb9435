/*
 * saved_format.h: the file of a saved sequence, version 2, little endian. docs/kv-file.md describes
 * it. Knows how the parts follow one another; refuses to know where K and V come from.
 */
#ifndef PKV_SESSION_SAVED_FORMAT_H
#define PKV_SESSION_SAVED_FORMAT_H

#include "pivotkv/saved.h"

#define PKVI_SAVED_MAGIC "PKVSEQ\x1a\n"
#define PKVI_SAVED_VERSION 2u
#define PKVI_SAVED_PIECE_BYTES (1u << 20) /* of a hot set, that is summed at once */

struct pkvi_saved_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t file_bytes, identity; /* of the model */
    uint32_t kv_type, block_tokens, layers, tokens, id_count;
    uint32_t long_rope; /* bit i: frequencies of set i are those for long contexts */
    uint64_t note_bytes;
    uint64_t hot_recipe, hot_bytes;     /* hash of what made the hot set; its bytes, 0 = none */
    uint32_t hot_ring_pages, hot_words; /* words that say how it is laid out */
    uint64_t checksum;                  /* of all before it */
};

struct pkvi_saved_layer {
    uint32_t kind; /* enum pkv_layer_kind */
    uint32_t kv_heads, head_dim, window;
    uint32_t first_block, block_count; /* the last one ends at `tokens` or beyond */
};

/* After the header: layers and their checksum, ids and theirs, note and its, then for each layer
 * its blocks, [block][kv_head][32 tokens][K|V], and their checksums. With a hot set: its words and
 * their checksum, its bytes and theirs. */
struct pkv_saved {
    struct pkvi_saved_header header;
    struct pkvi_saved_layer *layer; /* [header.layers] */
    int32_t *ids;
    char *note;
    char *path;
    int file;
};

_Static_assert(sizeof(struct pkvi_saved_header) == 96, "the file has it so");
_Static_assert(sizeof(struct pkvi_saved_layer) == 24, "the file has it so");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file has it so");

/* Bytes of the whole file, or UINT64_MAX where the sum passes 64 bits. */
uint64_t pkvi_saved_bytes(const struct pkvi_saved_header *header,
                          const struct pkvi_saved_layer *layers);
/* Offset of a layer's blocks. */
uint64_t pkvi_saved_offset(const struct pkv_saved *saved, uint32_t layer);
uint64_t pkvi_saved_block_bytes(const struct pkvi_saved_header *header,
                                const struct pkvi_saved_layer *layer);
/* Offset of the hot set's words; of its bytes. */
uint64_t pkvi_saved_hot_offset(const struct pkv_saved *saved);
uint64_t pkvi_saved_hot_bytes_offset(const struct pkv_saved *saved);
/* Words of a hot set over these layers: 1 + 2 a KV head, of each global one. */
uint64_t pkvi_saved_hot_words(const struct pkvi_saved_header *header,
                              const struct pkvi_saved_layer *layers);
/* Of one block. */
uint64_t pkvi_saved_checksum(const void *block, uint64_t bytes, uint32_t layer, uint32_t number);

/* Header alone; header and layers. PKV_ERR_CORRUPT, PKV_ERR_UNSUPPORTED: what is wrong. */
enum pkv_status pkvi_saved_check_header(const struct pkvi_saved_header *header, const char *name);
enum pkv_status pkvi_saved_check_layers(const struct pkvi_saved_header *header,
                                        const struct pkvi_saved_layer *layers, const char *name);

/* Read bytes at an offset; a short file is PKV_ERR_CORRUPT. */
enum pkv_status pkvi_saved_read(const struct pkv_saved *saved, uint64_t offset, void *to,
                                uint64_t bytes);

#endif
