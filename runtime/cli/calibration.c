/* calibration.c: owns the place of calibrations in the cache folder. What is in one is the
 * library's. */
#include "runtime/cli/calibration.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/cache.h"
#include "runtime/cli/cli.h"

char *pkvi_cli_calibration_path(const struct pkvi_engine *engine,
                                const struct pkvi_engine_options *options)
{
    struct pkv_model_info info;
    char name[32];
    pkv_model_query(engine->model, &info);
    snprintf(name, sizeof name, "%016" PRIx64 ".pkvcal", info.identity);
    return pkvi_cache_path(options->cache_dir, "calibration", name);
}

/* A note of the call that just failed. */
static void say_why(const char *what)
{
    pkvi_say_note("calibration: %s; %s", pkv_error_text(), what);
}

static struct pkv_calibration *measure(const struct pkvi_engine *engine, const char *path)
{
    struct pkv_calibration *calibration = NULL;
    struct pkv_calibration_info info;
    pkvi_say_note("calibration: this model is measured once, which takes as long as a prompt of "
                  "some 2400 tokens");
    const uint64_t begin_ns = pkvi_now_ns();
    if (pkv_calibration_run(engine->model, NULL, 0, &calibration) != PKV_OK) {
        say_why("going on without");
        return NULL;
    }
    const double seconds = pkvi_seconds(pkvi_now_ns() - begin_ns);
    pkv_calibration_query(calibration, &info);
    if (path == NULL) {
        pkvi_say_note("calibration: %u tokens, %.1f s; there is no cache folder to keep it in",
                      info.tokens, seconds);
    } else if (!pkvi_cache_make_folders(path)) {
        pkvi_say_note("calibration: %u tokens, %.1f s; not kept: %s: %s", info.tokens, seconds,
                      path, strerror(errno));
    } else if (pkv_calibration_save(calibration, path) != PKV_OK) {
        pkvi_say_note("calibration: %u tokens, %.1f s; not kept: %s", info.tokens, seconds,
                      pkv_error_text());
    } else {
        pkvi_say_note("calibration: %u tokens, %.1f s; kept in %s", info.tokens, seconds, path);
    }
    return calibration;
}

struct pkv_calibration *pkvi_cli_calibration_get(const struct pkvi_engine *engine,
                                                 const struct pkvi_engine_options *options)
{
    struct pkv_calibration *calibration = NULL;
    char *path = pkvi_cli_calibration_path(engine, options);
    if (path != NULL && access(path, F_OK) == 0 &&
        pkv_calibration_load(engine->model, path, &calibration) != PKV_OK) {
        say_why("measuring again");
    }
    if (calibration == NULL) {
        calibration = measure(engine, path);
    }
    free(path);
    return calibration;
}
