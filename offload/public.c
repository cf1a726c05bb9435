/*
 * public.c: the public tier's memory: config, plan, open, close. What it adds to the tier it stands
 * on is what a session would bring: a stream, scratch of attention, the spans of a pass.
 */
#include "offload/public.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/check.h"
#include "runtime/base/layout.h"
#include "runtime/device/device.h"

#define MOST_LAYERS 1024u
#define MOST_SEQUENCES 4096u
#define MOST_STEP_ROWS 65536u
#define MOST_CONTEXT (1u << 30)
#define MOST_HEAD_DIM 512u
#define MOST_CHANNELS (1u << 17) /* of a row of q */
#define DEFAULT_PROMPT_ROWS 8192u

struct pkv_tier_config pkv_tier_config_default(void)
{
    return (struct pkv_tier_config){.struct_bytes = sizeof(struct pkv_tier_config),
                                    .sequences = 1,
                                    .step_rows = 512,
                                    .kv_type = PKV_KV_F16,
                                    .kv_policy = PKV_KV_FULL,
                                    .kv_recent = 64};
}

static enum pkv_status check_layer(const struct pkv_tier_config *config, uint32_t l)
{
    const struct pkv_layer_info *info = &config->layer[l];
    if (info->kind != PKV_LAYER_GLOBAL && info->kind != PKV_LAYER_SLIDING) {
        return PKV_FAIL(PKV_ERR_INVALID, "layer %u: kind %d: expected global or sliding", l,
                        (int)info->kind);
    }
    if ((info->kind == PKV_LAYER_SLIDING) != (info->window > 0)) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "layer %u: window %u: a sliding layer has one, a global layer 0", l,
                        info->window);
    }
    if (info->head_dim < 2 || info->head_dim > MOST_HEAD_DIM || info->head_dim % 2 != 0) {
        return PKV_FAIL(PKV_ERR_RANGE, "layer %u: head size %u: expected even, 2 to %u", l,
                        info->head_dim, MOST_HEAD_DIM);
    }
    if (info->heads == 0 || info->heads > MOST_CHANNELS / info->head_dim) {
        return PKV_FAIL(PKV_ERR_RANGE, "layer %u: %u heads of %u: expected 1 to %u", l, info->heads,
                        info->head_dim, MOST_CHANNELS / info->head_dim);
    }
    if (info->kv_heads == 0 || info->heads % info->kv_heads != 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "layer %u: %u KV heads do not divide %u heads", l,
                        info->kv_heads, info->heads);
    }
    if (config->kv_type == PKV_KV_Q8_0 && info->head_dim % 32 != 0) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "KV type q8_0: head size %u of layer %u is not a multiple of 32",
                        info->head_dim, l);
    }
    return PKV_OK;
}

/* Layers one by one, and that pages and blocks of them all can be counted. */
static enum pkv_status check_layers(const struct pkv_tier_config *config)
{
    uint64_t kv_heads = 0;
    if (!config->layer || config->layers == 0 || config->layers > MOST_LAYERS) {
        return PKV_FAIL(PKV_ERR_RANGE, "a table of %u layers: expected 1 to %u",
                        config->layer ? config->layers : 0, MOST_LAYERS);
    }
    for (uint32_t l = 0; l < config->layers; l++) {
        PKV_TRY(check_layer(config, l));
        kv_heads += config->layer[l].kv_heads;
    }
    const uint64_t slots = (uint64_t)config->sequences + config->parked_sequences;
    const uint64_t blocks = config->context_tokens / PKV_PAGE_TOKENS + 1;
    if (kv_heads * blocks > UINT32_MAX / slots) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "%llu sequences of %u tokens with %llu KV heads in all layers: more pages "
                        "than 32 bits count",
                        (unsigned long long)slots, config->context_tokens,
                        (unsigned long long)kv_heads);
    }
    return PKV_OK;
}

static enum pkv_status check_choices(const struct pkv_tier_config *config)
{
    if ((uint32_t)config->kv_type >= PKV_KV_TYPE_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV type %d: expected f16, bf16, f32 or q8_0",
                        (int)config->kv_type);
    }
    if ((uint32_t)config->kv_policy >= PKV_KV_POLICY_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV policy %d: expected device or full",
                        (int)config->kv_policy);
    }
    if ((uint32_t)config->kv_resident > PKV_RESIDENT_LAST) {
        return PKV_FAIL(PKV_ERR_INVALID, "kv_resident %d: expected interleaved, first or last",
                        (int)config->kv_resident);
    }
    if (config->kv_policy == PKV_KV_DEVICE &&
        (config->kv_budget_bytes > 0 || config->kv_host_bytes > 0 ||
         config->parked_sequences > 0)) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV policy device has neither a budget nor host memory "
                                         "nor parked sequences");
    }
    if (!isfinite(config->attention_scale) || config->attention_scale < 0 ||
        !isfinite(config->attention_softcap) || config->attention_softcap < 0) {
        return PKV_FAIL(PKV_ERR_RANGE, "attention scale %g, softcap %g: expected numbers from 0",
                        (double)config->attention_scale, (double)config->attention_softcap);
    }
    return PKV_OK;
}

static enum pkv_status check_config(const struct pkv_tier_config *config)
{
    if (!config || config->struct_bytes != sizeof *config) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "tier config: struct_bytes %u, expected %zu: begin with "
                        "pkv_tier_config_default()",
                        config ? config->struct_bytes : 0, sizeof *config);
    }
    if (config->context_tokens == 0 || config->context_tokens > MOST_CONTEXT) {
        return PKV_FAIL(PKV_ERR_RANGE, "context of %u tokens: expected 1 to %u",
                        config->context_tokens, MOST_CONTEXT);
    }
    if (config->sequences == 0 || config->sequences > MOST_SEQUENCES ||
        config->parked_sequences > MOST_SEQUENCES) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u sequences and %u parked: expected 1 to %u and 0 to %u",
                        config->sequences, config->parked_sequences, MOST_SEQUENCES,
                        MOST_SEQUENCES);
    }
    if (config->step_rows < config->sequences || config->step_rows > MOST_STEP_ROWS) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u rows a step: expected %u (a row a sequence) to %u",
                        config->step_rows, config->sequences, MOST_STEP_ROWS);
    }
    PKV_TRY(check_choices(config));
    return check_layers(config);
}

static uint32_t lesser(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Rows that no pass can have take no memory. */
static void set_rows(const struct pkv_tier_config *config, struct pkvi_tier_config *tier)
{
    tier->step_rows =
        lesser(config->step_rows, (uint64_t)config->sequences * config->context_tokens);
    tier->pass_rows = config->prompt_rows > 0 ? config->prompt_rows : DEFAULT_PROMPT_ROWS;
    tier->pass_rows = lesser(tier->pass_rows, config->context_tokens);
    tier->pass_rows = tier->pass_rows > tier->step_rows ? tier->pass_rows : tier->step_rows;
}

static uint32_t span_count(const struct pkvi_tier_config *tier)
{
    const uint32_t tiles = (tier->pass_rows + tier->step_rows - 1) / tier->step_rows;
    return tiles > tier->sequences ? tiles : tier->sequences;
}

/* All arrays; on a measuring arena their bytes. */
static void lay_out_host(struct pkv_tier *t, struct pkvi_arena *arena)
{
    t->layer = pkvi_arena_take(arena, t->config.layers, sizeof *t->layer);
    t->seq = pkvi_arena_take(arena, pkvi_public_slots(t), sizeof *t->seq);
    t->part = pkvi_arena_take(arena, t->config.sequences, sizeof *t->part);
}

/* Everything of a tier but its sizes and allocations. */
static enum pkv_status prepare(struct pkv_device *device, const struct pkv_tier_config *config,
                               struct pkv_tier *t)
{
    struct pkv_device_info info;
    PKV_TRY(check_config(config));
    PKV_TRY(pkv_device_query(device, &info));
    t->device = device;
    t->scale = config->attention_scale;
    t->softcap = config->attention_softcap;
    t->config = (struct pkvi_tier_config){
        .layer = config->layer,
        .layers = config->layers,
        .context_tokens = config->context_tokens,
        .sequences = config->sequences,
        .parked = config->parked_sequences,
        .kv_type = config->kv_type,
        .host = config->kv_policy == PKV_KV_FULL,
        .budget_bytes = config->kv_budget_bytes,
        .recent = lesser(config->kv_recent, config->context_tokens),
        .resident = config->kv_resident,
        .host_limit_bytes = config->kv_host_bytes,
    };
    set_rows(config, &t->config);
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *layer = &config->layer[l];
        const uint64_t bytes =
            pkvi_attend_scratch_bytes(t->config.step_rows, t->config.context_tokens, layer->heads,
                                      layer->kv_heads, layer->head_dim, info.threads);
        t->scratch_bytes = bytes > t->scratch_bytes ? bytes : t->scratch_bytes;
    }
    t->scratch_bytes = pkvi_aligned(t->scratch_bytes);
    t->span_bytes = pkvi_aligned(span_count(&t->config) * sizeof(struct pkv_row_span));
    return PKV_OK;
}

static struct pkv_tier_sizes sizes_of(struct pkv_tier *t)
{
    const struct pkvi_tier_sizes *sizes = &t->sizes;
    struct pkvi_arena measuring = {0};
    lay_out_host(t, &measuring);
    return (struct pkv_tier_sizes){
        .device_bytes = sizes->device_bytes + t->scratch_bytes + t->span_bytes,
        .pinned_bytes =
            sizes->upload_bytes + sizes->host_bytes + sizes->parked_bytes + t->span_bytes,
        .pageable_bytes = sizes->state_bytes + measuring.used_bytes,
        .full_bytes = sizes->full_bytes,
        .least_budget_bytes = sizes->least_bytes,
        .step_rows = t->config.step_rows,
        .prompt_rows = t->config.pass_rows,
        .global_layers = sizes->global_layers,
        .dense_layers = sizes->dense_layers,
    };
}

enum pkv_status pkv_tier_plan(struct pkv_device *device, const struct pkv_tier_config *config,
                              struct pkv_tier_sizes *sizes_out)
{
    struct pkv_tier t = {0};
    if (!sizes_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "plan a tier: NULL argument");
    }
    PKV_TRY(prepare(device, config, &t));
    const enum pkv_status status = pkvi_tier_plan(&t.config, &t.sizes);
    *sizes_out = sizes_of(&t);
    return status;
}

static enum pkv_status allocate(struct pkv_tier *t, void *native)
{
    struct pkv_device *device = t->device;
    PKV_TRY(pkvi_stream_open(device, PKV_COMPUTE, native, &t->compute));
    PKV_TRY(pkvi_event_open(device, false, &t->done));
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_DEVICE, t->scratch_bytes + t->span_bytes, &t->scratch));
    pkvi_mem_touch(device, t->scratch, t->scratch_bytes + t->span_bytes);
    t->spans = t->scratch + t->scratch_bytes;
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_PINNED, t->span_bytes, &t->staging));
    return pkvi_tier_open(device, &t->config, t->compute, &t->tier);
}

enum pkv_status pkv_tier_open(struct pkv_device *device, const struct pkv_tier_config *config,
                              struct pkv_tier **tier_out)
{
    struct pkvi_arena measuring = {0};
    if (!tier_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a tier: NULL argument");
    }
    struct pkv_tier *t = calloc(1, sizeof *t);
    if (!t) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tier: %zu bytes", sizeof *t);
    }
    enum pkv_status status = prepare(device, config, t);
    if (status == PKV_OK) {
        status = pkvi_tier_plan(&t->config, &t->sizes);
    }
    if (status == PKV_OK) {
        lay_out_host(t, &measuring);
        status = pkvi_arena_init(&t->host, measuring.used_bytes);
    }
    if (status == PKV_OK) {
        lay_out_host(t, &t->host);
        for (uint32_t l = 0; l < config->layers; l++) {
            t->layer[l] = config->layer[l];
        }
        t->config.layer = t->layer;
        status = allocate(t, config->compute_stream);
    }
    if (status != PKV_OK) {
        pkv_tier_close(t);
        return status;
    }
    *tier_out = t;
    return PKV_OK;
}

void pkv_tier_close(struct pkv_tier *t)
{
    if (!t) {
        return;
    }
    pkvi_stream_close(t->compute); /* a pass may still run: this waits, whatever failed before */
    pkvi_tier_close(t->tier);
    pkvi_event_close(t->done);
    pkvi_mem_free(t->device, PKV_MEM_PINNED, t->staging);
    pkvi_mem_free(t->device, PKV_MEM_DEVICE, t->scratch);
    pkvi_arena_fini(&t->host);
    free(t);
}

void pkv_tier_report(struct pkv_tier *t, struct pkv_kv_report *report_out)
{
    pkvi_tier_report(t->tier, report_out);
}
