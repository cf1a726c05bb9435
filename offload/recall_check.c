/*
 * recall_check.c: what rehearsal is worth, measured: of a layer whose attention is checked
 * (self_check.c), the true probability of every entry before the ring, by its own query and the
 * keys in host memory, against what was recalled for it. Plain arithmetic of the host, on figures
 * that come back with the pass; no kernel takes part in it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "offload/hot_set.h"

/* What comes back: the row's queries, tokens of slots, swaps. */
struct returned {
    uint64_t query, token, swap, bytes;
};

static struct returned lay_out(const struct pkv_layer_info *info,
                               const struct pkv_recall_state *state)
{
    struct returned r = {0};
    r.token = r.query + (uint64_t)info->heads * info->head_dim * sizeof(float);
    r.swap = r.token + (uint64_t)info->kv_heads * state->slots * sizeof(int32_t);
    r.bytes = r.swap + (uint64_t)info->kv_heads * state->cap * 2 * sizeof(int32_t);
    return r;
}

uint64_t pkvi_recall_check_bytes(const struct pkv_layer_info *info,
                                 const struct pkv_recall_state *state)
{
    return lay_out(info, state).bytes;
}

enum pkv_status pkvi_recall_check_return(struct pkvi_copies *copies,
                                         const struct pkvi_tier_rows *rows)
{
    struct pkvi_tier *t = copies->tier;
    struct pkvi_tier_check *check = &t->check;
    const struct pkvi_tier_layer *layer = &t->layer[check->layer];
    const struct returned at = lay_out(&layer->info, &layer->recall);
    const pkv_addr state = pkvi_hot_scores(t, check->seq, check->layer);
    check->recall = t->recalls && t->seq[check->seq].hot && rows->host_spans[check->span].rows == 1;
    if (!check->recall) {
        return PKV_OK;
    }
    const pkv_addr q =
        rows->attend.q + (uint64_t)check->row * rows->attend.q_stride * sizeof(float);
    check->scale = rows->attend.scale;
    check->softcap = rows->attend.softcap;
    PKV_TRY(pkvi_copies_add(copies, check->returned, q, at.token));
    PKV_TRY(pkvi_copies_add(copies, check->returned + at.token, state + layer->recall.slot_token,
                            at.swap - at.token));
    return pkvi_copies_add(copies, check->returned + at.swap, state + layer->recall.swap,
                           at.bytes - at.swap);
}

/* Of one KV head. */
struct head {
    const struct pkvi_tier *t;
    const float *query; /* [group][head_dim] */
    const float *lse;   /* [group] */
    const int32_t *token, *swap;
    float *p; /* [tokens] true probabilities; those of residents are taken out */
    uint32_t kv_head, tokens;
};

static void probabilities(const struct head *h)
{
    const struct pkvi_tier *t = h->t;
    const struct pkvi_tier_check *check = &t->check;
    const struct pkv_layer_info *info = &t->layer[check->layer].info;
    const struct pkvi_tier_state *state = &t->seq[check->seq].state[check->layer];
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(t->config.kv_type, info->head_dim);
    const uint32_t group = info->heads / info->kv_heads;
    for (uint32_t i = 0; i < h->tokens; i++) {
        const uint8_t *entry =
            PKV_AT(const uint8_t, pkvi_host_block_addr(t, state->block[i / PKV_PAGE_TOKENS])) +
            ((uint64_t)h->kv_head * PKV_PAGE_TOKENS + i % PKV_PAGE_TOKENS) * entry_bytes;
        h->p[i] = 0.0f;
        for (uint32_t g = 0; g < group; g++) {
            float score = 0.0f;
            for (uint32_t c = 0; c < info->head_dim; c++) {
                score += h->query[g * info->head_dim + c] *
                         pkvi_ref_kv_load(t->config.kv_type, entry, info->head_dim, c);
            }
            score *= check->scale;
            score = check->softcap > 0 ? check->softcap * tanhf(score / check->softcap) : score;
            h->p[i] += expf(score - h->lse[g]) / (float)group;
        }
    }
}

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static void compare_head(const struct head *h, struct pkv_kv_layer_report *report)
{
    const struct pkv_recall_state *state = &h->t->layer[h->t->check.layer].recall;
    double came = 0.0, best = 0.0;
    probabilities(h);
    for (uint32_t i = 0; i < state->cap && h->swap[2 * i] >= 0; i++) {
        const float p = h->p[h->swap[2 * i]];
        came += (double)p;
        report->recalled++;
        report->recalled_idle += p * (float)h->t->check.tokens < 1.0f;
    }
    /* what was in a slot before: what is, but for those that came, and those that went */
    float *kept = h->p + h->tokens; /* of those that came */
    for (uint32_t i = 0; i < state->cap && h->swap[2 * i] >= 0; i++) {
        kept[i] = h->p[h->swap[2 * i]];
    }
    for (uint32_t i = 0; i < state->slots; i++) {
        if (h->token[i] >= 0) {
            h->p[h->token[i]] = 0.0f;
        }
    }
    for (uint32_t i = 0; i < state->cap && h->swap[2 * i] >= 0; i++) {
        h->p[h->swap[2 * i]] = kept[i];
        if (h->swap[2 * i + 1] >= 0) {
            h->p[h->swap[2 * i + 1]] = 0.0f;
        }
    }
    qsort(h->p, h->tokens, sizeof *h->p, descending);
    for (uint32_t i = 0; i < state->cap && i < h->tokens; i++) {
        best += (double)h->p[i];
    }
    report->recalled_mass += came;
    report->missing_mass += best;
}

void pkvi_recall_check_compare(struct pkvi_tier *t, const float *largest, const float *sum)
{
    struct pkvi_tier_check *check = &t->check;
    const struct pkvi_tier_layer *layer = &t->layer[check->layer];
    const struct returned at = lay_out(&layer->info, &layer->recall);
    const uint32_t group = layer->info.heads / layer->info.kv_heads;
    const pkv_addr in = check->returned;
    float lse[PKV_INDEX_CHANNELS];
    if (!check->recall || group > sizeof lse / sizeof lse[0]) {
        return;
    }
    for (uint32_t k = 0; k < layer->info.kv_heads; k++) {
        for (uint32_t g = 0; g < group; g++) {
            lse[g] = largest[k * group + g] + logf(sum[k * group + g]);
        }
        const struct head head = {
            .t = t,
            .query =
                PKV_AT(const float, in + at.query) + (uint64_t)k * group * layer->info.head_dim,
            .lse = lse,
            .token = PKV_AT(const int32_t, in + at.token) + (uint64_t)k * layer->recall.slots,
            .swap = PKV_AT(const int32_t, in + at.swap) + (uint64_t)k * layer->recall.cap * 2,
            .p = check->p,
            .kv_head = k,
            .tokens = check->ring_token,
        };
        compare_head(&head, &check->of_layer[check->layer]);
    }
}
