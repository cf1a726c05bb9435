/* answer.h: the decode loop that generate and chat share: tokens out of a session, text out of
 * tokens. */
#ifndef PKV_CLI_ANSWER_H
#define PKV_CLI_ANSWER_H

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

enum pkvi_finish {
    PKV_FINISH_END,         /* the model ended its text or turn */
    PKV_FINISH_STOP,        /* a stop string was met */
    PKV_FINISH_LENGTH,      /* --n-predict tokens were made */
    PKV_FINISH_CONTEXT,     /* the context is full */
    PKV_FINISH_INTERRUPTED, /* a signal came */
    PKV_FINISH_OUTPUT,      /* stdout takes no more, which was said */
    PKV_FINISH_FAILED,      /* the library failed, which was said */
};
const char *pkvi_finish_name(enum pkvi_finish finish);

struct pkvi_answer_config {
    struct pkvi_sampling *sampling;
    int32_t end_of_turn; /* a further token to end at, -1 = none */
    bool ignore_end;     /* go on after end tokens */
    bool print;          /* to stdout, a token at a time: text, or ids if there is no vocabulary */
    bool keep;           /* gather what is printed, or would be, in `text` */
    bool goes_on;        /* the ids are a text's that was cut: maybe within a character */
};

struct pkvi_answer {
    struct pkvi_answer_config config;
    struct pkvi_engine *engine;
    struct pkv_sampler *sampler;
    struct pkv_stop *stop; /* NULL: no stop strings */
    struct pkv_detok detok;
    char *piece, *safe; /* what a token gives; what of it may be shown */
    size_t piece_bytes;
    struct pkvi_bytes text; /* what was shown, if it is kept */
    int32_t *ids; /* the whole sequence, prompt first; room for the context and one more */
    size_t count, prompt_count, capacity;
    size_t read;                             /* tokens of the prompt that were fed */
    bool has_first;                          /* the prompt was fed to its end: first_ns counts */
    uint64_t steps;                          /* decode steps run, one token each */
    uint64_t prompt_ns, decode_ns, first_ns; /* first_ns: when the first token was chosen */
    bool failed;                             /* out of memory for the text */
};

/* The session must be open. Words its own failure: false; closed either way. */
bool pkvi_answer_open(struct pkvi_answer *answer, struct pkvi_engine *engine,
                      const struct pkvi_answer_config *config);
void pkvi_answer_close(struct pkvi_answer *answer);

/* Cut a sequence to `tokens`, or to nothing where sliding layers no longer hold what is needed;
 * *left_out: tokens that it has then. Words its own failure: false. */
bool pkvi_seq_cut(struct pkv_seq *seq, size_t *left_out, size_t tokens);

/*
 * Feed ids[cached..prompt_count) to the sequence, whose cache holds the ids before, and generate
 * until something ends it; limit < 0: none. Allocates nothing while it prints only.
 */
enum pkvi_finish pkvi_answer_run(struct pkvi_answer *answer, struct pkv_seq *seq, size_t cached,
                                 int64_t limit);

#endif
