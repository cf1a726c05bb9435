/* quality.h: what the quality command's files share. */
#ifndef PKV_BENCH_QUALITY_H
#define PKV_BENCH_QUALITY_H

#include <stdbool.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

/* The last rows of a prompt that an arm runs by itself: what comes before is shared. */
#define QUALITY_WINDOW 64u
#define QUALITY_ARMS_MOST 256u

/* A text of which the first tokens are the prompt, and those behind are fed one by one. */
struct quality_text {
    char name[64];
    struct pkv_ids ids; /* context + tokens + 1 */
    uint32_t tokens;    /* fed behind the prompt */
    uint32_t skip;      /* of them, that are not scored */
    uint32_t first;     /* its first scored token among those of all texts */
};

/* What one scored token tells of a policy, against full attention. */
struct quality_token {
    float kl;               /* KL(full || policy), nats */
    float nll_full, nll;    /* of the token that comes next */
    bool top1;              /* the same most likely token */
    bool right_full, right; /* the most likely token is the one that comes next */
};

struct quality_figures {
    double kl_mean, kl_low, kl_high, kl_p99, top1, ppl_diff;
    double right_full, right; /* share of tokens that were the most likely ones */
};

/* What a run of an arm has to tell beside its tokens. */
struct quality_run {
    double coverage; /* mean over layers and heads; NaN: none was measured */
    uint64_t bytes_moved, device_bytes;
};

struct quality_arm {
    const char *name;                    /* "snapkv", "full" */
    const struct pkv_policy_ops *policy; /* NULL: full */
    enum pkv_pyramid pyramid;
    const char *budget_text;
    struct pkvi_budget budget;
    uint64_t budget_bytes;
    char refused[256];              /* why it cannot run at this budget; "" = it can */
    struct quality_token *token[2]; /* forced, free: [scored] */
    struct quality_run run[2];
};

struct quality {
    struct pkvi_engine_options options;
    struct pkvi_texts files, tasks;
    const char *policies, *budgets, *pyramids;
    int64_t context, tokens, instances, seed;
    int mode; /* forced, free, both */
    struct pkvi_engine engine;
    struct pkv_session *reference;
    struct quality_text *text; /* [text_count] */
    uint32_t text_count, scored, tokens_most;
    char prefix[64];     /* file with its first context - QUALITY_WINDOW tokens */
    float *full, *other; /* log probabilities: f32 [tokens][vocab] */
    int32_t *written;    /* [tokens + 1] what a policy wrote by itself */
    struct quality_arm arm[QUALITY_ARMS_MOST];
    uint32_t arm_count;
    double *samples; /* [scored] scratch */
};
enum { QUALITY_FORCED, QUALITY_FREE, QUALITY_MODES };

enum pkv_kv_type quality_kv_type(const struct quality *q);

/* quality_run.c. Each says why it failed: false. */
bool quality_open(struct quality *q);
void quality_close(struct quality *q);
/* The text at hand under full attention: ->prefix, ->full. */
bool quality_reference(struct quality *q, const struct quality_text *text);
/* An arm on it: fed the text's own tokens, or writing by itself, with full attention reading along.
 * What a budget does not hold is no failure: arm->refused. */
bool quality_run_arm(struct quality *q, const struct quality_text *text, struct quality_arm *arm,
                     int mode);

/* quality_tasks.c */
struct quality_maker {
    const struct pkv_tokenizer *tokenizer;
    struct pkv_ids filler; /* at least `context` of them */
    size_t context;
    uint64_t random;
};
bool quality_is_task(const char *name);
/* An instance of a task: ids, tokens, skip. False: said why. */
bool quality_make(struct quality_maker *maker, const char *task, struct quality_text *text_out);

/* quality_figures.c */
/* logits -> log probabilities; the place of the largest. */
uint32_t quality_log_softmax(const float *logits, uint32_t vocab, float *out);
struct quality_token quality_compare(const float *full, const float *policy, uint32_t vocab,
                                     int32_t next);
/* Of `count` tokens; the interval of the mean KL by resampling them, 95 %. samples: [count]. */
struct quality_figures quality_figures(const struct quality_token *token, uint32_t count,
                                       uint64_t seed, double *samples);

#endif
