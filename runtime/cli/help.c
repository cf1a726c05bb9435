/* help.c: owns how options read, in --help and in messages. */
#include "runtime/cli/help.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cli/cli.h"

#define NAME_COLUMNS 28
#define LINE_COLUMNS 80
#define VALUE_COLUMNS 10 /* where a value goes on that is longer than a line */

struct pkvi_allowed pkvi_help_allowed(const struct pkvi_option *option)
{
    struct pkvi_allowed allowed = {""};
    char *text = allowed.text;
    size_t bytes = sizeof allowed.text;
    int64_t least = (int64_t)option->least, most = (int64_t)option->most;
    switch (option->kind) {
    case PKV_OPTION_INT:
        snprintf(text, bytes, "a whole number from %" PRId64 " to %" PRId64, least, most);
        break;
    case PKV_OPTION_REAL:
        snprintf(text, bytes,
                 option->above ? "a number above %.9g, at most %.9g" : "a number from %.9g to %.9g",
                 option->least, option->most);
        break;
    case PKV_OPTION_REAL_0:
        snprintf(text, bytes, "0, or a number from %.9g to %.9g", option->least, option->most);
        break;
    case PKV_OPTION_SIZE:
        snprintf(text, bytes, "bytes, or a number with KiB, MiB or GiB, from 1 to %" PRId64, most);
        break;
    case PKV_OPTION_BUDGET:
        snprintf(text, bytes,
                 "a share above 0%% and up to 100%%, a number of tokens, or bytes with KiB, MiB or "
                 "GiB");
        break;
    case PKV_OPTION_CHOICE:
        snprintf(text, bytes, "one of %s", option->value);
        break;
    case PKV_OPTION_TEXTS:
        snprintf(text, bytes, "UTF-8 text of 1 to 4096 bytes, at most %u times", PKV_TEXTS_MOST);
        break;
    case PKV_OPTION_INTS:
        snprintf(text, bytes,
                 "at most %u whole numbers from %" PRId64 " to %" PRId64 " with commas between",
                 PKV_INTS_MOST, least, most);
        break;
    case PKV_OPTION_BIAS:
        snprintf(text, bytes, "a token id, '=', a number from %g to %g; at most %u times",
                 option->least, option->most, PKV_BIASES_MOST);
        break;
    case PKV_OPTION_FLAG:
    case PKV_OPTION_TEXT:
    case PKV_OPTION_REFUSED:
        snprintf(text, bytes, "%s", option->value != NULL ? option->value : "");
        break;
    }
    return allowed;
}

/* Words of `text` from column NAME_COLUMNS on, broken before LINE_COLUMNS. */
static void print_wrapped(const char *text, int column)
{
    while (*text != '\0') {
        int word = (int)strcspn(text, " ");
        if (column > NAME_COLUMNS && column + 1 + word > LINE_COLUMNS) {
            pkvi_out_printf("\n%*s", NAME_COLUMNS, "");
            column = NAME_COLUMNS;
        } else if (column > NAME_COLUMNS) {
            pkvi_out_write(" ", 1);
            column++;
        }
        pkvi_out_write(text, (size_t)word);
        column += word;
        text += word;
        text += *text == ' ';
    }
    pkvi_out_write("\n", 1);
}

/* A value's words, broken behind a '|' where a line is full; the column it ends in. */
static int print_value(const char *value, int column)
{
    while (*value != '\0') {
        int word = (int)strcspn(value, "|");
        word += value[word] == '|';
        if (column + word > LINE_COLUMNS) {
            column = VALUE_COLUMNS;
            pkvi_out_printf("\n%*s", column, "");
        }
        pkvi_out_write(value, (size_t)word);
        column += word;
        value += word;
    }
    return column;
}

static void print_option(const struct pkvi_option *option)
{
    char name[80];
    int columns =
        snprintf(name, sizeof name, "  %c%c%s --%s%s", option->letter != 0 ? '-' : ' ',
                 option->letter != 0 ? option->letter : ' ', option->letter != 0 ? "," : " ",
                 option->name, option->value != NULL ? " " : "");
    pkvi_out_write(name, strlen(name));
    if (option->value != NULL) {
        columns = print_value(option->value, columns);
    }
    if (columns + 2 > NAME_COLUMNS) {
        pkvi_out_printf("\n%*s", NAME_COLUMNS, "");
    } else {
        pkvi_out_printf("%*s", NAME_COLUMNS - columns, "");
    }
    print_wrapped(option->help, NAME_COLUMNS);
}

static void print_set(const struct pkvi_option_set *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        print_option(&set->options[i]);
    }
}

void pkvi_help_print(const struct pkvi_usage *usage, const struct pkvi_option_set *sets,
                     uint32_t set_count)
{
    pkvi_out_printf("usage: %s\n\n", usage->line);
    pkvi_out_write(usage->summary, strlen(usage->summary));
    pkvi_out_printf("\n\n");
    for (uint32_t s = 0; s < set_count; s++) {
        print_set(&sets[s]);
    }
    struct pkvi_option_set log = pkvi_log_options();
    print_set(&log);
    pkvi_out_printf("  -h, --help                show this\n");
}
