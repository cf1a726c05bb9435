/*
 * gguf_builder.h: GGUF files made or changed by tests, written from the format's description and
 * not with the code under test.
 */
#ifndef PKV_TEST_GGUF_BUILDER_H
#define PKV_TEST_GGUF_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pkvt_gguf_key {
    char *name;
    uint32_t type; /* of the value, or of an array's elements */
    bool is_array;
    uint64_t count;
    uint8_t *value;
    size_t bytes;
};

struct pkvt_gguf_tensor {
    char *name;
    uint32_t dim_count;
    uint64_t dim[8];
    uint32_t type;
    uint8_t *data;
    size_t bytes;
};

/* Where a number of the format stands in the written file. */
struct pkvt_gguf_field {
    const char *kind; /* "key count", "string length", "value type", "offset", ... */
    size_t at, bytes;
};

struct pkvt_gguf {
    uint32_t version, alignment;
    struct pkvt_gguf_key key[256];
    size_t key_count;
    struct pkvt_gguf_tensor tensor[256];
    size_t tensor_count;
    /* Filled by write. */
    uint8_t *file;
    size_t file_bytes, tables_bytes;
    struct pkvt_gguf_field field[8192];
    size_t field_count;
};

/* Version 3, alignment 32, nothing in it. Freed with pkvt_gguf_free(). */
struct pkvt_gguf *pkvt_gguf_new(void);
/* Keys and tensors of a (single) file; fails the test if it cannot be read. */
struct pkvt_gguf *pkvt_gguf_load(const char *path);
void pkvt_gguf_free(struct pkvt_gguf *gguf);

/* Set or replace a key. */
void pkvt_gguf_set(struct pkvt_gguf *gguf, const char *name, uint32_t type, bool is_array,
                   uint64_t count, const void *value, size_t bytes);
void pkvt_gguf_set_u32(struct pkvt_gguf *gguf, const char *name, uint32_t value);
void pkvt_gguf_set_f32(struct pkvt_gguf *gguf, const char *name, float value);
void pkvt_gguf_set_bool(struct pkvt_gguf *gguf, const char *name, bool value);
void pkvt_gguf_set_str(struct pkvt_gguf *gguf, const char *name, const char *value);
void pkvt_gguf_set_strs(struct pkvt_gguf *gguf, const char *name, const char *const *values,
                        uint64_t count);
void pkvt_gguf_drop_key(struct pkvt_gguf *gguf, const char *name);

/* Add a tensor of zeros (bytes from the caller), or find, drop one. */
struct pkvt_gguf_tensor *pkvt_gguf_add_tensor(struct pkvt_gguf *gguf, const char *name,
                                              uint32_t type, size_t bytes, uint32_t dim_count,
                                              const uint64_t *dim);
struct pkvt_gguf_tensor *pkvt_gguf_tensor(struct pkvt_gguf *gguf, const char *name);
void pkvt_gguf_drop_tensor(struct pkvt_gguf *gguf, const char *name);

/* Write to gguf->file, noting fields. */
void pkvt_gguf_write(struct pkvt_gguf *gguf);

/* A path under which bytes can be opened as a file, without a folder; one at a time. */
const char *pkvt_memory_file(const void *bytes, size_t count);

#endif
