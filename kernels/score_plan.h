/* score_plan.h: how SCORE is cut into units: a KV head of a span and some of its keys. */
#ifndef PKV_SCORE_PLAN_H
#define PKV_SCORE_PLAN_H

#include "kernels/kv_view.h"

#define PKV_SCORE_UNIT_KEYS 512u
#define PKV_SCORE_BLOCK 12u /* row heads that a variant handles together, at most */

/* Of one worker: a panel of 16 keys, scores of a block, q of all rows. */
static inline uint64_t pkvi_score_worker_bytes(uint32_t rows, uint32_t heads, uint32_t kv_heads,
                                               uint32_t head_dim)
{
    const uint64_t row_heads = (uint64_t)rows * (heads / kv_heads);
    const uint64_t floats =
        16ull * head_dim + 16 * PKV_SCORE_BLOCK + (row_heads + PKV_SCORE_BLOCK) * head_dim;
    return (floats * sizeof(float) + 63) / 64 * 64;
}

struct pkvi_score_unit {
    const struct pkv_row_span *span;
    const struct pkv_kv_view *view;
    uint32_t kv_head;
    uint32_t begin, end;    /* keys of the view */
    uint32_t first_row_key; /* of the span's first row */
};

/* Keys of a span that a launch touches, the KV head's own beginning aside. */
static inline struct pkvi_keys pkvi_score_keys(const struct pkv_args_score *args,
                                               const struct pkv_row_span *span)
{
    const struct pkv_kv_view *view = PKV_AT(const struct pkv_kv_view, args->views) + span->view;
    const uint32_t end = pkvi_span_key(view, span) + span->rows;
    return (struct pkvi_keys){.begin = args->key_begin,
                              .end =
                                  args->key_end > 0 && args->key_end < end ? args->key_end : end};
}

/* Units of one KV head of a span. */
static inline uint32_t pkvi_score_chunks(const struct pkv_args_score *args,
                                         const struct pkv_row_span *span)
{
    const struct pkvi_keys keys = pkvi_score_keys(args, span);
    const uint32_t count = keys.begin < keys.end ? keys.end - keys.begin : 0;
    return (count + PKV_SCORE_UNIT_KEYS - 1) / PKV_SCORE_UNIT_KEYS;
}

static inline uint32_t pkvi_score_units(const struct pkv_args_score *args)
{
    const struct pkv_row_span *spans = PKV_AT(const struct pkv_row_span, args->spans);
    uint32_t units = 0;
    for (uint32_t i = 0; i < args->span_count; i++) {
        units += pkvi_score_chunks(args, &spans[i]) * args->kv_heads;
    }
    return units;
}

static inline struct pkvi_score_unit pkvi_score_unit(const struct pkv_args_score *args,
                                                     uint32_t number)
{
    const struct pkv_row_span *span = PKV_AT(const struct pkv_row_span, args->spans);
    uint32_t chunks = pkvi_score_chunks(args, span);
    while (number >= chunks * args->kv_heads) {
        number -= chunks * args->kv_heads;
        chunks = pkvi_score_chunks(args, ++span);
    }
    const struct pkvi_keys keys = pkvi_score_keys(args, span);
    struct pkvi_score_unit unit = {
        .span = span,
        .view = PKV_AT(const struct pkv_kv_view, args->views) + span->view,
        .kv_head = number / chunks,
        .begin = keys.begin + number % chunks * PKV_SCORE_UNIT_KEYS,
    };
    unit.end =
        keys.end - unit.begin < PKV_SCORE_UNIT_KEYS ? keys.end : unit.begin + PKV_SCORE_UNIT_KEYS;
    const uint32_t first = pkvi_view_first_key(unit.view, unit.kv_head);
    unit.begin = unit.begin > first ? unit.begin : first < unit.end ? first : unit.end;
    unit.first_row_key = pkvi_span_key(unit.view, span);
    return unit;
}

#endif
