/* gguf_values.c: values of keys as C types; names and sizes of the format's types. */
#include <math.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/model/gguf.h"

/*
 * Block shapes of ggml's number formats. Unsupported ones are here too, so that their offsets are
 * checked and `inspect` can name them. Gaps: numbers that ggml gave up. Source: ggml-common.h.
 */
static const struct {
    const char *name;
    uint16_t values, bytes;
} ggml_types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const char *pkvi_gguf_ggml_type_name(uint32_t ggml_type)
{
    return ggml_type < sizeof ggml_types / sizeof ggml_types[0] ? ggml_types[ggml_type].name : NULL;
}

bool pkvi_gguf_ggml_type_block(uint32_t ggml_type, uint32_t *values_out, uint32_t *bytes_out)
{
    if (!pkvi_gguf_ggml_type_name(ggml_type)) {
        return false;
    }
    *values_out = ggml_types[ggml_type].values;
    *bytes_out = ggml_types[ggml_type].bytes;
    return true;
}

const char *pkvi_gguf_type_name(enum pkvi_gguf_type type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "?";
}

bool pkvi_str_equal(struct pkvi_str str, const char *text)
{
    return str.bytes == strlen(text) && memcmp(str.data, text, (size_t)str.bytes) == 0;
}

static uint64_t load_bits(const uint8_t *at, uint32_t bytes)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        bits |= (uint64_t)at[i] << (8 * i);
    }
    return bits;
}

/* An integer of any type as sign and magnitude. */
static bool load_integer(enum pkvi_gguf_type type, const uint8_t *at, bool *negative_out,
                         uint64_t *magnitude_out)
{
    uint32_t bytes;
    bool is_signed = false;
    switch (type) {
    case PKVI_GGUF_I8:
        is_signed = true;
        bytes = 1;
        break;
    case PKVI_GGUF_U8:
        bytes = 1;
        break;
    case PKVI_GGUF_I16:
        is_signed = true;
        bytes = 2;
        break;
    case PKVI_GGUF_U16:
        bytes = 2;
        break;
    case PKVI_GGUF_I32:
        is_signed = true;
        bytes = 4;
        break;
    case PKVI_GGUF_U32:
        bytes = 4;
        break;
    case PKVI_GGUF_I64:
        is_signed = true;
        bytes = 8;
        break;
    case PKVI_GGUF_U64:
        bytes = 8;
        break;
    default:
        return false;
    }
    uint64_t bits = load_bits(at, bytes);
    *negative_out = is_signed && (bits >> (8 * bytes - 1)) != 0;
    if (*negative_out) {
        uint64_t mask = bytes == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * bytes)) - 1;
        bits = (~bits + 1) & mask;
    }
    *magnitude_out = bits;
    return true;
}

/* The element at `at` as f32; false if it is no float or not finite. */
static bool load_float(enum pkvi_gguf_type type, const uint8_t *at, float *out)
{
    if (type == PKVI_GGUF_F32) {
        uint32_t bits = (uint32_t)load_bits(at, 4);
        memcpy(out, &bits, sizeof *out);
    } else if (type == PKVI_GGUF_F64) {
        uint64_t bits = load_bits(at, 8);
        double wide;
        memcpy(&wide, &bits, sizeof wide);
        *out = (float)wide;
    } else {
        return false;
    }
    return isfinite(*out);
}

static bool is_float(enum pkvi_gguf_type type)
{
    return type == PKVI_GGUF_F32 || type == PKVI_GGUF_F64;
}

/* *key_out = NULL where the key is absent and that is allowed. */
static enum pkv_status find_scalar(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                                   const struct pkvi_gguf_key **key_out)
{
    const struct pkvi_gguf_key *key = pkvi_gguf_find_key(gguf, name);
    *key_out = key;
    if (!key && !found_out) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is missing", pkvi_gguf_path(gguf), name);
    }
    if (!key) {
        *found_out = false;
        return PKV_OK;
    }
    if (key->is_array) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is an array of %s, expected one value",
                        pkvi_gguf_path(gguf), name, pkvi_gguf_type_name(key->type));
    }
    return PKV_OK;
}

static enum pkv_status wrong_type(const struct pkvi_gguf *gguf, const struct pkvi_gguf_key *key,
                                  const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%.*s' is %s, expected %s", pkvi_gguf_path(gguf),
                    pkvi_str_shown(key->name), key->name.data, pkvi_gguf_type_name(key->type),
                    expected);
}

static void mark_found(bool *found_out)
{
    if (found_out) {
        *found_out = true;
    }
}

enum pkv_status pkvi_gguf_u32(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              uint32_t *value_out)
{
    const struct pkvi_gguf_key *key;
    PKV_TRY(find_scalar(gguf, name, found_out, &key));
    if (!key) {
        return PKV_OK;
    }
    bool negative;
    uint64_t magnitude;
    if (!load_integer(key->type, key->value, &negative, &magnitude)) {
        return wrong_type(gguf, key, "an integer");
    }
    if (negative || magnitude > UINT32_MAX) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is %s%llu, expected 0 to 4294967295",
                        pkvi_gguf_path(gguf), name, negative ? "-" : "",
                        (unsigned long long)magnitude);
    }
    *value_out = (uint32_t)magnitude;
    mark_found(found_out);
    return PKV_OK;
}

enum pkv_status pkvi_gguf_f32(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              float *value_out)
{
    const struct pkvi_gguf_key *key;
    PKV_TRY(find_scalar(gguf, name, found_out, &key));
    if (!key) {
        return PKV_OK;
    }
    if (!is_float(key->type)) {
        return wrong_type(gguf, key, "f32");
    }
    float value;
    if (!load_float(key->type, key->value, &value)) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' is %g, expected a finite f32",
                        pkvi_gguf_path(gguf), name, (double)value);
    }
    *value_out = value;
    mark_found(found_out);
    return PKV_OK;
}

enum pkv_status pkvi_gguf_bool(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                               bool *value_out)
{
    const struct pkvi_gguf_key *key;
    PKV_TRY(find_scalar(gguf, name, found_out, &key));
    if (!key) {
        return PKV_OK;
    }
    if (key->type != PKVI_GGUF_BOOL) {
        return wrong_type(gguf, key, "bool");
    }
    *value_out = key->value[0] != 0;
    mark_found(found_out);
    return PKV_OK;
}

enum pkv_status pkvi_gguf_str(const struct pkvi_gguf *gguf, const char *name, bool *found_out,
                              struct pkvi_str *value_out)
{
    const struct pkvi_gguf_key *key;
    PKV_TRY(find_scalar(gguf, name, found_out, &key));
    if (!key) {
        return PKV_OK;
    }
    if (key->type != PKVI_GGUF_STRING) {
        return wrong_type(gguf, key, "string");
    }
    *value_out = (struct pkvi_str){(const char *)key->value + 8, load_bits(key->value, 8)};
    mark_found(found_out);
    return PKV_OK;
}

/* Start of an element, whose type the caller has found to have `bytes` bytes. */
static enum pkv_status check_index(const struct pkvi_gguf_key *key, uint64_t index)
{
    if (index >= key->count) {
        return PKV_FAIL(PKV_ERR_RANGE, "element %llu of key '%.*s', which has %llu",
                        (unsigned long long)index, pkvi_str_shown(key->name), key->name.data,
                        (unsigned long long)key->count);
    }
    return PKV_OK;
}

static enum pkv_status bad_element(const struct pkvi_gguf_key *key, uint64_t index,
                                   const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "element %llu of key '%.*s' (%s%s) is not %s",
                    (unsigned long long)index, pkvi_str_shown(key->name), key->name.data,
                    key->is_array ? "array of " : "", pkvi_gguf_type_name(key->type), expected);
}

enum pkv_status pkvi_gguf_array_f32(const struct pkvi_gguf_key *key, uint64_t index,
                                    float *value_out)
{
    PKV_TRY(check_index(key, index));
    float value;
    if (!is_float(key->type) ||
        !load_float(key->type, key->value + index * (key->value_bytes / key->count), &value)) {
        return bad_element(key, index, "a finite f32");
    }
    *value_out = value;
    return PKV_OK;
}

enum pkv_status pkvi_gguf_array_i32(const struct pkvi_gguf_key *key, uint64_t index,
                                    int32_t *value_out)
{
    PKV_TRY(check_index(key, index));
    bool negative = false;
    uint64_t magnitude = 0, most = INT32_MAX;
    const uint8_t *at = key->value;
    if (key->type != PKVI_GGUF_STRING) {
        at += index * (key->value_bytes / key->count);
    }
    if (!load_integer(key->type, at, &negative, &magnitude) ||
        magnitude > most + (negative ? 1 : 0)) {
        return bad_element(key, index, "a 32-bit integer");
    }
    int64_t value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    *value_out = (int32_t)value;
    return PKV_OK;
}
