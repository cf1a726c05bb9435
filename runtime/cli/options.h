/* options.h: options as data: one table row an option, one parser, one help for all commands. */
#ifndef PKV_CLI_OPTIONS_H
#define PKV_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pivotkv/sampler.h"

enum pkvi_option_kind {
    PKV_OPTION_FLAG,   /* bool: true once given */
    PKV_OPTION_INT,    /* int64_t, least .. most */
    PKV_OPTION_REAL,   /* double, least .. most; `above`: least itself is not allowed */
    PKV_OPTION_REAL_0, /* double, 0 or least .. most */
    PKV_OPTION_SIZE,   /* int64_t bytes, 1 .. most */
    PKV_OPTION_BUDGET, /* struct pkvi_budget: N tokens, P% or bytes with a unit */
    PKV_OPTION_TEXT,   /* const char *, borrowed from argv */
    PKV_OPTION_CHOICE, /* int: index in the words of `value`, which stand between '|' */
    PKV_OPTION_TEXTS,  /* struct pkvi_texts: stop strings, may be given again */
    PKV_OPTION_INTS,   /* struct pkvi_ints: numbers with commas between, each least .. most */
    PKV_OPTION_BIAS,   /* struct pkvi_biases: ID=BIAS, may be given again */
    PKV_OPTION_REFUSED /* known and not there yet: `help` says so */
};

#define PKV_TEXTS_MOST 16u
struct pkvi_texts {
    const char *text[PKV_TEXTS_MOST];
    uint32_t count;
};

#define PKV_INTS_MOST 16u
struct pkvi_ints {
    int64_t value[PKV_INTS_MOST];
    uint32_t count;
};

struct pkvi_budget {
    enum { PKV_BUDGET_NONE, PKV_BUDGET_TOKENS, PKV_BUDGET_SHARE, PKV_BUDGET_BYTES } kind;
    double value; /* tokens, a share of 1, bytes */
};

/* "10%", "2048", "512MiB"; false, with nothing changed, if it is none. `most` bytes. */
bool pkvi_budget_parse(const char *text, int64_t most, struct pkvi_budget *budget);

#define PKV_BIASES_MOST 256u
struct pkvi_biases {
    struct pkv_logit_bias bias[PKV_BIASES_MOST];
    uint32_t count;
};

struct pkvi_option {
    const char *name; /* without "--" */
    char letter;      /* 0 = none */
    enum pkvi_option_kind kind;
    size_t offset;     /* of its target in the set's struct */
    const char *value; /* what the help calls the value; NULL for flags */
    const char *help;
    double least, most; /* whole numbers up to 2^53 are exact */
    bool above;
};

/* Options whose targets lie in one struct. */
struct pkvi_option_set {
    const struct pkvi_option *options;
    uint32_t count;
    void *target;
};
#define PKV_OPTION_SET(table, struct_pointer)                                                      \
    {                                                                                              \
        .options = (table), .count = (uint32_t)(sizeof(table) / sizeof(table)[0]),                 \
        .target = (struct_pointer)                                                                 \
    }

struct pkvi_usage {
    const char *line;    /* "pivotkv generate -m MODEL ..." */
    const char *summary; /* lines of at most 80 columns */
    uint32_t operands;   /* arguments that are no options: exactly so many */
    bool optional;       /* or none */
    const char *operand; /* what they are called */
};

/*
 * Parse argv into the sets, GNU style: --name value, --name=value, -n value, unique beginnings of
 * names, "--" ends options, -name for a long name too. Those of log.c are added. PKV_GO_ON, with
 * operands in operands_out, unchanged where there are none; else the exit code after --help or one
 * line about the first mistake.
 */
int pkvi_options_parse(const struct pkvi_usage *usage, const struct pkvi_option_set *sets,
                       uint32_t set_count, int argc, char **argv, const char **operands_out);

/* Word `index` of a choice's list. */
struct pkvi_word {
    char text[24];
};
struct pkvi_word pkvi_choice_word(const char *words, int index);

/* log.c: the options that every command has, and handing them to the library after parsing. */
struct pkvi_option_set pkvi_log_options(void);
void pkvi_log_begin(void);

/* Sampling options, and the config they make. */
struct pkvi_sampling {
    double temp, top_p, min_p, repeat, presence, frequency;
    int64_t top_k, penalty_last, seed; /* seed -1: by chance */
    struct pkvi_biases biases;
    struct pkvi_texts stop;
};
struct pkvi_sampling pkvi_sampling_default(void);
struct pkvi_option_set pkvi_sampling_options(struct pkvi_sampling *sampling);
/* Also chooses the seed if none was given. The bias list stays in `sampling`. */
struct pkv_sampler_config pkvi_sampling_config(struct pkvi_sampling *sampling);

#endif
