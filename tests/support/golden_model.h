/*
 * golden_model.h: a real or tiny model opened for a test, and the bars of the golden files.
 * Values come from other implementations; tests/golden/README.md says which.
 */
#ifndef PKV_TEST_GOLDEN_MODEL_H
#define PKV_TEST_GOLDEN_MODEL_H

#include <jansson.h>

#include "pivotkv/pivotkv.h"
#include "tests/support/pkv_test.h"

struct pkvt_engine {
    struct pkv_device *device;
    struct pkv_model *model;
    struct pkv_session *session;
    struct pkv_tokenizer *tokenizer;
    struct pkv_model_info info;
    struct pkv_session_config config;
};

struct pkvt_engine_options {
    bool exact;
    enum pkv_kv_type kv_type;
    enum pkv_cpu cpu;
    uint32_t threads, context, sequences, step_rows, logit_rows; /* 0 = default */
    uint64_t budget_bytes;                                       /* not 0: policy full, or */
    const char *policy;                                          /* this one, of hot sets */
    uint32_t recent, prompt_rows, parked, check_steps;           /* of it; 0 = default */
    const struct pkv_calibration *calibration;                   /* NULL = the session's own */
    enum pkv_full_resident resident;
    enum pkv_schedule schedule;
    uint64_t seed;         /* of the schedule */
    const char *device;    /* NULL = "cpu" */
    uint64_t device_bytes; /* most device memory, 0 = no limit */
};

/* Fails the test if anything cannot be opened. */
void pkvt_engine_open(struct pkvt_engine *engine, const char *path,
                      const struct pkvt_engine_options *options);
void pkvt_engine_close(struct pkvt_engine *engine);

/* tests/golden/NAME, parsed; freed with json_decref(). */
json_t *pkvt_golden_json(const char *name);

/* Ids of tests/golden/text_NAME.txt as the golden files have them (special tokens; BOS where the
 * model adds it). */
struct pkv_ids pkvt_golden_ids(const struct pkvt_engine *engine, const char *name);

/* Feeds ids to a new sequence and closes it; the logits of the last one are copied out: f32
 * [vocab]. */
void pkvt_last_logits(struct pkvt_engine *engine, const int32_t *ids, size_t count, float *out);

/* Natural log of the sum of exp. */
double pkvt_log_sum_exp(const float *logits, uint32_t count);

/* Mean negative log-likelihood of ids score_from .. count-1, each predicted from those before it.
 */
double pkvt_mean_nll(struct pkvt_engine *engine, const int32_t *ids, size_t count,
                     size_t score_from);

/* Bars over one golden file; [min_n, max_n] says which of its cases are run. */
void pkvt_check_exact_logits(const char *path, const char *file, double tolerance);
void pkvt_check_closeness(const char *path, const char *exact_file, const char *peer_file,
                          double most_ratio);
void pkvt_check_logits_near(const char *path, const char *file, size_t min_n, size_t max_n);
void pkvt_check_nll(const char *path, const char *file, size_t min_n, size_t max_n);
void pkvt_check_nll_to_exact(const char *path, const char *file, size_t max_n);
void pkvt_check_greedy(const char *path, const char *file, size_t min_n, size_t max_n);

#endif
