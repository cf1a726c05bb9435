/* plan.c: owns the plan command. What takes how much is the library's to say. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

#define PARALLEL_MOST 4096

struct plan {
    struct pkvi_engine_options engine;
    int64_t parallel;
};

/* Of a simulated session: a prompt that leaves room for two tokens, and the last step. */
struct times {
    uint32_t prompt_tokens;
    uint64_t prompt_ns, step_ns, loaded_bytes;
    double bound_ns; /* what the step reads back over the link; 0 = nothing, or an unknown link */
};

static const struct pkvi_option options[] = {
    {"parallel", 0, PKV_OPTION_INT, offsetof(struct plan, parallel), "N",
     "sequences at once (default 1)", 1, PARALLEL_MOST, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv plan -m MODEL [OPTION...]",
    .summary = "What memory a session would take, and where, computed by the code that allocates "
               "it.\nReads no weights and runs nothing. Exit status 0 if it would fit. With --sim "
               "PROFILE\nalso how long a prompt and a decode step with a full context would take.",
};

static void print_place(const char *name, uint64_t asked, uint64_t available, uint64_t granted)
{
    pkvi_out_printf("%-9s asked %s, available %s, granted %s\n", name, pkvi_size_text(asked).text,
                    pkvi_size_text(available).text, pkvi_size_text(granted).text);
}

static void print_plan(const struct pkvi_engine *engine, const struct pkv_session_config *config)
{
    const struct pkv_memory_plan *plan = &engine->plan;
    pkvi_engine_say_why(&engine->why_cpu);
    pkvi_out_printf("policy    %s\n", config->policy ? pkv_policy_name(config->policy)
                                                     : pkv_kv_policy_name(config->kv_policy));
    pkvi_out_printf("context   %u x %u tokens, K and V in %s: %" PRIu64
                    " bytes a token in the global layers\n",
                    config->sequences, engine->context_tokens, pkv_kv_type_name(config->kv_type),
                    plan->kv_token_bytes);
    pkvi_out_printf("layers    %u global, %u of them whole on the device with so many tokens\n",
                    plan->kv_global_layers, plan->kv_dense_layers);
    for (uint32_t i = 0; i < plan->line_count; i++) {
        const struct pkv_memory_line *line = &plan->line[i];
        pkvi_out_printf("%-9s %-42s %14" PRIu64 "  %s\n", line->where, line->what, line->bytes,
                        pkvi_size_text(line->bytes).text);
    }
    print_place("device", plan->device_asked_bytes, plan->device_available_bytes,
                plan->device_granted_bytes);
    print_place("pinned", plan->pinned_asked_bytes, plan->pinned_available_bytes,
                plan->pinned_granted_bytes);
    print_place("pageable", plan->pageable_asked_bytes, plan->pageable_available_bytes,
                plan->pageable_granted_bytes);
}

static void print_times(const struct pkvi_engine *engine, const struct pkvi_engine_options *given,
                        const struct pkv_session_config *config, const struct times *times)
{
    const double step_s = pkvi_seconds(times->step_ns);
    pkvi_out_printf("simulated profile %s\n", given->sim);
    pkvi_out_printf("simulated prompt of %u tokens: %.3f s, %.1f tokens a second\n",
                    times->prompt_tokens, pkvi_seconds(times->prompt_ns),
                    pkvi_rate(times->prompt_tokens, times->prompt_ns));
    pkvi_out_printf("simulated decode step with %u x %u tokens: %.3f ms, %.2f tokens a second\n",
                    config->sequences, engine->context_tokens, 1e3 * step_s,
                    pkvi_rate(config->sequences, times->step_ns));
    if (times->bound_ns > 0) {
        pkvi_out_printf("simulated it reads back %s: at least %.3f ms at %.4g GB/s\n",
                        pkvi_size_text(times->loaded_bytes).text, 1e-6 * times->bound_ns,
                        engine->device_info.link_gbps);
    }
}

static bool run_step(struct pkvi_engine *engine, struct pkv_seq *const *seqs, uint32_t count,
                     struct times *times)
{
    static const int32_t id = 0;
    struct pkv_step_part parts[PARALLEL_MOST];
    struct pkv_kv_report before, after;
    for (uint32_t i = 0; i < count; i++) {
        parts[i] = (struct pkv_step_part){.seq = seqs[i], .ids = &id, .count = 1, .logit_rows = 1};
    }
    pkv_session_kv_report(engine->session, &before);
    const uint64_t begin_ns = pkv_device_clock_ns(engine->device);
    if (pkv_step_run(engine->session, parts, count, NULL) != PKV_OK) {
        return false;
    }
    times->step_ns = pkv_device_clock_ns(engine->device) - begin_ns;
    pkv_session_kv_report(engine->session, &after);
    times->loaded_bytes = after.loaded_bytes - before.loaded_bytes;
    return true;
}

/* Fill all sequences but for two tokens, then two steps: the first may still store the prompt. */
static bool run_sequences(struct pkvi_engine *engine, uint32_t count, struct pkv_seq **seqs,
                          const int32_t *ids, struct times *times)
{
    for (uint32_t i = 0; i < count; i++) {
        const float *logits = NULL;
        if (pkv_seq_open(engine->session, &seqs[i]) != PKV_OK) {
            return false;
        }
        const uint64_t begin_ns = pkv_device_clock_ns(engine->device);
        if (pkv_prompt_run(engine->session, seqs[i], ids, times->prompt_tokens, NULL, &logits) !=
            PKV_OK) {
            return false;
        }
        times->prompt_ns = pkv_device_clock_ns(engine->device) - begin_ns;
    }
    return run_step(engine, seqs, count, times) && run_step(engine, seqs, count, times);
}

static bool simulate(struct pkvi_engine *engine, const struct pkv_session_config *config,
                     struct times *times)
{
    static struct pkv_seq *seqs[PARALLEL_MOST];
    if (engine->context_tokens < 3) {
        pkvi_say_failure("--sim: a context of %u tokens: needs at least 3", engine->context_tokens);
        return false;
    }
    times->prompt_tokens = engine->context_tokens - 2;
    int32_t *ids = calloc(times->prompt_tokens, sizeof *ids);
    if (ids == NULL) {
        pkvi_say_failure("out of memory");
        return false;
    }
    const bool ok = pkv_session_open(engine->model, config, &engine->session) == PKV_OK &&
                    run_sequences(engine, config->sequences, seqs, ids, times);
    if (!ok) {
        pkvi_say_library_failure();
    }
    for (uint32_t i = 0; i < config->sequences && seqs[i] != NULL; i++) {
        pkv_seq_close(seqs[i]);
    }
    free(ids);
    if (engine->device_info.link_gbps > 0) {
        times->bound_ns = (double)times->loaded_bytes / engine->device_info.link_gbps;
    }
    return ok;
}

static void record_times(struct pkvi_record *record, const struct times *times)
{
    pkvi_record_int(record, "simulated_prompt_tokens", times->prompt_tokens);
    pkvi_record_real(record, "simulated_prompt_ms", 1e3 * pkvi_seconds(times->prompt_ns));
    pkvi_record_real(record, "simulated_step_ms", 1e3 * pkvi_seconds(times->step_ns));
    pkvi_record_int(record, "simulated_step_loaded_bytes", times->loaded_bytes);
    pkvi_record_real(record, "simulated_step_bound_ms", 1e-6 * times->bound_ns);
}

static int write_record(const struct pkvi_engine *engine, const struct pkvi_engine_options *given,
                        const struct pkv_session_config *config, const struct times *times)
{
    struct pkvi_record record;
    pkvi_record_begin(&record, "plan");
    pkvi_engine_record(engine, given, &record);
    pkvi_record_text(&record, "kv_policy", pkv_kv_policy_name(config->kv_policy));
    pkvi_record_int(&record, "context_tokens", engine->context_tokens);
    pkvi_record_int(&record, "sequences", config->sequences);
    pkvi_record_int(&record, "kv_token_bytes", engine->plan.kv_token_bytes);
    pkvi_record_int(&record, "kv_budget_bytes", config->kv_budget_bytes);
    pkvi_record_int(&record, "kv_global_layers", engine->plan.kv_global_layers);
    pkvi_record_int(&record, "kv_dense_layers", engine->plan.kv_dense_layers);
    if (given->sim != NULL) {
        record_times(&record, times);
    }
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int run(const struct plan *plan, struct pkvi_engine *engine)
{
    const struct pkvi_engine_room room = {
        .less = plan->parallel > 1 ? "a smaller --ctx-size or --parallel" : "a smaller --ctx-size",
        .least_tokens = 1,
        .one_sequence = true};
    const bool sim = plan->engine.sim != NULL;
    struct times times = {.prompt_tokens = 0};
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = (uint32_t)plan->engine.context_tokens;
    config.sequences = (uint32_t)plan->parallel;
    if (!pkvi_engine_open_path(engine, &plan->engine) ||
        !pkvi_engine_open_model(engine, &plan->engine, false) ||
        !pkvi_engine_plan_session(engine, &plan->engine, &room, &config) ||
        (sim && !(pkvi_engine_load(engine) && simulate(engine, &config, &times)))) {
        return PKV_EXIT_FAILED;
    }
    if (plan->engine.json) {
        return write_record(engine, &plan->engine, &config, &times);
    }
    print_plan(engine, &config);
    if (sim) {
        print_times(engine, &plan->engine, &config, &times);
    }
    return PKV_EXIT_OK;
}

int pkvi_cmd_plan(int argc, char **argv)
{
    struct plan plan = {.parallel = 1};
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&plan.engine), pkvi_engine_context_options(&plan.engine),
        PKV_OPTION_SET(options, &plan),         pkvi_engine_device_options(&plan.engine),
        pkvi_engine_sim_options(&plan.engine),  pkvi_engine_output_options(&plan.engine)};
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code == PKV_GO_ON) {
        code = pkvi_engine_check(&plan.engine);
    }
    if (code != PKV_GO_ON) {
        return code;
    }
    struct pkvi_engine engine = {0};
    code = run(&plan, &engine);
    pkvi_engine_close(&engine);
    return pkvi_out_end(code);
}
