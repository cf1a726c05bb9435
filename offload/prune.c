/*
 * prune.c: sequences that are pruned: each layer has ever fewer entries than tokens went by.
 *
 *   prompt  in one pass. Rows that enter a layer are appended one behind the other and attend to
 *           each other; then the layer's last rows say how much they attended to all before them
 *           (SCORE), and the best of those go on (KEEP), with the last ones. Which, only the device
 *           knows; how many, both (prune_schedule.h)
 *   decode  rows attend to what the layer has. Entries that have left the recent ones are thinned
 *           out, a zone at a time, by what the recent rows attended to (THIN): two sums an entry,
 *           plain and weighted by the step, give a ramp over rows whose number is known only when
 *           the zone is due. What stays of a zone is filled up from the front, whose order means
 *           nothing to a row behind it, so that pages become free there
 *
 * Dropped entries are gone: nothing is in host memory. A key of a layer is the number of an entry
 * as it came; the views shift positions by as many as the prompt lost before the layer.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/base/layout.h"

#define MOST_RAMP 1000.0f
#define PLANS 16u /* prompts of so many lengths, evenly up to the context, are planned for */

static enum pkv_status refuse(const struct pkvi_tier_config *config, const char *what, double value)
{
    return PKV_FAIL(PKV_ERR_INVALID, "policy %s: %s (%g)", config->policy->name, what, value);
}

static bool is_share(double x)
{
    return x >= 0.0 && x <= 1.0;
}

static enum pkv_status check_settings(const struct pkvi_tier_config *config)
{
    const struct pkv_prune *p = config->policy->prune;
    if ((uint32_t)p->shape > PKV_PRUNE_DECAY || p->interval == 0) {
        return refuse(config, "unknown shape, or an interval of 0 layers", (double)p->shape);
    }
    if (!is_share(p->recent_ratio) || !is_share(p->ratio) || !is_share(p->decay) ||
        !is_share(p->zone_ratio) || !is_share(p->zone_decay)) {
        return refuse(config, "ratios, expected 0 to 1; the recent one is", p->recent_ratio);
    }
    if (!(p->ramp >= 0.0f && p->ramp <= MOST_RAMP)) {
        return refuse(config, "ramp, expected 0 to 1000", (double)p->ramp);
    }
    if (p->zone == 0 || p->zone > PKV_THIN_MOST) {
        return refuse(config, "zone, expected 1 to 1024 entries", p->zone);
    }
    return PKV_OK;
}

enum pkv_status pkvi_prune_check(const struct pkvi_tier_config *config)
{
    PKV_TRY(check_settings(config));
    if (config->budget_bytes > 0) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "policy %s takes no budget: its entries follow from the prompt's length",
                        config->policy->name);
    }
    if (config->host || config->host_limit_bytes > 0 || config->parked > 0) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "policy %s keeps nothing in host memory, nor parked sequences",
                        config->policy->name);
    }
    if (config->pyramid != PKV_PYRAMID_FLAT || config->layer_weights) {
        return PKV_FAIL(PKV_ERR_INVALID, "policy %s has a shape of its own: no pyramid",
                        config->policy->name);
    }
    for (uint32_t l = 0; l < config->layers; l++) {
        if (config->layer[l].kind != PKV_LAYER_GLOBAL) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                            "policy %s: layer %u looks back on a window of %u positions, in which "
                            "pruned rows would leave holes",
                            config->policy->name, l, config->layer[l].window);
        }
    }
    return PKV_OK;
}

static uint32_t stays_of(const struct pkvi_tier *t, uint32_t l)
{
    return pkvi_prune_zone_stays(t->prune, t->config.layers, l);
}

/* Where it begins: the zone that is thinned out behind a step, of keys. */
static uint32_t zone_first(const struct pkvi_tier *t, const struct pkvi_prune_seq *seq,
                           const struct pkvi_prune_layer *layer, uint32_t step)
{
    return layer->rows + step - (seq->recent[step] + 1) - t->prune->zone;
}

/* The first step whose row counts for it: the rows of the window of the step `due`. */
static uint32_t first_row(const struct pkvi_prune_seq *seq, uint32_t due)
{
    return due - seq->recent[due];
}

static uint32_t next_due(const struct pkvi_tier *t, const struct pkvi_prune_seq *seq, uint32_t l,
                         struct pkvi_prune_state *state)
{
    return pkvi_prune_next(t->prune, seq->recent, t->config.context_tokens - seq->prompt,
                           stays_of(t, l), state);
}

static void begin_prompt(const struct pkvi_tier *t, struct pkvi_prune_seq *seq, uint32_t tokens)
{
    *seq = (struct pkvi_prune_seq){
        .prompt = tokens, .first_keys_changed = true, .recent = seq->recent, .layer = seq->layer};
    pkvi_prune_rows(t->prune, t->config.layers, tokens, t->prune_rows);
    pkvi_prune_recents(t->prune, t->config.layers, tokens, t->config.context_tokens - tokens,
                       seq->recent);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        struct pkvi_prune_layer *layer = &seq->layer[l];
        const uint32_t rows = t->prune_rows[l];
        *layer = (struct pkvi_prune_layer){.rows = rows, .next = {.entries = rows, .base = rows}};
        layer->due = next_due(t, seq, l, &layer->next);
        layer->ahead = layer->next;
        layer->ahead_due = layer->due;
    }
}

/* Pages that a prompt and all that may come after it take, at most. */
static uint64_t most_pages(const struct pkvi_tier *t, struct pkvi_prune_seq *plan, uint32_t tokens)
{
    uint64_t most = 0;
    begin_prompt(t, plan, tokens);
    for (uint32_t step = 0; step <= t->config.context_tokens - tokens; step++) {
        uint64_t pages = 0;
        for (uint32_t l = 0; l < t->config.layers; l++) {
            struct pkvi_prune_layer *layer = &plan->layer[l];
            pages += (uint64_t)t->config.layer[l].kv_heads *
                     (pkvi_pages_of(layer->rows + step) - layer->first_key / PKV_PAGE_TOKENS);
            if (step == layer->due) {
                layer->first_key += t->prune->zone - stays_of(t, l);
                layer->due = next_due(t, plan, l, &layer->next);
            }
        }
        most = pages > most ? pages : most;
    }
    return most;
}

/* The most that a prompt of some length takes, and a page a KV head more: lengths between those
 * that are planned differ by less, and are asked for when they come. */
static uint32_t quota(const struct pkvi_tier *t, struct pkvi_prune_seq *plan)
{
    const uint32_t context = t->config.context_tokens;
    uint64_t most = 0;
    for (uint32_t i = 0; i <= PLANS; i++) {
        const uint64_t tokens = 1 + (uint64_t)(context - 1) * i / PLANS;
        const uint64_t pages = most_pages(t, plan, (uint32_t)tokens);
        most = pages > most ? pages : most;
    }
    const uint64_t all = (uint64_t)t->row_entries * t->blocks_max;
    return (uint32_t)(most + t->row_entries < all ? most + t->row_entries : all);
}

static uint32_t stride(const struct pkvi_tier *t)
{
    return t->blocks_max * PKV_PAGE_TOKENS;
}

void pkvi_prune_describe(struct pkvi_tier *t)
{
    t->hot_state_bytes = 0;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer) {
            t->layer[l].hot_state = t->hot_state_bytes;
        }
        t->hot_state_bytes += 2ull * t->config.layer[l].kv_heads * stride(t) * sizeof(float);
    }
    t->hot_state_bytes = pkvi_aligned(t->hot_state_bytes);
}

static void measure_scores(struct pkvi_tier *t)
{
    const struct pkvi_tier_config *config = &t->config;
    uint64_t scratch = 0, heads = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        const uint64_t score = pkvi_score_scratch_bytes(
            config->step_rows, info->heads, info->kv_heads, info->head_dim, config->threads);
        scratch = score > scratch ? score : scratch;
        heads = info->heads > heads ? info->heads : heads;
    }
    t->score_lane_bytes = pkvi_aligned(stride(t) * sizeof(float)); /* the index; KEEP's scratch */
    t->lse_bytes = pkvi_aligned(config->step_rows * heads * sizeof(float));
    t->sizes.score_bytes = 2 * t->score_lane_bytes + t->lse_bytes + pkvi_aligned(scratch);
}

enum pkv_status pkvi_prune_measure(struct pkvi_tier *t)
{
    const uint64_t layers = t->config.layers, context = t->config.context_tokens;
    struct pkvi_tier trial = *t;
    struct pkvi_prune_seq plan = {.recent = malloc((context + 1) * sizeof *plan.recent),
                                  .layer = malloc(layers * sizeof *plan.layer)};
    trial.prune_rows = malloc(layers * sizeof *trial.prune_rows);
    const bool ok = plan.recent && plan.layer && trial.prune_rows;
    if (ok) {
        t->sizes.quota_pages = quota(&trial, &plan);
    }
    free(trial.prune_rows);
    free(plan.layer);
    free(plan.recent);
    if (!ok) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "plan of %u tokens", t->config.context_tokens);
    }
    pkvi_prune_describe(t);
    t->sizes.hot_bytes = t->hot_state_bytes * t->config.sequences;
    measure_scores(t);
    return PKV_OK;
}

/* Views of the weighted sums, first keys of every sequence, zeros. */
uint64_t pkvi_prune_tables_bytes(const struct pkvi_tier *t)
{
    return pkvi_aligned((uint64_t)t->config.layers * t->slots * sizeof(struct pkv_kv_view)) +
           pkvi_aligned((uint64_t)t->slots * t->row_entries * sizeof(uint32_t)) +
           pkvi_aligned(t->prune->zone * sizeof(float));
}

void pkvi_prune_lay_out(struct pkvi_tier *t, pkv_addr *top)
{
    t->picked_views =
        pkvi_take(top, (uint64_t)t->config.layers * t->slots * sizeof(struct pkv_kv_view));
    t->first_keys = pkvi_take(top, (uint64_t)t->slots * t->row_entries * sizeof(uint32_t));
    t->prune_zeros = pkvi_take(top, t->prune->zone * sizeof(float)); /* never written */
    t->prune_index = t->scores;
    t->prune_scratch = t->scores + t->score_lane_bytes;
}

void pkvi_prune_lay_out_host(struct pkvi_tier *t, struct pkvi_arena *arena)
{
    const uint64_t seqs = t->slots + 1ull, layers = t->config.layers;
    const uint64_t steps = t->config.context_tokens + 1ull;
    t->prune_seq = pkvi_arena_take(arena, seqs, sizeof *t->prune_seq);
    t->prune_rows = pkvi_arena_take(arena, layers, sizeof *t->prune_rows);
    struct pkvi_prune_layer *layer = pkvi_arena_take(arena, seqs * layers, sizeof *layer);
    uint32_t *recent = pkvi_arena_take(arena, seqs * steps, sizeof *recent);
    for (uint64_t i = 0; recent && i < seqs; i++) {
        t->prune_seq[i].layer = layer + i * layers;
        t->prune_seq[i].recent = recent + i * steps;
    }
}

struct pkv_kv_view pkvi_prune_view(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    struct pkv_kv_view view = pkvi_tier_view(t, s, l);
    const struct pkvi_prune_seq *seq = &t->prune_seq[s];
    const uint32_t share = t->seq[s].share == PKVI_NO_PLACE ? 0 : t->seq[s].share;
    view.first_key = pkvi_tier_first_keys(t, s, l);
    view.key_shift = seq->step > 0 ? seq->prompt - seq->layer[l].rows : 0;
    view.score = t->hot_state + share * t->hot_state_bytes + t->layer[l].hot_state;
    view.score_stride = stride(t);
    return view;
}

/* The same with the weighted sums. */
static struct pkv_kv_view weighted_view(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    struct pkv_kv_view view = pkvi_prune_view(t, s, l);
    view.score += (uint64_t)t->layer[l].info.kv_heads * stride(t) * sizeof(float);
    return view;
}

enum pkv_status pkvi_prune_prepare(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_prune_seq *seq = &t->prune_seq[part->seq];
    if (part->tokens == 0) {
        begin_prompt(t, seq, part->rows);
    } else {
        seq->step++;
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_prune_layer *layer = &seq->layer[l];
        const uint32_t end = layer->rows + seq->step;
        PKV_TRY(pkvi_pages_add(t, part->seq, l, seq->step > 0 ? (end - 1) / PKV_PAGE_TOKENS : 0,
                               pkvi_pages_of(end)));
        uint32_t *first = pkvi_tier_uploaded(t, pkvi_tier_first_keys(t, part->seq, l));
        for (uint32_t h = 0; h < t->layer[l].info.kv_heads; h++) {
            first[h] = layer->first_key;
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_prune_upload(struct pkvi_copies *copies, uint32_t s)
{
    struct pkvi_tier *t = copies->tier;
    struct pkvi_prune_seq *seq = &t->prune_seq[s];
    struct pkv_kv_view *views = pkvi_tier_uploaded(t, t->picked_views);
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const uint64_t index = (uint64_t)l * t->slots + s, at = index * sizeof *views;
        const struct pkv_kv_view now = weighted_view(t, s, l);
        if (memcmp(&views[index], &now, sizeof now) != 0) {
            views[index] = now;
            PKV_TRY(pkvi_copies_add(copies, t->picked_views + at,
                                    t->upload + (t->picked_views - t->tables) + at, sizeof now));
        }
    }
    if (seq->first_keys_changed) {
        const pkv_addr keys = t->first_keys + (uint64_t)s * t->row_entries * sizeof(uint32_t);
        PKV_TRY(pkvi_copies_add(copies, keys, t->upload + (keys - t->tables),
                                t->row_entries * sizeof(uint32_t)));
        seq->first_keys_changed = false;
    }
    return PKV_OK;
}

/* A ramp's step over so many rows. */
static float ramp_step(const struct pkv_prune *prune, uint32_t window)
{
    return window > 1 ? (prune->ramp - 1.0f) / (float)(window - 1) : 0.0f;
}

/* A row tile of a prompt has attended: what its rows of the window say of the keys before it;
 * behind the last one, who goes on. */
static enum pkv_status choose_rows(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                   const struct pkvi_prune_seq *seq)
{
    const struct pkv_row_span *at = &rows->host_spans[0];
    const uint32_t l = rows->layer, all = seq->layer[l].rows, window = seq->recent[0] + 1;
    if (l + 1 == t->config.layers || seq->layer[l + 1].rows == all) {
        return PKV_OK;
    }
    const uint32_t begin = all - window;
    const uint32_t skip = begin > at->first_position ? begin - at->first_position : 0;
    if (skip < at->rows) {
        struct pkv_args_score args = pkvi_score_args(t, rows, 0);
        args.skip_rows = skip;
        args.keep = at->first_position > begin ? 1.0f : 0.0f;
        args.weight_step = ramp_step(t->prune, window);
        args.weight = 1.0f + (float)(at->first_position + skip - begin) * args.weight_step;
        args.key_end = pkvi_pages_of(begin) * PKV_PAGE_TOKENS;
        PKV_TRY(pkvi_launch(t->compute, t->score_kernel, &args));
    }
    if (!rows->last_tile) {
        return PKV_OK;
    }
    const struct pkv_kv_view view = pkvi_prune_view(t, at->view, l);
    const struct pkv_args_keep keep = {.score = view.score,
                                       .index = t->prune_index,
                                       .scratch = t->prune_scratch,
                                       .kv_heads = t->layer[l].info.kv_heads,
                                       .score_stride = view.score_stride,
                                       .count = begin,
                                       .stay = seq->layer[l + 1].rows - window,
                                       .window = window,
                                       .sinks = t->prune->sinks};
    return pkvi_launch(t->compute, t->keep_kernel, &keep);
}

/* The sums of a zone begin. */
static enum pkv_status clear(struct pkvi_tier *t, const struct pkv_kv_view *view, uint32_t l,
                             uint32_t first)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    for (uint32_t i = 0; i < 2 * t->layer[l].info.kv_heads; i++) {
        const pkv_addr sums =
            view->score + ((uint64_t)i * view->score_stride + first) * sizeof(float);
        PKV_TRY(pkvi_copies_add(&copies, sums, t->prune_zeros, t->prune->zone * sizeof(float)));
    }
    return pkvi_copies_flush(&copies);
}

/* How much the row of the step attended, to both sums, from a key on. */
static enum pkv_status add_row(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                               uint32_t span, uint32_t step, uint32_t first)
{
    struct pkv_args_score args = pkvi_score_args(t, rows, span);
    args.key_begin = first / PKV_PAGE_TOKENS * PKV_PAGE_TOKENS;
    args.keep = args.weight = 1.0f;
    PKV_TRY(pkvi_launch(t->compute, t->score_kernel, &args));
    args.views = pkvi_hot_picked(t, rows->layer);
    args.weight = (float)step;
    return pkvi_launch(t->compute, t->score_kernel, &args);
}

static enum pkv_status thin(struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    struct pkvi_prune_seq *seq = &t->prune_seq[s];
    struct pkvi_prune_layer *layer = &seq->layer[l];
    const uint32_t step = layer->due, window = seq->recent[step] + 1, stays = stays_of(t, l);
    const float slope = ramp_step(t->prune, window);
    const struct pkv_args_thin args = {.view = pkvi_prune_view(t, s, l),
                                       .weighted = weighted_view(t, s, l).score,
                                       .kv_type = t->config.kv_type,
                                       .kv_heads = t->layer[l].info.kv_heads,
                                       .head_dim = t->layer[l].info.head_dim,
                                       .zone_first = zone_first(t, seq, layer, step),
                                       .zone = t->prune->zone,
                                       .stay = stays,
                                       .first_key = layer->first_key,
                                       /* 1 + (row - first_row) slope, summed */
                                       .scale = 1.0f - (float)first_row(seq, step) * slope,
                                       .weighted_scale = slope};
    if (stays < t->prune->zone) {
        PKV_TRY(pkvi_transfer_thin(t, &args));
        const uint32_t first = layer->first_key + t->prune->zone - stays;
        pkvi_pages_drop(t, s, l, layer->first_key / PKV_PAGE_TOKENS, first / PKV_PAGE_TOKENS);
        layer->first_key = first;
        seq->first_keys_changed = true;
    }
    layer->due = next_due(t, seq, l, &layer->next);
    return PKV_OK;
}

static enum pkv_status decoded(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                               uint32_t span)
{
    const uint32_t s = rows->host_spans[span].view, l = rows->layer;
    struct pkvi_prune_seq *seq = &t->prune_seq[s];
    struct pkvi_prune_layer *layer = &seq->layer[l];
    const bool whole = stays_of(t, l) == t->prune->zone; /* there is nothing to choose */
    if (layer->ahead_due != PKVI_PRUNE_NEVER && seq->step == first_row(seq, layer->ahead_due)) {
        const struct pkv_kv_view view = pkvi_prune_view(t, s, l);
        if (!whole) {
            PKV_TRY(clear(t, &view, l, zone_first(t, seq, layer, layer->ahead_due)));
        }
        layer->ahead_due = next_due(t, seq, l, &layer->ahead);
    }
    if (layer->due == PKVI_PRUNE_NEVER || seq->step < first_row(seq, layer->due)) {
        return PKV_OK;
    }
    if (!whole) {
        PKV_TRY(add_row(t, rows, span, seq->step, zone_first(t, seq, layer, layer->due)));
    }
    return seq->step == layer->due ? thin(t, s, l) : PKV_OK;
}

enum pkv_status pkvi_prune_attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    struct pkvi_tier_rows r = *rows;
    r.attend.lse = t->lse;
    PKV_TRY(pkvi_launch(t->compute, t->attend_kernel, &r.attend));
    for (uint32_t i = 0; i < r.attend.span_count; i++) {
        const struct pkvi_prune_seq *seq = &t->prune_seq[r.host_spans[i].view];
        PKV_TRY(seq->step > 0 ? decoded(t, &r, i) : choose_rows(t, &r, seq));
    }
    return PKV_OK;
}

bool pkvi_tier_prunes(const struct pkvi_tier_config *config)
{
    return config->policy && config->policy->prune;
}

enum pkv_status pkvi_tier_check_prompt(struct pkvi_tier *t, uint32_t tokens)
{
    const uint64_t pages = most_pages(t, &t->prune_seq[t->slots], tokens);
    if (pages > t->sizes.quota_pages) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "policy %s: a prompt of %u tokens and what may follow it take %llu pages, "
                        "there are %u",
                        t->config.policy->name, tokens, (unsigned long long)pages,
                        t->sizes.quota_pages);
    }
    return PKV_OK;
}

void pkvi_tier_prompt_rows(const struct pkvi_tier_config *config, uint32_t tokens,
                           uint32_t *rows_out)
{
    pkvi_prune_rows(config->policy->prune, config->layers, tokens, rows_out);
}

pkv_addr pkvi_tier_prompt_index(const struct pkvi_tier *t)
{
    return t->prune_index;
}
