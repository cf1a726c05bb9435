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

/* Device buffers of one pass: R = step_rows go through a matrix together, P = pass rows through a
 * layer. */
struct pkvi_buffers {
    pkv_addr x;                     /* f32 [P][width]: the residual */
    pkv_addr y;                     /* f32 [R][width]: before a post norm; 0 where there is none */
    pkv_addr q, k, v;               /* f32 [R][q_cols], [R][kv_cols], [R][kv_cols] */
    pkv_addr gate, up;              /* f32 [R][ffn] */
    struct pkv_act in, attn, ffn;   /* inputs of the matrices: width, q_cols, ffn columns */
    pkv_addr rope[PKVI_ARCH_ROPES]; /* f32 [P][pairs][2] */
    pkv_addr scratch;               /* of attention */
    uint64_t scratch_bytes;
    pkv_addr upload;         /* what a step sends: the four below, in one span */
    pkv_addr ids, positions; /* i32 [P] */
    pkv_addr row_index;      /* i32 [logit_rows] */
    pkv_addr spans;          /* struct pkv_row_span [sequences], or [row tiles] of one sequence */
    uint64_t upload_bytes;
    pkv_addr logits;  /* pinned, f32 [logit_rows][vocab] */
    pkv_addr staging; /* pinned, upload_bytes */
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
    struct pkvi_buffers buffers;
    pkv_addr work, pinned; /* the two allocations of its own */
    uint64_t work_bytes, pinned_bytes;
    pkv_addr piece; /* pinned, for saved.c; 0 until something is saved or loaded */
    struct pkv_layer_info *layer_info; /* [layers], what tier_config points to */
    struct pkvi_tier_config tier_config;
    struct pkvi_tier_sizes tier_sizes;
    struct pkvi_tier *tier;
    struct pkvi_tier_part *tier_parts; /* [config.sequences] */
    uint32_t pass_rows;
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

/* The same before something is done between passes: PKV_ERR_STATE of a broken session. */
enum pkv_status pkvi_session_rest(struct pkv_session *session);

/* What the tier said: a failure other than a missing slot breaks the session. */
enum pkv_status pkvi_session_check(struct pkv_session *session, enum pkv_status status);

/* Does this set of rotary frequencies have others for long contexts, and are they used? */
bool pkvi_session_long_rope(const struct pkv_session *session, uint32_t set);

/* Do the sliding layers still hold what a row at `tokens` looks back on? */
bool pkvi_session_rings_hold(const struct pkv_seq *seq, uint32_t tokens);

/* Host pointer of an address in pinned or host memory. */
static inline void *pkvi_host(pkv_addr addr)
{
    return (void *)(uintptr_t)addr;
}

#endif
