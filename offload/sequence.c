/*
 * sequence.c: what becomes of sequences between passes: opened, cut, forked, parked, read out,
 * filled. No pass is running; what is enqueued here is ordered before the next one.
 */
#include <string.h>

#include "offload/tier_impl.h"

static enum pkv_status take_share(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    seq->share = pkvi_places_take(&t->shares);
    if (seq->share == PKVI_NO_PLACE) {
        return PKV_FAIL(PKV_ERR_NO_SLOT, "all %u sequences on the device are in use",
                        t->config.sequences);
    }
    pkvi_tier_write_views(t, s);
    return PKV_OK;
}

static void release_place(struct pkvi_places *places, uint32_t *place)
{
    if (*place != PKVI_NO_PLACE) {
        pkvi_places_release(places, *place);
    }
    *place = PKVI_NO_PLACE;
}

enum pkv_status pkvi_tier_seq_open(struct pkvi_tier *t, uint32_t s)
{
    t->seq[s].tokens = 0;
    t->seq[s].dirty_first = UINT32_MAX;
    t->seq[s].dirty_end = 0;
    t->seq[s].indexed = t->seq[s].listed = 0;
    return take_share(t, s);
}

/* The first sliding layer whose ring has lost what a row at `tokens` looks back on, or layers. */
static uint32_t lost_ring(const struct pkvi_tier_config *config, uint32_t high, uint32_t tokens)
{
    uint32_t l = 0;
    for (; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        const uint64_t ring = (uint64_t)pkvi_tier_layer_pages(config, l) * PKV_PAGE_TOKENS;
        const uint32_t first = tokens + 1 > info->window ? tokens + 1 - info->window : 0;
        if (info->kind == PKV_LAYER_SLIDING && first + ring < high) {
            break;
        }
    }
    return l;
}

bool pkvi_tier_rings_hold(const struct pkvi_tier_config *config, uint32_t high, uint32_t tokens)
{
    return lost_ring(config, high, tokens) == config->layers;
}

enum pkv_status pkvi_tier_check_cut(const struct pkvi_tier_config *config, uint32_t present,
                                    uint32_t high, uint32_t tokens)
{
    if (tokens > present) {
        return PKV_FAIL(PKV_ERR_RANGE, "truncate to %u tokens: the sequence has %u", tokens,
                        present);
    }
    if (config->policy && config->policy->prune && tokens > 0 && tokens < present) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "truncate to %u of %u tokens: policy %s has dropped entries before that",
                        tokens, present, config->policy->name);
    }
    const uint32_t l = lost_ring(config, high, tokens);
    if (tokens > 0 && tokens < present && l < config->layers) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "truncate to %u tokens: layer %u keeps a ring of %u tokens, and %u "
                        "were written",
                        tokens, l, pkvi_tier_layer_pages(config, l) * PKV_PAGE_TOKENS, high);
    }
    return PKV_OK;
}

/* One layer keeps `full` whole blocks and, where `open`, a part of the next. */
static enum pkv_status truncate_layer(struct pkvi_tier *t, uint32_t s, uint32_t layer,
                                      uint32_t full, bool open)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    struct pkvi_tier_state *state = &seq->state[layer];
    const uint32_t blocks = pkvi_pages_of(seq->tokens), keep = full + open;
    const bool on_host = open && pkvi_tier_row(t, s, full)[t->layer[layer].head_base] == 0;
    if (on_host && full < state->sealed) {
        PKV_TRY(pkvi_transfer_publish(t, state, full + 1));
    }
    t->left_unstored |= full < state->sealed && state->published < state->sealed;
    pkvi_pages_drop(t, s, layer, keep, blocks);
    for (uint32_t b = blocks; t->config.host && b-- > full + on_host;) {
        if (state->block[b] != PKVI_NO_PLACE) {
            pkvi_places_release(&t->blocks, state->block[b]);
            state->block[b] = PKVI_NO_PLACE;
        }
    }
    state->sealed = state->sealed < full ? state->sealed : full;
    state->recorded = state->recorded < full ? state->recorded : full;
    state->published = state->published < full ? state->published : full;
    state->first_page = state->first_page < full ? state->first_page : full;
    state->streamed = state->streamed && keep > 0;
    return PKV_OK;
}

enum pkv_status pkvi_tier_seq_truncate(struct pkvi_tier *t, uint32_t s, uint32_t tokens)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    pkvi_tier_settle(t, s);
    PKV_TRY(pkvi_transfer_arrived(t, s));
    if (!pkvi_hot_survives(t, s, tokens)) {
        pkvi_hot_forget(t, s);
    }
    pkvi_hot_unscore(t, s);
    t->check.waiting = t->check.waiting && t->check.seq != s; /* its blocks may be others' soon */
    const uint32_t full = tokens / PKV_PAGE_TOKENS;
    seq->indexed = seq->indexed < full ? seq->indexed : full;
    seq->listed = seq->listed < full ? seq->listed : full;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            PKV_TRY(truncate_layer(t, s, l, full, tokens % PKV_PAGE_TOKENS != 0));
        }
    }
    seq->tokens = tokens;
    return PKV_OK;
}

void pkvi_tier_seq_close(struct pkvi_tier *t, uint32_t s)
{
    (void)pkvi_tier_seq_truncate(t, s, 0); /* to 0 it waits for nothing */
    release_place(&t->shares, &t->seq[s].share);
    release_place(&t->parkings, &t->seq[s].parked);
}

/* The same blocks and pages, with one owner more. */
static void share_layer(struct pkvi_tier *t, uint32_t from, uint32_t to, uint32_t layer)
{
    const struct pkvi_tier_state *a = &t->seq[from].state[layer];
    struct pkvi_tier_state *b = &t->seq[to].state[layer];
    const uint32_t blocks = pkvi_pages_of(t->seq[from].tokens);
    const uint32_t base = t->layer[layer].head_base, heads = t->layer[layer].info.kv_heads;
    b->streamed = a->streamed;
    b->first_page = a->first_page;
    b->sealed = a->sealed;
    b->recorded = a->recorded;
    b->published = a->published;
    for (uint32_t i = 0; i < blocks; i++) {
        const pkv_addr *row = pkvi_tier_row(t, from, i) + base;
        memcpy(pkvi_tier_row(t, to, i) + base, row, heads * sizeof *row);
        for (uint32_t h = 0; h < heads; h++) {
            pkvi_page_retain(t, row[h]);
        }
        if (t->config.host && a->block[i] != PKVI_NO_PLACE) {
            b->block[i] = a->block[i];
            pkvi_places_retain(&t->blocks, b->block[i]);
        }
        pkvi_pages_dirty(&t->seq[to], i);
    }
}

enum pkv_status pkvi_tier_seq_fork(struct pkvi_tier *t, uint32_t from, uint32_t to)
{
    pkvi_tier_settle(t, from);
    PKV_TRY(pkvi_transfer_arrived(t, from));
    PKV_TRY(pkvi_tier_seq_open(t, to));
    t->seq[to].tokens = t->seq[from].tokens;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            share_layer(t, from, to, l);
        }
    }
    PKV_TRY(pkvi_hot_fork(t, from, to));
    return pkvi_transfer_fork_rings(t, t->seq[from].share, t->seq[to].share);
}

/* The block that a layer goes on in, to the host, in a block of its own. */
static enum pkv_status store_open_block(struct pkvi_copies *copies, uint32_t s, uint32_t layer)
{
    struct pkvi_tier *t = copies->tier;
    const uint32_t open = t->seq[s].tokens / PKV_PAGE_TOKENS;
    struct pkvi_tier_state *state = &t->seq[s].state[layer];
    if (t->seq[s].tokens % PKV_PAGE_TOKENS == 0 ||
        pkvi_tier_row(t, s, open)[t->layer[layer].head_base] == 0) {
        return PKV_OK;
    }
    if (state->block[open] != PKVI_NO_PLACE) { /* an older state of it, maybe a fork's */
        pkvi_places_release(&t->blocks, state->block[open]);
    }
    state->block[open] = pkvi_places_take(&t->blocks);
    if (state->block[open] == PKVI_NO_PLACE) {
        return PKV_FAIL(PKV_ERR_STATE, "KV tier: no host block left of %u", t->blocks.count);
    }
    return pkvi_transfer_blocks(copies, s, layer, open, open + 1, false);
}

enum pkv_status pkvi_tier_seq_park(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    struct pkvi_copies copies = {.tier = t, .stream = t->store};
    const uint32_t parking = pkvi_places_take(&t->parkings);
    if (parking == PKVI_NO_PLACE) {
        return PKV_FAIL(PKV_ERR_NO_SLOT, "all %u places for parked sequences are in use",
                        t->config.parked);
    }
    seq->parked = parking;
    pkvi_tier_settle(t, s);
    PKV_TRY(pkvi_transfer_arrived(t, s));
    PKV_TRY(pkvi_transfer_before_park(t));
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            PKV_TRY(store_open_block(&copies, s, l));
        }
    }
    PKV_TRY(pkvi_transfer_park_rings(&copies, seq->share, parking, false));
    PKV_TRY(pkvi_hot_park(&copies, s, parking));
    PKV_TRY(pkvi_copies_flush(&copies));
    PKV_TRY(pkvi_transfer_settle_stores(t));
    pkvi_hot_parked(t, s);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            pkvi_pages_drop(t, s, l, seq->state[l].first_page, pkvi_pages_of(seq->tokens));
            seq->state[l].first_page = seq->tokens / PKV_PAGE_TOKENS;
        }
    }
    release_place(&t->shares, &seq->share);
    return PKV_OK;
}

/* Pages of the layers that are DENSE, whose blocks are all on the host. */
static enum pkv_status load_dense(struct pkvi_copies *copies, uint32_t s)
{
    struct pkvi_tier *t = copies->tier;
    const uint32_t blocks = pkvi_pages_of(t->seq[s].tokens);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_tier_state *state = &t->seq[s].state[l];
        if (!t->layer[l].global || state->streamed) {
            continue;
        }
        PKV_TRY(pkvi_pages_add(t, s, l, 0, blocks));
        PKV_TRY(pkvi_transfer_blocks(copies, s, l, 0, blocks, true));
        state->first_page = 0;
    }
    return PKV_OK;
}

enum pkv_status pkvi_tier_seq_unpark(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    struct pkvi_copies copies = {.tier = t, .stream = t->load};
    PKV_TRY(take_share(t, s));
    PKV_TRY(pkvi_transfer_before_reuse(t));
    PKV_TRY(pkvi_transfer_after_compute(t, t->load));
    PKV_TRY(load_dense(&copies, s));
    PKV_TRY(pkvi_transfer_park_rings(&copies, seq->share, seq->parked, true));
    PKV_TRY(pkvi_hot_unpark(&copies, s, seq->parked));
    PKV_TRY(pkvi_copies_flush(&copies));
    release_place(&t->parkings, &seq->parked);
    return pkvi_transfer_arriving(t, s);
}

bool pkvi_tier_seq_parked(const struct pkvi_tier *t, uint32_t s)
{
    return t->seq[s].parked != PKVI_NO_PLACE;
}

uint64_t pkvi_tier_block_bytes(const struct pkvi_tier *t, uint32_t layer)
{
    return (uint64_t)t->layer[layer].info.kv_heads * t->layer[layer].page_bytes;
}

/* Where a block's page of a KV head lies: on the device if it does, else on the host. */
static pkv_addr page_at(const struct pkvi_tier *t, uint32_t s, uint32_t layer, uint32_t block,
                        uint32_t head)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    const struct pkvi_tier_seq *seq = &t->seq[s];
    const uint64_t at = (uint64_t)head * l->page_bytes;
    if (l->global) {
        const pkv_addr page = pkvi_tier_row(t, s, block)[l->head_base + head];
        return page != 0 ? page : pkvi_host_block_addr(t, seq->state[layer].block[block]) + at;
    }
    pkv_addr ring = l->ring + seq->share * pkvi_tier_ring_bytes(l);
    if (seq->share == PKVI_NO_PLACE) {
        ring = t->parked_rings + seq->parked * t->sizes.parking_bytes;
        for (uint32_t before = 0; before < layer; before++) {
            ring += pkvi_tier_ring_bytes(&t->layer[before]);
        }
    }
    return ring + block % l->ring_pages * pkvi_tier_block_bytes(t, layer) + at;
}

static enum pkv_status move_blocks(struct pkvi_tier *t, uint32_t s, uint32_t layer, uint32_t first,
                                   uint32_t count, pkv_addr memory, bool in)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const struct pkvi_tier_layer *l = &t->layer[layer];
    for (uint32_t b = first; b < first + count; b++) {
        for (uint32_t h = 0; h < l->info.kv_heads; h++, memory += l->page_bytes) {
            const pkv_addr page = page_at(t, s, layer, b, h);
            PKV_TRY(
                pkvi_copies_add(&copies, in ? page : memory, in ? memory : page, l->page_bytes));
        }
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    return pkvi_stream_sync(t->compute);
}

enum pkv_status pkvi_tier_seq_read(struct pkvi_tier *t, uint32_t s, uint32_t layer, uint32_t first,
                                   uint32_t count, pkv_addr memory)
{
    pkvi_tier_settle(t, s);
    PKV_TRY(pkvi_transfer_arrived(t, s));
    if (t->config.host) {
        PKV_TRY(pkvi_transfer_settle_stores(t));
    }
    return move_blocks(t, s, layer, first, count, memory, false);
}

enum pkv_status pkvi_tier_seq_write(struct pkvi_tier *t, uint32_t s, uint32_t layer, uint32_t first,
                                    uint32_t count, pkv_addr memory)
{
    return move_blocks(t, s, layer, first, count, memory, true);
}

enum pkv_status pkvi_tier_seq_fill(struct pkvi_tier *t, uint32_t s, uint32_t tokens)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    const uint32_t blocks = pkvi_pages_of(tokens), full = tokens / PKV_PAGE_TOKENS;
    seq->tokens = tokens;
    if (t->config.host) { /* what is stored last into a block must not come after its new bytes */
        PKV_TRY(pkvi_transfer_settle_stores(t));
    }
    if (t->sizes.tile_tokens > 0 && !t->hot_pages) {
        pkvi_tier_demote(t, s, tokens);
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_tier_state *state = &seq->state[l];
        state->streamed = state->streamed || pkvi_hot_wanted(t, tokens);
        if (t->layer[l].global && !t->config.host) {
            PKV_TRY(pkvi_pages_add(t, s, l, 0, blocks));
        }
        for (uint32_t b = 0; t->layer[l].global && t->config.host && b < blocks; b++) {
            state->block[b] = pkvi_places_take(&t->blocks);
            if (state->block[b] == PKVI_NO_PLACE) {
                return PKV_FAIL(PKV_ERR_STATE, "KV tier: no host block left of %u",
                                t->blocks.count);
            }
        }
        if (t->layer[l].global && t->config.host) {
            state->sealed = state->recorded = state->published = state->first_page = full;
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_tier_seq_filled(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    if (t->config.host) {
        PKV_TRY(load_dense(&copies, s));
        PKV_TRY(pkvi_copies_flush(&copies));
    }
    return PKV_OK;
}
