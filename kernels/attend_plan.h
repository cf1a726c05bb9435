/*
 * attend_plan.h: how attention is cut into units, and its scratch memory.
 *
 * A tile is some consecutive rows of one span with all query heads of one KV head; its rows read
 * K and V together. A unit is a tile, or, where there are too few tiles for the threads, some
 * splits of one: the values of each split then wait in scratch until the last unit of the tile
 * merges them. Where the cuts are has no influence on the results.
 */
#ifndef PKV_ATTEND_PLAN_H
#define PKV_ATTEND_PLAN_H

#include <stdatomic.h>

#include "kernels/kernels.h"

/* Row heads (a row of the step, one query head) are handled in blocks; padded to this many. */
#define PKV_ATTEND_BLOCK 12u
/* Floats from one row head's scores to the next: a split, and what keeps cache sets apart. */
#define PKV_SCORE_STRIDE (PKV_SPLIT_KEYS + 16u)

/* Rows of a span, for every KV head. */
struct pkvi_attend_item {
    const struct pkv_row_span *span;
    uint32_t first_row, rows;     /* of the span */
    uint32_t first_split, splits; /* 0 where none of its keys is in the launch's range */
    uint32_t first_unit;
    uint32_t chunk_splits, chunks; /* splits in a unit, units of one KV head */
    pkv_addr partial;              /* 0 where chunks is 1 */
};

struct pkvi_attend_plan {
    const struct pkv_args_attend *args;
    struct pkvi_attend_item *items;
    uint32_t item_count, unit_count, threads;
    uint64_t worker_bytes; /* of scratch, from its start */
};

struct pkvi_attend_unit {
    const struct pkvi_attend_item *item;
    uint32_t kv_head, first_split, splits;
};

/* Where a tile's divided splits are kept, for one KV head. */
struct pkvi_attend_partial {
    _Atomic uint32_t *done; /* units finished so far */
    float *max;             /* [splits][row heads] */
    float *sum;             /* [splits][row heads] */
    float *values;          /* [splits][row heads][padded head_dim] */
};

/* Channels of a head in whole vectors. */
static inline uint32_t pkvi_attend_padded(uint32_t head_dim)
{
    return (head_dim + 15u) / 16u * 16u;
}

/* Rows of 16 floats in the room for panels: two of K, or one of V. */
static inline uint32_t pkvi_attend_panel_rows(uint32_t head_dim)
{
    return 2 * head_dim > PKV_SPLIT_KEYS ? 2 * head_dim : PKV_SPLIT_KEYS;
}

/* Rows of a span that share a tile at most. */
uint32_t pkvi_attend_tile_rows(uint32_t group, uint32_t head_dim);

/* Scratch that one worker needs, whatever the variant; a multiple of 64. */
uint64_t pkvi_attend_worker_bytes(uint32_t group, uint32_t head_dim);

/* Items and partials go into the arguments' scratch. */
void pkvi_attend_plan(const struct pkv_args_attend *args, uint32_t threads,
                      struct pkvi_attend_plan *plan_out);
struct pkvi_attend_unit pkvi_attend_unit(const struct pkvi_attend_plan *plan, uint32_t unit);
struct pkvi_attend_partial pkvi_attend_partial(const struct pkvi_attend_plan *plan,
                                               const struct pkvi_attend_item *item,
                                               uint32_t kv_head);

#endif
