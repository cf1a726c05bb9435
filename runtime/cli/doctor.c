/* doctor.c: owns the doctor command. What a machine has is the library's to say. */
#include <stddef.h>

#include "pivotkv/device.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/options.h"

struct doctor {
    bool json;
};

static const struct pkvi_option options[] = {
    {"json", 0, PKV_OPTION_FLAG, offsetof(struct doctor, json), NULL, "one JSON object on stdout",
     0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv doctor [--json]",
    .summary = "Say what this machine has for PivotKV: CPU, NUMA, memory and its limits, huge "
               "pages,\nGPU driver; and the commands that would change what is in the way.",
};

int pkvi_cmd_doctor(int argc, char **argv)
{
    struct doctor doctor = {.json = false};
    const struct pkvi_option_set set = PKV_OPTION_SET(options, &doctor);
    int code = pkvi_options_parse(&usage, &set, 1, argc, argv, NULL);
    if (code != PKV_GO_ON) {
        return code;
    }
    char *text = NULL;
    if (pkv_doctor(doctor.json, &text) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    return pkvi_out_end(pkvi_out_library_text("doctor", doctor.json, text));
}
