/* tier_impl.h: what the tier's files share. */
#ifndef PKV_OFFLOAD_TIER_IMPL_H
#define PKV_OFFLOAD_TIER_IMPL_H

#include "offload/host_arena.h"
#include "offload/places.h"
#include "offload/prune_schedule.h"
#include "offload/tier.h"
#include "runtime/base/arena.h"
#include "runtime/base/check.h"
#include "runtime/device/device.h"

#define PKVI_TIER_SLOTS 4u              /* staging tiles, at most */
#define PKVI_TIER_SPANS 512u            /* gathered before they are enqueued */
#define PKVI_TIER_COPY_BYTES (8u << 20) /* of one call, about */
#define PKVI_TIER_METERS 32u            /* tiles of a pass whose time is taken */

/* Time of one tile: of its copy on LOAD, of COMPUTE's wait for it. */
struct pkvi_tier_meter {
    struct pkv_event *load_begin, *load_end, *wait_begin, *wait_end;
    uint64_t bytes;
};

struct pkvi_tier_layer {
    struct pkv_layer_info info;
    bool global;
    uint32_t number;           /* global: among the global ones */
    uint32_t page_bytes;       /* 32 entries of one KV head */
    uint32_t head_base;        /* global: its first entry in a row of the page table */
    uint32_t ring_pages;       /* sliding: of a sequence and KV head */
    pkv_addr ring, ring_table; /* sliding: pages of all shares, and their tables */
    /* hot sets, of a global layer: */
    uint32_t hot_slots;     /* of the KV head with the most */
    uint32_t hot_base;      /* its first entry in a row of hot_table */
    uint64_t hot_state;     /* in a share's: f32 scores [kv_heads][hot_slots + ring], i32 tokens */
    uint64_t prompt_scores; /* in a lane's */
    struct pkv_recall_state recall;
};

/* Of one share. */
static inline uint64_t pkvi_tier_ring_bytes(const struct pkvi_tier_layer *layer)
{
    return (uint64_t)layer->ring_pages * layer->info.kv_heads * layer->page_bytes;
}

/* One sequence in one global layer. Pages from first_page on are on the device. */
struct pkvi_tier_state {
    bool streamed;
    bool buffered; /* the running pass appends to the buffer */
    uint32_t first_page;
    uint32_t ring_first;             /* HOT: the ring's first page, after the pass */
    uint32_t sealed;                 /* full blocks whose store is enqueued, or done */
    uint32_t recorded;               /* of them, those that the event `stored` stands behind */
    uint32_t published;              /* of them, those that have arrived */
    uint32_t keep_first, keep_count; /* pages that the pass left in `kept` instead of the buffer */
    uint32_t *block;                 /* [blocks_max] host blocks, PKVI_NO_PLACE = none */
    pkv_addr *kept;                  /* [tail_pages][kv_heads] */
    pkv_addr *open_page; /* [kv_heads] where the page lies that the pass goes on with; 0 = none */
    bool open_release;   /* these pages belong to the pool and are free after the pass */
};

struct pkvi_tier_seq {
    uint32_t tokens;
    uint32_t share;       /* of the device's memory: whose rings; PKVI_NO_PLACE = parked, closed */
    uint32_t parked;      /* where its rings lie in host memory; PKVI_NO_PLACE = not parked */
    bool arriving;        /* loads of its pages and rings may still run on LOAD */
    bool views_changed;   /* to upload */
    uint32_t buffer_page; /* of the running pass, where its new pages begin in the buffer */
    bool settle;          /* the last pass left pages in `kept` */
    bool hot;             /* the running pass attends to its hot set */
    bool placing;         /* the running pass fills its hot set */
    bool picking;         /* besides, and then attends to it: exact attention only chooses */
    bool placed;          /* its hot set is filled, and up to date */
    bool scoring;        /* the running pass is DENSE, and scored for those of its prompt to come */
    uint32_t indexed;    /* blocks whose index pages are there, in every layer */
    uint32_t listed;     /* blocks in the device's table of host blocks */
    bool listing;        /* more of them, to upload */
    bool summing;        /* the running pass adds to the scores of those of its prompt before it */
    bool tables_changed; /* of its hot set, since they were uploaded */
    bool tables_missing; /* of its hot set: the device has none yet */
    uint32_t dirty_first, dirty_end; /* rows of the page table to upload */
    struct pkvi_tier_state *state;   /* [layers]; sliding ones are not used */
};

/* A layer of a sequence that is pruned. Keys count its entries as they came: the prompt's rows that
 * entered the layer, then each that was generated; those before first_key are not there any more.
 */
struct pkvi_prune_layer {
    uint32_t rows; /* of the prompt */
    uint32_t first_key;
    struct pkvi_prune_state next;  /* behind the step `due`, which thins a zone out */
    struct pkvi_prune_state ahead; /* behind that of the next zone whose rows have not begun */
    uint32_t due, ahead_due;
};

struct pkvi_prune_seq {
    uint32_t prompt, step; /* tokens; the running pass's, 0 = the prompt's */
    bool first_keys_changed;
    uint32_t *recent;               /* [context_tokens + 1] of every step */
    struct pkvi_prune_layer *layer; /* [layers] */
};

/* One attention that is done twice (self_check.c). */
struct pkvi_tier_check {
    bool chosen;  /* the running pass has one: */
    bool waiting; /* its results are to be compared */
    uint32_t seq, layer, row, rows, lane;
    uint64_t passes;
    pkv_addr views;     /* struct pkv_kv_view [slots]: all sealed blocks are on the host */
    pkv_addr carry[2];  /* device: as it was, and from the host's copies */
    pkv_addr result;    /* pinned: both */
    uint64_t one_bytes; /* of one of them */
    /* of entries that were recalled: recall_check.c */
    bool recall;
    uint32_t span, tokens, ring_token; /* at the check */
    float scale, softcap;
    pkv_addr returned;                    /* pinned */
    float *p;                             /* [context + cap] */
    struct pkv_kv_layer_report *of_layer; /* [layers] what came of it so far */
};

struct pkvi_tier {
    struct pkv_device *device;
    struct pkvi_tier_config config;
    struct pkvi_tier_sizes sizes;
    struct pkvi_tier_layer *layer; /* [config.layers] */
    uint32_t *demote_order;        /* [global_layers] layer numbers */
    uint32_t row_entries;          /* of the page table: KV heads of all global layers */
    uint32_t slots; /* sequences that may be open: config.sequences on the device, and parked */
    uint32_t blocks_max, tail_pages;
    uint32_t *hot_pages;      /* [row_entries] pages of slots of every KV head; NULL: no policy */
    uint32_t hot_entries;     /* of a row of hot_table */
    uint64_t hot_state_bytes; /* of a share */
    uint64_t parking_slot_bytes;          /* at the end of a parking: slots and their state */
    uint64_t score_lane_bytes, lse_bytes; /* parts of sizes.score_bytes */
    uint64_t score_layer_bytes;           /* of a lane: the widest layer's */
    uint64_t recall_scratch_bytes, recall_check_bytes;
    bool recalls;      /* the policy does */
    bool recalling[2]; /* as of arrived: it is to be waited for */
    bool sums;         /* all rows of a prompt count, and it may come in several passes */
    /* Whose scores a lane has, of all rows of its prompt up to so many tokens; PKVI_NO_PLACE:
     * none. */
    struct {
        uint32_t seq, tokens;
    } scored[PKVI_TIER_LANES];
    uint32_t unit_bytes;         /* of a pool page: the largest layer's */
    uint32_t staging_head_pages; /* KV heads of the widest global layer */
    /* device memory */
    pkv_addr payload, tables; /* the two allocations */
    pkv_addr pool, staging, buffer, carry;
    pkv_addr views;           /* struct pkv_kv_view [layers][slots] */
    pkv_addr table;           /* pkv_addr [slots][blocks_max][row_entries] */
    pkv_addr picked_views;    /* struct pkv_kv_view [layers][slots], of sequences that pick */
    pkv_addr hot_table;       /* pkv_addr [slots][hot_entries]: pages by key */
    pkv_addr first_keys;      /* u32 [slots][row_entries] */
    pkv_addr least_keys;      /* u32 [row_entries] */
    pkv_addr block_table;     /* pkv_addr [slots][global layers][blocks_max] */
    pkv_addr hot_state;       /* [config.sequences] */
    pkv_addr scores;          /* f32 [lanes][global layers, if it sums][most kv_heads][context] */
    pkv_addr lse;             /* f32 [step_rows][most heads] */
    pkv_addr score_scratch;   /* of SCORE or PLACE */
    pkv_addr recall_scratch;  /* of PREDICT and RECALL */
    pkv_addr recall_count;    /* u32 [layers][most kv_heads]: entries brought so far */
    pkv_addr recall_returned; /* pinned: the same, as of the last pass that has ended */
    pkv_addr staging_tables;  /* pkv_addr [layers][slot][tile pages][kv_heads] */
    uint64_t staging_table_bytes; /* of a layer: both slots, the widest layer's heads */
    /* pinned: the same, for the host to write */
    pkv_addr upload;
    struct pkv_kv_view *host_views;
    pkv_addr *host_table;
    struct pkvi_places pages;  /* of the pool */
    struct pkvi_places blocks; /* of the arena */
    struct pkvi_host_arena *arena;
    struct pkvi_places shares;   /* of the device's memory: quota_pages and rings each */
    struct pkvi_places parkings; /* in parked_rings: [config.parked][sliding layers] */
    pkv_addr parked_rings;       /* pinned; 0 = there are none */
    struct pkvi_tier_seq *seq;   /* [slots] */
    struct pkvi_arena host;      /* its arrays, and all others above and below */
    /* the running pass */
    struct pkvi_tier_part *part; /* [config.sequences], of the selected lane */
    uint32_t part_count;
    struct pkvi_tier_part *lane_part[PKVI_TIER_LANES];
    uint32_t lane_count[PKVI_TIER_LANES], lane;
    /* movement: transfer.c */
    struct pkv_stream *compute, *load, *store, *recall;
    struct pkv_event *appended, *stored, *unparked;
    struct pkv_event *queried, *arrived[2]; /* arrived: of layers, in turn */
    struct pkv_event *loaded[PKVI_TIER_SLOTS], *attended[PKVI_TIER_SLOTS];
    struct pkv_event **tile_stored; /* [row tiles of a pass] */
    uint32_t row_tiles;
    struct pkv_span *spans; /* [PKVI_TIER_SPANS] */
    uint32_t next_slot;
    struct pkvi_tier_check check;
    struct pkvi_tier_meter meter[PKVI_TIER_METERS];
    uint32_t pass_tiles, meters_used, meter_stride; /* of the running pass; 0 = none are taken */
    bool metered;                                   /* the tile at hand is */
    bool stores_pending, stores_running;
    bool left_unstored; /* a cut left pages that STORE may still be reading */
    const struct pkv_kernel *append_kernel, *attend_kernel;
    const struct pkv_kernel *score_kernel, *place_kernel, *compete_kernel;  /* with a policy */
    const struct pkv_kernel *index_kernel, *predict_kernel, *recall_kernel; /* that recalls */
    /* with a policy that prunes: prune.c */
    const struct pkv_prune *prune;    /* NULL: none */
    struct pkvi_prune_seq *prune_seq; /* [slots], and one for plans */
    uint32_t *prune_rows;             /* [layers] of the prompt that runs, or of a plan */
    pkv_addr prune_index;             /* i32 [context]: rows that go on behind the layer at hand */
    pkv_addr prune_scratch;           /* f32 [context] */
    pkv_addr prune_zeros;             /* f32 [zone] */
    const struct pkv_kernel *keep_kernel, *thin_kernel;
    struct pkv_kv_report report;
};

/* tier.c: all arrays of the host but places; on a measuring arena their bytes. */
void pkvi_tier_lay_out_host(struct pkvi_tier *tier, struct pkvi_arena *arena);
void pkvi_tier_write_views(struct pkvi_tier *tier, uint32_t seq);
/* Where a sequence's pages of a layer are, whatever pass runs. */
struct pkv_kv_view pkvi_tier_view(const struct pkvi_tier *tier, uint32_t seq, uint32_t layer);
/* What the last pass kept stands in the page table instead of the buffer. */
void pkvi_tier_settle(struct pkvi_tier *tier, uint32_t seq);
/* Pages for a pass's rows in one layer. */
enum pkv_status pkvi_tier_prepare_streamed(struct pkvi_tier *tier,
                                           const struct pkvi_tier_part *part, uint32_t layer);
enum pkv_status pkvi_tier_prepare_dense(struct pkvi_tier *tier, const struct pkvi_tier_part *part,
                                        uint32_t layer);
/* The block that rows go on in, if a fork has it too: a copy. */
enum pkv_status pkvi_tier_own_open_page(struct pkvi_tier *tier, const struct pkvi_tier_part *part,
                                        uint32_t layer);

/* pages.c */
/* PKV_ERR_STATE: all are taken. */
enum pkv_status pkvi_page_take(struct pkvi_tier *tier, pkv_addr *page_out);
/* One owner more; an address outside the pool is left alone, as below. */
void pkvi_page_retain(struct pkvi_tier *tier, pkv_addr page);
bool pkvi_page_shared(const struct pkvi_tier *tier, pkv_addr page);
void pkvi_page_release(struct pkvi_tier *tier, pkv_addr *page); /* *page = 0 */
/* Give back a layer's pages of the blocks [first, end). */
void pkvi_pages_drop(struct pkvi_tier *tier, uint32_t seq, uint32_t layer, uint32_t first,
                     uint32_t end);
/* Pages for the blocks [first, end) where there are none. */
enum pkv_status pkvi_pages_add(struct pkvi_tier *tier, uint32_t seq, uint32_t layer, uint32_t first,
                               uint32_t end);
/* A row of the page table that the next pass uploads. */
void pkvi_pages_dirty(struct pkvi_tier_seq *seq, uint32_t block);

/* budget.c */
/* Mark the layers that must be STREAMED once the sequence has so many tokens. */
void pkvi_tier_demote(struct pkvi_tier *tier, uint32_t seq, uint32_t tokens);
/* sizes, blocks_max, tail_pages, unit_bytes, row_entries of tier->config; allocates nothing. */
enum pkv_status pkvi_tier_measure(struct pkvi_tier *tier);
/* Global layers in the order in which they leave the device; free() it. */
enum pkv_status pkvi_tier_order(const struct pkvi_tier_config *config, uint32_t **order_out);

/* hot_budget.c */
/* PKV_ERR_INVALID: what of the policy's recipe, or of the shape, cannot be. */
enum pkv_status pkvi_hot_check_recipe(const struct pkvi_tier_config *config);
/* Pages of ring and slots that so many bytes buy a sequence, ->hot_pages, sizes. PKV_ERR_RANGE,
 * without words: fewer than pkvi_hot_least_bytes(). */
enum pkv_status pkvi_hot_measure(struct pkvi_tier *tier, uint64_t bytes);
uint64_t pkvi_hot_least_bytes(const struct pkvi_tier *tier);
/* From ->hot_pages: places in tables and states, also of ->layer once it is there. */
void pkvi_hot_describe(struct pkvi_tier *tier);

/* hot_set.c */
/* Do so many tokens of a sequence make it HOT? */
bool pkvi_hot_wanted(const struct pkvi_tier *tier, uint32_t tokens);
/* A pass begins: its pages; which of exact, decode and DENSE it is. */
enum pkv_status pkvi_hot_prepare(struct pkvi_tier *tier, const struct pkvi_tier_part *part);
struct pkv_kv_view pkvi_hot_view(const struct pkvi_tier *tier, uint32_t seq, uint32_t layer);
struct pkvi_copies;
enum pkv_status pkvi_hot_upload(struct pkvi_copies *copies, uint32_t seq);
/* Behind the attention of a row tile. */
enum pkv_status pkvi_hot_attended(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);
/* A hot set and what stands beside it goes to a parking; then its slots are given back; then it
 * comes again. A fork gets a copy. */
enum pkv_status pkvi_hot_park(struct pkvi_copies *copies, uint32_t seq, uint32_t parking);
void pkvi_hot_parked(struct pkvi_tier *tier, uint32_t seq);
enum pkv_status pkvi_hot_unpark(struct pkvi_copies *copies, uint32_t seq, uint32_t parking);
enum pkv_status pkvi_hot_fork(struct pkvi_tier *tier, uint32_t from, uint32_t to);
/* Does a cut to so many tokens leave the hot set as it is: slots, and a ring that is two pages
 * short at most? */
bool pkvi_hot_survives(const struct pkvi_tier *tier, uint32_t seq, uint32_t tokens);
/* Its slots are given back; the next pass that needs them fills them anew. */
void pkvi_hot_forget(struct pkvi_tier *tier, uint32_t seq);
void pkvi_hot_write_least(struct pkvi_tier *tier);
/* The running pass has ended: its scores are whole. A sequence was cut, or closed: its scores go.
 */
void pkvi_hot_scored(struct pkvi_tier *tier);
void pkvi_hot_unscore(struct pkvi_tier *tier, uint32_t seq);

/* hot_budget.c: does the policy recall? Channels of a layer's index. */
bool pkvi_hot_recalls(const struct pkvi_tier_config *config);
uint32_t pkvi_hot_index_channels(const struct pkv_recipe *recipe,
                                 const struct pkv_layer_info *info);

/* recall.c */
/* A pass begins: index pages that are missing, from host blocks. */
enum pkv_status pkvi_recall_index_missing(struct pkvi_tier *tier,
                                          const struct pkvi_tier_part *part);
/* Rows have attended: blocks that are full now are indexed, queries kept. */
enum pkv_status pkvi_recall_attended(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);
/* Slots of a layer were filled anew: by the last row of this span. */
enum pkv_status pkvi_recall_start(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows,
                                  uint32_t span);
/* A pass ends: what was brought so far comes back with it. Into a report, as of the last one that
 * has ended on the device. */
enum pkv_status pkvi_recall_end(struct pkvi_tier *tier);
void pkvi_recall_report(struct pkvi_tier *tier, struct pkv_kv_report *report_out);
/* Device table of host blocks: those before the ring. */
void pkvi_recall_write_blocks(struct pkvi_tier *tier, uint32_t seq, uint32_t layer, uint32_t first,
                              uint32_t end);

/* recall_check.c: pinned bytes for one check; what it needs comes back; and is looked at, by what
 * attention over everything came to, [heads]. */
uint64_t pkvi_recall_check_bytes(const struct pkv_layer_info *info,
                                 const struct pkv_recall_state *state);
enum pkv_status pkvi_recall_check_return(struct pkvi_copies *copies,
                                         const struct pkvi_tier_rows *rows);
void pkvi_recall_check_compare(struct pkvi_tier *tier, const float *largest, const float *sum);

/* prune.c */
/* PKV_ERR_INVALID, PKV_ERR_UNSUPPORTED: what of the policy, the config or the layers cannot be. */
enum pkv_status pkvi_prune_check(const struct pkvi_tier_config *config);
/* Pages, and what stands beside them, into ->sizes. */
enum pkv_status pkvi_prune_measure(struct pkvi_tier *tier);
uint64_t pkvi_prune_tables_bytes(const struct pkvi_tier *tier);
void pkvi_prune_describe(struct pkvi_tier *tier);
void pkvi_prune_lay_out_host(struct pkvi_tier *tier, struct pkvi_arena *arena);
/* Its tables in ->tables from *top on, and its part of ->scores. */
void pkvi_prune_lay_out(struct pkvi_tier *tier, pkv_addr *top);
struct pkv_kv_view pkvi_prune_view(const struct pkvi_tier *tier, uint32_t seq, uint32_t layer);
enum pkv_status pkvi_prune_prepare(struct pkvi_tier *tier, const struct pkvi_tier_part *part);
enum pkv_status pkvi_prune_upload(struct pkvi_copies *copies, uint32_t seq);
enum pkv_status pkvi_prune_attend(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);

/* transfer.c: the only file that enqueues writes of K and V. */
struct pkvi_copies {
    struct pkvi_tier *tier;
    struct pkv_stream *stream;
    uint32_t count;
    uint64_t bytes;
};
enum pkv_status pkvi_copies_add(struct pkvi_copies *copies, pkv_addr dst, pkv_addr src,
                                uint64_t bytes);
enum pkv_status pkvi_copies_flush(struct pkvi_copies *copies);
enum pkv_status pkvi_transfer_open(struct pkvi_tier *tier);
void pkvi_transfer_close(struct pkvi_tier *tier);
enum pkv_status pkvi_transfer_append(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);
/* Entries into slots: of a prompt, of the ring. */
enum pkv_status pkvi_transfer_place(struct pkvi_tier *tier, const struct pkv_args_place *args);
enum pkv_status pkvi_transfer_compete(struct pkvi_tier *tier, const struct pkv_args_compete *args);
/* On RECALL, once COMPUTE has made the query (NULL: that alone); then entries from host blocks to
 * slots. COMPUTE waits for those of a layer. */
enum pkv_status pkvi_transfer_predict(struct pkvi_tier *tier, const struct pkv_args_predict *args);
enum pkv_status pkvi_transfer_recall(struct pkvi_tier *tier, uint32_t layer,
                                     const struct pkv_args_recall *args);
enum pkv_status pkvi_transfer_await_recall(struct pkvi_tier *tier, uint32_t layer);
/* Entries of a zone, and those from the front that fill its holes. */
enum pkv_status pkvi_transfer_thin(struct pkvi_tier *tier, const struct pkv_args_thin *args);
/* Blocks of a row tile in the buffer, or at the end of a pass of all other layers. */
enum pkv_status pkvi_transfer_store_tile(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);
enum pkv_status pkvi_transfer_store_pass(struct pkvi_tier *tier);
/* Last pages of a buffered layer to pages of its own. */
enum pkv_status pkvi_transfer_keep(struct pkvi_tier *tier, uint32_t layer);
/* A pass begins: what the meters of the last one say goes into the report. */
enum pkv_status pkvi_transfer_read_meters(struct pkvi_tier *tier);
/* Have stores arrived? Does not wait. */
enum pkv_status pkvi_transfer_poll(struct pkvi_tier *tier);
/* Wait for all of them. */
enum pkv_status pkvi_transfer_settle_stores(struct pkvi_tier *tier);
/* Wait until the first `blocks` blocks have. */
enum pkv_status pkvi_transfer_publish(struct pkvi_tier *tier, struct pkvi_tier_state *state,
                                      uint32_t blocks);
/* Blocks [first, first + count) to a staging slot. */
enum pkv_status pkvi_transfer_load(struct pkvi_tier *tier, const struct pkvi_tier_state *state,
                                   uint32_t layer, uint32_t first, uint32_t count, uint32_t slot);
enum pkv_status pkvi_transfer_loaded(struct pkvi_tier *tier, uint32_t slot);
enum pkv_status pkvi_transfer_attended(struct pkvi_tier *tier, uint32_t slot);
/* Pages [first, end) of a layer to or from the host blocks of a sequence: `copies` says on which
 * stream. */
enum pkv_status pkvi_transfer_blocks(struct pkvi_copies *copies, uint32_t seq, uint32_t layer,
                                     uint32_t first, uint32_t end, bool load);
/* Rings of a share to another one; from a share to a parking, or back. */
enum pkv_status pkvi_transfer_fork_rings(struct pkvi_tier *tier, uint32_t from, uint32_t to);
enum pkv_status pkvi_transfer_park_rings(struct pkvi_copies *copies, uint32_t share,
                                         uint32_t parking, bool load);
/* STORE goes on, or LOAD, when COMPUTE has done what it was given. */
enum pkv_status pkvi_transfer_after_compute(struct pkvi_tier *tier, struct pkv_stream *stream);
/* COMPUTE, and what waits for it, goes on when STORE has read the pages that a cut left. */
enum pkv_status pkvi_transfer_before_reuse(struct pkvi_tier *tier);
/* STORE writes to a parking only after it was read. */
enum pkv_status pkvi_transfer_before_park(struct pkvi_tier *tier);
/* The loads of a sequence are enqueued; COMPUTE waits for them before it is touched again. */
enum pkv_status pkvi_transfer_arriving(struct pkvi_tier *tier, uint32_t seq);
enum pkv_status pkvi_transfer_arrived(struct pkvi_tier *tier, uint32_t seq);

/* stream_attend.c */
enum pkv_status pkvi_stream_attend(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows,
                                   uint32_t span);
/* The same with these views, whose first `pages` pages come from the host, into `carry`. */
enum pkv_status pkvi_stream_carry(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows,
                                  uint32_t span, pkv_addr views, uint32_t pages, pkv_addr carry);

/* SCORE of one span of the rows that have attended: all but what is to be done with it. */
struct pkv_args_score pkvi_score_args(const struct pkvi_tier *tier,
                                      const struct pkvi_tier_rows *rows, uint32_t span);
/* SCORE of one span over all its keys, those on the host through staging. */
enum pkv_status pkvi_stream_score(struct pkvi_tier *tier, const struct pkv_args_score *args,
                                  uint32_t seq, uint32_t layer);

/* self_check.c: a pass begins; its layer has attended; the next one begins. */
void pkvi_check_choose(struct pkvi_tier *tier);
enum pkv_status pkvi_check_attend(struct pkvi_tier *tier, const struct pkvi_tier_rows *rows);
void pkvi_check_compare(struct pkvi_tier *tier);

/* Views of a layer's hot sets that were picked in the running pass. */
static inline pkv_addr pkvi_hot_picked(const struct pkvi_tier *tier, uint32_t layer)
{
    return tier->picked_views + (uint64_t)layer * tier->slots * sizeof(struct pkv_kv_view);
}

static inline uint64_t pkvi_recall_count_bytes(const struct pkvi_tier *tier)
{
    return tier->recalls
               ? (uint64_t)tier->config.layers * tier->staging_head_pages * sizeof(uint32_t)
               : 0;
}

/* Pages of a layer that the running pass attends to and that are not on the device. */
static inline uint32_t pkvi_tier_host_pages(const struct pkvi_tier *tier, uint32_t seq,
                                            uint32_t layer)
{
    return tier->seq[seq].hot ? 0 : tier->seq[seq].state[layer].first_page;
}

/* Row of the page table, in the host's copy: [row_entries]. */
static inline pkv_addr *pkvi_tier_row(const struct pkvi_tier *tier, uint32_t seq, uint32_t block)
{
    return tier->host_table + ((uint64_t)seq * tier->blocks_max + block) * tier->row_entries;
}

/* The pinned twin of a table, or of something in one. */
static inline void *pkvi_tier_uploaded(const struct pkvi_tier *tier, pkv_addr device)
{
    return (void *)(uintptr_t)(tier->upload + (device - tier->tables));
}

/* u32 [kv_heads]: where a sequence's keys of a layer begin. */
static inline pkv_addr pkvi_tier_first_keys(const struct pkvi_tier *tier, uint32_t seq,
                                            uint32_t layer)
{
    return tier->first_keys +
           ((uint64_t)seq * tier->row_entries + tier->layer[layer].head_base) * sizeof(uint32_t);
}

/* Device table of a sequence's host blocks in the global layer of this number: [blocks_max]. */
static inline pkv_addr pkvi_hot_blocks(const struct pkvi_tier *tier, uint32_t seq, uint32_t number)
{
    return tier->block_table + ((uint64_t)seq * tier->sizes.global_layers + number) *
                                   tier->blocks_max * sizeof(pkv_addr);
}

static inline pkv_addr pkvi_host_block_addr(const struct pkvi_tier *tier, uint32_t block)
{
    return pkvi_host_arena_block(tier->arena, block).addr;
}

#endif
