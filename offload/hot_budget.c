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

/* Keys and tokens of a page's slots, for every page that may be one. */
#define PAGE_STATE_BYTES (PKV_PAGE_TOKENS * (sizeof(float) + sizeof(int32_t)))

static const struct pkv_recipe *recipe_of(const struct pkvi_tier *t)
{
    return &t->config.policy->recipe;
}

/* Pages of the ring of a KV head that has `pages` in all. */
static uint32_t ring_pages(const struct pkvi_tier *t, uint32_t pages)
{
    const float share = recipe_of(t)->ring_share;
    uint32_t ring = pkvi_pages_of(t->config.recent) + 2;
    if (share > 0.0f) {
        ring = (uint32_t)((float)pages * share + 0.5f);
        ring = ring < pages ? ring : pages - 1;
        ring = ring > LEAST_RING_PAGES ? ring : LEAST_RING_PAGES;
    }
    return ring;
}

/* Weights of all KV heads: their layer's. */
static void weigh(const struct pkvi_tier *t, double *layer, double *head)
{
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
}

/* A page at least for every KV head, and not more than the context has. */
static enum pkv_status share_out(struct pkvi_tier *t, uint64_t total)
{
    const uint32_t heads = t->row_entries;
    double *weight = malloc((t->sizes.global_layers + 2ull * heads) * sizeof *weight);
    free(t->hot_pages);
    t->hot_pages = malloc(heads * sizeof *t->hot_pages);
    if (!weight || !t->hot_pages) {
        free(weight);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "slots of %u KV heads", heads);
    }
    double *head = weight + t->sizes.global_layers;
    weigh(t, weight, head);
    const uint64_t most =
        total < (uint64_t)heads * t->blocks_max ? t->blocks_max : total / heads + 1;
    pkvi_pyramid_share(head, heads, 1, (uint32_t)most, total, head + heads, t->hot_pages);
    free(weight);
    return PKV_OK;
}

void pkvi_hot_describe(struct pkvi_tier *t)
{
    uint32_t entry = 0;
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
        }
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
    t->score_lane_bytes = pkvi_aligned(scores * sizeof(float));
    t->lse_bytes = pkvi_aligned(lse * sizeof(float));
    t->sizes.score_bytes =
        PKVI_TIER_LANES * t->score_lane_bytes + t->lse_bytes + pkvi_aligned(scratch);
}

enum pkv_status pkvi_hot_measure(struct pkvi_tier *t, uint64_t bytes)
{
    struct pkvi_tier_sizes *sizes = &t->sizes;
    const uint64_t page_bytes = t->unit_bytes + PAGE_STATE_BYTES;
    uint32_t pages = (uint32_t)(bytes / page_bytes);
    t->tail_pages = ring_pages(t, pages / t->row_entries);
    sizes->quota_pages = pages;
    const uint32_t ring = t->tail_pages * t->row_entries;
    if (pages < ring + t->row_entries) {
        return PKV_ERR_RANGE;
    }
    sizes->ring_pages = t->tail_pages;
    sizes->hot_pages = pages - ring;
    PKV_TRY(share_out(t, sizes->hot_pages));
    pkvi_hot_describe(t);
    sizes->hot_bytes = t->hot_state_bytes * t->config.sequences;
    measure_scores(t);
    return PKV_OK;
}

uint64_t pkvi_hot_least_bytes(const struct pkvi_tier *t)
{
    const uint32_t ring = ring_pages(t, LEAST_RING_PAGES + 1);
    return (uint64_t)t->row_entries * (ring + 1) * (t->unit_bytes + PAGE_STATE_BYTES);
}
