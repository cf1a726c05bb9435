/* attend_plan.c: cutting attention into units, and its scratch. Knows no instruction set. */
#include "kernels/attend_plan.h"

#include <string.h>

#include "kernels/addr.h"
#include "kernels/kv_view.h"

/* A worker's tile stays in a second-level cache of 512 KiB, beside the split it reads. */
#define TILE_BYTES (288u * 1024u)
/* A tile is divided where it is more than this part of what a thread has to do in all, */
#define TILES_PER_THREAD 4u
/* and into units of this part, so that no thread waits long for the last one. */
#define UNITS_PER_THREAD 16u
/* Scratch is asked for to divide tiles of so many rows; there are enough larger ones. */
#define PARTIAL_ROWS 16u
#define PARTIAL_BYTES_MOST (64u << 20)

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes of a row head in a tile: its scores, q, values of the split and of all, maxima and sums. */
static uint64_t row_head_bytes(uint32_t head_dim)
{
    uint64_t floats = PKV_SCORE_STRIDE + 3 * (uint64_t)pkvi_attend_padded(head_dim) + 4;
    return floats * sizeof(float);
}

/* The least number of rows whose row heads fill whole blocks. */
static uint32_t whole_rows(uint32_t group)
{
    uint32_t rows = 1;
    while (rows * group % PKV_ATTEND_BLOCK != 0) {
        rows++;
    }
    return rows;
}

uint32_t pkvi_attend_tile_rows(uint32_t group, uint32_t head_dim)
{
    uint32_t rows = (uint32_t)(TILE_BYTES / row_head_bytes(head_dim) / group);
    uint32_t whole = whole_rows(group);
    return rows > whole ? rows / whole * whole : rows > 0 ? rows : 1;
}

uint64_t pkvi_attend_worker_bytes(uint32_t group, uint32_t head_dim)
{
    /* Plain reference: one split of K and V, and the values of one split and of every head. */
    uint64_t plain = (uint64_t)head_dim * (2 * PKV_SPLIT_KEYS + 1 + group) + 2 * (uint64_t)group;
    /* Vectors: a tile, and two panels of 16 keys or one of 16 channels. */
    uint64_t row_heads =
        round_up((uint64_t)pkvi_attend_tile_rows(group, head_dim) * group, PKV_ATTEND_BLOCK);
    uint64_t panel_rows = pkvi_attend_panel_rows(head_dim);
    uint64_t ranges = 2 * row_heads;
    uint64_t vectors =
        row_heads * row_head_bytes(head_dim) / sizeof(float) + 16 * panel_rows + ranges;
    return round_up((plain > vectors ? plain : vectors) * sizeof(float), 64) + 512;
}

/* Bytes of the partials of one KV head. */
static uint64_t partial_bytes(uint64_t splits, uint64_t row_heads, uint32_t head_dim)
{
    uint64_t floats = splits * row_heads * (2 + (uint64_t)pkvi_attend_padded(head_dim));
    return round_up(64 + floats * sizeof(float), 64);
}

uint64_t pkvi_attend_scratch_bytes(uint32_t max_rows, uint32_t max_keys, uint32_t heads,
                                   uint32_t kv_heads, uint32_t head_dim, uint32_t threads)
{
    uint32_t group = heads / kv_heads;
    uint64_t tiles = (uint64_t)max_rows * kv_heads, divided = (uint64_t)TILES_PER_THREAD * threads;
    uint64_t rows = max_rows < PARTIAL_ROWS ? max_rows : PARTIAL_ROWS;
    uint64_t splits = (uint64_t)max_keys / PKV_SPLIT_KEYS + 1;
    uint64_t partials =
        (divided < tiles ? divided : tiles) * partial_bytes(splits, rows * group, head_dim);
    return threads * pkvi_attend_worker_bytes(group, head_dim) +
           round_up(max_rows * sizeof(struct pkvi_attend_item), 64) +
           (partials < PARTIAL_BYTES_MOST ? partials : PARTIAL_BYTES_MOST);
}

uint64_t pkvi_attend_carry_bytes(uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    return (uint64_t)rows * heads * (2 + (uint64_t)head_dim) * sizeof(float);
}

/* Tiles of a span, the longest first: units are handed out in order. */
static void add_span(const struct pkv_row_span *span, struct pkvi_attend_plan *plan)
{
    const struct pkv_args_attend *args = plan->args;
    uint32_t group = args->heads / args->kv_heads, whole = whole_rows(group);
    uint32_t most = pkvi_attend_tile_rows(group, args->head_dim);
    uint32_t first_key =
        pkvi_span_key(PKV_AT(const struct pkv_kv_view, args->views) + span->view, span);
    uint32_t tiles = (span->rows + most - 1) / most;
    uint32_t rows = tiles > 0 ? (span->rows + tiles - 1) / tiles : 0;
    if (rows > whole) {
        rows = (uint32_t)round_up(rows, whole);
        tiles = (span->rows + rows - 1) / rows;
    }
    for (uint32_t tile = tiles; tile-- > 0;) {
        uint32_t first_row = tile * rows;
        uint32_t count = span->rows - first_row < rows ? span->rows - first_row : rows;
        uint32_t position = first_key + first_row;
        struct pkvi_keys keys = pkvi_attend_keys(args, position, position + count - 1);
        uint32_t first_split = keys.begin / PKV_SPLIT_KEYS;
        uint32_t splits =
            keys.begin < keys.end ? (keys.end - 1) / PKV_SPLIT_KEYS + 1 - first_split : 0;
        plan->items[plan->item_count++] = (struct pkvi_attend_item){
            .span = span,
            .first_row = first_row,
            .rows = count,
            .first_split = first_split,
            .splits = splits,
            .chunk_splits = splits,
            .chunks = 1,
        };
    }
}

/* Cut the tiles that are more than their share, as long as there is scratch for their partials. */
static void divide(struct pkvi_attend_plan *plan, pkv_addr scratch, uint64_t bytes)
{
    const struct pkv_args_attend *args = plan->args;
    uint64_t total = 0, threads = plan->threads;
    for (uint32_t i = 0; i < plan->item_count; i++) {
        total += (uint64_t)plan->items[i].splits * plan->items[i].rows * args->kv_heads;
    }
    for (uint32_t i = 0; threads > 1 && i < plan->item_count; i++) {
        struct pkvi_attend_item *item = &plan->items[i];
        uint64_t chunk_splits = total / threads / UNITS_PER_THREAD / item->rows;
        chunk_splits = chunk_splits > 0 ? chunk_splits : 1;
        bool large = (uint64_t)item->splits * item->rows * TILES_PER_THREAD * threads > total;
        uint32_t row_heads = item->rows * (args->heads / args->kv_heads);
        uint64_t needed = args->kv_heads * partial_bytes(item->splits, row_heads, args->head_dim);
        if (large && chunk_splits < item->splits && needed <= bytes) {
            item->partial = scratch;
            item->chunk_splits = (uint32_t)chunk_splits;
            item->chunks = (item->splits + item->chunk_splits - 1) / item->chunk_splits;
            scratch += needed;
            bytes -= needed;
        }
    }
}

void pkvi_attend_plan(const struct pkv_args_attend *args, uint32_t threads,
                      struct pkvi_attend_plan *plan_out)
{
    uint64_t worker_bytes = pkvi_attend_worker_bytes(args->heads / args->kv_heads, args->head_dim);
    uint64_t item_bytes = round_up(args->rows * sizeof(struct pkvi_attend_item), 64);
    uint64_t used = threads * worker_bytes + item_bytes;
    *plan_out = (struct pkvi_attend_plan){
        .args = args,
        .items = PKV_AT(struct pkvi_attend_item, args->scratch + threads * worker_bytes),
        .worker_bytes = worker_bytes,
        .threads = threads,
    };
    for (uint32_t i = 0; i < args->span_count; i++) {
        add_span(PKV_AT(const struct pkv_row_span, args->spans) + i, plan_out);
    }
    divide(plan_out, args->scratch + used,
           args->scratch_bytes > used ? args->scratch_bytes - used : 0);
    for (uint32_t i = 0; i < plan_out->item_count; i++) {
        struct pkvi_attend_item *item = &plan_out->items[i];
        item->first_unit = plan_out->unit_count;
        plan_out->unit_count += item->chunks * args->kv_heads;
        for (uint32_t head = 0; item->partial && head < args->kv_heads; head++) {
            atomic_init(pkvi_attend_partial(plan_out, item, head).done, 0);
        }
    }
}

struct pkvi_attend_unit pkvi_attend_unit(const struct pkvi_attend_plan *plan, uint32_t unit)
{
    uint32_t low = 0, high = plan->item_count; /* items[low].first_unit <= unit */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (plan->items[middle].first_unit <= unit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const struct pkvi_attend_item *item = &plan->items[low];
    uint32_t local = unit - item->first_unit;
    uint32_t first = local % item->chunks * item->chunk_splits, left = item->splits - first;
    return (struct pkvi_attend_unit){
        .item = item,
        .kv_head = local / item->chunks,
        .first_split = item->first_split + first,
        .splits = left < item->chunk_splits ? left : item->chunk_splits,
    };
}

struct pkvi_attend_partial pkvi_attend_partial(const struct pkvi_attend_plan *plan,
                                               const struct pkvi_attend_item *item,
                                               uint32_t kv_head)
{
    const struct pkv_args_attend *args = plan->args;
    uint64_t row_heads = (uint64_t)item->rows * (args->heads / args->kv_heads);
    pkv_addr base =
        item->partial + kv_head * partial_bytes(item->splits, row_heads, args->head_dim);
    float *max = PKV_AT(float, base + 64);
    float *sum = max + item->splits * row_heads;
    return (struct pkvi_attend_partial){PKV_AT(_Atomic uint32_t, base), max, sum,
                                        sum + item->splits * row_heads};
}
