/* calibrate.c: owns the calibrate command. What is measured is the library's to know. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/cache.h"
#include "runtime/cli/calibration.h"
#include "runtime/cli/cli.h"

#define TOKENS_MOST 8192u /* of a text: more change little and cost the square */

struct calibrate {
    struct pkvi_engine_options engine;
    const char *text, *out, *squeeze_out;
    /* Results. */
    char *path;
    size_t left_out; /* tokens of the text */
    uint64_t run_ns;
};
#define FIELD(name) offsetof(struct calibrate, name)

static const struct pkvi_option options[] = {
    {"text", 0, PKV_OPTION_TEXT, FIELD(text), "FILE",
     "read this raw text, - = stdin, of which at most 8192 tokens count (default: a built-in one "
     "of about 2400)",
     0, 0, false},
    {"out", 'o', PKV_OPTION_TEXT, FIELD(out), "FILE",
     "write FILE (default: CACHE/calibration/IDENTITY.pkvcal, where other commands look for it)", 0,
     0, false},
    {"squeeze-out", 0, PKV_OPTION_TEXT, FIELD(squeeze_out), "FILE",
     "also write the mean cosine of the residual before and after attention in the global layers, "
     "a JSON array: what --kv-policy squeeze --pyramid file:FILE asks for",
     0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv calibrate -m MODEL [--text FILE] [-o FILE] [OPTION...]",
    .summary = "Run a text through a model once, and keep how its residual changes from layer to\n"
               "layer and which channels of its keys and queries are large. Nothing of the text\n"
               "is in the file.",
};

/* Threads, device, kernels; K and V are as the library wants them. */
static struct pkvi_option_set where_options(struct pkvi_engine_options *engine)
{
    struct pkvi_option_set set = pkvi_engine_compute_options(engine);
    while (set.count > 0 && strcmp(set.options[set.count - 1].name, "cpu") != 0) {
        set.count--;
    }
    return set;
}

static bool read_text(const struct calibrate *c, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    struct pkvi_bytes text = {0};
    if (!pkvi_engine_needs_text(engine, "leave out --text") || !pkvi_file_read(c->text, &text)) {
        return false;
    }
    const uint32_t flags = engine->text.add_bos ? PKV_ENCODE_BOS : 0;
    const bool ok = pkv_encode(engine->tokenizer, text.data, text.bytes, flags, ids) == PKV_OK;
    free(text.data);
    if (!ok) {
        pkvi_say_library_failure();
    } else if (ids->count < PKV_CALIBRATION_LEAST_TOKENS) {
        pkvi_say_failure("%s: %zu tokens: a calibration takes at least %u", pkvi_file_name(c->text),
                         ids->count, PKV_CALIBRATION_LEAST_TOKENS);
    }
    return ok && ids->count >= PKV_CALIBRATION_LEAST_TOKENS;
}

/* Whether it fits is known before weights are read. */
static bool open_model(struct calibrate *c, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    if (!pkvi_engine_open_text(engine, &c->engine) ||
        (c->text != NULL && !read_text(c, engine, ids)) ||
        !pkvi_engine_open_model(engine, &c->engine, false)) {
        return false;
    }
    const uint32_t context = engine->model_info.context;
    const uint32_t most = context < TOKENS_MOST ? context : TOKENS_MOST;
    if (ids->count > most) {
        c->left_out = ids->count - most;
        ids->count = most;
    }
    struct pkv_session_config config = pkv_session_config_default();
    const struct pkvi_engine_room room = {.less = "a shorter --text",
                                          .least_tokens = PKV_CALIBRATION_LEAST_TOKENS,
                                          .one_sequence = true,
                                          .fixed_kv_type = true};
    config.context_tokens = ids->count > 0                           ? (uint32_t)ids->count
                            : context < PKV_CALIBRATION_LEAST_TOKENS ? context
                                                                     : PKV_CALIBRATION_LEAST_TOKENS;
    return pkvi_engine_plan_session(engine, &c->engine, &room, &config) && pkvi_engine_load(engine);
}

/* Looks whether everything can be written before work is done for it. */
static bool choose_path(struct calibrate *c, const struct pkvi_engine *engine)
{
    c->path = c->out != NULL ? strdup(c->out) : pkvi_cli_calibration_path(engine, &c->engine);
    if (c->path == NULL) {
        pkvi_say_failure("there is no cache folder: name a file with -o FILE");
        return false;
    }
    if (c->out == NULL && !pkvi_cache_make_folders(c->path)) {
        pkvi_say_failure("%s: cannot make its folder: %s", c->path, strerror(errno));
        return false;
    }
    if (pkv_saved_probe(c->path) != PKV_OK ||
        (c->squeeze_out != NULL && pkv_saved_probe(c->squeeze_out) != PKV_OK)) {
        pkvi_say_library_failure();
        return false;
    }
    return true;
}

/* Of the global layers. */
static json_t *cosines(const struct pkvi_engine *engine, const struct pkv_calibration_info *info)
{
    json_t *list = json_array();
    for (uint32_t l = 0; list != NULL && l < info->layers; l++) {
        const double cosine = info->cosine[l] > 0.0f ? (double)info->cosine[l] : 0.0;
        if (pkv_model_layer(engine->model, l)->kind == PKV_LAYER_GLOBAL &&
            json_array_append_new(list, json_real(cosine)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static bool write_squeeze(const struct calibrate *c, const struct pkvi_engine *engine,
                          const struct pkv_calibration_info *info)
{
    json_t *list = cosines(engine, info);
    FILE *file = list != NULL ? fopen(c->squeeze_out, "we") : NULL;
    bool ok = file != NULL && json_dumpf(list, file, JSON_REAL_PRECISION(9)) == 0 &&
              fputc('\n', file) != EOF;
    ok = file != NULL && fclose(file) == 0 && ok;
    json_decref(list);
    if (!ok) {
        pkvi_say_failure("%s: cannot write: %s", c->squeeze_out, strerror(errno));
    }
    return ok;
}

static const char *source_name(enum pkv_calibration_source source)
{
    static const char *const names[] = {"built-in", "text", "made-up ids"};
    return names[source];
}

static int write_record(const struct calibrate *c, const struct pkvi_engine *engine,
                        const struct pkv_calibration_info *info)
{
    struct pkvi_record record;
    char identity[24];
    snprintf(identity, sizeof identity, "%016" PRIx64, info->identity);
    pkvi_record_begin(&record, "calibrate");
    pkvi_record_text(&record, "model", engine->path);
    pkvi_record_text(&record, "identity", identity);
    pkvi_record_text(&record, "device", engine->device_info.name);
    pkvi_record_text(&record, "cpu", engine->device_info.variant);
    pkvi_record_int(&record, "threads", engine->device_info.threads);
    pkvi_record_text(&record, "source", source_name(info->source));
    pkvi_record_int(&record, "tokens", info->tokens);
    pkvi_record_int(&record, "tokens_left_out", c->left_out);
    pkvi_record_int(&record, "layers", info->layers);
    pkvi_record_set(&record, "cosine", cosines(engine, info));
    pkvi_record_text(&record, "file", c->path);
    pkvi_record_int(&record, "file_bytes", info->file_bytes);
    pkvi_record_int(&record, "run_ns", c->run_ns);
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int write_text(const struct calibrate *c, const struct pkv_calibration_info *info)
{
    if (info->source == PKV_CALIBRATION_GIVEN) {
        pkvi_out_printf("read %u tokens of %s", info->tokens, pkvi_file_name(c->text));
    } else {
        pkvi_out_printf("read %u %s", info->tokens,
                        info->source == PKV_CALIBRATION_RANDOM
                            ? "made-up tokens (the model has no vocabulary)"
                            : "tokens of the built-in text");
    }
    if (c->left_out > 0) {
        pkvi_out_printf(" (%zu more were left out)", c->left_out);
    }
    pkvi_out_printf(" in %.1f s\nwrote %s, %s\n", pkvi_seconds(c->run_ns), c->path,
                    pkvi_size_text(info->file_bytes).text);
    return PKV_EXIT_OK;
}

static int run(struct calibrate *c, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    struct pkv_calibration *calibration = NULL;
    struct pkv_calibration_info info;
    if (!open_model(c, engine, ids) || !choose_path(c, engine)) {
        return PKV_EXIT_FAILED;
    }
    pkvi_engine_say_why(&engine->why_cpu);
    const uint64_t begin_ns = pkvi_now_ns();
    if (pkv_calibration_run(engine->model, ids->id, ids->count, &calibration) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    c->run_ns = pkvi_now_ns() - begin_ns;
    pkv_calibration_query(calibration, &info);
    int code = PKV_EXIT_OK;
    if (pkv_calibration_save(calibration, c->path) != PKV_OK) {
        code = pkvi_say_library_failure();
    } else if (c->squeeze_out != NULL && !write_squeeze(c, engine, &info)) {
        code = PKV_EXIT_FAILED;
    } else {
        code = c->engine.json ? write_record(c, engine, &info) : write_text(c, &info);
    }
    pkv_calibration_close(calibration);
    return code;
}

int pkvi_cmd_calibrate(int argc, char **argv)
{
    struct calibrate c = {.text = NULL};
    const struct pkvi_option_set sets[] = {pkvi_engine_file_options(&c.engine),
                                           PKV_OPTION_SET(options, &c), where_options(&c.engine),
                                           pkvi_engine_output_options(&c.engine)};
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&c.engine)) != PKV_GO_ON) {
        return code;
    }
    struct pkvi_engine engine = {0};
    struct pkv_ids ids = {0};
    code = run(&c, &engine, &ids);
    free(c.path);
    pkv_ids_free(&ids);
    pkvi_engine_close(&engine);
    return pkvi_out_end(code);
}
