/*
 * link_kernels.c: owns the shapes in which each kind of kernel is timed, so that the profile knows
 * what share of the device each reaches: matrices for one row (weights beyond every cache), for a
 * few and for many; attention of one row over a deep past, with one, four and eight heads a KV
 * head, and of many rows; a norm; and of every kind a launch with next to no work. All memory is
 * zero: no kernel minds.
 */
#include "bench/link.h"

#include <string.h>

#include "kernels/addr.h"
#include "kernels/pack.h"
#include "runtime/base/check.h"

#define COLS 1024u
#define OUTPUTS 4096u /* of a matrix that stays in caches */
#define FEW_ROWS 8u
#define MANY_ROWS 256u
#define LAUNCH_COLS 256u
#define LAUNCH_OUTPUTS 64u
#define KV_HEADS 4u
#define GROUP_MOST 8u
#define HEAD_DIM 64u
#define MANY_KEYS 4096u
#define KEYS_MOST 65536u
#define ATTEND_ROWS 128u
#define PAGE_BYTES (PKV_PAGE_TOKENS * 2u * HEAD_DIM * 2u) /* f16 */

enum span { SPAN_LAUNCH, SPAN_ONE, SPAN_MANY, SPANS };

/* Where things lie in works_memory; with base 0 it measures. What is sent comes first. */
struct layout {
    pkv_addr pages, view, spans, sent_end;
    pkv_addr weight, x_f32, x_q8, x_block, y, scratch, end;
    uint64_t scratch_bytes;
    uint32_t keys;
};

static const struct {
    enum pkvi_profile_kind kind;
    const char *shape;
    enum pkv_weight_type type;
    uint32_t rows, cols, outputs; /* of a matrix; 0 outputs: as many as there is memory */
    uint32_t span, group;         /* of attention */
} shapes[LINK_WORKS] = {
    {PKVI_PROFILE_LINEAR_Q4, "launch", PKV_W_Q4_1, 1, LAUNCH_COLS, LAUNCH_OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_Q4, "rows_1", PKV_W_Q4_1, 1, COLS, 0, 0, 0},
    {PKVI_PROFILE_LINEAR_Q4, "rows_8", PKV_W_Q4_1, FEW_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_Q4, "rows_256", PKV_W_Q4_1, MANY_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_Q8, "launch", PKV_W_Q8_0, 1, LAUNCH_COLS, LAUNCH_OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_Q8, "rows_1", PKV_W_Q8_0, 1, COLS, 0, 0, 0},
    {PKVI_PROFILE_LINEAR_Q8, "rows_8", PKV_W_Q8_0, FEW_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_Q8, "rows_256", PKV_W_Q8_0, MANY_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_F32, "launch", PKV_W_F32, 1, LAUNCH_COLS, LAUNCH_OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_F32, "rows_1", PKV_W_F32, 1, COLS, 0, 0, 0},
    {PKVI_PROFILE_LINEAR_F32, "rows_8", PKV_W_F32, FEW_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_LINEAR_F32, "rows_256", PKV_W_F32, MANY_ROWS, COLS, OUTPUTS, 0, 0},
    {PKVI_PROFILE_ATTEND, "launch", 0, 1, 0, 0, SPAN_LAUNCH, 4},
    {PKVI_PROFILE_ATTEND, "group_1", 0, 1, 0, 0, SPAN_ONE, 1},
    {PKVI_PROFILE_ATTEND, "group_4", 0, 1, 0, 0, SPAN_ONE, 4},
    {PKVI_PROFILE_ATTEND, "group_8", 0, 1, 0, 0, SPAN_ONE, GROUP_MOST},
    {PKVI_PROFILE_ATTEND, "rows_128", 0, ATTEND_ROWS, 0, 0, SPAN_MANY, 4},
    {PKVI_PROFILE_ROWS, "launch", 0, 1, COLS, 0, 0, 0},
    {PKVI_PROFILE_ROWS, "rows_256", 0, MANY_ROWS, COLS, 0, 0, 0},
};

void pkvi_link_work_name(uint32_t index, const char **kind_out, const char **shape_out)
{
    *kind_out = pkvi_profile_kinds[shapes[index].kind];
    *shape_out = shapes[index].shape;
}

static pkv_addr take(pkv_addr *at, uint64_t bytes)
{
    const pkv_addr here = *at;
    *at += (bytes + 63) & ~(uint64_t)63;
    return here;
}

/* Bytes of the memory that stands for weights and for K and V. */
static uint64_t read_bytes(const struct link *link)
{
    const struct pkv_matrix *w = &link->read.args.linear.part[0].w;
    return w->data ? pkvi_pack_bytes(w->type, w->rows, w->cols) : 0;
}

static struct layout lay_out(const struct link *link, pkv_addr base)
{
    const uint64_t values = (uint64_t)MANY_ROWS * GROUP_MOST * KV_HEADS * HEAD_DIM;
    struct layout l = {.keys = KEYS_MOST};
    pkv_addr at = base;
    while (l.keys > PKV_PAGE_TOKENS && base > 0 &&
           (uint64_t)l.keys / PKV_PAGE_TOKENS * KV_HEADS * PAGE_BYTES > read_bytes(link)) {
        l.keys /= 2;
    }
    l.pages = take(&at, KEYS_MOST / PKV_PAGE_TOKENS * KV_HEADS * sizeof(pkv_addr));
    l.view = take(&at, sizeof(struct pkv_kv_view));
    l.spans = take(&at, SPANS * sizeof(struct pkv_row_span));
    l.sent_end = at;
    l.weight = take(&at, COLS * sizeof(float));
    l.x_f32 = take(&at, values * sizeof(float)); /* also q, and x of the norm */
    l.x_q8 = take(&at, values);
    l.x_block = take(&at, values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block));
    l.y = take(&at, (uint64_t)MANY_ROWS * OUTPUTS * sizeof(float) + (1u << 20) * sizeof(float));
    const uint32_t heads = KV_HEADS * GROUP_MOST, threads = link->info.threads;
    const uint64_t one =
        pkvi_attend_scratch_bytes(1, KEYS_MOST, heads, KV_HEADS, HEAD_DIM, threads);
    const uint64_t many =
        pkvi_attend_scratch_bytes(ATTEND_ROWS, PKV_SPLIT_KEYS, heads, KV_HEADS, HEAD_DIM, threads);
    l.scratch_bytes = one > many ? one : many;
    l.scratch = take(&at, l.scratch_bytes);
    l.end = at;
    return l;
}

uint64_t pkvi_link_works_bytes(const struct link *link)
{
    return lay_out(link, 0).end;
}

/* Page table, view and spans, as kernels find them. */
static enum pkv_status send_tables(struct link *link, const struct layout *l)
{
    const uint64_t bytes = l->sent_end - l->pages;
    PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_PINNED, bytes, &link->works_pages));
    uint8_t *image = PKV_AT(uint8_t, link->works_pages); /* stays: the copy may be late */
    memset(image, 0, bytes);
    for (uint32_t i = 0; i < l->keys / PKV_PAGE_TOKENS * KV_HEADS; i++) {
        PKV_AT(pkv_addr, link->works_pages)
        [i] = link->read.args.linear.part[0].w.data + (uint64_t)i * PAGE_BYTES;
    }
    *(struct pkv_kv_view *)(void *)(image + (l->view - l->pages)) =
        (struct pkv_kv_view){.page = l->pages,
                             .head_stride = 1,
                             .page_stride = KV_HEADS,
                             .ring_pages = l->keys / PKV_PAGE_TOKENS};
    struct pkv_row_span *spans = (void *)(image + (l->spans - l->pages));
    const uint32_t many = l->keys < MANY_KEYS ? l->keys : MANY_KEYS;
    const uint32_t rows = many < ATTEND_ROWS ? many : ATTEND_ROWS;
    spans[SPAN_LAUNCH] = (struct pkv_row_span){.rows = 1, .first_position = PKV_PAGE_TOKENS - 1};
    spans[SPAN_ONE] = (struct pkv_row_span){.rows = 1, .first_position = l->keys - 1};
    spans[SPAN_MANY] = (struct pkv_row_span){.rows = rows, .first_position = many - rows};
    const struct pkv_span span = {l->pages, link->works_pages, bytes};
    PKV_TRY(pkvi_copy_async(link->compute, &span, 1));
    return pkvi_stream_sync(link->compute);
}

static void set_linear(const struct link *link, const struct layout *l, uint32_t index,
                       struct pkv_args_linear *args)
{
    const uint64_t group_bytes =
        pkvi_pack_bytes(shapes[index].type, PKV_PACK_ROWS, shapes[index].cols);
    uint64_t most = read_bytes(link) / group_bytes * PKV_PACK_ROWS;
    most = most > PKV_PACK_ROWS ? most : PKV_PACK_ROWS;
    const uint32_t wanted = shapes[index].outputs > 0 ? shapes[index].outputs : 1u << 20;
    const uint32_t outputs = wanted < most ? wanted : (uint32_t)most;
    *args = (struct pkv_args_linear){
        .x = {.cols = shapes[index].cols, .f32 = l->x_f32, .q8 = l->x_q8, .block = l->x_block},
        .rows = shapes[index].rows,
        .part_count = 1,
        .part = {{.w = {.type = shapes[index].type,
                        .rows = outputs,
                        .cols = shapes[index].cols,
                        .data = link->read.args.linear.part[0].w.data},
                  .y = l->y,
                  .y_stride = outputs}}};
    if (shapes[index].type == PKV_W_F32) { /* a model has only the form that its weights read */
        args->x.q8 = args->x.block = 0;
    } else {
        args->x.f32 = 0;
    }
}

static struct pkv_args_attend attend_args(const struct layout *l, uint32_t index)
{
    const uint32_t heads = KV_HEADS * shapes[index].group;
    return (struct pkv_args_attend){
        .q = l->x_f32,
        .views = l->view,
        .spans = l->spans + shapes[index].span * sizeof(struct pkv_row_span),
        .out = {.cols = heads * HEAD_DIM, .q8 = l->x_q8, .block = l->x_block},
        .scratch = l->scratch,
        .scratch_bytes = l->scratch_bytes,
        .kv_type = PKV_KV_F16,
        .scale = 0.125f,
        .span_count = 1,
        .rows = shapes[index].rows,
        .heads = heads,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .q_stride = heads * HEAD_DIM};
}

static struct link_work make(const struct link *link, const struct layout *l, uint32_t index)
{
    struct link_work work = {.kind = shapes[index].kind, .shape = shapes[index].shape};
    struct link_kernel *kernel = &work.kernel;
    if (work.kind == PKVI_PROFILE_ATTEND) {
        kernel->kernel = pkvi_device_kernel(link->device, PKV_OP_ATTEND);
        kernel->args.attend = attend_args(l, index);
    } else if (work.kind == PKVI_PROFILE_ROWS) {
        kernel->kernel = pkvi_device_kernel(link->device, PKV_OP_NORM);
        kernel->args.norm =
            (struct pkv_args_norm){.x = l->x_f32,
                                   .weight = l->weight,
                                   .out = {.cols = COLS, .q8 = l->x_q8, .block = l->x_block},
                                   .eps = 1e-5f,
                                   .rows = shapes[index].rows,
                                   .cols = COLS};
    } else {
        kernel->kernel = pkvi_device_kernel(link->device, PKV_OP_LINEAR);
        set_linear(link, l, index, &kernel->args.linear);
    }
    return work;
}

enum pkv_status pkvi_link_works_open(struct link *link)
{
    PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_DEVICE, pkvi_link_works_bytes(link),
                           &link->works_memory));
    const struct layout l = lay_out(link, link->works_memory);
    for (pkv_addr at = l.weight; at < l.scratch; at += LINK_ZERO_BYTES) {
        const struct pkv_span span = {.dst = at,
                                      .src = link->zeros,
                                      .bytes = l.scratch - at < LINK_ZERO_BYTES ? l.scratch - at
                                                                                : LINK_ZERO_BYTES};
        PKV_TRY(pkvi_copy_async(link->compute, &span, 1));
    }
    PKV_TRY(send_tables(link, &l));
    for (uint32_t i = 0; i < LINK_WORKS; i++) {
        struct link_work *work = &link->works[i];
        *work = make(link, &l, i);
        if (!work->kernel.kernel || !work->kernel.kernel->cost) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the device has no kernel of '%s', or no cost",
                            pkvi_profile_kinds[work->kind]);
        }
        struct link_kernel *kernel = &work->kernel;
        /* The cost of attention reads spans: from the copy that the host has. */
        const pkv_addr spans = kernel->args.attend.spans;
        if (work->kind == PKVI_PROFILE_ATTEND) {
            kernel->args.attend.spans = link->works_pages + (spans - l.pages);
        }
        kernel->kernel->cost(&kernel->args, &kernel->cost);
        if (work->kind == PKVI_PROFILE_ATTEND) {
            kernel->args.attend.spans = spans;
        }
    }
    return PKV_OK;
}

void pkvi_link_works_close(struct link *link)
{
    pkvi_mem_free(link->device, PKV_MEM_DEVICE, link->works_memory);
    pkvi_mem_free(link->device, PKV_MEM_PINNED, link->works_pages);
}
