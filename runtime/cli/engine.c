/* engine.c: owns opening device, model and session, and saying what memory they take. */
#include "runtime/cli/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/calibration.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/number.h"

#define FIELD(name) offsetof(struct pkvi_engine_options, name)

#define COMPUTE_OPTIONS 4u /* the first so many: */
static const struct pkvi_option device_options[] = {
    {"threads", 't', PKV_OPTION_INT, FIELD(threads), "N",
     "compute threads (default: the cores this process may use)", 1, 1024, false},
    {"device", 0, PKV_OPTION_CHOICE, FIELD(device), PKV_ENGINE_DEVICES,
     "where to compute (default auto: cuda if there is one, else cpu)", 0, 0, false},
    {"cpu", 0, PKV_OPTION_CHOICE, FIELD(cpu), PKV_ENGINE_CPUS,
     "instruction set of the CPU kernels (default: the best there is)", 0, 0, false},
    {"kv-cache-dtype", 0, PKV_OPTION_CHOICE, FIELD(kv_type), PKV_ENGINE_KV_TYPES,
     "number format of K and V (default f16)", 0, 0, false},
    {"kv-device-bytes", 0, PKV_OPTION_SIZE, FIELD(kv_device_bytes), "SIZE",
     "most device memory for K and V, such as 4GiB (default: what they need)", 1,
     1125899906842624.0, false},
    {"link-gbps", 0, PKV_OPTION_REAL_0, FIELD(link_gbps), "X",
     "emulate a host link of X GB/s on the cpu device (default 0: none)", 0.001, 1e4, false},
    {"link-latency-us", 0, PKV_OPTION_REAL, FIELD(link_latency_us), "X",
     "and its latency in microseconds (default 0)", 0, 1e6, false},
    {"kv-policy", 0, PKV_OPTION_CHOICE, FIELD(kv_policy), PKV_ENGINE_POLICIES,
     "where K and V live: all on the device, or all in host memory with as much on the device as "
     "the budget holds, the rest streamed through, exactly; or, by the other names, a hot set that "
     "decode attends to alone where the budget does not hold everything; pyramidinfer drops "
     "entries "
     "for good, layer by layer, and takes no budget (default: full where a budget or a host size "
     "is "
     "given, else device)",
     0, 0, false},
    {"kv-budget", 0, PKV_OPTION_BUDGET, FIELD(kv_budget), "P%|N|SIZE",
     "device memory for a sequence's K and V in the global layers: a share of what -c tokens take, "
     "the bytes of N tokens, or bytes such as 512MiB (default: what --kv-device-bytes leaves, else "
     "100%)",
     1, 1125899906842624.0, false},
    {"kv-host-bytes", 0, PKV_OPTION_SIZE, FIELD(kv_host_bytes), "SIZE",
     "most host memory for K and V (default: what they need)", 1, 1125899906842624.0, false},
    {"kv-check", 0, PKV_OPTION_INT, FIELD(check), "N",
     "with a budget: every N decode steps do one layer's attention again from host memory, and "
     "compare",
     1, 1 << 30, false},
    {"recent", 0, PKV_OPTION_INT, FIELD(recent), "N",
     "latest tokens that stay on the device in every layer (default 64)", 1, 1 << 30, false},
    {"full-resident", 0, PKV_OPTION_CHOICE, FIELD(full_resident), PKV_ENGINE_RESIDENTS,
     "which layers stay on the device as a whole under a budget (default interleaved)", 0, 0,
     false},
    {"sinks", 0, PKV_OPTION_TEXT, FIELD(sinks), "N",
     "with a policy that keeps hot sets: first tokens that it keeps (default: the policy's)", 0, 0,
     false},
    {"recent-ratio", 0, PKV_OPTION_REAL, FIELD(recent_ratio), "X",
     "and the share of a budget that is for recent tokens, up to 1 (default: the policy's, or "
     "--recent)",
     0, 1, true},
    {"pyramid", 0, PKV_OPTION_TEXT, FIELD(pyramid), "SHAPE",
     "and how slots are shared out among layers: flat, cosine, linear, power, reversed, or "
     "file:PATH "
     "with a JSON array of one weight a global layer (default flat)",
     0, 0, false},
    {"gpu-layers", 0, PKV_OPTION_REFUSED, 0, "N",
     "not available yet: weights are all on one device", 0, 0, false},
    {"ngl", 0, PKV_OPTION_REFUSED, 0, "N", "not available yet: weights are all on one device", 0, 0,
     false},
};

static const struct pkvi_option sim_options[] = {
    {"sim", 0, PKV_OPTION_TEXT, FIELD(sim), "PROFILE",
     "compute nothing, read no weights: predict the time on the device of a file that 'pivotkv "
     "link "
     "--profile' wrote; --link-gbps and --link-latency-us take the place of its link",
     0, 0, false},
};

static const struct pkvi_option context_options[] = {
    {"ctx-size", 'c', PKV_OPTION_INT, FIELD(context_tokens), "N",
     "most tokens of prompt and answer, not counting the answer's last, which needs no place in "
     "the "
     "KV cache",
     1, 1 << 30, false},
};

static const struct pkvi_option output_options[] = {
    {"json", 0, PKV_OPTION_FLAG, FIELD(json), NULL, "one JSON object a line on stdout, no text", 0,
     0, false},
    {"quiet", 0, PKV_OPTION_FLAG, FIELD(quiet), NULL, "no memory plan and no figures on stderr", 0,
     0, false},
};

struct pkvi_option_set pkvi_engine_device_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(device_options, options);
}

struct pkvi_option_set pkvi_engine_compute_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set){
        .options = device_options, .count = COMPUTE_OPTIONS, .target = options};
}

struct pkvi_option_set pkvi_engine_sim_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(sim_options, options);
}

struct pkvi_option_set pkvi_engine_context_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(context_options, options);
}

struct pkvi_option_set pkvi_engine_output_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(output_options, options);
}

struct pkvi_option_set pkvi_engine_quiet_option(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set){.options = &output_options[1], .count = 1, .target = options};
}

bool pkvi_engine_needs_text(const struct pkvi_engine *engine, const char *advice)
{
    if (engine->text.has_text) {
        return true;
    }
    struct pkv_model_config config = pkv_model_config_default();
    uint64_t bytes = 0;
    if (pkv_model_plan(engine->path, &config, &bytes) != PKV_OK) {
        pkvi_say_library_failure();
    } else {
        pkvi_say_failure("%s: has no vocabulary: %s", engine->path, advice);
    }
    return false;
}

enum pkv_status pkvi_engine_open_device(const char *name, const struct pkv_device_config *config,
                                        struct pkv_device **device_out,
                                        struct pkvi_engine_why *why_out)
{
    if (strcmp(name, "auto") != 0) {
        return pkv_device_open(name, config, device_out);
    }
    enum pkv_status status = pkv_device_open("cuda", config, device_out);
    if (status != PKV_ERR_UNSUPPORTED) {
        return status;
    }
    (void)snprintf(why_out->text, sizeof why_out->text, "%s", pkv_error_text());
    return pkv_device_open("cpu", config, device_out);
}

void pkvi_engine_say_why(const struct pkvi_engine_why *why)
{
    if (why->text[0] != '\0') {
        pkvi_say_note("%-9sauto took the cpu: %s", "", why->text);
    }
}

static enum pkv_status open_device(struct pkvi_engine *engine,
                                   const struct pkvi_engine_options *options)
{
    static const enum pkv_cpu cpus[] = {PKV_CPU_AUTO, PKV_CPU_SCALAR, PKV_CPU_AVX2, PKV_CPU_AVX512,
                                        PKV_CPU_NEON};
    struct pkv_device_config config = pkv_device_config_default();
    config.threads = (uint32_t)options->threads;
    config.cpu = cpus[options->cpu];
    config.link_gbps = options->link_gbps;
    config.link_latency_us = options->link_latency_us;
    config.profile = options->sim;
    if (options->sim != NULL) {
        return pkv_device_open("sim", &config, &engine->device);
    }
    struct pkvi_word name = pkvi_choice_word(PKV_ENGINE_DEVICES, options->device);
    return pkvi_engine_open_device(name.text, &config, &engine->device, &engine->why_cpu);
}

bool pkvi_engine_open_model(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                            bool exact)
{
    const uint64_t begin_ns = pkvi_now_ns();
    struct pkv_model_config config = pkv_model_config_default();
    config.exact = exact;
    config.plan_only = true;
    if (open_device(engine, options) != PKV_OK ||
        pkv_device_query(engine->device, &engine->device_info) != PKV_OK ||
        pkv_model_open(engine->device, engine->path, &config, &engine->model) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    pkv_model_query(engine->model, &engine->model_info);
    engine->load_ns = pkvi_now_ns() - begin_ns;
    return true;
}

bool pkvi_engine_load(struct pkvi_engine *engine)
{
    const uint64_t begin_ns = pkvi_now_ns();
    if (pkv_model_load(engine->model) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    engine->load_ns += pkvi_now_ns() - begin_ns;
    return true;
}

static void say_place(const char *where, uint64_t asked, uint64_t available, uint64_t granted)
{
    pkvi_say_note("%-9s%-34s asked %s, available %s, granted %s", "", where,
                  pkvi_size_text(asked).text, pkvi_size_text(available).text,
                  pkvi_size_text(granted).text);
}

static void say_plan(const struct pkvi_engine *engine, const struct pkv_session_config *config)
{
    const struct pkv_model_info *model = &engine->model_info;
    const struct pkv_memory_plan *plan = &engine->plan;
    pkvi_say_note("model    %s%s%s, %.1f M parameters, %u layers, %s", model->architecture,
                  model->name[0] != '\0' ? " " : "", model->name, (double)model->parameters * 1e-6,
                  model->layers, model->weight_types);
    pkvi_say_note("device   %s %s, %u threads", engine->device_info.name,
                  engine->device_info.variant, engine->device_info.threads);
    pkvi_engine_say_why(&engine->why_cpu);
    pkvi_say_note("context  %u x %u tokens, K and V in %s", config->sequences,
                  engine->context_tokens, pkv_kv_type_name(config->kv_type));
    for (uint32_t i = 0; i < plan->line_count; i++) {
        const struct pkv_memory_line *line = &plan->line[i];
        pkvi_say_note("%-9s%-34s %s, %s", i == 0 ? "memory" : "", line->what,
                      pkvi_size_text(line->bytes).text, line->where);
    }
    say_place("device", plan->device_asked_bytes, plan->device_available_bytes,
              plan->device_granted_bytes);
    say_place("pinned", plan->pinned_asked_bytes, plan->pinned_available_bytes,
              plan->pinned_granted_bytes);
    say_place("pageable", plan->pageable_asked_bytes, plan->pageable_available_bytes,
              plan->pageable_granted_bytes);
}

static bool fits(const struct pkvi_engine *engine, const struct pkv_session_config *config)
{
    struct pkv_memory_plan plan;
    return pkv_session_plan(engine->model, config, &plan) == PKV_OK;
}

/* Only what would help by itself is advised. */
static void say_no_room(const struct pkvi_engine *engine, const struct pkvi_engine_room *room,
                        const struct pkv_session_config *config)
{
    char why[512];
    snprintf(why, sizeof why, "%s", pkv_error_text());
    const char *advice[4];
    uint32_t count = 0;
    struct pkv_session_config other = *config;
    other.context_tokens = room->least_tokens;
    other.sequences = room->one_sequence ? 1 : config->sequences;
    if (fits(engine, &other)) {
        advice[count++] = room->less;
    }
    other = *config;
    other.kv_type = PKV_KV_Q8_0;
    if (!room->fixed_kv_type && fits(engine, &other)) {
        advice[count++] = "--kv-cache-dtype q8_0";
    }
    other = *config;
    other.kv_device_bytes = 0;
    if (config->kv_device_bytes > 0 && fits(engine, &other)) {
        advice[count++] = "a larger --kv-device-bytes";
    }
    other = *config;
    other.kv_host_bytes = 0;
    if (config->kv_host_bytes > 0 && fits(engine, &other)) {
        advice[count++] = "a larger --kv-host-bytes";
    }
    pkvi_say_failure(
        "%s%s%s%s%s%s%s%s%s", why, count > 0 ? "; use " : "", count > 0 ? advice[0] : "",
        count > 1 ? " or " : "", count > 1 ? advice[1] : "", count > 2 ? " or " : "",
        count > 2 ? advice[2] : "", count > 3 ? " or " : "", count > 3 ? advice[3] : "");
}

/* A number that is out of range: which option it came from. */
static void say_out_of_range(const struct pkvi_engine *engine,
                             const struct pkvi_engine_options *options,
                             const struct pkv_session_config *config)
{
    char why[512];
    snprintf(why, sizeof why, "%s", pkv_error_text());
    struct pkv_session_config other = *config;
    other.kv_budget_bytes = 0;
    other.kv_device_bytes = 0;
    const bool budget = config->kv_policy != PKV_KV_DEVICE && fits(engine, &other);
    pkvi_say_failure("%s%s", why,
                     budget && config->kv_budget_bytes > 0 ? "; use a larger --kv-budget"
                     : budget                              ? "; use a larger --kv-device-bytes"
                     : options->context_tokens > 0         ? "; use a smaller --ctx-size"
                                                           : "");
}

/* Shares and tokens are of what the global layers take. */
uint64_t pkvi_engine_budget_bytes(const struct pkvi_engine *engine,
                                  const struct pkvi_budget *budget, enum pkv_kv_type kv_type,
                                  uint32_t context_tokens)
{
    struct pkv_memory_plan plan = {.line_count = 0};
    struct pkv_session_config config = pkv_session_config_default();
    config.kv_type = kv_type;
    config.context_tokens = context_tokens;
    (void)pkv_session_plan(engine->model, &config, &plan); /* what does not fit is told later */
    const double token_bytes = (double)plan.kv_token_bytes;
    const double bytes = budget->kind == PKV_BUDGET_BYTES ? budget->value
                         : budget->kind == PKV_BUDGET_TOKENS
                             ? budget->value * token_bytes
                             : budget->value * token_bytes * context_tokens;
    return bytes < 1.0 ? 1 : bytes < 0x1p62 ? (uint64_t)ceil(bytes) : UINT64_C(1) << 62;
}

bool pkvi_engine_pyramid(const char *name, enum pkv_pyramid *pyramid_out)
{
    const char *known;
    for (uint32_t i = 0; (known = pkv_pyramid_name((enum pkv_pyramid)i)) != NULL; i++) {
        if (strcmp(known, name) == 0) {
            *pyramid_out = (enum pkv_pyramid)i;
            return true;
        }
    }
    return false;
}

double *pkvi_engine_weights(const struct pkvi_engine *engine, const char *path)
{
    struct pkv_memory_plan plan = {.line_count = 0};
    const struct pkv_session_config config = pkv_session_config_default();
    struct pkvi_bytes text = {0};
    json_error_t error;
    (void)pkv_session_plan(engine->model, &config, &plan); /* of the layers; memory is told later */
    if (path[0] == '\0') {
        pkvi_say_failure("--pyramid file: without a path");
        return NULL;
    }
    if (!pkvi_file_read(path, &text)) {
        return NULL;
    }
    json_t *array = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES, &error);
    free(text.data);
    const size_t count = json_array_size(array);
    bool ok = count == plan.kv_global_layers;
    for (size_t i = 0; ok && i < count; i++) {
        ok = json_is_number(json_array_get(array, i));
    }
    double *weights = ok ? malloc(count * sizeof *weights) : NULL;
    for (size_t i = 0; weights && i < count; i++) {
        weights[i] = json_number_value(json_array_get(array, i));
    }
    json_decref(array);
    if (!weights) {
        pkvi_say_failure("%s: expected a JSON array of %u numbers, one a global layer",
                         pkvi_file_name(path), plan.kv_global_layers);
    }
    return weights;
}

static void set_policy(const struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                       struct pkv_session_config *config)
{
    static const enum pkv_full_resident residents[] = {PKV_RESIDENT_INTERLEAVED, PKV_RESIDENT_FIRST,
                                                       PKV_RESIDENT_LAST};
    const bool host = pkvi_engine_has_host(options);
    config->kv_policy = host ? PKV_KV_FULL : PKV_KV_DEVICE;
    if (options->kv_policy >= PKV_ENGINE_FIRST_RECIPE) {
        config->kv_policy = PKV_KV_HOT;
        config->policy =
            pkv_policy_find(pkvi_choice_word(PKV_ENGINE_POLICIES, options->kv_policy).text);
    }
    config->kv_host_bytes = (uint64_t)options->kv_host_bytes;
    config->kv_resident = residents[options->full_resident];
    config->kv_check_steps = (uint32_t)options->check;
    if (options->pyramid && !engine->layer_weights) {
        (void)pkvi_engine_pyramid(options->pyramid, &config->kv_pyramid);
    }
    config->kv_layer_weights = engine->layer_weights;
    config->kv_recent_ratio = (float)options->recent_ratio;
    int64_t sinks = -1;
    if (options->sinks && pkvi_number_int(options->sinks, 0, PKV_ENGINE_SINKS_MOST, &sinks)) {
        config->kv_sinks = (int32_t)sinks;
    }
    if (options->recent > 0) {
        config->kv_recent = (uint32_t)options->recent;
    }
    if (options->kv_budget.kind != PKV_BUDGET_NONE) {
        config->kv_budget_bytes = pkvi_engine_budget_bytes(engine, &options->kv_budget,
                                                           config->kv_type, engine->context_tokens);
    }
}

static void say_no_session(const struct pkvi_engine *engine,
                           const struct pkvi_engine_options *options,
                           const struct pkvi_engine_room *room,
                           const struct pkv_session_config *config, enum pkv_status status)
{
    if (status == PKV_ERR_NO_MEMORY) {
        say_no_room(engine, room, config);
    } else if (status == PKV_ERR_RANGE) {
        say_out_of_range(engine, options, config);
    } else if (status == PKV_ERR_UNSUPPORTED && config->kv_type == PKV_KV_Q8_0) {
        pkvi_say_failure("%s; use another --kv-cache-dtype", pkv_error_text());
    } else {
        pkvi_say_library_failure();
    }
}

bool pkvi_engine_plan_session(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                              const struct pkvi_engine_room *room,
                              struct pkv_session_config *config)
{
    static const enum pkv_kv_type types[] = {PKV_KV_F16, PKV_KV_BF16, PKV_KV_F32, PKV_KV_Q8_0};
    config->kv_type = types[options->kv_type];
    config->kv_device_bytes = (uint64_t)options->kv_device_bytes;
    engine->context_tokens =
        config->context_tokens != 0 ? config->context_tokens : engine->model_info.context;
    const char *file = options->pyramid && strncmp(options->pyramid, "file:", 5) == 0
                           ? options->pyramid + 5
                           : NULL;
    if (file && !engine->layer_weights) {
        engine->layer_weights = pkvi_engine_weights(engine, file);
        if (!engine->layer_weights) {
            return false;
        }
    }
    set_policy(engine, options, config);
    const enum pkv_status status = pkv_session_plan(engine->model, config, &engine->plan);
    if (status == PKV_ERR_NO_MEMORY && engine->plan.line_count > 0) {
        say_plan(engine, config);
    }
    if (status != PKV_OK) {
        say_no_session(engine, options, room, config, status);
    }
    return status == PKV_OK;
}

bool pkvi_engine_open_session(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                              const struct pkvi_engine_room *room,
                              struct pkv_session_config *config)
{
    if (!pkvi_engine_plan_session(engine, options, room, config)) {
        return false;
    }
    say_plan(engine, config);
    if (!pkvi_engine_load(engine)) {
        return false;
    }
    if (config->policy && pkv_policy_recalls(config->policy)) {
        engine->calibration = pkvi_cli_calibration_get(engine, options);
        config->calibration = engine->calibration;
    }
    const enum pkv_status status = pkv_session_open(engine->model, config, &engine->session);
    if (status != PKV_OK) {
        say_no_session(engine, options, room, config, status);
    }
    return status == PKV_OK;
}

void pkvi_engine_close(struct pkvi_engine *engine)
{
    if (engine->session != NULL) {
        pkv_session_close(engine->session);
    }
    if (engine->model != NULL) {
        pkv_model_close(engine->model);
    }
    pkv_device_close(engine->device);
    pkv_calibration_close(engine->calibration);
    free(engine->layer_weights);
    pkvi_engine_close_text(engine);
    *engine = (struct pkvi_engine){0};
}

bool pkvi_engine_logits_ok(const struct pkvi_engine *engine, const float *logits, size_t rows,
                           size_t position)
{
    uint32_t vocab = engine->model_info.vocab;
    for (size_t row = 0; row < rows; row++, logits += vocab) {
        uint32_t bad = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            bad += isfinite(logits[i]) ? 0u : 1u;
        }
        if (bad > 0) {
            pkvi_say_failure("%u of %u logits after position %zu are not finite: the model "
                             "computes no numbers there",
                             bad, vocab, position + row);
            return false;
        }
    }
    return true;
}

uint64_t pkvi_engine_kv_bytes(const struct pkvi_engine *engine, const char *where)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < engine->plan.line_count; i++) {
        const struct pkv_memory_line *line = &engine->plan.line[i];
        if (strncmp(line->what, "K and V", 7) == 0 && strcmp(line->where, where) == 0) {
            sum += line->bytes;
        }
    }
    return sum;
}

static json_t *place(uint64_t asked, uint64_t available, uint64_t granted)
{
    return json_pack("{s:I, s:I, s:I}", "asked_bytes", (json_int_t)asked, "available_bytes",
                     (json_int_t)available, "granted_bytes", (json_int_t)granted);
}

/* GB/s while a tile is copied; kernels' wait for all tiles, from the sampled ones. */
static double load_gbps(const struct pkv_kv_report *report)
{
    return report->sampled_load_ns > 0
               ? (double)report->sampled_bytes / (double)report->sampled_load_ns
               : 0.0;
}

static double wait_seconds(const struct pkv_kv_report *report)
{
    return report->sampled_tiles > 0
               ? (double)report->sampled_wait_ns * 1e-9 * (double)report->loaded_tiles /
                     (double)report->sampled_tiles
               : 0.0;
}

void pkvi_engine_say_kv(const struct pkvi_engine *engine)
{
    struct pkv_kv_report report;
    pkv_session_kv_report(engine->session, &report);
    if (report.stored_bytes == 0 && report.loaded_bytes == 0) {
        return;
    }
    pkvi_say_note("host     K and V written %s, read back %s in %llu tiles; waited for a store "
                  "%llu times",
                  pkvi_size_text(report.stored_bytes).text,
                  pkvi_size_text(report.loaded_bytes).text, (unsigned long long)report.loaded_tiles,
                  (unsigned long long)report.late_stores);
    if (report.sampled_tiles > 0) {
        pkvi_say_note("tiles    copied at %.2f GB/s; kernels waited for them about %.3f s "
                      "(%llu were timed)",
                      load_gbps(&report), wait_seconds(&report),
                      (unsigned long long)report.sampled_tiles);
    }
    if (report.recalled_entries > 0) {
        pkvi_say_note("recalled %llu entries, %s", (unsigned long long)report.recalled_entries,
                      pkvi_size_text(report.recalled_bytes).text);
    }
    if (report.checks > 0) {
        pkvi_say_note(
            "checked  %llu attentions again from host memory: %llu differ, least coverage "
            "%.6f",
            (unsigned long long)report.checks, (unsigned long long)report.check_differences,
            report.check_least_coverage);
    }
}

static void record_tier(const struct pkvi_engine *engine, struct pkvi_record *record)
{
    struct pkv_kv_report report;
    pkv_session_kv_report(engine->session, &report);
    pkvi_record_set(
        record, "kv_tier",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f}",
                  "recalled_entries", (json_int_t)report.recalled_entries, "recalled_bytes",
                  (json_int_t)report.recalled_bytes, "stored_bytes",
                  (json_int_t)report.stored_bytes, "loaded_bytes", (json_int_t)report.loaded_bytes,
                  "loaded_tiles", (json_int_t)report.loaded_tiles, "late_stores",
                  (json_int_t)report.late_stores, "pages_most", (json_int_t)report.pages_most,
                  "device_bytes_most", (json_int_t)report.device_bytes_most, "streamed_layers",
                  (json_int_t)report.streamed_layers, "sampled_tiles",
                  (json_int_t)report.sampled_tiles, "load_gbps", load_gbps(&report), "wait_s",
                  wait_seconds(&report), "checks", (json_int_t)report.checks, "check_differences",
                  (json_int_t)report.check_differences, "check_least_coverage",
                  report.check_least_coverage));
}

void pkvi_engine_record(const struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                        struct pkvi_record *record)
{
    const struct pkv_memory_plan *plan = &engine->plan;
    pkvi_record_text(record, "model", engine->path);
    pkvi_record_text(record, "architecture", engine->model_info.architecture);
    pkvi_record_text(record, "name", engine->model_info.name);
    pkvi_record_text(record, "weight_types", engine->model_info.weight_types);
    pkvi_record_text(record, "device", engine->device_info.name);
    pkvi_record_text(record, "cpu", engine->device_info.variant);
    pkvi_record_int(record, "threads", engine->device_info.threads);
    if (options->sim != NULL) {
        pkvi_record_text(record, "simulated", options->sim);
    }
    pkvi_record_text(record, "kv", pkvi_choice_word(PKV_ENGINE_KV_TYPES, options->kv_type).text);
    json_t *memory = json_object();
    record->failed |=
        json_object_set_new(memory, "device",
                            place(plan->device_asked_bytes, plan->device_available_bytes,
                                  plan->device_granted_bytes)) != 0;
    record->failed |=
        json_object_set_new(memory, "pinned",
                            place(plan->pinned_asked_bytes, plan->pinned_available_bytes,
                                  plan->pinned_granted_bytes)) != 0;
    record->failed |=
        json_object_set_new(memory, "pageable",
                            place(plan->pageable_asked_bytes, plan->pageable_available_bytes,
                                  plan->pageable_granted_bytes)) != 0;
    json_t *lines = json_array();
    for (uint32_t i = 0; i < plan->line_count; i++) {
        const struct pkv_memory_line *line = &plan->line[i];
        record->failed |= json_array_append_new(
                              lines, json_pack("{s:s, s:s, s:I}", "what", line->what, "where",
                                               line->where, "bytes", (json_int_t)line->bytes)) != 0;
    }
    record->failed |= json_object_set_new(memory, "lines", lines) != 0;
    pkvi_record_set(record, "memory", memory);
    if (engine->session != NULL) {
        record_tier(engine, record);
    }
}
