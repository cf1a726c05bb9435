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

enum pkv_status pkvi_stream_attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                   uint32_t span)
{
    const struct pkvi_tier_layer *layer = &t->layer[rows->layer];
    const struct pkvi_tier_state *state = &t->seq[rows->host_spans[span].view].state[rows->layer];
    const uint32_t tile_pages = t->sizes.tile_tokens / PKV_PAGE_TOKENS;
    struct pkv_args_attend args = rows->attend;
    args.spans += (uint64_t)span * sizeof(struct pkv_row_span);
    args.span_count = 1;
    for (uint32_t first = 0; first < state->first_page; first += tile_pages) {
        const uint32_t left = state->first_page - first;
        const uint32_t count = left < tile_pages ? left : tile_pages, slot = t->next_slot;
        const bool last = count == left;
        PKV_TRY(pkvi_transfer_load(t, state, rows->layer, first, count, slot));
        PKV_TRY(pkvi_transfer_loaded(t, slot));
        args.tile = (struct pkv_kv_tile){
            .page = t->staging_tables + rows->layer * t->staging_table_bytes +
                    (uint64_t)slot * tile_pages * layer->info.kv_heads * sizeof(pkv_addr),
            .first_page = first,
            .page_stride = layer->info.kv_heads};
        args.key_begin = first * PKV_PAGE_TOKENS;
        args.key_end = last ? 0 : (first + tile_pages) * PKV_PAGE_TOKENS;
        args.carry = t->carry;
        args.carry_in = first > 0;
        args.carry_out = !last;
        PKV_TRY(pkvi_launch(t->compute, t->attend_kernel, &args));
        PKV_TRY(pkvi_transfer_attended(t, slot));
        t->next_slot = (slot + 1) % t->sizes.tiles;
    }
    return state->first_page > 0 ? PKV_OK : pkvi_launch(t->compute, t->attend_kernel, &args);
}
