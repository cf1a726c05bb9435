/*
 * session.h: what session.c (memory, sequences) and pipeline.c (one step) share.
 *
 * Everything a session needs is laid out by one function, lay_out(), that runs with base 0 to
 * measure and again with the real bases to assign: plan and allocation cannot differ.
 */
#ifndef PKV_SESSION_SESSION_H
#define PKV_SESSION_SESSION_H

#include "pivotkv/session.h"
#include "runtime/model/model.h"

/* Device buffers of one step, R = step_rows. */
struct pkvi_buffers {
    pkv_addr x;                     /* f32 [R][width]: the residual */
    pkv_addr y;                     /* f32 [R][width]: before a post norm; 0 where there is none */
    pkv_addr q, k, v;               /* f32 [R][q_cols], [R][kv_cols], [R][kv_cols] */
    pkv_addr gate, up;              /* f32 [R][ffn] */
    struct pkv_act in, attn, ffn;   /* inputs of the matrices: width, q_cols, ffn columns */
    pkv_addr rope[PKVI_ARCH_ROPES]; /* f32 [R][pairs][2] */
    pkv_addr scratch;               /* of attention */
    uint64_t scratch_bytes;
    pkv_addr upload;         /* what a step sends: the four below, in one span */
    pkv_addr ids, positions; /* i32 [R] */
    pkv_addr row_index;      /* i32 [logit_rows] */
    pkv_addr spans;          /* struct pkv_row_span [sequences] */
    uint64_t upload_bytes;
    pkv_addr views; /* struct pkv_kv_view [layers][sequences] */
    pkv_addr pages; /* pkv_addr, the page tables of all views */
    uint64_t tables_bytes;
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
    pkv_addr work, kv, pinned; /* the three allocations */
    uint64_t work_bytes, kv_bytes, kv_ring_bytes, pinned_bytes;
    struct pkv_stream *compute;
    struct pkv_event *done;
    const struct pkv_kernel *kernel[PKV_OP_COUNT];
    struct pkv_seq *seqs; /* [config.sequences] */
    bool in_flight;       /* `done` was recorded and not yet waited for */
    bool broken;          /* a device call failed within a step */
};

/* Blocks that a sequence keeps in a layer: the whole context, or a sliding layer's ring. */
uint32_t pkvi_session_layer_blocks(const struct pkv_session *session, uint32_t layer);

/* Host pointer of an address in pinned or host memory. */
static inline void *pkvi_host(pkv_addr addr)
{
    return (void *)(uintptr_t)addr;
}

#endif
