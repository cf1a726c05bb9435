/*
 * recall.c: hot sets whose missing entries come back: an index of every full block, a query that is
 * there before the layer's own, and what it will attend to.
 *
 * Of every layer of a decode pass, while the layer before runs: PREDICT (what will the query attend
 * to, by the index), RECALL (the best that are missing take the slots with the least keys, from
 * host blocks), on the stream RECALL; the layer's attention waits for it. Ids are born and die on
 * the device. Index pages are made once, when a block is full, DENSE or HOT; they and all else that
 * recall keeps of a sequence stand in its state, beside the keys of its slots, and go where those
 * go (hot_move.c).
 */
#include "offload/hot_set.h"

static const struct pkv_recipe *recipe_of(const struct pkvi_tier *t)
{
    return &t->config.policy->recipe;
}

uint32_t pkvi_tier_index_channels(const struct pkvi_tier_config *config, uint32_t layer)
{
    const struct pkv_layer_info *info = &config->layer[layer];
    return pkvi_hot_recalls(config) && info->kind == PKV_LAYER_GLOBAL
               ? pkvi_hot_index_channels(&config->policy->recipe, info)
               : 0;
}

bool pkvi_tier_recalls(const struct pkvi_tier *t, uint32_t layer)
{
    bool recalls = false;
    for (uint32_t p = 0; t->recalls && t->layer[layer].global && p < t->part_count; p++) {
        recalls = recalls || t->seq[t->part[p].seq].hot;
    }
    return recalls;
}

/* ---- index ---- */

static pkv_addr state_of(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    return pkvi_hot_scores(t, s, l);
}

static enum pkv_status index_blocks(struct pkvi_tier *t, uint32_t s, uint32_t l,
                                    const struct pkv_kv_view *from, uint32_t first, uint32_t end)
{
    const struct pkvi_tier_layer *layer = &t->layer[l];
    const struct pkv_args_index args = {
        .from = *from,
        .blocks = pkvi_hot_blocks(t, s, t->layer[l].number),
        .pages = state_of(t, s, l) + layer->recall.index,
        .index = t->config.index[l],
        .kv_type = t->config.kv_type,
        .kv_heads = layer->info.kv_heads,
        .head_dim = layer->info.head_dim,
        .first_block = first,
        .end_block = end,
    };
    return first < end ? pkvi_launch(t->compute, t->index_kernel, &args) : PKV_OK;
}

void pkvi_recall_write_blocks(struct pkvi_tier *t, uint32_t s, uint32_t l, uint32_t first,
                              uint32_t end)
{
    const struct pkvi_tier_state *state = &t->seq[s].state[l];
    pkv_addr *out = pkvi_tier_uploaded(t, pkvi_hot_blocks(t, s, t->layer[l].number));
    for (uint32_t b = first; b < end; b++) {
        out[b] = pkvi_host_block_addr(t, state->block[b]);
    }
}

enum pkv_status pkvi_recall_index_missing(struct pkvi_tier *t, const struct pkvi_tier_part *part)
{
    struct pkvi_tier_seq *seq = &t->seq[part->seq];
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const uint32_t end = part->tokens / PKV_PAGE_TOKENS, first = seq->indexed;
    const struct pkv_kv_view of_host = {.first_page = end};
    if (!t->recalls || first >= end) {
        return PKV_OK;
    }
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            PKV_TRY(pkvi_transfer_publish(t, &seq->state[l], end));
            pkvi_recall_write_blocks(t, part->seq, l, 0, end);
        }
    }
    PKV_TRY(pkvi_hot_upload_tables(&copies, part->seq, true));
    PKV_TRY(pkvi_copies_flush(&copies));
    for (uint32_t l = 0; l < t->config.layers; l++) {
        if (t->layer[l].global) {
            PKV_TRY(index_blocks(t, part->seq, l, &of_host, first, end));
        }
    }
    seq->indexed = end;
    return pkvi_stream_sync(t->compute); /* the pinned twins are written again */
}

/* ---- queries ---- */

/* The whole query of a span's last row, and the gain of its norm, for the next step. */
static enum pkv_status keep_query(struct pkvi_copies *copies, const struct pkvi_tier_rows *rows,
                                  uint32_t span, bool whole)
{
    const struct pkvi_tier *t = copies->tier;
    const struct pkvi_tier_layer *layer = &t->layer[rows->layer];
    const struct pkv_row_span *at = &rows->host_spans[span];
    const uint64_t row = at->first_row + at->rows - 1, heads = layer->info.heads;
    const pkv_addr state = state_of(t, at->view, rows->layer);
    if (whole) {
        PKV_TRY(pkvi_copies_add(copies, state + layer->recall.query,
                                rows->attend.q + row * rows->attend.q_stride * sizeof(float),
                                heads * layer->info.head_dim * sizeof(float)));
    }
    if (rows->q_gain != 0) {
        PKV_TRY(pkvi_copies_add(copies, state + layer->recall.gain,
                                rows->q_gain + row * heads * sizeof(float), heads * sizeof(float)));
    }
    return PKV_OK;
}

/* Does the next step ask by this layer's whole query? */
static bool asks_by_own(const struct pkvi_tier *t, uint32_t layer)
{
    return layer == 0 || recipe_of(t)->query == PKV_QUERY_PREV;
}

/* ---- recall ---- */

/* Spans that lie behind one another, of sequences whose hot sets `views` show. */
struct recall {
    uint32_t layer, span_count, start;
    pkv_addr views, spans;
};

static enum pkv_status enqueue(struct pkvi_tier *t, const struct recall *r,
                               const struct pkv_args_predict *query)
{
    const struct pkvi_tier_layer *layer = &t->layer[r->layer];
    const struct pkv_layer_info *info = &layer->info;
    struct pkv_args_predict predict = *query;
    predict.views = r->views;
    predict.spans = r->spans;
    predict.span_count = r->span_count;
    predict.scratch = t->recall_scratch;
    predict.index = t->config.index[r->layer];
    predict.state = layer->recall;
    predict.heads = info->heads;
    predict.kv_heads = info->kv_heads;
    predict.head_dim = info->head_dim;
    predict.pairs = info->rope_pairs;
    predict.halves = info->rope_halves;
    const struct pkv_args_recall recall = {
        .views = r->views,
        .spans = r->spans,
        .scratch = t->recall_scratch,
        .blocks = pkvi_hot_blocks(t, 0, layer->number),
        .blocks_stride = (uint64_t)t->sizes.global_layers * t->blocks_max,
        .counter = t->recall_count + (uint64_t)r->layer * t->staging_head_pages * sizeof(uint32_t),
        .state = layer->recall,
        .kv_type = t->config.kv_type,
        .decay = recipe_of(t)->decay,
        .hysteresis = recipe_of(t)->hysteresis,
        .span_count = r->span_count,
        .heads = info->heads,
        .kv_heads = info->kv_heads,
        .head_dim = info->head_dim,
        .start = r->start,
    };
    PKV_TRY(pkvi_transfer_predict(t, r->start ? NULL : &predict));
    return pkvi_transfer_recall(t, r->layer, &recall);
}

static uint32_t count_hot(const struct pkvi_tier *t, const struct pkv_row_span *host_spans,
                          uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    while (first + count < end && t->seq[host_spans[first + count].view].hot) {
        count++;
    }
    return count;
}

enum pkv_status pkvi_tier_recall(struct pkvi_tier *t, uint32_t layer,
                                 const struct pkv_row_span *host_spans, uint32_t span_count,
                                 pkv_addr spans, const struct pkv_args_predict *query)
{
    for (uint32_t i = 0, count; i<span_count; i += count> 0 ? count : 1) {
        count = count_hot(t, host_spans, i, span_count);
        const struct recall recall = {
            .layer = layer,
            .span_count = count,
            .views = t->views + (uint64_t)layer * t->slots * sizeof(struct pkv_kv_view),
            .spans = spans + (uint64_t)i * sizeof(struct pkv_row_span),
        };
        if (count > 0) {
            PKV_TRY(enqueue(t, &recall, query));
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_recall_start(struct pkvi_tier *t, const struct pkvi_tier_rows *rows,
                                  uint32_t span)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const struct pkv_args_predict query = {.scale = rows->attend.scale};
    const struct recall recall = {
        .layer = rows->layer,
        .span_count = 1,
        .start = 1,
        .views = pkvi_hot_picked(t, rows->layer),
        .spans = rows->attend.spans + (uint64_t)span * sizeof(struct pkv_row_span),
    };
    PKV_TRY(keep_query(&copies, rows, span, true));
    PKV_TRY(pkvi_copies_flush(&copies));
    PKV_TRY(enqueue(t, &recall, &query));
    return pkvi_transfer_await_recall(t, rows->layer);
}

enum pkv_status pkvi_recall_attended(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    for (uint32_t i = 0; i < rows->attend.span_count; i++) {
        const struct pkv_row_span *span = &rows->host_spans[i];
        const struct pkv_kv_view *view =
            &t->host_views[(uint64_t)rows->layer * t->slots + span->view];
        PKV_TRY(index_blocks(t, span->view, rows->layer, view,
                             span->first_position / PKV_PAGE_TOKENS,
                             (span->first_position + span->rows) / PKV_PAGE_TOKENS));
        if (t->seq[span->view].hot) {
            PKV_TRY(keep_query(&copies, rows, i, asks_by_own(t, rows->layer)));
        }
    }
    return pkvi_copies_flush(&copies);
}

enum pkv_status pkvi_recall_end(struct pkvi_tier *t)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    PKV_TRY(
        pkvi_copies_add(&copies, t->recall_returned, t->recall_count, pkvi_recall_count_bytes(t)));
    return pkvi_copies_flush(&copies);
}

void pkvi_recall_report(struct pkvi_tier *t, struct pkv_kv_report *report)
{
    const uint32_t *count = (const uint32_t *)(uintptr_t)t->recall_returned;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        for (uint32_t h = 0; layer->global && h < layer->info.kv_heads; h++) {
            const uint32_t entries = count[l * t->staging_head_pages + h];
            report->recalled_entries += entries;
            report->recalled_bytes +=
                (uint64_t)entries * pkvi_kv_entry_bytes(t->config.kv_type, layer->info.head_dim);
        }
    }
}
