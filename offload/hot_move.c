/*
 * hot_move.c: hot sets that go as they are: to a parking and back, into a fork, to a file and back.
 *
 * What goes is all pages of slots, layer by layer, and behind them the *state*: keys of slots and
 * ring, tokens of slots. The ring's pages are blocks like others, and on the host. Which pages
 * there are, and where a KV head's slots begin, the host knows: for a file it is described by a
 * struct pkvi_hot_saved.
 */
#include <string.h>

#include "offload/hot_set.h"
#include "runtime/base/hash.h"

/* Bytes [first, end) of what goes, in `memory` or to be there. */
struct window {
    struct pkvi_copies *copies;
    pkv_addr memory;
    uint64_t first, end, at;
    bool load;
};

static enum pkv_status move_part(struct window *w, pkv_addr device, uint64_t bytes)
{
    const uint64_t begin = w->at > w->first ? w->at : w->first;
    const uint64_t end = w->at + bytes < w->end ? w->at + bytes : w->end;
    const pkv_addr part = device + (begin - w->at), memory = w->memory + (begin - w->first);
    w->at += bytes;
    return begin < end ? pkvi_copies_add(w->copies, w->load ? part : memory,
                                         w->load ? memory : part, end - begin)
                       : PKV_OK;
}

static enum pkv_status move_window(struct window *w, uint32_t s)
{
    const struct pkvi_tier *t = w->copies->tier;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const pkv_addr *table = pkvi_tier_uploaded(t, pkvi_hot_row(t, s, l));
        const uint32_t entries = layer->hot_slots / PKV_PAGE_TOKENS * layer->info.kv_heads;
        for (uint32_t i = 0; layer->global && i < entries; i++) {
            if (table[i] != 0) {
                PKV_TRY(move_part(w, table[i], layer->page_bytes));
            }
        }
    }
    return move_part(w, t->hot_state + t->seq[s].share * t->hot_state_bytes, t->hot_state_bytes);
}

static enum pkv_status move_all(struct pkvi_copies *copies, uint32_t s, pkv_addr memory, bool load)
{
    struct window window = {.copies = copies, .memory = memory, .end = UINT64_MAX, .load = load};
    return move_window(&window, s);
}

static uint64_t all_bytes(const struct pkvi_tier *t)
{
    uint64_t bytes = t->hot_state_bytes;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        for (uint32_t h = 0; layer->global && h < layer->info.kv_heads; h++) {
            bytes += (uint64_t)t->hot_pages[layer->head_base + h] * layer->page_bytes;
        }
    }
    return bytes;
}

static pkv_addr parking_of(const struct pkvi_tier *t, uint32_t parking)
{
    return t->parked_rings + (parking + 1ull) * t->sizes.parking_bytes - t->parking_slot_bytes;
}

enum pkv_status pkvi_hot_park(struct pkvi_copies *copies, uint32_t s, uint32_t parking)
{
    struct pkvi_tier *t = copies->tier;
    return t->seq[s].placed ? move_all(copies, s, parking_of(t, parking), false) : PKV_OK;
}

void pkvi_hot_parked(struct pkvi_tier *t, uint32_t s)
{
    if (t->hot_pages) {
        pkvi_hot_release_slots(t, s);
    }
    t->seq[s].hot = t->seq[s].picking = false;
    if (!t->seq[s].placed) { /* its index went with its share */
        t->seq[s].indexed = 0;
    }
}

/* Pages for slots and ring; the ring's come from the host. */
static enum pkv_status arrive(struct pkvi_copies *copies, uint32_t s)
{
    struct pkvi_tier *t = copies->tier;
    const uint32_t end = pkvi_pages_of(t->seq[s].tokens);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_tier_state *state = &t->seq[s].state[l];
        if (!t->layer[l].global) {
            continue;
        }
        PKV_TRY(pkvi_hot_take_slots(t, s, l));
        PKV_TRY(pkvi_pages_add(t, s, l, state->ring_first, end));
        PKV_TRY(pkvi_transfer_blocks(copies, s, l, state->ring_first, end, true));
        state->first_page = state->ring_first;
        pkvi_hot_write_ring(t, s, l, end);
    }
    return PKV_OK;
}

enum pkv_status pkvi_hot_unpark(struct pkvi_copies *copies, uint32_t s, uint32_t parking)
{
    struct pkvi_tier *t = copies->tier;
    if (!t->seq[s].placed) {
        return PKV_OK;
    }
    PKV_TRY(arrive(copies, s));
    PKV_TRY(move_all(copies, s, parking_of(t, parking), true));
    t->seq[s].tables_changed = t->seq[s].tables_missing = true;
    return PKV_OK;
}

enum pkv_status pkvi_hot_fork(struct pkvi_tier *t, uint32_t from, uint32_t to)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    if (!t->seq[from].placed) {
        return PKV_OK;
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const uint32_t entries = layer->hot_slots / PKV_PAGE_TOKENS * layer->info.kv_heads;
        const pkv_addr *a = pkvi_tier_uploaded(t, pkvi_hot_row(t, from, l)),
                       *b = pkvi_tier_uploaded(t, pkvi_hot_row(t, to, l));
        if (!t->layer[l].global) {
            continue;
        }
        PKV_TRY(pkvi_hot_take_slots(t, to, l));
        for (uint32_t i = 0; i < entries; i++) {
            if (a[i] != 0) {
                PKV_TRY(pkvi_copies_add(&copies, b[i], a[i], layer->page_bytes));
            }
        }
        memcpy(pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, to, l)),
               pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, from, l)),
               layer->info.kv_heads * sizeof(uint32_t));
        t->seq[to].state[l].ring_first = t->seq[from].state[l].ring_first;
        pkvi_hot_write_ring(t, to, l, pkvi_pages_of(t->seq[to].tokens));
    }
    PKV_TRY(pkvi_copies_add(&copies, t->hot_state + t->seq[to].share * t->hot_state_bytes,
                            t->hot_state + t->seq[from].share * t->hot_state_bytes,
                            t->hot_state_bytes));
    t->seq[to].tables_changed = t->seq[to].tables_missing = t->seq[to].placed = true;
    t->seq[to].indexed = t->seq[from].indexed;
    return pkvi_copies_flush(&copies);
}

/* ---- files ---- */

uint32_t pkvi_tier_hot_words(const struct pkvi_tier_config *config)
{
    uint32_t words = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        words += info->kind == PKV_LAYER_GLOBAL ? 1 + 2 * info->kv_heads : 0;
    }
    return words;
}

void pkvi_tier_hot_describe(const struct pkvi_tier *t, uint32_t s, struct pkvi_hot_saved *out,
                            uint32_t *word)
{
    memset(out, 0, sizeof *out);
    if (!t->hot_pages || !t->seq[s].placed) {
        return;
    }
    *out = (struct pkvi_hot_saved){
        .recipe = pkvi_hash(&t->config.policy->recipe, sizeof t->config.policy->recipe, 0),
        .bytes = all_bytes(t),
        .ring_pages = t->tail_pages};
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        if (!layer->global) {
            continue;
        }
        const uint32_t heads = layer->info.kv_heads;
        *word++ = t->seq[s].state[l].ring_first;
        memcpy(word, &t->hot_pages[layer->head_base], heads * sizeof *word);
        memcpy(word + heads, pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, s, l)),
               heads * sizeof *word);
        word += 2 * heads;
    }
}

/* Is it of a hot set with the same pages? */
static bool same_shape(const struct pkvi_tier *t, const struct pkvi_hot_saved *saved,
                       const uint32_t *word)
{
    bool same =
        saved->recipe == pkvi_hash(&t->config.policy->recipe, sizeof t->config.policy->recipe, 0) &&
        saved->bytes == all_bytes(t) && saved->ring_pages == t->tail_pages;
    for (uint32_t l = 0; same && l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        if (layer->global) {
            const uint32_t heads = layer->info.kv_heads;
            same = memcmp(word + 1, &t->hot_pages[layer->head_base], heads * sizeof *word) == 0;
            word += 1 + 2 * heads;
        }
    }
    return same;
}

static bool layer_holds(const struct pkvi_tier *t, uint32_t s, uint32_t l, const uint32_t *word)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const uint32_t heads = layer->info.kv_heads, tokens = t->seq[s].tokens;
    bool holds =
        word[0] <= tokens / PKV_PAGE_TOKENS && pkvi_pages_of(tokens) - word[0] <= t->tail_pages;
    for (uint32_t h = 0; h < heads; h++) {
        const uint32_t first = word[1 + heads + h];
        holds = holds && first <= layer->hot_slots &&
                layer->hot_slots - first <= word[1 + h] * PKV_PAGE_TOKENS;
    }
    return holds;
}

enum pkv_status pkvi_tier_hot_adopt(struct pkvi_tier *t, uint32_t s,
                                    const struct pkvi_hot_saved *saved, const uint32_t *word,
                                    bool *adopted_out)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    *adopted_out = t->hot_pages && saved->bytes > 0 && pkvi_hot_wanted(t, t->seq[s].tokens) &&
                   same_shape(t, saved, word);
    if (!*adopted_out) {
        return PKV_OK;
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (!t->layer[l].global) {
            continue;
        }
        const uint32_t heads = t->layer[l].info.kv_heads;
        if (!layer_holds(t, s, l, word)) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "hot set of layer %u: its ring begins with page %u", l,
                            word[0]);
        }
        t->seq[s].state[l].ring_first = word[0];
        memcpy(pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, s, l)), word + 1 + heads,
               heads * sizeof *word);
        word += 1 + 2 * heads;
    }
    PKV_TRY(arrive(&copies, s));
    t->seq[s].tables_changed = t->seq[s].tables_missing = t->seq[s].placed = true;
    t->seq[s].indexed = t->seq[s].tokens / PKV_PAGE_TOKENS;
    return pkvi_copies_flush(&copies);
}

enum pkv_status pkvi_tier_hot_move(struct pkvi_tier *t, uint32_t s, uint64_t first, uint64_t bytes,
                                   pkv_addr memory, bool load)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    struct window window = {
        .copies = &copies, .memory = memory, .first = first, .end = first + bytes, .load = load};
    if (t->seq[s].share == PKVI_NO_PLACE) { /* parked: it lies there as it goes */
        PKV_TRY(move_part(&window, parking_of(t, t->seq[s].parked), UINT64_MAX));
    } else {
        PKV_TRY(pkvi_transfer_arrived(t, s));
        PKV_TRY(move_window(&window, s));
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    return pkvi_stream_sync(t->compute);
}

uint32_t pkvi_tier_hot_slots(const struct pkvi_tier *t, uint32_t s, uint32_t l, uint32_t head)
{
    if (!t->hot_pages || !t->seq[s].placed || !t->layer[l].global ||
        head >= t->layer[l].info.kv_heads) {
        return 0;
    }
    const uint32_t *first = pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, s, l));
    return t->layer[l].hot_slots - first[head];
}

uint32_t pkvi_tier_hot_ring(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    const bool hot = t->hot_pages && t->seq[s].placed && t->layer[l].global;
    return hot ? t->seq[s].state[l].ring_first * PKV_PAGE_TOKENS : 0;
}

enum pkv_status pkvi_tier_hot_tokens(struct pkvi_tier *t, uint32_t s, uint32_t l, uint32_t head,
                                     pkv_addr memory)
{
    const uint64_t slots = t->layer[l].hot_slots, count = pkvi_tier_hot_slots(t, s, l, head);
    const uint64_t first = all_bytes(t) - t->hot_state_bytes + pkvi_hot_tokens_at(t, l) +
                           ((head + 1) * slots - count) * sizeof(int32_t);
    return pkvi_tier_hot_move(t, s, first, count * sizeof(int32_t), memory, false);
}
