/* inspect.c: owns the inspect command. What is in a file is the library's to say. */
#include <stddef.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

static const struct pkvi_option options[] = {
    {"json", 0, PKV_OPTION_FLAG, offsetof(struct pkvi_engine_options, json), NULL,
     "one JSON object on stdout", 0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv inspect MODEL | -m MODEL [OPTION...]",
    .summary = "Say what is in a model file (GGUF; of several parts, any one) and what would be "
               "used.\nExit status 0 only if generate would load it; else 1 and one line that "
               "says why not.",
    .operands = 1,
    .optional = true,
    .operand = "MODEL",
};

static int run(const struct pkvi_engine_options *given)
{
    struct pkvi_engine engine = {0};
    char *text = NULL;
    int code = PKV_EXIT_FAILED;
    if (!pkvi_engine_open_path(&engine, given)) {
        return code;
    }
    if (pkv_model_inspect(engine.path, given->json, &text) != PKV_OK) {
        pkvi_say_library_failure();
    } else {
        code = pkvi_out_library_text("inspect", given->json, text);
    }
    pkvi_engine_close_text(&engine);
    return code;
}

int pkvi_cmd_inspect(int argc, char **argv)
{
    struct pkvi_engine_options given = {.model = NULL};
    const struct pkvi_option_set sets[] = {pkvi_engine_file_options(&given),
                                           PKV_OPTION_SET(options, &given)};
    const char *path = NULL;
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, &path);
    if (code != PKV_GO_ON) {
        return code;
    }
    if (path != NULL && given.model != NULL) {
        return pkvi_say_usage("MODEL, --model: give only one of them");
    }
    given.model = path != NULL ? path : given.model;
    if (given.model == NULL || given.model[0] == '\0') {
        return pkvi_say_usage("MODEL is missing: name a GGUF file (see --help)");
    }
    return pkvi_out_end(run(&given));
}
