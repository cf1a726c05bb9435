/* inspect.c: owns the inspect command. What is in a file is the library's to say. */
#include <stddef.h>

#include "pivotkv/model.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/options.h"

struct inspect {
    bool json;
};

static const struct pkvi_option options[] = {
    {"json", 0, PKV_OPTION_FLAG, offsetof(struct inspect, json), NULL, "one JSON object on stdout",
     0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv inspect MODEL [--json]",
    .summary = "Say what is in a model file (GGUF; of several parts, any one) and what would be "
               "used.\nExit status 0 only if generate would load it; else 1 and one line that "
               "says why not.",
    .operands = 1,
    .operand = "MODEL",
};

int pkvi_cmd_inspect(int argc, char **argv)
{
    struct inspect inspect = {.json = false};
    const struct pkvi_option_set set = PKV_OPTION_SET(options, &inspect);
    const char *path = NULL;
    int code = pkvi_options_parse(&usage, &set, 1, argc, argv, &path);
    if (code != PKV_GO_ON) {
        return code;
    }
    char *text = NULL;
    if (pkv_model_inspect(path, inspect.json, &text) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    return pkvi_out_end(pkvi_out_library_text("inspect", inspect.json, text));
}
