/*
 * session.c: a session's memory and its sequences.
 *
 * Owns: the plan, the three allocations (work buffers, K and V, pinned), which slot is in use.
 * Refuses to know: what a step does with them (pipeline.c).
 *
 * Here every sequence has its pages from the start, so page tables are written once, at open.
 */
#include "runtime/session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/device/device.h"

#define ALIGN_BYTES 256u
#define MOST_SEQUENCES 4096u
#define MOST_STEP_ROWS 65536u

struct pkv_session_config pkv_session_config_default(void)
{
    return (struct pkv_session_config){.struct_bytes = sizeof(struct pkv_session_config),
                                       .sequences = 1,
                                       .step_rows = 512,
                                       .kv_type = PKV_KV_F16};
}

/* Bump "allocation" over addresses. Sizes cannot overflow: check_config() bounds each factor. */
static pkv_addr take(uint64_t *top, uint64_t bytes)
{
    pkv_addr at = *top;
    *top += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return at;
}

static void take_act(uint64_t *top, uint32_t rows, uint32_t cols, struct pkvi_act_need need,
                     struct pkv_act *act_out)
{
    uint64_t values = (uint64_t)rows * cols;
    *act_out = (struct pkv_act){.cols = cols};
    if (need.f32) {
        act_out->f32 = take(top, values * sizeof(float));
    }
    if (need.q8) {
        act_out->q8 = take(top, values);
        act_out->block = take(top, values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block));
    }
}

uint32_t pkvi_session_layer_blocks(const struct pkv_session *session, uint32_t layer)
{
    const struct pkv_layer_info *info = &session->model->layer[layer].info;
    uint64_t whole = (session->config.context_tokens + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS;
    if (info->kind == PKV_LAYER_GLOBAL) {
        return (uint32_t)whole;
    }
    // A step appends all its rows before its first row looks back over the window.
    uint64_t ring = (uint64_t)info->window + session->config.step_rows;
    ring = (ring + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS + 1;
    return (uint32_t)(ring < whole ? ring : whole);
}

static uint64_t layer_block_bytes(const struct pkv_session *session, uint32_t layer)
{
    const struct pkv_layer_info *info = &session->model->layer[layer].info;
    return (uint64_t)info->kv_heads * PKV_PAGE_TOKENS *
           pkvi_kv_entry_bytes(session->config.kv_type, info->head_dim);
}

static void lay_out_upload(struct pkv_session *s, uint64_t *top)
{
    struct pkvi_buffers *b = &s->buffers;
    uint64_t rows = s->config.step_rows;
    b->upload = *top;
    b->ids = take(top, rows * sizeof(int32_t));
    b->positions = take(top, rows * sizeof(int32_t));
    b->row_index = take(top, s->config.logit_rows * sizeof(int32_t));
    b->spans = take(top, s->config.sequences * sizeof(struct pkv_row_span));
    b->upload_bytes = *top - b->upload;
}

static void lay_out_tables(struct pkv_session *s, uint64_t *top)
{
    const struct pkv_model *model = s->model;
    struct pkvi_buffers *b = &s->buffers;
    uint64_t pages = 0;
    for (uint32_t l = 0; l < model->info.layers; l++) {
        pages += (uint64_t)pkvi_session_layer_blocks(s, l) * model->layer[l].info.kv_heads;
    }
    uint64_t views = (uint64_t)model->info.layers * s->config.sequences;
    b->views = take(top, views * sizeof(struct pkv_kv_view));
    b->pages = take(top, pages * s->config.sequences * sizeof(pkv_addr));
    b->tables_bytes = *top - b->views;
}

/* Assign every address from the two bases and count bytes; with bases 0 it only counts. */
static void lay_out(struct pkv_session *s, pkv_addr work, pkv_addr pinned)
{
    const struct pkv_model *model = s->model;
    struct pkvi_buffers *b = &s->buffers;
    uint64_t top = work, rows = s->config.step_rows;
    b->x = take(&top, rows * model->info.width * sizeof(float));
    b->y = model->post_norms ? take(&top, rows * model->info.width * sizeof(float)) : 0;
    b->q = take(&top, rows * s->q_cols * sizeof(float));
    b->k = take(&top, rows * s->kv_cols * sizeof(float));
    b->v = take(&top, rows * s->kv_cols * sizeof(float));
    b->gate = take(&top, rows * model->info.ffn * sizeof(float));
    b->up = take(&top, rows * model->info.ffn * sizeof(float));
    take_act(&top, (uint32_t)rows, model->info.width, model->need_in, &b->in);
    take_act(&top, (uint32_t)rows, s->q_cols, model->need_attn, &b->attn);
    take_act(&top, (uint32_t)rows, model->info.ffn, model->need_ffn, &b->ffn);
    for (uint32_t i = 0; i < model->rope_count; i++) {
        b->rope[i] = take(&top, rows * model->rope[i].pairs * 2 * sizeof(float));
    }
    b->scratch = take(&top, b->scratch_bytes);
    lay_out_upload(s, &top);
    lay_out_tables(s, &top);
    s->work_bytes = top - work;
    top = pinned;
    b->logits = take(&top, (uint64_t)s->config.logit_rows * model->info.vocab * sizeof(float));
    b->staging = take(&top, b->upload_bytes);
    s->pinned_bytes = top - pinned;
}

static void count_kv(struct pkv_session *s)
{
    const struct pkv_model *model = s->model;
    s->kv_bytes = 0;
    s->kv_ring_bytes = 0;
    for (uint32_t l = 0; l < model->info.layers; l++) {
        uint64_t bytes = layer_block_bytes(s, l) * pkvi_session_layer_blocks(s, l);
        bytes *= s->config.sequences;
        s->kv_bytes += bytes;
        s->kv_ring_bytes += model->layer[l].info.kind == PKV_LAYER_SLIDING ? bytes : 0;
    }
}

/* Bring row counts into the range that can be used at all. */
static void clamp_rows(struct pkv_session_config *config)
{
    uint64_t most_rows = (uint64_t)config->sequences * config->context_tokens;
    if (config->step_rows > most_rows) {
        config->step_rows = (uint32_t)most_rows;
    }
    if (config->step_rows < config->sequences) {
        config->step_rows = config->sequences;
    }
    if (config->logit_rows == 0) {
        config->logit_rows = config->sequences;
    }
    if (config->logit_rows > config->step_rows) {
        config->logit_rows = config->step_rows;
    }
}

/* Fill in defaults and refuse what the arithmetic above could not hold. */
static enum pkv_status check_config(const struct pkv_model *model,
                                    const struct pkv_session_config *config,
                                    struct pkv_session_config *out)
{
    if (config->struct_bytes != sizeof *config) {
        return PKV_FAIL(PKV_ERR_INVALID, "session config: struct_bytes %u, expected %zu",
                        config->struct_bytes, sizeof *config);
    }
    *out = *config;
    if (out->context_tokens == 0) {
        out->context_tokens = model->info.context;
    }
    if (out->context_tokens > model->info.context) {
        return PKV_FAIL(PKV_ERR_RANGE, "context of %u tokens: the model was made for at most %u",
                        out->context_tokens, model->info.context);
    }
    if (out->sequences == 0 || out->sequences > MOST_SEQUENCES) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u sequences: expected 1 to %u", out->sequences,
                        MOST_SEQUENCES);
    }
    if (out->step_rows == 0 || out->step_rows > MOST_STEP_ROWS) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u rows a step: expected 1 to %u", out->step_rows,
                        MOST_STEP_ROWS);
    }
    if ((uint32_t)out->kv_type >= PKV_KV_TYPE_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV type %d: expected f16, bf16, f32 or q8_0",
                        (int)out->kv_type);
    }
    clamp_rows(out);
    return PKV_OK;
}

/* Everything of a session but its allocations. */
static enum pkv_status prepare(struct pkv_model *model, const struct pkv_session_config *config,
                               struct pkv_session *s)
{
    memset(s, 0, sizeof *s);
    s->model = model;
    PKV_TRY(check_config(model, config, &s->config));
    struct pkv_device_info device;
    PKV_TRY(pkv_device_query(model->device, &device));
    for (uint32_t l = 0; l < model->info.layers; l++) {
        const struct pkv_layer_info *info = &model->layer[l].info;
        uint32_t q_cols = info->heads * info->head_dim, kv_cols = info->kv_heads * info->head_dim;
        s->q_cols = q_cols > s->q_cols ? q_cols : s->q_cols;
        s->kv_cols = kv_cols > s->kv_cols ? kv_cols : s->kv_cols;
        if (s->config.kv_type == PKV_KV_Q8_0 && info->head_dim % 32 != 0) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                            "KV type q8_0: head size %u of layer %u is not a multiple of 32",
                            info->head_dim, l);
        }
        uint64_t scratch =
            pkvi_attend_scratch_bytes(s->config.step_rows, s->config.context_tokens, info->heads,
                                      info->kv_heads, info->head_dim, device.threads);
        if (scratch > s->buffers.scratch_bytes) {
            s->buffers.scratch_bytes = scratch;
        }
    }
    lay_out(s, 0, 0);
    count_kv(s);
    return PKV_OK;
}

static void plan_line(struct pkv_memory_plan *plan, const char *what, const char *where,
                      uint64_t bytes)
{
    if (bytes > 0 && plan->line_count < PKV_PLAN_LINES) {
        plan->line[plan->line_count++] =
            (struct pkv_memory_line){.what = what, .where = where, .bytes = bytes};
    }
}

/* Longest context whose K and V fit in what is left, for the message. */
static uint32_t context_that_fits(const struct pkv_session *s, uint64_t left_bytes)
{
    struct pkv_session trial = *s;
    uint32_t low = 0, high = s->config.context_tokens;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        trial.config.context_tokens = middle;
        count_kv(&trial);
        if (trial.kv_bytes <= left_bytes) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

struct size_text {
    char text[24];
};

/* In the largest unit that leaves at least one digit before the point. */
static struct size_text size_text(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    struct size_text size;
    double value = (double)bytes / 1024.0;
    size_t unit = 0;
    if (bytes < 1024) {
        (void)snprintf(size.text, sizeof size.text, "%u bytes", (unsigned)bytes);
        return size;
    }
    while (value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(size.text, sizeof size.text, "%.1f %s", value, units[unit]);
    return size;
}

static enum pkv_status refuse_kv(const struct pkv_session *s, uint64_t left_bytes,
                                 const char *limit)
{
    struct size_text need = size_text(s->kv_bytes), left = size_text(left_bytes);
    char fit[64] = "not even one token fits";
    uint32_t fits = context_that_fits(s, left_bytes);
    if (fits > 0) {
        (void)snprintf(fit, sizeof fit, "%u x %u tokens fit", s->config.sequences, fits);
    }
    return PKV_FAIL(PKV_ERR_NO_MEMORY, "K and V of %u x %u tokens need %s, %s leaves %s: %s",
                    s->config.sequences, s->config.context_tokens, need.text, limit, left.text,
                    fit);
}

static void fill_lines(const struct pkv_session *s, struct pkv_memory_plan *plan)
{
    plan_line(plan, "weights", "device", s->model->weights_bytes);
    plan_line(plan, "K and V, global layers", "device", s->kv_bytes - s->kv_ring_bytes);
    plan_line(plan, "K and V, sliding layers (window and ring)", "device", s->kv_ring_bytes);
    plan_line(plan, "attention scratch", "device", s->buffers.scratch_bytes);
    plan_line(plan, "page tables", "device", s->buffers.tables_bytes);
    plan_line(plan, "work buffers of a step", "device",
              s->work_bytes - s->buffers.scratch_bytes - s->buffers.tables_bytes);
    plan_line(plan, "logits and staging", "pinned", s->pinned_bytes);
    plan_line(plan, "sequences", "pageable", s->config.sequences * sizeof *s->seqs);
    for (uint32_t l = 0; l < s->model->info.layers; l++) {
        const struct pkv_layer_info *info = &s->model->layer[l].info;
        if (info->kind == PKV_LAYER_GLOBAL) {
            plan->kv_token_bytes +=
                (uint64_t)info->kv_heads * pkvi_kv_entry_bytes(s->config.kv_type, info->head_dim);
        }
    }
}

static enum pkv_status fill_plan(struct pkv_session *s, struct pkv_memory_plan *plan)
{
    struct pkv_device_info device;
    PKV_TRY(pkv_device_query(s->model->device, &device));
    memset(plan, 0, sizeof *plan);
    fill_lines(s, plan);
    // The weights are loaded already and no longer count as free.
    plan->device_asked_bytes = s->model->weights_bytes + s->work_bytes + s->kv_bytes;
    plan->device_available_bytes = s->model->weights_bytes + device.memory_free_bytes;
    plan->pinned_asked_bytes = s->pinned_bytes;
    plan->pinned_available_bytes = device.memory_free_bytes;
    plan->pageable_asked_bytes = s->config.sequences * sizeof *s->seqs;
    plan->pageable_available_bytes = device.memory_free_bytes;
    uint64_t limit = s->config.kv_device_bytes;
    if (limit > 0 && s->kv_bytes > limit) {
        return refuse_kv(s, limit, "the limit for them");
    }
    uint64_t other = s->work_bytes + s->pinned_bytes, free_bytes = device.memory_free_bytes;
    if (other + s->kv_bytes > free_bytes) {
        return refuse_kv(s, free_bytes > other ? free_bytes - other : 0, "the device");
    }
    plan->device_granted_bytes = plan->device_asked_bytes;
    plan->pinned_granted_bytes = plan->pinned_asked_bytes;
    plan->pageable_granted_bytes = plan->pageable_asked_bytes;
    return PKV_OK;
}

enum pkv_status pkv_session_plan(struct pkv_model *model, const struct pkv_session_config *config,
                                 struct pkv_memory_plan *plan_out)
{
    struct pkv_session session;
    PKV_TRY(prepare(model, config, &session));
    return fill_plan(&session, plan_out);
}

/* Views and page tables of all layers and sequences, as the kernels read them. */
static void write_tables(const struct pkv_session *s, unsigned char *tables)
{
    const struct pkv_model *model = s->model;
    struct pkv_kv_view *views = (struct pkv_kv_view *)(void *)tables;
    pkv_addr *pages = (pkv_addr *)(void *)(tables + (s->buffers.pages - s->buffers.views));
    pkv_addr page_table = s->buffers.pages, block = s->kv;
    for (uint32_t l = 0; l < model->info.layers; l++) {
        uint32_t blocks = pkvi_session_layer_blocks(s, l), heads = model->layer[l].info.kv_heads;
        uint64_t block_bytes = layer_block_bytes(s, l), page_bytes = block_bytes / heads;
        for (uint32_t q = 0; q < s->config.sequences; q++) {
            views[(size_t)l * s->config.sequences + q] = (struct pkv_kv_view){
                .page = page_table, .head_stride = blocks, .page_stride = 1, .ring_pages = blocks};
            for (uint32_t h = 0; h < heads; h++) {
                for (uint32_t p = 0; p < blocks; p++) {
                    *pages++ = block + p * block_bytes + h * page_bytes;
                }
            }
            page_table += (uint64_t)heads * blocks * sizeof(pkv_addr);
            block += blocks * block_bytes;
        }
    }
}

static enum pkv_status upload_tables(struct pkv_session *s)
{
    unsigned char *tables = calloc(1, s->buffers.tables_bytes);
    if (!tables) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "page tables: %llu bytes",
                        (unsigned long long)s->buffers.tables_bytes);
    }
    write_tables(s, tables);
    struct pkv_span span = {.dst = s->buffers.views,
                            .src = (pkv_addr)(uintptr_t)tables,
                            .bytes = s->buffers.tables_bytes};
    enum pkv_status status = pkvi_copy_async(s->compute, &span, 1);
    if (status == PKV_OK) {
        status = pkvi_stream_sync(s->compute);
    }
    free(tables);
    return status;
}

static enum pkv_status allocate(struct pkv_session *s)
{
    struct pkv_device *device = s->model->device;
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_DEVICE, s->work_bytes, &s->work));
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_DEVICE, s->kv_bytes, &s->kv));
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_PINNED, s->pinned_bytes, &s->pinned));
    lay_out(s, s->work, s->pinned);
    PKV_TRY(pkvi_stream_open(device, PKV_COMPUTE, NULL, &s->compute));
    PKV_TRY(pkvi_event_open(device, false, &s->done));
    for (uint32_t op = 0; op < PKV_OP_COUNT; op++) {
        s->kernel[op] = pkvi_device_kernel(device, op);
        if (!s->kernel[op]) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the device has no kernel for %s",
                            pkvi_op_name(op));
        }
    }
    return upload_tables(s);
}

enum pkv_status pkv_session_open(struct pkv_model *model, const struct pkv_session_config *config,
                                 struct pkv_session **session_out)
{
    struct pkv_memory_plan plan;
    struct pkv_session *s = malloc(sizeof *s);
    if (!s) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "session: %zu bytes", sizeof *s);
    }
    enum pkv_status status = prepare(model, config, s);
    if (status == PKV_OK) {
        status = fill_plan(s, &plan);
    }
    if (status != PKV_OK) {
        free(s);
        return status;
    }
    s->seqs = calloc(s->config.sequences, sizeof *s->seqs);
    status = s->seqs ? allocate(s)
                     : PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u sequences", s->config.sequences);
    if (status != PKV_OK) {
        pkv_session_close(s);
        return status;
    }
    for (uint32_t i = 0; i < s->config.sequences; i++) {
        s->seqs[i] = (struct pkv_seq){.session = s, .index = i};
    }
    *session_out = s;
    return PKV_OK;
}

void pkv_session_close(struct pkv_session *s)
{
    if (!s) {
        return;
    }
    struct pkv_device *device = s->model->device;
    if (s->compute) {
        (void)pkvi_stream_sync(s->compute); // a step may still run; its error has been told
    }
    pkvi_event_close(s->done);
    pkvi_stream_close(s->compute);
    pkvi_mem_free(device, PKV_MEM_PINNED, s->pinned);
    pkvi_mem_free(device, PKV_MEM_DEVICE, s->kv);
    pkvi_mem_free(device, PKV_MEM_DEVICE, s->work);
    free(s->seqs);
    free(s);
}

enum pkv_status pkv_seq_open(struct pkv_session *session, struct pkv_seq **seq_out)
{
    for (uint32_t i = 0; i < session->config.sequences; i++) {
        struct pkv_seq *seq = &session->seqs[i];
        if (!seq->open) {
            seq->open = true;
            seq->tokens = 0;
            seq->high = 0;
            *seq_out = seq;
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_NO_SLOT, "all %u sequences are in use", session->config.sequences);
}

void pkv_seq_close(struct pkv_seq *seq)
{
    if (seq) {
        seq->open = false;
    }
}

uint32_t pkv_seq_tokens(const struct pkv_seq *seq)
{
    return seq->tokens;
}

enum pkv_status pkv_seq_truncate(struct pkv_seq *seq, uint32_t tokens)
{
    const struct pkv_session *s = seq->session;
    if (tokens > seq->tokens) {
        return PKV_FAIL(PKV_ERR_RANGE, "truncate to %u tokens: the sequence has %u", tokens,
                        seq->tokens);
    }
    for (uint32_t l = 0; l < s->model->info.layers && tokens > 0 && tokens < seq->tokens; l++) {
        const struct pkv_layer_info *info = &s->model->layer[l].info;
        uint64_t ring = (uint64_t)pkvi_session_layer_blocks(s, l) * PKV_PAGE_TOKENS;
        uint32_t first = tokens + 1 > info->window ? tokens + 1 - info->window : 0;
        if (info->kind == PKV_LAYER_SLIDING && first + ring < seq->high) {
            return PKV_FAIL(PKV_ERR_RANGE,
                            "truncate to %u tokens: layer %u keeps a ring of %llu tokens, and %u "
                            "were written",
                            tokens, l, (unsigned long long)ring, seq->high);
        }
    }
    seq->tokens = tokens;
    if (tokens == 0) {
        seq->high = 0;
    }
    return PKV_OK;
}
