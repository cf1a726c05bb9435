/* help.h: options in words. */
#ifndef PKV_CLI_HELP_H
#define PKV_CLI_HELP_H

#include "runtime/cli/options.h"

/* What an option's value may be: "a whole number from 1 to 4096". */
struct pkvi_allowed {
    char text[200];
};
struct pkvi_allowed pkvi_help_allowed(const struct pkvi_option *option);

/* Usage, summary, options; to stdout. */
void pkvi_help_print(const struct pkvi_usage *usage, const struct pkvi_option_set *sets,
                     uint32_t set_count);

#endif
