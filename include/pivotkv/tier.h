/*
 * tier.h: the KV tier alone, for programs that run models themselves. docs/tier.md is a guide,
 * docs/examples/tier.c a program.
 *
 * The program makes q, k and v of every layer on the device; the tier keeps k and v of every token,
 * all of them in host memory and of those on the device what a budget holds, and attends over all
 * of them, exactly: the bits do not depend on the budget, nor on how tokens come in passes.
 *
 * A *pass* takes rows (tokens) of some sequences through all layers:
 *
 *     pkv_tier_begin(tier, parts, count);
 *     for each layer, in ascending order:
 *         (make q, k, v)   pkv_tier_attend(tier, &rows);   (use out)
 *     pkv_tier_end(tier);
 *
 * Order: the tier works on one stream of the device, the program's if it names one
 * (compute_stream). What is enqueued there is in order by itself. Whoever works elsewhere has q, k
 * and v in place before pkv_tier_attend(), and calls pkv_tier_wait() before looking at `out` or
 * changing what was handed over; pkv_tier_write() and pkv_tier_read() do that by themselves.
 *
 * Errors: a call that is refused (PKV_ERR_INVALID, _RANGE, _NO_SLOT, _STATE) has changed nothing,
 * and pkv_error_text() says what was expected. Any other failure comes from the device: the tier is
 * of no more use then, each call says so (PKV_ERR_STATE), and only closing is left.
 * Threads: one call at a time a tier; any thread. No call but open and close allocates memory.
 */
#ifndef PIVOTKV_TIER_H
#define PIVOTKV_TIER_H

#include "pivotkv/device.h"
#include "pivotkv/model.h"
#include "pivotkv/session.h"
#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_tier;

/* Begin with pkv_tier_config_default(); layer, layers and context_tokens have no default. */
struct pkv_tier_config {
    uint32_t struct_bytes;
    uint32_t layers; /* that attend: 1 to 1024 */
    /* [layers]: kind, window (of sliding layers), heads, kv_heads that divide them, head_dim (even,
     * at most 512); the rest is not read. Borrowed for the call. */
    const struct pkv_layer_info *layer;
    uint32_t context_tokens;   /* most tokens of a sequence */
    uint32_t sequences;        /* most on the device at once; default 1 */
    uint32_t parked_sequences; /* most besides them, in host memory alone; default 0 */
    uint32_t step_rows; /* most rows that attend in one launch, and of a pass of several sequences;
                           at least `sequences`; default 512 */
    uint32_t prompt_rows;     /* most rows of a pass of one sequence; 0 = the context, at most 8192;
                                 never fewer than step_rows */
    enum pkv_kv_type kv_type; /* default f16; q8_0 asks for head_dim % 32 == 0 */
    enum pkv_kv_policy kv_policy; /* default full */
    /* PKV_KV_FULL: */
    uint64_t kv_budget_bytes; /* device memory for the global layers of a sequence, its share of
                                 staging included; 0 = all of them. pkv_tier_plan() tells what 100 %
                                 is, and the least */
    uint64_t kv_host_bytes;   /* most host memory for K and V, 0 = what the sequences need */
    uint32_t kv_recent;       /* latest tokens that every layer keeps on the device; default 64 */
    enum pkv_full_resident kv_resident;
    float attention_scale;   /* of scores; 0 = 1 / sqrt(head_dim) of each layer */
    float attention_softcap; /* score = cap * tanh(score / cap); 0 = none */
    void *compute_stream;    /* the device's own kind of stream (cuda: cudaStream_t), borrowed for
                                the tier's life; NULL = one is made. The cpu device has none */
};
PKV_API struct pkv_tier_config pkv_tier_config_default(void);

struct pkv_tier_sizes {
    uint64_t device_bytes, pinned_bytes, pageable_bytes; /* all that the tier takes */
    uint64_t full_bytes;         /* K and V of a sequence's global layers: 100 % of a budget */
    uint64_t least_budget_bytes; /* smallest kv_budget_bytes; 0 where the budget holds everything */
    uint32_t step_rows, prompt_rows;      /* most rows of a pass, as above, defaults filled in */
    uint32_t global_layers, dense_layers; /* dense: whole on the device even at context_tokens */
};

/*
 * What a tier would take, by the code that allocates; allocates nothing.
 * PKV_ERR_INVALID, PKV_ERR_RANGE, PKV_ERR_UNSUPPORTED: a field that is named; sizes_out is not
 * written. PKV_ERR_RANGE of a budget below the least: full_bytes and least_budget_bytes are.
 * PKV_ERR_NO_MEMORY, of kv_host_bytes: all are.
 */
PKV_API enum pkv_status pkv_tier_plan(struct pkv_device *device,
                                      const struct pkv_tier_config *config,
                                      struct pkv_tier_sizes *sizes_out);

/*
 * Allocate all of it. The device must outlive the tier. Errors of pkv_tier_plan();
 * PKV_ERR_NO_MEMORY: the machine does not have it; PKV_ERR_UNSUPPORTED: compute_stream on a device
 * that has none. *tier_out is not written then, and nothing is kept. Cost: touches every byte.
 */
PKV_API enum pkv_status pkv_tier_open(struct pkv_device *device,
                                      const struct pkv_tier_config *config,
                                      struct pkv_tier **tier_out);
/* At any time; waits for what runs. NULL is allowed. */
PKV_API void pkv_tier_close(struct pkv_tier *tier);

/* What moved since the tier was opened, and what is where. Does not wait. */
PKV_API void pkv_tier_report(struct pkv_tier *tier, struct pkv_kv_report *report_out);

/*
 * Sequences are numbers, 0 to sequences + parked_sequences - 1; open gives the least free one. All
 * calls here wait for the pass before, if it still runs, and are refused within a pass
 * (PKV_ERR_STATE). PKV_ERR_INVALID: no such sequence is open.
 */

/* PKV_ERR_NO_SLOT: all numbers are taken, or as many sequences as fit are on the device. */
PKV_API enum pkv_status pkv_tier_seq_open(struct pkv_tier *tier, uint32_t *seq_out);
PKV_API enum pkv_status pkv_tier_seq_close(struct pkv_tier *tier, uint32_t seq);
/* Tokens whose K and V are kept, without those of a pass that has not ended; 0 if it is not open.
 * Does not wait. */
PKV_API uint32_t pkv_tier_seq_tokens(const struct pkv_tier *tier, uint32_t seq);
/*
 * Forget all tokens from `tokens` on. PKV_ERR_RANGE: there are fewer, or the ring of a sliding
 * layer no longer holds the window before it (0 and the present length are always possible).
 */
PKV_API enum pkv_status pkv_tier_seq_truncate(struct pkv_tier *tier, uint32_t seq, uint32_t tokens);
/*
 * A second sequence with the same tokens, which goes on by itself. Blocks of 32 tokens are shared,
 * rings of sliding layers are copied. PKV_ERR_NO_SLOT as for open; PKV_ERR_STATE: it is parked.
 */
PKV_API enum pkv_status pkv_tier_seq_fork(struct pkv_tier *tier, uint32_t seq, uint32_t *fork_out);
/*
 * Park: host memory alone keeps it, its device memory is free for another one. Waits for the copy
 * of at most 31 tokens a layer and of rings. It may be cut and closed, not stand in a pass.
 * PKV_ERR_NO_SLOT: parked_sequences are parked; PKV_ERR_STATE: it is parked already.
 * Unpark enqueues the loads of what belongs on the device. PKV_ERR_NO_SLOT: as many sequences as
 * fit are on the device; PKV_ERR_STATE: it is not parked.
 */
PKV_API enum pkv_status pkv_tier_seq_park(struct pkv_tier *tier, uint32_t seq);
PKV_API enum pkv_status pkv_tier_seq_unpark(struct pkv_tier *tier, uint32_t seq);
PKV_API bool pkv_tier_seq_parked(const struct pkv_tier *tier, uint32_t seq);

struct pkv_tier_part {
    uint32_t seq, rows; /* rows: its next tokens */
};

/*
 * Begin a pass of 1 to `sequences` parts; its rows are numbered through them in their order. Waits
 * for the pass before, if it still runs. PKV_ERR_STATE: a pass has begun already, or a sequence is
 * parked; PKV_ERR_INVALID: a sequence is not open, stands in it twice, or has no row;
 * PKV_ERR_RANGE: too many parts or rows, or a context that is full (telling its tokens and room).
 */
PKV_API enum pkv_status pkv_tier_begin(struct pkv_tier *tier, const struct pkv_tier_part *parts,
                                       uint32_t count);

/* Rows [first_row, first_row + rows) of the pass in one layer. Device memory, 4-byte aligned. */
struct pkv_tier_rows {
    uint32_t layer, first_row, rows;
    pkv_addr q;   /* f32 [rows][heads][head_dim], after norms and rotation */
    pkv_addr k;   /* f32 [rows][kv_heads][head_dim], likewise */
    pkv_addr v;   /* f32 [rows][kv_heads][head_dim] */
    pkv_addr out; /* f32 [rows][heads][head_dim], apart from the three */
    uint32_t q_stride, k_stride, v_stride; /* floats from one row to the next; 0 = no gaps */
};

/*
 * Append k and v to their sequences and attend: row r's query head h over KV head h / (heads /
 * kv_heads) of all tokens up to and including its own, of a sliding layer at most the last
 * `window`. Enqueues. Layers come in ascending order, a layer's rows too: all at once, or in pieces
 * that are, but the layer's last, multiples of step_rows (of pkv_tier_sizes).
 * PKV_ERR_STATE: no pass has begun, another layer or row comes next (told); PKV_ERR_RANGE: more
 * rows than are left, or a piece that is no such multiple; PKV_ERR_INVALID: an address or a stride.
 */
PKV_API enum pkv_status pkv_tier_attend(struct pkv_tier *tier, const struct pkv_tier_rows *rows);

/* End a pass whose rows have been in all layers (PKV_ERR_STATE tells what is missing); the rows
 * count as tokens from here on. Enqueues stores of full blocks; does not wait. */
PKV_API enum pkv_status pkv_tier_end(struct pkv_tier *tier);

/*
 * Instead of the end, at any point of a pass: forget its rows. Waits. Sequences are as they were
 * before; one whose ring of a sliding layer has lost what it needs is empty (pkv_tier_seq_tokens()
 * tells). PKV_ERR_STATE: no pass has begun.
 */
PKV_API enum pkv_status pkv_tier_abort(struct pkv_tier *tier);

/* Wait until the device has done all attention that was enqueued; stores may still run. */
PKV_API enum pkv_status pkv_tier_wait(struct pkv_tier *tier);

/*
 * Copy bytes from host memory to the device's and back, after all that was enqueued before, and
 * wait. Host memory may be any. For runners on the host, and tests; kernels need neither.
 */
PKV_API enum pkv_status pkv_tier_write(struct pkv_tier *tier, pkv_addr to, const void *from,
                                       size_t bytes);
PKV_API enum pkv_status pkv_tier_read(struct pkv_tier *tier, void *to, pkv_addr from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
