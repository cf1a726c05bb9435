/*
 * attend.c: causal attention in the canonical order of kernels.h, one code for prompt and decode.
 *
 * For a tile (some rows, the query heads of one KV head) and a split of its keys: K goes 16 keys
 * at a time into a panel whose lanes are keys, from which every block of row heads takes its
 * scores; then the softmax of each row head; then V goes 16 channels at a time into a panel whose
 * lanes are channels. A row head's arithmetic is the same whatever else is in its tile: keys that
 * only its neighbours see weigh exactly 0. (So an infinite V would reach the rows just before it.)
 * Source: Dao, FlashAttention-2, arXiv:2307.08691; Dao et al., Flash-Decoding (divided keys).
 */
#include <math.h>

#include "kernels/attend_plan.h"
#include "kernels/cost.h"
#include "kernels/cpu/act.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/attend_few.h"
#include "kernels/cpu/kv_panel.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/product.h"
#include "kernels/kv_view.h"
#include "runtime/base/thread.h"

/* Keys of a split that a row head sees: counted from the split's first, none where begin >= end. */
struct range {
    uint32_t begin, end;
};

/* Attention over some keys: for each row head the largest score, the sum of exp(score - max),
 * and the values weighted so. */
struct partial {
    float *max, *sum;
    float *values; /* [row heads][padded] */
};

struct tile {
    const struct pkv_args_attend *args;
    const struct pkv_kv_view *view;
    uint32_t kv_head, group, row_heads, block_rows, padded, entry_bytes;
    uint32_t row, rows; /* of the step */
    uint32_t position;  /* key of the first one */
    uint32_t first_key; /* of the KV head */
    /* worker's scratch */
    float *panel;  /* K: [2][head_dim][16]; V: [PKV_SPLIT_KEYS][16] */
    float *q;      /* [blocks][head_dim][PKV_BLOCK_ROWS] */
    float *scores; /* [row heads][PKV_SCORE_STRIDE] */
    struct partial split, total;
    struct range *ranges; /* of the blocks in the split at hand */
    struct ahead *ahead;
};

/* The entry of the key at `position`. */
static const uint8_t *entry_of(const struct tile *tile, uint32_t position)
{
    return pkvi_kv_entry_or_tile(tile->view, &tile->args->tile, tile->kv_head, position,
                                 tile->entry_bytes);
}

static uint32_t block_count(const struct tile *tile)
{
    return (tile->row_heads + PKV_BLOCK_ROWS - 1) / PKV_BLOCK_ROWS;
}

/* Row heads of a block: the last one may be smaller. */
static uint32_t block_rows(const struct tile *tile, uint32_t block)
{
    uint32_t left = tile->row_heads - block * tile->block_rows;
    return left < tile->block_rows ? left : tile->block_rows;
}

static struct range range_of_row(const struct tile *tile, uint32_t base, uint32_t row)
{
    uint32_t position = tile->position + row;
    uint32_t first = pkvi_first_key(position, tile->args->window);
    struct range range = {0, 0};
    first = first > tile->first_key ? first : tile->first_key;
    if (position >= base) {
        range.begin = first <= base                   ? 0
                      : first - base < PKV_SPLIT_KEYS ? first - base
                                                      : PKV_SPLIT_KEYS;
        range.end = position - base < PKV_SPLIT_KEYS ? position - base + 1 : PKV_SPLIT_KEYS;
    }
    return range;
}

/* Keys that any row of a block sees; later rows begin and end later. */
static struct range range_of_block(const struct tile *tile, uint32_t base, uint32_t block)
{
    uint32_t first = block * tile->block_rows, last = first + block_rows(tile, block) - 1;
    struct range low = range_of_row(tile, base, first / tile->group);
    struct range high = range_of_row(tile, base, last / tile->group);
    return (struct range){low.begin, high.end};
}

/* Row of the step and query head of a row head. */
static uint32_t row_of(const struct tile *tile, uint32_t row_head)
{
    return tile->row + row_head / tile->group;
}

static uint32_t head_of(const struct tile *tile, uint32_t row_head)
{
    return tile->kv_head * tile->group + row_head % tile->group;
}

/* q of the tile, blocks of row heads side by side. */
static void pack_queries(const struct tile *tile)
{
    const struct pkv_args_attend *args = tile->args;
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        const float *q = PKV_AT(const float, args->q) + (uint64_t)row_of(tile, i) * args->q_stride +
                         (uint64_t)head_of(tile, i) * args->head_dim;
        float *out = tile->q + (uint64_t)(i / tile->block_rows) * PKV_BLOCK_ROWS * args->head_dim +
                     i % tile->block_rows;
        for (uint32_t channel = 0; channel < args->head_dim; channel++) {
            out[channel * PKV_BLOCK_ROWS] = q[channel];
        }
    }
}

/* q.k of one block with 16 keys. */
static void score_block(const struct tile *tile, uint32_t block, uint32_t key, const float *panel)
{
    uint64_t first = (uint64_t)block * tile->block_rows;
    uint32_t head_dim = tile->args->head_dim;
    product(block_rows(tile, block), 1, PKV_BLOCK_ROWS,
            tile->q + (uint64_t)block * PKV_BLOCK_ROWS * head_dim, panel, head_dim,
            tile->scores + first * PKV_SCORE_STRIDE + key, PKV_SCORE_STRIDE);
}

/* q.k of every block with the keys it sees, and some more up to whole pages: two panels, so that a
 * block's q comes from the second-level cache once for both. */
static void score_keys(const struct tile *tile, uint32_t base, struct range all)
{
    const struct pkv_args_attend *args = tile->args;
    uint32_t lines = ahead_lines(tile->entry_bytes, 2 * PKV_SPLIT_KEYS / PKV_PAGE_TOKENS);
    float *second = tile->panel + 16 * args->head_dim;
    for (uint32_t key = all.begin / PKV_PAGE_TOKENS * PKV_PAGE_TOKENS; key < all.end;
         key += PKV_PAGE_TOKENS) {
        const uint8_t *entry = entry_of(tile, base + key);
        if (few_scores(args->kv_type, tile->row_heads, entry, tile->entry_bytes, args->head_dim,
                       tile->q, tile->scores + key, tile->ahead)) {
            continue;
        }
        fetch_ahead(tile->ahead, lines);
        kv_keys(args->kv_type, entry, tile->entry_bytes, args->head_dim, tile->panel);
        kv_keys(args->kv_type, entry + 16 * tile->entry_bytes, tile->entry_bytes, args->head_dim,
                second);
        for (uint32_t block = 0; block < block_count(tile); block++) {
            struct range range = tile->ranges[block];
            if (range.begin < key + 16 && range.end > key) {
                score_block(tile, block, key, tile->panel);
            }
            if (range.begin < key + 32 && range.end > key + 16) {
                score_block(tile, block, key + 16, second);
            }
        }
    }
}

static void cap(float *score, struct range panels, float scale, float softcap)
{
    struct v16 inner = v16_set1(scale / softcap), outer = v16_set1(softcap);
    for (uint32_t key = panels.begin; key < panels.end; key += 16) {
        struct v16 s = v16_tanh(v16_mul(v16_load(score + key), inner));
        v16_store(score + key, v16_mul(s, outer));
    }
}

/* Scores of what are no keys of the row become -inf. */
static void hide(float *score, struct range panels, struct range row)
{
    for (uint32_t key = panels.begin; key < panels.end; key += 16) {
        if (key < row.begin || key + 16 > row.end) {
            uint32_t begin = row.begin > key ? row.begin - key : 0;
            uint32_t end = row.end > key ? row.end - key : 0;
            struct v16 none = v16_set1(-INFINITY);
            v16_store(score + key, v16_where_lanes(begin, end, v16_load(score + key), none));
        }
    }
}

/* Scores of one row head become weights exp(score - max); those of no key of its own become 0. */
static void softmax(const struct pkv_args_attend *args, float *score, struct range block,
                    struct range row, float *max_out, float *sum_out)
{
    struct range panels = {block.begin / 16 * 16, (block.end + 15) / 16 * 16};
    float factor = args->softcap > 0 ? 1.0f : args->scale;
    if (args->softcap > 0) {
        cap(score, panels, args->scale, args->softcap);
    }
    hide(score, panels, row);
    struct v16 largest = v16_set1(-INFINITY), sum = v16_set1(0.0f), scale = v16_set1(factor);
    for (uint32_t key = panels.begin; key < panels.end; key += 16) {
        largest = v16_max(largest, v16_load(score + key));
    }
    /* An empty row keeps weights 0 and is not merged. */
    float max = row.begin < row.end ? v16_largest(largest) * factor : 0.0f;
    struct v16 shift = v16_set1(-max);
    for (uint32_t key = panels.begin; key < panels.end; key += 16) {
        struct v16 weight = v16_exp(v16_fma(v16_load(score + key), scale, shift));
        v16_store(score + key, weight);
        sum = v16_add(sum, weight);
    }
    *max_out = max;
    *sum_out = v16_sum(sum);
}

/* 16 channels of V of the tile's keys to the panel [key][16]. */
static void load_values(const struct tile *tile, uint32_t base, struct range all, uint32_t channel)
{
    const struct pkv_args_attend *args = tile->args;
    uint32_t steps = PKV_SPLIT_KEYS / PKV_PAGE_TOKENS * tile->padded / 16;
    uint32_t lines = ahead_lines(tile->entry_bytes, 2 * steps);
    for (uint32_t key = all.begin; key < all.end;) {
        fetch_ahead(tile->ahead, lines);
        uint32_t page_end = (key / PKV_PAGE_TOKENS + 1) * PKV_PAGE_TOKENS;
        uint32_t end = page_end < all.end ? page_end : all.end;
        const uint8_t *value = entry_of(tile, base + key) + tile->entry_bytes / 2;
        float *out = tile->panel + key * 16;
        switch (args->kv_type) {
#define VALUES_CASE(type)                                                                          \
    case type:                                                                                     \
        for (; key < end; key++, value += tile->entry_bytes, out += 16) {                          \
            v16_store(out, channel + 16 <= args->head_dim                                          \
                               ? kv_channels(type, value, args->head_dim, channel)                 \
                               : kv_last_channels(type, value, args->head_dim, channel));          \
        }                                                                                          \
        break;
            VALUES_CASE(PKV_KV_F16)
            VALUES_CASE(PKV_KV_BF16)
            VALUES_CASE(PKV_KV_F32)
            VALUES_CASE(PKV_KV_Q8_0)
#undef VALUES_CASE
        case PKV_KV_TYPE_COUNT:
            return;
        }
    }
}

/* The values of few row heads, which are one block; false where panels must do it. */
static bool sum_few_values(const struct tile *tile, uint32_t base, struct range all, float *values)
{
    uint32_t steps = PKV_SPLIT_KEYS / PKV_PAGE_TOKENS * tile->padded / 16;
    struct few_values few = {
        .entry_bytes = tile->entry_bytes,
        .head_dim = tile->args->head_dim,
        .rows = tile->row_heads,
        .weight = tile->scores + all.begin,
        .out = values,
        .out_stride = tile->padded,
        .ahead = tile->ahead,
        .ahead_lines = ahead_lines(tile->entry_bytes, 2 * steps),
    };
    for (uint32_t key = all.begin; key < all.end;) {
        uint32_t page_end = (key / PKV_PAGE_TOKENS + 1) * PKV_PAGE_TOKENS;
        uint32_t end = page_end < all.end ? page_end : all.end;
        const uint8_t *value = entry_of(tile, base + key) + tile->entry_bytes / 2;
        few.page[few.page_count++] = (struct few_page){value, end - key};
        key = end;
    }
    return few_values(tile->args->kv_type, &few);
}

static void sum_values(const struct tile *tile, uint32_t base, struct range all, float *values)
{
    for (uint32_t channel = 0; channel < tile->padded; channel += 16) {
        load_values(tile, base, all, channel);
        for (uint32_t block = 0; block < block_count(tile); block++) {
            struct range range = tile->ranges[block];
            uint64_t first = (uint64_t)block * tile->block_rows;
            product(block_rows(tile, block), PKV_SCORE_STRIDE, 1,
                    tile->scores + first * PKV_SCORE_STRIDE + range.begin,
                    tile->panel + range.begin * 16,
                    range.end > range.begin ? range.end - range.begin : 0,
                    values + first * tile->padded + channel, tile->padded);
        }
    }
}

static void attend_split(const struct tile *tile, uint32_t split, const struct partial *out)
{
    uint32_t base = split * PKV_SPLIT_KEYS;
    struct range all = {range_of_row(tile, base, 0).begin,
                        range_of_row(tile, base, tile->rows - 1).end};
    if (all.begin >= all.end) { /* what is not there yet of a hot set */
        return;
    }
    for (uint32_t block = 0; block < block_count(tile); block++) {
        tile->ranges[block] = range_of_block(tile, base, block);
    }
    score_keys(tile, base, all);
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        softmax(tile->args, tile->scores + (uint64_t)i * PKV_SCORE_STRIDE,
                tile->ranges[i / tile->block_rows], range_of_row(tile, base, i / tile->group),
                out->max + i, out->sum + i);
    }
    if (!sum_few_values(tile, base, all, out->values)) {
        sum_values(tile, base, all, out->values);
    }
}

/* Take one split into the totals. */
static void merge(const struct tile *tile, uint32_t split, const struct partial *part)
{
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        struct range range = range_of_row(tile, split * PKV_SPLIT_KEYS, i / tile->group);
        if (range.begin >= range.end) {
            continue;
        }
        float before = tile->total.max[i], now = part->max[i], max = before > now ? before : now;
        struct v16 keep = v16_exp(v16_set1(before - max)), take = v16_exp(v16_set1(now - max));
        float *total = tile->total.values + (uint64_t)i * tile->padded;
        const float *values = part->values + (uint64_t)i * tile->padded;
        for (uint32_t channel = 0; channel < tile->padded; channel += 16) {
            struct v16 kept = v16_mul(v16_load(total + channel), keep);
            v16_store(total + channel, v16_fma(v16_load(values + channel), take, kept));
        }
        tile->total.max[i] = max;
        struct v16 sum = v16_mul(v16_set1(tile->total.sum[i]), keep);
        sum = v16_fma(v16_set1(part->sum[i]), take, sum);
        v16_store_part(&tile->total.sum[i], sum, 1);
    }
}

/* Totals before the first split: none, or what earlier launches came to. */
static void start(const struct tile *tile)
{
    const struct pkv_args_attend *args = tile->args;
    memset(tile->total.values, 0, (uint64_t)tile->row_heads * tile->padded * sizeof(float));
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        tile->total.max[i] = -INFINITY;
        tile->total.sum[i] = 0.0f;
        if (args->carry_in) {
            struct pkvi_carry carry = pkvi_attend_carry(args, row_of(tile, i), head_of(tile, i));
            tile->total.max[i] = *carry.max;
            tile->total.sum[i] = *carry.sum;
            memcpy(tile->total.values + (uint64_t)i * tile->padded, carry.values,
                   args->head_dim * sizeof(float));
        }
    }
}

/* Totals so far, for the next launch. */
static void hand_over(const struct tile *tile)
{
    const struct pkv_args_attend *args = tile->args;
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        struct pkvi_carry carry = pkvi_attend_carry(args, row_of(tile, i), head_of(tile, i));
        *carry.max = tile->total.max[i];
        *carry.sum = tile->total.sum[i];
        memcpy(carry.values, tile->total.values + (uint64_t)i * tile->padded,
               args->head_dim * sizeof(float));
    }
}

static void finish(const struct tile *tile)
{
    const struct pkv_args_attend *args = tile->args;
    if (args->carry_out) {
        hand_over(tile);
        return;
    }
    for (uint32_t i = 0; i < tile->row_heads; i++) {
        uint32_t row = row_of(tile, i), head = head_of(tile, i);
        float *values = tile->total.values + (uint64_t)i * tile->padded;
        struct v16 inverse = v16_set1(1.0f / tile->total.sum[i]);
        for (uint32_t channel = 0; channel < tile->padded; channel += 16) {
            v16_store(values + channel, v16_mul(v16_load(values + channel), inverse));
        }
        act_put(&args->out, row, head * args->head_dim, values, args->head_dim);
        if (args->lse) {
            PKV_AT(float, args->lse)
            [(uint64_t)row * args->heads + head] = tile->total.max[i] + logf(tile->total.sum[i]);
        }
    }
}

static struct tile tile_of(const struct pkvi_attend_plan *plan, const struct pkvi_attend_unit *unit,
                           uint32_t worker)
{
    const struct pkv_args_attend *args = plan->args;
    const struct pkvi_attend_item *item = unit->item;
    const struct pkv_kv_view *view =
        PKV_AT(const struct pkv_kv_view, args->views) + item->span->view;
    struct tile tile = {
        .args = args,
        .view = view,
        .kv_head = unit->kv_head,
        .group = args->heads / args->kv_heads,
        .padded = pkvi_attend_padded(args->head_dim),
        .entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim),
        .row = item->span->first_row + item->first_row,
        .rows = item->rows,
        .position = pkvi_span_key(view, item->span) + item->first_row,
        .first_key = pkvi_view_first_key(view, unit->kv_head),
    };
    tile.row_heads = tile.rows * tile.group;
    /* of even size: a block of one or two would take as long as one of four */
    tile.block_rows = (tile.row_heads + block_count(&tile) - 1) / block_count(&tile);
    uint64_t room = (tile.row_heads + PKV_ATTEND_BLOCK - 1) / PKV_ATTEND_BLOCK * PKV_ATTEND_BLOCK;
    float *next = PKV_AT(float, args->scratch + worker * plan->worker_bytes);
    tile.panel = next;
    tile.scores = next += 16 * pkvi_attend_panel_rows(args->head_dim);
    tile.split.values = next += room * PKV_SCORE_STRIDE;
    tile.total.values = next += room * tile.padded;
    tile.q = next += room * tile.padded;
    tile.split.max = next += room * tile.padded;
    tile.split.sum = next += room;
    tile.total.max = next += room;
    tile.total.sum = next += room;
    tile.ranges = (struct range *)(void *)(next += room);
    return tile;
}

/* Partials of split `index` of the item. */
static struct partial partial_of(const struct tile *tile, const struct pkvi_attend_partial *partial,
                                 uint32_t index)
{
    uint64_t first = (uint64_t)index * tile->row_heads;
    return (struct partial){partial->max + first, partial->sum + first,
                            partial->values + first * tile->padded};
}

/* Fetch a split of a unit ahead, one that it has. */
static void look_ahead(const struct pkvi_attend_plan *plan, const struct pkvi_attend_unit *unit,
                       uint32_t split, struct ahead *ahead)
{
    const struct pkvi_attend_item *item = unit->item;
    const struct pkv_kv_view *view =
        PKV_AT(const struct pkv_kv_view, plan->args->views) + item->span->view;
    uint32_t position = pkvi_span_key(view, item->span) + item->first_row;
    uint32_t first_key = pkvi_view_first_key(view, unit->kv_head);
    uint32_t first = pkvi_first_key(position, plan->args->window);
    first = (first > first_key ? first : first_key) / PKV_PAGE_TOKENS;
    uint32_t begin = split * PKV_SPLIT_KEYS, end = begin + PKV_SPLIT_KEYS;
    uint32_t last = position + item->rows;
    *ahead = (struct ahead){
        .view = view,
        .tile = &plan->args->tile,
        .kv_head = unit->kv_head,
        .entry_bytes = pkvi_kv_entry_bytes(plan->args->kv_type, plan->args->head_dim),
        .key = begin > first * PKV_PAGE_TOKENS ? begin : first * PKV_PAGE_TOKENS,
        .end = end < last ? end : last,
    };
}

/* The unit's splits in order, each merged at once or, where the tile is divided, kept. */
static void attend_splits(const struct pkvi_attend_plan *plan, uint32_t number,
                          const struct pkvi_attend_unit *unit, const struct tile *tile,
                          const struct pkvi_attend_partial *kept)
{
    const struct pkvi_attend_item *item = unit->item;
    for (uint32_t i = 0; i < unit->splits; i++) {
        uint32_t split = unit->first_split + i;
        if (i + 1 < unit->splits) {
            look_ahead(plan, unit, split + 1, tile->ahead);
        } else if (number + plan->threads < plan->unit_count) {
            /* likely this thread's next unit; if not, another's */
            struct pkvi_attend_unit next = pkvi_attend_unit(plan, number + plan->threads);
            if (next.splits > 0) {
                look_ahead(plan, &next, next.first_split, tile->ahead);
            }
        }
        struct partial part =
            kept ? partial_of(tile, kept, split - item->first_split) : tile->split;
        attend_split(tile, split, &part);
        if (!kept) {
            merge(tile, split, &part);
        }
    }
}

static void attend_unit(void *context, uint32_t number, uint32_t worker)
{
    const struct pkvi_attend_plan *plan = context;
    struct pkvi_attend_unit unit = pkvi_attend_unit(plan, number);
    const struct pkvi_attend_item *item = unit.item;
    struct tile tile = tile_of(plan, &unit, worker);
    struct ahead ahead = {0};
    tile.ahead = &ahead;
    pack_queries(&tile);
    if (item->chunks == 1) {
        start(&tile);
        attend_splits(plan, number, &unit, &tile, NULL);
        finish(&tile);
        return;
    }
    struct pkvi_attend_partial kept = pkvi_attend_partial(plan, item, unit.kv_head);
    attend_splits(plan, number, &unit, &tile, &kept);
    /* acq_rel: the last unit of the tile sees what all others wrote */
    if (atomic_fetch_add_explicit(kept.done, 1, memory_order_acq_rel) + 1 == item->chunks) {
        start(&tile);
        for (uint32_t i = 0; i < item->splits; i++) {
            struct partial part = partial_of(&tile, &kept, i);
            merge(&tile, item->first_split + i, &part);
        }
        finish(&tile);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkvi_cpu_stream *stream = native_stream;
    struct pkvi_attend_plan plan;
    pkvi_attend_plan(args, pkvi_pool_threads(stream->pool), &plan);
    pkvi_pool_run(stream->pool, attend_unit, &plan, plan.unit_count);
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_attend) = {
    .op = PKV_OP_ATTEND,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_attend),
    .launch = launch,
    .cost = pkvi_cost_attend,
};
