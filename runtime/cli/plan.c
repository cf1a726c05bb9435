/* plan.c: owns the plan command. What takes how much is the library's to say. */
#include <inttypes.h>
#include <stddef.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

struct plan {
    struct pkvi_engine_options engine;
    int64_t parallel;
};

static const struct pkvi_option options[] = {
    {"parallel", 0, PKV_OPTION_INT, offsetof(struct plan, parallel), "N",
     "sequences at once (default 1)", 1, 4096, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv plan -m MODEL [OPTION...]",
    .summary = "What memory a session would take, and where, computed by the code that allocates "
               "it.\nReads no weights and runs nothing. Exit status 0 if it would fit.",
};

static void print_place(const char *name, uint64_t asked, uint64_t available, uint64_t granted)
{
    pkvi_out_printf("%-9s asked %s, available %s, granted %s\n", name, pkvi_size_text(asked).text,
                    pkvi_size_text(available).text, pkvi_size_text(granted).text);
}

static void print_plan(const struct pkvi_engine *engine, const struct pkv_session_config *config)
{
    const struct pkv_memory_plan *plan = &engine->plan;
    pkvi_out_printf("policy    %s\n", pkv_kv_policy_name(config->kv_policy));
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

static int write_record(const struct pkvi_engine *engine, const struct pkvi_engine_options *given,
                        const struct pkv_session_config *config)
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
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int run(const struct plan *plan, struct pkvi_engine *engine)
{
    const struct pkvi_engine_room room = {
        .less = plan->parallel > 1 ? "a smaller --ctx-size or --parallel" : "a smaller --ctx-size",
        .least_tokens = 1,
        .one_sequence = true};
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = (uint32_t)plan->engine.context_tokens;
    config.sequences = (uint32_t)plan->parallel;
    if (!pkvi_engine_open_path(engine, &plan->engine) ||
        !pkvi_engine_open_plan(engine, &plan->engine) ||
        !pkvi_engine_plan_session(engine, &plan->engine, &room, &config)) {
        return PKV_EXIT_FAILED;
    }
    if (plan->engine.json) {
        return write_record(engine, &plan->engine, &config);
    }
    print_plan(engine, &config);
    return PKV_EXIT_OK;
}

int pkvi_cmd_plan(int argc, char **argv)
{
    struct plan plan = {.parallel = 1};
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&plan.engine), pkvi_engine_context_options(&plan.engine),
        PKV_OPTION_SET(options, &plan), pkvi_engine_device_options(&plan.engine),
        pkvi_engine_output_options(&plan.engine)};
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
