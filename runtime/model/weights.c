/*
 * weights.c: from the tensors of a file to packed matrices on the device.
 *
 * One list of everything that is loaded is made first; its sum is the plan, and the same list is
 * then filled. A matrix is packed in pieces by all threads into a staging buffer and copied to the
 * device from there, so that a device with memory of its own needs no second path. Source rows are
 * read, not mapped: weights are resident once, and a file that shrinks meanwhile is an error, not a
 * signal.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/layout.h"
#include "runtime/base/thread.h"
#include "runtime/device/device.h"
#include "runtime/model/model.h"

#define STAGING_BYTES ((uint64_t)8 << 20)
#define SOURCE_BYTES ((uint64_t)256 << 10) /* a thread reads at once, or 16 rows */
#define IDENTITY_BYTES ((uint64_t)4096)    /* of a matrix */
#define ITEMS_A_LAYER 20u                  /* 7 matrices, 3 biases, 6 norms at most */

/* One thing to load: a packed matrix, or a vector copied as it is. */
struct item {
    const struct pkvi_weight *weight;      /* a matrix, or NULL */
    struct pkv_matrix *matrix;             /* its place in the model */
    const struct pkvi_gguf_tensor *tensor; /* of a vector in the file, from `from_bytes` on */
    uint64_t from_bytes;
    const void *memory; /* a vector that is not in the file */
    pkv_addr *addr;     /* where the vector's address goes */
    uint64_t offset, bytes;
};

struct list {
    struct item *item;
    uint32_t count;
    uint64_t bytes;
    bool exact;
};

static void add(struct list *list, struct item item)
{
    item.offset = list->bytes;
    list->bytes += pkvi_aligned(item.bytes);
    list->item[list->count++] = item;
}

static void add_matrix(struct list *list, const struct pkvi_weight *weight,
                       struct pkv_matrix *matrix)
{
    enum pkv_weight_type type = list->exact ? PKV_W_F32 : weight->tensor->weight_type;
    *matrix = (struct pkv_matrix){.type = type, .rows = weight->rows, .cols = weight->cols};
    add(list, (struct item){.weight = weight,
                            .matrix = matrix,
                            .bytes = pkvi_pack_bytes(type, weight->rows, weight->cols)});
    if (weight->bias) {
        add(list, (struct item){.tensor = weight->bias,
                                .from_bytes = (uint64_t)weight->first_row * sizeof(float),
                                .addr = &matrix->bias,
                                .bytes = (uint64_t)weight->rows * sizeof(float)});
    }
}

static void add_vector(struct list *list, const struct pkvi_gguf_tensor *tensor, pkv_addr *addr)
{
    *addr = 0;
    if (tensor) {
        add(list, (struct item){.tensor = tensor, .addr = addr, .bytes = tensor->bytes});
    }
}

static void add_layer(struct list *list, const struct pkvi_arch_layer *from,
                      struct pkvi_model_layer *to)
{
    to->info = from->info;
    to->rope = from->rope;
    add_vector(list, from->attn_norm, &to->attn_norm);
    add_matrix(list, &from->q, &to->q);
    add_matrix(list, &from->k, &to->k);
    add_matrix(list, &from->v, &to->v);
    add_vector(list, from->q_norm, &to->q_norm);
    add_vector(list, from->k_norm, &to->k_norm);
    add_matrix(list, &from->out, &to->out);
    add_vector(list, from->post_attn_norm, &to->post_attn_norm);
    add_vector(list, from->ffn_norm, &to->ffn_norm);
    add_matrix(list, &from->gate, &to->gate);
    add_matrix(list, &from->up, &to->up);
    add_matrix(list, &from->down, &to->down);
    add_vector(list, from->post_ffn_norm, &to->post_ffn_norm);
}

static void add_rope(struct list *list, const struct pkvi_rope *from, struct pkvi_model_rope *to)
{
    uint64_t bytes = from->pairs * sizeof(double);
    *to = (struct pkvi_model_rope){
        .pairs = from->pairs, .gain = from->gain, .short_context = from->short_context};
    add(list, (struct item){.memory = from->freq, .addr = &to->freq, .bytes = bytes});
    if (from->freq_long) {
        add(list, (struct item){.memory = from->freq_long, .addr = &to->freq_long, .bytes = bytes});
    }
}

static struct pkvi_act_need need_of(const struct pkv_matrix *matrix, struct pkvi_act_need need)
{
    if (pkvi_weight_is_quantised(matrix->type)) {
        need.q8 = true;
    } else {
        need.f32 = true;
    }
    return need;
}

static void note_needs(struct pkv_model *model)
{
    model->need_in = need_of(&model->output, model->need_in);
    for (uint32_t l = 0; l < model->info.layers; l++) {
        const struct pkvi_model_layer *layer = &model->layer[l];
        model->need_in = need_of(&layer->q, model->need_in);
        model->need_in = need_of(&layer->k, model->need_in);
        model->need_in = need_of(&layer->v, model->need_in);
        model->need_in = need_of(&layer->gate, model->need_in);
        model->need_in = need_of(&layer->up, model->need_in);
        model->need_attn = need_of(&layer->out, model->need_attn);
        // Heads that are no whole activation blocks are rounded a row at a time, from float32.
        model->need_attn.f32 |= layer->info.head_dim % PKV_ACT_BLOCK != 0;
        model->need_ffn = need_of(&layer->down, model->need_ffn);
    }
}

/* The list of all items in model->layer etc.; the caller frees list_out->item. */
static enum pkv_status make_list(const struct pkvi_arch *arch, bool exact, struct pkv_model *model,
                                 struct list *list_out)
{
    uint32_t most = arch->layer_count * ITEMS_A_LAYER + 8 + 2 * PKVI_ARCH_ROPES;
    struct list list = {.item = calloc(most, sizeof *list.item), .exact = exact};
    free(model->layer); /* of the plan */
    model->layer = calloc(arch->layer_count, sizeof *model->layer);
    if (!list.item || !model->layer) {
        free(list.item);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u layers", arch->layer_count);
    }
    model->rope_count = arch->rope_count;
    for (uint32_t i = 0; i < arch->rope_count; i++) {
        add_rope(&list, &arch->rope[i], &model->rope[i]);
    }
    add_matrix(&list, &arch->token_embd, &model->token_embd);
    for (uint32_t l = 0; l < arch->layer_count; l++) {
        add_layer(&list, &arch->layer[l], &model->layer[l]);
    }
    add_vector(&list, arch->output_norm, &model->output_norm);
    if (arch->tied_output) {
        model->output = model->token_embd;
    } else {
        add_matrix(&list, &arch->output, &model->output);
    }
    note_needs(model);
    model->weights_bytes = list.bytes;
    *list_out = list;
    return PKV_OK;
}

enum pkv_status pkvi_weights_plan(const struct pkvi_arch *arch,
                                  const struct pkv_model_config *config, struct pkv_model *model)
{
    struct list list;
    model->info.layers = arch->layer_count;
    PKV_TRY(make_list(arch, config->exact, model, &list));
    free(list.item);
    return PKV_OK;
}

/* What the threads share while they pack one piece: groups of 16 rows. */
struct piece {
    const struct pkvi_gguf *gguf;
    const struct item *item;
    enum pkv_weight_type file_type;
    uint32_t first_group, groups, groups_a_unit;
    unsigned char *packed; /* piece's place in staging; group first_group is its first */
    unsigned char *source; /* [threads][source_bytes]: rows as the file has them */
    uint64_t source_bytes;
    float *rows; /* exact: [threads][16][cols] */
    int failed;  /* a unit could not read its rows */
};

/* Float32 copies of one group's rows, then packed like any float32 matrix. */
static void pack_exact(const struct piece *piece, const unsigned char *source, uint32_t count,
                       uint32_t worker, void *packed)
{
    uint32_t cols = piece->item->weight->cols;
    uint64_t row_bytes = pkvi_weight_row_bytes(piece->file_type, cols);
    float *rows = piece->rows + (size_t)worker * PKV_PACK_ROWS * cols;
    for (uint32_t r = 0; r < count; r++) {
        pkvi_weight_dequantize(piece->file_type, source + r * row_bytes, cols,
                               rows + (size_t)r * cols);
    }
    pkvi_pack_rows(PKV_W_F32, count, cols, rows, 0, 1, packed);
}

static void pack_unit(void *context, uint32_t unit, uint32_t worker)
{
    struct piece *piece = context;
    const struct pkvi_weight *weight = piece->item->weight;
    enum pkv_weight_type type = piece->item->matrix->type;
    uint64_t group_bytes = pkvi_pack_bytes(type, PKV_PACK_ROWS, weight->cols);
    uint64_t row_bytes = pkvi_weight_row_bytes(piece->file_type, weight->cols);
    uint32_t begin = unit * piece->groups_a_unit, end = begin + piece->groups_a_unit;
    end = end < piece->groups ? end : piece->groups;
    uint32_t row = (piece->first_group + begin) * PKV_PACK_ROWS;
    uint32_t end_row = (piece->first_group + end) * PKV_PACK_ROWS;
    end_row = end_row < weight->rows ? end_row : weight->rows;
    unsigned char *source = piece->source + worker * piece->source_bytes;
    if (pkvi_gguf_read(piece->gguf, weight->tensor, (weight->first_row + row) * row_bytes,
                       (end_row - row) * row_bytes, source) != PKV_OK) {
        __atomic_store_n(&piece->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (uint32_t g = begin; g < end; g++, row += PKV_PACK_ROWS) {
        uint32_t count = end_row - row < PKV_PACK_ROWS ? end_row - row : PKV_PACK_ROWS;
        unsigned char *packed = piece->packed + g * group_bytes;
        if (type != piece->file_type) {
            pack_exact(piece, source, count, worker, packed);
        } else {
            pkvi_pack_rows(type, count, weight->cols, source, 0, 1, packed);
        }
        source += PKV_PACK_ROWS * row_bytes;
    }
}

struct loader {
    const struct pkvi_gguf *gguf;
    struct pkv_model *model;
    struct pkvi_pool *pool;
    struct pkv_stream *stream;
    pkv_addr staging;      /* pinned, STAGING_BYTES */
    unsigned char *source; /* [threads][source_bytes] */
    uint64_t source_bytes;
    float *rows; /* exact only */
};

static enum pkv_status send(struct loader *loader, uint64_t offset, uint64_t bytes)
{
    struct pkv_span span = {
        .dst = loader->model->weights + offset, .src = loader->staging, .bytes = bytes};
    PKV_TRY(pkvi_copy_async(loader->stream, &span, 1));
    return pkvi_stream_sync(loader->stream);
}

static enum pkv_status load_matrix(struct loader *loader, const struct item *item)
{
    const struct pkvi_weight *weight = item->weight;
    uint64_t group_bytes = pkvi_pack_bytes(item->matrix->type, PKV_PACK_ROWS, weight->cols);
    uint32_t groups = (weight->rows + PKV_PACK_ROWS - 1) / PKV_PACK_ROWS;
    uint64_t most = STAGING_BYTES / group_bytes;
    if (most == 0) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "a matrix of %u columns: rows are too long",
                        weight->cols);
    }
    struct piece piece = {.gguf = loader->gguf,
                          .item = item,
                          .file_type = weight->tensor->weight_type,
                          .packed = (unsigned char *)(uintptr_t)loader->staging,
                          .source = loader->source,
                          .source_bytes = loader->source_bytes,
                          .rows = loader->rows};
    uint64_t group_source = pkvi_weight_row_bytes(piece.file_type, weight->cols) * PKV_PACK_ROWS;
    uint32_t threads = pkvi_pool_threads(loader->pool);
    for (uint32_t first = 0; first < groups; first += piece.groups) {
        piece.first_group = first;
        piece.groups = groups - first < most ? groups - first : (uint32_t)most;
        piece.groups_a_unit = piece.groups / (threads * 4) + 1;
        if (piece.groups_a_unit > loader->source_bytes / group_source) {
            piece.groups_a_unit = (uint32_t)(loader->source_bytes / group_source);
        }
        uint32_t units = (piece.groups + piece.groups_a_unit - 1) / piece.groups_a_unit;
        pkvi_pool_run(loader->pool, pack_unit, &piece, units);
        if (piece.failed) { // its message was another thread's: say it again
            return PKV_FAIL(PKV_ERR_IO, "%s: cannot read tensor '%.*s': did the file change?",
                            pkvi_gguf_path(loader->gguf), pkvi_str_shown(weight->tensor->name),
                            weight->tensor->name.data);
        }
        PKV_TRY(send(loader, item->offset + first * group_bytes, piece.groups * group_bytes));
    }
    item->matrix->data = loader->model->weights + item->offset;
    return PKV_OK;
}

static void identify(struct loader *loader, const void *data, uint64_t bytes)
{
    loader->model->identity = pkvi_hash(data, bytes, loader->model->identity);
}

static enum pkv_status identify_matrix(struct loader *loader, const struct pkvi_weight *weight)
{
    const struct pkvi_gguf_tensor *tensor = weight->tensor;
    const uint64_t row_bytes = pkvi_weight_row_bytes(tensor->weight_type, weight->cols);
    const uint64_t bytes = weight->rows * row_bytes, shape[] = {weight->rows, weight->cols};
    const uint64_t head = bytes < IDENTITY_BYTES ? bytes : IDENTITY_BYTES;
    identify(loader, shape, sizeof shape);
    PKV_TRY(
        pkvi_gguf_read(loader->gguf, tensor, weight->first_row * row_bytes, head, loader->source));
    identify(loader, loader->source, head);
    return PKV_OK;
}

static enum pkv_status load_vector(struct loader *loader, const struct item *item)
{
    if (item->bytes > STAGING_BYTES) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "a vector of %llu bytes: at most %llu",
                        (unsigned long long)item->bytes, (unsigned long long)STAGING_BYTES);
    }
    void *staging = (void *)(uintptr_t)loader->staging;
    if (item->tensor) {
        PKV_TRY(pkvi_gguf_read(loader->gguf, item->tensor, item->from_bytes, item->bytes, staging));
    } else {
        memcpy(staging, item->memory, item->bytes);
    }
    identify(loader, staging, item->bytes);
    PKV_TRY(send(loader, item->offset, item->bytes));
    *item->addr = loader->model->weights + item->offset;
    return PKV_OK;
}

static enum pkv_status load_items(struct loader *loader, const struct list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct item *item = &list->item[i];
        if (item->weight) {
            PKV_TRY(identify_matrix(loader, item->weight));
            PKV_TRY(load_matrix(loader, item));
        } else {
            PKV_TRY(load_vector(loader, item));
        }
    }
    return PKV_OK;
}

/* Most bytes that 16 source rows of a matrix have, and its widest row. */
static void measure(const struct list *list, uint64_t *group_bytes_out, uint32_t *cols_out)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct pkvi_weight *weight = list->item[i].weight;
        if (!weight) {
            continue;
        }
        uint64_t bytes =
            PKV_PACK_ROWS * pkvi_weight_row_bytes(weight->tensor->weight_type, weight->cols);
        *group_bytes_out = bytes > *group_bytes_out ? bytes : *group_bytes_out;
        *cols_out = weight->cols > *cols_out ? weight->cols : *cols_out;
    }
}

static enum pkv_status open_loader(struct loader *loader, const struct list *list)
{
    struct pkv_device *device = loader->model->device;
    struct pkv_device_info info;
    uint32_t cols = 0;
    loader->source_bytes = SOURCE_BYTES;
    measure(list, &loader->source_bytes, &cols);
    PKV_TRY(pkv_device_query(device, &info));
    PKV_TRY(pkvi_pool_open(info.threads, &loader->pool));
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_PINNED, STAGING_BYTES, &loader->staging));
    PKV_TRY(pkvi_stream_open(device, PKV_LOAD, NULL, &loader->stream));
    size_t source = (size_t)info.threads * loader->source_bytes;
    size_t rows = list->exact ? (size_t)info.threads * PKV_PACK_ROWS * cols * sizeof(float) : 0;
    loader->source = malloc(source);
    loader->rows = rows ? malloc(rows) : NULL;
    if (!loader->source || (rows && !loader->rows)) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "rows being packed: %zu bytes", source + rows);
    }
    return PKV_OK;
}

static void close_loader(struct loader *loader)
{
    pkvi_stream_close(loader->stream);
    pkvi_mem_free(loader->model->device, PKV_MEM_PINNED, loader->staging);
    pkvi_pool_close(loader->pool);
    free(loader->source);
    free(loader->rows);
}

/* Addresses alone: for a device that computes nothing. */
static void place_items(const struct list *list, struct pkv_model *model)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct item *item = &list->item[i];
        *(item->weight ? &item->matrix->data : item->addr) = model->weights + item->offset;
    }
}

static enum pkv_status load_list(struct loader *loader, const struct list *list)
{
    struct pkv_device_info info;
    PKV_TRY(pkv_device_query(loader->model->device, &info));
    if (info.caps & PKV_CAP_NO_DATA) {
        place_items(list, loader->model);
        return PKV_OK;
    }
    enum pkv_status status = open_loader(loader, list);
    if (status == PKV_OK) {
        status = load_items(loader, list);
    }
    close_loader(loader);
    return status;
}

enum pkv_status pkvi_weights_load(const struct pkvi_gguf *gguf, const struct pkvi_arch *arch,
                                  const struct pkv_model_config *config, struct pkv_model *model)
{
    struct list list;
    struct loader loader = {.gguf = gguf, .model = model};
    PKV_TRY(make_list(arch, config->exact, model, &list));
    enum pkv_status status =
        pkvi_mem_alloc(model->device, PKV_MEM_DEVICE, list.bytes, &model->weights);
    if (status == PKV_OK) {
        status = load_list(&loader, &list);
    }
    if (status == PKV_OK && arch->tied_output) {
        model->output = model->token_embd;
    }
    free(list.item);
    return status;
}
