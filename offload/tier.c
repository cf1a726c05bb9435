/*
 * tier.c: owns the tier's memory, the page table and the states of sequences; decides at the
 * beginning of a pass which pages its rows go to. Refuses to know how bytes move (transfer.c), how
 * much memory there is to be (budget.c) and what becomes of sequences between passes (sequence.c).
 *
 * The host writes its own copy of views and page tables; a pass uploads what changed, once.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "offload/tier_impl.h"
#include "runtime/base/layout.h"

/* Addresses in the two device allocations, and in their pinned twin. */
static void lay_out(struct pkvi_tier *t)
{
    const struct pkvi_tier_config *config = &t->config;
    pkv_addr top = t->payload;
    t->pool = top;
    top += t->sizes.pool_bytes;
    for (uint32_t l = 0; l < config->layers; l++) {
        struct pkvi_tier_layer *layer = &t->layer[l];
        layer->ring = top;
        top += pkvi_tier_ring_bytes(layer) * config->sequences;
    }
    t->staging = top;
    t->buffer = t->staging + t->sizes.staging_bytes;
    t->carry = t->buffer + t->sizes.buffer_bytes;
    t->check.one_bytes = t->sizes.check_bytes / 2;
    t->check.carry[0] = t->carry + t->sizes.carry_bytes;
    t->check.carry[1] = t->check.carry[0] + t->check.one_bytes;
    t->hot_state = t->check.carry[0] + t->sizes.check_bytes;
    t->scores = t->hot_state + t->sizes.hot_bytes;
    t->lse = t->scores + PKVI_TIER_LANES * t->score_lane_bytes;
    t->recall_scratch = t->lse + t->lse_bytes;
    t->score_scratch = t->recall_scratch + t->recall_scratch_bytes;
    top = t->tables;
    t->views = pkvi_take(&top, (uint64_t)config->layers * t->slots * sizeof *t->host_views);
    t->table =
        pkvi_take(&top, (uint64_t)t->slots * t->blocks_max * t->row_entries * sizeof(pkv_addr));
    t->staging_tables = pkvi_take(&top, config->layers * t->staging_table_bytes);
    t->check.views = pkvi_take(&top, (uint64_t)t->slots * sizeof *t->host_views);
    if (t->hot_pages) {
        t->picked_views =
            pkvi_take(&top, (uint64_t)config->layers * t->slots * sizeof *t->host_views);
        t->hot_table = pkvi_take(&top, (uint64_t)t->slots * t->hot_entries * sizeof(pkv_addr));
        t->first_keys = pkvi_take(&top, (uint64_t)t->slots * t->row_entries * sizeof(uint32_t));
        t->least_keys = pkvi_take(&top, (uint64_t)t->row_entries * sizeof(uint32_t));
        t->block_table = pkvi_take(&top, (uint64_t)t->slots * t->sizes.global_layers *
                                             t->blocks_max * sizeof(pkv_addr));
        t->recall_count = pkvi_take(&top, pkvi_recall_count_bytes(t));
    }
    if (t->prune) {
        pkvi_prune_lay_out(t, &top);
    }
    for (uint32_t l = 0; l < config->layers; l++) {
        struct pkvi_tier_layer *layer = &t->layer[l];
        layer->ring_table = pkvi_take(&top, (uint64_t)layer->ring_pages * layer->info.kv_heads *
                                                config->sequences * sizeof(pkv_addr));
    }
}

static void write_ring(struct pkvi_tier *t, uint32_t l)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const uint32_t heads = layer->info.kv_heads;
    pkv_addr *table = pkvi_tier_uploaded(t, layer->ring_table), page = layer->ring;
    for (uint32_t i = 0; i < t->config.sequences * layer->ring_pages * heads; i++) {
        *table++ = page;
        page += layer->page_bytes;
    }
}

static void write_staging(struct pkvi_tier *t, uint32_t l)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const uint32_t pages = t->sizes.tile_tokens / PKV_PAGE_TOKENS * layer->info.kv_heads;
    pkv_addr *table = pkvi_tier_uploaded(t, t->staging_tables + l * t->staging_table_bytes);
    for (uint32_t slot = 0; slot < t->sizes.tiles; slot++) {
        const pkv_addr first = t->staging + slot * (t->sizes.staging_bytes / t->sizes.tiles);
        for (uint32_t i = 0; i < pages; i++) {
            *table++ = first + (uint64_t)i * layer->page_bytes;
        }
    }
}

/* Where a sequence has the pages of a layer: of sliding ones, in the rings of its share. */
struct pkv_kv_view pkvi_tier_view(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    const struct pkvi_tier_seq *seq = &t->seq[s];
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const uint32_t heads = layer->info.kv_heads;
    struct pkv_kv_view view = {.head_stride = 1, .first_page = seq->state[l].first_page};
    if (layer->global) {
        view.page = t->table + ((uint64_t)s * t->blocks_max * t->row_entries + layer->head_base) *
                                   sizeof(pkv_addr);
        view.page_stride = t->row_entries;
        view.ring_pages = t->blocks_max;
        return view;
    }
    const uint32_t share = seq->share == PKVI_NO_PLACE ? 0 : seq->share;
    view.page = layer->ring_table + (uint64_t)share * layer->ring_pages * heads * sizeof(pkv_addr);
    view.page_stride = heads;
    view.ring_pages = layer->ring_pages;
    return view;
}

/* The same in the pass that is prepared: to its hot set, or with room for scores. */
static struct pkv_kv_view view_of(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    struct pkv_kv_view view = pkvi_tier_view(t, s, l);
    if (t->prune) {
        view = pkvi_prune_view(t, s, l);
    } else if (t->layer[l].global && t->seq[s].hot) {
        view = pkvi_hot_view(t, s, l);
    } else if (t->layer[l].global && (t->seq[s].placing || t->seq[s].scoring)) {
        view.score = t->scores + t->lane * t->score_lane_bytes + t->layer[l].prompt_scores;
        view.score_stride = t->blocks_max * PKV_PAGE_TOKENS;
    }
    return view;
}

void pkvi_tier_write_views(struct pkvi_tier *t, uint32_t s)
{
    for (uint32_t l = 0; l < t->config.layers; l++) {
        t->host_views[(uint64_t)l * t->slots + s] = view_of(t, s, l);
    }
    t->seq[s].views_changed = true;
}

/* All that does not change later, into the pinned twin. */
static void write_tables(struct pkvi_tier *t)
{
    memset(PKV_AT(void, t->upload), 0, t->sizes.upload_bytes);
    t->host_views = pkvi_tier_uploaded(t, t->views);
    t->host_table = pkvi_tier_uploaded(t, t->table);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            write_staging(t, l);
        } else {
            write_ring(t, l);
        }
    }
    for (uint32_t lane = 0; lane < PKVI_TIER_LANES; lane++) {
        t->scored[lane].seq = PKVI_NO_PLACE;
    }
    if (t->hot_pages) {
        pkvi_hot_write_least(t);
    }
}

static void describe_layers(struct pkvi_tier *t)
{
    uint32_t head_base = 0, number = 0;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_tier_layer *layer = &t->layer[l];
        layer->info = t->config.layer[l];
        layer->global = layer->info.kind == PKV_LAYER_GLOBAL;
        layer->number = number;
        number += layer->global;
        layer->page_bytes =
            PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(t->config.kv_type, layer->info.head_dim);
        layer->head_base = head_base;
        layer->ring_pages = layer->global ? 0 : pkvi_tier_layer_pages(&t->config, l);
        head_base += layer->global ? layer->info.kv_heads : 0;
    }
    if (t->hot_pages) {
        pkvi_hot_describe(t);
    }
    if (t->prune) {
        pkvi_prune_describe(t);
    }
}

void pkvi_tier_lay_out_host(struct pkvi_tier *t, struct pkvi_arena *arena)
{
    const uint64_t layers = t->config.layers, states = layers * t->slots;
    const uint64_t heads = t->staging_head_pages;
    const uint64_t blocks = t->config.host ? t->blocks_max : 0;
    t->layer = pkvi_arena_take(arena, layers, sizeof *t->layer);
    t->seq = pkvi_arena_take(arena, t->slots, sizeof *t->seq);
    for (uint32_t lane = 0; lane < PKVI_TIER_LANES; lane++) {
        t->lane_part[lane] = pkvi_arena_take(arena, t->config.sequences, sizeof *t->part);
    }
    t->part = t->lane_part[0];
    t->spans = pkvi_arena_take(arena, PKVI_TIER_SPANS, sizeof *t->spans);
    t->tile_stored = pkvi_arena_take(arena, t->row_tiles, sizeof *t->tile_stored);
    struct pkvi_tier_state *state = pkvi_arena_take(arena, states, sizeof *state);
    pkv_addr *kept = pkvi_arena_take(arena, states * t->tail_pages * heads, sizeof *kept);
    pkv_addr *open_page = pkvi_arena_take(arena, states * heads, sizeof *open_page);
    uint32_t *block = pkvi_arena_take(arena, states * blocks, sizeof *block);
    t->check.of_layer = pkvi_arena_take(arena, layers, sizeof *t->check.of_layer);
    const uint64_t p =
        t->recall_check_bytes > 0 ? (uint64_t)t->blocks_max * PKV_PAGE_TOKENS + PKV_RECALL_CAP : 0;
    t->check.p = pkvi_arena_take(arena, p, sizeof *t->check.p);
    for (uint64_t i = 0; state && i < states; i++) {
        if (i % layers == 0) {
            t->seq[i / layers].state = state + i;
            t->seq[i / layers].share = t->seq[i / layers].parked = PKVI_NO_PLACE;
        }
        state[i].kept = kept + i * t->tail_pages * heads;
        state[i].open_page = open_page + i * heads;
        state[i].block = block + i * blocks;
    }
    for (uint64_t i = 0; state && i < states * blocks; i++) {
        block[i] = PKVI_NO_PLACE;
    }
    if (t->prune) {
        pkvi_prune_lay_out_host(t, arena);
    }
}

static enum pkv_status open_memory(struct pkvi_tier *t)
{
    const struct pkvi_tier_sizes *sizes = &t->sizes;
    const uint64_t payload = sizes->device_bytes - sizes->tables_bytes;
    PKV_TRY(pkvi_mem_alloc(t->device, PKV_MEM_DEVICE, payload, &t->payload));
    PKV_TRY(pkvi_mem_alloc(t->device, PKV_MEM_DEVICE, sizes->tables_bytes, &t->tables));
    PKV_TRY(pkvi_mem_alloc(t->device, PKV_MEM_PINNED, sizes->upload_bytes, &t->upload));
    t->check.result = t->upload + sizes->tables_bytes;
    t->check.returned = t->check.result + sizes->check_bytes;
    t->recall_returned = t->check.returned + t->recall_check_bytes;
    pkvi_mem_touch(t->device, t->payload, payload);
    pkvi_mem_touch(t->device, t->tables, sizes->tables_bytes);
    lay_out(t);
    PKV_TRY(pkvi_places_open(&t->pages, sizes->quota_pages * t->config.sequences));
    PKV_TRY(pkvi_places_open(&t->shares, t->config.sequences));
    PKV_TRY(pkvi_places_open(&t->parkings, t->config.parked));
    if (sizes->parked_bytes > 0) {
        PKV_TRY(pkvi_mem_alloc(t->device, PKV_MEM_PINNED, sizes->parked_bytes, &t->parked_rings));
        pkvi_mem_touch(t->device, t->parked_rings, sizes->parked_bytes);
    }
    if (sizes->host_blocks > 0) {
        const struct pkvi_host_arena_config arena = {.bytes = sizes->host_bytes,
                                                     .block_bytes = sizes->host_block_bytes,
                                                     .node = -1,
                                                     .allow_unpinned = true};
        PKV_TRY(pkvi_places_open(&t->blocks, (uint32_t)sizes->host_blocks));
        PKV_TRY(pkvi_host_arena_open(t->device, &arena, &t->arena));
    }
    return PKV_OK;
}

static enum pkv_status open_kernels(struct pkvi_tier *t)
{
    const struct {
        enum pkv_op op;
        bool needed;
        const struct pkv_kernel **kernel;
    } all[] = {{PKV_OP_APPEND, true, &t->append_kernel},
               {PKV_OP_ATTEND, true, &t->attend_kernel},
               {PKV_OP_SCORE, t->hot_pages != NULL || t->prune != NULL, &t->score_kernel},
               {PKV_OP_PLACE, t->hot_pages != NULL, &t->place_kernel},
               {PKV_OP_COMPETE, t->hot_pages != NULL, &t->compete_kernel},
               {PKV_OP_INDEX, t->recalls, &t->index_kernel},
               {PKV_OP_PREDICT, t->recalls, &t->predict_kernel},
               {PKV_OP_RECALL, t->recalls, &t->recall_kernel},
               {PKV_OP_KEEP, t->prune != NULL, &t->keep_kernel},
               {PKV_OP_THIN, t->prune != NULL, &t->thin_kernel}};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].kernel = pkvi_device_kernel(t->device, all[i].op);
        if (!*all[i].kernel && all[i].needed) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the device has no kernel for %s",
                            pkvi_op_name(all[i].op));
        }
    }
    return PKV_OK;
}

static enum pkv_status open_all(struct pkvi_tier *t)
{
    PKV_TRY(pkvi_tier_order(&t->config, &t->demote_order));
    PKV_TRY(pkvi_tier_measure(t));
    PKV_TRY(pkvi_arena_init(&t->host, t->sizes.host_state_bytes));
    pkvi_tier_lay_out_host(t, &t->host);
    describe_layers(t);
    PKV_TRY(open_memory(t));
    PKV_TRY(pkvi_transfer_open(t));
    PKV_TRY(open_kernels(t));
    write_tables(t);
    const struct pkv_span span = {t->tables, t->upload, t->sizes.tables_bytes};
    PKV_TRY(pkvi_copy_async(t->compute, &span, 1));
    return pkvi_stream_sync(t->compute);
}

enum pkv_status pkvi_tier_open(struct pkv_device *device, const struct pkvi_tier_config *config,
                               struct pkv_stream *compute, struct pkvi_tier **tier_out)
{
    struct pkvi_tier *t = calloc(1, sizeof *t);
    if (!t) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "KV tier: %zu bytes", sizeof *t);
    }
    t->device = device;
    t->config = *config;
    t->compute = compute;
    *tier_out = t; /* what a failure leaves may be in use on compute: the caller closes it later */
    return open_all(t);
}

void pkvi_tier_close(struct pkvi_tier *t)
{
    if (!t) {
        return;
    }
    pkvi_transfer_close(t);
    pkvi_host_arena_close(t->arena);
    pkvi_places_close(&t->blocks);
    pkvi_places_close(&t->parkings);
    pkvi_places_close(&t->shares);
    pkvi_places_close(&t->pages);
    pkvi_mem_free(t->device, PKV_MEM_PINNED, t->parked_rings);
    pkvi_mem_free(t->device, PKV_MEM_PINNED, t->upload);
    pkvi_mem_free(t->device, PKV_MEM_DEVICE, t->tables);
    pkvi_mem_free(t->device, PKV_MEM_DEVICE, t->payload);
    pkvi_arena_fini(&t->host);
    free(t->hot_pages);
    free(t->demote_order);
    free(t);
}

/* After a pass has ended: what it kept stands in the page table instead of the buffer. */
void pkvi_tier_settle(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    for (uint32_t l = 0; seq->settle && l < t->config.layers; l++) {
        struct pkvi_tier_state *state = &seq->state[l];
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const uint32_t heads = layer->info.kv_heads;
        if (!state->buffered) {
            continue;
        }
        pkvi_pages_drop(t, s, l, state->first_page, state->keep_first + state->keep_count);
        for (uint32_t i = 0; i < state->keep_count; i++) {
            pkv_addr *row = pkvi_tier_row(t, s, state->keep_first + i) + layer->head_base;
            memcpy(row, state->kept + i * heads, heads * sizeof *row);
            pkvi_pages_dirty(seq, state->keep_first + i);
        }
        for (uint32_t h = 0; state->open_release && h < heads; h++) {
            pkvi_page_release(t, &state->open_page[h]);
        }
        state->first_page = t->hot_pages ? state->ring_first : state->keep_first;
        state->buffered = false;
        state->open_release = false;
    }
    seq->settle = false;
}

/* Where the open page of a layer that will append to the buffer lies now. */
static void find_open_page(struct pkvi_tier *t, uint32_t seq, uint32_t layer, uint32_t block)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    struct pkvi_tier_state *state = &t->seq[seq].state[layer];
    pkv_addr *row = pkvi_tier_row(t, seq, block) + l->head_base;
    state->open_release = row[0] != 0;
    for (uint32_t h = 0; h < l->info.kv_heads; h++) {
        state->open_page[h] = state->open_release ? row[h]
                                                  : pkvi_host_block_addr(t, state->block[block]) +
                                                        (uint64_t)h * l->page_bytes;
        row[h] = 0; /* settle() gives it back */
    }
}

/* A STREAMED layer whose rows go to the buffer: all whole blocks before them are on the host. */
static enum pkv_status prepare_buffered(struct pkvi_tier *t, const struct pkvi_tier_part *part,
                                        uint32_t layer)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    struct pkvi_tier_state *state = &seq->state[layer];
    const uint32_t first = part->tokens / PKV_PAGE_TOKENS, heads = l->info.kv_heads;
    const uint32_t end = pkvi_pages_of(part->tokens + part->rows);
    PKV_TRY(pkvi_transfer_publish(t, state, first));
    state->open_page[0] = 0;
    if (part->tokens % PKV_PAGE_TOKENS != 0) {
        find_open_page(t, part->seq, layer, first);
    }
    pkvi_pages_drop(t, part->seq, layer, state->first_page, first);
    state->first_page = first;
    state->buffered = true;
    seq->settle = true;
    /* A block lies in the same place in every layer, so that a tile waits for the stores of no
     * other tiles but its own (transfer.c). */
    const uint64_t block_bytes = (uint64_t)t->staging_head_pages * t->unit_bytes;
    for (uint32_t b = first; b < end; b++) {
        pkv_addr *row = pkvi_tier_row(t, part->seq, b) + l->head_base;
        for (uint32_t h = 0; h < heads; h++) {
            row[h] = t->buffer + (seq->buffer_page + (b - first)) * block_bytes +
                     (uint64_t)h * l->page_bytes;
        }
        pkvi_pages_dirty(seq, b);
    }
    state->keep_count = t->tail_pages - 1 < end - first ? t->tail_pages - 1 : end - first;
    state->keep_first = end - state->keep_count;
    for (uint32_t i = 0; i < state->keep_count * heads; i++) {
        PKV_TRY(pkvi_page_take(t, &state->kept[i]));
    }
    return PKV_OK;
}

/* The block that rows go on in, if a fork has it too: a copy. */
enum pkv_status pkvi_tier_own_open_page(struct pkvi_tier *t, const struct pkvi_tier_part *part,
                                        uint32_t layer)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    const uint32_t open = part->tokens / PKV_PAGE_TOKENS;
    pkv_addr *row = pkvi_tier_row(t, part->seq, open) + l->head_base;
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    for (uint32_t h = 0; part->tokens % PKV_PAGE_TOKENS != 0 && h < l->info.kv_heads; h++) {
        if (pkvi_page_shared(t, row[h])) {
            pkv_addr page = 0;
            PKV_TRY(pkvi_page_take(t, &page));
            PKV_TRY(pkvi_copies_add(&copies, page, row[h], l->page_bytes));
            pkvi_page_release(t, &row[h]);
            row[h] = page;
            pkvi_pages_dirty(&t->seq[part->seq], open);
        }
    }
    return pkvi_copies_flush(&copies);
}

/* A STREAMED layer whose few rows go to pages of its own. */
static enum pkv_status prepare_tail(struct pkvi_tier *t, const struct pkvi_tier_part *part,
                                    uint32_t layer)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    struct pkvi_tier_state *state = &t->seq[part->seq].state[layer];
    const uint32_t open = part->tokens / PKV_PAGE_TOKENS;
    const uint32_t end = pkvi_pages_of(part->tokens + part->rows);
    uint32_t first = end > t->tail_pages ? end - t->tail_pages : 0;
    first = first > state->first_page ? first : state->first_page;
    PKV_TRY(pkvi_transfer_publish(t, state, first));
    pkvi_pages_drop(t, part->seq, layer, state->first_page, first);
    state->first_page = first;
    const pkv_addr *row = pkvi_tier_row(t, part->seq, open) + l->head_base;
    const bool reload = part->tokens % PKV_PAGE_TOKENS != 0 && row[0] == 0;
    PKV_TRY(pkvi_tier_own_open_page(t, part, layer));
    PKV_TRY(pkvi_pages_add(t, part->seq, layer, open, end));
    if (reload) { /* it was cut, and lies on the host */
        struct pkvi_copies copies = {.tier = t, .stream = t->compute};
        const pkv_addr from = pkvi_host_block_addr(t, state->block[open]);
        for (uint32_t h = 0; h < l->info.kv_heads; h++) {
            PKV_TRY(pkvi_copies_add(&copies, row[h], from + (uint64_t)h * l->page_bytes,
                                    l->page_bytes));
        }
        PKV_TRY(pkvi_copies_flush(&copies));
    }
    return PKV_OK;
}

enum pkv_status pkvi_tier_prepare_streamed(struct pkvi_tier *t, const struct pkvi_tier_part *part,
                                           uint32_t layer)
{
    return part->rows > PKV_PAGE_TOKENS ? prepare_buffered(t, part, layer)
                                        : prepare_tail(t, part, layer);
}

enum pkv_status pkvi_tier_prepare_dense(struct pkvi_tier *t, const struct pkvi_tier_part *part,
                                        uint32_t layer)
{
    PKV_TRY(pkvi_tier_own_open_page(t, part, layer));
    return pkvi_pages_add(t, part->seq, layer, part->tokens / PKV_PAGE_TOKENS,
                          pkvi_pages_of(part->tokens + part->rows));
}

static enum pkv_status prepare(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    if (t->hot_pages) {
        return pkvi_hot_prepare(t, part);
    }
    if (t->prune) {
        return pkvi_prune_prepare(t, part);
    }
    if (t->sizes.tile_tokens > 0) {
        pkvi_tier_demote(t, part->seq, part->tokens + part->rows);
    }
    for (uint32_t pass = 0; pass < 2; pass++) { /* what gives pages back comes first */
        for (uint32_t l = 0; l < t->config.layers; l++) {
            const bool streamed = seq->state[l].streamed;
            if (t->layer[l].global && streamed == (pass == 0)) {
                PKV_TRY(streamed ? pkvi_tier_prepare_streamed(t, part, l)
                                 : pkvi_tier_prepare_dense(t, part, l));
            }
        }
    }
    return PKV_OK;
}

/* A sequence's views that are others now. Those of other sequences are left alone: another lane's
 * upload may still read them, or they may change under this one. */
static enum pkv_status upload_views(struct pkvi_copies *copies, uint32_t s)
{
    struct pkvi_tier *t = copies->tier;
    struct pkvi_tier_seq *seq = &t->seq[s];
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const uint64_t index = (uint64_t)l * t->slots + s;
        struct pkv_kv_view *view = &t->host_views[index], now = view_of(t, s, l);
        const uint64_t at = index * sizeof *view;
        if (seq->views_changed || memcmp(view, &now, sizeof now) != 0) {
            *view = now;
            PKV_TRY(pkvi_copies_add(copies, t->views + at, t->upload + (t->views - t->tables) + at,
                                    sizeof *view));
        }
    }
    seq->views_changed = false;
    if (t->prune) {
        return pkvi_prune_upload(copies, s);
    }
    return t->hot_pages ? pkvi_hot_upload(copies, s) : PKV_OK;
}

/* What changed of views and page tables of the pass's sequences. */
static enum pkv_status upload(struct pkvi_tier *t)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    for (uint32_t p = 0; p < t->part_count; p++) {
        struct pkvi_tier_seq *seq = &t->seq[t->part[p].seq];
        PKV_TRY(upload_views(&copies, t->part[p].seq));
        if (seq->dirty_first < seq->dirty_end) {
            const uint64_t row = (uint64_t)t->part[p].seq * t->blocks_max + seq->dirty_first;
            const uint64_t at = row * t->row_entries * sizeof(pkv_addr);
            PKV_TRY(pkvi_copies_add(&copies, t->table + at, t->upload + (t->table - t->tables) + at,
                                    (uint64_t)(seq->dirty_end - seq->dirty_first) * t->row_entries *
                                        sizeof(pkv_addr)));
        }
        seq->dirty_first = UINT32_MAX;
        seq->dirty_end = 0;
    }
    if (t->check.chosen) {
        const uint64_t at = (uint64_t)t->check.seq * sizeof *t->host_views;
        PKV_TRY(pkvi_copies_add(&copies, t->check.views + at,
                                t->upload + (t->check.views - t->tables) + at,
                                sizeof *t->host_views));
    }
    return pkvi_copies_flush(&copies);
}

enum pkv_status pkvi_tier_begin(struct pkvi_tier *t, const struct pkvi_tier_part *parts,
                                uint32_t count)
{
    uint32_t buffer_page = 0;
    t->part_count = count;
    PKV_TRY(pkvi_transfer_poll(t));
    PKV_TRY(pkvi_transfer_before_reuse(t));
    PKV_TRY(pkvi_transfer_read_meters(t));
    pkvi_check_compare(t);
    for (uint32_t p = 0; p < count; p++) {
        struct pkvi_tier_seq *seq = &t->seq[parts[p].seq];
        t->part[p] = parts[p];
        pkvi_tier_settle(t, parts[p].seq);
        PKV_TRY(pkvi_transfer_arrived(t, parts[p].seq));
        seq->buffer_page = buffer_page;
        buffer_page +=
            pkvi_pages_of(parts[p].tokens + parts[p].rows) - parts[p].tokens / PKV_PAGE_TOKENS;
        PKV_TRY(prepare(t, &parts[p]));
    }
    pkvi_check_choose(t);
    return upload(t);
}

void pkvi_tier_select(struct pkvi_tier *t, uint32_t lane)
{
    t->lane_count[t->lane] = t->part_count;
    t->lane = lane;
    t->part = t->lane_part[lane];
    t->part_count = t->lane_count[lane];
}

/* Does the running pass attend to pages that are not on the device? */
static bool streams(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    return pkvi_tier_host_pages(t, s, l) > 0;
}

static enum pkv_status attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    for (uint32_t i = 0; i < rows->attend.span_count;) {
        const uint32_t first = i;
        while (i < rows->attend.span_count && !streams(t, rows->host_spans[i].view, rows->layer)) {
            i++;
        }
        if (i > first) { /* all on the device: together */
            struct pkv_args_attend args = rows->attend;
            args.spans += (uint64_t)first * sizeof(struct pkv_row_span);
            args.span_count = i - first;
            PKV_TRY(pkvi_launch(t->compute, t->attend_kernel, &args));
        } else {
            PKV_TRY(pkvi_stream_attend(t, rows, i++));
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_tier_attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    struct pkvi_tier_rows r = *rows;
    r.append.views = r.attend.views =
        t->views + (uint64_t)rows->layer * t->slots * sizeof(struct pkv_kv_view);
    PKV_TRY(pkvi_transfer_append(t, &r));
    if (t->prune) {
        return pkvi_prune_attend(t, &r);
    }
    if (!t->layer[rows->layer].global || t->sizes.tile_tokens == 0) {
        return pkvi_launch(t->compute, t->attend_kernel, &r.attend);
    }
    PKV_TRY(pkvi_transfer_store_tile(t, &r));
    r.attend.lse = t->hot_pages ? t->lse : 0;
    PKV_TRY(pkvi_transfer_await_recall(t, rows->layer));
    PKV_TRY(attend(t, &r));
    if (t->recalls) {
        PKV_TRY(pkvi_recall_attended(t, &r));
    }
    if (t->hot_pages) {
        PKV_TRY(pkvi_hot_attended(t, &r));
    }
    PKV_TRY(pkvi_check_attend(t, &r));
    return rows->last_tile ? pkvi_transfer_keep(t, rows->layer) : PKV_OK;
}

enum pkv_status pkvi_tier_end(struct pkvi_tier *t)
{
    pkvi_hot_scored(t);
    for (uint32_t p = 0; p < t->part_count; p++) {
        struct pkvi_tier_seq *seq = &t->seq[t->part[p].seq];
        seq->tokens = t->part[p].tokens + t->part[p].rows;
        seq->indexed = seq->tokens / PKV_PAGE_TOKENS;
        seq->placed = seq->placed || seq->placing;
        seq->placing = false;
    }
    t->check.chosen = false;
    PKV_TRY(t->recalls ? pkvi_recall_end(t) : PKV_OK);
    return t->config.host ? pkvi_transfer_store_pass(t) : PKV_OK;
}

/* A buffered layer as it was before the pass, but for its tail, which is on the host. */
static void unbuffer(struct pkvi_tier *t, const struct pkvi_tier_part *part, uint32_t layer)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    struct pkvi_tier_state *state = &t->seq[part->seq].state[layer];
    for (uint32_t i = 0; i < state->keep_count * l->info.kv_heads; i++) {
        pkvi_page_release(t, &state->kept[i]);
    }
    /* also those before, which a hot set's ring was to have */
    pkvi_pages_drop(t, part->seq, layer, 0, pkvi_pages_of(part->tokens + part->rows));
    if (state->open_release) {
        pkv_addr *row = pkvi_tier_row(t, part->seq, state->first_page) + l->head_base;
        memcpy(row, state->open_page, l->info.kv_heads * sizeof *row);
        pkvi_pages_dirty(&t->seq[part->seq], state->first_page);
        state->open_release = false;
    }
    state->buffered = false;
}

enum pkv_status pkvi_tier_abort(struct pkvi_tier *t)
{
    if (t->config.host) { /* whatever was stored must not come after what takes its place */
        PKV_TRY(pkvi_transfer_settle_stores(t));
    }
    for (uint32_t p = 0; p < t->part_count; p++) {
        const struct pkvi_tier_part *part = &t->part[p];
        struct pkvi_tier_seq *seq = &t->seq[part->seq];
        for (uint32_t l = 0; l < t->config.layers; l++) {
            if (t->layer[l].global && seq->state[l].buffered) {
                unbuffer(t, part, l);
            }
        }
        seq->settle = false;
        pkvi_hot_forget(t, part->seq); /* it may have been changed by half */
        seq->tokens = part->tokens + part->rows;
        PKV_TRY(pkvi_tier_seq_truncate(t, part->seq, part->tokens));
    }
    t->part_count = 0;
    t->check.waiting = false;
    return PKV_OK;
}

void pkvi_tier_report(struct pkvi_tier *t, struct pkv_kv_report *report_out)
{
    *report_out = t->report;
    report_out->device_bytes_most = t->sizes.device_bytes;
    report_out->page_bytes = t->unit_bytes;
    if (t->recalls) {
        pkvi_recall_report(t, report_out);
    }
    report_out->pages_used = t->pages.count - t->pages.free_count;
    for (uint32_t s = 0; s < t->slots; s++) {
        for (uint32_t l = 0; t->seq[s].share != PKVI_NO_PLACE && l < t->config.layers; l++) {
            report_out->streamed_layers += t->seq[s].state[l].first_page > 0;
        }
    }
}

void pkvi_tier_layer_report(const struct pkvi_tier *t, uint32_t layer,
                            struct pkv_kv_layer_report *report_out)
{
    *report_out = t->check.of_layer[layer];
}
