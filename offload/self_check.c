/*
 * self_check.c: every check_steps decode passes one layer of one sequence attends twice more: over
 * what it attended to, and over the host's copies of all full blocks with the rest from the device.
 * Maxima, sums and values of both come back with the pass; the next one compares them. It tells
 * which share of the softmax mass was attended to (the coverage of a hot set), and, where that is
 * all, whether the host's copies are what the device has. Costs one layer's blocks over the link.
 */
#include <math.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/base/log.h"

/* The layer of this number among the global ones. */
static uint32_t global_layer(const struct pkvi_tier *t, uint64_t number)
{
    uint32_t left = (uint32_t)(number % t->sizes.global_layers), l = 0;
    for (;; l++) {
        if (t->layer[l].global && left-- == 0) {
            return l;
        }
    }
}

void pkvi_check_choose(struct pkvi_tier *t)
{
    struct pkvi_tier_check *check = &t->check;
    uint32_t rows = 0;
    check->chosen = false;
    if (t->sizes.check_bytes == 0) {
        return;
    }
    for (uint32_t p = 0; p < t->part_count; p++) {
        rows += t->part[p].rows;
    }
    if (rows > t->config.sequences || ++check->passes % t->config.check_steps != 0) {
        return;
    }
    const uint64_t number = check->passes / t->config.check_steps;
    check->seq = t->part[number / t->sizes.global_layers % t->part_count].seq;
    check->layer = global_layer(t, number);
    check->rows = rows;
    check->lane = t->lane;
    const struct pkvi_tier_state *state = &t->seq[check->seq].state[check->layer];
    check->chosen = state->sealed > 0 && state->published == state->sealed;
    if (check->chosen) { /* in the pinned twin; the pass uploads it */
        struct pkv_kv_view *view =
            (struct pkv_kv_view *)(uintptr_t)(t->upload + (check->views - t->tables)) + check->seq;
        *view = pkvi_tier_view(t, check->seq, check->layer);
        view->first_page = state->sealed;
    }
}

enum pkv_status pkvi_check_attend(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    struct pkvi_tier_check *check = &t->check;
    if (!check->chosen || t->lane != check->lane || rows->layer != check->layer) {
        return PKV_OK;
    }
    uint32_t span = 0;
    while (rows->host_spans[span].view != check->seq) {
        span++;
    }
    const struct pkvi_tier_state *state = &t->seq[check->seq].state[check->layer];
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const struct pkv_kv_report before = t->report;
    check->row = rows->host_spans[span].first_row + rows->host_spans[span].rows - 1;
    check->span = span;
    check->tokens = rows->host_spans[span].first_position + rows->host_spans[span].rows;
    check->ring_token = state->ring_first * PKV_PAGE_TOKENS;
    const bool picking = t->seq[check->seq].picking;
    const pkv_addr views = picking ? pkvi_hot_picked(t, rows->layer) : rows->attend.views;
    const uint32_t pages = picking ? 0 : pkvi_tier_host_pages(t, check->seq, check->layer);
    PKV_TRY(pkvi_stream_carry(t, rows, span, views, pages, check->carry[0]));
    PKV_TRY(pkvi_stream_carry(t, rows, span, check->views, state->sealed, check->carry[1]));
    t->report.loaded_bytes = before.loaded_bytes; /* it is none of the policy's */
    t->report.loaded_tiles = before.loaded_tiles;
    PKV_TRY(pkvi_copies_add(&copies, check->result, check->carry[0], 2 * check->one_bytes));
    check->waiting = true;
    PKV_TRY(pkvi_recall_check_return(&copies, rows));
    return pkvi_copies_flush(&copies);
}

void pkvi_check_compare(struct pkvi_tier *t)
{
    struct pkvi_tier_check *check = &t->check;
    const struct pkv_layer_info *info = &t->layer[check->layer].info;
    const float *used = (const float *)(uintptr_t)check->result;
    const float *all = (const float *)(uintptr_t)(check->result + check->one_bytes);
    const uint64_t row_heads = (uint64_t)check->rows * info->heads;
    struct pkv_kv_layer_report *layer = &check->of_layer[check->layer];
    bool differs = false;
    double mean = 0.0;
    if (!check->waiting) {
        return;
    }
    check->waiting = false;
    for (uint32_t h = 0; h < info->heads; h++) {
        const uint64_t at = (uint64_t)check->row * info->heads + h;
        const uint64_t values = 2 * row_heads + at * info->head_dim;
        const double share = (double)used[row_heads + at] / (double)all[row_heads + at] *
                             exp((double)used[at] - (double)all[at]);
        differs = differs || used[at] != all[at] || used[row_heads + at] != all[row_heads + at] ||
                  memcmp(used + values, all + values, info->head_dim * sizeof *used) != 0;
        mean += share / info->heads;
        if ((t->report.checks == 0 && h == 0) || !(share >= t->report.check_least_coverage)) {
            t->report.check_least_coverage = share;
        }
    }
    pkvi_recall_check_compare(t, all + (uint64_t)check->row * info->heads,
                              all + row_heads + (uint64_t)check->row * info->heads);
    t->report.checks++;
    layer->checks++;
    layer->coverage += (mean - layer->coverage) / (double)layer->checks;
    if (differs && !t->hot_pages) { /* a hot set is not all there is */
        t->report.check_differences++;
        pkvi_log(PKV_LOG_ERROR, "tier",
                 "self-check: sequence %u, layer %u: attention over the copies in host memory "
                 "differs from that over the device's",
                 check->seq, check->layer);
    }
}
