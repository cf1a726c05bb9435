/* kv_view.h: where an entry of a sequence lies, for kernels that read or write it. */
#ifndef PKV_KV_VIEW_H
#define PKV_KV_VIEW_H

#include "kernels/addr.h"
#include "kernels/kernels.h"

/* The entry of the token at `position`, in the view; the next ones of its page follow it. */
static inline uint8_t *pkvi_kv_entry(const struct pkv_kv_view *view, uint32_t kv_head,
                                     uint32_t position, uint32_t entry_bytes)
{
    uint32_t ring = position / PKV_PAGE_TOKENS % view->ring_pages,
             slot = position % PKV_PAGE_TOKENS;
    const pkv_addr *page = PKV_AT(const pkv_addr, view->page) + (uint64_t)ring * view->page_stride +
                           (uint64_t)kv_head * view->head_stride;
    return PKV_AT(uint8_t, *page) + slot * entry_bytes;
}

/* The same for a sequence of which a tile holds the pages before the view's first. */
static inline const uint8_t *pkvi_kv_entry_or_tile(const struct pkv_kv_view *view,
                                                   const struct pkv_kv_tile *tile, uint32_t kv_head,
                                                   uint32_t position, uint32_t entry_bytes)
{
    uint32_t logical = position / PKV_PAGE_TOKENS, slot = position % PKV_PAGE_TOKENS;
    if (logical >= view->first_page) {
        return pkvi_kv_entry(view, kv_head, position, entry_bytes);
    }
    const pkv_addr *page = PKV_AT(const pkv_addr, tile->page) +
                           (uint64_t)(logical - tile->first_page) * tile->page_stride + kv_head;
    return PKV_AT(const uint8_t, *page) + slot * entry_bytes;
}

/* Key of a span's first row. */
static inline uint32_t pkvi_span_key(const struct pkv_kv_view *view,
                                     const struct pkv_row_span *span)
{
    return span->first_position - view->key_shift;
}

/* First key of a KV head that is there. */
static inline uint32_t pkvi_view_first_key(const struct pkv_kv_view *view, uint32_t kv_head)
{
    return view->first_key ? PKV_AT(const uint32_t, view->first_key)[kv_head] : 0;
}

/* Rows that spans cover, which need not be all of a step. */
static inline uint32_t pkvi_span_rows(const struct pkv_row_span *spans, uint32_t count)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        rows += spans[i].rows;
    }
    return rows;
}

/* Of the covered rows the one numbered `*covered`: its span; *covered becomes its row of the step.
 */
static inline const struct pkv_row_span *pkvi_span_of_covered(const struct pkv_row_span *spans,
                                                              uint32_t *covered)
{
    while (*covered >= spans->rows) {
        *covered -= spans->rows;
        spans++;
    }
    *covered += spans->first_row;
    return spans;
}

/* The span that holds `row`, where spans cover every row of a step. */
static inline const struct pkv_row_span *pkvi_span_of_row(const struct pkv_row_span *spans,
                                                          uint32_t row)
{
    while (row - spans->first_row >= spans->rows) {
        spans++;
    }
    return spans;
}

/* First key that the row at `position` sees. */
static inline uint32_t pkvi_first_key(uint32_t position, uint32_t window)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Keys of a sequence; none where begin >= end. */
struct pkvi_keys {
    uint32_t begin, end;
};

/* Keys that a launch handles for the rows at `first` to `last`, all rows together. */
static inline struct pkvi_keys pkvi_attend_keys(const struct pkv_args_attend *args, uint32_t first,
                                                uint32_t last)
{
    uint32_t begin = pkvi_first_key(first, args->window), end = last + 1;
    return (struct pkvi_keys){
        .begin = begin > args->key_begin ? begin : args->key_begin,
        .end = args->key_end > 0 && args->key_end < end ? args->key_end : end,
    };
}

/* What a row head comes to so far, in the carry of a launch. */
struct pkvi_carry {
    float *max, *sum, *values; /* values: [head_dim] */
};

static inline struct pkvi_carry pkvi_attend_carry(const struct pkv_args_attend *args, uint32_t row,
                                                  uint32_t head)
{
    uint64_t row_heads = (uint64_t)args->rows * args->heads;
    uint64_t index = (uint64_t)row * args->heads + head;
    float *max = PKV_AT(float, args->carry);
    return (struct pkvi_carry){max + index, max + row_heads + index,
                               max + 2 * row_heads + index * args->head_dim};
}

/* The bytes of `count` values of K or V. */
typedef void (*pkvi_kv_store_fn)(enum pkv_kv_type type, const float *x, uint32_t count,
                                 uint8_t *out);

/* APPEND of one row. */
static inline void pkvi_append_row(const struct pkv_args_append *args, uint32_t row,
                                   pkvi_kv_store_fn store)
{
    const struct pkv_row_span *span =
        pkvi_span_of_row(PKV_AT(const struct pkv_row_span, args->spans), row);
    const struct pkv_kv_view *view = PKV_AT(const struct pkv_kv_view, args->views) + span->view;
    uint32_t position = pkvi_span_key(view, span) + (row - span->first_row);
    uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const float *k = PKV_AT(const float, args->k) + (uint64_t)row * args->k_stride;
    const float *v = PKV_AT(const float, args->v) + (uint64_t)row * args->v_stride;
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        uint8_t *entry = pkvi_kv_entry(view, head, position, entry_bytes);
        uint32_t channel = head * args->head_dim;
        store(args->kv_type, k + channel, args->head_dim, entry);
        store(args->kv_type, v + channel, args->head_dim, entry + entry_bytes / 2);
    }
}

/* Floats that a row writes, for kernels/rows.h. */
static inline uint32_t pkvi_append_floats(const struct pkv_args_append *args)
{
    return 2 * args->kv_heads * args->head_dim;
}

#endif
