/* options.c: owns the parsing of argv and the wording of its mistakes. Knows no option by name. */
#include "runtime/cli/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/help.h"
#include "runtime/cli/number.h"

#define OPTIONS_MOST 64u
#define FIRST_CODE 256 /* what getopt gives for option i: FIRST_CODE + i; letters are smaller */
#define HELP_CODE 1000

struct slot {
    const struct pkvi_option *option;
    char *target;
};

struct parser {
    struct slot slots[OPTIONS_MOST];
    uint32_t count;
    struct option longs[OPTIONS_MOST + 2];
    char shorts[3 * OPTIONS_MOST];
};

static bool takes_value(const struct pkvi_option *option)
{
    return option->kind != PKV_OPTION_FLAG;
}

static void add_set(struct parser *parser, const struct pkvi_option_set *set)
{
    char *shorts = parser->shorts + strlen(parser->shorts);
    for (uint32_t i = 0; i < set->count && parser->count < OPTIONS_MOST; i++) {
        const struct pkvi_option *option = &set->options[i];
        uint32_t at = parser->count++;
        parser->slots[at] = (struct slot){option, (char *)set->target + option->offset};
        parser->longs[at] =
            (struct option){option->name, takes_value(option) ? required_argument : no_argument,
                            NULL, FIRST_CODE + (int)at};
        if (option->letter != 0) {
            *shorts++ = option->letter;
            if (takes_value(option)) {
                *shorts++ = ':';
            }
        }
    }
    parser->longs[parser->count] = (struct option){"help", no_argument, NULL, HELP_CODE};
}

static const struct slot *find(const struct parser *parser, int code)
{
    for (uint32_t i = 0; i < parser->count; i++) {
        if (code == FIRST_CODE + (int)i || (code != 0 && code == parser->slots[i].option->letter)) {
            return &parser->slots[i];
        }
    }
    return NULL;
}

struct pkvi_word pkvi_choice_word(const char *words, int index)
{
    struct pkvi_word word = {""};
    for (const char *at = words;; index--) {
        size_t bytes = strcspn(at, "|");
        if (index == 0) {
            snprintf(word.text, sizeof word.text, "%.*s", (int)bytes, at);
        }
        at += bytes;
        if (index <= 0 || *at++ == '\0') {
            return word;
        }
    }
}

static bool set_choice(const char *words, const char *text, int *index_out)
{
    for (int index = 0;; index++) {
        struct pkvi_word word = pkvi_choice_word(words, index);
        if (word.text[0] == '\0') {
            return false;
        }
        if (strcmp(word.text, text) == 0) {
            *index_out = index;
            return true;
        }
    }
}

static bool set_ints(const struct pkvi_option *option, const char *text, struct pkvi_ints *ints)
{
    struct pkvi_ints list = {.count = 0};
    for (const char *at = text;;) {
        char number[24];
        size_t bytes = strcspn(at, ",");
        if (bytes >= sizeof number || list.count == PKV_INTS_MOST) {
            return false;
        }
        memcpy(number, at, bytes);
        number[bytes] = '\0';
        if (!pkvi_number_int(number, (int64_t)option->least, (int64_t)option->most,
                             &list.value[list.count])) {
            return false;
        }
        list.count++;
        at += bytes;
        if (*at++ == '\0') {
            *ints = list;
            return true;
        }
    }
}

static bool set_bias(const struct pkvi_option *option, const char *text, struct pkvi_biases *biases)
{
    char number[24];
    size_t bytes = strcspn(text, "=");
    int64_t id = 0;
    double bias = 0.0;
    if (text[bytes] != '=' || bytes >= sizeof number || biases->count == PKV_BIASES_MOST) {
        return false;
    }
    memcpy(number, text, bytes);
    number[bytes] = '\0';
    if (!pkvi_number_int(number, 0, INT32_MAX, &id) ||
        !pkvi_number_real(text + bytes + 1, option->least, option->most, false, &bias)) {
        return false;
    }
    biases->bias[biases->count++] = (struct pkv_logit_bias){(int32_t)id, (float)bias};
    return true;
}

bool pkvi_budget_parse(const char *text, int64_t most, struct pkvi_budget *budget)
{
    const size_t bytes = strlen(text);
    char number[32];
    int64_t whole = 0;
    double percent = 0.0;
    if (bytes > 1 && bytes < sizeof number && text[bytes - 1] == '%') {
        memcpy(number, text, bytes - 1);
        number[bytes - 1] = '\0';
        if (!pkvi_number_real(number, 0.0, 100.0, true, &percent)) {
            return false;
        }
        *budget = (struct pkvi_budget){PKV_BUDGET_SHARE, percent / 100.0};
    } else if (pkvi_number_int(text, 1, 1 << 30, &whole)) {
        *budget = (struct pkvi_budget){PKV_BUDGET_TOKENS, (double)whole};
    } else if (pkvi_number_size(text, most, &whole)) {
        *budget = (struct pkvi_budget){PKV_BUDGET_BYTES, (double)whole};
    } else {
        return false;
    }
    return true;
}

static bool add_text(const char *text, struct pkvi_texts *texts)
{
    struct pkv_stop *stop;
    if (texts->count == PKV_TEXTS_MOST || pkv_stop_open(&text, 1, &stop) != PKV_OK) {
        return false;
    }
    pkv_stop_close(stop);
    texts->text[texts->count++] = text;
    return true;
}

static bool set_value(const struct slot *slot, const char *text)
{
    const struct pkvi_option *option = slot->option;
    void *target = slot->target;
    switch (option->kind) {
    case PKV_OPTION_FLAG:
        *(bool *)target = true;
        return true;
    case PKV_OPTION_INT:
        return pkvi_number_int(text, (int64_t)option->least, (int64_t)option->most, target);
    case PKV_OPTION_REAL:
        return pkvi_number_real(text, option->least, option->most, option->above, target);
    case PKV_OPTION_REAL_0:
        return pkvi_number_real(text, 0, 0, false, target) ||
               pkvi_number_real(text, option->least, option->most, false, target);
    case PKV_OPTION_SIZE:
        return pkvi_number_size(text, (int64_t)option->most, target);
    case PKV_OPTION_BUDGET:
        return pkvi_budget_parse(text, (int64_t)option->most, target);
    case PKV_OPTION_TEXT:
        *(const char **)target = text;
        return true;
    case PKV_OPTION_CHOICE:
        return set_choice(option->value, text, target);
    case PKV_OPTION_TEXTS:
        return add_text(text, target);
    case PKV_OPTION_INTS:
        return set_ints(option, text, target);
    case PKV_OPTION_BIAS:
        return set_bias(option, text, target);
    case PKV_OPTION_REFUSED:
        break;
    }
    return false;
}

static int refuse_value(const struct pkvi_option *option, const char *text)
{
    if (option->kind == PKV_OPTION_REFUSED) {
        return pkvi_say_usage("--%s: %s", option->name, option->help);
    }
    struct pkvi_allowed allowed = pkvi_help_allowed(option);
    if (text == NULL) {
        return pkvi_say_usage("--%s: a value is missing: %s", option->name, allowed.text);
    }
    return pkvi_say_usage("--%s: '%.100s' is not allowed: %s", option->name, text, allowed.text);
}

/* What getopt did not like; the word it stands at is argv[optind - 1]. */
static int refuse_option(const struct parser *parser, int code, char **argv)
{
    const struct slot *slot = find(parser, optopt);
    if (code == ':' && slot != NULL) {
        return refuse_value(slot->option, NULL);
    }
    if (slot != NULL && optopt >= FIRST_CODE) {
        return pkvi_say_usage("--%s takes no value", slot->option->name);
    }
    if (optopt == HELP_CODE) {
        return pkvi_say_usage("--help takes no value");
    }
    if (optopt != 0) {
        return pkvi_say_usage("unknown option '-%c' (see --help)", optopt);
    }
    return pkvi_say_usage("unknown or ambiguous option '%.100s' (see --help)", argv[optind - 1]);
}

static int check_operands(const struct pkvi_usage *usage, int argc, char **argv,
                          const char **operands_out)
{
    uint32_t left = (uint32_t)(argc - optind);
    if (left < usage->operands && !usage->optional) {
        return pkvi_say_usage("%s is missing (see --help)", usage->operand);
    }
    if (left > usage->operands) {
        return pkvi_say_usage("'%.100s' is one argument too many (see --help)",
                              argv[optind + (int)usage->operands]);
    }
    for (uint32_t i = 0; i < left; i++) {
        operands_out[i] = argv[optind + (int)i];
    }
    return PKV_GO_ON;
}

int pkvi_options_parse(const struct pkvi_usage *usage, const struct pkvi_option_set *sets,
                       uint32_t set_count, int argc, char **argv, const char **operands_out)
{
    struct parser parser = {.count = 0, .shorts = ":h"};
    for (uint32_t s = 0; s < set_count; s++) {
        add_set(&parser, &sets[s]);
    }
    struct pkvi_option_set log = pkvi_log_options();
    add_set(&parser, &log);
    opterr = 0;
    for (;;) {
        int code = getopt_long_only(argc, argv, parser.shorts, parser.longs, NULL);
        if (code == -1) {
            break;
        }
        if (code == 'h' || code == HELP_CODE) {
            pkvi_help_print(usage, sets, set_count);
            return pkvi_out_end(PKV_EXIT_OK);
        }
        const struct slot *slot = code == '?' || code == ':' ? NULL : find(&parser, code);
        if (slot == NULL) {
            return refuse_option(&parser, code, argv);
        }
        if (!set_value(slot, optarg)) {
            return refuse_value(slot->option, optarg);
        }
    }
    pkvi_log_begin();
    return check_operands(usage, argc, argv, operands_out);
}
