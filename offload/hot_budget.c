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

/* What a query asks for. */
static enum pkv_status check_recall(const struct pkvi_tier_config *config)
{
    const struct pkv_recipe *r = &config->policy->recipe;
    const bool recalls = r->query != PKV_QUERY_NONE;
    if (recalls != (r->key == PKV_KEY_PREDICTED)) {
        return refuse(config, "keys are predicted by a query, and nothing else asks for one",
                      (double)r->query);
    }
    if (!recalls) {
        return PKV_OK;
    }
    if (r->pick != PKV_PICK_NONE) {
        return refuse(config, "a pick leaves nothing to recall", (double)r->pick);
    }
    if (!(r->index_share > 0.0f && r->index_share <= 1.0f)) {
        return refuse(config, "index_share, expected above 0, at most 1", (double)r->index_share);
    }
    if (r->index_bits != 4 && r->index_bits != 8) {
        return refuse(config, "index_bits, expected 4 or 8", r->index_bits);
    }
    if (!(r->recall_share >= 0.0f && r->recall_share <= 1.0f)) {
        return refuse(config, "recall_share, expected 0 to 1", (double)r->recall_share);
    }
    if (r->recall_least == 0 || r->recall_least > PKV_RECALL_CAP) {
        return refuse(config, "recall_least, expected 1 to 1024", r->recall_least);
    }
    if (!(r->hysteresis >= 0.0f && r->hysteresis <= 1000.0f)) {
        return refuse(config, "hysteresis, expected 0 to 1000", (double)r->hysteresis);
    }
    return PKV_OK;
}

enum pkv_status pkvi_hot_check_recipe(const struct pkvi_tier_config *config)
{
    const struct pkv_recipe *r = &config->policy->recipe;
    const bool keys = r->key != PKV_KEY_NONE, ramp = r->prompt == PKV_PROMPT_WINDOW;
    if ((uint32_t)r->prompt > PKV_PROMPT_ALL_ROWS || (uint32_t)r->leave > PKV_LEAVE_KEEP ||
        (uint32_t)r->key > PKV_KEY_PREDICTED || (uint32_t)r->query > PKV_QUERY_MID) {
        return refuse(config, "unknown prompt, leave, key or query", 0);
    }
    if (keys != (r->leave == PKV_LEAVE_COMPETE)) {
        return refuse(config, "tokens compete by keys, and nothing else asks for keys",
                      (double)r->key);
    }
    PKV_TRY(check_recall(config));
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

bool pkvi_hot_recalls(const struct pkvi_tier_config *config)
{
    return config->policy && pkv_policy_recalls(config->policy);
}

uint32_t pkvi_hot_index_channels(const struct pkv_recipe *recipe, const struct pkv_layer_info *info)
{
    const uint32_t channels = (uint32_t)((double)info->head_dim * (double)recipe->index_share);
    const uint32_t whole = (channels > 8 ? channels : 8) / 8 * 8;
    return whole < info->head_dim / 8 * 8 ? whole : info->head_dim / 8 * 8;
}

/* Entries that a KV head brings in a step, at most. */
static uint32_t cap_of(const struct pkvi_tier *t)
{
    const struct pkv_recipe *r = recipe_of(t);
    const double share = (double)r->recall_share * t->config.context_tokens;
    const uint32_t cap = share < PKV_RECALL_CAP ? (uint32_t)share : PKV_RECALL_CAP;
    return cap > r->recall_least ? cap : r->recall_least;
}

/* What stands beside the keys and tokens of a layer's slots, whose number is in *state, from
 * `offset` on; where it ends. */
static uint64_t lay_out_recall(const struct pkvi_tier *t, const struct pkv_layer_info *info,
                               uint64_t offset, struct pkv_recall_state *state)
{
    const struct pkv_index index = {
        .channels = pkvi_hot_index_channels(recipe_of(t), info),
        .bits = recipe_of(t)->index_bits,
    };
    uint64_t top = pkvi_aligned(offset);
    state->blocks = t->blocks_max;
    state->cap = cap_of(t);
    state->query = pkvi_take(&top, (uint64_t)info->heads * info->head_dim * sizeof(float));
    state->gain = pkvi_take(&top, info->heads * sizeof(float));
    state->resident = pkvi_take(&top, (uint64_t)info->kv_heads * state->blocks * sizeof(uint32_t));
    state->swap = pkvi_take(&top, (uint64_t)info->kv_heads * state->cap * 2 * sizeof(int32_t));
    state->index =
        pkvi_take(&top, (uint64_t)state->blocks * info->kv_heads * pkvi_index_page_bytes(&index));
    return top;
}

/* The state of a layer with `pages` pages of slots, behind that of the layers before it; where it
 * ends. */
static uint64_t lay_out_state(const struct pkvi_tier *t, const struct pkv_layer_info *info,
                              uint32_t pages, struct pkv_recall_state *state)
{
    const uint64_t begin = t->hot_state_bytes, heads = info->kv_heads * PKV_PAGE_TOKENS;
    const uint64_t tokens = begin + heads * (pages + t->tail_pages) * sizeof(float);
    uint64_t end = tokens + heads * pages * sizeof(int32_t);
    *state = (struct pkv_recall_state){.slot_token = tokens, .slots = pages * PKV_PAGE_TOKENS};
    if (pkvi_hot_recalls(&t->config)) {
        end = lay_out_recall(t, info, end, state);
        uint64_t *part[] = {&state->query, &state->gain, &state->resident, &state->swap,
                            &state->index};
        for (uint32_t i = 0; i < sizeof part / sizeof part[0]; i++) {
            *part[i] -= begin;
        }
    }
    state->slot_token -= begin;
    return end;
}

void pkvi_hot_describe(struct pkvi_tier *t)
{
    struct pkv_recall_state state;
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
        t->hot_state_bytes = lay_out_state(t, info, most, &state);
        if (t->layer) {
            t->layer[l].recall = state;
        }
    }
    t->hot_state_bytes = pkvi_aligned(t->hot_state_bytes);
}

/* Of slots of a KV head. */
static uint32_t most_pages(const struct pkvi_tier *t)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->row_entries; i++) {
        most = t->hot_pages[i] > most ? t->hot_pages[i] : most;
    }
    return most;
}

/* Scores of a prompt's tokens and what SCORE and PLACE need besides, of the widest layer. */
static void measure_scores(struct pkvi_tier *t)
{
    const struct pkvi_tier_config *config = &t->config;
    const uint64_t context = (uint64_t)t->blocks_max * PKV_PAGE_TOKENS;
    uint64_t scores = 0, lse = 0, scratch = 0, recall = 0;
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
        if (pkvi_hot_recalls(config)) {
            struct pkv_recall_state state;
            (void)lay_out_recall(t, info, 0, &state);
            const uint64_t bytes =
                pkvi_recall_scratch_bytes(&state, config->sequences, info->heads, info->kv_heads);
            recall = bytes > recall ? bytes : recall;
            state.slots = most_pages(t) * PKV_PAGE_TOKENS;
            const uint64_t check = pkvi_recall_check_bytes(info, &state);
            t->recall_check_bytes = check > t->recall_check_bytes ? check : t->recall_check_bytes;
        }
    }
    t->sums =
        recipe_of(t)->prompt == PKV_PROMPT_ALL_ROWS && config->pass_rows < config->context_tokens;
    t->score_layer_bytes = pkvi_aligned(scores * sizeof(float));
    t->score_lane_bytes = t->score_layer_bytes * (t->sums ? t->sizes.global_layers : 1);
    t->lse_bytes = pkvi_aligned(lse * sizeof(float));
    t->recall_scratch_bytes = pkvi_aligned(recall);
    t->sizes.score_bytes = PKVI_TIER_LANES * t->score_lane_bytes + t->lse_bytes +
                           pkvi_aligned(scratch) + t->recall_scratch_bytes;
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

/* Of an index and what else does not depend on how many slots there are, at most. */
static uint64_t index_bytes(const struct pkvi_tier *t)
{
    struct pkv_recall_state state;
    uint64_t bytes = 0;
    for (uint32_t l = 0; pkvi_hot_recalls(&t->config) && l < t->config.layers; l++) {
        const struct pkv_layer_info *info = &t->config.layer[l];
        if (info->kind == PKV_LAYER_GLOBAL) {
            bytes = lay_out_recall(t, info, bytes, &state) + PKV_LAYOUT_ALIGN;
        }
    }
    return bytes;
}

enum pkv_status pkvi_hot_measure(struct pkvi_tier *t, uint64_t bytes)
{
    const uint32_t layers = t->sizes.global_layers, heads = t->row_entries;
    const uint64_t index = index_bytes(t), left = bytes > index ? bytes - index : 0;
    const uint32_t pages = (uint32_t)(left / (t->unit_bytes + PAGE_STATE_BYTES));
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
    return t->row_entries * (ring + slots) * (t->unit_bytes + PAGE_STATE_BYTES) + index_bytes(t);
}
