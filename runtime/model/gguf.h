/*
 * gguf.h: a GGUF file (v2, v3; one file or all shards), checked before anything of it is used.
 *
 * Owns: a copy of the tables of keys and tensors; weights stay in the file until they are read.
 * Refuses to know: what a key means. Format: the GGUF specification in ggml's docs/gguf.md.
 */
#ifndef PKV_MODEL_GGUF_H
#define PKV_MODEL_GGUF_H

#include "kernels/kernels.h"
#include "pivotkv/types.h"

enum pkvi_gguf_type {
    PKVI_GGUF_U8,
    PKVI_GGUF_I8,
    PKVI_GGUF_U16,
    PKVI_GGUF_I16,
    PKVI_GGUF_U32,
    PKVI_GGUF_I32,
    PKVI_GGUF_F32,
    PKVI_GGUF_BOOL,
    PKVI_GGUF_STRING,
    PKVI_GGUF_ARRAY,
    PKVI_GGUF_U64,
    PKVI_GGUF_I64,
    PKVI_GGUF_F64
};

/* Bytes inside the copied tables: not terminated, may hold any byte. */
struct pkvi_str {
    const char *data;
    uint64_t bytes;
};

struct pkvi_gguf_key {
    struct pkvi_str name;
    enum pkvi_gguf_type type; /* of the value, or of the elements of an array */
    bool is_array;
    uint64_t count;       /* 1, or elements of the array */
    const uint8_t *value; /* first byte in the copied tables, unaligned, little endian */
    uint64_t value_bytes; /* all elements were checked to lie inside the file */
};

struct pkvi_gguf_tensor {
    struct pkvi_str name;
    uint32_t dim_count;
    uint64_t dim[4];    /* dim[0] is the contiguous axis (columns); unused ones are 1 */
    uint32_t ggml_type; /* as in the file */
    bool supported;     /* weight_type is valid */
    enum pkv_weight_type weight_type;
    uint32_t shard;
    uint64_t offset; /* of its first byte in the shard; 0 if its bytes are not known */
    uint64_t bytes;
};

struct pkvi_gguf;

/*
 * Read and check a file's tables. A name that ends in -0000K-of-0000N.gguf opens all N shards,
 * whichever is named; keys are those of the first. Checks: magic, version, counts against the
 * file's bytes, every length, every key and tensor name (unique, valid UTF-8), types, dims (no
 * overflow), alignment, every tensor's bytes inside the file (tensor, bytes needed, bytes present
 * in the message), shard numbers and counts. Memory: proportional to the file's own tables, never
 * to a number in them. PKV_ERR_IO: cannot be read, is a folder. PKV_ERR_CORRUPT: not or no longer a
 * GGUF file. PKV_ERR_UNSUPPORTED: a version or byte order we do not read. Nothing stays open then.
 */
enum pkv_status pkvi_gguf_open(const char *path, struct pkvi_gguf **gguf_out);
void pkvi_gguf_close(struct pkvi_gguf *gguf);

const char *pkvi_gguf_path(const struct pkvi_gguf *gguf);
uint32_t pkvi_gguf_version(const struct pkvi_gguf *gguf);
uint32_t pkvi_gguf_shard_count(const struct pkvi_gguf *gguf);
uint64_t pkvi_gguf_file_bytes(const struct pkvi_gguf *gguf); /* all shards */
uint64_t pkvi_gguf_key_count(const struct pkvi_gguf *gguf);
const struct pkvi_gguf_key *pkvi_gguf_key_at(const struct pkvi_gguf *gguf, uint64_t index);
uint64_t pkvi_gguf_tensor_count(const struct pkvi_gguf *gguf);
const struct pkvi_gguf_tensor *pkvi_gguf_tensor_at(const struct pkvi_gguf *gguf, uint64_t index);

/* NULL if absent. */
const struct pkvi_gguf_key *pkvi_gguf_find_key(const struct pkvi_gguf *gguf, const char *name);
const struct pkvi_gguf_tensor *pkvi_gguf_find_tensor(const struct pkvi_gguf *gguf,
                                                     const char *name);

/* "Q4_K", as GGUF tools print it; NULL for an unknown number. */
const char *pkvi_gguf_ggml_type_name(uint32_t ggml_type);
/* Values and bytes of one block; false if unknown. */
bool pkvi_gguf_ggml_type_block(uint32_t ggml_type, uint32_t *values_out, uint32_t *bytes_out);
/* "u32", "string", ... */
const char *pkvi_gguf_type_name(enum pkvi_gguf_type type);

/* For messages: bytes of a string to print with "%.*s", at most 80, whole characters. */
int pkvi_str_shown(struct pkvi_str str);
bool pkvi_str_equal(struct pkvi_str str, const char *text);

/*
 * Typed reads. An absent key gives *found_out = false (if found_out is not NULL; else
 * PKV_ERR_CORRUPT naming the key) and leaves the value. A key of another type is PKV_ERR_CORRUPT,
 * naming key, type found and expected. u32 takes any integer type whose value fits; f32 takes f32
 * and f64, finite only.
 */
enum pkv_status pkvi_gguf_u32(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              uint32_t *value_out);
enum pkv_status pkvi_gguf_f32(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              float *value_out);
enum pkv_status pkvi_gguf_bool(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                               bool *value_out);
enum pkv_status pkvi_gguf_str(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              struct pkvi_str *value_out);

/* Element `index` of an array, with the same conversions. Strings: O(1), through a table made at
 * open. */
enum pkv_status pkvi_gguf_array_str(const struct pkvi_gguf *gguf, const struct pkvi_gguf_key *key,
                                    uint64_t index, struct pkvi_str *value_out);
enum pkv_status pkvi_gguf_array_f32(const struct pkvi_gguf_key *key, uint64_t index,
                                    float *value_out);
enum pkv_status pkvi_gguf_array_i32(const struct pkvi_gguf_key *key, uint64_t index,
                                    int32_t *value_out);

/*
 * Copy bytes [offset, offset + bytes) of a tensor from the file. PKV_ERR_IO: it cannot be read, or
 * became shorter meanwhile. Threads: any; the message is the calling thread's.
 */
enum pkv_status pkvi_gguf_read(const struct pkvi_gguf *gguf, const struct pkvi_gguf_tensor *tensor,
                               uint64_t offset, uint64_t bytes, void *out);

#endif
