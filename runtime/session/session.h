/*
 * session.h: what session.c (memory), sequence.c, save.c (sequences) and pipeline.c (one step)
 * share.
 *
 * Everything a session needs is laid out by one function, lay_out(), that runs with base 0 to
 * measure and again with the real bases to assign: plan and allocation cannot differ.
 */
#ifndef PKV_SESSION_SESSION_H
#define PKV_SESSION_SESSION_H

#include "offload/tier.h"
#include "pivotkv/session.h"
#include "runtime/model/model.h"

/*
 * What a pass under way keeps to itself: a prompt has a lane of its own where there is more than
 * one sequence, so that steps of others can run between its units. P: most rows of its passes.
 */
struct pkvi_lane {
    uint32_t rows;                  /* P */
    pkv_addr x;                     /* f32 [P][width]: the residual */
    pkv_addr rope[PKVI_ARCH_ROPES]; /* f32 [P][pairs][2] */
    pkv_addr upload;                /* what a pass sends: the four below, in one span */
    pkv_addr ids, positions;        /* i32 [P] */
    pkv_addr row_index;             /* i32 [logit_rows] */
    /* struct pkv_row_span [sequences], or [row tiles] of one sequence, or if it is pruned
     * [layers][row tiles] */
    pkv_addr spans;
    uint64_t upload_bytes;
    pkv_addr staging; /* pinned, upload_bytes */
};
enum { PKVI_LANE_STEP, PKVI_LANE_PROMPT, PKVI_LANES };

/* Device buffers of all passes in turn: R = step_rows go through a matrix together. */
struct pkvi_buffers {
    pkv_addr y;                   /* f32 [R][width]: before a post norm; 0 where there is none */
    pkv_addr q, k, v;             /* f32 [R][q_cols], [R][kv_cols], [R][kv_cols] */
    pkv_addr gate, up;            /* f32 [R][ffn] */
    struct pkv_act in, attn, ffn; /* inputs of the matrices: width, q_cols, ffn columns */
    pkv_addr q_gain;              /* f32 [R][most heads]: of QK norm, where a policy recalls */
    pkv_addr sketch[2];           /* f32 [R][heads * channels of an index]: of layers, in turn */
    pkv_addr scratch;             /* of attention */
    uint64_t scratch_bytes;
    pkv_addr logits; /* pinned, f32 [logit_rows][vocab] */
};

/* Of a layer that is recalled by a query from the layer before. */
struct pkvi_rehearsal {
    struct pkv_matrix q; /* [heads * channels][width] rows of Wq; 0 rows: by the step before */
    pkv_addr shift;      /* f32 [width]: mean step of the residual to here; 0 = none */
};

/*
 * The rows of a pass that is under way, and those that go through the matrices together now: a row
 * tile of at most step_rows. Only a pass of one sequence has several. A *unit* is a row tile in a
 * layer.
 */
struct pkvi_pass {
    struct pkv_session *session;
    uint32_t lane_number;
    const struct pkvi_lane *lane;
    uint32_t all_rows, span_count, logit_rows, row_tiles;
    uint32_t layer, row_tile, first_row, rows; /* of the next unit; layer = layers: none is left */
    /* Of a prompt that is pruned: all_rows and row_tiles are the layer's, whose spans begin at
     * layer * layer_spans; 0: all layers have the same rows, and spans. */
    uint32_t layer_spans;
};

/* A prompt that is fed unit by unit. */
struct pkvi_prompt {
    struct pkv_seq *seq; /* NULL: none is under way */
    const int32_t *ids;
    size_t count, done;
    bool in_pass;
    struct pkv_step_part part; /* of the pass */
    struct pkvi_pass pass;
};

struct pkv_seq {
    struct pkv_session *session;
    bool open;
    uint32_t index;
    uint32_t tokens; /* kv_len */
    uint32_t high;   /* most tokens since it was empty: what rings have overwritten */
};

struct pkv_session {
    struct pkv_model *model;
    struct pkv_session_config config; /* with defaults filled in */
    uint32_t q_cols, kv_cols;         /* widest layer */
    uint32_t threads;                 /* of the device */
    struct pkv_policy_ops policy;     /* the config's, with its sinks and ring; of a hot set */
    struct pkv_prune prune;           /* likewise, of a policy that prunes */
    uint32_t *prune_rows;             /* [layers] of the prompt that is pruned */
    struct pkvi_buffers buffers;
    struct pkvi_lane lane_memory[PKVI_LANES];
    struct pkvi_lane *lane[PKVI_LANES]; /* both the same where there is only one sequence */
    struct pkvi_prompt prompt;
    struct pkv_index *index;          /* [layers], what tier_config points to */
    struct pkvi_rehearsal *rehearsal; /* [layers] */
    uint32_t sketch_cols, most_heads; /* widest; 0: nothing is recalled */
    pkv_addr rehearsal_memory;
    uint64_t rehearsal_bytes;
    pkv_addr work, pinned; /* the two allocations of its own */
    uint64_t work_bytes, pinned_bytes;
    pkv_addr piece; /* pinned, for saved.c; 0 until something is saved or loaded */
    struct pkv_layer_info *layer_info; /* [layers], what tier_config points to */
    struct pkvi_tier_config tier_config;
    struct pkvi_tier_sizes tier_sizes;
    struct pkvi_tier *tier;
    struct pkvi_tier_part *tier_parts; /* [config.sequences] */
    struct pkv_stream *compute;
    struct pkv_event *done;
    const struct pkv_kernel *kernel[PKV_OP_COUNT];
    struct pkv_seq *seqs; /* [pkvi_session_slots()] */
    bool in_flight;       /* `done` was recorded and not yet waited for */
    bool broken;          /* a device call failed within a step */
};

/* Sequences that may be open. */
uint32_t pkvi_session_slots(const struct pkv_session *session);

/* Wait for the pass that runs, if one does. */
enum pkv_status pkvi_session_wait(struct pkv_session *session);

/* PKV_ERR_STATE of a broken session. */
enum pkv_status pkvi_session_usable(const struct pkv_session *session);

/* Both, before something is done between passes. */
enum pkv_status pkvi_session_rest(struct pkv_session *session);

/* The same of a sequence: PKV_ERR_STATE also while a prompt of it is under way. */
enum pkv_status pkvi_seq_rest(struct pkv_seq *seq);

/* Does the policy drop entries for good? Then a sequence is no more than what its steps made of it:
 * PKV_ERR_UNSUPPORTED of `what`. */
enum pkv_status pkvi_session_keeps_all(const struct pkv_session *session, const char *what);
static inline bool pkvi_session_prunes(const struct pkv_session *session)
{
    return pkvi_tier_prunes(&session->tier_config);
}

/* What the tier said: a failure other than a missing slot breaks the session. */
enum pkv_status pkvi_session_check(struct pkv_session *session, enum pkv_status status);

/* saved.c: pinned memory ->piece for what is copied out or in; its bytes. */
enum pkv_status pkvi_session_piece(struct pkv_session *session, uint64_t *bytes_out);

/* Does this set of rotary frequencies have others for long contexts, and are they used? */
bool pkvi_session_long_rope(const struct pkv_session *session, uint32_t set);

/* Do the sliding layers still hold what a row at `tokens` looks back on? */
bool pkvi_session_rings_hold(const struct pkv_seq *seq, uint32_t tokens);

/* Host pointer of an address in pinned or host memory. */
static inline void *pkvi_host(pkv_addr addr)
{
    return (void *)(uintptr_t)addr;
}

/* pipeline.c: parts whose rows are checked; what follows breaks the session where it fails. */
enum pkv_status pkvi_check_parts(const struct pkv_session *session,
                                 const struct pkv_step_part *parts, uint32_t count,
                                 uint32_t most_rows);
enum pkv_status pkvi_pass_begin(struct pkv_session *session, uint32_t lane_number,
                                const struct pkv_step_part *parts, uint32_t count,
                                struct pkvi_pass *pass_out);
enum pkv_status pkvi_pass_unit(struct pkvi_pass *pass);
/* The two halves of a unit: a row tile through attention, then the same through the feed-forward
 * network, which goes on to the next unit. In between buffers.q and buffers.k are those of the
 * tile, rotated, and the residual is that after attention. */
enum pkv_status pkvi_pass_attention(struct pkvi_pass *pass);
enum pkv_status pkvi_pass_feed_forward(struct pkvi_pass *pass);
bool pkvi_pass_has_unit(const struct pkvi_pass *pass);
/* Its parts' tokens count from here on; waits if logits are wanted. */
enum pkv_status pkvi_pass_end(struct pkvi_pass *pass, const struct pkv_step_part *parts,
                              uint32_t count, const float **logits_out);

#endif
