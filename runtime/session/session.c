/*
 * session.c: a session's memory.
 *
 * Owns: the plan, the work buffers.
 * Refuses to know: what a step does with them (pipeline.c), what sequences are (sequence.c), where
 * K and V are (offload/).
 */
#include "runtime/session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/layout.h"
#include "runtime/device/device.h"
#include "runtime/session/rehearsal.h"

#define MOST_SEQUENCES 4096u
#define MOST_STEP_ROWS 65536u
#define DEFAULT_PROMPT_ROWS 8192u
#define DEFAULT_RECENT 64u

struct pkv_session_config pkv_session_config_default(void)
{
    return (struct pkv_session_config){.struct_bytes = sizeof(struct pkv_session_config),
                                       .sequences = 1,
                                       .step_rows = 512,
                                       .kv_type = PKV_KV_F16,
                                       .kv_recent = DEFAULT_RECENT,
                                       .kv_sinks = -1};
}

static void take_act(uint64_t *top, uint32_t rows, uint32_t cols, struct pkvi_act_need need,
                     struct pkv_act *act_out)
{
    uint64_t values = (uint64_t)rows * cols;
    *act_out = (struct pkv_act){.cols = cols};
    if (need.f32) {
        act_out->f32 = pkvi_take(top, values * sizeof(float));
    }
    if (need.q8) {
        act_out->q8 = pkvi_take(top, values);
        act_out->block = pkvi_take(top, values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block));
    }
}

static void lay_out_lane(struct pkv_session *s, struct pkvi_lane *lane, uint64_t *top)
{
    const struct pkv_model *model = s->model;
    const uint64_t rows = lane->rows;
    const uint64_t tiles = (rows + s->config.step_rows - 1) / s->config.step_rows;
    const uint64_t of_prompt = pkvi_session_prunes(s) ? tiles * model->info.layers : tiles;
    const uint64_t spans = s->config.sequences > of_prompt ? s->config.sequences : of_prompt;
    lane->x = pkvi_take(top, rows * model->info.width * sizeof(float));
    for (uint32_t i = 0; i < model->rope_count; i++) {
        lane->rope[i] = pkvi_take(top, rows * model->rope[i].pairs * 2 * sizeof(float));
    }
    lane->upload = *top;
    lane->ids = pkvi_take(top, rows * sizeof(int32_t));
    lane->positions = pkvi_take(top, rows * sizeof(int32_t));
    lane->row_index = pkvi_take(top, s->config.logit_rows * sizeof(int32_t));
    lane->spans = pkvi_take(top, spans * sizeof(struct pkv_row_span));
    lane->upload_bytes = *top - lane->upload;
}

/* Assign every address from the two bases and count bytes; with bases 0 it only counts. */
static void lay_out(struct pkv_session *s, pkv_addr work, pkv_addr pinned)
{
    const struct pkv_model *model = s->model;
    struct pkvi_buffers *b = &s->buffers;
    const uint32_t lanes = s->lane[PKVI_LANE_PROMPT] == s->lane[PKVI_LANE_STEP] ? 1 : PKVI_LANES;
    uint64_t top = work, rows = s->config.step_rows;
    b->y = model->post_norms ? pkvi_take(&top, rows * model->info.width * sizeof(float)) : 0;
    b->q = pkvi_take(&top, rows * s->q_cols * sizeof(float));
    b->k = pkvi_take(&top, rows * s->kv_cols * sizeof(float));
    b->v = pkvi_take(&top, rows * s->kv_cols * sizeof(float));
    b->gate = pkvi_take(&top, rows * model->info.ffn * sizeof(float));
    b->up = pkvi_take(&top, rows * model->info.ffn * sizeof(float));
    take_act(&top, (uint32_t)rows, model->info.width, model->need_in, &b->in);
    take_act(&top, (uint32_t)rows, s->q_cols, model->need_attn, &b->attn);
    take_act(&top, (uint32_t)rows, model->info.ffn, model->need_ffn, &b->ffn);
    if (s->sketch_cols > 0) {
        b->q_gain = pkvi_take(&top, rows * s->most_heads * sizeof(float));
        b->sketch[0] = pkvi_take(&top, rows * s->sketch_cols * sizeof(float));
        b->sketch[1] = pkvi_take(&top, rows * s->sketch_cols * sizeof(float));
    }
    b->scratch = pkvi_take(&top, b->scratch_bytes);
    for (uint32_t i = 0; i < lanes; i++) {
        lay_out_lane(s, &s->lane_memory[i], &top);
    }
    s->work_bytes = top - work;
    top = pinned;
    b->logits = pkvi_take(&top, (uint64_t)s->config.logit_rows * model->info.vocab * sizeof(float));
    for (uint32_t i = 0; i < lanes; i++) {
        s->lane_memory[i].staging = pkvi_take(&top, s->lane_memory[i].upload_bytes);
    }
    s->pinned_bytes = top - pinned;
}

/* Prompts in passes of so many rows; a lane of their own where other sequences may run meanwhile.
 */
static void choose_lanes(struct pkv_session *s)
{
    const bool own = pkvi_session_slots(s) > 1;
    const uint32_t step = s->config.step_rows;
    const bool whole = s->tier_sizes.tile_tokens > 0 || pkvi_session_prunes(s);
    const uint32_t pass = whole ? s->config.prompt_rows : step;
    s->lane[PKVI_LANE_STEP] = &s->lane_memory[0];
    s->lane[PKVI_LANE_PROMPT] = &s->lane_memory[own ? 1 : 0];
    s->lane_memory[0].rows = step;
    s->lane[PKVI_LANE_PROMPT]->rows = pass;
}

static bool has_host(const struct pkv_session *s)
{
    return s->config.kv_policy != PKV_KV_DEVICE && !(s->config.policy && s->config.policy->prune);
}

/* What the tier is to be, with its sizes. */
static enum pkv_status plan_tier(struct pkv_session *s)
{
    struct pkvi_tier_config *tier = &s->tier_config;
    tier->sequences = s->config.sequences;
    tier->parked = s->config.parked_sequences;
    tier->context_tokens = s->config.context_tokens;
    tier->step_rows = s->config.step_rows;
    tier->pass_rows = s->config.prompt_rows;
    tier->kv_type = s->config.kv_type;
    tier->host = has_host(s);
    tier->budget_bytes = s->config.kv_budget_bytes;
    tier->recent = s->config.kv_recent;
    tier->resident = s->config.kv_resident;
    tier->host_limit_bytes = s->config.kv_host_bytes;
    tier->policy = s->config.policy ? &s->policy : NULL;
    tier->pyramid = s->config.kv_pyramid;
    tier->layer_weights = s->config.kv_layer_weights;
    tier->keep_tokens = s->config.kv_keep_tokens;
    tier->threads = s->threads;
    tier->check_steps = s->config.kv_check_steps;
    enum pkv_status status = pkvi_tier_plan(tier, &s->tier_sizes);
    choose_lanes(s);
    return status;
}

/* Device bytes of K and V: what a limit for them is about. */
static uint64_t kv_bytes(const struct pkv_session *s)
{
    const struct pkvi_tier_sizes *sizes = &s->tier_sizes;
    return sizes->pool_bytes + sizes->hot_bytes + sizes->ring_bytes + sizes->staging_bytes +
           sizes->buffer_bytes;
}

/* A budget, and if need be fewer rows of a prompt at once, so that all K and V on the device stay
 * below kv_device_bytes. */
static enum pkv_status fit_limit(struct pkv_session *s)
{
    const uint64_t limit = s->config.kv_device_bytes, rings = s->tier_sizes.ring_bytes;
    const uint64_t left = limit > rings ? limit - rings : 0;
    for (;;) {
        s->config.kv_budget_bytes = left / s->config.sequences + (left == 0);
        enum pkv_status status = plan_tier(s);
        const uint64_t buffer = s->tier_sizes.buffer_bytes;
        if (status == PKV_OK && kv_bytes(s) > limit && left > buffer) {
            s->config.kv_budget_bytes = (left - buffer) / s->config.sequences;
            status = plan_tier(s);
        }
        if (status == PKV_OK && kv_bytes(s) <= limit) {
            return PKV_OK;
        }
        if (s->config.prompt_rows <= s->config.step_rows) {
            break;
        }
        const uint32_t half = s->config.prompt_rows / 2;
        s->config.prompt_rows = half > s->config.step_rows ? half : s->config.step_rows;
    }
    s->config.kv_budget_bytes = s->tier_sizes.least_bytes;
    PKV_TRY(plan_tier(s));
    return PKV_FAIL(PKV_ERR_NO_MEMORY,
                    "K and V on the device: rings, the recent tokens of every layer, two staging "
                    "tiles and one layer of a prompt's rows need %lluKiB, the limit is %llu bytes",
                    (unsigned long long)(kv_bytes(s) + 1023) / 1024, (unsigned long long)limit);
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
    if (config->prompt_rows == 0) { /* what is pruned goes through layers as a whole */
        const bool whole = config->policy && config->policy->prune;
        config->prompt_rows = whole ? config->context_tokens : DEFAULT_PROMPT_ROWS;
    }
    if (config->prompt_rows > config->context_tokens) {
        config->prompt_rows = config->context_tokens;
    }
    if (config->prompt_rows < config->step_rows) {
        config->prompt_rows = config->step_rows;
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
    if (out->parked_sequences > MOST_SEQUENCES) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u parked sequences: expected 0 to %u",
                        out->parked_sequences, MOST_SEQUENCES);
    }
    if (out->step_rows == 0 || out->step_rows > MOST_STEP_ROWS) {
        return PKV_FAIL(PKV_ERR_RANGE, "%u rows a step: expected 1 to %u", out->step_rows,
                        MOST_STEP_ROWS);
    }
    if ((uint32_t)out->kv_type >= PKV_KV_TYPE_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV type %d: expected f16, bf16, f32 or q8_0",
                        (int)out->kv_type);
    }
    if ((uint32_t)out->kv_policy >= PKV_KV_POLICY_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV policy %d: expected device, full or hot",
                        (int)out->kv_policy);
    }
    if (out->kv_policy != PKV_KV_HOT) {
        out->policy = NULL;
    } else if (!out->policy) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV policy hot without a recipe: pkv_policy_find()");
    }
    if ((uint32_t)out->kv_pyramid >= PKV_PYRAMID_COUNT) {
        return PKV_FAIL(PKV_ERR_INVALID, "pyramid %d: expected 0 to %d", (int)out->kv_pyramid,
                        (int)PKV_PYRAMID_COUNT - 1);
    }
    if (!(out->kv_recent_ratio >= 0.0f && out->kv_recent_ratio <= 1.0f)) {
        return PKV_FAIL(PKV_ERR_RANGE, "recent ratio %g: expected 0 to 1",
                        (double)out->kv_recent_ratio);
    }
    if (out->policy && out->policy->abi != PKV_POLICY_ABI) {
        return PKV_FAIL(PKV_ERR_INVALID, "policy %s: abi %u, expected %u", out->policy->name,
                        out->policy->abi, PKV_POLICY_ABI);
    }
    if (out->kv_policy == PKV_KV_DEVICE &&
        (out->kv_budget_bytes > 0 || out->kv_host_bytes > 0 || out->parked_sequences > 0)) {
        return PKV_FAIL(PKV_ERR_INVALID, "KV policy device has neither a budget nor host memory "
                                         "nor parked sequences");
    }
    if (out->kv_recent > out->context_tokens) {
        out->kv_recent = out->context_tokens;
    }
    clamp_rows(out);
    return PKV_OK;
}

const char *pkv_kv_policy_name(enum pkv_kv_policy policy)
{
    static const char *const names[] = {"device", "full", "hot"};
    return (uint32_t)policy < PKV_KV_POLICY_COUNT ? names[policy] : NULL;
}

static enum pkv_status copy_layers(struct pkv_session *s)
{
    const uint32_t layers = s->model->info.layers;
    s->layer_info = malloc(layers * sizeof *s->layer_info);
    s->prune_rows = malloc(layers * sizeof *s->prune_rows);
    s->index = calloc(layers, sizeof *s->index);
    s->rehearsal = calloc(layers, sizeof *s->rehearsal);
    if (!s->layer_info || !s->prune_rows || !s->index || !s->rehearsal) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u layers", layers);
    }
    for (uint32_t l = 0; l < layers; l++) {
        s->layer_info[l] = s->model->layer[l].info;
    }
    s->tier_config.layer = s->layer_info;
    s->tier_config.layers = layers;
    s->tier_config.index = s->index;
    return PKV_OK;
}

static void free_tables(struct pkv_session *s)
{
    free(s->rehearsal);
    free(s->index);
    free(s->prune_rows);
    free(s->layer_info);
}

/* The policy's, with what the config says instead. */
static void set_prune(struct pkv_session *s)
{
    s->prune = *s->policy.prune;
    s->policy.prune = &s->prune;
    if (s->config.kv_sinks >= 0) {
        s->prune.sinks = (uint32_t)s->config.kv_sinks;
    }
    if (s->config.kv_recent_ratio > 0.0f) {
        s->prune.recent_ratio = (double)s->config.kv_recent_ratio;
    }
}

/* Everything of a session but its allocations. */
static enum pkv_status prepare(struct pkv_model *model, const struct pkv_session_config *config,
                               struct pkv_session *s)
{
    memset(s, 0, sizeof *s);
    s->model = model;
    PKV_TRY(check_config(model, config, &s->config));
    if (s->config.policy) {
        s->policy = *s->config.policy;
        s->policy.recipe.sinks =
            s->config.kv_sinks < 0 ? s->policy.recipe.sinks : (uint32_t)s->config.kv_sinks;
        if (s->config.kv_recent_ratio > 0.0f) {
            s->policy.recipe.ring_share = s->config.kv_recent_ratio;
        }
        if (s->policy.prune) {
            set_prune(s);
        }
    }
    struct pkv_device_info device;
    PKV_TRY(pkv_device_query(model->device, &device));
    s->threads = device.threads;
    s->tier_config.recall_inline = (device.caps & PKV_CAP_SHARES_CORES) != 0;
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
    PKV_TRY(copy_layers(s));
    enum pkv_status status = plan_tier(s);
    if (status == PKV_OK && has_host(s) && s->config.kv_budget_bytes == 0 &&
        s->config.kv_device_bytes > 0 && kv_bytes(s) > s->config.kv_device_bytes) {
        status = fit_limit(s);
    }
    s->rehearsal_bytes = pkvi_rehearsal_lay_out(s, 0);
    for (uint32_t l = 0; l < model->info.layers; l++) {
        const uint32_t cols = s->index[l].channels * model->layer[l].info.heads;
        s->sketch_cols = cols > s->sketch_cols ? cols : s->sketch_cols;
        s->most_heads =
            model->layer[l].info.heads > s->most_heads ? model->layer[l].info.heads : s->most_heads;
    }
    lay_out(s, 0, 0);
    return status;
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
        (void)plan_tier(&trial);
        if (kv_bytes(&trial) <= left_bytes) {
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
    struct size_text need = size_text(kv_bytes(s)), left = size_text(left_bytes);
    char fit[64] = "not even one token fits";
    uint32_t fits = context_that_fits(s, left_bytes);
    if (fits > 0) {
        (void)snprintf(fit, sizeof fit, "%u x %u tokens fit", s->config.sequences, fits);
    }
    return PKV_FAIL(PKV_ERR_NO_MEMORY, "K and V of %u x %u tokens need %s, %s leaves %s: %s",
                    s->config.sequences, s->config.context_tokens, need.text, limit, left.text,
                    fit);
}

static uint64_t pageable_bytes(const struct pkv_session *s)
{
    return pkvi_session_slots(s) * sizeof *s->seqs + s->config.sequences * sizeof *s->tier_parts +
           s->tier_sizes.state_bytes;
}

static void fill_lines(const struct pkv_session *s, struct pkv_memory_plan *plan)
{
    plan_line(plan, "weights", "device", s->model->weights_bytes);
    const struct pkvi_tier_sizes *tier = &s->tier_sizes;
    uint64_t rows = s->lane[PKVI_LANE_PROMPT]->rows;
    rows += s->lane[PKVI_LANE_STEP] == s->lane[PKVI_LANE_PROMPT] ? 0 : s->config.step_rows;
    const uint64_t hidden = rows * s->model->info.width * sizeof(float);
    plan_line(plan, "K and V, global layers", "device", tier->pool_bytes);
    plan_line(plan,
              pkvi_session_prunes(s)   ? "scores of entries"
              : s->rehearsal_bytes > 0 ? "index, keys and tokens of hot sets"
                                       : "keys and tokens of hot sets",
              "device", tier->hot_bytes);
    plan_line(plan, "rows of Wq for rehearsal", "device", s->rehearsal_bytes);
    plan_line(plan, "scores of a prompt's tokens", "device", tier->score_bytes);
    plan_line(plan, "K and V, sliding layers (window and ring)", "device", tier->ring_bytes);
    plan_line(plan, "K and V, staging tiles", "device", tier->staging_bytes);
    plan_line(plan, "K and V, one layer of a prompt", "device", tier->buffer_bytes);
    plan_line(plan, "attention carried between tiles", "device",
              tier->carry_bytes + tier->check_bytes);
    plan_line(plan, "page tables", "device", tier->tables_bytes);
    plan_line(plan, "hidden states", "device", hidden);
    plan_line(plan, "attention scratch", "device", s->buffers.scratch_bytes);
    plan_line(plan, "work buffers of a step", "device",
              s->work_bytes - s->buffers.scratch_bytes - hidden);
    plan_line(plan, "K and V, all blocks", "pinned", tier->host_bytes);
    plan_line(plan, "K and V, rings of parked sequences", "pinned", tier->parked_bytes);
    plan_line(plan, "page tables to upload", "pinned", tier->upload_bytes);
    plan_line(plan, "logits and staging", "pinned", s->pinned_bytes);
    plan_line(plan, "sequences", "pageable", pageable_bytes(s));
    plan->kv_sequence_bytes =
        (tier->pool_bytes + tier->hot_bytes + tier->staging_bytes) / s->config.sequences;
    plan->kv_global_layers = tier->global_layers;
    plan->kv_dense_layers = tier->dense_layers;
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
    // Weights that are loaded already no longer count as free.
    const uint64_t weights = s->model->weights_bytes, loaded = s->model->loaded ? weights : 0;
    const struct pkvi_tier_sizes *tier = &s->tier_sizes;
    const uint64_t work = s->work_bytes + s->rehearsal_bytes;
    plan->device_asked_bytes = weights + work + tier->device_bytes;
    plan->device_available_bytes = loaded + device.memory_free_bytes;
    plan->pinned_asked_bytes =
        s->pinned_bytes + tier->upload_bytes + tier->host_bytes + tier->parked_bytes;
    const bool one_memory = device.host_free_bytes == 0;
    const uint64_t free_bytes = device.memory_free_bytes;
    const uint64_t host_free_bytes = one_memory ? free_bytes : device.host_free_bytes;
    plan->pinned_available_bytes = host_free_bytes;
    plan->pageable_asked_bytes = pageable_bytes(s);
    plan->pageable_available_bytes = host_free_bytes;
    uint64_t limit = s->config.kv_device_bytes;
    if (limit > 0 && kv_bytes(s) > limit) {
        return refuse_kv(s, limit, "the limit for them");
    }
    const uint64_t other = weights - loaded + work + tier->device_bytes - kv_bytes(s) +
                           (one_memory ? plan->pinned_asked_bytes : 0);
    if (other + kv_bytes(s) > free_bytes) {
        return refuse_kv(s, free_bytes > other ? free_bytes - other : 0, "the device");
    }
    if (!one_memory && plan->pinned_asked_bytes > host_free_bytes) {
        const struct size_text asked = size_text(plan->pinned_asked_bytes);
        const struct size_text left = size_text(host_free_bytes);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s of pinned host memory asked, %s available",
                        asked.text, left.text);
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
    enum pkv_status status = prepare(model, config, &session);
    if (status == PKV_OK) {
        status = fill_plan(&session, plan_out);
    }
    free_tables(&session);
    return status;
}

/* What the policy's queries need, by the model's calibration. */
static enum pkv_status open_rehearsal(struct pkv_session *s)
{
    const struct pkv_calibration *calibration = s->config.calibration;
    struct pkv_calibration *own = NULL;
    if (s->rehearsal_bytes == 0) {
        return PKV_OK;
    }
    PKV_TRY(
        pkvi_mem_alloc(s->model->device, PKV_MEM_DEVICE, s->rehearsal_bytes, &s->rehearsal_memory));
    (void)pkvi_rehearsal_lay_out(s, s->rehearsal_memory);
    struct pkv_device_info device;
    PKV_TRY(pkv_device_query(s->model->device, &device));
    if ((device.caps & PKV_CAP_NO_DATA) != 0) {
        return PKV_OK;
    }
    if (calibration && calibration->identity != s->model->identity) {
        return PKV_FAIL(PKV_ERR_INVALID, "the calibration is of another model");
    }
    if (!calibration) {
        PKV_TRY(pkv_calibration_run(s->model, NULL, 0, &own));
        calibration = own;
    }
    const enum pkv_status status = pkvi_rehearsal_fill(s, calibration);
    pkv_calibration_close(own);
    return status;
}

static enum pkv_status allocate(struct pkv_session *s)
{
    struct pkv_device *device = s->model->device;
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_DEVICE, s->work_bytes, &s->work));
    PKV_TRY(pkvi_mem_alloc(device, PKV_MEM_PINNED, s->pinned_bytes, &s->pinned));
    pkvi_mem_touch(device, s->work, s->work_bytes);
    pkvi_mem_touch(device, s->pinned, s->pinned_bytes);
    lay_out(s, s->work, s->pinned);
    PKV_TRY(pkvi_stream_open(device, PKV_COMPUTE, NULL, &s->compute));
    PKV_TRY(pkvi_event_open(device, false, &s->done));
    static const enum pkv_op ops[] = {PKV_OP_EMBED,  PKV_OP_NORM,    PKV_OP_QUANTIZE,
                                      PKV_OP_LINEAR, PKV_OP_GLU,     PKV_OP_ROPE_TABLE,
                                      PKV_OP_ROPE,   PKV_OP_SOFTCAP, PKV_OP_GATHER};
    for (uint32_t i = 0; i < sizeof ops / sizeof ops[0]; i++) { /* the rest is the tier's */
        s->kernel[ops[i]] = pkvi_device_kernel(device, ops[i]);
        if (!s->kernel[ops[i]] && (ops[i] != PKV_OP_GATHER || pkvi_session_prunes(s))) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the device has no kernel for %s",
                            pkvi_op_name(ops[i]));
        }
    }
    PKV_TRY(open_rehearsal(s));
    return pkvi_tier_open(device, &s->tier_config, s->compute, &s->tier);
}

enum pkv_status pkv_session_open(struct pkv_model *model, const struct pkv_session_config *config,
                                 struct pkv_session **session_out)
{
    struct pkv_memory_plan plan;
    if (!model->loaded) {
        return PKV_FAIL(PKV_ERR_STATE, "the model was opened for plans only: it has no weights");
    }
    struct pkv_session *s = malloc(sizeof *s);
    if (!s) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "session: %zu bytes", sizeof *s);
    }
    enum pkv_status status = prepare(model, config, s);
    if (status == PKV_OK) {
        status = fill_plan(s, &plan);
    }
    if (status != PKV_OK) {
        free_tables(s);
        free(s);
        return status;
    }
    s->seqs = calloc(pkvi_session_slots(s), sizeof *s->seqs);
    s->tier_parts = calloc(s->config.sequences, sizeof *s->tier_parts);
    status = s->seqs && s->tier_parts
                 ? allocate(s)
                 : PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u sequences", pkvi_session_slots(s));
    if (status != PKV_OK) {
        pkv_session_close(s);
        return status;
    }
    for (uint32_t i = 0; i < pkvi_session_slots(s); i++) {
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
    pkvi_stream_close(s->compute); // a step may still run: this waits, whatever failed before
    pkvi_tier_close(s->tier);
    pkvi_event_close(s->done);
    pkvi_mem_free(device, PKV_MEM_PINNED, s->piece);
    pkvi_mem_free(device, PKV_MEM_PINNED, s->pinned);
    pkvi_mem_free(device, PKV_MEM_DEVICE, s->work);
    pkvi_mem_free(device, PKV_MEM_DEVICE, s->rehearsal_memory);
    free(s->tier_parts);
    free(s->seqs);
    free_tables(s);
    free(s);
}

void pkv_session_kv_report(struct pkv_session *session, struct pkv_kv_report *report_out)
{
    (void)pkvi_session_wait(session); // some figures come back with the pass
    pkvi_tier_report(session->tier, report_out);
    report_out->device_bytes_most += session->work_bytes + session->rehearsal_bytes;
}

enum pkv_status pkv_session_layer_report(struct pkv_session *session, uint32_t layer,
                                         struct pkv_kv_layer_report *report_out)
{
    if (layer >= session->model->info.layers) {
        return PKV_FAIL(PKV_ERR_RANGE, "layer %u of %u", layer, session->model->info.layers);
    }
    pkvi_tier_layer_report(session->tier, layer, report_out);
    return PKV_OK;
}
