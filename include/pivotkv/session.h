/* session.h: sequences and steps. */
#ifndef PIVOTKV_SESSION_H
#define PIVOTKV_SESSION_H

#include "pivotkv/model.h"
#include "pivotkv/policy.h"
#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_session;
struct pkv_seq;
struct pkv_calibration;

/* Where K and V live. */
enum pkv_kv_policy {
    PKV_KV_DEVICE, /* all on the device */
    PKV_KV_FULL,   /* all in host memory; on the device what a budget holds; exact: the rest is
                      streamed through whenever a layer attends */
    PKV_KV_HOT, /* all in host memory; a sequence that its budget does not hold keeps a hot set on
                   the device, chosen by `policy`, and decode steps attend to that alone */
    PKV_KV_POLICY_COUNT
};
/* "device", "full", "hot"; NULL for an unknown number. */
PKV_API const char *pkv_kv_policy_name(enum pkv_kv_policy policy);

/* Which layers stay on the device as a whole when not all can. */
enum pkv_full_resident { PKV_RESIDENT_INTERLEAVED, PKV_RESIDENT_FIRST, PKV_RESIDENT_LAST };

/* Begin with pkv_session_config_default(). */
struct pkv_session_config {
    uint32_t struct_bytes;
    uint32_t context_tokens; /* most tokens of a sequence; 0 = the model's */
    uint32_t sequences;      /* most sequences at once; default 1 */
    uint32_t step_rows;  /* most rows of one step (a prompt is fed in pieces of it); default 512 */
    uint32_t logit_rows; /* most rows of a step whose logits are wanted; default = sequences */
    enum pkv_kv_type kv_type;
    uint64_t kv_device_bytes; /* most device memory for K and V, 0 = what the sequences need */
    enum pkv_kv_policy kv_policy;
    const struct pkv_policy_ops *policy; /* PKV_KV_HOT */
    /* PKV_KV_HOT: shares of the global layers in the slots. kv_layer_weights: f64 [global layers],
     * >= 0, not all 0, borrowed while the session is open; NULL = kv_pyramid's. (To a policy with a
     * budget of its own they are what it says.) */
    enum pkv_pyramid kv_pyramid;
    const double *kv_layer_weights;
    int32_t kv_sinks;      /* first tokens that are kept; -1 = as the policy has it */
    float kv_recent_ratio; /* share of a sequence's pages for recent tokens, above 0, up to 1; 0 =
                              the policy's, or kv_recent */
    /* Of a policy that recalls: what is known of the model, borrowed while the session is opened.
     * NULL: it is measured then, which takes as long as a prompt of 2,000 tokens. PKV_ERR_INVALID:
     * of another model. */
    const struct pkv_calibration *calibration;
    uint32_t kv_keep_tokens; /* of a policy that keeps what is generated: how many, beyond its
                                budget; 0 = all that the context has room for */
    /* PKV_KV_FULL and PKV_KV_HOT: */
    uint64_t kv_budget_bytes; /* device memory for the global layers of a sequence, its share of
                                 staging included; 0 = what kv_device_bytes leaves, else all */
    uint64_t kv_host_bytes;   /* most host memory for K and V, 0 = what the sequences need */
    uint32_t kv_recent;       /* latest tokens that every layer keeps on the device; default 64 */
    enum pkv_full_resident kv_resident;
    uint32_t parked_sequences; /* most besides `sequences`, in host memory alone; default 0 */
    /* Every so many decode steps one layer of one sequence attends a second time, over the copies
     * in host memory of all that is there; the report says what came of it. 0 = never. */
    uint32_t kv_check_steps;
    uint32_t prompt_rows; /* most rows of a prompt that go through a layer together where layers are
                             streamed; 0 = the context, at most 8192 */
};
PKV_API struct pkv_session_config pkv_session_config_default(void);

struct pkv_memory_line {
    const char *what;  /* "weights", "KV, 30 global layers", ... */
    const char *where; /* "device", "pinned", "pageable" */
    uint64_t bytes;
};
#define PKV_PLAN_LINES 20u
/* Where every byte would live. asked <= available, or the plan says so. */
struct pkv_memory_plan {
    struct pkv_memory_line line[PKV_PLAN_LINES];
    uint32_t line_count;
    uint64_t device_asked_bytes, device_available_bytes, device_granted_bytes;
    uint64_t pinned_asked_bytes, pinned_available_bytes, pinned_granted_bytes;
    uint64_t pageable_asked_bytes, pageable_available_bytes, pageable_granted_bytes;
    uint64_t kv_token_bytes; /* of the global layers, a token */
    /* Device memory of one sequence's global layers, what stands beside its slots and its share of
     * staging: what a budget is about. */
    uint64_t kv_sequence_bytes;
    /* Global layers, and those of them whose pages are all on the device at context_tokens. */
    uint32_t kv_global_layers, kv_dense_layers;
};

/* What the KV tier did since the session was opened. */
struct pkv_kv_report {
    uint64_t loaded_bytes, stored_bytes; /* from and to host memory */
    uint64_t loaded_tiles;
    uint64_t late_stores;            /* times that a step waited for a store */
    uint64_t pages_used, pages_most; /* of the device pool, now and at most */
    uint64_t page_bytes;             /* of one of them */
    uint64_t device_bytes_most; /* of the device, weights aside: all is taken when it is opened */
    uint64_t streamed_layers;   /* (sequence, layer) pairs of which not all is on the device */
    /* Of a sample of the tiles, some in every pass: their bytes, the time of their copies, and how
     * long kernels had nothing to do but wait for them (the exposed part). */
    uint64_t sampled_tiles, sampled_bytes, sampled_load_ns, sampled_wait_ns;
    uint64_t recalled_entries, recalled_bytes; /* of slots that took an entry which was missing */
    /* Of kv_check_steps: attentions checked, those whose bits differed, and the least share of the
     * softmax mass of a head that lay in what was attended to (1 under the policy full). */
    uint64_t checks, check_differences;
    double check_least_coverage;
};

/* What kv_check_steps found in one layer: attentions checked, and the mean share of a head's
 * softmax mass that lay in what was attended to. */
struct pkv_kv_layer_report {
    uint64_t checks;
    double coverage;
    /* Of a policy that recalls, in these attentions: entries that came, those of them with less
     * than 1/n of the softmax mass of n tokens, the mass of all that came, and that of as many as
     * may come which were missing and had most. Masses are means over query heads, and sums over KV
     * heads and attentions. */
    uint64_t recalled, recalled_idle;
    double recalled_mass, missing_mass;
};

/*
 * What a session would take, computed by the code that allocates; allocates nothing.
 * PKV_ERR_NO_MEMORY: it cannot fit; the plan is filled in, the message names the option that would
 * help.
 */
PKV_API enum pkv_status pkv_session_plan(struct pkv_model *model,
                                         const struct pkv_session_config *config,
                                         struct pkv_memory_plan *plan_out);

/* Allocates everything: no later call but pkv_session_close() allocates or frees memory. */
PKV_API enum pkv_status pkv_session_open(struct pkv_model *model,
                                         const struct pkv_session_config *config,
                                         struct pkv_session **session_out);
PKV_API void pkv_session_close(struct pkv_session *session);
PKV_API void pkv_session_kv_report(struct pkv_session *session, struct pkv_kv_report *report_out);
/* PKV_ERR_RANGE: there is no such layer. */
PKV_API enum pkv_status pkv_session_layer_report(struct pkv_session *session, uint32_t layer,
                                                 struct pkv_kv_layer_report *report_out);

/* PKV_ERR_NO_SLOT: all sequences are in use. */
PKV_API enum pkv_status pkv_seq_open(struct pkv_session *session, struct pkv_seq **seq_out);
PKV_API void pkv_seq_close(struct pkv_seq *seq);
/* Tokens whose K and V are in the cache (kv_len). */
PKV_API uint32_t pkv_seq_tokens(const struct pkv_seq *seq);
/*
 * Forget all tokens from `tokens` on. PKV_ERR_RANGE if there are fewer, or if a sliding layer no
 * longer holds the window before it (then only 0 or the present length is possible); nothing is
 * changed.
 */
PKV_API enum pkv_status pkv_seq_truncate(struct pkv_seq *seq, uint32_t tokens);

/*
 * A second sequence with the same tokens, which goes on by itself. Blocks of 32 tokens are shared;
 * one is copied once either sequence writes in it. Rings of sliding layers are copied at once.
 * PKV_ERR_NO_SLOT: all sequences are in use; PKV_ERR_STATE: it is parked.
 */
PKV_API enum pkv_status pkv_seq_fork(struct pkv_seq *seq, struct pkv_seq **fork_out);

/*
 * Park: all K and V stay in host memory, the sequence's device memory is free for another one.
 * Cost: waits for the copy of at most 31 tokens and the rings of sliding layers. PKV_ERR_NO_SLOT:
 * parked_sequences are parked; PKV_ERR_STATE: it is parked already. A parked sequence may be cut,
 * saved and closed, not stand in a step.
 * Unpark: enqueues the loads of what belongs on the device; a step that takes part waits for them.
 * PKV_ERR_NO_SLOT: as many sequences as fit are on the device; nothing is changed.
 */
PKV_API enum pkv_status pkv_seq_park(struct pkv_seq *seq);
PKV_API enum pkv_status pkv_seq_unpark(struct pkv_seq *seq);
PKV_API bool pkv_seq_parked(const struct pkv_seq *seq);

/*
 * Tokens in the slots of a KV head of a layer's hot set, in the slots' order: their positions to
 * tokens_out [most]; *count_out: how many there are, 0 where there is no hot set (dense, or none
 * filled yet). PKV_ERR_RANGE: no such layer or KV head, or more than `most` (*count_out tells).
 * Cost: waits for the step that runs. For measurements.
 */
PKV_API enum pkv_status pkv_seq_hot_tokens(struct pkv_seq *seq, uint32_t layer, uint32_t kv_head,
                                           int32_t *tokens_out, uint32_t most, uint32_t *count_out);
/* The first token of the ring beside them: it and all later ones are on the device too; 0 where
 * there is no hot set. PKV_ERR_RANGE: no such layer. */
PKV_API enum pkv_status pkv_seq_hot_ring(const struct pkv_seq *seq, uint32_t layer,
                                         uint32_t *first_out);

/* Tokens of one sequence that run in a step. A sequence may stand in a step once. */
struct pkv_step_part {
    struct pkv_seq *seq;
    const int32_t *ids;
    uint32_t count;
    uint32_t logit_rows; /* logits of its last so many rows; 0 = none */
};

/*
 * Run all parts; blocks until their logits are read back. *logits_out: f32 [sum of
 * logit_rows][vocab], in the order of parts and rows, owned by the session, valid until the next
 * step (NULL if none was asked). PKV_ERR_RANGE: an id outside the vocabulary, more rows than
 * step_rows, or a context that is full (telling its tokens and its room); nothing was run.
 * PKV_ERR_DEVICE_LOST: the session is of no more use. Cost: allocates nothing. Threads: one step at
 * a time a session.
 */
PKV_API enum pkv_status pkv_step_run(struct pkv_session *session, const struct pkv_step_part *parts,
                                     uint32_t count, const float **logits_out);

/*
 * Feed many tokens of one sequence in passes, of step_rows or, where layers may be streamed, of
 * prompt_rows; logits of the last token. `cancel`, if not NULL, is polled between the units of a
 * pass (a layer and step_rows rows): once it is not 0, PKV_ERR_CANCELED. Whole passes stay; the one
 * at hand is forgotten, and where it has overwritten what a sliding layer still needed, the
 * sequence is empty then (pkv_seq_tokens() tells).
 */
PKV_API enum pkv_status pkv_prompt_run(struct pkv_session *session, struct pkv_seq *seq,
                                       const int32_t *ids, size_t count, const volatile int *cancel,
                                       const float **logits_out);

/*
 * The same piece by piece, so that steps of other sequences can run in between. `ids` are borrowed
 * until the prompt ends: it is done, canceled, or has failed. One prompt a session is under way at
 * a time (PKV_ERR_STATE); its sequence then takes part in nothing else but being closed, which
 * cancels it; where layers may be streamed, a step has at most 32 rows of a sequence meanwhile.
 */
PKV_API enum pkv_status pkv_prompt_begin(struct pkv_session *session, struct pkv_seq *seq,
                                         const int32_t *ids, size_t count);
/*
 * Enqueue up to so many units more (a layer and up to step_rows rows each). PKV_PENDING: some are
 * left; does not wait but where a pass has ended. PKV_OK: all are done, *logits_out as of a step.
 */
PKV_API enum pkv_status pkv_prompt_advance(struct pkv_session *session, uint32_t units,
                                           const float **logits_out);
/* Tokens that are done, those of the pass at hand in proportion to its units; 0: nothing is under
 * way. */
PKV_API size_t pkv_prompt_progress(const struct pkv_session *session);
/* Leave it, as `cancel` above does. Nothing is under way: nothing is done. */
PKV_API enum pkv_status pkv_prompt_cancel(struct pkv_session *session);

#ifdef __cplusplus
}
#endif
#endif
