/* hot_case.c: a hot set made of some entries of a sequence. */
#include "tests/support/hot_case.h"

#include <stdlib.h>
#include <string.h>

static uint8_t *entry_at(pkv_addr page, uint32_t slot, uint32_t entry_bytes)
{
    return PKV_AT(uint8_t, page) + (uint64_t)slot * entry_bytes;
}

static uint8_t *own_entry(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t key)
{
    const pkv_addr page = hot->page[key / PKV_PAGE_TOKENS * hot->from->kv_heads + kv_head];
    return entry_at(page, key % PKV_PAGE_TOKENS,
                    pkvi_kv_entry_bytes(hot->from->type, hot->from->head_dim));
}

static const uint8_t *token_entry(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t token)
{
    const struct pkv_kv_view *view = &hot->from->views[hot->sequence];
    const pkv_addr page =
        hot->from->page[hot->sequence]
                       [token / PKV_PAGE_TOKENS * view->page_stride + kv_head * view->head_stride];
    return entry_at(page, token % PKV_PAGE_TOKENS,
                    pkvi_kv_entry_bytes(hot->from->type, hot->from->head_dim));
}

/* Tables: own pages for the slots that are there, the sequence's for the ring. */
static void lay_out(struct pkvt_hot_case *hot)
{
    const uint32_t heads = hot->from->kv_heads, tokens = hot->from->tokens[hot->sequence];
    const uint32_t own = hot->slots / PKV_PAGE_TOKENS, ring = pkvi_pages_of(tokens - hot->end);
    const uint64_t page_bytes =
        (uint64_t)PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(hot->from->type, hot->from->head_dim);
    hot->keys = hot->slots + tokens - hot->end;
    hot->pages = pkvt_alloc((uint64_t)own * heads * page_bytes + 1);
    hot->page = pkvt_alloc((uint64_t)(own + ring) * heads * sizeof *hot->page);
    hot->first = pkvt_alloc(heads * sizeof *hot->first);
    memcpy(hot->first, hot->first_key, heads * sizeof *hot->first);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t p = 0; p < own + ring; p++) {
            pkv_addr *page = &hot->page[p * heads + h];
            if (p >= own) {
                *page = pkvi_addr(token_entry(hot, h, hot->end + (p - own) * PKV_PAGE_TOKENS));
            } else if ((p + 1) * PKV_PAGE_TOKENS > hot->first_key[h]) {
                *page = pkvi_addr(hot->pages + ((uint64_t)p * heads + h) * page_bytes);
            } else {
                *page = 0;
            }
        }
    }
}

static void fill(struct pkvt_hot_case *hot, struct pkvt_rng *rng)
{
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(hot->from->type, hot->from->head_dim);
    for (uint32_t h = 0; h < hot->from->kv_heads; h++) {
        uint32_t key = hot->first_key[h];
        for (uint32_t t = 0; t < hot->end && key < hot->slots; t++) {
            if (pkvt_rng_below(rng, hot->end - t) < hot->slots - key) {
                memcpy(own_entry(hot, h, key), token_entry(hot, h, t), entry_bytes);
                hot->token[h * hot->slots + key++] = (int32_t)t;
            }
        }
        assert_int_equal(key, hot->slots); /* as many slots as tokens, at most */
    }
}

void pkvt_hot_case_open(struct pkvt_hot_case *hot, uint64_t seed, bool empty)
{
    struct pkvt_rng rng = {seed};
    const uint32_t heads = hot->from->kv_heads;
    lay_out(hot);
    hot->token = pkvt_alloc((uint64_t)heads * hot->slots * sizeof *hot->token + 4);
    memset(hot->token, 0xff, (uint64_t)heads * hot->slots * sizeof *hot->token);
    const uint32_t stride = hot->keys + 3;
    hot->score = pkvt_normal(&rng, (uint64_t)heads * stride, 1.0f);
    if (!empty) {
        fill(hot, &rng);
    }
    hot->view = pkvt_alloc(sizeof *hot->view);
    *hot->view = (struct pkv_kv_view){.page = pkvi_addr(hot->page),
                                      .head_stride = 1,
                                      .page_stride = heads,
                                      .ring_pages = UINT32_MAX / PKV_PAGE_TOKENS,
                                      .first_key = pkvi_addr(hot->first),
                                      .key_shift = hot->end - hot->slots,
                                      .score_stride = stride,
                                      .score = pkvi_addr(hot->score)};
}

void pkvt_hot_case_close(struct pkvt_hot_case *hot)
{
    free(hot->pages);
    free(hot->page);
    free(hot->first);
    free(hot->token);
    free(hot->score);
    free(hot->view);
}

uint32_t pkvt_hot_case_token(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t key)
{
    return key < hot->slots ? (uint32_t)hot->token[kv_head * hot->slots + key]
                            : hot->end + (key - hot->slots);
}

bool pkvt_hot_case_holds(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t key,
                         uint32_t token)
{
    return memcmp(own_entry(hot, kv_head, key), token_entry(hot, kv_head, token),
                  pkvi_kv_entry_bytes(hot->from->type, hot->from->head_dim)) == 0;
}
