/*
 * RECALL: which tokens come and which go against a full sort, their entries bit for bit, keys,
 * bitmap, log-sum-exp and counters; hysteresis, equal keys, sinks, slots that are not there; a
 * span's results depend neither on its company nor on threads, and nothing else is written.
 */
#include "tests/support/hot_case.h"
#include "tests/support/recall_case.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

#define SPANS 2u

struct shape {
    enum pkv_kv_type type;
    uint32_t heads, kv_heads, head_dim;
    uint32_t first_position, rows; /* of the first span; the second is half as long */
    uint32_t end;                  /* the ring's first token, halved likewise */
    uint32_t slots, first_key[9], sinks, cap;
    uint32_t levels; /* keys and probabilities take so many values; 0: any */
    float decay, hysteresis;
    bool start;
};

struct recall_case {
    const struct shape *shape;
    struct pkvt_kv_case kv;
    struct pkvt_hot_case hot[SPANS];
    struct pkvt_recall_case memory;
    struct pkv_row_span *spans;
    uint8_t *host[SPANS], *slots_before[SPANS];
    pkv_addr *blocks;
    uint32_t *counter;
    uint32_t counts[9]; /* what the model adds */
    uint8_t *scratch_before;
    uint64_t scratch_bytes, slots_bytes;
    struct pkv_args_recall args;
};

static uint32_t tokens_of(const struct recall_case *c, uint32_t span)
{
    const struct pkv_row_span *at = &c->spans[span];
    return at->first_position / 32 * 32;
}

static uint32_t chunks_of(uint32_t tokens)
{
    return (tokens + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
}

static float any(const struct shape *s, struct pkvt_rng *rng)
{
    return s->levels > 0 ? (float)(1 + pkvt_rng_below(rng, s->levels)) / 64.0f
                         : pkvt_rng_uniform(rng, 0.0f, 1.0f);
}

static struct pkvi_recall_scratch scratch_of(const struct recall_case *c, uint32_t span)
{
    return pkvi_recall_scratch(c->args.scratch, span, &c->args.state, c->shape->heads,
                               c->shape->kv_heads);
}

static const float *sorted_by; /* of order() */

static int order(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_by[x] != sorted_by[y]) {
        return sorted_by[x] > sorted_by[y] ? -1 : 1;
    }
    return x < y ? -1 : 1;
}

/* Tokens of [begin, end) that are neither in a slot nor in the ring, the best first. */
static uint32_t missing(const struct recall_case *c, uint32_t span, uint32_t h, uint32_t begin,
                        uint32_t end, int32_t *token)
{
    const uint32_t view = c->spans[span].view, blocks = c->args.state.blocks;
    const uint32_t *resident = pkvt_recall_before(&c->memory, view, c->args.state.resident);
    const uint32_t ring = c->hot[span].end;
    uint32_t count = 0;
    for (uint32_t t = begin; t < end && t < ring; t++) {
        if ((resident[h * blocks + t / 32] >> t % 32 & 1) == 0) {
            token[count++] = (int32_t)t;
        }
    }
    sorted_by = scratch_of(c, span).p + (uint64_t)h * blocks * 32;
    qsort(token, count, sizeof *token, order);
    return count;
}

/* What PREDICT leaves. */
static void fill_scratch(struct recall_case *c, uint32_t span, struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    const struct pkv_recall_state *state = &c->args.state;
    const uint32_t tokens = tokens_of(c, span), chunks = chunks_of(state->blocks * 32);
    const struct pkvi_recall_scratch scratch = scratch_of(c, span);
    int32_t token[PKV_PREDICT_CHUNK];
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        for (uint32_t t = 0; t < tokens; t++) {
            scratch.p[(uint64_t)h * state->blocks * 32 + t] = any(s, rng);
        }
        for (uint32_t chunk = 0; chunk < chunks_of(tokens); chunk++) {
            const uint32_t begin = chunk * PKV_PREDICT_CHUNK, left = tokens - begin;
            const uint32_t count =
                missing(c, span, h, begin,
                        begin + (left < PKV_PREDICT_CHUNK ? left : PKV_PREDICT_CHUNK), token);
            for (uint32_t i = 0; i < state->cap; i++) {
                const uint64_t at = ((uint64_t)h * chunks + chunk) * state->cap + i;
                scratch.best_token[at] = i < count ? token[i] : -1;
                scratch.best[at] = i < count ? sorted_by[token[i]] : -1.0f;
            }
        }
    }
    for (uint32_t i = 0; i < s->heads * chunks; i++) {
        if (i % chunks < chunks_of(tokens)) {
            scratch.largest[i] = pkvt_rng_uniform(rng, -5.0f, 5.0f);
            scratch.sum[i] = pkvt_rng_uniform(rng, 1.0f, 100.0f);
        }
    }
}

/* Keys and tokens of the slots, as they are in the hot set; the bitmap is that of the slots, or
 * what `start` has to replace. */
static void fill_state(struct recall_case *c, uint32_t span, struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    const struct pkvt_hot_case *hot = &c->hot[span];
    const struct pkv_recall_state *state = &c->args.state;
    const uint32_t view = c->spans[span].view;
    float *key = pkvt_recall_now(&c->memory, view, 0);
    int32_t *token = pkvt_recall_now(&c->memory, view, state->slot_token);
    uint32_t *resident = pkvt_recall_now(&c->memory, view, state->resident);
    memcpy(token, hot->token, (uint64_t)s->kv_heads * s->slots * sizeof *token);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        uint32_t *words = resident + h * state->blocks;
        memset(words, s->start ? 0x5a : 0, state->blocks * sizeof *words);
        for (uint32_t i = s->first_key[h]; i < hot->keys; i++) {
            key[h * c->memory.score_stride + i] = i < s->first_key[h] + s->sinks ? INFINITY
                                                  : s->levels > 0                ? any(s, rng)
                                                                                 : 5 * any(s, rng);
            if (i < s->slots && !s->start) {
                const uint32_t t = (uint32_t)token[h * s->slots + i];
                words[t / 32] |= 1u << t % 32;
            }
        }
    }
}

/* Every block of a sequence, as the host has it. */
static void fill_host(struct recall_case *c, uint32_t span)
{
    const struct shape *s = c->shape;
    const uint64_t bytes = 32ull * pkvi_kv_entry_bytes(s->type, s->head_dim);
    const struct pkv_kv_view *view = &c->kv.views[span];
    const uint32_t blocks = c->kv.tokens[span] / 32, number = c->spans[span].view;
    c->host[span] = pkvt_alloc(blocks * s->kv_heads * bytes + 1);
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *block = c->host[span] + (uint64_t)b * s->kv_heads * bytes;
        c->blocks[number * c->args.blocks_stride + b] = pkvi_addr(block);
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            const pkv_addr page = c->kv.page[span][b * view->page_stride + h * view->head_stride];
            memcpy(block + h * bytes, PKV_AT(uint8_t, page), bytes);
        }
    }
}

static void open_span(struct recall_case *c, uint32_t span, struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    struct pkvt_hot_case *hot = &c->hot[span];
    *hot = (struct pkvt_hot_case){
        .from = &c->kv, .sequence = span, .slots = s->slots, .end = s->end / (span + 1) / 32 * 32};
    memcpy(hot->first_key, s->first_key, sizeof s->first_key);
    pkvt_hot_case_open(hot, span + 9, false);
    struct pkv_kv_view *view = &c->memory.view[c->spans[span].view];
    const pkv_addr score = view->score;
    *view = *hot->view;
    view->score = score;
    view->score_stride = c->memory.score_stride;
    fill_host(c, span);
    fill_state(c, span, rng);
    c->slots_bytes = (uint64_t)s->kv_heads * s->slots * pkvi_kv_entry_bytes(s->type, s->head_dim);
    c->slots_before[span] = pkvt_alloc(c->slots_bytes);
    memcpy(c->slots_before[span], hot->pages, c->slots_bytes);
}

static void open_args(struct recall_case *c)
{
    const struct shape *s = c->shape;
    c->spans = pkvt_alloc(SPANS * sizeof *c->spans);
    for (uint32_t i = 0; i < SPANS; i++) {
        c->spans[i] = (struct pkv_row_span){.view = 1 - i,
                                            .first_row = i * s->rows,
                                            .rows = s->rows,
                                            .first_position = s->first_position / (i + 1)};
    }
    c->args = (struct pkv_args_recall){
        .views = pkvi_addr(c->memory.view),
        .spans = pkvi_addr(c->spans),
        .blocks_stride = c->memory.state.blocks + 2,
        .state = c->memory.state,
        .kv_type = s->type,
        .decay = s->decay,
        .hysteresis = s->hysteresis,
        .span_count = SPANS,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .start = s->start,
    };
    c->blocks = pkvt_alloc(SPANS * c->args.blocks_stride * sizeof *c->blocks);
    c->args.blocks = pkvi_addr(c->blocks);
    c->counter = pkvt_alloc((s->kv_heads + 1) * sizeof *c->counter);
    c->args.counter = pkvi_addr(c->counter);
    c->scratch_bytes = pkvi_recall_scratch_bytes(&c->args.state, SPANS, s->heads, s->kv_heads);
    c->args.scratch = pkvi_addr(pkvt_alloc(c->scratch_bytes));
    c->scratch_before = malloc(c->scratch_bytes);
    assert_non_null(c->scratch_before);
}

static void case_open(struct recall_case *c, const struct shape *s)
{
    struct pkvt_rng rng = {s->slots + s->first_position};
    const uint32_t tokens = s->first_position + s->rows;
    *c = (struct recall_case){
        .shape = s,
        .kv = {.type = s->type,
               .kv_heads = s->kv_heads,
               .head_dim = s->head_dim,
               .sequences = SPANS,
               .tokens = {tokens, s->first_position / 2 + s->rows}},
        .memory = {.views = SPANS,
                   .heads = s->heads,
                   .kv_heads = s->kv_heads,
                   .head_dim = s->head_dim,
                   .score_stride = s->slots + tokens - s->end + 70,
                   .index_page_bytes = 16,
                   .state = {.slots = s->slots, .blocks = tokens / 32 + 2, .cap = s->cap}},
    };
    pkvt_kv_case_open(&c->kv, 3);
    pkvt_recall_case_open(&c->memory);
    open_args(c);
    for (uint32_t i = 0; i < SPANS; i++) {
        open_span(c, i, &rng);
    }
    pkvt_recall_case_keep(&c->memory);
    for (uint32_t i = 0; i < SPANS; i++) {
        fill_scratch(c, i, &rng);
    }
    memcpy(c->scratch_before, PKV_AT(uint8_t, c->args.scratch), c->scratch_bytes);
}

static void case_close(struct recall_case *c)
{
    for (uint32_t i = 0; i < SPANS; i++) {
        free(c->host[i]);
        free(c->slots_before[i]);
        pkvt_hot_case_close(&c->hot[i]);
    }
    free(c->spans);
    free(c->blocks);
    free(c->counter);
    free(c->scratch_before);
    free(PKV_AT(void, c->args.scratch));
    pkvt_recall_case_close(&c->memory);
    pkvt_kv_case_close(&c->kv);
}

/* As before the launch. */
static void reset(struct recall_case *c)
{
    pkvt_recall_case_restore(&c->memory);
    for (uint32_t i = 0; i < SPANS; i++) {
        memcpy(c->hot[i].pages, c->slots_before[i], c->slots_bytes);
    }
    for (uint32_t h = 0; h <= c->shape->kv_heads; h++) {
        c->counter[h] = 100 + h;
    }
}

/* A key as it should be within what float32 leaves open: as the variant has it, from then on. */
static void settle(const struct recall_case *c, uint32_t span, uint32_t h, uint32_t i, double want)
{
    const uint32_t view = c->spans[span].view, at = h * c->memory.score_stride + i;
    float *before = pkvt_recall_before(&c->memory, view, 0);
    const float *now = pkvt_recall_now(&c->memory, view, 0);
    if (c->shape->levels > 0) { /* few bits: no rounding */
        before[at] = (float)want;
    } else if (!(fabs(now[at] - want) <= pkvt_tolerance(PKVT_EPS_F32, 1, fabs(want))) &&
               !(isinf(want) && isinf(now[at]))) {
        fail_msg("span %u head %u key %u is %.9g, want %.9g", span, h, i, (double)now[at], want);
    } else {
        before[at] = now[at];
    }
}

/* The model of one head, in doubles, on `before`: it becomes what should be there now. */
static void model_head(struct recall_case *c, uint32_t span, uint32_t h)
{
    const struct shape *s = c->shape;
    const struct pkvt_hot_case *hot = &c->hot[span];
    const struct pkv_recall_state *state = &c->args.state;
    const uint32_t view = c->spans[span].view, tokens = tokens_of(c, span);
    const uint32_t ring = c->spans[span].first_position - hot->end;
    const float *p = scratch_of(c, span).p + (uint64_t)h * state->blocks * 32;
    const float *before = (const float *)pkvt_recall_before(&c->memory, view, 0) +
                          (uint64_t)h * c->memory.score_stride;
    int32_t *slot_token =
        (int32_t *)pkvt_recall_before(&c->memory, view, state->slot_token) + h * s->slots;
    int32_t *swap =
        (int32_t *)pkvt_recall_before(&c->memory, view, state->swap) + (uint64_t)h * s->cap * 2;
    uint32_t *resident =
        (uint32_t *)pkvt_recall_before(&c->memory, view, state->resident) + h * state->blocks;
    double *key = malloc((s->slots + ring) * sizeof *key);
    int32_t *come = malloc((tokens + 1) * sizeof *come);
    assert_true(key && come);
    for (uint32_t i = s->first_key[h]; i < s->slots + ring; i++) {
        const uint32_t t = i < s->slots ? (uint32_t)slot_token[i] : hot->end + i - s->slots;
        key[i] = t < tokens ? (double)s->decay * before[i] + p[t] : 0;
    }
    const uint32_t count = missing(c, span, h, 0, tokens, come);
    uint32_t done = 0;
    bool *taken = calloc(s->slots, sizeof *taken);
    assert_non_null(taken);
    while (done < s->cap && done < count) {
        uint32_t least = s->slots;
        for (uint32_t i = s->first_key[h]; i < s->slots; i++) {
            least = !taken[i] && (least == s->slots || key[i] < key[least]) ? i : least;
        }
        const int32_t token = come[done];
        if (least == s->slots || !(p[token] > (double)s->hysteresis * key[least])) {
            break;
        }
        taken[least] = true;
        key[least] = p[token];
        resident[slot_token[least] / 32] &= ~(1u << slot_token[least] % 32);
        resident[token / 32] |= 1u << token % 32;
        swap[2 * done] = token;
        swap[2 * done + 1] = slot_token[least];
        slot_token[least] = token;
        done++;
    }
    c->counts[h] += done;
    for (uint32_t i = done; i < s->cap; i++) {
        swap[2 * i] = swap[2 * i + 1] = -1;
    }
    for (uint32_t i = s->first_key[h]; i < s->slots + ring; i++) {
        settle(c, span, h, i, key[i]);
    }
    free(taken);
    free(come);
    free(key);
}

/* Slots stay; the bitmap is made of them. */
static void model_start(struct recall_case *c, uint32_t span, uint32_t h)
{
    const struct pkv_recall_state *state = &c->args.state;
    const uint32_t view = c->spans[span].view;
    uint32_t *resident =
        (uint32_t *)pkvt_recall_before(&c->memory, view, state->resident) + h * state->blocks;
    memset(resident, 0, state->blocks * sizeof *resident);
    for (uint32_t i = c->shape->first_key[h]; i < state->slots; i++) {
        const uint32_t t = (uint32_t)c->hot[span].token[h * state->slots + i];
        resident[t / 32] |= 1u << t % 32;
    }
    memset((int32_t *)pkvt_recall_before(&c->memory, view, state->swap) +
               (uint64_t)h * state->cap * 2,
           0xff, state->cap * 8);
}

/* Entries of slots: the token's own, and nothing but them. */
static void check_entries(const struct recall_case *c, uint32_t span)
{
    const struct shape *s = c->shape;
    const int32_t *token =
        pkvt_recall_now(&c->memory, c->spans[span].view, c->args.state.slot_token);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        for (uint32_t i = s->first_key[h]; i < s->slots; i++) {
            assert_true(
                pkvt_hot_case_holds(&c->hot[span], h, i, (uint32_t)token[h * s->slots + i]));
        }
    }
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(s->type, s->head_dim);
    for (uint32_t i = 0; i < s->slots * s->kv_heads; i++) { /* of page, head and slot */
        const uint32_t h = i / 32 % s->kv_heads, slot = i / 32 / s->kv_heads * 32 + i % 32;
        if (slot < s->first_key[h]) {
            assert_memory_equal(c->hot[span].pages + (uint64_t)i * entry_bytes,
                                c->slots_before[span] + (uint64_t)i * entry_bytes, entry_bytes);
        }
    }
}

/* After a launch of all spans. */
static void check(struct recall_case *c)
{
    const struct shape *s = c->shape;
    memset(c->counts, 0, sizeof c->counts);
    for (uint32_t span = 0; span < SPANS; span++) {
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            if (s->start) {
                model_start(c, span, h);
            } else {
                model_head(c, span, h);
            }
        }
        check_entries(c, span);
    }
    pkvt_recall_case_assert_same(&c->memory);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        assert_int_equal(c->counter[h], 100 + h + c->counts[h]);
    }
    assert_int_equal(c->counter[s->kv_heads], 100 + s->kv_heads);
    assert_memory_equal(c->scratch_before, PKV_AT(uint8_t, c->args.scratch), c->scratch_bytes);
}

/* One launch a span, the last first: what `before` is by now, to the bit. */
static void check_alone(struct recall_case *c, uint32_t cpu, const uint8_t *initial)
{
    uint8_t *pages[SPANS], *want = malloc(c->memory.bytes);
    assert_non_null(want);
    memcpy(want, c->memory.memory, c->memory.bytes);
    memcpy(c->memory.before, initial, c->memory.bytes);
    for (uint32_t i = 0; i < SPANS; i++) {
        pages[i] = malloc(c->slots_bytes);
        assert_non_null(pages[i]);
        memcpy(pages[i], c->hot[i].pages, c->slots_bytes);
    }
    reset(c);
    for (uint32_t i = SPANS; i-- > 0;) {
        struct pkv_args_recall args = c->args;
        args.spans = pkvi_addr(c->spans + i);
        args.span_count = 1;
        args.scratch += i * (c->scratch_bytes / SPANS);
        pkvt_run(cpu, PKV_OP_RECALL, &args, 1);
    }
    assert_memory_equal(want, c->memory.memory, c->memory.bytes);
    for (uint32_t i = 0; i < SPANS; i++) {
        assert_memory_equal(pages[i], c->hot[i].pages, c->slots_bytes);
        free(pages[i]);
    }
    for (uint32_t h = 0; h < c->shape->kv_heads; h++) {
        assert_int_equal(c->counter[h], 100 + h + c->counts[h]);
    }
    free(want);
}

static const struct shape shapes[] = {
    {PKV_KV_F16, 9, 3, 64, 500, 1, 416, 96, {0, 32, 75}, 4, 8, 0, 0.9f, 1.0f, false},
    {PKV_KV_F16, 9, 3, 64, 500, 40, 416, 96, {0, 32, 95}, 0, 30, 0, 0.9f, 1.5f, false},
    {PKV_KV_F16, 4, 1, 16, 700, 1, 640, 128, {0}, 4, 500, 0, 0.9f, 0.01f, false},
    {PKV_KV_F16, 4, 1, 16, 700, 1, 640, 128, {0}, 4, 128, 0, 0.9f, 0.01f, false},
    {PKV_KV_F16, 2, 2, 32, 640, 1, 640, 64, {0, 10}, 0, 1, 20, 0.75f, 0.5f, false},
    /* all alike: the first slots go, the earliest tokens come; or nothing */
    {PKV_KV_F16, 2, 2, 32, 900, 1, 832, 64, {0, 10}, 3, 25, 1, 0.5f, 0.5f, false},
    {PKV_KV_F16, 2, 2, 32, 900, 1, 832, 64, {0, 10}, 3, 25, 1, 1.0f, 0.5f, false},
    {PKV_KV_F16, 2, 2, 32, 900, 1, 832, 64, {0, 10}, 3, 25, 4, 0.5f, 0.5f, false},
    {PKV_KV_F16, 2, 2, 32, 900, 9, 832, 320, {0, 10}, 3, 100, 3, 0.5f, 0.25f, false},
    /* nothing but sinks; no slot; nothing missing */
    {PKV_KV_F16, 3, 3, 32, 300, 1, 256, 64, {0, 32, 63}, 64, 8, 0, 0.9f, 1.0f, false},
    {PKV_KV_F16, 3, 3, 32, 300, 1, 256, 64, {64, 64, 60}, 0, 8, 0, 0.9f, 0.1f, false},
    {PKV_KV_F16, 3, 3, 32, 200, 1, 128, 64, {0, 64, 0}, 2, 70, 0, 0.9f, 0.1f, false},
    {PKV_KV_F16, 3, 1, 32, 140, 1, 64, 32, {0}, 2, 8, 0, 0.9f, 0.1f, false},
    /* formats */
    {PKV_KV_Q8_0, 6, 2, 64, 500, 33, 448, 64, {0, 31}, 4, 20, 0, 0.9f, 1.0f, false},
    {PKV_KV_BF16, 2, 2, 96, 450, 1, 384, 64, {0, 31}, 4, 20, 0, 0.8f, 1.0f, false},
    {PKV_KV_F32, 5, 1, 10, 450, 1, 384, 96, {0}, 4, 20, 0, 0.9f, 0.1f, false},
    /* chunks */
    {PKV_KV_F16, 2, 1, 16, 4128, 1, 4096, 64, {0}, 4, 40, 0, 0.9f, 0.1f, false},
    {PKV_KV_F16, 4, 2, 16, 8350, 1, 8256, 320, {0, 300}, 4, 60, 0, 0.9f, 0.1f, false},
    {PKV_KV_F16, 4, 2, 16, 8350, 40, 8192, 320, {0, 9}, 4, 60, 12, 0.5f, 0.5f, false},
    {PKV_KV_F16, 4, 2, 16, 4200, 1, 4160, 320, {0, 9}, 4, 1024, 900, 0.5f, 0.5f, false},
    /* many slots */
    {PKV_KV_F16, 2, 1, 16, 2500, 1, 2432, 1184, {0}, 4, 70, 0, 0.9f, 0.01f, false},
    {PKV_KV_F16, 2, 1, 16, 2500, 1, 2432, 1184, {5}, 4, 70, 9, 0.5f, 0.25f, false},
    /* more heads than CUDA has blocks */
    {PKV_KV_F16, 9, 9, 16, 300, 1, 256, 64, {0, 32, 63, 64, 5}, 2, 8, 0, 0.9f, 0.5f, false},
    /* the start */
    {PKV_KV_F16, 9, 3, 64, 500, 1, 416, 96, {0, 32, 75}, 4, 8, 0, 0.9f, 1.0f, true},
    {PKV_KV_F16, 4, 2, 16, 8350, 40, 8192, 320, {0, 320}, 4, 60, 12, 0.5f, 0.5f, true},
};

static void test_recall__every_variant_and_shape__as_sorted(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct recall_case c;
            case_open(&c, &shapes[i]);
            uint8_t *initial = malloc(c.memory.bytes);
            assert_non_null(initial);
            memcpy(initial, c.memory.before, c.memory.bytes);
            reset(&c);
            pkvt_run(cpu, PKV_OP_RECALL, &c.args, 3);
            check(&c);
            check_alone(&c, cpu, initial);
            free(initial);
            case_close(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall__every_variant_and_shape__as_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
