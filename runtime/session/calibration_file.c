/*
 * calibration_file.c: owns the file of a calibration, which is also how it lies in memory, and the
 * checks of one. Refuses to know how values are measured.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/model/model.h"
#include "runtime/session/calibration.h"

#define MOST_BYTES ((uint64_t)1 << 30)
#define MOST_LAYERS 65536u
#define MOST_SIDE 1048576u /* width, heads of a layer, channels of a head */
#define CHECKSUM_BYTES sizeof(uint64_t)

uint64_t pkvi_calibration_checksum(const char *file, uint64_t file_bytes)
{
    return pkvi_hash(file, file_bytes - CHECKSUM_BYTES, 0);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t head_bytes(uint64_t layers)
{
    return sizeof(struct pkvi_calibration_header) + layers * sizeof(struct pkvi_calibration_shape);
}

/* Values of one layer besides its cosine. */
static uint64_t layer_values(uint32_t width, const struct pkvi_calibration_shape *shape)
{
    const uint64_t channels = (uint64_t)shape->kv_heads * shape->head_dim;
    return 2ull * width + 3 * channels + channels / 2;
}

/* Of the whole file, or UINT64_MAX where the sum passes 64 bits. */
static uint64_t all_bytes(const struct pkvi_calibration_header *header,
                          const struct pkvi_calibration_shape *shapes)
{
    uint64_t values = header->layers;
    for (uint32_t l = 0; l < header->layers; l++) {
        values = add(values, layer_values(header->width, &shapes[l]));
    }
    return values > MOST_BYTES / sizeof(float)
               ? UINT64_MAX
               : head_bytes(header->layers) + values * sizeof(float) + CHECKSUM_BYTES;
}

/* ---- in memory ---- */

/* Everything points into the file's bytes, whose header and shapes are right. */
static enum pkv_status point(struct pkv_calibration *c)
{
    c->header = (struct pkvi_calibration_header *)(void *)c->file;
    c->shape = (struct pkvi_calibration_shape *)(void *)(c->file + sizeof *c->header);
    c->identity = c->header->identity;
    c->layers = c->header->layers;
    c->width = c->header->width;
    c->values = (float *)(void *)(c->file + head_bytes(c->layers));
    c->value_count =
        (c->header->file_bytes - head_bytes(c->layers) - CHECKSUM_BYTES) / sizeof(float);
    c->layer = calloc(c->layers, sizeof *c->layer);
    if (!c->layer) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "calibration of %u layers", c->layers);
    }
    const float *at = c->values + c->layers;
    for (uint32_t l = 0; l < c->layers; l++) {
        struct pkvi_layer_calibration *layer = &c->layer[l];
        const size_t channels = (size_t)c->shape[l].kv_heads * c->shape[l].head_dim;
        layer->delta_ahead = at;
        layer->delta_mid = at + c->width;
        layer->key_mean = at + (size_t)2 * c->width;
        layer->key_sd = layer->key_mean + channels;
        layer->key_pair = layer->key_sd + channels;
        layer->query_power = layer->key_pair + channels / 2;
        layer->cosine = c->values[l];
        at = layer->query_power + channels;
    }
    return PKV_OK;
}

static struct pkvi_calibration_shape shape_of(const struct pkv_layer_info *info)
{
    return (struct pkvi_calibration_shape){.kind = info->kind,
                                           .heads = info->heads,
                                           .kv_heads = info->kv_heads,
                                           .head_dim = info->head_dim,
                                           .rope_pairs = info->rope_pairs,
                                           .rope_halves = info->rope_halves != 0};
}

static enum pkv_status fill(const struct pkv_model *model, struct pkvi_calibration_header *header,
                            struct pkvi_calibration_shape *shapes, struct pkv_calibration *c)
{
    for (uint32_t l = 0; l < header->layers; l++) {
        shapes[l] = shape_of(&model->layer[l].info);
    }
    header->file_bytes = all_bytes(header, shapes);
    if (header->file_bytes > MOST_BYTES) {
        return PKV_FAIL(PKV_ERR_RANGE, "calibration: %u layers of %u channels take more than 1 GiB",
                        header->layers, header->width);
    }
    c->file = calloc(1, header->file_bytes);
    if (!c->file) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "calibration: %llu bytes",
                        (unsigned long long)header->file_bytes);
    }
    memcpy(c->file, header, sizeof *header);
    memcpy(c->file + sizeof *header, shapes, header->layers * sizeof *shapes);
    return point(c);
}

enum pkv_status pkvi_calibration_new(const struct pkv_model *model, uint32_t tokens,
                                     enum pkv_calibration_source source,
                                     struct pkv_calibration **out)
{
    struct pkvi_calibration_header header = {.version = PKVI_CALIBRATION_VERSION,
                                             .header_bytes = sizeof header,
                                             .identity = model->identity,
                                             .layers = model->info.layers,
                                             .width = model->info.width,
                                             .tokens = tokens,
                                             .source = source};
    memcpy(header.magic, PKVI_CALIBRATION_MAGIC, sizeof header.magic);
    struct pkv_calibration *c = calloc(1, sizeof *c);
    struct pkvi_calibration_shape *shapes = calloc(header.layers, sizeof *shapes);
    enum pkv_status status =
        c && shapes ? fill(model, &header, shapes, c)
                    : PKV_FAIL(PKV_ERR_NO_MEMORY, "calibration of %u layers", header.layers);
    free(shapes);
    if (status != PKV_OK) {
        pkv_calibration_close(c);
        return status;
    }
    *out = c;
    return PKV_OK;
}

static enum pkv_status bad_value(uint32_t layer, const char *what, double found)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "calibration: %s of layer %u is %g", what, layer, found);
}

static enum pkv_status check_values(uint32_t layer, const char *what, const float *values,
                                    size_t count, float least)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]) || values[i] < least) {
            return bad_value(layer, what, (double)values[i]);
        }
    }
    return PKV_OK;
}

static enum pkv_status check_layer(const struct pkv_calibration *c, uint32_t l)
{
    const struct pkvi_layer_calibration *layer = &c->layer[l];
    const size_t channels = (size_t)c->shape[l].kv_heads * c->shape[l].head_dim;
    if (!(fabsf(layer->cosine) <= 1.0f)) {
        return bad_value(l, "the cosine", (double)layer->cosine);
    }
    PKV_TRY(check_values(l, "a change of the residual", layer->delta_ahead, (size_t)2 * c->width,
                         -INFINITY));
    PKV_TRY(check_values(l, "a key's mean", layer->key_mean, channels, -INFINITY));
    PKV_TRY(check_values(l, "a key's deviation", layer->key_sd, channels, 0.0f));
    PKV_TRY(check_values(l, "a key's covariance", layer->key_pair, channels / 2, -INFINITY));
    return check_values(l, "a query's power", layer->query_power, channels, 0.0f);
}

static enum pkv_status check_all(const struct pkv_calibration *c)
{
    for (uint32_t l = 0; l < c->layers; l++) {
        PKV_TRY(check_layer(c, l));
    }
    return PKV_OK;
}

enum pkv_status pkvi_calibration_seal(struct pkv_calibration *c)
{
    for (uint32_t l = 0; l < c->layers; l++) {
        c->layer[l].cosine = c->values[l];
    }
    PKV_TRY(check_all(c));
    const uint64_t bytes = c->header->file_bytes;
    const uint64_t checksum = pkvi_calibration_checksum(c->file, bytes);
    memcpy(c->file + bytes - CHECKSUM_BYTES, &checksum, CHECKSUM_BYTES);
    return PKV_OK;
}

void pkv_calibration_query(const struct pkv_calibration *c, struct pkv_calibration_info *info_out)
{
    *info_out =
        (struct pkv_calibration_info){.identity = c->identity,
                                      .file_bytes = c->header->file_bytes,
                                      .layers = c->layers,
                                      .width = c->width,
                                      .tokens = c->header->tokens,
                                      .source = (enum pkv_calibration_source)c->header->source,
                                      .cosine = c->values};
}

void pkv_calibration_close(struct pkv_calibration *c)
{
    if (c) {
        free(c->layer);
        free(c->file);
        free(c);
    }
}

/* ---- to a file and back ---- */

enum pkv_status pkv_calibration_save(const struct pkv_calibration *c, const char *path)
{
    struct pkvi_new_file file;
    PKV_TRY(pkvi_new_file_open(path, 0644, &file));
    pkvi_new_file_write(&file, c->file, c->header->file_bytes);
    return pkvi_new_file_commit(&file);
}

static enum pkv_status bad(const char *path, const char *what, uint64_t found, const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: %s is %llu, expected %s", path, what,
                    (unsigned long long)found, expected);
}

static enum pkv_status check_header(const struct pkvi_calibration_header *h, uint64_t bytes,
                                    const char *path)
{
    if (h->header_bytes != sizeof *h) {
        return bad(path, "the header's size", h->header_bytes, "48");
    }
    if (h->file_bytes != bytes) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: damaged: %llu bytes, expected %llu", path,
                        (unsigned long long)bytes, (unsigned long long)h->file_bytes);
    }
    if (h->layers == 0 || h->layers > MOST_LAYERS) {
        return bad(path, "the number of layers", h->layers, "1 to 65536");
    }
    if (h->width == 0 || h->width > MOST_SIDE) {
        return bad(path, "the width", h->width, "1 to 1048576");
    }
    if (h->tokens < PKV_CALIBRATION_LEAST_TOKENS || h->tokens > INT32_MAX) {
        return bad(path, "the number of tokens", h->tokens, "128 to 2147483647");
    }
    if (h->source >= PKV_CALIBRATION_SOURCE_COUNT) {
        return bad(path, "the source", h->source, "0 to 2");
    }
    return head_bytes(h->layers) + CHECKSUM_BYTES <= bytes
               ? PKV_OK
               : bad(path, "the number of layers", h->layers, "as many as the file has room for");
}

static bool shape_is_right(const struct pkvi_calibration_shape *s)
{
    return (s->kind == PKV_LAYER_GLOBAL || s->kind == PKV_LAYER_SLIDING) && s->heads > 0 &&
           s->heads <= MOST_SIDE && s->kv_heads > 0 && s->kv_heads <= s->heads && s->head_dim > 0 &&
           s->head_dim <= UINT16_MAX && s->rope_pairs <= s->head_dim / 2 && s->rope_halves <= 1;
}

static enum pkv_status check_shapes(const struct pkvi_calibration_header *h,
                                    const struct pkvi_calibration_shape *shapes, const char *path)
{
    for (uint32_t l = 0; l < h->layers; l++) {
        const struct pkvi_calibration_shape *s = &shapes[l];
        if (!shape_is_right(s)) {
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%.200s: damaged: layer %u has kind %u, %u heads, %u KV heads of %u, "
                            "%u rotary pairs (%u)",
                            path, l, s->kind, s->heads, s->kv_heads, s->head_dim, s->rope_pairs,
                            s->rope_halves);
        }
    }
    if (all_bytes(h, shapes) != h->file_bytes) {
        return PKV_FAIL(
            PKV_ERR_CORRUPT, "%.200s: damaged: %llu bytes by its header, %llu by its parts", path,
            (unsigned long long)h->file_bytes, (unsigned long long)all_bytes(h, shapes));
    }
    return PKV_OK;
}

/* Everything but values. */
static enum pkv_status check_file(const char *file, uint64_t bytes, const char *path)
{
    const struct pkvi_calibration_header *h =
        (const struct pkvi_calibration_header *)(const void *)file;
    uint64_t checksum;
    if (bytes < sizeof *h + CHECKSUM_BYTES || memcmp(h->magic, PKVI_CALIBRATION_MAGIC, 8) != 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: not a file of a calibration", path);
    }
    if (h->version != PKVI_CALIBRATION_VERSION) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%.200s: a calibration of version %u, this program reads version %u", path,
                        h->version, PKVI_CALIBRATION_VERSION);
    }
    memcpy(&checksum, file + bytes - CHECKSUM_BYTES, CHECKSUM_BYTES);
    if (checksum != pkvi_calibration_checksum(file, bytes)) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%.200s: damaged: the checksum of its %llu bytes does not hold", path,
                        (unsigned long long)bytes);
    }
    PKV_TRY(check_header(h, bytes, path));
    return check_shapes(h, (const struct pkvi_calibration_shape *)(const void *)(file + sizeof *h),
                        path);
}

static enum pkv_status check_model(const struct pkv_calibration *c, const struct pkv_model *model,
                                   const char *path)
{
    bool same = c->identity == model->identity && c->layers == model->info.layers &&
                c->width == model->info.width;
    for (uint32_t l = 0; same && l < c->layers; l++) {
        const struct pkvi_calibration_shape shape = shape_of(&model->layer[l].info);
        same = memcmp(&c->shape[l], &shape, sizeof shape) == 0;
    }
    return same ? PKV_OK
                : PKV_FAIL(PKV_ERR_INVALID, "%.200s: a calibration of another model", path);
}

static enum pkv_status take(struct pkv_calibration *c, const struct pkv_model *model,
                            const char *path)
{
    uint64_t bytes = 0;
    PKV_TRY(pkvi_file_load(path, MOST_BYTES, &c->file, &bytes));
    PKV_TRY(check_file(c->file, bytes, path));
    PKV_TRY(point(c));
    PKV_TRY(check_model(c, model, path));
    return check_all(c);
}

enum pkv_status pkv_calibration_load(const struct pkv_model *model, const char *path,
                                     struct pkv_calibration **out)
{
    if (!path || path[0] == '\0') {
        return PKV_FAIL(PKV_ERR_INVALID, "load a calibration: no path");
    }
    if (model->identity == 0) {
        return PKV_FAIL(PKV_ERR_STATE,
                        "%.200s: the model's weights were not read: it is not known whose "
                        "calibration this is",
                        path);
    }
    struct pkv_calibration *c = calloc(1, sizeof *c);
    if (!c) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "calibration: %zu bytes", sizeof *c);
    }
    const enum pkv_status status = take(c, model, path);
    if (status != PKV_OK) {
        pkv_calibration_close(c);
        return status;
    }
    *out = c;
    return PKV_OK;
}
