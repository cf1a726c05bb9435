/*
 * gguf.c: opens a GGUF file: maps it, checks all of it, finds things by name.
 *
 * Layout of the format (v2, v3; little endian; from ggml's docs/gguf.md):
 *   magic "GGUF", u32 version, u64 tensor count, u64 key count
 *   keys      string name, u32 type, value (array: u32 type, u64 count, elements)
 *   tensors   string name, u32 dims, u64 dim[dims], u32 ggml type, u64 offset
 *   padding to general.alignment, then the data; offsets count from here
 * Nothing is believed: a number from the file is compared with the bytes that are left before it
 * is used, and tables grow with what was read, never with what was promised.
 */
#include "runtime/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/check.h"

#define GGUF_MAGIC 0x46554747u
#define GGUF_DEFAULT_ALIGNMENT 32u
#define GGUF_MAX_KEY_BYTES 65535u /* the specification's */
#define GGUF_MAX_TENSOR_NAME_BYTES 64u
#define GGUF_MAX_SHARDS 65535u   /* split.count is a u16 */
#define GGUF_LEAST_KEY_BYTES 14u /* empty names are refused: 8 + 1, type 4, value 1 */
#define LOAD_STEP_BYTES ((uint64_t)256 << 10)
#define GGUF_LEAST_TENSOR_BYTES 33u /* name 9, dims 4, one dim 8, type 4, offset 8 */

struct shard {
    char *path;
    char label[200]; /* the path in messages: a long one would push out the rest */
    uint8_t *base;   /* room for `bytes`, of which `loaded` are copied from the file */
    int file;        /* open as long as base is not NULL */
    uint64_t bytes, loaded, data_start;
    uint32_t version;
    uint64_t first_tensor, tensor_count;
};

struct key_table {
    struct pkvi_gguf_key *at;
    uint64_t **string_at; /* per key: offsets of an array's strings from `value`, or NULL */
    uint64_t count, capacity;
    const struct pkvi_str **sorted; /* the names; a name is the first member of its key */
};

struct pkvi_gguf {
    struct shard *shard;
    uint32_t shard_count;
    struct key_table keys;
    struct pkvi_gguf_tensor *tensor;
    uint64_t tensor_count, tensor_capacity;
    const struct pkvi_str **sorted_tensors;
    uint64_t file_bytes;
};

/* Where reading stands in a shard. */
struct cursor {
    struct shard *shard;
    uint64_t at;
};

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static uint64_t bytes_left(const struct cursor *cursor)
{
    return cursor->shard->bytes - cursor->at;
}

/* ---- reading ---- */

/* Bytes [at, at + bytes) of the file, by pread. */
static enum pkv_status read_bytes(const struct shard *shard, uint64_t at, uint64_t bytes, void *out)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(shard->file, (uint8_t *)out + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return PKV_FAIL(PKV_ERR_IO, "%s: cannot read %llu bytes at %llu: %s", shard->label,
                            (unsigned long long)(bytes - done), (unsigned long long)(at + done),
                            got < 0 ? strerror(errno) : "the file became shorter meanwhile");
        }
        done += (uint64_t)got;
    }
    return PKV_OK;
}

/* Copy more of the file, so that `end` bytes are there: what was checked cannot change afterwards.
 */
static enum pkv_status load(struct shard *shard, uint64_t end)
{
    if (end <= shard->loaded) {
        return PKV_OK;
    }
    uint64_t more = end - shard->loaded;
    more = more > LOAD_STEP_BYTES ? more : LOAD_STEP_BYTES;
    more = more < shard->bytes - shard->loaded ? more : shard->bytes - shard->loaded;
    // Pages are made usable as they are needed: a large file does not count as memory in use.
    if (mprotect(shard->base, (size_t)(shard->loaded + more), PROT_READ | PROT_WRITE) != 0) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s: the system refused %llu bytes for the tables",
                        shard->label, (unsigned long long)(shard->loaded + more));
    }
    PKV_TRY(read_bytes(shard, shard->loaded, more, shard->base + shard->loaded));
    shard->loaded += more;
    return PKV_OK;
}

static enum pkv_status take(struct cursor *cursor, uint64_t bytes, const char *what,
                            const uint8_t **out)
{
    if (bytes > bytes_left(cursor)) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: truncated: %s needs %llu bytes at offset %llu, %llu present",
                        cursor->shard->label, what, (unsigned long long)bytes,
                        (unsigned long long)cursor->at, (unsigned long long)bytes_left(cursor));
    }
    PKV_TRY(load(cursor->shard, cursor->at + bytes));
    *out = cursor->shard->base + cursor->at;
    cursor->at += bytes;
    return PKV_OK;
}

static enum pkv_status take_u32(struct cursor *cursor, const char *what, uint32_t *out)
{
    const uint8_t *bytes = NULL;
    PKV_TRY(take(cursor, 4, what, &bytes));
    *out = load_u32(bytes);
    return PKV_OK;
}

static enum pkv_status take_u64(struct cursor *cursor, const char *what, uint64_t *out)
{
    const uint8_t *bytes = NULL;
    PKV_TRY(take(cursor, 8, what, &bytes));
    *out = load_u64(bytes);
    return PKV_OK;
}

static enum pkv_status take_str(struct cursor *cursor, const char *what, struct pkvi_str *out)
{
    const uint8_t *bytes = NULL;
    PKV_TRY(take_u64(cursor, what, &out->bytes));
    PKV_TRY(take(cursor, out->bytes, what, &bytes));
    out->data = (const char *)bytes;
    return PKV_OK;
}

/* Bytes of the UTF-8 character at p, 0 if there is none (RFC 3629). */
static uint64_t utf8_bytes(const uint8_t *p, uint64_t left)
{
    uint32_t more = p[0] < 0x80                    ? 0
                    : p[0] >= 0xc2 && p[0] <= 0xdf ? 1
                    : p[0] >= 0xe0 && p[0] <= 0xef ? 2
                    : p[0] >= 0xf0 && p[0] <= 0xf4 ? 3
                                                   : 4;
    if (more == 4 || more >= left) {
        return 0;
    }
    for (uint32_t i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : more + 1;
}

static enum pkv_status take_name(struct cursor *cursor, const char *kind, uint64_t index,
                                 uint64_t count, uint64_t most_bytes, struct pkvi_str *out)
{
    char what[80];
    (void)snprintf(what, sizeof what, "name of %s %llu of %llu", kind,
                   (unsigned long long)(index + 1), (unsigned long long)count);
    PKV_TRY(take_str(cursor, what, out));
    if (out->bytes == 0 || out->bytes > most_bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s has %llu bytes, expected 1 to %llu",
                        cursor->shard->label, what, (unsigned long long)out->bytes,
                        (unsigned long long)most_bytes);
    }
    for (uint64_t i = 0, step; i < out->bytes; i += step) {
        step = utf8_bytes((const uint8_t *)out->data + i, out->bytes - i);
        if (step == 0) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s is not valid UTF-8 at byte %llu",
                            cursor->shard->label, what, (unsigned long long)i);
        }
    }
    return PKV_OK;
}

/* Room for one more element; doubles. */
static enum pkv_status grow(void **array, uint64_t count, uint64_t *capacity, size_t element_bytes)
{
    if (count < *capacity) {
        return PKV_OK;
    }
    uint64_t more = *capacity ? *capacity * 2 : 64;
    if (more > SIZE_MAX / element_bytes) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "a table of %llu elements does not fit",
                        (unsigned long long)more);
    }
    void *moved = realloc(*array, (size_t)more * element_bytes);
    if (!moved) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: %llu bytes for a table of the file",
                        (unsigned long long)(more * element_bytes));
    }
    *array = moved;
    *capacity = more;
    return PKV_OK;
}

/* ---- keys ---- */

/* Bytes of a value of fixed size; 0 for strings and arrays. */
static uint32_t value_type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

static enum pkv_status take_value_type(struct cursor *cursor, const struct pkvi_gguf_key *key,
                                       uint32_t *type_out)
{
    PKV_TRY(take_u32(cursor, "the type of a key's value", type_out));
    if (*type_out > PKVI_GGUF_F64) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%.*s' has value type %u, expected 0 to %u",
                        cursor->shard->label, pkvi_str_shown(key->name), key->name.data, *type_out,
                        (unsigned)PKVI_GGUF_F64);
    }
    return PKV_OK;
}

/* Walks the strings of an array (or the one string of a key) and notes where each begins. */
static enum pkv_status take_strings(struct cursor *cursor, struct pkvi_gguf_key *key,
                                    const char *what, uint64_t **string_at_out)
{
    uint64_t *at = NULL, capacity = 0;
    uint64_t start = cursor->at;
    enum pkv_status status = PKV_OK;
    for (uint64_t i = 0; i < key->count && status == PKV_OK; i++) {
        struct pkvi_str str;
        if (key->is_array) {
            status = grow((void **)&at, i, &capacity, sizeof *at);
            if (status != PKV_OK) {
                break;
            }
            at[i] = cursor->at - start;
        }
        status = take_str(cursor, what, &str);
    }
    if (status != PKV_OK) {
        free(at);
        return status;
    }
    *string_at_out = at;
    return PKV_OK;
}

static enum pkv_status take_value(struct cursor *cursor, struct pkvi_gguf_key *key,
                                  uint64_t **string_at_out)
{
    const char *label = cursor->shard->label;
    char what[128];
    (void)snprintf(what, sizeof what, "the value of key '%.*s'", pkvi_str_shown(key->name),
                   key->name.data);
    uint32_t type;
    PKV_TRY(take_value_type(cursor, key, &type));
    key->count = 1;
    key->is_array = type == PKVI_GGUF_ARRAY;
    if (key->is_array) {
        PKV_TRY(take_value_type(cursor, key, &type));
        PKV_TRY(take_u64(cursor, what, &key->count));
        if (type == PKVI_GGUF_ARRAY) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: key '%.*s' is an array of arrays", label,
                            pkvi_str_shown(key->name), key->name.data);
        }
    }
    key->type = (enum pkvi_gguf_type)type;
    key->value = cursor->shard->base + cursor->at;
    /* The least bytes that so many elements take: a string has at least its length. */
    uint64_t least = type == PKVI_GGUF_STRING ? 8 : value_type_bytes(type);
    if (key->count > bytes_left(cursor) / least) {
        return PKV_FAIL(
            PKV_ERR_CORRUPT,
            "%s: truncated: %s has %llu elements of at least %llu bytes, %llu bytes present", label,
            what, (unsigned long long)key->count, (unsigned long long)least,
            (unsigned long long)bytes_left(cursor));
    }
    uint64_t start = cursor->at;
    if (type == PKVI_GGUF_STRING) {
        PKV_TRY(take_strings(cursor, key, what, string_at_out));
    } else {
        cursor->at += key->count * least;
    }
    key->value_bytes = cursor->at - start;
    for (uint64_t i = 0; type == PKVI_GGUF_BOOL && i < key->count; i++) {
        if (key->value[i] > 1) {
            free(*string_at_out);
            *string_at_out = NULL;
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s holds %u, expected 0 or 1", label, what,
                            key->value[i]);
        }
    }
    return PKV_OK;
}

static enum pkv_status take_keys(struct cursor *cursor, uint64_t count, struct key_table *keys)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t capacity = keys->capacity;
        PKV_TRY(grow((void **)&keys->string_at, i, &capacity, sizeof *keys->string_at));
        PKV_TRY(grow((void **)&keys->at, i, &keys->capacity, sizeof *keys->at));
        struct pkvi_gguf_key *key = &keys->at[i];
        uint64_t *string_at = NULL;
        PKV_TRY(take_name(cursor, "key", i, count, GGUF_MAX_KEY_BYTES, &key->name));
        PKV_TRY(take_value(cursor, key, &string_at));
        keys->string_at[i] = string_at;
        keys->count = i + 1;
    }
    return PKV_OK;
}

static void free_keys(struct key_table *keys)
{
    for (uint64_t i = 0; i < keys->count; i++) {
        free(keys->string_at[i]);
    }
    free(keys->string_at);
    free(keys->at);
    free(keys->sorted);
    *keys = (struct key_table){0};
}

/* ---- lookup: sorted names, so that no choice of names can make it slow ---- */

static int compare_bytes(struct pkvi_str a, struct pkvi_str b)
{
    size_t least = (size_t)(a.bytes < b.bytes ? a.bytes : b.bytes);
    int order = memcmp(a.data, b.data, least);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_names(const void *a, const void *b)
{
    return compare_bytes(**(const struct pkvi_str *const *)a, **(const struct pkvi_str *const *)b);
}

/* Sorts pointers to the names that stand first in `count` elements; refuses equal ones. */
static enum pkv_status sort_names(const struct shard *shard, const char *kind, const void *elements,
                                  size_t element_bytes, uint64_t count,
                                  const struct pkvi_str ***sorted_out)
{
    const struct pkvi_str **sorted = malloc((size_t)(count ? count : 1) * sizeof(*sorted));
    if (!sorted) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: an index of %llu names",
                        (unsigned long long)count);
    }
    for (uint64_t i = 0; i < count; i++) {
        sorted[i] = (const void *)((const char *)elements + i * element_bytes);
    }
    qsort(sorted, (size_t)count, sizeof(*sorted), compare_names);
    for (uint64_t i = 1; i < count; i++) {
        if (compare_bytes(*sorted[i - 1], *sorted[i]) == 0) {
            enum pkv_status status =
                PKV_FAIL(PKV_ERR_CORRUPT, "%s: two %ss are named '%.*s', expected one",
                         shard->label, kind, pkvi_str_shown(*sorted[i]), sorted[i]->data);
            free(sorted);
            return status;
        }
    }
    *sorted_out = sorted;
    return PKV_OK;
}

static const void *find_name(const struct pkvi_str *const *sorted, uint64_t count, const char *name)
{
    struct pkvi_str wanted = {name, strlen(name)};
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = compare_bytes(*sorted[middle], wanted);
        if (order == 0) {
            return sorted[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

static const struct pkvi_gguf_key *find_key(const struct key_table *keys, const char *name)
{
    return find_name(keys->sorted, keys->count, name);
}

/* ---- tensors ---- */

static enum pkv_status take_dims(struct cursor *cursor, struct pkvi_gguf_tensor *tensor,
                                 const char *what)
{
    const char *label = cursor->shard->label;
    PKV_TRY(take_u32(cursor, what, &tensor->dim_count));
    if (tensor->dim_count < 1 || tensor->dim_count > 4) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: %s has %u dimensions, expected 1 to 4", label, what,
                        tensor->dim_count);
    }
    uint64_t values = 1;
    for (uint32_t i = 0; i < 4; i++) {
        tensor->dim[i] = 1;
        if (i < tensor->dim_count) {
            PKV_TRY(take_u64(cursor, what, &tensor->dim[i]));
        }
        uint64_t dim = tensor->dim[i];
        if (dim == 0 || dim > (uint64_t)INT64_MAX / values) {
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%s: dimension %u of %s is %llu, expected 1 to %llu (the number of "
                            "values must fit 63 bits)",
                            label, i, what, (unsigned long long)dim,
                            (unsigned long long)((uint64_t)INT64_MAX / values));
        }
        values *= dim;
    }
    return PKV_OK;
}

static const enum pkv_weight_type weight_type_of[] = {
    [0] = PKV_W_F32,   [1] = PKV_W_F16,   [2] = PKV_W_Q4_0,  [3] = PKV_W_Q4_1,  [6] = PKV_W_Q5_0,
    [7] = PKV_W_Q5_1,  [8] = PKV_W_Q8_0,  [10] = PKV_W_Q2_K, [11] = PKV_W_Q3_K, [12] = PKV_W_Q4_K,
    [13] = PKV_W_Q5_K, [14] = PKV_W_Q6_K, [30] = PKV_W_BF16,
};

static bool find_weight_type(uint32_t ggml_type, enum pkv_weight_type *type_out)
{
    if (ggml_type >= sizeof weight_type_of / sizeof weight_type_of[0] ||
        (weight_type_of[ggml_type] == PKV_W_F32 && ggml_type != 0)) {
        return false;
    }
    *type_out = weight_type_of[ggml_type];
    return true;
}

/* Type and size; `data` becomes the offset check's business later. */
static enum pkv_status take_format(struct cursor *cursor, struct pkvi_gguf_tensor *tensor,
                                   const char *what)
{
    PKV_TRY(take_u32(cursor, what, &tensor->ggml_type));
    tensor->supported = find_weight_type(tensor->ggml_type, &tensor->weight_type);
    uint32_t block_values, block_bytes;
    if (!pkvi_gguf_ggml_type_block(tensor->ggml_type, &block_values, &block_bytes)) {
        return PKV_OK;
    }
    const char *type = pkvi_gguf_ggml_type_name(tensor->ggml_type);
    if (tensor->dim[0] % block_values != 0) {
        return PKV_FAIL(
            PKV_ERR_CORRUPT, "%s: %s has rows of %llu values, expected a multiple of %u for %s",
            cursor->shard->label, what, (unsigned long long)tensor->dim[0], block_values, type);
    }
    uint64_t blocks =
        tensor->dim[0] / block_values * tensor->dim[1] * tensor->dim[2] * tensor->dim[3];
    if (blocks > UINT64_MAX / block_bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: %s has %llu blocks of %u bytes, expected a size that fits 64 bits",
                        cursor->shard->label, what, (unsigned long long)blocks, block_bytes);
    }
    tensor->bytes = blocks * block_bytes;
    return PKV_OK;
}

/* offsets_out[i]: of tensor first_tensor + i, from the start of the shard's data. */
static enum pkv_status take_tensors(struct cursor *cursor, struct pkvi_gguf *gguf, uint32_t shard,
                                    uint64_t **offsets_out)
{
    uint64_t count = cursor->shard->tensor_count, capacity = 0;
    for (uint64_t i = 0; i < count; i++) {
        PKV_TRY(grow((void **)offsets_out, i, &capacity, sizeof **offsets_out));
        PKV_TRY(grow((void **)&gguf->tensor, gguf->tensor_count, &gguf->tensor_capacity,
                     sizeof *gguf->tensor));
        struct pkvi_gguf_tensor *tensor = &gguf->tensor[gguf->tensor_count];
        *tensor = (struct pkvi_gguf_tensor){.shard = shard};
        PKV_TRY(take_name(cursor, "tensor", i, count, GGUF_MAX_TENSOR_NAME_BYTES, &tensor->name));
        char what[96];
        (void)snprintf(what, sizeof what, "tensor '%.*s'", pkvi_str_shown(tensor->name),
                       tensor->name.data);
        PKV_TRY(take_dims(cursor, tensor, what));
        PKV_TRY(take_format(cursor, tensor, what));
        PKV_TRY(take_u64(cursor, what, &(*offsets_out)[i]));
        gguf->tensor_count++;
    }
    return PKV_OK;
}

static enum pkv_status read_alignment(const struct shard *shard, const struct key_table *keys,
                                      uint32_t *alignment_out)
{
    const struct pkvi_gguf_key *key = find_key(keys, "general.alignment");
    *alignment_out = GGUF_DEFAULT_ALIGNMENT;
    if (!key) {
        return PKV_OK;
    }
    if (key->is_array || key->type != PKVI_GGUF_U32) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key 'general.alignment' is %s%s, expected u32",
                        shard->label, key->is_array ? "an array of " : "",
                        pkvi_gguf_type_name(key->type));
    }
    uint32_t alignment = load_u32(key->value);
    if (alignment < 8 || (alignment & (alignment - 1)) != 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: key 'general.alignment' is %u, expected a power of two from 8 on",
                        shard->label, alignment);
    }
    *alignment_out = alignment;
    return PKV_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct pkvi_gguf_tensor *x = *(const struct pkvi_gguf_tensor *const *)a;
    const struct pkvi_gguf_tensor *y = *(const struct pkvi_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Two tensors on the same bytes: an offset is wrong, though inside the file. */
static enum pkv_status check_overlap(const struct shard *shard,
                                     const struct pkvi_gguf_tensor *tensors)
{
    uint64_t count = 0;
    const struct pkvi_gguf_tensor **sorted =
        malloc((size_t)(shard->tensor_count ? shard->tensor_count : 1) * sizeof(*sorted));
    if (!sorted) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: an index of %llu tensors",
                        (unsigned long long)shard->tensor_count);
    }
    for (uint64_t i = 0; i < shard->tensor_count; i++) {
        if (tensors[i].offset) {
            sorted[count++] = &tensors[i];
        }
    }
    qsort(sorted, (size_t)count, sizeof(*sorted), compare_places);
    enum pkv_status status = PKV_OK;
    for (uint64_t i = 1; i < count && status == PKV_OK; i++) {
        const struct pkvi_gguf_tensor *a = sorted[i - 1], *b = sorted[i];
        uint64_t apart = b->offset - a->offset;
        if (apart < a->bytes) {
            status = PKV_FAIL(PKV_ERR_CORRUPT,
                              "%s: tensor '%.*s' begins %llu bytes behind the begin of '%.*s', "
                              "expected at least its %llu bytes",
                              shard->label, pkvi_str_shown(b->name), b->name.data,
                              (unsigned long long)apart, pkvi_str_shown(a->name), a->name.data,
                              (unsigned long long)a->bytes);
        }
    }
    free(sorted);
    return status;
}

static enum pkv_status place_tensors(struct shard *shard, struct pkvi_gguf_tensor *tensors,
                                     const uint64_t *offsets, uint64_t tables_end,
                                     uint32_t alignment)
{
    uint64_t padding = (alignment - tables_end % alignment) % alignment;
    uint64_t room = shard->bytes - tables_end;
    room = room > padding ? room - padding : 0;
    shard->data_start = shard->bytes - room;
    for (uint64_t i = 0; i < shard->tensor_count; i++) {
        struct pkvi_gguf_tensor *tensor = &tensors[i];
        if (offsets[i] % alignment != 0) {
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%s: tensor '%.*s' has offset %llu, expected a multiple of %u",
                            shard->label, pkvi_str_shown(tensor->name), tensor->name.data,
                            (unsigned long long)offsets[i], alignment);
        }
        uint64_t present = offsets[i] < room ? room - offsets[i] : 0;
        if (tensor->bytes > present || present == 0) {
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%s: truncated: tensor '%.*s' needs %llu bytes at offset %llu of the "
                            "data, %llu bytes present",
                            shard->label, pkvi_str_shown(tensor->name), tensor->name.data,
                            (unsigned long long)tensor->bytes, (unsigned long long)offsets[i],
                            (unsigned long long)present);
        }
        if (tensor->bytes > 0) {
            tensor->offset = shard->data_start + offsets[i];
        }
    }
    return check_overlap(shard, tensors);
}

/* ---- one shard ---- */

static enum pkv_status open_shard(const char *path, struct shard *shard)
{
    size_t length = strlen(path);
    (void)snprintf(shard->label, sizeof shard->label, "%s%s",
                   length < sizeof shard->label ? "" : "...",
                   length < sizeof shard->label ? path : path + length - (sizeof shard->label - 4));
    shard->path = strdup(path);
    if (!shard->path) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s: out of memory", shard->label);
    }
    /* O_NONBLOCK: a FIFO must not make us wait. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return PKV_FAIL(PKV_ERR_IO, "%s: cannot open: %s", shard->label, strerror(errno));
    }
    enum pkv_status status = PKV_OK;
    struct stat info;
    if (fstat(file, &info) != 0) {
        status = PKV_FAIL(PKV_ERR_IO, "%s: cannot read: %s", shard->label, strerror(errno));
    } else if (S_ISDIR(info.st_mode)) {
        status = PKV_FAIL(PKV_ERR_IO, "%s: is a folder, expected a GGUF file", shard->label);
    } else if (!S_ISREG(info.st_mode)) {
        status = PKV_FAIL(PKV_ERR_IO, "%s: is not a regular file", shard->label);
    } else if (info.st_size < 24) {
        status = PKV_FAIL(PKV_ERR_CORRUPT,
                          "%s: not a GGUF file: %lld bytes, expected at least the 24 of a header",
                          shard->label, (long long)info.st_size);
    } else {
        void *base =
            mmap(NULL, (size_t)info.st_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
            status = PKV_FAIL(PKV_ERR_IO, "%s: no room for %lld bytes: %s", shard->label,
                              (long long)info.st_size, strerror(errno));
        } else {
            shard->base = base;
            shard->file = file;
            shard->bytes = (uint64_t)info.st_size;
            return PKV_OK;
        }
    }
    (void)close(file);
    return status;
}

static enum pkv_status check_count(const struct cursor *cursor, const char *kind, uint64_t count,
                                   uint64_t least_bytes)
{
    if (count > bytes_left(cursor) / least_bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: truncated or damaged: the header says %llu %ss, expected at most %llu "
                        "in the %llu bytes "
                        "that follow",
                        cursor->shard->label, (unsigned long long)count, kind,
                        (unsigned long long)(bytes_left(cursor) / least_bytes),
                        (unsigned long long)bytes_left(cursor));
    }
    return PKV_OK;
}

static enum pkv_status take_header(struct cursor *cursor, struct shard *shard, uint64_t *keys_out)
{
    uint32_t magic;
    PKV_TRY(take_u32(cursor, "the magic", &magic));
    if (magic != GGUF_MAGIC) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: not a GGUF file: it begins with bytes %02x %02x %02x %02x, expected "
                        "47 47 55 46 (\"GGUF\")",
                        shard->label, magic & 255, magic >> 8 & 255, magic >> 16 & 255,
                        magic >> 24);
    }
    PKV_TRY(take_u32(cursor, "the version", &shard->version));
    if (shard->version != 2 && shard->version != 3) {
        /* Versions are small numbers: low half empty means the other byte order. */
        bool swapped = (shard->version & 0xffff) == 0 && shard->version != 0;
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: GGUF version is %u%s, supported are 2 and 3",
                        shard->label, shard->version,
                        swapped ? " (a big-endian file; only little-endian ones can be read)" : "");
    }
    PKV_TRY(take_u64(cursor, "the tensor count", &shard->tensor_count));
    PKV_TRY(take_u64(cursor, "the key count", keys_out));
    PKV_TRY(check_count(cursor, "tensor", shard->tensor_count, GGUF_LEAST_TENSOR_BYTES));
    return check_count(cursor, "key", *keys_out, GGUF_LEAST_KEY_BYTES);
}

/* The shard's keys go to *keys (freed by the caller also on failure), its tensors to gguf. */
static enum pkv_status read_shard(struct pkvi_gguf *gguf, uint32_t index, const char *path,
                                  struct key_table *keys)
{
    struct shard *shard = &gguf->shard[index];
    gguf->shard_count = index + 1;
    PKV_TRY(open_shard(path, shard));
    gguf->file_bytes += shard->bytes;
    shard->first_tensor = gguf->tensor_count;
    struct cursor cursor = {shard, 0};
    uint64_t key_count, *offsets = NULL;
    uint32_t alignment;
    PKV_TRY(take_header(&cursor, shard, &key_count));
    PKV_TRY(take_keys(&cursor, key_count, keys));
    PKV_TRY(sort_names(shard, "key", keys->at, sizeof *keys->at, keys->count, &keys->sorted));
    PKV_TRY(read_alignment(shard, keys, &alignment));
    enum pkv_status status = take_tensors(&cursor, gguf, index, &offsets);
    if (status == PKV_OK && shard->tensor_count > 0) {
        status =
            place_tensors(shard, gguf->tensor + shard->first_tensor, offsets, cursor.at, alignment);
    }
    free(offsets);
    return status;
}

/* ---- all shards ---- */

/* Reads "-0000K-of-0000N.gguf" at the end of a path. */
static bool parse_shard_name(const char *path, uint32_t *number_out, uint32_t *count_out)
{
    static const char form[] = "-#####-of-#####.gguf";
    size_t length = strlen(path), tail = sizeof form - 1;
    if (length < tail) {
        return false;
    }
    uint32_t number[2] = {0, 0};
    const char *at = path + length - tail;
    for (size_t i = 0; i < tail; i++) {
        if (form[i] != '#' ? at[i] != form[i] : at[i] < '0' || at[i] > '9') {
            return false;
        }
        if (form[i] == '#') {
            uint32_t *value = &number[i > 6];
            *value = *value * 10 + (uint32_t)(at[i] - '0');
        }
    }
    *number_out = number[0];
    *count_out = number[1];
    return true;
}

/* An integer key of any type, or `absent`. */
static uint64_t integer_or(const struct key_table *keys, const char *name, uint64_t absent)
{
    const struct pkvi_gguf_key *key = find_key(keys, name);
    if (!key || key->is_array || key->type == PKVI_GGUF_F32 || key->type == PKVI_GGUF_F64 ||
        key->type == PKVI_GGUF_STRING) {
        return absent;
    }
    uint64_t value = 0;
    for (uint64_t i = 0; i < key->value_bytes; i++) {
        value |= (uint64_t)key->value[i] << (8 * i);
    }
    return value;
}

static enum pkv_status check_split_key(const struct shard *shard, const struct key_table *keys,
                                       const char *name, uint64_t absent, uint64_t expected,
                                       const char *why)
{
    uint64_t found = integer_or(keys, name, absent);
    if (found != expected) {
        if (found == UINT64_MAX) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is missing, expected %llu (%s)",
                            shard->label, name, (unsigned long long)expected, why);
        }
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is %llu, expected %llu (%s)", shard->label,
                        name, (unsigned long long)found, (unsigned long long)expected, why);
    }
    return PKV_OK;
}

static enum pkv_status open_single(struct pkvi_gguf *gguf, const char *path)
{
    PKV_TRY(read_shard(gguf, 0, path, &gguf->keys));
    return check_split_key(&gguf->shard[0], &gguf->keys, "split.count", 1, 1,
                           "shards are named NAME-00001-of-0000N.gguf");
}

static enum pkv_status open_shards(struct pkvi_gguf *gguf, const char *path, uint32_t count)
{
    static const char why[] = "the name says so";
    char *name = strdup(path);
    if (!name) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory");
    }
    size_t tail = strlen(name) - (sizeof "00001-of-00001.gguf" - 1);
    enum pkv_status status = PKV_OK;
    for (uint32_t i = 0; i < count && status == PKV_OK; i++) {
        struct key_table other = {0}, *keys = i == 0 ? &gguf->keys : &other;
        (void)snprintf(name + tail, strlen(path) + 1 - tail, "%05u-of-%05u.gguf", i + 1, count);
        status = read_shard(gguf, i, name, keys);
        const struct shard *shard = &gguf->shard[i];
        uint64_t absent = count == 1 ? 1 : UINT64_MAX;
        if (status == PKV_OK) {
            status = check_split_key(shard, keys, "split.count", absent, count, why);
        }
        if (status == PKV_OK) {
            absent = count == 1 ? 0 : UINT64_MAX;
            status = check_split_key(shard, keys, "split.no", absent, i, why);
        }
        if (status == PKV_OK && i > 0) {
            uint64_t total = integer_or(&gguf->keys, "split.tensors.count", UINT64_MAX);
            status = check_split_key(shard, keys, "split.tensors.count", UINT64_MAX, total,
                                     "as in the first shard");
        }
        free_keys(&other);
    }
    free(name);
    PKV_TRY(status);
    return check_split_key(&gguf->shard[0], &gguf->keys, "split.tensors.count",
                           count == 1 ? gguf->tensor_count : UINT64_MAX, gguf->tensor_count,
                           "the tensors of all shards");
}

enum pkv_status pkvi_gguf_open(const char *path, struct pkvi_gguf **gguf_out)
{
    uint32_t number = 1, count = 1;
    bool split = parse_shard_name(path, &number, &count);
    if (split && (number < 1 || number > count || count > GGUF_MAX_SHARDS)) {
        return PKV_FAIL(PKV_ERR_INVALID, "%s: shard %u of %u, expected 1 to %u", path, number,
                        count, count < GGUF_MAX_SHARDS ? count : GGUF_MAX_SHARDS);
    }
    struct pkvi_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf || !(gguf->shard = calloc(count, sizeof *gguf->shard))) {
        free(gguf);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    enum pkv_status status = split ? open_shards(gguf, path, count) : open_single(gguf, path);
    if (status == PKV_OK) {
        status = sort_names(&gguf->shard[0], "tensor", gguf->tensor, sizeof *gguf->tensor,
                            gguf->tensor_count, &gguf->sorted_tensors);
    }
    if (status != PKV_OK) {
        pkvi_gguf_close(gguf);
        return status;
    }
    *gguf_out = gguf;
    return PKV_OK;
}

void pkvi_gguf_close(struct pkvi_gguf *gguf)
{
    if (!gguf) {
        return;
    }
    for (uint32_t i = 0; i < gguf->shard_count; i++) {
        if (gguf->shard[i].base) {
            (void)munmap(gguf->shard[i].base, (size_t)gguf->shard[i].bytes);
            (void)close(gguf->shard[i].file);
        }
        free(gguf->shard[i].path);
    }
    free_keys(&gguf->keys);
    free(gguf->tensor);
    free(gguf->sorted_tensors);
    free(gguf->shard);
    free(gguf);
}

/* ---- what others ask ---- */

const char *pkvi_gguf_path(const struct pkvi_gguf *gguf)
{
    return gguf->shard[0].path;
}

uint32_t pkvi_gguf_version(const struct pkvi_gguf *gguf)
{
    return gguf->shard[0].version;
}

uint32_t pkvi_gguf_shard_count(const struct pkvi_gguf *gguf)
{
    return gguf->shard_count;
}

uint64_t pkvi_gguf_file_bytes(const struct pkvi_gguf *gguf)
{
    return gguf->file_bytes;
}

uint64_t pkvi_gguf_key_count(const struct pkvi_gguf *gguf)
{
    return gguf->keys.count;
}

const struct pkvi_gguf_key *pkvi_gguf_key_at(const struct pkvi_gguf *gguf, uint64_t index)
{
    return &gguf->keys.at[index];
}

uint64_t pkvi_gguf_tensor_count(const struct pkvi_gguf *gguf)
{
    return gguf->tensor_count;
}

const struct pkvi_gguf_tensor *pkvi_gguf_tensor_at(const struct pkvi_gguf *gguf, uint64_t index)
{
    return &gguf->tensor[index];
}

const struct pkvi_gguf_key *pkvi_gguf_find_key(const struct pkvi_gguf *gguf, const char *name)
{
    return find_key(&gguf->keys, name);
}

const struct pkvi_gguf_tensor *pkvi_gguf_find_tensor(const struct pkvi_gguf *gguf, const char *name)
{
    return find_name(gguf->sorted_tensors, gguf->tensor_count, name);
}

enum pkv_status pkvi_gguf_array_str(const struct pkvi_gguf *gguf, const struct pkvi_gguf_key *key,
                                    uint64_t index, struct pkvi_str *value_out)
{
    if (!key->is_array || key->type != PKVI_GGUF_STRING) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%.*s' is %s%s, expected an array of string",
                        gguf->shard[0].label, pkvi_str_shown(key->name), key->name.data,
                        key->is_array ? "an array of " : "", pkvi_gguf_type_name(key->type));
    }
    if (index >= key->count) {
        return PKV_FAIL(PKV_ERR_RANGE, "%s: element %llu of key '%.*s', which has %llu",
                        gguf->shard[0].label, (unsigned long long)index, pkvi_str_shown(key->name),
                        key->name.data, (unsigned long long)key->count);
    }
    const uint8_t *at = key->value + gguf->keys.string_at[key - gguf->keys.at][index];
    *value_out = (struct pkvi_str){(const char *)at + 8, load_u64(at)};
    return PKV_OK;
}

enum pkv_status pkvi_gguf_read(const struct pkvi_gguf *gguf, const struct pkvi_gguf_tensor *tensor,
                               uint64_t offset, uint64_t bytes, void *out)
{
    return read_bytes(&gguf->shard[tensor->shard], tensor->offset + offset, bytes, out);
}

int pkvi_str_shown(struct pkvi_str str)
{
    uint64_t at = 0;
    while (at < str.bytes) {
        uint64_t step = utf8_bytes((const uint8_t *)str.data + at, str.bytes - at);
        if (step == 0 || at + step > 80) {
            break;
        }
        at += step;
    }
    return (int)at;
}
