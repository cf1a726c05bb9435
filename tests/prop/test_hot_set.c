/*
 * Hot sets under any policy. Method: random operations (prompts, steps of some sequences, cuts,
 * forks, parking, closing, passes that are left, steps within a prompt) on a tier with a random
 * recipe, budget and shape, beside a tier whose pages are all on the device, and a naive model
 * (tests/support/hot_model.h). Where a pass attends to everything the bits of the two tiers are
 * equal; else attention, keys and slots are what the model says of the slots that the device has.
 * After every operation pages are counted. PKVT_SEED=n runs one case.
 */
#include "offload/tier_impl.h"
#include "tests/support/hot_model.h"
#include "tests/support/hot_random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"

enum {
    LAYERS = PKVT_HOT_LAYERS,
    CONTEXT = PKVT_HOT_CONTEXT,
    COLS = PKVT_HOT_COLS,
    KV_COLS = PKVT_HOT_KV_COLS,
    SEQUENCES = 4,
    TILES = 16,
    SEEDS = 100,
    OPERATIONS = 30,
};

enum mode { DENSE, EXACT, HOT, PICK };

struct pass {
    uint32_t lane, rows, count, tile_rows;
    bool leave; /* before its end, at any unit */
    struct pkvi_tier_part part[SEQUENCES];
    enum mode mode[SEQUENCES];
    struct pkv_row_span spans[TILES][SEQUENCES];
};

/* Rows of a pass, one after the other in every layer. */
struct rows {
    float q[LAYERS][CONTEXT * COLS], k[LAYERS][CONTEXT * KV_COLS], v[LAYERS][CONTEXT * KV_COLS];
    float out[LAYERS][CONTEXT * COLS], plain[LAYERS][CONTEXT * COLS];
};

struct side {
    struct pkv_device *device;
    struct pkv_stream *compute;
    struct pkvi_tier *tier;
    void *scratch;
    uint64_t scratch_bytes;
};

static struct {
    struct pkvt_hot_shape shape;
    struct pkv_policy_ops policy;
    struct pkvi_tier_config config;
    struct side hot, plain;
    struct {
        uint32_t seq, tokens;
    } sums[PKVI_TIER_LANES]; /* whose scores of all rows of a prompt a lane has; SEQUENCES: none */
    struct pkvt_hot_seq seq[SEQUENCES];
    struct rows rows[PKVI_TIER_LANES];
    struct pkvt_rng rng;
} it;

static struct {
    uint32_t cases, refused, too_short, passes[4], left, competed, within, dense_again, reloaded,
        sets_kept, kept, summed;
    uint64_t checks;
    double worst_gap; /* of what a budget may leave */
} seen;

static uint32_t below(uint32_t limit)
{
    return pkvt_rng_below(&it.rng, limit);
}

static bool one_in(uint32_t times)
{
    return below(times) == 0;
}

static void open_side(struct side *side, const struct pkvi_tier_config *config,
                      enum pkv_schedule schedule)
{
    struct pkv_device_config device = pkv_device_config_default();
    device.threads = it.config.threads;
    device.schedule = schedule;
    device.schedule_seed = pkvt_hot_at.seed;
    device.schedule_first = below(4);
    side->tier = NULL;
    side->scratch_bytes = 0;
    assert_ok(pkv_device_open("cpu", &device, &side->device));
    assert_ok(pkvi_stream_open(side->device, PKV_COMPUTE, NULL, &side->compute));
    assert_ok(pkvi_tier_open(side->device, config, side->compute, &side->tier));
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        const uint64_t bytes =
            pkvi_attend_scratch_bytes(config->step_rows, config->context_tokens, info->heads,
                                      info->kv_heads, info->head_dim, device.threads);
        side->scratch_bytes = bytes > side->scratch_bytes ? bytes : side->scratch_bytes;
    }
    side->scratch = aligned_alloc(64, (side->scratch_bytes + 63) / 64 * 64);
    assert_non_null(side->scratch);
}

static void close_side(struct side *side)
{
    assert_ok(pkvi_stream_sync(side->compute));
    pkvi_tier_close(side->tier);
    pkvi_stream_close(side->compute);
    pkv_device_close(side->device);
    free(side->scratch);
}

static void open_tiers(void)
{
    static const enum pkv_schedule schedules[] = {PKV_SCHEDULE_WORKERS, PKV_SCHEDULE_RANDOM,
                                                  PKV_SCHEDULE_LAZY, PKV_SCHEDULE_ADVERSARIAL};
    struct pkvi_tier_config plain = it.config;
    plain.sequences = it.config.sequences + it.config.parked;
    plain.parked = 0;
    plain.host = false;
    plain.budget_bytes = 0;
    plain.policy = NULL;
    open_side(&it.hot, &it.config, schedules[below(4)]);
    open_side(&it.plain, &plain, PKV_SCHEDULE_WORKERS);
}

static bool open_case(uint64_t seed)
{
    pkvt_hot_at = (struct pkvt_hot_at){.seed = seed, .what = "open"};
    it.rng.state = seed * 7919 + 11;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        it.seq[s].open = false;
    }
    it.sums[0].seq = it.sums[1].seq = SEQUENCES;
    pkvt_hot_random_shape(&it.rng, &it.shape);
    pkvt_hot_random_policy(&it.rng, &it.policy);
    it.shape.recipe = it.policy.recipe;
    pkvt_hot_random_config(&it.rng, &it.shape, &it.policy, &it.config);
    const bool weightless = it.config.layer_weights && pkvt_hot_global_layers(&it.shape) == 1;
    if (!pkvt_hot_is_sound(&it.policy.recipe) || weightless) {
        struct pkvi_tier_sizes sizes;
        assert_status(pkvi_tier_plan(&it.config, &sizes), PKV_ERR_INVALID);
        assert_non_null(strstr(pkv_error_text(), it.policy.name));
        seen.refused++;
        return false;
    }
    if (!pkvt_hot_random_budget(&it.rng, &it.shape, &it.config, &seen.worst_gap)) {
        seen.too_short++;
        return false;
    }
    open_tiers();
    return true;
}

/* ---- a pass ---- */

static void random_rows(struct rows *rows, uint32_t count)
{
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        const struct pkv_layer_info *info = &it.shape.layer[l];
        const uint32_t cols = info->heads * info->head_dim, kv = info->kv_heads * info->head_dim;
        for (uint32_t i = 0; i < count * cols; i++) {
            rows->q[l][i] = pkvt_rng_uniform(&it.rng, -2.0f, 2.0f);
        }
        for (uint32_t i = 0; i < count * kv; i++) {
            rows->k[l][i] = pkvt_rng_uniform(&it.rng, -2.0f, 2.0f);
            rows->v[l][i] = pkvt_rng_uniform(&it.rng, -1.0f, 1.0f);
        }
        memset(rows->out[l], 0xff, count * cols * sizeof(float));
        memset(rows->plain[l], 0xff, count * cols * sizeof(float));
    }
}

/* Spans of every row tile: several sequences only in passes of one. */
static void write_spans(struct pass *pass)
{
    for (uint32_t at = 0, tile = 0; at < pass->rows; at += pass->tile_rows, tile++) {
        uint32_t first = 0;
        for (uint32_t p = 0; p < pass->count; p++) {
            const uint32_t left = pass->part[p].rows - at;
            const uint32_t rows = left < pass->tile_rows ? left : pass->tile_rows;
            pass->spans[tile][p] =
                (struct pkv_row_span){.view = pass->part[p].seq,
                                      .first_row = first,
                                      .rows = rows,
                                      .first_position = pass->part[p].tokens + at};
            first += rows;
        }
    }
}

static void attend(struct side *side, const struct pass *pass, uint32_t l, uint32_t tile,
                   bool plain)
{
    const struct pkv_layer_info *info = &it.shape.layer[l];
    const uint32_t cols = info->heads * info->head_dim, kv = info->kv_heads * info->head_dim;
    const uint32_t first = tile * pass->tile_rows, left = pass->rows - first;
    const uint32_t count = left < pass->tile_rows ? left : pass->tile_rows;
    struct rows *rows = &it.rows[pass->lane];
    const struct pkv_row_span *spans = pass->spans[tile];
    struct pkvi_tier_rows args = {
        .layer = l, .row_tile = tile, .last_tile = count == left, .host_spans = spans};
    args.append = (struct pkv_args_append){.k = pkvi_addr(rows->k[l] + first * kv),
                                           .v = pkvi_addr(rows->v[l] + first * kv),
                                           .spans = pkvi_addr(spans),
                                           .kv_type = it.shape.kv_type,
                                           .span_count = pass->count,
                                           .rows = count,
                                           .kv_heads = info->kv_heads,
                                           .head_dim = info->head_dim,
                                           .k_stride = kv,
                                           .v_stride = kv};
    float *out = plain ? rows->plain[l] : rows->out[l];
    args.attend = (struct pkv_args_attend){
        .q = pkvi_addr(rows->q[l] + first * cols),
        .spans = pkvi_addr(spans),
        .out = {.cols = cols, .f32 = pkvi_addr(out + first * cols)},
        .scratch = pkvi_addr(side->scratch),
        .scratch_bytes = side->scratch_bytes,
        .kv_type = it.shape.kv_type,
        .scale = it.shape.scale,
        .softcap = it.shape.softcap,
        .span_count = pass->count,
        .rows = count,
        .heads = info->heads,
        .kv_heads = info->kv_heads,
        .head_dim = info->head_dim,
        .window = info->kind == PKV_LAYER_SLIDING ? info->window : 0,
        .q_stride = cols,
    };
    assert_ok(pkvi_tier_attend(side->tier, &args));
}

static bool fits(uint32_t tokens)
{
    const struct pkvi_tier_sizes *sizes = &it.hot.tier->sizes;
    return pkvt_hot_heads(&it.shape) * (pkvi_pages_of(tokens) + sizes->keep_pages) <=
           sizes->quota_pages;
}

static enum mode mode_of(const struct pkvi_tier_part *part)
{
    if (fits(part->tokens + part->rows)) {
        return DENSE;
    }
    if (part->rows > PKV_PAGE_TOKENS || part->exact) {
        return EXACT;
    }
    return it.policy.recipe.pick != PKV_PICK_NONE ? PICK : it.seq[part->seq].placed ? HOT : EXACT;
}

/* ---- what a pass left ---- */

static void read_set(uint32_t s, uint32_t l, uint32_t head, struct pkvt_hot_set *set_out)
{
    const struct pkvi_tier *t = it.hot.tier;
    const struct pkv_kv_view view = pkvi_hot_view(t, s, l);
    const uint32_t slots = t->layer[l].hot_slots, heads = t->layer[l].info.kv_heads;
    const float *score = PKV_AT(const float, view.score);
    const int32_t *token = (const int32_t *)(const void *)(score + heads * view.score_stride);
    set_out->slots = slots;
    set_out->first = PKV_AT(const uint32_t, view.first_key)[head];
    set_out->ring_first = t->seq[s].state[l].ring_first;
    set_out->ring_end = pkvi_pages_of(it.seq[s].tokens);
    assert_int_equal(view.key_shift, set_out->ring_first * PKV_PAGE_TOKENS - slots);
    memcpy(set_out->token, token + head * slots, slots * sizeof *token);
    memcpy(set_out->score, score + head * view.score_stride, view.score_stride * sizeof *score);
}

/* Pages of the ring: as many as there is room for, of the latest. */
static void check_ring(const struct pkvt_hot_seq *seq, const struct pkvt_hot_rows *rows,
                       const struct pkvt_hot_set *now, enum mode mode)
{
    const uint32_t most = it.hot.tier->sizes.ring_pages, first = now->ring_first;
    const uint32_t end = pkvi_pages_of(rows->first + rows->rows);
    const uint32_t last = seq->set[rows->layer][0].ring_first;
    if (mode == HOT) {
        PKVT_HOT_CHECK(first == (end - last > most ? end - most : last),
                       "the ring begins with page %u, before with %u, and ends before %u", first,
                       last, end);
        seen.competed += first > last;
    } else {
        PKVT_HOT_CHECK(end - first == most || end - first == most - 1,
                       "the ring has pages %u to %u", first, end);
    }
    PKVT_HOT_CHECK(
        (first + 1) * PKV_PAGE_TOKENS + it.config.recent <= rows->first + 1 + PKV_PAGE_TOKENS ||
            it.policy.recipe.ring_share > 0 || mode != HOT,
        "fewer than %u recent tokens: from page %u, at %u", it.config.recent, first, rows->first);
}

/* Does every KV head have a free slot for each token that has left the ring? */
static bool all_kept(const struct pkvt_hot_seq *seq, uint32_t l, uint32_t ring_first)
{
    const struct pkvi_tier_layer *layer = &it.hot.tier->layer[l];
    bool kept = it.policy.recipe.leave == PKV_LEAVE_KEEP;
    for (uint32_t h = 0; h < layer->info.kv_heads; h++) {
        const struct pkvt_hot_set *set = &seq->set[l][h];
        const uint32_t least =
            layer->hot_slots - it.hot.tier->hot_pages[layer->head_base + h] * PKV_PAGE_TOKENS;
        kept = kept && set->first - least >= (ring_first - set->ring_first) * PKV_PAGE_TOKENS;
    }
    return kept;
}

static void check_layer(struct pkvt_hot_seq *seq, uint32_t s, const struct pkvt_hot_rows *rows,
                        enum mode mode)
{
    struct pkvt_hot_set now[PKVT_HOT_HEADS];
    const struct pkvi_tier_layer *layer = &it.hot.tier->layer[rows->layer];
    pkvt_hot_at.layer = rows->layer;
    if (mode == DENSE) {
        pkvt_hot_check_all(&it.shape, seq, rows);
        assert_int_equal(it.hot.tier->seq[s].state[rows->layer].first_page, 0);
        return;
    }
    bool keeps = false;
    for (uint32_t h = 0; h < layer->info.kv_heads; h++) {
        const uint32_t beyond = mode == HOT ? 0 : it.hot.tier->sizes.keep_pages;
        const uint32_t pages = it.hot.tier->hot_pages[layer->head_base + h] - beyond;
        const uint32_t room = pages * PKV_PAGE_TOKENS;
        pkvt_hot_at.head = h;
        read_set(s, rows->layer, h, &now[h]);
        if (h == 0) {
            check_ring(seq, rows, &now[h], mode);
            keeps = mode == HOT && all_kept(seq, rows->layer, now[h].ring_first);
            seen.kept += keeps && now[h].ring_first > seq->set[rows->layer][0].ring_first;
        }
        if (mode == HOT) {
            pkvt_hot_check_step(&it.shape, seq, rows, h, room, keeps, &now[h]);
        } else {
            pkvt_hot_check_placed(&it.shape, seq, rows, h, room, mode == PICK, &now[h]);
        }
    }
}

/* Do scores of earlier passes count in this one? Those of its rows may count in the next. */
static bool begin_sums(const struct pass *pass, uint32_t p)
{
    const struct pkvi_tier_part *part = &pass->part[p];
    const bool sums = it.policy.recipe.prompt == PKV_PROMPT_ALL_ROWS &&
                      it.config.pass_rows < it.config.context_tokens && part->exact;
    const bool summing =
        sums && it.sums[pass->lane].seq == part->seq && it.sums[pass->lane].tokens == part->tokens;
    const bool scored = sums && (pass->mode[p] == EXACT || part->goes_on);
    it.sums[pass->lane].seq = scored ? part->seq : SEQUENCES;
    it.sums[pass->lane].tokens = part->tokens + part->rows;
    return summing;
}

static void forget_sums(uint32_t s)
{
    for (uint32_t lane = 0; lane < PKVI_TIER_LANES; lane++) {
        it.sums[lane].seq = it.sums[lane].seq == s ? SEQUENCES : it.sums[lane].seq;
    }
}

static void check_part(const struct pass *pass, uint32_t p, uint32_t first_row)
{
    const struct pkvi_tier_part *part = &pass->part[p];
    struct pkvt_hot_seq *seq = &it.seq[part->seq];
    struct rows *all = &it.rows[pass->lane];
    const enum mode mode = pass->mode[p];
    seq->tokens = part->tokens + part->rows;
    seq->high = seq->tokens > seq->high ? seq->tokens : seq->high;
    pkvt_hot_at.seq = part->seq;
    seen.passes[mode]++;
    const bool summing = begin_sums(pass, p);
    seen.summed += summing && mode == EXACT;
    assert_int_equal(it.hot.tier->seq[part->seq].placed, mode != DENSE);
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        const struct pkv_layer_info *info = &it.shape.layer[l];
        const uint32_t cols = info->heads * info->head_dim, kv = info->kv_heads * info->head_dim;
        const size_t at = (size_t)first_row * cols, bytes = part->rows * cols * sizeof(float);
        const struct pkvt_hot_rows rows = {.layer = l,
                                           .first = part->tokens,
                                           .rows = part->rows,
                                           .summing = summing,
                                           .q = all->q[l] + at,
                                           .k = all->k[l] + (size_t)first_row * kv,
                                           .v = all->v[l] + (size_t)first_row * kv,
                                           .out = all->out[l] + at};
        pkvt_hot_keep(&it.shape, seq, &rows);
        if (mode <= EXACT || info->kind == PKV_LAYER_SLIDING) {
            PKVT_HOT_CHECK(memcmp(all->out[l] + at, all->plain[l] + at, bytes) == 0,
                           "layer %u: other bits than with all pages on the device", l);
        }
        if (info->kind == PKV_LAYER_GLOBAL) {
            check_layer(seq, part->seq, &rows, mode);
        }
    }
    seen.dense_again += mode == DENSE && seq->was_hot;
    seq->was_hot = mode != DENSE;
    seq->placed = mode != DENSE;
}

static uint32_t in_pool(const pkv_addr *pages, uint32_t count)
{
    const struct pkvi_tier *t = it.hot.tier;
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        found += pages[i] >= t->pool && pages[i] < t->pool + t->sizes.pool_bytes;
    }
    return found;
}

/* Pages that a sequence has a share in. */
static uint32_t pages_of(uint32_t s)
{
    const struct pkvi_tier *t = it.hot.tier;
    uint32_t pages = in_pool(pkvi_tier_row(t, s, 0), t->blocks_max * t->row_entries);
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const struct pkvi_tier_state *state = &t->seq[s].state[l];
        const uint32_t heads = layer->info.kv_heads;
        if (!layer->global) {
            continue;
        }
        for (uint32_t b = 0; b < state->first_page && !state->buffered; b++) {
            PKVT_HOT_CHECK(in_pool(pkvi_tier_row(t, s, b) + layer->head_base, heads) == 0,
                           "sequence %u, layer %u: page %u, before the first", s, l, b);
        }
        const pkv_addr at = t->hot_table + ((uint64_t)s * t->hot_entries + layer->hot_base) * 8;
        const pkv_addr *slots = PKV_AT(const pkv_addr, t->upload + (at - t->tables));
        const uint32_t filled = in_pool(slots, layer->hot_slots / PKV_PAGE_TOKENS * heads);
        uint32_t want = 0;
        for (uint32_t h = 0; h < heads; h++) {
            want += t->hot_pages[layer->head_base + h];
        }
        PKVT_HOT_CHECK(filled == (it.seq[s].placed && !it.seq[s].parked ? want : 0),
                       "sequence %u: %u pages of slots", s, filled);
        pages += filled;
        if (state->buffered) {
            pages += state->keep_count * heads + (state->open_release ? heads : 0);
        }
    }
    return pages;
}

static void check_pages(void)
{
    const struct pkvi_tier *t = it.hot.tier;
    uint64_t owners = 0, total = 0;
    for (uint32_t s = 0; s < t->slots; s++) {
        const uint32_t pages = pages_of(s);
        const bool any = it.seq[s].open && !it.seq[s].parked;
        PKVT_HOT_CHECK(pages <= (any ? t->sizes.quota_pages : 0), "sequence %u has %u pages of %u",
                       s, pages, t->sizes.quota_pages);
        owners += pages;
    }
    for (uint32_t i = 0; i < t->pages.count; i++) {
        total += t->pages.refs[i];
    }
    PKVT_HOT_CHECK(owners == total, "%llu shares in pages, sequences know of %llu",
                   (unsigned long long)total, (unsigned long long)owners);
}

/* ---- operations ---- */

static void sync(void)
{
    assert_ok(pkvi_stream_sync(it.hot.compute));
    assert_ok(pkvi_stream_sync(it.plain.compute));
}

/* Only tokens of the ring go: slots stay. */
static bool survives(uint32_t s, uint32_t tokens)
{
    bool whole = it.seq[s].placed && !fits(tokens);
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        whole = whole &&
                (it.shape.layer[l].kind != PKV_LAYER_GLOBAL ||
                 tokens >= (it.seq[s].set[l][0].ring_first + it.hot.tier->sizes.ring_pages - 2) *
                               PKV_PAGE_TOKENS);
    }
    return whole;
}

static void truncate_both(uint32_t s, uint32_t tokens)
{
    const bool placed = survives(s, tokens);
    forget_sums(s);
    assert_ok(pkvi_tier_seq_truncate(it.hot.tier, s, tokens));
    assert_ok(pkvi_tier_seq_truncate(it.plain.tier, s, tokens));
    it.seq[s].tokens = tokens;
    it.seq[s].high = tokens > 0 ? it.seq[s].high : 0;
    it.seq[s].placed = placed;
}

/* The pass is left: its sequences are as they were, but for hot sets. */
static void leave_pass(const struct pass *pass)
{
    sync();
    it.sums[pass->lane].seq = SEQUENCES;
    assert_ok(pkvi_tier_abort(it.hot.tier));
    assert_ok(pkvi_tier_abort(it.plain.tier));
    for (uint32_t p = 0; p < pass->count; p++) {
        const struct pkvi_tier_part *part = &pass->part[p];
        struct pkvt_hot_seq *seq = &it.seq[part->seq];
        const uint32_t high = part->tokens + part->rows;
        seq->placed = false;
        seq->high = high > seq->high ? high : seq->high;
        if (!pkvi_tier_rings_hold(&it.config, seq->high, part->tokens)) {
            truncate_both(part->seq, 0);
        }
    }
    seen.left++;
}

static void run_pass(struct pass *pass, const struct pass *around);

static bool in_pass(const struct pass *pass, uint32_t s)
{
    for (uint32_t p = 0; pass && p < pass->count; p++) {
        if (pass->part[p].seq == s) {
            return true;
        }
    }
    return false;
}

static uint32_t room_of(uint32_t s)
{
    return it.config.context_tokens - it.seq[s].tokens;
}

/* A step of some sequences, at most `most` rows each. */
static void random_step(const struct pass *around, uint32_t most)
{
    static struct pass steps[PKVI_TIER_LANES];
    struct pass *pass = &steps[around != NULL];
    *pass = (struct pass){.tile_rows = it.config.step_rows, .leave = one_in(30)};
    for (uint32_t s = 0; s < SEQUENCES && pass->count < it.config.sequences; s++) {
        const uint32_t rows = 1 + below(most);
        if (it.seq[s].open && !it.seq[s].parked && !in_pass(around, s) && rows <= room_of(s) &&
            pass->rows + rows <= it.config.step_rows && !one_in(4)) {
            pass->part[pass->count++] =
                (struct pkvi_tier_part){.seq = s, .tokens = it.seq[s].tokens, .rows = rows};
            pass->rows += rows;
        }
    }
    if (pass->count > 0) {
        run_pass(pass, around);
    }
}

/* Units of the pass; between those of a prompt, steps of others. False: it was left. */
static bool run_units(const struct pass *pass, const struct pass *around)
{
    const uint32_t tiles = (pass->rows + pass->tile_rows - 1) / pass->tile_rows;
    const uint32_t units = tiles * it.shape.layers;
    const uint32_t leave_at = pass->leave ? below(units + 1) : UINT32_MAX;
    for (uint32_t u = 0; u <= units; u++) {
        if (u == leave_at) {
            leave_pass(pass);
            return false;
        }
        if (u == units) {
            break;
        }
        attend(&it.hot, pass, u / tiles, u % tiles, false);
        attend(&it.plain, pass, u / tiles, u % tiles, true);
        if (pass->lane == 1 && !around && one_in(3)) {
            sync();
            random_step(pass, one_in(2) ? 1 : PKV_PAGE_TOKENS);
            pkvi_tier_select(it.hot.tier, 1);
            pkvi_tier_select(it.plain.tier, 1);
            seen.within++;
        }
    }
    return true;
}

static void run_pass(struct pass *pass, const struct pass *around)
{
    for (uint32_t p = 0; p < pass->count; p++) {
        pass->mode[p] = mode_of(&pass->part[p]);
    }
    random_rows(&it.rows[pass->lane], pass->rows);
    write_spans(pass);
    pkvi_tier_select(it.hot.tier, pass->lane);
    pkvi_tier_select(it.plain.tier, pass->lane);
    assert_ok(pkvi_tier_begin(it.hot.tier, pass->part, pass->count));
    assert_ok(pkvi_tier_begin(it.plain.tier, pass->part, pass->count));
    if (!run_units(pass, around)) {
        return;
    }
    assert_ok(pkvi_tier_end(it.hot.tier));
    assert_ok(pkvi_tier_end(it.plain.tier));
    sync();
    for (uint32_t p = 0, row = 0; p < pass->count; p++) {
        check_part(pass, p, row);
        row += pass->part[p].rows;
    }
}

static uint32_t pick(bool parked)
{
    const uint32_t first = below(SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        const uint32_t s = (first + i) % SEQUENCES;
        if (it.seq[s].open && it.seq[s].parked == parked) {
            return s;
        }
    }
    return SEQUENCES;
}

static uint32_t active(void)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        count += it.seq[s].open && !it.seq[s].parked;
    }
    return count;
}

static uint32_t closed(void)
{
    uint32_t s = 0;
    while (s < it.config.sequences + it.config.parked && it.seq[s].open) {
        s++;
    }
    return s < it.config.sequences + it.config.parked ? s : SEQUENCES;
}

static void prompt(uint32_t s, uint32_t rows, uint32_t lane, bool exact, bool leave)
{
    static struct pass pass;
    pass = (struct pass){.lane = lane,
                         .rows = rows,
                         .count = 1,
                         .tile_rows = it.config.step_rows,
                         .leave = leave,
                         .part = {{.seq = s,
                                   .tokens = it.seq[s].tokens,
                                   .rows = rows,
                                   .exact = exact,
                                   .goes_on = exact && one_in(2)}}};
    run_pass(&pass, NULL);
    pkvi_tier_select(it.hot.tier, 0);
    pkvi_tier_select(it.plain.tier, 0);
}

/* In one pass, or in some. */
static void random_prompt(void)
{
    const uint32_t s = pick(false), lane = !one_in(3);
    const bool exact = !one_in(4);
    for (uint32_t passes = one_in(2) ? 1 : 3; s < SEQUENCES && passes > 0; passes--) {
        const uint32_t most = it.config.pass_rows < room_of(s) ? it.config.pass_rows : room_of(s);
        if (most > 0) {
            const uint32_t rows = 1 + below(one_in(3) && most > 80 ? 80 : most);
            prompt(s, rows, lane, exact, one_in(6));
        }
    }
}

static void random_cut(void)
{
    const uint32_t s = pick(one_in(4));
    if (s == SEQUENCES) {
        return;
    }
    const uint32_t tokens = it.seq[s].tokens, few = tokens < 40 ? tokens : 40;
    const uint32_t any = one_in(2) ? tokens - below(few + 1) : below(tokens + 1),
                   to = one_in(4) ? any / 32 * 32 : any;
    if (pkvi_tier_check_cut(&it.config, it.seq[s].tokens, it.seq[s].high, to) == PKV_OK) {
        truncate_both(s, to);
    }
}

static void random_open(void)
{
    const uint32_t s = closed();
    if (s < SEQUENCES && active() < it.config.sequences) {
        assert_ok(pkvi_tier_seq_open(it.hot.tier, s));
        assert_ok(pkvi_tier_seq_open(it.plain.tier, s));
        it.seq[s].open = true;
        it.seq[s].parked = it.seq[s].placed = false;
        it.seq[s].was_hot = false;
        it.seq[s].tokens = it.seq[s].high = 0;
    }
}

static void close_both(uint32_t s)
{
    forget_sums(s);
    pkvi_tier_seq_close(it.hot.tier, s);
    pkvi_tier_seq_close(it.plain.tier, s);
    it.seq[s].open = it.seq[s].parked = it.seq[s].placed = false;
}

static void random_fork(void)
{
    const uint32_t from = pick(false), to = closed();
    if (from < SEQUENCES && to < SEQUENCES && active() < it.config.sequences) {
        assert_ok(pkvi_tier_seq_fork(it.hot.tier, from, to));
        assert_ok(pkvi_tier_seq_fork(it.plain.tier, from, to));
        it.seq[to] = it.seq[from];
    }
}

static void random_park(void)
{
    const uint32_t parked = pick(true), s = pick(false);
    if (parked < SEQUENCES) {
        if (active() < it.config.sequences) {
            assert_ok(pkvi_tier_seq_unpark(it.hot.tier, parked));
            it.seq[parked].parked = false;
        }
    } else if (s < SEQUENCES && it.config.parked > 0) {
        assert_ok(pkvi_tier_seq_park(it.hot.tier, s));
        it.seq[s].parked = true;
    }
}

/* First block of a layer that a sequence needs to go on. */
static uint32_t first_needed(uint32_t s, uint32_t l)
{
    const struct pkv_layer_info *info = &it.shape.layer[l];
    const uint32_t next = it.seq[s].tokens + 1;
    return info->kind == PKV_LAYER_SLIDING && next > info->window
               ? (next - info->window) / PKV_PAGE_TOKENS
               : 0;
}

/* A hot set as it goes to a file, in pieces of any size. */
struct kept_set {
    struct pkvi_hot_saved saved;
    uint32_t words[LAYERS * (1 + 2 * PKVT_HOT_HEADS)];
    pkv_addr memory;
};

static void move_set(uint32_t s, const struct kept_set *kept, bool load)
{
    const uint64_t piece = 1000 + below(100000);
    for (uint64_t at = 0; at < kept->saved.bytes; at += piece) {
        const uint64_t left = kept->saved.bytes - at;
        assert_ok(pkvi_tier_hot_move(it.hot.tier, s, at, left < piece ? left : piece,
                                     kept->memory + at, load));
    }
}

static void keep_set(uint32_t s, struct kept_set *kept)
{
    assert_true(pkvi_tier_hot_words(&it.config) <= sizeof kept->words / sizeof *kept->words);
    pkvi_tier_hot_describe(it.hot.tier, s, &kept->saved, kept->words);
    assert_int_equal(kept->saved.bytes > 0, it.seq[s].placed);
    assert_ok(pkvi_mem_alloc(it.hot.device, PKV_MEM_PINNED, kept->saved.bytes + 1, &kept->memory));
    move_set(s, kept, false);
}

/* Adopted, or not even offered. */
static void put_set(uint32_t s, struct kept_set *kept)
{
    bool adopted = false;
    if (!one_in(4)) {
        assert_ok(pkvi_tier_hot_adopt(it.hot.tier, s, &kept->saved, kept->words, &adopted));
        assert_int_equal(adopted, it.seq[s].placed);
    }
    if (adopted) {
        move_set(s, kept, true);
        seen.sets_kept++;
    }
    it.seq[s].placed = adopted;
    pkvi_mem_free(it.hot.device, PKV_MEM_PINNED, kept->memory);
}

/* It is read out, closed, and filled anew. */
static void random_reload(void)
{
    struct pkvi_tier *t = it.hot.tier;
    static struct kept_set kept;
    const uint32_t s = pick(one_in(3) && active() < it.config.sequences);
    const uint32_t blocks = s < SEQUENCES ? pkvi_pages_of(it.seq[s].tokens) : 0;
    pkv_addr memory[LAYERS];
    if (blocks == 0) {
        return;
    }
    keep_set(s, &kept);
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        const uint32_t first = first_needed(s, l);
        assert_ok(pkvi_mem_alloc(it.hot.device, PKV_MEM_PINNED,
                                 (blocks - first) * pkvi_tier_block_bytes(t, l), &memory[l]));
        assert_ok(pkvi_tier_seq_read(t, s, l, first, blocks - first, memory[l]));
    }
    pkvi_tier_seq_close(t, s);
    assert_ok(pkvi_tier_seq_open(t, s));
    assert_ok(pkvi_tier_seq_fill(t, s, it.seq[s].tokens));
    for (uint32_t l = 0; l < it.shape.layers; l++) {
        const uint32_t first = first_needed(s, l);
        assert_ok(pkvi_tier_seq_write(t, s, l, first, blocks - first, memory[l]));
        pkvi_mem_free(it.hot.device, PKV_MEM_PINNED, memory[l]);
        if (first > 0) { /* as if so many had been written */
            const uint32_t high = (first + pkvi_tier_layer_pages(&it.config, l)) * PKV_PAGE_TOKENS;
            it.seq[s].high = high > it.seq[s].high ? high : it.seq[s].high;
        }
    }
    assert_ok(pkvi_tier_seq_filled(t, s));
    put_set(s, &kept);
    it.seq[s].parked = false;
    seen.reloaded++;
}

static void random_steps(void)
{
    const uint32_t steps = one_in(3) ? 40 : 4, most = one_in(2) ? 1 : 1 + below(PKV_PAGE_TOKENS);
    for (uint32_t i = 0; i < steps; i++) {
        random_step(NULL, one_in(20) ? it.config.step_rows : most);
    }
}

static void random_operation(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
        uint32_t weight;
    } all[] = {{"prompt", random_prompt, 5}, {"steps", random_steps, 8}, {"cut", random_cut, 2},
               {"open", random_open, 2},     {"fork", random_fork, 2},   {"park", random_park, 2},
               {"reload", random_reload, 2}};
    uint32_t at = below(23), i = 0;
    while (at >= all[i].weight) {
        at -= all[i++].weight;
    }
    pkvt_hot_at.what = all[i].name;
    all[i].run();
    const uint32_t s = i == 3 && one_in(2) ? pick(one_in(4)) : SEQUENCES;
    if (s < SEQUENCES) {
        close_both(s);
    }
    check_pages();
}

static void close_case(void)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (it.seq[s].open) {
            close_both(s);
        }
    }
    check_pages();
    assert_int_equal(it.hot.tier->pages.free_count, it.hot.tier->pages.count);
    assert_int_equal(it.hot.tier->blocks.free_count, it.hot.tier->blocks.count);
    assert_int_equal(it.hot.tier->shares.free_count, it.hot.tier->shares.count);
    struct pkv_kv_report report;
    pkvi_tier_report(it.hot.tier, &report);
    seen.checks += report.checks;
    assert_int_equal(report.check_differences, 0);
    assert_true(report.checks == 0 ||
                (report.check_least_coverage >= 0 && report.check_least_coverage < 1.0001));
    close_side(&it.hot);
    close_side(&it.plain);
}

static void run_case(uint64_t seed)
{
    if (!open_case(seed)) {
        return;
    }
    seen.cases++;
    random_open();
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        pkvt_hot_at.operation = i;
        random_operation();
    }
    close_case();
}

static void test_hot_set__random_operations__are_what_the_recipe_says(void **state)
{
    (void)state;
    const char *only = getenv("PKVT_SEED");
    for (uint64_t seed = only ? strtoull(only, NULL, 10) : 0;
         seed < (only             ? strtoull(only, NULL, 10) + 1
                 : PKVT_SANITIZED ? SEEDS / 10
                                  : SEEDS);
         seed++) {
        run_case(seed);
    }
    printf(
        "%u cases, %u recipes refused, %u contexts too short; passes: %u dense, %u exact, %u hot, "
        "%u picked, %u with sums of earlier ones, %u left, %u within prompts; pages left rings in "
        "%u (kept %u), dense again %u, "
        "reloaded %u (%u with their sets), "
        "self-checks %llu; budgets fall short by %.2f of what they may\n",
        seen.cases, seen.refused, seen.too_short, seen.passes[DENSE], seen.passes[EXACT],
        seen.passes[HOT], seen.passes[PICK], seen.summed, seen.left, seen.within, seen.competed,
        seen.kept, seen.dense_again, seen.reloaded, seen.sets_kept, (unsigned long long)seen.checks,
        seen.worst_gap);
    assert_true(only || (seen.passes[HOT] > 100 && seen.passes[PICK] > 0 && seen.competed > 0 &&
                         seen.sets_kept > 0 && seen.kept > 0));
    assert_true(only || PKVT_SANITIZED || seen.summed > 0); /* a test below has some */
}

/* A short prompt that is left gives the pages back that it loaded for its ring: a long one needs
 * them. */
static void open_two_layers(const char *policy, uint32_t sequences, uint32_t recent,
                            uint32_t pass_rows)
{
    it.rng.state = 3;
    it.policy = *pkv_policy_find(policy);
    it.shape = (struct pkvt_hot_shape){.layers = 2, .scale = 0.3f, .recipe = it.policy.recipe};
    for (uint32_t l = 0; l < 2; l++) {
        it.shape.layer[l] = (struct pkv_layer_info){
            .kind = PKV_LAYER_GLOBAL, .heads = 4, .kv_heads = 2, .head_dim = 16};
    }
    pkvt_hot_random_config(&it.rng, &it.shape, &it.policy, &it.config);
    it.config.context_tokens = CONTEXT;
    it.config.pass_rows = pass_rows;
    it.config.sequences = sequences;
    it.config.recent = recent;
    struct pkvi_tier_sizes sizes;
    assert_status(pkvi_tier_plan(&it.config, &sizes), PKV_ERR_RANGE);
    it.config.budget_bytes = sizes.least_bytes;
    open_tiers();
}

static void test_hot_set__short_prompt_left__its_ring_is_given_back(void **state)
{
    (void)state;
    pkvt_hot_at = (struct pkvt_hot_at){.what = "short prompt left"};
    open_two_layers("snapkv", 1, 100, CONTEXT);
    random_open();
    prompt(0, 300, 0, true, false);
    prompt(0, 33, 0, true, true);
    check_pages();
    prompt(0, 200, 0, true, false);
    close_case();
}

static void test_hot_set__prompt_in_passes__all_its_rows_count(void **state)
{
    (void)state;
    pkvt_hot_at = (struct pkvt_hot_at){.what = "passes"};
    open_two_layers("h2o", 1, 20, 100);
    const uint32_t before = seen.summed;
    random_open();
    for (uint32_t i = 0; i < 6; i++) {
        prompt(0, 90, 1, true, false);
    }
    assert_true(seen.summed - before >= 2);
    close_case();
}

/* A page leaves the ring in a fork's first step, whose tables may still be on their way: what
 * competes reads them as they were. */
static void test_hot_set__page_leaves_a_new_fork__right_slots(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) { /* of the schedule: streams run late, or not */
        pkvt_hot_at = (struct pkvt_hot_at){.what = "fork", .seed = seed};
        open_two_layers("pivot-norecall", 2, 20, CONTEXT);
        random_open();
        prompt(0, 320, 0, true, false);
        const uint32_t ring = it.hot.tier->sizes.ring_pages;
        do {
            prompt(0, 1, 0, false, false);
        } while (it.seq[0].tokens % PKV_PAGE_TOKENS != 0 ||
                 it.seq[0].tokens / PKV_PAGE_TOKENS - it.seq[0].set[0][0].ring_first < ring);
        assert_ok(pkvi_tier_seq_fork(it.hot.tier, 0, 1));
        assert_ok(pkvi_tier_seq_fork(it.plain.tier, 0, 1));
        it.seq[1] = it.seq[0];
        const uint32_t first = it.seq[1].set[0][0].ring_first;
        prompt(1, 1, 0, false, false);
        assert_int_equal(it.seq[1].set[0][0].ring_first, first + 1);
        close_case();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_set__random_operations__are_what_the_recipe_says),
        cmocka_unit_test(test_hot_set__short_prompt_left__its_ring_is_given_back),
        cmocka_unit_test(test_hot_set__prompt_in_passes__all_its_rows_count),
        cmocka_unit_test(test_hot_set__page_leaves_a_new_fork__right_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
