/*
 * quality_run.c: owns the sessions that are compared: full attention, and one for each arm.
 * What all arms share of a text (K and V of all but its prompt's last rows, which are exact under
 * every policy) is computed once and saved to a file.
 */
#include "bench/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/impl/policy_ops.h"
#include "runtime/cli/calibration.h"

#define LOGIT_BYTES_MOST ((uint64_t)64 << 20) /* read back in one step */
#define STEP_ROWS 512u

static bool told(enum pkv_status status)
{
    if (status != PKV_OK) {
        pkvi_say_library_failure();
    }
    return status == PKV_OK;
}

enum pkv_kv_type quality_kv_type(const struct quality *q)
{
    static const enum pkv_kv_type types[] = {PKV_KV_F16, PKV_KV_BF16, PKV_KV_F32, PKV_KV_Q8_0};
    return types[q->options.kv_type];
}

static struct pkv_session_config config_of(const struct quality *q)
{
    struct pkv_session_config config = pkv_session_config_default();
    const uint32_t context = (uint32_t)q->context + q->tokens_most;
    uint64_t rows = LOGIT_BYTES_MOST / ((uint64_t)q->engine.model_info.vocab * sizeof(float));
    rows = rows > 0 ? rows : 1;
    config.context_tokens = context;
    config.step_rows = context < STEP_ROWS ? context : STEP_ROWS;
    config.logit_rows = rows < config.step_rows ? (uint32_t)rows : config.step_rows;
    config.kv_type = quality_kv_type(q);
    return config;
}

static bool make_room(const struct quality *q, struct quality_arm *arm)
{
    const uint64_t layers = (uint64_t)q->text_count * q->engine.model_info.layers;
    bool ok = true;
    for (int mode = 0; mode < QUALITY_MODES; mode++) {
        arm->token[mode] = calloc(q->scored, sizeof *arm->token[mode]);
        arm->bytes_moved[mode] = calloc(q->text_count, sizeof *arm->bytes_moved[mode]);
        arm->layer[mode] = calloc(layers, sizeof *arm->layer[mode]);
        ok = ok && arm->token[mode] && arm->bytes_moved[mode] && arm->layer[mode];
    }
    return ok;
}

bool quality_open(struct quality *q)
{
    struct pkv_session_config config = config_of(q);
    const struct pkvi_engine_room room = {.less = "a smaller --context", .least_tokens = 128};
    if (!pkvi_engine_plan_session(&q->engine, &q->options, &room, &config) ||
        !pkvi_engine_load(&q->engine) ||
        !told(pkv_session_open(q->engine.model, &config, &q->reference))) {
        return false;
    }
    for (uint32_t a = 0; a < q->arm_count && !q->engine.calibration; a++) {
        if (q->arm[a].policy && pkv_policy_recalls(q->arm[a].policy)) {
            q->engine.calibration = pkvi_cli_calibration_get(&q->engine, &q->options);
        }
    }
    const uint64_t one = (uint64_t)q->tokens_most * q->engine.model_info.vocab * sizeof(float);
    const uint64_t all = (uint64_t)q->fed * q->engine.model_info.vocab * sizeof(float);
    q->full = malloc(all);
    q->along = malloc(one);
    q->other = malloc(one);
    q->written = malloc((size_t)(q->tokens_most + 1) * sizeof *q->written);
    q->samples = malloc(q->scored * sizeof *q->samples);
    bool ok = q->full && q->along && q->other && q->written && q->samples;
    for (uint32_t a = 0; a < q->arm_count; a++) {
        ok = ok && make_room(q, &q->arm[a]);
    }
    ok = ok && quality_hits_open(q);
    if (!ok) {
        pkvi_say_failure("out of memory: log probabilities of %u tokens need %s", q->fed,
                         pkvi_size_text(all + 2 * one).text);
    }
    return ok;
}

void quality_close(struct quality *q)
{
    for (uint32_t t = 0; t < q->text_count; t++) {
        if (q->text[t].prefix[0]) {
            unlink(q->text[t].prefix);
        }
    }
    for (uint32_t a = 0; a < q->arm_count; a++) {
        free(q->arm[a].layer_weights);
        for (int mode = 0; mode < QUALITY_MODES; mode++) {
            free(q->arm[a].token[mode]);
            free(q->arm[a].bytes_moved[mode]);
            free(q->arm[a].layer[mode]);
        }
    }
    quality_hits_close(q);
    free(q->samples);
    free(q->written);
    free(q->other);
    free(q->along);
    free(q->full);
    pkv_session_close(q->reference);
}

static bool feed(struct pkv_session *session, struct pkv_seq *seq, const int32_t *ids, size_t count,
                 const float **logits_out)
{
    return told(pkv_prompt_run(session, seq, ids, count, &pkvi_signal, logits_out));
}

/* A sequence with the prompt, its last rows fed here; `whole`: all of it. */
static bool open_prompt(struct quality *q, const struct quality_text *text,
                        struct pkv_session *session, bool whole, struct pkv_seq **seq_out,
                        const float **logits_out)
{
    const size_t shared = (size_t)q->context - QUALITY_WINDOW;
    struct pkv_saved *saved = NULL;
    if (whole) {
        return told(pkv_seq_open(session, seq_out)) &&
               feed(session, *seq_out, text->ids.id, (size_t)q->context, logits_out);
    }
    const bool ok =
        told(pkv_saved_open(text->prefix, &saved)) && told(pkv_seq_load(session, saved, seq_out));
    pkv_saved_close(saved);
    return ok && feed(session, *seq_out, text->ids.id + shared, QUALITY_WINDOW, logits_out);
}

/* Full attention over tokens after the prompt, some rows a step: log probabilities behind each. */
static bool read_along(struct quality *q, struct pkv_seq *seq, const int32_t *ids, uint32_t tokens,
                       float *out)
{
    const uint32_t vocab = q->engine.model_info.vocab, most = config_of(q).logit_rows;
    const float *logits = NULL;
    for (uint32_t at = 0, rows = 0; at < tokens; at += rows) {
        const uint32_t left = tokens - at;
        rows = left < most ? left : most;
        const struct pkv_step_part part = {
            .seq = seq, .ids = ids + at, .count = rows, .logit_rows = rows};
        if (!told(pkv_step_run(q->reference, &part, 1, &logits)) ||
            !pkvi_engine_logits_ok(&q->engine, logits, rows, (size_t)q->context + at)) {
            return false;
        }
        for (uint32_t r = 0; r < rows; r++) {
            quality_log_softmax(logits + (uint64_t)r * vocab, vocab,
                                out + (uint64_t)(at + r) * vocab);
        }
    }
    return true;
}

bool quality_reference(struct quality *q, struct quality_text *text)
{
    const size_t shared = (size_t)q->context - QUALITY_WINDOW;
    const struct pkv_saved_info info = {.ids = text->ids.id, .id_count = (uint32_t)shared};
    const float *logits = NULL;
    struct pkv_seq *seq = NULL;
    snprintf(text->prefix, sizeof text->prefix, P_tmpdir "/pivotkv-quality.%ld.%u.kv",
             (long)getpid(), (uint32_t)(text - q->text));
    bool ok = told(pkv_seq_open(q->reference, &seq)) &&
              feed(q->reference, seq, text->ids.id, shared, &logits) &&
              told(pkv_seq_save(seq, text->prefix, &info)) &&
              feed(q->reference, seq, text->ids.id + shared, QUALITY_WINDOW, &logits) &&
              read_along(q, seq, text->ids.id + q->context, text->tokens,
                         q->full + (uint64_t)text->row * q->engine.model_info.vocab);
    if (seq) {
        pkv_seq_close(seq);
    }
    return ok;
}

/* An arm on a text. */
struct run {
    const struct quality_text *text;
    struct quality_arm *arm;
    struct pkv_session *session;
    struct pkv_seq *seq;
    struct quality_layer *layer;
    bool free;
    uint64_t bytes_moved;
};

/* Tokens one by one, each behind the last: log probabilities to ->other. Where it runs free, it
 * goes on with what it found most likely, which is kept in ->written. */
static bool decode(struct quality *q, const struct run *run, const float *logits)
{
    const struct quality_text *text = run->text;
    const uint32_t vocab = q->engine.model_info.vocab;
    uint32_t best = 0;
    if (run->free) {
        best = quality_log_softmax(logits, vocab, q->other);
    }
    for (uint32_t i = 0; i < text->tokens; i++) {
        q->written[i] = run->free ? (int32_t)best : text->ids.id[q->context + i];
        const struct pkv_step_part part = {
            .seq = run->seq, .ids = &q->written[i], .count = 1, .logit_rows = 1};
        if (!told(pkv_step_run(run->session, &part, 1, &logits)) ||
            !pkvi_engine_logits_ok(&q->engine, logits, 1, (size_t)q->context + i)) {
            return false;
        }
        best = quality_log_softmax(logits, vocab, q->other + (uint64_t)i * vocab);
        if (!run->free && !quality_hits_step(q, text, run->arm, run->seq, i, run->layer)) {
            return false;
        }
        if (pkvi_signal) {
            pkvi_say_failure("interrupted after %u of %u tokens", i + 1, text->tokens);
            return false;
        }
    }
    q->written[text->tokens] =
        run->free ? (int32_t)best : text->ids.id[(size_t)q->context + text->tokens];
    return true;
}

/* What the self-check has found so far is added, `sign` = -1: taken away. */
static void count_checks(const struct quality *q, struct pkv_session *session, double sign,
                         struct quality_layer *layer)
{
    for (uint32_t l = 0; l < q->engine.model_info.layers; l++) {
        struct pkv_kv_layer_report report;
        if (pkv_session_layer_report(session, l, &report) == PKV_OK) {
            layer[l].coverage += sign * report.coverage * (double)report.checks;
            layer[l].recalled_mass += sign * report.recalled_mass;
            layer[l].missing_mass += sign * report.missing_mass;
            layer[l].checks += sign > 0.0 ? report.checks : 0 - report.checks;
            layer[l].recalled += sign > 0.0 ? report.recalled : 0 - report.recalled;
            layer[l].recalled_idle += sign > 0.0 ? report.recalled_idle : 0 - report.recalled_idle;
        }
    }
}

/* `policy`: room for its own; the session keeps a copy. */
static struct pkv_session_config arm_config(const struct quality *q, struct quality_arm *arm,
                                            struct pkv_policy_ops *policy)
{
    struct pkv_session_config config = config_of(q);
    config.kv_policy = arm->policy ? PKV_KV_HOT : PKV_KV_FULL;
    config.policy = arm->policy;
    if (arm->policy && q->slots_of && arm->policy->recipe.pick != PKV_PICK_NONE) {
        *policy = *arm->policy;
        policy->recipe.ring_share = q->slots_of->recipe.ring_share;
        policy->recipe.slope = q->slots_of->recipe.slope;
        policy->budget = q->slots_of->budget;
        config.policy = policy;
    }
    config.calibration = q->engine.calibration;
    config.kv_pyramid = arm->pyramid;
    config.kv_layer_weights = arm->layer_weights;
    config.kv_recent_ratio = arm->policy ? (float)arm->recent_ratio : 0.0f;
    config.kv_sinks = arm->policy ? (int32_t)q->sinks : -1;
    if (quality_prunes(arm)) {
        arm->budget_bytes = 0;
    }
    config.kv_budget_bytes = arm->budget_bytes;
    config.kv_keep_tokens = q->tokens_most;
    config.kv_check_steps = 1;
    return config;
}

bool quality_plan_arm(struct quality *q, struct quality_arm *arm)
{
    struct pkv_memory_plan plan;
    struct pkv_policy_ops policy;
    if (quality_is_file(arm->pyramid_text) && !arm->layer_weights) {
        arm->layer_weights = pkvi_engine_weights(&q->engine, arm->pyramid_text + 5);
        if (!arm->layer_weights) {
            return false;
        }
    }
    const struct pkv_session_config config = arm_config(q, arm, &policy);
    const enum pkv_status status = pkv_session_plan(q->engine.model, &config, &plan);
    if (status == PKV_ERR_RANGE || status == PKV_ERR_INVALID ||
        (quality_prunes(arm) && status == PKV_ERR_UNSUPPORTED)) {
        snprintf(arm->refused, sizeof arm->refused, "%s", pkv_error_text());
        return true;
    }
    arm->device_bytes = plan.kv_sequence_bytes;
    return told(status);
}

bool quality_open_arm(struct quality *q, struct quality_arm *arm, struct pkv_session **session_out)
{
    struct pkv_policy_ops policy;
    const struct pkv_session_config config = arm_config(q, arm, &policy);
    return arm->refused[0] || told(pkv_session_open(q->engine.model, &config, session_out));
}

/* Full attention over what a policy wrote by itself, to ->along. */
static bool follow(struct quality *q, const struct quality_text *text)
{
    const float *logits = NULL;
    struct pkv_seq *seq = NULL;
    const bool ok = open_prompt(q, text, q->reference, false, &seq, &logits) &&
                    read_along(q, seq, q->written, text->tokens, q->along);
    if (seq) {
        pkv_seq_close(seq);
    }
    return ok;
}

static bool run_text(struct quality *q, struct run *run)
{
    const struct pkv_recipe *recipe = run->arm->policy ? &run->arm->policy->recipe : NULL;
    const bool whole = recipe && (recipe->prompt == PKV_PROMPT_ALL_ROWS ||
                                  recipe->window_rows > QUALITY_WINDOW || quality_prunes(run->arm));
    const float *logits = NULL;
    struct pkv_kv_report before, after;
    bool ok = open_prompt(q, run->text, run->session, whole, &run->seq, &logits);
    pkv_session_kv_report(run->session, &before);
    ok = ok && decode(q, run, logits);
    pkv_session_kv_report(run->session, &after);
    run->bytes_moved = after.loaded_bytes - before.loaded_bytes;
    if (run->seq) {
        pkv_seq_close(run->seq);
    }
    return ok && (!run->free || follow(q, run->text));
}

bool quality_run_arm(struct quality *q, uint32_t t, struct quality_arm *arm,
                     struct pkv_session *session, int mode)
{
    const struct quality_text *text = &q->text[t];
    const uint64_t vocab = q->engine.model_info.vocab;
    struct run run = {.text = text,
                      .arm = arm,
                      .session = session,
                      .layer = arm->layer[mode] + (uint64_t)t * q->engine.model_info.layers,
                      .free = mode == QUALITY_FREE};
    struct quality_token *token = arm->token[mode] + text->first;
    count_checks(q, session, -1.0, run.layer);
    const bool ok = run_text(q, &run);
    count_checks(q, session, 1.0, run.layer);
    arm->bytes_moved[mode][t] = run.bytes_moved;
    if (quality_prunes(arm)) { /* what it kept at most, not what it might have */
        struct pkv_kv_report report;
        pkv_session_kv_report(session, &report);
        arm->device_bytes = report.pages_most * report.page_bytes;
    }
    const float *full = run.free ? q->along : q->full + text->row * vocab;
    for (uint32_t i = text->skip; ok && i < text->tokens; i++) {
        token[i - text->skip] = quality_compare(full + i * vocab, q->other + i * vocab,
                                                (uint32_t)vocab, q->written[i + 1]);
    }
    return ok;
}
