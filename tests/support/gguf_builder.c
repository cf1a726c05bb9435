/* gguf_builder.c: see gguf_builder.h. Aborts where it is used wrongly: it only serves tests. */
#include "tests/support/gguf_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/pkv_test.h"

static void check(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "gguf_builder: %s\n", what);
        abort();
    }
}

static void *copy_bytes(const void *bytes, size_t count)
{
    void *copy = calloc(1, count + 1);
    check(copy != NULL, "out of memory");
    if (count > 0 && bytes) {
        memcpy(copy, bytes, count);
    }
    return copy;
}

struct pkvt_gguf *pkvt_gguf_new(void)
{
    struct pkvt_gguf *gguf = calloc(1, sizeof *gguf);
    check(gguf != NULL, "out of memory");
    gguf->version = 3;
    gguf->alignment = 32;
    return gguf;
}

void pkvt_gguf_free(struct pkvt_gguf *gguf)
{
    while (gguf->key_count > 0) {
        pkvt_gguf_drop_key(gguf, gguf->key[0].name);
    }
    while (gguf->tensor_count > 0) {
        pkvt_gguf_drop_tensor(gguf, gguf->tensor[0].name);
    }
    free(gguf->file);
    free(gguf);
}

/* ---- keys ---- */

static struct pkvt_gguf_key *find_key(struct pkvt_gguf *gguf, const char *name)
{
    for (size_t i = 0; i < gguf->key_count; i++) {
        if (strcmp(gguf->key[i].name, name) == 0) {
            return &gguf->key[i];
        }
    }
    return NULL;
}

void pkvt_gguf_set(struct pkvt_gguf *gguf, const char *name, uint32_t type, bool is_array,
                   uint64_t count, const void *value, size_t bytes)
{
    struct pkvt_gguf_key *key = find_key(gguf, name);
    if (key) {
        free(key->value);
    } else {
        check(gguf->key_count < 256, "too many keys");
        key = &gguf->key[gguf->key_count++];
        key->name = copy_bytes(name, strlen(name));
    }
    key->type = type;
    key->is_array = is_array;
    key->count = count;
    key->value = copy_bytes(value, bytes);
    key->bytes = bytes;
}

void pkvt_gguf_set_u32(struct pkvt_gguf *gguf, const char *name, uint32_t value)
{
    pkvt_gguf_set(gguf, name, 4, false, 1, &value, sizeof value);
}

void pkvt_gguf_set_f32(struct pkvt_gguf *gguf, const char *name, float value)
{
    pkvt_gguf_set(gguf, name, 6, false, 1, &value, sizeof value);
}

void pkvt_gguf_set_bool(struct pkvt_gguf *gguf, const char *name, bool value)
{
    uint8_t byte = value;
    pkvt_gguf_set(gguf, name, 7, false, 1, &byte, 1);
}

void pkvt_gguf_set_str(struct pkvt_gguf *gguf, const char *name, const char *value)
{
    uint64_t length = strlen(value);
    uint8_t *bytes = copy_bytes(NULL, 8 + length);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, value, length);
    pkvt_gguf_set(gguf, name, 8, false, 1, bytes, 8 + length);
    free(bytes);
}

void pkvt_gguf_set_strs(struct pkvt_gguf *gguf, const char *name, const char *const *values,
                        uint64_t count)
{
    size_t bytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        bytes += 8 + strlen(values[i]);
    }
    uint8_t *all = copy_bytes(NULL, bytes), *at = all;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = strlen(values[i]);
        memcpy(at, &length, 8);
        memcpy(at + 8, values[i], length);
        at += 8 + length;
    }
    pkvt_gguf_set(gguf, name, 8, true, count, all, bytes);
    free(all);
}

void pkvt_gguf_drop_key(struct pkvt_gguf *gguf, const char *name)
{
    struct pkvt_gguf_key *key = find_key(gguf, name);
    check(key != NULL, name);
    free(key->name);
    free(key->value);
    size_t index = (size_t)(key - gguf->key);
    memmove(key, key + 1, (--gguf->key_count - index) * sizeof *key);
}

/* ---- tensors ---- */

struct pkvt_gguf_tensor *pkvt_gguf_tensor(struct pkvt_gguf *gguf, const char *name)
{
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        if (strcmp(gguf->tensor[i].name, name) == 0) {
            return &gguf->tensor[i];
        }
    }
    return NULL;
}

struct pkvt_gguf_tensor *pkvt_gguf_add_tensor(struct pkvt_gguf *gguf, const char *name,
                                              uint32_t type, size_t bytes, uint32_t dim_count,
                                              const uint64_t *dim)
{
    check(gguf->tensor_count < 256 && dim_count <= 8, "too many tensors or dims");
    struct pkvt_gguf_tensor *tensor = &gguf->tensor[gguf->tensor_count++];
    *tensor = (struct pkvt_gguf_tensor){.dim_count = dim_count, .type = type, .bytes = bytes};
    tensor->name = copy_bytes(name, strlen(name));
    tensor->data = copy_bytes(NULL, bytes);
    memcpy(tensor->dim, dim, dim_count * sizeof *dim);
    return tensor;
}

void pkvt_gguf_drop_tensor(struct pkvt_gguf *gguf, const char *name)
{
    struct pkvt_gguf_tensor *tensor = pkvt_gguf_tensor(gguf, name);
    check(tensor != NULL, name);
    free(tensor->name);
    free(tensor->data);
    size_t index = (size_t)(tensor - gguf->tensor);
    memmove(tensor, tensor + 1, (--gguf->tensor_count - index) * sizeof *tensor);
}

/* ---- writing ---- */

static void put(struct pkvt_gguf *gguf, const void *bytes, size_t count)
{
    gguf->file = realloc(gguf->file, gguf->file_bytes + count + 1);
    check(gguf->file != NULL, "out of memory");
    if (count > 0) {
        memcpy(gguf->file + gguf->file_bytes, bytes, count);
    }
    gguf->file_bytes += count;
}

static void note(struct pkvt_gguf *gguf, const char *kind, size_t at, size_t bytes)
{
    check(gguf->field_count < 8192, "too many fields");
    gguf->field[gguf->field_count++] = (struct pkvt_gguf_field){kind, at, bytes};
}

static void put_number(struct pkvt_gguf *gguf, const char *kind, uint64_t value, size_t bytes)
{
    note(gguf, kind, gguf->file_bytes, bytes);
    put(gguf, &value, bytes);
}

static void put_name(struct pkvt_gguf *gguf, const char *name)
{
    put_number(gguf, "name length", strlen(name), 8);
    put(gguf, name, strlen(name));
}

static void put_padding(struct pkvt_gguf *gguf)
{
    while (gguf->file_bytes % gguf->alignment) {
        put(gguf, "", 1);
    }
}

static void put_key(struct pkvt_gguf *gguf, const struct pkvt_gguf_key *key)
{
    put_name(gguf, key->name);
    put_number(gguf, "value type", key->is_array ? 9 : key->type, 4);
    if (key->is_array) {
        put_number(gguf, "element type", key->type, 4);
        put_number(gguf, "array count", key->count, 8);
    }
    size_t start = gguf->file_bytes;
    put(gguf, key->value, key->bytes);
    for (size_t at = 0; key->type == 8 && at + 8 <= key->bytes;) {
        uint64_t length;
        memcpy(&length, key->value + at, 8);
        note(gguf, "string length", start + at, 8);
        at += 8 + length;
    }
    if (key->type == 7 && key->bytes > 0) {
        note(gguf, "bool", start, 1);
    }
}

void pkvt_gguf_write(struct pkvt_gguf *gguf)
{
    gguf->file_bytes = gguf->field_count = 0;
    put(gguf, "GGUF", 4);
    note(gguf, "magic", 0, 4);
    put_number(gguf, "version", gguf->version, 4);
    put_number(gguf, "tensor count", gguf->tensor_count, 8);
    put_number(gguf, "key count", gguf->key_count, 8);
    for (size_t i = 0; i < gguf->key_count; i++) {
        put_key(gguf, &gguf->key[i]);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        const struct pkvt_gguf_tensor *tensor = &gguf->tensor[i];
        put_name(gguf, tensor->name);
        put_number(gguf, "dim count", tensor->dim_count, 4);
        for (uint32_t d = 0; d < tensor->dim_count; d++) {
            put_number(gguf, "dim", tensor->dim[d], 8);
        }
        put_number(gguf, "tensor type", tensor->type, 4);
        put_number(gguf, "offset", offset, 8);
        offset += (tensor->bytes + gguf->alignment - 1) / gguf->alignment * gguf->alignment;
    }
    gguf->tables_bytes = gguf->file_bytes;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        put_padding(gguf);
        put(gguf, gguf->tensor[i].data, gguf->tensor[i].bytes);
    }
}

/* ---- reading (of files that are known to be fine) ---- */

struct reader {
    const uint8_t *at;
};

static uint64_t get(struct reader *reader, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, reader->at, bytes);
    reader->at += bytes;
    return value;
}

static char *get_name(struct reader *reader)
{
    uint64_t length = get(reader, 8);
    char *name = copy_bytes(reader->at, length);
    reader->at += length;
    return name;
}

static void load_key(struct pkvt_gguf *gguf, struct reader *reader)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char *name = get_name(reader);
    uint32_t type = (uint32_t)get(reader, 4);
    bool is_array = type == 9;
    uint64_t count = 1;
    if (is_array) {
        type = (uint32_t)get(reader, 4);
        count = get(reader, 8);
    }
    const uint8_t *start = reader->at;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bytes = sizes[type];
        if (type == 8) {
            bytes = get(reader, 8);
        }
        reader->at += bytes;
    }
    pkvt_gguf_set(gguf, name, type, is_array, count, start, (size_t)(reader->at - start));
    free(name);
}

struct pkvt_gguf *pkvt_gguf_load(const char *path)
{
    size_t bytes;
    char *file = pkvt_read_file(path, &bytes);
    struct pkvt_gguf *gguf = pkvt_gguf_new();
    struct reader reader = {(const uint8_t *)file + 8};
    uint64_t tensors = get(&reader, 8), keys = get(&reader, 8), offset[257];
    for (uint64_t i = 0; i < keys; i++) {
        load_key(gguf, &reader);
    }
    for (uint64_t i = 0; i < tensors; i++) {
        uint64_t dim[8];
        char *name = get_name(&reader);
        uint32_t dim_count = (uint32_t)get(&reader, 4);
        for (uint32_t d = 0; d < dim_count; d++) {
            dim[d] = get(&reader, 8);
        }
        uint32_t type = (uint32_t)get(&reader, 4);
        offset[i] = get(&reader, 8);
        pkvt_gguf_add_tensor(gguf, name, type, 0, dim_count, dim);
        free(name);
    }
    size_t start = ((size_t)(reader.at - (const uint8_t *)file) + 31) / 32 * 32;
    offset[tensors] = bytes - start;
    for (uint64_t i = 0; i < tensors; i++) {
        struct pkvt_gguf_tensor *tensor = &gguf->tensor[i];
        free(tensor->data);
        tensor->bytes = (size_t)(offset[i + 1] - offset[i]);
        tensor->data = copy_bytes(file + start + offset[i], tensor->bytes);
    }
    free(file);
    return gguf;
}

const char *pkvt_memory_file(const void *bytes, size_t count)
{
    static int file = -1;
    static char path[64];
    if (file >= 0) {
        close(file);
    }
    file = memfd_create("test.gguf", MFD_CLOEXEC);
    check(file >= 0, "memfd_create");
    for (size_t at = 0; at < count;) {
        ssize_t wrote = write(file, (const char *)bytes + at, count - at);
        check(wrote > 0, "write");
        at += (size_t)wrote;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return path;
}
