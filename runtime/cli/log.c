/* log.c: owns --log-level and --log-format, and printing the library's log lines on stderr. */
#include "pivotkv/log.h"

#include <stdio.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/options.h"

static struct logging {
    int level, json; /* words of their options; the levels in the order of the library */
} logging = {.level = PKV_LOG_WARN};

static const struct pkvi_option options[] = {
    {"log-level", 0, PKV_OPTION_CHOICE, offsetof(struct logging, level), "error|warn|info|debug",
     "what the library may say on stderr (default warn)", 0, 0, false},
    {"log-format", 0, PKV_OPTION_CHOICE, offsetof(struct logging, json), "text|json",
     "how (default text)", 0, 0, false},
};

static void print_line(void *context, enum pkv_log_level level, const char *line)
{
    const struct logging *how = context;
    if (how->json) {
        fprintf(stderr, "%s\n", line);
    } else {
        fprintf(stderr, "pivotkv: %s: %s\n", pkv_log_level_name(level), line);
    }
}

struct pkvi_option_set pkvi_log_options(void)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(options, &logging);
}

void pkvi_log_begin(void)
{
    pkv_log_set((enum pkv_log_level)logging.level, logging.json != 0, print_line, &logging);
}
