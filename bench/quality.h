/* quality.h: what the quality command's files share. */
#ifndef PKV_BENCH_QUALITY_H
#define PKV_BENCH_QUALITY_H

#include <stdbool.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

/* The last rows of a prompt that an arm runs by itself: what comes before is shared. */
#define QUALITY_WINDOW 64u
#define QUALITY_ARMS_MOST 256u
#define QUALITY_LIST_MOST 4096u /* characters of a list */

/* A text of which the first tokens are the prompt, and those behind are fed one by one. */
struct quality_text {
    char name[64];
    struct pkv_ids ids; /* context + tokens + 1 */
    uint32_t tokens;    /* fed behind the prompt */
    uint32_t skip;      /* of them, that are not scored */
    uint32_t first;     /* its first scored token among those of all texts */
    uint32_t row;       /* its first fed one among those of all texts */
    uint32_t sample;    /* its first step of which sets are kept */
    char prefix[64];    /* file with its first context - QUALITY_WINDOW tokens; "" = none yet */
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

/* An arm against another one on the same tokens. */
struct quality_paired {
    double diff, low, high; /* of the mean KL, with its interval */
    double ratio;           /* of the mean KLs */
};

/* What was found in a layer while an arm ran. */
struct quality_layer {
    double coverage; /* by the self-check: sum over the checks */
    uint64_t checks;
    uint64_t wanted, hits; /* tokens in the oracle's slots; those of them that the arm had too */
    /* as in struct pkv_kv_layer_report: */
    uint64_t recalled, recalled_idle;
    double recalled_mass, missing_mass;
};

struct quality_arm {
    const char *name;                    /* "snapkv", "full" */
    const struct pkv_policy_ops *policy; /* NULL: full */
    enum pkv_pyramid pyramid;
    const char *pyramid_text; /* its name, or file:PATH */
    double *layer_weights;    /* of the file; NULL: none */
    const char *budget_text;
    struct pkvi_budget budget;
    double recent_ratio; /* 0 = the policy's */
    uint64_t budget_bytes, device_bytes;
    char refused[256];              /* why it cannot run at this budget; "" = it can */
    struct quality_token *token[2]; /* forced, free: [scored] */
    uint64_t *bytes_moved[2];       /* [text_count] */
    struct quality_layer *layer[2]; /* [text_count][layers] */
    uint64_t *set; /* of an oracle: bitmaps of its slots; NULL = not kept (quality_hits.c) */
};

struct quality {
    struct pkvi_engine_options options;
    struct pkvi_texts files, tasks;
    const char *policies, *budgets, *pyramids, *ratios, *slots_of_name, *against;
    int64_t context, tokens, instances, seed, sinks;
    int mode;                              /* forced, free, both */
    const struct pkv_policy_ops *slots_of; /* whose ring and slots a pick gets; NULL = its own */
    struct pkvi_engine engine;
    struct pkv_session *reference;
    struct quality_text *text; /* [text_count] */
    uint32_t text_count, scored, fed, tokens_most;
    float *full;          /* log probabilities of all texts: f32 [fed][vocab] */
    float *along, *other; /* of one text: f32 [tokens_most][vocab] */
    int32_t *written;     /* [tokens_most + 1] what a policy wrote by itself */
    struct quality_arm arm[QUALITY_ARMS_MOST];
    uint32_t arm_count;
    double *samples;    /* [scored] scratch */
    int32_t *positions; /* [context + tokens_most] scratch */
    uint64_t *here;     /* a bitmap, scratch */
};
enum { QUALITY_FORCED, QUALITY_FREE, QUALITY_MODES };

enum pkv_kv_type quality_kv_type(const struct quality *q);

/* quality_arms.c: budgets x shapes x ratios x policies. False: said what is wrong with them. */
struct quality_lists {
    char policies[QUALITY_LIST_MOST], budgets[QUALITY_LIST_MOST], pyramids[QUALITY_LIST_MOST],
        ratios[QUALITY_LIST_MOST];
};
/* `lists` is cut in pieces, and kept for their words. */
bool quality_make_arms(struct quality *q, struct quality_lists *lists);
bool quality_is_file(const char *pyramid); /* file:PATH */
/* Does it share slots out by itself, whatever shape is asked for? */
bool quality_own_shape(const struct pkv_policy_ops *policy);
/* Does its policy prune, at its own bytes? Then it is no rival on equal ones. */
bool quality_prunes(const struct quality_arm *arm);
/* The arm that --against compares this one with; NULL: none, or itself. */
const struct quality_arm *quality_rival(const struct quality *q, const struct quality_arm *arm);

/* quality_texts.c: all texts before any work. False: said why. */
bool quality_make_texts(struct quality *q);

/* quality_run.c. Each says why it failed: false. */
bool quality_open(struct quality *q);
void quality_close(struct quality *q);
/* A text under full attention: its ->prefix, its rows of ->full. */
bool quality_reference(struct quality *q, struct quality_text *text);
/* Its device bytes, or ->refused: why it cannot be, which is no failure. False: said why. */
bool quality_plan_arm(struct quality *q, struct quality_arm *arm);
/* A session for an arm; NULL where it is refused. */
bool quality_open_arm(struct quality *q, struct quality_arm *arm, struct pkv_session **session_out);
/* It on a text: fed the text's own tokens, or writing by itself, with full attention reading along.
 */
bool quality_run_arm(struct quality *q, uint32_t text, struct quality_arm *arm,
                     struct pkv_session *session, int mode);

/* quality_hits.c */
bool quality_is_oracle(const struct quality_arm *arm);
bool quality_hits_open(struct quality *q); /* false: out of memory */
void quality_hits_close(struct quality *q);
/* Behind a step of a forced run: keep the sets of an oracle; else count an arm's hits where an
 * oracle of the same budget, shape and ratio has run before. False: said why. */
bool quality_hits_step(struct quality *q, const struct quality_text *text, struct quality_arm *arm,
                       struct pkv_seq *seq, uint32_t step, struct quality_layer *layer);

/* quality_report.c: rows or records of all arms. */
int quality_report(struct quality *q);
static inline bool quality_runs(const struct quality *q, int mode)
{
    return q->mode == QUALITY_MODES || q->mode == mode;
}

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
/* KL of the one less KL of the other, token by token, resampled likewise. */
struct quality_paired quality_paired(const struct quality_token *token,
                                     const struct quality_token *rival, uint32_t count,
                                     uint64_t seed, double *samples);
/* Mean over the layers that were checked in any of `texts` texts; NaN: none was. */
double quality_coverage(const struct quality_layer *layer, uint32_t texts, uint32_t layers);
/* Of one layer. */
double quality_layer_coverage(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                              uint32_t l);
/* Share of the mass that recall could have brought which it did bring, of one layer, and the mean
 * of layers that another comes before; share of entries that it brought for less than 1/n of the
 * mass. NaN: nothing was recalled. */
double quality_layer_recall(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                            uint32_t l);
double quality_recall(const struct quality_layer *layer, uint32_t texts, uint32_t layers);
double quality_overfetch(const struct quality_layer *layer, uint32_t texts, uint32_t layers);
/* Of layers [first, end) together; NaN: no hits were counted. */
double quality_hit_rate(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                        uint32_t first, uint32_t end);

#endif
