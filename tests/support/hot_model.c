/* hot_model.c: a naive tier with hot sets. */
#include "tests/support/hot_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"

#define OUT_TOLERANCE 2e-5
#define KEY_TOLERANCE 1e-4 /* of a key that is a sum of float32 probabilities */

struct pkvt_hot_at pkvt_hot_at;

void pkvt_hot_where(void)
{
    fprintf(stderr, "seed %llu, operation %u (%s), sequence %u, layer %u, KV head %u:\n",
            (unsigned long long)pkvt_hot_at.seed, pkvt_hot_at.operation, pkvt_hot_at.what,
            pkvt_hot_at.seq, pkvt_hot_at.layer, pkvt_hot_at.head);
}

void pkvt_hot_keep(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                   const struct pkvt_hot_rows *rows)
{
    const struct pkv_layer_info *info = &shape->layer[rows->layer];
    const uint32_t cols = info->kv_heads * info->head_dim;
    const bool half = shape->kv_type == PKV_KV_F16;
    for (uint32_t i = 0; i < rows->rows * cols; i++) {
        const uint32_t token = rows->first + i / cols;
        const float k = rows->k[i], v = rows->v[i];
        seq->k[rows->layer][token][i % cols] = half ? pkvi_f16_to_f32(pkvi_f32_to_f16(k)) : k;
        seq->v[rows->layer][token][i % cols] = half ? pkvi_f16_to_f32(pkvi_f32_to_f16(v)) : v;
    }
}

/* One row over some tokens: its query heads of a KV head are compared with `out`, if rows have it;
 * p_out[i]: mean of their probabilities of tokens[i]. */
static void attend_row(const struct pkvt_hot_shape *shape, const struct pkvt_hot_seq *seq,
                       const struct pkvt_hot_rows *rows, uint32_t row, uint32_t head,
                       const uint32_t *tokens, uint32_t count, double *p_out)
{
    const struct pkv_layer_info *info = &shape->layer[rows->layer];
    const uint32_t dim = info->head_dim, group = info->heads / info->kv_heads;
    double p[PKVT_HOT_CONTEXT], want[PKVT_HOT_KV_COLS];
    memset(p_out, 0, count * sizeof *p_out);
    for (uint32_t h = head * group; h < (head + 1) * group; h++) {
        const float *q = rows->q + ((size_t)row * info->heads + h) * dim;
        const float *out = rows->out ? rows->out + ((size_t)row * info->heads + h) * dim : NULL;
        double sum = 0, most = -INFINITY;
        for (uint32_t i = 0; i < count; i++) {
            const float *k = seq->k[rows->layer][tokens[i]] + head * dim;
            double score = 0;
            for (uint32_t c = 0; c < dim; c++) {
                score += (double)q[c] * (double)k[c];
            }
            score *= (double)shape->scale;
            const double cap = (double)shape->softcap;
            p[i] = cap > 0 ? cap * tanh(score / cap) : score;
            most = p[i] > most ? p[i] : most;
        }
        memset(want, 0, sizeof want);
        for (uint32_t i = 0; i < count; i++) {
            const float *v = seq->v[rows->layer][tokens[i]] + head * dim;
            p[i] = exp(p[i] - most);
            sum += p[i];
            for (uint32_t c = 0; c < dim; c++) {
                want[c] += p[i] * (double)v[c];
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            p_out[i] += p[i] / sum / group;
        }
        for (uint32_t c = 0; rows->out && c < dim; c++) {
            PKVT_HOT_CHECK(fabs((double)out[c] - want[c] / sum) <= OUT_TOLERANCE,
                           "row %u of %u, head %u, channel %u: %.9g, want %.9g of %u keys", row,
                           rows->rows, h, c, (double)out[c], want[c] / sum, count);
        }
    }
}

/* Weight with which a row of a pass counts for the slots. */
static double weight_of(const struct pkv_recipe *recipe, uint32_t row, uint32_t rows)
{
    const uint32_t window = recipe->window_rows < rows ? recipe->window_rows : rows;
    switch (recipe->prompt) {
    case PKV_PROMPT_TAIL:
        return 0;
    case PKV_PROMPT_ALL_ROWS:
        return 1;
    case PKV_PROMPT_WINDOW:
        break;
    }
    if (row < rows - window) {
        return 0;
    }
    const double place = row - (rows - window);
    return window > 1 ? 1 + place * ((double)recipe->window_ramp - 1) / (window - 1) : 1;
}

/* Every token's score by the rows of an exact pass, and those before; checks their attention. */
static void score_rows(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                       const struct pkvt_hot_rows *rows, uint32_t head, double *score_out)
{
    uint32_t tokens[PKVT_HOT_CONTEXT];
    double p[PKVT_HOT_CONTEXT];
    const uint32_t end = rows->first + rows->rows;
    double *sum = seq->sum[rows->layer][head];
    for (uint32_t t = 0; t < end; t++) {
        tokens[t] = t;
        score_out[t] = rows->summing && t < rows->first ? sum[t] : 0;
    }
    for (uint32_t r = 0; r < rows->rows; r++) {
        const double weight = weight_of(&shape->recipe, r, rows->rows);
        attend_row(shape, seq, rows, r, head, tokens, rows->first + r + 1, p);
        for (uint32_t t = 0; t <= rows->first + r; t++) {
            score_out[t] += weight * p[t];
        }
    }
    memcpy(sum, score_out, end * sizeof *sum);
}

void pkvt_hot_check_all(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                        const struct pkvt_hot_rows *rows)
{
    double score[PKVT_HOT_CONTEXT];
    for (uint32_t head = 0; head < shape->layer[rows->layer].kv_heads; head++) {
        pkvt_hot_at.head = head;
        score_rows(shape, seq, rows, head, score);
    }
}

/* Decode sums decay^i p: a mean probability p over the window is worth p / (1 - decay). */
static double gain_of(const struct pkv_recipe *recipe, uint32_t rows)
{
    double sum = 0;
    if (recipe->prompt != PKV_PROMPT_WINDOW || recipe->key != PKV_KEY_MASS ||
        recipe->decay >= 1.0f) {
        return 1;
    }
    for (uint32_t r = 0; r < rows; r++) {
        sum += weight_of(recipe, r, rows);
    }
    return 1 / (sum * (1 - (double)recipe->decay));
}

/* No token twice, none of the ring, all sinks; marks what there is. */
static void check_tokens(const struct pkv_recipe *recipe, const struct pkvt_hot_set *set,
                         bool ascending, bool *has_out)
{
    const uint32_t end = set->ring_first * PKV_PAGE_TOKENS;
    memset(has_out, 0, PKVT_HOT_CONTEXT * sizeof *has_out);
    for (uint32_t i = 0; i < set->first; i++) {
        PKVT_HOT_CHECK(set->token[i] == -1, "slot %u, which is free: token %d", i, set->token[i]);
    }
    for (uint32_t i = set->first; i < set->slots; i++) {
        const int32_t token = set->token[i];
        PKVT_HOT_CHECK(token >= 0 && (uint32_t)token < end && !has_out[token],
                       "slot %u: token %d, which is twice there or not before %u", i, token, end);
        PKVT_HOT_CHECK(!ascending || i == set->first || token > set->token[i - 1],
                       "slots %u, %u: tokens %d, %d", i - 1, i, set->token[i - 1], token);
        has_out[token] = true;
    }
    for (uint32_t t = 0; t < recipe->sinks; t++) {
        PKVT_HOT_CHECK(has_out[t], "sink %u is not there", t);
    }
}

/* Tokens that count more than others are there before these. */
static void check_choice(const struct pkv_recipe *recipe, const double *score, uint32_t end,
                         const bool *has)
{
    double least = INFINITY, most = -INFINITY;
    for (uint32_t t = recipe->sinks; t < end; t++) {
        double pooled = 0;
        for (uint32_t i = 0; i < end; i++) {
            const uint32_t far = i > t ? i - t : t - i;
            pooled = far <= recipe->pool / 2 && score[i] > pooled ? score[i] : pooled;
        }
        least = has[t] && pooled < least ? pooled : least;
        most = !has[t] && pooled > most ? pooled : most;
    }
    PKVT_HOT_CHECK(!(least < most - KEY_TOLERANCE * (most + 1e-2)),
                   "a token of score %.9g is there, one of %.9g is not", least, most);
}

static void check_key(const struct pkvt_hot_seq *seq, const struct pkvt_hot_rows *rows,
                      uint32_t head, uint32_t token, float score)
{
    const double want = seq->key[rows->layer][head][token];
    const bool same = isinf(want) ? isinf((double)score) && score > 0
                                  : fabs((double)score - want) <= KEY_TOLERANCE * (want + 1e-2);
    PKVT_HOT_CHECK(same, "key of token %u: %.9g, want %.9g", token, (double)score, want);
}

/* Keys of the slots, and of the ring's tokens from `end` on. */
static void check_keys(const struct pkvt_hot_seq *seq, const struct pkvt_hot_rows *rows,
                       uint32_t head, const struct pkvt_hot_set *set, bool ring)
{
    const uint32_t begin = set->ring_first * PKV_PAGE_TOKENS, end = rows->first + rows->rows;
    for (uint32_t i = set->first; i < set->slots; i++) {
        check_key(seq, rows, head, (uint32_t)set->token[i], set->score[i]);
    }
    for (uint32_t t = begin; ring && t < end; t++) {
        check_key(seq, rows, head, t, set->score[set->slots + (t - begin)]);
    }
}

/* The tokens of slots and ring, up to `end`. */
static uint32_t used_tokens(const struct pkvt_hot_set *set, uint32_t end, uint32_t *tokens_out)
{
    uint32_t count = 0;
    for (uint32_t i = set->first; i < set->slots; i++) {
        tokens_out[count++] = (uint32_t)set->token[i];
    }
    for (uint32_t t = set->ring_first * PKV_PAGE_TOKENS; t < end; t++) {
        tokens_out[count++] = t;
    }
    return count;
}

/* Rows attended to slots and ring; adds to mass[token] what they did. */
static void attend_used(const struct pkvt_hot_shape *shape, const struct pkvt_hot_seq *seq,
                        const struct pkvt_hot_rows *rows, uint32_t head,
                        const struct pkvt_hot_set *set, double *mass)
{
    uint32_t tokens[PKVT_HOT_CONTEXT];
    double p[PKVT_HOT_CONTEXT];
    for (uint32_t r = 0; r < rows->rows; r++) {
        const uint32_t count = used_tokens(set, rows->first + r + 1, tokens);
        attend_row(shape, seq, rows, r, head, tokens, count, p);
        for (uint32_t i = 0; i < count; i++) {
            mass[tokens[i]] += p[i];
        }
    }
}

void pkvt_hot_check_placed(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                           const struct pkvt_hot_rows *rows, uint32_t head, uint32_t room,
                           bool picked, const struct pkvt_hot_set *now)
{
    const struct pkv_recipe *recipe = &shape->recipe;
    struct pkvt_hot_rows choosing = *rows;
    double mass[PKVT_HOT_CONTEXT] = {0};
    double score[PKVT_HOT_CONTEXT], *key = seq->key[rows->layer][head];
    bool has[PKVT_HOT_CONTEXT];
    const uint32_t end = now->ring_first * PKV_PAGE_TOKENS;
    uint32_t fill = recipe->prompt == PKV_PROMPT_TAIL ? recipe->sinks : room;
    fill = fill < end ? fill : end;
    choosing.out = picked ? NULL : rows->out;
    score_rows(shape, seq, &choosing, head, score);
    PKVT_HOT_CHECK(now->slots - now->first == fill, "%u slots are filled, want %u",
                   now->slots - now->first, fill);
    check_tokens(recipe, now, true, has);
    if (recipe->pick != PKV_PICK_RANDOM) {
        check_choice(recipe, score, end, has);
    }
    if (picked) {
        attend_used(shape, seq, rows, head, now, mass);
    }
    const double gain = gain_of(recipe, rows->rows);
    for (uint32_t t = 0; t < rows->first + rows->rows; t++) {
        key[t] = t < recipe->sinks ? INFINITY : gain * score[t];
    }
    check_keys(seq, rows, head, now, true);
    seq->set[rows->layer][head] = *now;
}

/* The tokens of the first pages leave the ring. `keeps`: every KV head has a free slot for each. */
static void leave(const struct pkv_recipe *recipe, struct pkvt_hot_set *set, uint32_t room,
                  bool keeps, uint32_t ring_first)
{
    const bool competes = recipe->leave == PKV_LEAVE_COMPETE || keeps;
    const uint32_t begin = set->ring_first * PKV_PAGE_TOKENS, end = ring_first * PKV_PAGE_TOKENS;
    const uint32_t last = set->ring_end * PKV_PAGE_TOKENS;
    float *ring = set->score + set->slots;
    for (uint32_t t = begin; competes && t < end; t++) {
        uint32_t at = set->slots - room;
        if (set->first > set->slots - room) {
            at = --set->first;
        } else {
            for (uint32_t i = at; i < set->slots; i++) {
                at = set->score[i] < set->score[at] ? i : at;
            }
            if (!(ring[t - begin] > set->score[at])) {
                continue;
            }
        }
        set->token[at] = (int32_t)t;
        set->score[at] = ring[t - begin];
    }
    memmove(ring, ring + (end - begin), (last - end) * sizeof *ring);
    set->ring_first = ring_first;
}

void pkvt_hot_check_step(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                         const struct pkvt_hot_rows *rows, uint32_t head, uint32_t room, bool keeps,
                         const struct pkvt_hot_set *now)
{
    const struct pkv_recipe *recipe = &shape->recipe;
    struct pkvt_hot_set *set = &seq->set[rows->layer][head];
    double mass[PKVT_HOT_CONTEXT] = {0}, *key = seq->key[rows->layer][head];
    uint32_t tokens[PKVT_HOT_CONTEXT];
    bool has[PKVT_HOT_CONTEXT];
    leave(recipe, set, room, keeps, now->ring_first);
    check_tokens(recipe, now, false, has);
    PKVT_HOT_CHECK(now->first == set->first, "first key %u, want %u", now->first, set->first);
    for (uint32_t i = now->first; i < now->slots; i++) {
        PKVT_HOT_CHECK(now->token[i] == set->token[i], "slot %u: token %d, want %d", i,
                       now->token[i], set->token[i]);
    }
    attend_used(shape, seq, rows, head, now, mass);
    const uint32_t count = used_tokens(now, rows->first + rows->rows, tokens);
    for (uint32_t i = 0; recipe->key == PKV_KEY_MASS && i < count; i++) {
        const uint32_t t = tokens[i];
        key[t] = (t < rows->first ? (double)recipe->decay * key[t] : 0) + mass[t];
    }
    if (recipe->leave != PKV_LEAVE_KEEP) { /* there nothing asks for keys */
        check_keys(seq, rows, head, now, recipe->key == PKV_KEY_MASS);
    }
    *set = *now;
}
