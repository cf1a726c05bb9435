/*
 * hot_budget.c: what a budget buys a sequence that is HOT: a ring of recent pages for every KV
 * head, the rest slots, shared out among layers and KV heads; and the bytes of what stands beside
 * the pages. Pure arithmetic of the host.
 */
#include <stdlib.h>

#include "offload/pyramid.h"
#include "offload/tier_impl.h"
#include "runtime/base/layout.h"

#define PYRAMID_SLOPE 0.8
#define LEAST_RING_PAGES                                                                           \
    3u /* one that is written, one on its way to the host, one to look back on */
#define MOST_RAMP 1000.0f
#define MOST_WEIGHT 1e9

/* Keys and tokens of a page's slots, for every page that may be one. */
#define PAGE_STATE_BYTES (PKV_PAGE_TOKENS * (sizeof(float) + sizeof(int32_t)))

static const struct pkv_recipe *recipe_of(const struct pkvi_tier *t)
{
    return &t->config.policy->recipe;
}

static enum pkv_status refuse(const struct pkvi_tier_config *config, const char *what, double value)
{
    return PKV_FAIL(PKV_ERR_INVALID, "policy %s: %s (%g)", config->policy->name, what, value);
}

/* Weights of global layers that were given: finite, not negative, not all 0. */
static bool weights_hold(const struct pkvi_tier_config *config)
{
    double sum = 0.0;
    uint32_t number = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        if (config->layer[l].kind == PKV_LAYER_GLOBAL) {
            const double weight = config->layer_weights[number++];
            if (!(weight >= 0.0 && weight <= MOST_WEIGHT)) {
                return false;
            }
            sum += weight;
        }
    }
    return sum > 0.0 || number == 0;
}

enum pkv_status pkvi_hot_check_recipe(const struct pkvi_tier_config *config)
{
    const struct pkv_recipe *r = &config->policy->recipe;
    const bool keys = r->key == PKV_KEY_MASS, ramp = r->prompt == PKV_PROMPT_WINDOW;
    if ((uint32_t)r->prompt > PKV_PROMPT_ALL_ROWS || (uint32_t)r->leave > PKV_LEAVE_KEEP ||
        (uint32_t)r->key > PKV_KEY_MASS) {
        return refuse(config, "unknown prompt, leave or key", 0);
    }
    if (keys != (r->leave == PKV_LEAVE_COMPETE)) {
        return refuse(config, "tokens compete by the key mass, and nothing else asks for keys",
                      (double)r->key);
    }
    if ((uint32_t)config->pyramid >= PKV_PYRAMID_COUNT) {
        return refuse(config, "unknown shape", (double)config->pyramid);
    }
    if (config->layer_weights && !config->policy->budget && !weights_hold(config)) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "policy %s: weights of layers (--pyramid file:PATH): expected 0 to 1e9, "
                        "and not all 0",
                        config->policy->name);
    }
    if (!(r->slope >= 0.0f && r->slope < 1.0f)) {
        return refuse(config, "slope, expected 0 and below 1", (double)r->slope);
    }
    if ((uint32_t)r->pick > PKV_PICK_RANDOM ||
        (r->pick != PKV_PICK_NONE &&
         (r->leave != PKV_LEAVE_DROP || r->prompt == PKV_PROMPT_TAIL))) {
        return refuse(config, "a pick asks for scores of a prompt's rows, and drops what leaves",
                      (double)r->pick);
    }
    if (keys && !(r->decay > 0.0f && r->decay <= 1.0f)) {
        return refuse(config, "decay, expected above 0 and at most 1", (double)r->decay);
    }
    if (!(r->ring_share >= 0.0f && r->ring_share <= 1.0f)) {
        return refuse(config, "ring_share, expected 0 to 1", (double)r->ring_share);
    }
    if (r->pool % 2 == 0) {
        return refuse(config, "pool, expected an odd number", r->pool);
    }
    if (ramp && r->window_rows == 0) {
        return refuse(config, "window_rows, expected at least 1", r->window_rows);
    }
    if (ramp && !(r->window_ramp >= 0.0f && r->window_ramp <= MOST_RAMP)) {
        return refuse(config, "window_ramp, expected 0 to 1000", (double)r->window_ramp);
    }
    return PKV_OK;
}

/* Pages of slots that a KV head has at least: sinks are always there. */
static uint32_t least_slot_pages(const struct pkvi_tier *t)
{
    const uint32_t sinks = pkvi_pages_of(recipe_of(t)->sinks);
    return sinks > 0 ? sinks : 1;
}

/* Pages of the ring of a KV head that has `pages` in all. */
static uint32_t ring_pages(const struct pkvi_tier *t, uint32_t pages)
{
    const float share = recipe_of(t)->ring_share;
    const uint32_t slots = least_slot_pages(t), most = pages > slots ? pages - slots : 0;
    uint32_t ring = pkvi_pages_of(t->config.recent) + 2;
    if (share > 0.0f) {
        ring = (uint32_t)((double)pages * (double)share + 0.5);
        ring = ring < most ? ring : most;
        ring = ring > LEAST_RING_PAGES ? ring : LEAST_RING_PAGES;
    }
    return ring;
}

/* Weights of all KV heads by the policy's own budget. */
static enum pkv_status weigh_by_policy(const struct pkvi_tier *t, double *head)
{
    const struct pkv_policy_ops *policy = t->config.policy;
    struct pkv_budget_shape shape = {.given = t->config.layer_weights};
    uint32_t *kv_heads = malloc((t->sizes.global_layers + 1u) * sizeof *kv_heads);
    if (!kv_heads) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "budget of %u layers", t->sizes.global_layers);
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->config.layer[l].kind == PKV_LAYER_GLOBAL) {
            kv_heads[shape.layers++] = t->config.layer[l].kv_heads;
        }
    }
    shape.kv_heads = kv_heads;
    const enum pkv_status status = policy->budget(&policy->recipe, &shape, head);
    free(kv_heads);
    if (status != PKV_OK) {
        return PKV_FAIL(status == PKV_ERR_NO_MEMORY ? status : PKV_ERR_INVALID,
                        "policy %s makes no budget of %u layers %s", policy->name, shape.layers,
                        shape.given ? "and the numbers given for them (--pyramid file:PATH)"
                                    : "without numbers for them (--pyramid file:PATH)");
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < t->row_entries; i++) {
        if (!(head[i] >= 0.0 && head[i] <= MOST_WEIGHT)) {
            return refuse(&t->config, "its budget has a weight that is not 0 to 1e9", head[i]);
        }
        sum += head[i];
    }
    return sum > 0.0 ? PKV_OK : refuse(&t->config, "the weights of its budget add up to 0", sum);
}

/* Weights of all KV heads: their layer's. */
static enum pkv_status weigh(const struct pkvi_tier *t, double *layer, double *head)
{
    if (t->config.policy->budget) {
        return weigh_by_policy(t, head);
    }
    const double *weight = t->config.layer_weights;
    uint32_t entry = 0, number = 0;
    const float own = recipe_of(t)->slope;
    if (own > 0.0f || !weight) {
        pkvi_pyramid_weights(own > 0.0f ? PKV_PYRAMID_LINEAR : t->config.pyramid,
                             own > 0.0f ? (double)own : PYRAMID_SLOPE, t->sizes.global_layers,
                             layer);
        weight = layer;
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkv_layer_info *info = &t->config.layer[l];
        for (uint32_t h = 0; info->kind == PKV_LAYER_GLOBAL && h < info->kv_heads; h++) {
            head[entry++] = weight[number];
        }
        number += info->kind == PKV_LAYER_GLOBAL;
    }
    return PKV_OK;
}

/* Slots in whole pages to every KV head, by their weights; not more than the context has. */
static void share_out(struct pkvi_tier *t, uint64_t total, double *head)
{
    const uint32_t heads = t->row_entries;
    const uint64_t most =
        total < (uint64_t)heads * t->blocks_max ? t->blocks_max : total / heads + 1;
    pkvi_pyramid_share(head, heads, least_slot_pages(t), (uint32_t)most, total, head + heads,
                       t->hot_pages);
}

void pkvi_hot_describe(struct pkvi_tier *t)
{
    uint32_t entry = 0, number = 0;
    t->hot_entries = 0;
    t->hot_state_bytes = 0;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkv_layer_info *info = &t->config.layer[l];
        uint32_t most = 0;
        if (info->kind != PKV_LAYER_GLOBAL) {
            continue;
        }
        for (uint32_t h = 0; h < info->kv_heads; h++, entry++) {
            most = t->hot_pages[entry] > most ? t->hot_pages[entry] : most;
        }
        if (t->layer) {
            t->layer[l].hot_slots = most * PKV_PAGE_TOKENS;
            t->layer[l].hot_base = t->hot_entries;
            t->layer[l].hot_state = t->hot_state_bytes;
            t->layer[l].prompt_scores = t->sums ? number * t->score_layer_bytes : 0;
        }
        number++;
        t->hot_entries += (most + t->tail_pages) * info->kv_heads;
        t->hot_state_bytes += (uint64_t)info->kv_heads * PKV_PAGE_TOKENS *
                              ((most + t->tail_pages) * sizeof(float) + most * sizeof(int32_t));
    }
    t->hot_state_bytes = pkvi_aligned(t->hot_state_bytes);
}

/* Scores of a prompt's tokens and what SCORE and PLACE need besides, of the widest layer. */
static void measure_scores(struct pkvi_tier *t)
{
    const struct pkvi_tier_config *config = &t->config;
    const uint64_t context = (uint64_t)t->blocks_max * PKV_PAGE_TOKENS;
    uint64_t scores = 0, lse = 0, scratch = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        if (info->kind != PKV_LAYER_GLOBAL) {
            continue;
        }
        const uint64_t score = pkvi_score_scratch_bytes(
            config->step_rows, info->heads, info->kv_heads, info->head_dim, config->threads);
        const uint64_t place = info->kv_heads * 3 * context * sizeof(float);
        scores = info->kv_heads * context > scores ? info->kv_heads * context : scores;
        lse = (uint64_t)config->step_rows * info->heads > lse
                  ? (uint64_t)config->step_rows * info->heads
                  : lse;
        scratch = score > scratch ? score : scratch;
        scratch = place > scratch ? place : scratch;
    }
    t->sums =
        recipe_of(t)->prompt == PKV_PROMPT_ALL_ROWS && config->pass_rows < config->context_tokens;
    t->score_layer_bytes = pkvi_aligned(scores * sizeof(float));
    t->score_lane_bytes = t->score_layer_bytes * (t->sums ? t->sizes.global_layers : 1);
    t->lse_bytes = pkvi_aligned(lse * sizeof(float));
    t->sizes.score_bytes =
        PKVI_TIER_LANES * t->score_lane_bytes + t->lse_bytes + pkvi_aligned(scratch);
}

/* Ring and slots of so many pages; their bytes with all that stands beside them. */
static uint64_t divide(struct pkvi_tier *t, uint32_t pages, double *head)
{
    t->tail_pages = ring_pages(t, pages / t->row_entries);
    t->sizes.quota_pages = pages;
    t->sizes.ring_pages = t->tail_pages;
    t->sizes.hot_pages = pages - t->tail_pages * t->row_entries;
    share_out(t, t->sizes.hot_pages, head);
    pkvi_hot_describe(t);
    return (uint64_t)pages * t->unit_bytes + t->hot_state_bytes;
}

/* As many pages as so many bytes buy, not fewer than these. */
static void buy(struct pkvi_tier *t, uint64_t bytes, uint32_t pages, double *head)
{
    /* The ring's pages need no room for tokens: what that leaves buys some more. */
    const uint64_t page_bytes = t->unit_bytes + PAGE_STATE_BYTES;
    uint64_t used = divide(t, pages, head);
    uint32_t more = (uint32_t)((bytes - used) / page_bytes) + 1;
    while (more > 0) {
        used = divide(t, pages + more, head);
        pages += used <= bytes ? more : 0;
        more = used > bytes ? more / 2 : (uint32_t)((bytes - used) / page_bytes) + 1;
    }
    (void)divide(t, pages, head);
}

/* Slots beyond the budget, for what is generated: whatever is HOT has filled its budget. */
static void add_kept(struct pkvi_tier *t)
{
    const uint32_t wanted = pkvi_pages_of(t->config.keep_tokens);
    const uint32_t most = t->blocks_max - t->sizes.quota_pages / t->row_entries;
    const bool keeps = recipe_of(t)->leave == PKV_LEAVE_KEEP;
    t->sizes.keep_pages = !keeps ? 0 : wanted > 0 && wanted < most ? wanted : most;
    for (uint32_t i = 0; i < t->row_entries; i++) {
        t->hot_pages[i] += t->sizes.keep_pages;
    }
    t->sizes.hot_pages += t->sizes.keep_pages * t->row_entries;
    t->sizes.quota_pages += t->sizes.keep_pages * t->row_entries;
    pkvi_hot_describe(t);
}

enum pkv_status pkvi_hot_measure(struct pkvi_tier *t, uint64_t bytes)
{
    const uint32_t layers = t->sizes.global_layers, heads = t->row_entries;
    const uint32_t pages = (uint32_t)(bytes / (t->unit_bytes + PAGE_STATE_BYTES));
    t->tail_pages = ring_pages(t, pages / heads);
    if (pages < ((uint64_t)t->tail_pages + least_slot_pages(t)) * heads) {
        return PKV_ERR_RANGE;
    }
    double *weight = malloc((layers + 2ull * heads) * sizeof *weight);
    free(t->hot_pages);
    t->hot_pages = malloc(heads * sizeof *t->hot_pages);
    if (!weight || !t->hot_pages) {
        free(weight);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "slots of %u KV heads", heads);
    }
    const enum pkv_status status = weigh(t, weight, weight + layers);
    if (status == PKV_OK) {
        buy(t, bytes, pages, weight + layers);
    }
    free(weight);
    PKV_TRY(status);
    add_kept(t);
    t->sizes.hot_bytes = t->hot_state_bytes * t->config.sequences;
    t->parking_slot_bytes = (uint64_t)t->sizes.hot_pages * t->unit_bytes + t->hot_state_bytes;
    t->sizes.parking_bytes += t->parking_slot_bytes;
    measure_scores(t);
    return PKV_OK;
}

uint64_t pkvi_hot_least_bytes(const struct pkvi_tier *t)
{
    const uint64_t slots = least_slot_pages(t);
    const uint32_t ring = ring_pages(t, LEAST_RING_PAGES + (uint32_t)slots);
    return t->row_entries * (ring + slots) * (t->unit_bytes + PAGE_STATE_BYTES);
}
