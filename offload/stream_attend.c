/*
 * stream_attend.c: attention of one sequence's rows in a STREAMED layer.
 *
 * Blocks on the host pass through a ring of staging slots, a tile at a time; every tile is one
 * launch over its range of keys, the last one also takes the pages on the device. Launches carry
 * maximum, sum and values on, in ascending order of keys: equal, bit for bit, to one launch over
 * pages that are all on the device. The host knows the whole schedule beforehand and runs ahead.
 * Source: online softmax over blocks, Milakov and Gimelshein, arXiv:1805.02867; Dao,
 * FlashAttention-2, arXiv:2307.08691.
 */
#include "offload/tier_impl.h"

/* What a staging slot holds. */
static struct pkv_kv_tile staged_tile(const struct pkvi_tier *t, uint32_t l, uint32_t slot,
                                      uint32_t first_page)
{
    const uint64_t entries =
        (uint64_t)slot * (t->sizes.tile_tokens / PKV_PAGE_TOKENS) * t->layer[l].info.kv_heads;
    return (struct pkv_kv_tile){.page = t->staging_tables + l * t->staging_table_bytes +
                                        entries * sizeof(pkv_addr),
                                .first_page = first_page,
                                .page_stride = t->layer[l].info.kv_heads};
}

/* keep: where the last launch leaves what it comes to, instead of its output; 0 = the output. */
static enum pkv_status stream(struct pkvi_tier *t, struct pkv_args_attend args, uint32_t seq,
                              uint32_t l, uint32_t pages, pkv_addr keep)
{
    const struct pkvi_tier_state *state = &t->seq[seq].state[l];
    const uint32_t tile_pages = t->sizes.tile_tokens / PKV_PAGE_TOKENS;
    args.carry = keep ? keep : pages > 0 ? t->carry : 0;
    for (uint32_t first = 0; first < pages; first += tile_pages) {
        const uint32_t left = pages - first;
        const uint32_t count = left < tile_pages ? left : tile_pages, slot = t->next_slot;
        const bool last = count == left;
        PKV_TRY(pkvi_transfer_load(t, state, l, first, count, slot));
        PKV_TRY(pkvi_transfer_loaded(t, slot));
        args.tile = staged_tile(t, l, slot, first);
        args.key_begin = first * PKV_PAGE_TOKENS;
        args.key_end = last ? 0 : (first + tile_pages) * PKV_PAGE_TOKENS;
        args.carry_in = first > 0;
        args.carry_out = !last || keep != 0;
        PKV_TRY(pkvi_launch(t->compute, t->attend_kernel, &args));
        PKV_TRY(pkvi_transfer_attended(t, slot));
        t->next_slot = (slot + 1) % t->sizes.tiles;
    }
    if (pages > 0) {
        return PKV_OK;
    }
    args.carry_out = keep != 0;
    return pkvi_launch(t->compute, t->attend_kernel, &args);
}

static struct pkv_args_attend one_span(const struct pkvi_tier_rows *rows, uint32_t span)
{
    struct pkv_args_attend args = rows->attend;
    args.spans += (uint64_t)span * sizeof(struct pkv_row_span);
    args.span_count = 1;
    return args;
}

enum pkv_status pkvi_stream_attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                   uint32_t span)
{
    const uint32_t seq = rows->host_spans[span].view;
    return stream(t, one_span(rows, span), seq, rows->layer,
                  t->seq[seq].state[rows->layer].first_page, 0);
}

enum pkv_status pkvi_stream_carry(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                  uint32_t span, pkv_addr views, uint32_t pages, pkv_addr carry)
{
    struct pkv_args_attend args = one_span(rows, span);
    args.views = views;
    return stream(t, args, rows->host_spans[span].view, rows->layer, pages, carry);
}

struct pkv_args_score pkvi_score_args(const struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                      uint32_t span)
{
    return (struct pkv_args_score){
        .q = rows->attend.q,
        .lse = t->lse,
        .views = rows->attend.views,
        .spans = rows->attend.spans + (uint64_t)span * sizeof(struct pkv_row_span),
        .scratch = t->score_scratch,
        .kv_type = rows->attend.kv_type,
        .scale = rows->attend.scale,
        .softcap = rows->attend.softcap,
        .span_count = 1,
        .rows = rows->attend.rows,
        .heads = rows->attend.heads,
        .kv_heads = rows->attend.kv_heads,
        .head_dim = rows->attend.head_dim,
        .q_stride = rows->attend.q_stride,
    };
}

enum pkv_status pkvi_stream_score(struct pkvi_tier *t, const struct pkv_args_score *score,
                                  uint32_t seq, uint32_t l)
{
    const struct pkvi_tier_state *state = &t->seq[seq].state[l];
    const uint32_t tile_pages = t->sizes.tile_tokens / PKV_PAGE_TOKENS, pages = state->first_page;
    struct pkv_args_score args = *score;
    for (uint32_t first = 0; first < pages; first += tile_pages) {
        const uint32_t left = pages - first, slot = t->next_slot;
        const uint32_t count = left < tile_pages ? left : tile_pages;
        PKV_TRY(pkvi_transfer_load(t, state, l, first, count, slot));
        PKV_TRY(pkvi_transfer_loaded(t, slot));
        args.tile = staged_tile(t, l, slot, first);
        args.key_begin = first * PKV_PAGE_TOKENS;
        args.key_end = count == left ? 0 : (first + tile_pages) * PKV_PAGE_TOKENS;
        PKV_TRY(pkvi_launch(t->compute, t->score_kernel, &args));
        PKV_TRY(pkvi_transfer_attended(t, slot));
        t->next_slot = (slot + 1) % t->sizes.tiles;
    }
    return pages > 0 ? PKV_OK : pkvi_launch(t->compute, t->score_kernel, &args);
}
