/* kv_view.h: where an entry of a sequence lies, for kernels that read or write it. */
#ifndef PKV_KV_VIEW_H
#define PKV_KV_VIEW_H

#include "kernels/addr.h"
#include "kernels/kernels.h"

/* The entry of the token at `position`; the next ones of its page follow it. */
static inline uint8_t *pkvi_kv_entry(const struct pkv_kv_view *view, uint32_t kv_head,
                                     uint32_t position, uint32_t entry_bytes)
{
    const pkv_addr *page =
        PKV_AT(const pkv_addr, view->page) + (uint64_t)kv_head * view->page_stride;
    uint32_t logical = position / PKV_PAGE_TOKENS, slot = position % PKV_PAGE_TOKENS;
    return PKV_AT(uint8_t, page[logical % view->ring_pages]) + slot * entry_bytes;
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

#endif
