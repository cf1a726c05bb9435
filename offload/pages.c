/*
 * pages.c: pages of the device pool in the rows of the page table: taken, shared by forks, given
 * back. Knows which page stands where; refuses to know why, and what is in it.
 */
#include "offload/tier_impl.h"

static bool in_pool(const struct pkvi_tier *t, pkv_addr page)
{
    return page >= t->pool && page < t->pool + t->sizes.pool_bytes;
}

static uint32_t place_of(const struct pkvi_tier *t, pkv_addr page)
{
    return (uint32_t)((page - t->pool) / t->unit_bytes);
}

void pkvi_pages_dirty(struct pkvi_tier_seq *seq, uint32_t block)
{
    seq->dirty_first = block < seq->dirty_first ? block : seq->dirty_first;
    seq->dirty_end = block + 1 > seq->dirty_end ? block + 1 : seq->dirty_end;
}

enum pkv_status pkvi_page_take(struct pkvi_tier *t, pkv_addr *page_out)
{
    const uint32_t place = pkvi_places_take(&t->pages);
    if (place == PKVI_NO_PLACE) {
        return PKV_FAIL(PKV_ERR_STATE, "KV tier: no page left of %u", t->pages.count);
    }
    const uint64_t used = t->pages.count - t->pages.free_count;
    t->report.pages_most = used > t->report.pages_most ? used : t->report.pages_most;
    *page_out = t->pool + (uint64_t)place * t->unit_bytes;
    return PKV_OK;
}

void pkvi_page_release(struct pkvi_tier *t, pkv_addr *page)
{
    if (in_pool(t, *page)) {
        pkvi_places_release(&t->pages, place_of(t, *page));
    }
    *page = 0;
}

void pkvi_page_retain(struct pkvi_tier *t, pkv_addr page)
{
    if (in_pool(t, page)) {
        pkvi_places_retain(&t->pages, place_of(t, page));
    }
}

bool pkvi_page_shared(const struct pkvi_tier *t, pkv_addr page)
{
    return in_pool(t, page) && t->pages.refs[place_of(t, page)] > 1;
}

void pkvi_pages_drop(struct pkvi_tier *t, uint32_t seq, uint32_t layer, uint32_t first,
                     uint32_t end)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    for (uint32_t b = end; b-- > first;) {
        pkv_addr *row = pkvi_tier_row(t, seq, b) + l->head_base;
        for (uint32_t h = l->info.kv_heads; h-- > 0;) {
            pkvi_page_release(t, &row[h]);
        }
    }
}

enum pkv_status pkvi_pages_add(struct pkvi_tier *t, uint32_t seq, uint32_t layer, uint32_t first,
                               uint32_t end)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    for (uint32_t b = first; b < end; b++) {
        pkv_addr *row = pkvi_tier_row(t, seq, b) + l->head_base;
        for (uint32_t h = 0; h < l->info.kv_heads; h++) {
            if (row[h] == 0) {
                PKV_TRY(pkvi_page_take(t, &row[h]));
                pkvi_pages_dirty(&t->seq[seq], b);
            }
        }
    }
    return PKV_OK;
}
