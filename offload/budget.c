/*
 * budget.c: sizes. What a config takes, how many pages a sequence may have, and which of its layers
 * leave the device as it grows. Pure arithmetic of the host.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/base/layout.h"

#define STAGING_PART 5u /* of the budget, at most, for staging tiles; but these: */
#define LEAST_TILES 2u

static bool is_global(const struct pkv_layer_info *info)
{
    return info->kind == PKV_LAYER_GLOBAL;
}

uint32_t pkvi_tier_layer_pages(const struct pkvi_tier_config *config, uint32_t layer)
{
    const struct pkv_layer_info *info = &config->layer[layer];
    uint32_t whole = pkvi_pages_of(config->context_tokens);
    if (is_global(info)) {
        return whole;
    }
    /* A row tile appends all its rows before its first row looks back over the window. */
    uint64_t ring = (uint64_t)info->window + config->step_rows;
    ring = (ring + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS + 1;
    return (uint32_t)(ring < whole ? ring : whole);
}

static uint32_t page_bytes(const struct pkvi_tier_config *config, const struct pkv_layer_info *info)
{
    return PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(config->kv_type, info->head_dim);
}

/* What depends on the layers alone. */
static void measure_layers(struct pkvi_tier *t)
{
    const struct pkvi_tier_config *config = &t->config;
    struct pkvi_tier_sizes *sizes = &t->sizes;
    for (uint32_t l = 0; l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        const uint32_t bytes = page_bytes(config, info);
        if (!is_global(info)) {
            const uint64_t pages = (uint64_t)pkvi_tier_layer_pages(config, l) * info->kv_heads;
            sizes->ring_bytes += pages * bytes * config->sequences;
            sizes->parking_bytes += pages * bytes;
            sizes->tables_bytes += pkvi_aligned(pages * config->sequences * sizeof(pkv_addr));
            continue;
        }
        sizes->global_layers++;
        sizes->full_bytes += (uint64_t)config->context_tokens * info->kv_heads *
                             pkvi_kv_entry_bytes(config->kv_type, info->head_dim);
        t->row_entries += info->kv_heads;
        t->unit_bytes = bytes > t->unit_bytes ? bytes : t->unit_bytes;
        t->staging_head_pages =
            info->kv_heads > t->staging_head_pages ? info->kv_heads : t->staging_head_pages;
        const uint64_t block = (uint64_t)bytes * info->kv_heads;
        sizes->host_block_bytes = block > sizes->host_block_bytes ? block : sizes->host_block_bytes;
    }
}

static uint64_t staging_bytes(const struct pkvi_tier *t, uint32_t tiles, uint32_t tile_tokens)
{
    return (uint64_t)tiles * (tile_tokens / PKV_PAGE_TOKENS) * t->staging_head_pages *
           t->unit_bytes;
}

/*
 * The more there is loaded ahead, the less the link rests while layers do other things than attend:
 * the largest staging that is at most a part of the budget, else the least one.
 */
static void choose_staging(struct pkvi_tier *t, uint64_t most_bytes)
{
    static const struct {
        uint32_t tiles, tokens;
    } choices[] = {{4, 4 * PKV_SPLIT_KEYS},
                   {4, 2 * PKV_SPLIT_KEYS},
                   {4, PKV_SPLIT_KEYS},
                   {LEAST_TILES, PKV_SPLIT_KEYS}};
    const uint32_t count = sizeof choices / sizeof choices[0];
    uint32_t i = 0;
    while (i + 1 < count && staging_bytes(t, choices[i].tiles, choices[i].tokens) > most_bytes) {
        i++;
    }
    t->sizes.tiles = choices[i].tiles;
    t->sizes.tile_tokens = choices[i].tokens;
    t->sizes.staging_bytes = staging_bytes(t, choices[i].tiles, choices[i].tokens);
}

static enum pkv_status refuse_budget(const struct pkvi_tier *t)
{
    return PKV_FAIL(PKV_ERR_RANGE,
                    "KV budget of %llu bytes a sequence: %s of every layer (%u tokens) and two "
                    "staging tiles, or all of a short context, need %lluKiB",
                    (unsigned long long)t->config.budget_bytes,
                    t->config.policy ? "ring and slots" : "the recent tokens and two blocks",
                    t->tail_pages * PKV_PAGE_TOKENS,
                    (unsigned long long)(t->sizes.least_bytes + 1023) / 1024);
}

/* A budget that does not hold everything: staging first, then pages. */
static enum pkv_status measure_budget(struct pkvi_tier *t)
{
    struct pkvi_tier_sizes *sizes = &t->sizes;
    const struct pkvi_tier_config *config = &t->config;
    const uint64_t least = config->policy
                               ? pkvi_hot_least_bytes(t)
                               : (uint64_t)t->row_entries * t->tail_pages * t->unit_bytes;
    const uint64_t all = config->budget_bytes * config->sequences;
    sizes->least_bytes =
        least +
        (staging_bytes(t, LEAST_TILES, PKV_SPLIT_KEYS) + config->sequences - 1) / config->sequences;
    /* A hot set is what a budget is for; only prompts stream. */
    choose_staging(t, config->policy ? 0 : all / STAGING_PART);
    sizes->least_bytes =
        sizes->least_bytes < sizes->full_bytes ? sizes->least_bytes : sizes->full_bytes;
    if (config->budget_bytes < sizes->least_bytes) {
        return refuse_budget(t);
    }
    const uint64_t share = (sizes->staging_bytes + config->sequences - 1) / config->sequences;
    sizes->quota_pages = (uint32_t)((config->budget_bytes - share) / t->unit_bytes);
    if (config->policy) {
        t->recalls = pkvi_hot_recalls(config);
        const enum pkv_status status = pkvi_hot_measure(t, config->budget_bytes - share);
        if (status != PKV_OK) {
            return status == PKV_ERR_RANGE ? refuse_budget(t) : status;
        }
    }
    /* New rows of a pass: one layer's, whole pages of every sequence. */
    const uint64_t pages = pkvi_pages_of(config->pass_rows) + 2ull * config->sequences;
    sizes->buffer_bytes = pages * t->staging_head_pages * t->unit_bytes;
    return PKV_OK;
}

static void measure_tables(struct pkvi_tier *t)
{
    struct pkvi_tier_sizes *sizes = &t->sizes;
    const struct pkvi_tier_config *config = &t->config;
    sizes->tables_bytes +=
        pkvi_aligned((uint64_t)config->layers * t->slots * sizeof(struct pkv_kv_view));
    sizes->tables_bytes +=
        pkvi_aligned((uint64_t)t->slots * t->blocks_max * t->row_entries * sizeof(pkv_addr));
    t->staging_table_bytes =
        pkvi_aligned((uint64_t)sizes->tiles * (sizes->tile_tokens / PKV_PAGE_TOKENS) *
                     t->staging_head_pages * sizeof(pkv_addr));
    sizes->tables_bytes += config->layers * t->staging_table_bytes;
    sizes->tables_bytes += pkvi_aligned((uint64_t)t->slots * sizeof(struct pkv_kv_view));
    if (t->hot_pages) {
        sizes->tables_bytes +=
            pkvi_aligned((uint64_t)config->layers * t->slots * sizeof(struct pkv_kv_view));
        sizes->tables_bytes += pkvi_aligned((uint64_t)t->slots * t->hot_entries * sizeof(pkv_addr));
        sizes->tables_bytes += pkvi_aligned((uint64_t)t->slots * t->row_entries * sizeof(uint32_t));
        sizes->tables_bytes += pkvi_aligned((uint64_t)t->row_entries * sizeof(uint32_t));
        sizes->tables_bytes += pkvi_aligned((uint64_t)t->slots * sizes->global_layers *
                                            t->blocks_max * sizeof(pkv_addr));
        sizes->tables_bytes += pkvi_aligned(pkvi_recall_count_bytes(t));
    }
    if (t->prune) {
        sizes->tables_bytes += pkvi_prune_tables_bytes(t);
    }
    for (uint32_t l = 0; sizes->tile_tokens > 0 && l < config->layers; l++) {
        const struct pkv_layer_info *info = &config->layer[l];
        const uint64_t carry =
            pkvi_attend_carry_bytes(config->step_rows, info->heads, info->head_dim);
        const uint64_t check =
            2 *
            pkvi_aligned(pkvi_attend_carry_bytes(config->sequences, info->heads, info->head_dim));
        sizes->carry_bytes = carry > sizes->carry_bytes ? carry : sizes->carry_bytes;
        sizes->check_bytes = check > sizes->check_bytes ? check : sizes->check_bytes;
    }
    sizes->check_bytes = config->check_steps > 0 ? sizes->check_bytes : 0;
    sizes->carry_bytes = pkvi_aligned(sizes->carry_bytes);
    t->recall_check_bytes = config->check_steps > 0 ? pkvi_aligned(t->recall_check_bytes) : 0;
    sizes->upload_bytes = sizes->tables_bytes + sizes->check_bytes + t->recall_check_bytes +
                          pkvi_aligned(pkvi_recall_count_bytes(t));
}

static enum pkv_status measure_host(struct pkvi_tier *t)
{
    struct pkvi_tier_sizes *sizes = &t->sizes;
    const struct pkvi_tier_config *config = &t->config;
    if (config->host) {
        sizes->host_blocks = (uint64_t)t->slots * t->blocks_max * sizes->global_layers;
        sizes->parked_bytes = config->parked * sizes->parking_bytes;
    }
    const uint64_t pages = (uint64_t)sizes->quota_pages * config->sequences;
    if (sizes->host_blocks >= PKVI_NO_PLACE || pages >= PKVI_NO_PLACE) {
        return PKV_FAIL(PKV_ERR_RANGE, "KV tier: %llu blocks and %llu pages, at most %u",
                        (unsigned long long)sizes->host_blocks, (unsigned long long)pages,
                        PKVI_NO_PLACE - 1);
    }
    if (sizes->host_blocks > 0) {
        const struct pkvi_host_arena_config arena = {.block_bytes = sizes->host_block_bytes,
                                                     .node = -1};
        PKV_TRY(pkvi_host_arena_plan(&arena, sizes->host_blocks, &sizes->host_bytes));
    }
    struct pkvi_arena measuring = {0};
    pkvi_tier_lay_out_host(t, &measuring);
    sizes->host_state_bytes = measuring.used_bytes;
    sizes->state_bytes = sizes->host_state_bytes + pkvi_places_bytes((uint32_t)sizes->host_blocks) +
                         pkvi_places_bytes((uint32_t)pages) + pkvi_places_bytes(config->sequences) +
                         pkvi_places_bytes(config->parked);
    const uint64_t host = sizes->host_bytes + sizes->parked_bytes;
    if (config->host_limit_bytes > 0 && host > config->host_limit_bytes) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "host memory for K and V of %u x %u tokens: %llu bytes, the limit is %llu",
                        t->slots, config->context_tokens, (unsigned long long)host,
                        (unsigned long long)config->host_limit_bytes);
    }
    return PKV_OK;
}

/* Global layers that stay DENSE with so many blocks. */
static uint32_t dense_layers(const struct pkvi_tier *t, uint32_t blocks)
{
    const struct pkvi_tier_sizes *sizes = &t->sizes;
    uint64_t pages = (uint64_t)t->row_entries * blocks;
    uint32_t dense = sizes->global_layers;
    for (uint32_t i = 0; pages > sizes->quota_pages && i < sizes->global_layers; i++, dense--) {
        const uint32_t heads = t->config.layer[t->demote_order[i]].kv_heads;
        pages -= (uint64_t)heads * (blocks > t->tail_pages ? blocks - t->tail_pages : 0);
    }
    return dense;
}

enum pkv_status pkvi_tier_measure(struct pkvi_tier *t)
{
    struct pkvi_tier_sizes *sizes = &t->sizes;
    const struct pkvi_tier_config *config = &t->config;
    t->prune = config->policy ? config->policy->prune : NULL;
    if (t->prune) {
        PKV_TRY(pkvi_prune_check(config));
    } else if (config->policy) {
        PKV_TRY(pkvi_hot_check_recipe(config));
    }
    t->slots = config->sequences + config->parked;
    t->blocks_max = pkvi_pages_of(config->context_tokens);
    t->tail_pages = pkvi_pages_of(config->recent) + 2;
    t->row_tiles = (config->pass_rows + config->step_rows - 1) / config->step_rows;
    measure_layers(t);
    sizes->quota_pages = t->row_entries * t->blocks_max;
    if (t->prune) {
        PKV_TRY(pkvi_prune_measure(t));
    }
    if (config->host && config->budget_bytes > 0 && sizes->global_layers > 0 &&
        config->budget_bytes < sizes->full_bytes) {
        PKV_TRY(measure_budget(t));
    }
    sizes->pool_bytes = (uint64_t)sizes->quota_pages * config->sequences * t->unit_bytes;
    measure_tables(t);
    sizes->device_bytes = sizes->pool_bytes + sizes->ring_bytes + sizes->staging_bytes +
                          sizes->buffer_bytes + sizes->carry_bytes + sizes->check_bytes +
                          sizes->hot_bytes + sizes->score_bytes + sizes->tables_bytes;
    sizes->dense_layers = t->demote_order ? dense_layers(t, t->blocks_max) : 0;
    sizes->dense_layers = t->hot_pages || t->prune ? 0 : sizes->dense_layers;
    return measure_host(t);
}

void pkvi_tier_demote(struct pkvi_tier *t, uint32_t seq, uint32_t tokens)
{
    const uint32_t streamed = t->sizes.global_layers - dense_layers(t, pkvi_pages_of(tokens));
    for (uint32_t i = 0; i < streamed; i++) {
        t->seq[seq].state[t->demote_order[i]].streamed = true;
    }
}

/* Layers leave in the order of their keys. Interleaved: a golden step, so that the first n of them,
 * for every n, lie evenly. */
static uint32_t demote_key(enum pkv_full_resident resident, uint32_t place, uint32_t count)
{
    switch (resident) {
    case PKV_RESIDENT_FIRST:
        return count - place;
    case PKV_RESIDENT_LAST:
        return place;
    default:
        return place * 2654435769u;
    }
}

static int by_key(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b; /* { key, layer } */
    return x[0] < y[0] ? -1 : x[0] > y[0] ? 1 : x[1] < y[1] ? -1 : x[1] > y[1];
}

/* The order of the `global_layers` global layers; pair: room for { key, layer } of each. */
static void fill_order(const struct pkvi_tier_config *config, uint32_t global_layers,
                       uint32_t (*pair)[2], uint32_t *order_out)
{
    uint32_t place = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        if (is_global(&config->layer[l])) {
            pair[place][0] = demote_key(config->resident, place, global_layers);
            pair[place++][1] = l;
        }
    }
    qsort(pair, place, sizeof *pair, by_key);
    for (uint32_t i = 0; i < place; i++) {
        order_out[i] = pair[i][1];
    }
}

enum pkv_status pkvi_tier_order(const struct pkvi_tier_config *config, uint32_t **order_out)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < config->layers; l++) {
        count += is_global(&config->layer[l]);
    }
    uint32_t(*pair)[2] = malloc((count + 1) * sizeof *pair);
    uint32_t *order = malloc((count + 1) * sizeof *order);
    if (!pair || !order) {
        free(pair);
        free(order);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "order of %u layers", count);
    }
    fill_order(config, count, pair, order);
    free(pair);
    *order_out = order;
    return PKV_OK;
}

enum pkv_status pkvi_tier_plan(const struct pkvi_tier_config *config,
                               struct pkvi_tier_sizes *sizes_out)
{
    struct pkvi_tier tier = {.config = *config};
    PKV_TRY(pkvi_tier_order(config, &tier.demote_order));
    enum pkv_status status = pkvi_tier_measure(&tier);
    free(tier.demote_order);
    free(tier.hot_pages);
    *sizes_out = tier.sizes;
    return status;
}
