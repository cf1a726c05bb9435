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

/* The span that holds `row`; spans cover every row of a step. */
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

#endif
