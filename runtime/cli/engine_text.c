/* engine_text.c: owns finding a model's file and opening its tokenizer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/cache.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"
#include "runtime/cli/number.h"

#define FIELD(name) offsetof(struct pkvi_engine_options, name)

static const struct pkvi_option file_options[] = {
    {"model", 'm', PKV_OPTION_TEXT, FIELD(model), "FILE",
     "model file (GGUF; of several parts, any one)", 0, 0, false},
    {"cache-dir", 0, PKV_OPTION_TEXT, FIELD(cache_dir), "DIR",
     "where models named without a folder are looked for too, in DIR/models, and what was measured "
     "about them is kept, in DIR/calibration (default: $XDG_CACHE_HOME/pivotkv, else "
     "~/.cache/pivotkv)",
     0, 0, false},
};

struct pkvi_option_set pkvi_engine_file_options(struct pkvi_engine_options *options)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(file_options, options);
}

int pkvi_engine_check(const struct pkvi_engine_options *options)
{
    pkvi_say_quiet(options->quiet);
    if (options->model == NULL || options->model[0] == '\0') {
        return pkvi_say_usage("--model: a value is missing: name a GGUF file with -m FILE");
    }
    if (options->sim != NULL &&
        (options->device != 0 || options->cpu != 0 || options->threads > 0)) {
        return pkvi_say_usage("--sim: device, kernels and threads are the profile's: without "
                              "--device, --cpu, --threads");
    }
    if (options->kv_policy == 1 &&
        (options->kv_budget.kind != PKV_BUDGET_NONE || options->kv_host_bytes > 0)) {
        return pkvi_say_usage("--kv-policy device has neither --kv-budget nor --kv-host-bytes");
    }
    int64_t sinks = 0;
    if (options->sinks && !pkvi_number_int(options->sinks, 0, PKV_ENGINE_SINKS_MOST, &sinks)) {
        return pkvi_say_usage("--sinks: '%.64s' is not allowed: a whole number, 0 to %d",
                              options->sinks, PKV_ENGINE_SINKS_MOST);
    }
    enum pkv_pyramid pyramid;
    if (options->pyramid && strncmp(options->pyramid, "file:", 5) != 0 &&
        !pkvi_engine_pyramid(options->pyramid, &pyramid)) {
        return pkvi_say_usage(
            "--pyramid: '%.64s': expected flat, cosine, linear, power, reversed or "
            "file:PATH",
            options->pyramid);
    }
    const bool recipe = options->pyramid || options->sinks || options->recent_ratio > 0;
    if (options->kv_policy < PKV_ENGINE_FIRST_RECIPE && recipe) {
        return pkvi_say_usage("--pyramid, --sinks, --recent-ratio: only with a --kv-policy that "
                              "keeps hot sets");
    }
    if (!pkvi_engine_has_host(options) &&
        (options->recent > 0 || options->full_resident > 0 || options->check > 0)) {
        return pkvi_say_usage(
            "--recent, --full-resident, --kv-check: only with --kv-policy full or "
            "a --kv-budget");
    }
    return PKV_GO_ON;
}

bool pkvi_engine_has_host(const struct pkvi_engine_options *options)
{
    return options->kv_policy >= 2 || options->kv_budget.kind != PKV_BUDGET_NONE ||
           options->kv_host_bytes > 0;
}

bool pkvi_engine_open_path(struct pkvi_engine *engine, const struct pkvi_engine_options *options)
{
    if (strchr(options->model, '/') == NULL && access(options->model, F_OK) != 0) {
        engine->path = pkvi_cache_path(options->cache_dir, "models", options->model);
        if (engine->path != NULL && access(engine->path, R_OK) == 0) {
            return true;
        }
        free(engine->path);
    }
    engine->path = strdup(options->model);
    if (engine->path == NULL) {
        pkvi_say_failure("out of memory");
    }
    return engine->path != NULL;
}

bool pkvi_engine_open_text(struct pkvi_engine *engine, const struct pkvi_engine_options *options)
{
    if (!pkvi_engine_open_path(engine, options)) {
        return false;
    }
    if (pkv_tokenizer_open(engine->path, &engine->tokenizer) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    pkv_tokenizer_query(engine->tokenizer, &engine->text);
    return true;
}

void pkvi_engine_close_text(struct pkvi_engine *engine)
{
    if (engine->tokenizer != NULL) {
        pkv_tokenizer_close(engine->tokenizer);
    }
    free(engine->path);
    engine->tokenizer = NULL;
    engine->path = NULL;
}
