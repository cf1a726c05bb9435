/*
 * hot_set.c: sequences that are HOT: what of them is on the device, pass by pass.
 *
 * A sequence whose own tokens do not fit its budget is HOT in every global layer. Of each KV head
 * it has a ring of the latest pages and *slots* with single entries, both reached through one view
 * (kernels/kernels.h): keys [0, hot_slots) are slots, what follows is the ring. Everything is in
 * host memory too.
 *
 *   exact pass   (a prompt, many rows, or a hot set that is not up to date) attends to everything,
 * as a STREAMED layer does; then the slots are filled anew from what its rows attended to (SCORE,
 * PLACE) decode pass  attends to slots and ring alone. When the ring is full its first page leaves:
 * its tokens are dropped or compete with the slots (COMPETE), as the policy says
 *
 * Which tokens are where only the device knows; the host knows how many.
 */
#include <string.h>

#include "offload/hot_set.h"
#include "runtime/base/layout.h"

static const struct pkv_recipe *recipe_of(const struct pkvi_tier *t)
{
    return &t->config.policy->recipe;
}

static pkv_addr least_keys(const struct pkvi_tier *t, uint32_t l)
{
    return t->least_keys + t->layer[l].head_base * sizeof(uint32_t);
}

struct pkv_kv_view pkvi_hot_view(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const struct pkvi_tier_state *state = &t->seq[s].state[l];
    return (struct pkv_kv_view){
        .page = pkvi_hot_row(t, s, l),
        .head_stride = 1,
        .page_stride = layer->info.kv_heads,
        .ring_pages = layer->hot_slots / PKV_PAGE_TOKENS + t->tail_pages,
        .first_key = pkvi_tier_first_keys(t, s, l),
        .key_shift = state->ring_first * PKV_PAGE_TOKENS - layer->hot_slots,
        .score_stride = pkvi_hot_score_stride(t, l),
        .score = pkvi_hot_scores(t, s, l),
    };
}

bool pkvi_hot_wanted(const struct pkvi_tier *t, uint32_t tokens)
{
    const uint64_t beyond = (uint64_t)t->row_entries * t->sizes.keep_pages;
    return t->hot_pages &&
           (uint64_t)t->row_entries * pkvi_pages_of(tokens) + beyond > t->sizes.quota_pages;
}

/* Slots of a KV head that a prompt fills, when `end` tokens are before the ring. */
static uint32_t fill_of(const struct pkvi_tier *t, uint32_t entry, uint32_t end)
{
    const struct pkv_recipe *recipe = recipe_of(t);
    uint32_t fill = (t->hot_pages[entry] - t->sizes.keep_pages) * PKV_PAGE_TOKENS;
    if (recipe->prompt == PKV_PROMPT_TAIL && recipe->sinks < fill) {
        fill = recipe->sinks;
    }
    return fill < end ? fill : end;
}

/* `kept`: of a buffered layer, after the pass. */
void pkvi_hot_write_ring(struct pkvi_tier *t, uint32_t s, uint32_t l, uint32_t end_page)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const struct pkvi_tier_state *state = &t->seq[s].state[l];
    const uint32_t heads = layer->info.kv_heads;
    pkv_addr *out = (pkv_addr *)pkvi_tier_uploaded(t, pkvi_hot_row(t, s, l)) +
                    layer->hot_slots / PKV_PAGE_TOKENS * heads;
    for (uint32_t b = state->ring_first; b < end_page; b++, out += heads) {
        const bool kept = state->buffered && b >= state->keep_first;
        const pkv_addr *row = kept ? state->kept + (b - state->keep_first) * heads
                                   : pkvi_tier_row(t, s, b) + layer->head_base;
        if (memcmp(out, row, heads * sizeof *row) != 0) {
            memcpy(out, row, heads * sizeof *row);
            t->seq[s].tables_changed = true;
        }
    }
}

enum pkv_status pkvi_hot_take_slots(struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const uint32_t heads = layer->info.kv_heads, rows = layer->hot_slots / PKV_PAGE_TOKENS;
    pkv_addr *table = pkvi_tier_uploaded(t, pkvi_hot_row(t, s, l));
    for (uint32_t h = 0; h < heads; h++) {
        const uint32_t pages = t->hot_pages[layer->head_base + h];
        for (uint32_t p = rows - pages; p < rows; p++) {
            if (table[p * heads + h] == 0) {
                PKV_TRY(pkvi_page_take(t, &table[p * heads + h]));
            }
        }
    }
    return PKV_OK;
}

void pkvi_hot_release_slots(struct pkvi_tier *t, uint32_t s)
{
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const uint32_t heads = layer->info.kv_heads, rows = layer->hot_slots / PKV_PAGE_TOKENS;
        pkv_addr *table = pkvi_tier_uploaded(t, pkvi_hot_row(t, s, l));
        for (uint32_t i = 0; layer->global && i < rows * heads; i++) {
            pkvi_page_release(t, &table[i]);
        }
    }
}

void pkvi_hot_forget(struct pkvi_tier *t, uint32_t s)
{
    if (t->hot_pages) {
        pkvi_hot_release_slots(t, s);
    }
    t->seq[s].placed = t->seq[s].placing = t->seq[s].picking = t->seq[s].hot = false;
}

bool pkvi_hot_survives(const struct pkvi_tier *t, uint32_t s, uint32_t tokens)
{
    bool whole = t->seq[s].placed && pkvi_hot_wanted(t, tokens);
    for (uint32_t l = 0; whole && l < t->config.layers; l++) {
        const uint32_t recent = t->seq[s].state[l].ring_first + t->tail_pages - 2;
        whole = !t->layer[l].global || tokens >= recent * PKV_PAGE_TOKENS;
    }
    return whole;
}

/* The ring of a layer that an exact pass leaves: what the pass itself does not keep of it comes
 * from the host. */
static enum pkv_status fill_ring(struct pkvi_tier *t, const struct pkvi_tier_part *part, uint32_t l)
{
    struct pkvi_tier_state *state = &t->seq[part->seq].state[l];
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const uint32_t end = pkvi_pages_of(part->tokens + part->rows), most = t->tail_pages - 1;
    const uint32_t have = state->first_page;
    uint32_t first = end > most ? end - most : 0;
    if (!state->buffered && have < first) { /* else it goes on with what the pass keeps */
        first = have;
    }
    for (uint32_t b = first; b < have; b++) {
        if (pkvi_tier_row(t, part->seq, b)[t->layer[l].head_base] == 0) {
            PKV_TRY(pkvi_pages_add(t, part->seq, l, b, b + 1));
            PKV_TRY(pkvi_transfer_blocks(&copies, part->seq, l, b, b + 1, true));
        }
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    state->ring_first = first;
    if (!state->buffered) {
        state->first_page = first;
    }
    return PKV_OK;
}

static enum pkv_status prepare_exact(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    const uint32_t end_page = pkvi_pages_of(part->tokens + part->rows);
    seq->hot = seq->placed = false;
    for (uint32_t l = 0; l < t->config.layers; l++) { /* what gives pages back comes first */
        if (t->layer[l].global) {
            seq->state[l].streamed = true;
            PKV_TRY(pkvi_tier_prepare_streamed(t, part, l));
        }
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (!t->layer[l].global) {
            continue;
        }
        const struct pkvi_tier_layer *layer = &t->layer[l];
        PKV_TRY(fill_ring(t, part, l));
        PKV_TRY(pkvi_hot_take_slots(t, part->seq, l));
        uint32_t *first = pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, part->seq, l));
        const uint32_t end = seq->state[l].ring_first * PKV_PAGE_TOKENS;
        for (uint32_t h = 0; h < layer->info.kv_heads; h++) {
            first[h] = layer->hot_slots - fill_of(t, layer->head_base + h, end);
        }
        pkvi_hot_write_ring(t, part->seq, l, end_page);
        /* where PLACE finds the entries that are not on the device */
        pkvi_recall_write_blocks(t, part->seq, l, 0, seq->state[l].first_page);
        struct pkv_kv_view *picked = pkvi_tier_uploaded(t, t->picked_views);
        picked[(uint64_t)l * t->slots + part->seq] = pkvi_hot_view(t, part->seq, l);
    }
    seq->placing = true;
    seq->listed = 0; /* those that this pass stores are not */
    return PKV_OK;
}

/* Slots of the KV head with the fewest that no token is in. */
static uint32_t free_slots(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    const uint32_t *free_end = pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, s, l));
    const uint32_t *least = pkvi_tier_uploaded(t, least_keys(t, l));
    uint32_t room = UINT32_MAX;
    for (uint32_t h = 0; h < t->layer[l].info.kv_heads; h++) {
        const uint32_t mine = free_end[h] - least[h];
        room = mine < room ? mine : room;
    }
    return room;
}

/* Tokens that leave the ring go for slots: by their keys, or to free ones. */
static enum pkv_status compete(struct pkvi_tier *t, const struct pkvi_tier_part *part, uint32_t l,
                               uint32_t pages)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const struct pkvi_tier_state *state = &t->seq[part->seq].state[l];
    const struct pkv_args_compete args = {
        .hot = pkvi_hot_view(t, part->seq, l),
        .slot_token = pkvi_hot_slot_tokens(t, part->seq, l),
        .least_key = least_keys(t, l),
        .resident = t->recalls ? pkvi_hot_scores(t, part->seq, l) + layer->recall.resident : 0,
        .resident_stride = layer->recall.blocks,
        .kv_type = t->config.kv_type,
        .kv_heads = layer->info.kv_heads,
        .head_dim = layer->info.head_dim,
        .slots = layer->hot_slots,
        .first_token = state->ring_first * PKV_PAGE_TOKENS,
        .leave = pages * PKV_PAGE_TOKENS,
        .tokens = part->tokens - state->ring_first * PKV_PAGE_TOKENS,
    };
    PKV_TRY(pkvi_transfer_compete(t, &args));
    t->seq[part->seq].tables_changed = true; /* first keys */
    uint32_t *free_end = pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, part->seq, l));
    const uint32_t *least = pkvi_tier_uploaded(t, least_keys(t, l));
    for (uint32_t h = 0; h < layer->info.kv_heads; h++) {
        const uint32_t room = free_end[h] - least[h];
        free_end[h] -= room < args.leave ? room : args.leave;
    }
    return PKV_OK;
}

/* What competes in a sequence's first pass goes by tables that no pass has uploaded. They are there
 * before the pinned twin is written for this one. */
static enum pkv_status bring_tables(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    if (!t->seq[s].tables_missing) {
        return PKV_OK;
    }
    PKV_TRY(pkvi_hot_upload_tables(&copies, s, false));
    PKV_TRY(pkvi_copies_flush(&copies));
    return pkvi_stream_sync(t->compute);
}

/* The first pages of the ring leave. */
static enum pkv_status leave(struct pkvi_tier *t, const struct pkvi_tier_part *part, uint32_t l,
                             uint32_t first)
{
    struct pkvi_tier_state *state = &t->seq[part->seq].state[l];
    const uint32_t pages = first - state->ring_first;
    const enum pkv_leave how = recipe_of(t)->leave;
    if (how == PKV_LEAVE_COMPETE ||
        (how == PKV_LEAVE_KEEP && free_slots(t, part->seq, l) >= pages * PKV_PAGE_TOKENS)) {
        PKV_TRY(compete(t, part, l, pages));
    }
    PKV_TRY(pkvi_transfer_publish(t, state, first));
    pkvi_pages_drop(t, part->seq, l, state->ring_first, first);
    state->ring_first = state->first_page = first;
    return PKV_OK;
}

/* Where RECALL finds what is before the ring. */
static enum pkv_status list_blocks(struct pkvi_tier *t, uint32_t s)
{
    struct pkvi_tier_seq *seq = &t->seq[s];
    uint32_t listed = UINT32_MAX;
    for (uint32_t l = 0; t->recalls && l < t->config.layers; l++) {
        if (t->layer[l].global) {
            const uint32_t end = seq->state[l].ring_first;
            PKV_TRY(pkvi_transfer_publish(t, &seq->state[l], end));
            pkvi_recall_write_blocks(t, s, l, seq->listed, end);
            listed = end < listed ? end : listed;
        }
    }
    seq->listing = t->recalls && seq->listed < listed;
    seq->listed = seq->listing ? listed : seq->listed;
    return PKV_OK;
}

static enum pkv_status prepare_decode(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    const uint32_t end = pkvi_pages_of(part->tokens + part->rows);
    const uint32_t open = part->tokens / PKV_PAGE_TOKENS;
    const uint32_t first = end > t->tail_pages ? end - t->tail_pages : 0;
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    seq->hot = true;
    seq->placing = false;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (!t->layer[l].global) {
            continue;
        }
        if (first > seq->state[l].ring_first) {
            PKV_TRY(bring_tables(t, part->seq));
            PKV_TRY(leave(t, part, l, first));
        }
        PKV_TRY(pkvi_tier_own_open_page(t, part, l));
        PKV_TRY(pkvi_pages_add(t, part->seq, l, open, end));
        pkvi_hot_write_ring(t, part->seq, l, end);
    }
    return list_blocks(t, part->seq);
}

/* All of it on the device again: it was cut. */
static enum pkv_status make_dense(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const uint32_t blocks = pkvi_pages_of(part->tokens);
    pkvi_hot_forget(t, part->seq);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_tier_state *state = &t->seq[part->seq].state[l];
        if (!t->layer[l].global || !state->streamed) {
            continue;
        }
        PKV_TRY(pkvi_transfer_publish(t, state, state->sealed));
        for (uint32_t b = 0; b < blocks; b++) {
            if (pkvi_tier_row(t, part->seq, b)[t->layer[l].head_base] == 0) {
                PKV_TRY(pkvi_pages_add(t, part->seq, l, b, b + 1));
                PKV_TRY(pkvi_transfer_blocks(&copies, part->seq, l, b, b + 1, true));
            }
        }
        state->first_page = 0;
        state->streamed = false;
    }
    return pkvi_copies_flush(&copies);
}

/* Do the scores that the lane has go on with this pass? Until it has ended they are no one's. */
static void begin_sums(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    t->seq[part->seq].summing = t->sums && part->exact && t->scored[t->lane].seq == part->seq &&
                                t->scored[t->lane].tokens == part->tokens;
    t->scored[t->lane].seq = PKVI_NO_PLACE;
}

void pkvi_hot_scored(struct pkvi_tier *t)
{
    const struct pkvi_tier_part *part = &t->part[0];
    const struct pkvi_tier_seq *seq = &t->seq[part->seq];
    if (t->sums && t->part_count == 1 && part->exact && (seq->placing || seq->scoring)) {
        t->scored[t->lane].seq = part->seq;
        t->scored[t->lane].tokens = part->tokens + part->rows;
    }
}

void pkvi_hot_unscore(struct pkvi_tier *t, uint32_t seq)
{
    for (uint32_t lane = 0; lane < PKVI_TIER_LANES; lane++) {
        if (t->scored[lane].seq == seq) {
            t->scored[lane].seq = PKVI_NO_PLACE;
        }
    }
}

enum pkv_status pkvi_hot_prepare(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    seq->listing = false;
    begin_sums(t, part);
    PKV_TRY(pkvi_recall_index_missing(t, part));
    if (!pkvi_hot_wanted(t, part->tokens + part->rows)) {
        PKV_TRY(make_dense(t, part));
        seq->scoring = t->sums && part->exact && part->goes_on;
        for (uint32_t l = 0; l < t->config.layers; l++) {
            if (t->layer[l].global) {
                PKV_TRY(pkvi_tier_prepare_dense(t, part, l));
            }
        }
        return PKV_OK;
    }
    seq->scoring = false;
    const bool few = part->rows <= PKV_PAGE_TOKENS && !part->exact;
    seq->picking = few && recipe_of(t)->pick != PKV_PICK_NONE;
    return few && seq->placed && !seq->picking ? prepare_decode(t, part) : prepare_exact(t, part);
}

/* Weights of the rows [first, first + rows) of a pass that ends with `window` rows that count. */
static void weigh(const struct pkv_recipe *recipe, uint32_t window, uint32_t place,
                  struct pkv_args_score *args)
{
    args->weight = 1.0f;
    args->weight_step = 0.0f;
    if (recipe->prompt == PKV_PROMPT_WINDOW && window > 1) {
        args->weight_step = (recipe->window_ramp - 1.0f) / (float)(window - 1);
        args->weight += (float)place * args->weight_step;
    }
}

/* Rows of a pass whose attention fills the slots: the last so many. */
static uint32_t window_of(const struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    const struct pkv_recipe *recipe = recipe_of(t);
    switch (recipe->prompt) {
    case PKV_PROMPT_WINDOW:
        return recipe->window_rows < part->rows ? recipe->window_rows : part->rows;
    case PKV_PROMPT_ALL_ROWS:
        return part->rows;
    case PKV_PROMPT_TAIL:
        break;
    }
    return 0;
}

/* How the rows of a row tile attended, if any of them counts. */
static enum pkv_status score_tile(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                  uint32_t span, const struct pkvi_tier_part *part)
{
    const struct pkv_row_span *at = &rows->host_spans[span];
    const uint32_t window = window_of(t, part), begin = part->tokens + part->rows - window;
    const uint32_t skip = begin > at->first_position ? begin - at->first_position : 0;
    if (skip >= at->rows) {
        return PKV_OK;
    }
    struct pkv_args_score args = pkvi_score_args(t, rows, span);
    args.skip_rows = skip;
    args.keep = at->first_position > begin || t->seq[part->seq].summing ? 1.0f : 0.0f;
    weigh(recipe_of(t), window, at->first_position + skip - begin, &args);
    return pkvi_stream_score(t, &args, part->seq, rows->layer);
}

/* What a slot's key is worth beside what decode will add to it: decode sums decay^i p. */
static float gain_of(const struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    const struct pkv_recipe *recipe = recipe_of(t);
    const uint32_t window = window_of(t, part);
    if (recipe->prompt != PKV_PROMPT_WINDOW || recipe->key == PKV_KEY_NONE ||
        recipe->decay >= 1.0f) {
        return 1.0f;
    }
    /* of the weights: that of a single row is 1 */
    const float last = window > 1 ? recipe->window_ramp : 1.0f;
    const float sum = (float)window * (1.0f + last) / 2.0f;
    return 1.0f / (sum * (1.0f - recipe->decay));
}

static enum pkv_status place(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                             const struct pkvi_tier_part *part)
{
    const struct pkv_recipe *recipe = recipe_of(t);
    const struct pkvi_tier_layer *layer = &t->layer[rows->layer];
    const struct pkvi_tier_state *state = &t->seq[part->seq].state[rows->layer];
    struct pkv_args_place args = {
        .from = t->host_views[(uint64_t)rows->layer * t->slots + part->seq],
        .to = pkvi_hot_view(t, part->seq, rows->layer),
        .blocks = pkvi_hot_blocks(t, part->seq, layer->number),
        .slot_token = pkvi_hot_slot_tokens(t, part->seq, rows->layer),
        .scratch = t->score_scratch,
        .kv_type = t->config.kv_type,
        .kv_heads = layer->info.kv_heads,
        .head_dim = layer->info.head_dim,
        .slots = layer->hot_slots,
        .end = state->ring_first * PKV_PAGE_TOKENS,
        .tokens = part->tokens + part->rows,
        .sinks = recipe->sinks,
        .pool = recipe->pool,
        .gain = gain_of(t, part),
    };
    if (recipe->prompt == PKV_PROMPT_TAIL) {
        args.from.score = 0;
    }
    if (recipe->pick == PKV_PICK_RANDOM) {
        args.pick = PKV_PLACE_RANDOM;
        args.seed = args.tokens * t->config.layers + rows->layer;
    }
    return pkvi_transfer_place(t, &args);
}

/* Attention once more, to what was picked. */
static enum pkv_status attend_picked(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                     uint32_t span)
{
    struct pkv_args_attend args = rows->attend;
    args.spans += (uint64_t)span * sizeof(struct pkv_row_span);
    args.span_count = 1;
    args.views = pkvi_hot_picked(t, rows->layer);
    return pkvi_launch(t->compute, t->attend_kernel, &args);
}

static const struct pkvi_tier_part *part_of(const struct pkvi_tier *t, uint32_t seq)
{
    uint32_t p = 0;
    while (t->part[p].seq != seq) {
        p++;
    }
    return &t->part[p];
}

/* Keys of hot sets: rows of the spans [first, first + count) attended to theirs. */
static enum pkv_status score_decode(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                    uint32_t first, uint32_t count)
{
    struct pkv_args_score args = pkvi_score_args(t, rows, first);
    args.span_count = count;
    args.weight = 1.0f;
    args.keep = recipe_of(t)->decay;
    return pkvi_launch(t->compute, t->score_kernel, &args);
}

/* Spans from `first` on that attended to hot sets. */
static uint32_t count_hot(const struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                          uint32_t first)
{
    uint32_t count = 0;
    while (first + count < rows->attend.span_count &&
           t->seq[rows->host_spans[first + count].view].hot) {
        count++;
    }
    return count;
}

enum pkv_status pkvi_hot_attended(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    for (uint32_t i = 0, count = 1; i < rows->attend.span_count; i += count) {
        const struct pkvi_tier_seq *seq = &t->seq[rows->host_spans[i].view];
        count = 1;
        if (seq->placing || seq->scoring) {
            const struct pkvi_tier_part *part = part_of(t, rows->host_spans[i].view);
            PKV_TRY(score_tile(t, rows, i, part));
            if (seq->placing && rows->last_tile) {
                PKV_TRY(place(t, rows, part));
                PKV_TRY(t->recalls ? pkvi_recall_start(t, rows, i) : PKV_OK);
            }
            if (seq->picking) {
                PKV_TRY(attend_picked(t, rows, i));
            }
        } else if (seq->hot && recipe_of(t)->key == PKV_KEY_MASS) {
            count = count_hot(t, rows, i);
            PKV_TRY(score_decode(t, rows, i, count));
        }
    }
    return PKV_OK;
}

void pkvi_hot_write_least(struct pkvi_tier *t)
{
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        for (uint32_t h = 0; layer->global && h < layer->info.kv_heads; h++) {
            uint32_t *least = pkvi_tier_uploaded(t, least_keys(t, l));
            least[h] = layer->hot_slots - t->hot_pages[layer->head_base + h] * PKV_PAGE_TOKENS;
        }
    }
}

enum pkv_status pkvi_hot_upload_tables(struct pkvi_copies *copies, uint32_t s, bool blocks)
{
    struct pkvi_tier *t = copies->tier;
    t->seq[s].tables_changed = t->seq[s].tables_missing = false;
    const pkv_addr parts[] = {pkvi_hot_row(t, s, 0) - t->layer[0].hot_base * sizeof(pkv_addr),
                              t->first_keys + (uint64_t)s * t->row_entries * sizeof(uint32_t),
                              pkvi_hot_blocks(t, s, 0)};
    const uint64_t bytes[] = {t->hot_entries * sizeof(pkv_addr), t->row_entries * sizeof(uint32_t),
                              (uint64_t)t->sizes.global_layers * t->blocks_max * sizeof(pkv_addr)};
    for (uint32_t i = 0; i < (blocks ? 3u : 2u); i++) {
        PKV_TRY(pkvi_copies_add(copies, parts[i], t->upload + (parts[i] - t->tables), bytes[i]));
    }
    return PKV_OK;
}

enum pkv_status pkvi_hot_upload(struct pkvi_copies *copies, uint32_t s)
{
    const struct pkvi_tier *t = copies->tier;
    const struct pkvi_tier_seq *seq = &t->seq[s];
    const bool picked = seq->picking || (seq->placing && t->recalls);
    for (uint32_t l = 0; picked && l < t->config.layers; l++) {
        const pkv_addr view =
            t->picked_views + ((uint64_t)l * t->slots + s) * sizeof(struct pkv_kv_view);
        PKV_TRY(pkvi_copies_add(copies, view, t->upload + (view - t->tables),
                                sizeof(struct pkv_kv_view)));
    }
    const bool changed = seq->placing || (seq->hot && (seq->tables_changed || seq->listing));
    return changed ? pkvi_hot_upload_tables(copies, s, seq->placing || seq->listing) : PKV_OK;
}
