/*
 * tier.h: the KV tier: where every entry lives, what moves, when.
 *
 * Every layer's K and V of every sequence are reached through a view (kernels/kernels.h). Sliding
 * layers keep a ring of pages on the device. A global layer of a sequence is DENSE (all its pages
 * are on the device) or STREAMED (its last pages are; the rest lies in host memory and passes
 * through staging tiles whenever the layer attends). With a host tier every full block of 32
 * tokens is written through to host memory, so that a layer can leave the device at any time.
 *
 * With a policy, a sequence that no longer fits its budget turns HOT in all global layers: decode
 * passes then attend to its hot set and the last pages alone (hot_set.c), exact passes stream. A
 * policy that prunes drops entries for good instead, and knows no host memory (prune.c).
 *
 * A *pass* is a set of rows of some sequences, run layer by layer; each layer may take its rows in
 * several *row tiles* of at most step_rows. Calls enqueue on the tier's streams; only those that
 * say so wait. Threads: one at a time.
 */
#ifndef PKV_OFFLOAD_TIER_H
#define PKV_OFFLOAD_TIER_H

#include "kernels/kernels.h"
#include "pivotkv/device.h"
#include "pivotkv/impl/policy_ops.h"
#include "pivotkv/model.h"
#include "pivotkv/session.h"

struct pkvi_tier;

/* Orders between streams that the tier keeps (offload/transfer.c); tests take one away. */
enum pkvi_edge {
    PKVI_EDGE_APPEND_STORE,
    PKVI_EDGE_STORE_PUBLISH,
    PKVI_EDGE_STORE_BUFFER,
    PKVI_EDGE_LOAD_ATTEND,
    PKVI_EDGE_ATTEND_LOAD,
    PKVI_EDGE_UNPARK_ATTEND,
    PKVI_EDGE_UNPARK_PARK,
    PKVI_EDGE_QUERY_RECALL,
    PKVI_EDGE_RECALL_ATTEND,
    PKVI_EDGE_COUNT
};

struct pkvi_tier_config {
    const struct pkv_layer_info *layer; /* [layers] */
    uint32_t layers, context_tokens;
    uint32_t sequences; /* that are on the device at once */
    uint32_t parked;    /* besides them, in host memory alone; asks for `host` */
    uint32_t step_rows; /* of a row tile, at most */
    uint32_t pass_rows; /* of a pass, at most; more than step_rows only of one sequence */
    enum pkv_kv_type kv_type;
    bool host;             /* write every block through to host memory */
    uint64_t budget_bytes; /* device memory of a sequence's global layers and its share of staging;
                              what holds the whole context makes all layers DENSE; 0 = that */
    uint32_t recent;       /* tokens that a STREAMED layer keeps on the device, at least */
    enum pkv_full_resident resident;     /* which layers stay DENSE longest */
    const struct pkv_policy_ops *policy; /* of hot sets; NULL: STREAMED layers stay exact */
    enum pkv_pyramid pyramid;
    const double *layer_weights; /* [global layers], NULL = of the pyramid */
    uint32_t keep_tokens;        /* KEEP: beyond the budget; 0 = the context */
    /* Of a policy with a query, [layers]: what its keys are indexed by, channels and bits aside
     * (pkvi_tier_index_channels()); not read by plans. Borrowed. */
    const struct pkv_index *index;
    bool recall_inline;        /* recall on COMPUTE: on a device whose streams share its cores */
    uint32_t threads;          /* of the device, for scratch */
    uint64_t host_limit_bytes; /* of blocks, 0 = none */
    uint32_t check_steps;      /* self_check.c; 0, or nothing is ever streamed: never */
    uint32_t dropped_edges;    /* for tests: 1 << enum pkvi_edge */
};

struct pkvi_tier_sizes {
    /* device */
    uint64_t pool_bytes;    /* pages of the global layers */
    uint64_t ring_bytes;    /* of the sliding layers */
    uint64_t staging_bytes; /* all tiles */
    uint64_t buffer_bytes;  /* one layer's new rows of a pass */
    uint64_t carry_bytes;   /* of attention in several launches */
    uint64_t check_bytes;   /* two results of a self-check */
    uint64_t hot_bytes;     /* keys and tokens of the slots of hot sets */
    uint64_t score_bytes;   /* scores of a prompt's tokens, and scratch of their kernels */
    uint64_t tables_bytes;  /* views and page tables */
    uint64_t device_bytes;  /* all of them */
    /* host */
    uint64_t upload_bytes; /* pinned: what tables_bytes are made of, results of checks */
    uint64_t host_blocks, host_block_bytes, host_bytes;
    uint64_t parking_bytes;    /* pinned: rings of a parked sequence */
    uint64_t parked_bytes;     /* of all of them */
    uint64_t host_state_bytes; /* pageable: states of sequences, lists */
    uint64_t state_bytes;      /* pageable: that, and the tables of places */
    uint64_t full_bytes;  /* K and V of a sequence's global layers at context_tokens, not rounded */
    uint64_t least_bytes; /* the smallest budget */
    uint32_t quota_pages; /* of the pool, a sequence */
    uint32_t ring_pages;  /* of them, of a KV head that is HOT or STREAMED, at most */
    uint32_t hot_pages;   /* of them, of all KV heads' slots */
    uint32_t keep_pages;  /* of those, of a KV head, that the budget is not charged with */
    uint32_t tile_tokens; /* of a staging tile; 0: nothing is ever streamed */
    uint32_t tiles;       /* that are loaded ahead, and one that is attended to */
    uint32_t dense_layers; /* global layers that are DENSE at context_tokens */
    uint32_t global_layers;
};

/* Allocates nothing. PKV_ERR_INVALID: a recipe that cannot be; PKV_ERR_RANGE: a budget below the
 * least (sizes_out is filled in), a config that counts beyond 32 bits; PKV_ERR_NO_MEMORY:
 * host_limit_bytes does not hold the blocks. */
enum pkv_status pkvi_tier_plan(const struct pkvi_tier_config *config,
                               struct pkvi_tier_sizes *sizes_out);

/*
 * Allocates all that pkvi_tier_plan() told, on the caller's stream `compute`. After a failure too,
 * *tier_out (NULL before the call) is to be closed, once compute is.
 */
enum pkv_status pkvi_tier_open(struct pkv_device *device, const struct pkvi_tier_config *config,
                               struct pkv_stream *compute, struct pkvi_tier **tier_out);
/* compute is closed already, or nothing runs on it. NULL allowed. */
void pkvi_tier_close(struct pkvi_tier *tier);

struct pkvi_tier_part {
    uint32_t seq, tokens, rows; /* tokens: before the pass */
    bool exact;   /* a prompt: attends to everything, also where the sequence is HOT */
    bool goes_on; /* and more passes of the same prompt follow */
};

/*
 * Two passes may be under way: calls below are about the one of the selected lane (0 at first).
 * While that of lane 1 is, one of lane 0 has at most 32 rows of a sequence, and ends before lane 1
 * goes on; sequences of lane 1's pass are left alone.
 */
#define PKVI_TIER_LANES 2u
void pkvi_tier_select(struct pkvi_tier *tier, uint32_t lane);

/*
 * Begin a pass; the previous one must have ended on the device. Waits only for stores that are
 * late (counted). PKV_ERR_DEVICE_LOST: the tier is of no more use.
 */
enum pkv_status pkvi_tier_begin(struct pkvi_tier *tier, const struct pkvi_tier_part *parts,
                                uint32_t count);

/*
 * Append the rows of one row tile in one layer and attend. The arguments are those of the two
 * kernels without what the tier knows: views, tile, ranges, carry. spans: also in host memory.
 */
struct pkvi_tier_rows {
    uint32_t layer, row_tile;
    bool last_tile;
    const struct pkv_row_span *host_spans; /* [append.span_count], of this row tile */
    struct pkv_args_append append;
    struct pkv_args_attend attend;
    pkv_addr q_gain; /* f32 [rows][heads], as ROPE leaves it, or 0 */
};
enum pkv_status pkvi_tier_attend(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);

/*
 * With a policy that prunes (offload/prune.c) the first pass of a sequence is its whole prompt, of
 * which each layer takes fewer rows, placed one behind the other: first_position is a row's number
 * in the layer. Every other pass is one row of a sequence. Does a prompt of `tokens` leave room for
 * what the context may take after it: PKV_ERR_RANGE. Rows of it that enter each layer,
 * rows_out[layers]. Numbers of the rows that go on, for GATHER, once a layer's last row tile has
 * attended: i32 on the device.
 */
bool pkvi_tier_prunes(const struct pkvi_tier_config *config);
enum pkv_status pkvi_tier_check_prompt(struct pkvi_tier *tier, uint32_t tokens);
void pkvi_tier_prompt_rows(const struct pkvi_tier_config *config, uint32_t tokens,
                           uint32_t *rows_out);
pkv_addr pkvi_tier_prompt_index(const struct pkvi_tier *tier);

/*
 * With a policy that recalls (offload/recall.c). Channels of a layer's index; 0: the policy recalls
 * nothing, or not in this layer.
 */
uint32_t pkvi_tier_index_channels(const struct pkvi_tier_config *config, uint32_t layer);
/* Does the running pass recall entries of this layer? */
bool pkvi_tier_recalls(const struct pkvi_tier *tier, uint32_t layer);
/*
 * Of a layer's rows, before they attend and after the layer before has: `q` as PREDICT takes it, or
 * 0 for that of the step before. Its q, table and q_norm alone are read, with strides and pairs.
 */
enum pkv_status pkvi_tier_recall(struct pkvi_tier *tier, uint32_t layer,
                                 const struct pkv_row_span *host_spans, uint32_t span_count,
                                 pkv_addr spans, const struct pkv_args_predict *query);

/* End of the pass: store the blocks that are full. */
enum pkv_status pkvi_tier_end(struct pkvi_tier *tier);

/* Instead of the end: forget the rows of the pass. Nothing may be running on compute. */
enum pkv_status pkvi_tier_abort(struct pkvi_tier *tier);

/*
 * Sequences by slot, config.sequences + config.parked of them. All ask that no pass is running on
 * the device; what they enqueue is ordered before the next pass. PKV_ERR_NO_SLOT: no device memory
 * is free for one more sequence (open, fork, unpark), or no parking (park).
 */
enum pkv_status pkvi_tier_seq_open(struct pkvi_tier *tier, uint32_t seq);
void pkvi_tier_seq_close(struct pkvi_tier *tier, uint32_t seq);
/* Forget all tokens from `tokens` on; the caller has asked pkvi_tier_check_cut(). Waits for stores
 * where a block is cut that is not on the device. */
enum pkv_status pkvi_tier_seq_truncate(struct pkvi_tier *tier, uint32_t seq, uint32_t tokens);
/*
 * `to`, which is closed, becomes the same sequence as `from`. Blocks and pages are shared; the one
 * that either goes on in is copied when it does. Rings are copied, on the device.
 */
enum pkv_status pkvi_tier_seq_fork(struct pkvi_tier *tier, uint32_t from, uint32_t to);
/*
 * Park: what is not on the host yet (the open block, rings) goes there, and the device's memory is
 * given back. Waits for these stores. Unpark enqueues the loads of what belongs on the device.
 */
enum pkv_status pkvi_tier_seq_park(struct pkvi_tier *tier, uint32_t seq);
enum pkv_status pkvi_tier_seq_unpark(struct pkvi_tier *tier, uint32_t seq);
bool pkvi_tier_seq_parked(const struct pkvi_tier *tier, uint32_t seq);

/*
 * Bytes of whole blocks [first, first + count) of a layer, [block][kv_head][page], to memory or
 * from it (pinned; of sliding layers: blocks that the ring holds). Waits. Before writing, fill()
 * makes an open, empty sequence one of `tokens` tokens whose K and V are yet to be written; after,
 * filled() makes it ready for a pass. After a failure: close it.
 */
enum pkv_status pkvi_tier_seq_read(struct pkvi_tier *tier, uint32_t seq, uint32_t layer,
                                   uint32_t first, uint32_t count, pkv_addr memory);
enum pkv_status pkvi_tier_seq_fill(struct pkvi_tier *tier, uint32_t seq, uint32_t tokens);
enum pkv_status pkvi_tier_seq_write(struct pkvi_tier *tier, uint32_t seq, uint32_t layer,
                                    uint32_t first, uint32_t count, pkv_addr memory);
enum pkv_status pkvi_tier_seq_filled(struct pkvi_tier *tier, uint32_t seq);
uint64_t pkvi_tier_block_bytes(const struct pkvi_tier *tier, uint32_t layer);

/*
 * A hot set that is filled, for a file: how it is made, and then its bytes, which are to be moved
 * in pieces. `words`: [pkvi_tier_hot_words()] of each global layer the ring's first page, pages of
 * slots [kv_heads], first keys [kv_heads].
 */
struct pkvi_hot_saved {
    uint64_t recipe, bytes; /* hash of the recipe; bytes 0: there is none */
    uint32_t ring_pages, zero;
};
uint32_t pkvi_tier_hot_words(const struct pkvi_tier_config *config);
void pkvi_tier_hot_describe(const struct pkvi_tier *tier, uint32_t seq,
                            struct pkvi_hot_saved *saved_out, uint32_t *words_out);
/* After filled(): the sequence has this hot set once all of its bytes are moved in. *adopted_out
 * false: its tier makes other ones, and fills them anew; nothing is moved. PKV_ERR_CORRUPT: it
 * cannot be. */
enum pkv_status pkvi_tier_hot_adopt(struct pkvi_tier *tier, uint32_t seq,
                                    const struct pkvi_hot_saved *saved, const uint32_t *words,
                                    bool *adopted_out);
/* Bytes [first, first + bytes) to memory (pinned), or from it. Waits. */
enum pkv_status pkvi_tier_hot_move(struct pkvi_tier *tier, uint32_t seq, uint64_t first,
                                   uint64_t bytes, pkv_addr memory, bool load);
/* Filled slots of a KV head; 0: no hot set. Their tokens, i32, to memory (pinned). Waits. */
uint32_t pkvi_tier_hot_slots(const struct pkvi_tier *tier, uint32_t seq, uint32_t layer,
                             uint32_t head);
enum pkv_status pkvi_tier_hot_tokens(struct pkvi_tier *tier, uint32_t seq, uint32_t layer,
                                     uint32_t head, pkv_addr memory);
/* The first token of its ring; 0: no hot set. */
uint32_t pkvi_tier_hot_ring(const struct pkvi_tier *tier, uint32_t seq, uint32_t layer);

/*
 * Rings of sliding layers forget. `high`: most tokens that a sequence had since it was empty, those
 * of passes that were aborted included. Do its rings still hold what a row at `tokens` looks back
 * on? May `present` tokens be cut to `tokens`: PKV_ERR_RANGE where there are fewer, or a ring has
 * lost that and they are neither 0 nor the present ones.
 */
bool pkvi_tier_rings_hold(const struct pkvi_tier_config *config, uint32_t high, uint32_t tokens);
enum pkv_status pkvi_tier_check_cut(const struct pkvi_tier_config *config, uint32_t present,
                                    uint32_t high, uint32_t tokens);

/* Pages that a sequence keeps in a layer's ring, or in all. */
uint32_t pkvi_tier_layer_pages(const struct pkvi_tier_config *config, uint32_t layer);

/* Where things are and what moved since the tier was opened. */
void pkvi_tier_report(struct pkvi_tier *tier, struct pkv_kv_report *report_out);

/* What self-checks found in one layer. */
void pkvi_tier_layer_report(const struct pkvi_tier *tier, uint32_t layer,
                            struct pkv_kv_layer_report *report_out);

#endif
