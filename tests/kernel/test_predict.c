/*
 * PREDICT: probabilities against sums in double of the codes that the index holds, the best of each
 * chunk against a full sort of the variant's own probabilities; at the borders of
 * chunks, with every form of the query; a span's bits depend neither on its company nor on threads.
 */
#include "tests/support/recall_case.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

#define SPANS 3u
#define SLOTS 64u
#define SCALE 0.125f

enum query {
    RANDOM,
    ZERO,
    STEEP,  /* one token takes it all */
    LARGEST /* every code of query and index, with either sign */
};

struct shape {
    uint32_t heads, kv_heads, head_dim, channels, bits, pairs, halves;
    bool norm, whole;
    uint32_t first_position, rows, ring; /* of the longest span; ring: its first token */
    uint32_t cap, patterns;              /* tokens have so many different codes; 0: any */
    enum query query;
};

struct predict_case {
    const struct shape *shape;
    struct pkvt_recall_case memory;
    uint16_t *channel;
    float *mean, *step, *q, *table, *q_norm;
    struct pkv_row_span *spans;
    double *score[SPANS]; /* [heads][tokens] */
    uint64_t scratch_bytes;
    struct pkv_args_predict args;
};

/* Of span i, so that they are of many lengths. */
static uint32_t position_of(const struct shape *s, uint32_t span)
{
    return span == 0 ? s->first_position : span == 1 ? s->first_position / 2 + 7 : 33;
}

static uint32_t tokens_of(const struct predict_case *c, uint32_t span)
{
    const struct pkv_row_span *at = &c->spans[span];
    return at->first_position / 32 * 32;
}

static uint32_t ring_of(const struct predict_case *c, uint32_t span)
{
    const uint32_t most = c->spans[span].first_position / 32 * 32;
    return c->shape->ring < most ? c->shape->ring : most;
}

/* Of a query's values. */
static float size_of(const struct shape *s)
{
    return s->query == ZERO ? 0.0f : s->query == STEEP ? 300.0f : 1.0f;
}

/* Whole pairs, shuffled. */
static void choose_channels(const struct shape *s, struct pkvt_rng *rng, uint16_t *channel)
{
    uint16_t first[256], second[256];
    const uint32_t count = s->head_dim / 2;
    for (uint32_t i = 0; i < count; i++) {
        const bool halves = s->halves && i < s->pairs;
        first[i] = (uint16_t)(halves ? i : 2 * i);
        second[i] = (uint16_t)(halves ? i + s->pairs : 2 * i + 1);
    }
    for (uint32_t i = 0; i < s->channels / 2; i++) {
        const uint32_t j = i + pkvt_rng_below(rng, count - i);
        channel[2 * i] = first[j];
        channel[2 * i + 1] = second[j];
        first[j] = first[i];
        second[j] = second[i];
    }
}

/* Where channel i of a query head comes from. */
static float *query_at(const struct predict_case *c, uint32_t span, uint32_t head, uint32_t i)
{
    const struct shape *s = c->shape;
    if (s->whole) {
        const uint32_t kv_head = head / (s->heads / s->kv_heads);
        float *q = pkvt_recall_now(&c->memory, c->spans[span].view, c->args.state.query);
        return q + head * s->head_dim + c->channel[kv_head * s->channels + i];
    }
    const uint32_t row = c->spans[span].first_row + c->spans[span].rows - 1;
    return c->q + (uint64_t)row * c->args.q_stride + head * s->channels + i;
}

/* The query's codes, in double. Returns a channel that is about to be rounded either way, or the
 * number of them all. */
static uint32_t sketch(const struct predict_case *c, uint32_t span, uint32_t head, double *unit,
                       int32_t *code)
{
    const struct shape *s = c->shape;
    const uint32_t at = head / (s->heads / s->kv_heads) * s->channels;
    const uint32_t row = c->spans[span].first_row + c->spans[span].rows - 1;
    const float *gain = pkvt_recall_now(&c->memory, c->spans[span].view, c->args.state.gain);
    double x[256], largest = 0;
    for (uint32_t i = 0; i < s->channels; i += 2) {
        double a = *query_at(c, span, head, i), b = *query_at(c, span, head, i + 1);
        const uint32_t first = c->channel[at + i], pair = s->halves ? first : first / 2;
        if (s->norm && !s->whole) {
            a *= (double)gain[head] * c->q_norm[first];
            b *= (double)gain[head] * c->q_norm[c->channel[at + i + 1]];
        }
        x[i] = a;
        x[i + 1] = b;
        if (pair < s->pairs && !s->whole) {
            const float *turn = c->table + ((uint64_t)row * s->pairs + pair) * 2;
            x[i] = a * turn[0] - b * turn[1];
            x[i + 1] = a * turn[1] + b * turn[0];
        }
    }
    for (uint32_t i = 0; i < s->channels; i++) {
        x[i] *= (double)SCALE * c->step[at + i];
        largest = fmax(largest, fabs(x[i]));
    }
    *unit = largest / 127;
    uint32_t close = s->channels;
    for (uint32_t i = 0; i < s->channels; i++) {
        const double exact = largest > 0 ? x[i] / *unit : 0;
        code[i] = (int32_t)rint(exact);
        close = fabs(fabs(exact - trunc(exact)) - 0.5) < 2e-3 ? i : close;
    }
    return close;
}

/* A query that rounds one way only, whoever does it in float32. */
static void settle(const struct predict_case *c, uint32_t span, uint32_t head, struct pkvt_rng *rng,
                   double *unit, int32_t *code)
{
    for (;;) {
        const uint32_t i = sketch(c, span, head, unit, code);
        if (i == c->shape->channels) {
            return;
        }
        *query_at(c, span, head, i) = size_of(c->shape) * pkvt_rng_normal(rng);
        *query_at(c, span, head, i ^ 1u) = size_of(c->shape) * pkvt_rng_normal(rng);
    }
}

static uint32_t code_at(const struct shape *s, const uint8_t *page, uint32_t token, uint32_t i)
{
    if (s->bits == 8) {
        return page[i / 4 * 128 + token * 4 + i % 4];
    }
    const uint8_t byte = page[i / 8 * 128 + token * 4 + i % 4];
    return i % 8 < 4 ? byte & 15u : byte >> 4;
}

static void score_head(const struct predict_case *c, uint32_t span, uint32_t head,
                       struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    const uint32_t tokens = tokens_of(c, span), view = c->spans[span].view;
    const uint32_t page_bytes = 4 * s->channels * s->bits;
    const uint8_t *pages = pkvt_recall_now(&c->memory, view, c->args.state.index);
    int32_t code[256];
    double unit;
    settle(c, span, head, rng, &unit, code);
    int32_t twice = 0; /* the middle of all codes */
    for (uint32_t i = 0; i < s->channels; i++) {
        twice += code[i] * (s->bits == 8 ? 255 : 15);
    }
    for (uint32_t t = 0; t < tokens; t++) {
        const uint8_t *page =
            pages + (t / 32 * s->kv_heads + head / (s->heads / s->kv_heads)) * page_bytes;
        int32_t sum = 0;
        for (uint32_t i = 0; i < s->channels; i++) {
            sum += code[i] * (int32_t)code_at(s, page, t % 32, i);
        }
        const double score = unit * (2 * sum - twice) / 2;
        c->score[span][(uint64_t)head * tokens + t] = score;
    }
}

/* Index pages, queries of the step before, gains, and which tokens are in slots. */
static void fill_view(const struct predict_case *c, uint32_t view, struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    const struct pkv_recall_state *state = &c->args.state;
    uint8_t *index = pkvt_recall_now(&c->memory, view, state->index);
    const uint32_t pages = s->kv_heads * state->blocks, groups = s->channels * s->bits / 32;
    const uint64_t seed = pkvt_rng_u64(rng);
    for (uint32_t i = 0; s->query != LARGEST && i < pages * 32; i++) { /* token i % 32 of a page */
        struct pkvt_rng own = {s->patterns > 0 ? seed + pkvt_rng_below(rng, s->patterns)
                                               : pkvt_rng_u64(rng)};
        for (uint32_t g = 0; g < groups; g++) {
            const uint32_t word = (uint32_t)pkvt_rng_u64(&own);
            memcpy(index + ((uint64_t)(i / 32 * groups + g) * 32 + i % 32) * 4, &word, 4);
        }
    }
    float *query = pkvt_recall_now(&c->memory, view, state->query);
    float *gain = pkvt_recall_now(&c->memory, view, state->gain);
    for (uint32_t i = 0; i < s->heads * s->head_dim; i++) {
        query[i] = s->query == LARGEST ? (i / s->head_dim % 2 ? -0.02f : 0.02f)
                                       : size_of(s) * pkvt_rng_normal(rng);
    }
    for (uint32_t i = 0; i < s->heads; i++) {
        gain[i] = pkvt_rng_uniform(rng, 0.3f, 2.0f);
    }
    uint32_t *resident = pkvt_recall_now(&c->memory, view, state->resident);
    for (uint32_t i = 0; i < pages; i++) {
        const uint32_t rare = (uint32_t)(pkvt_rng_u64(rng) & pkvt_rng_u64(rng));
        resident[i] = i % 7 == 0 ? UINT32_MAX : i % 5 == 0 ? rare : 0;
    }
}

static void fill_rows(struct predict_case *c, uint32_t rows, struct pkvt_rng *rng)
{
    const struct shape *s = c->shape;
    const uint32_t count = s->kv_heads * s->channels, stride = s->heads * s->channels + 5;
    c->channel = pkvt_alloc(count * sizeof *c->channel);
    c->mean = pkvt_normal(rng, count, 0.5f);
    c->step = pkvt_alloc(count * sizeof *c->step);
    for (uint32_t i = 0; i < count; i++) {
        const float levels = s->bits == 8 ? 255.0f : 15.0f;
        c->step[i] = (s->query == LARGEST ? 6 : pkvt_rng_uniform(rng, 4.0f, 8.0f)) / levels;
    }
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        choose_channels(s, rng, c->channel + h * s->channels);
    }
    c->q = pkvt_normal(rng, (uint64_t)rows * stride, size_of(s));
    c->q_norm = pkvt_normal(rng, s->head_dim, 1.0f);
    c->table = pkvt_alloc(((uint64_t)rows * s->pairs + 1) * 2 * sizeof *c->table);
    for (uint32_t i = 0; i < rows * s->pairs; i++) {
        const float angle = pkvt_rng_uniform(rng, 0.0f, 6.28f);
        c->table[2 * i] = cosf(angle);
        c->table[2 * i + 1] = sinf(angle);
    }
    c->args.q_stride = stride;
    c->args.q = s->whole ? 0 : pkvi_addr(c->q);
    c->args.table = s->whole ? 0 : pkvi_addr(c->table);
    c->args.q_norm = s->norm && !s->whole ? pkvi_addr(c->q_norm) : 0;
}

static void case_open(struct predict_case *c, const struct shape *s)
{
    struct pkvt_rng rng = {s->head_dim + s->first_position};
    *c = (struct predict_case){.shape = s};
    c->memory = (struct pkvt_recall_case){
        .views = SPANS,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .score_stride = SLOTS + 9,
        .index_page_bytes = 4 * s->channels * s->bits,
        .state = {.slots = SLOTS, .blocks = (s->first_position + s->rows) / 32 + 3, .cap = s->cap},
    };
    pkvt_recall_case_open(&c->memory);
    c->args = (struct pkv_args_predict){.views = pkvi_addr(c->memory.view),
                                        .state = c->memory.state,
                                        .scale = SCALE,
                                        .span_count = SPANS,
                                        .heads = s->heads,
                                        .kv_heads = s->kv_heads,
                                        .head_dim = s->head_dim,
                                        .pairs = s->pairs,
                                        .halves = s->halves};
    c->spans = pkvt_alloc(SPANS * sizeof *c->spans);
    uint32_t row = 1;
    for (uint32_t i = 0; i < SPANS; i++) {
        const uint32_t rows = i == 0 ? s->rows : i;
        c->spans[i] = (struct pkv_row_span){.view = (i + 2) % SPANS,
                                            .first_row = row,
                                            .rows = rows,
                                            .first_position = position_of(s, i)};
        row += rows;
        c->memory.view[c->spans[i].view].key_shift = ring_of(c, i) - SLOTS;
    }
    fill_rows(c, row, &rng);
    c->args.spans = pkvi_addr(c->spans);
    c->args.index = (struct pkv_index){.channel = pkvi_addr(c->channel),
                                       .mean = pkvi_addr(c->mean),
                                       .step = pkvi_addr(c->step),
                                       .channels = s->channels,
                                       .bits = s->bits};
    for (uint32_t i = 0; i < SPANS; i++) {
        fill_view(c, c->spans[i].view, &rng);
        c->score[i] = malloc(((uint64_t)s->heads * tokens_of(c, i) + 1) * sizeof *c->score[i]);
        assert_non_null(c->score[i]);
        for (uint32_t head = 0; head < s->heads; head++) {
            score_head(c, i, head, &rng);
        }
    }
    c->scratch_bytes = pkvi_recall_scratch_bytes(&c->args.state, SPANS, s->heads, s->kv_heads);
    c->args.scratch = pkvi_addr(pkvt_alloc(c->scratch_bytes));
    pkvt_recall_case_keep(&c->memory);
}

static void case_close(struct predict_case *c)
{
    void *all[] = {c->channel, c->mean,  c->step,     c->q,        c->table,
                   c->q_norm,  c->spans, c->score[0], c->score[1], c->score[2]};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    free(PKV_AT(void, c->args.scratch));
    pkvt_recall_case_close(&c->memory);
}

static struct pkvi_recall_scratch scratch_of(const struct predict_case *c, uint32_t span)
{
    return pkvi_recall_scratch(c->args.scratch, span, &c->args.state, c->shape->heads,
                               c->shape->kv_heads);
}

/* Of all tokens. */
static double lse_of(const struct predict_case *c, uint32_t span, uint32_t head)
{
    const uint32_t tokens = tokens_of(c, span);
    const double *score = c->score[span] + (uint64_t)head * tokens;
    double largest = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        largest = fmax(largest, score[t]);
    }
    for (uint32_t t = 0; t < tokens; t++) {
        sum += exp(score[t] - largest);
    }
    return largest + log(sum);
}

static void check_probabilities(const struct predict_case *c, uint32_t span, uint32_t kv_head)
{
    const struct shape *s = c->shape;
    const uint32_t tokens = tokens_of(c, span), group = s->heads / s->kv_heads;
    const uint32_t most = c->args.state.blocks * 32;
    const float *p = scratch_of(c, span).p + (uint64_t)kv_head * most;
    double lse[SPANS * 8];
    assert_true(group <= sizeof lse / sizeof lse[0]);
    for (uint32_t h = 0; h < group; h++) {
        lse[h] = lse_of(c, span, kv_head * group + h);
    }
    for (uint32_t t = 0; t < tokens; t++) {
        double want = 0, sizes = 0; /* an error of a score, or of lse, is one of its size */
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const double score = c->score[span][(uint64_t)head * tokens + t];
            const double one = exp(score - lse[head - kv_head * group]);
            want += one / group;
            sizes += one / group * fmax(1, fmax(fabs(score), fabs(lse[head - kv_head * group])));
        }
        const double allowed = pkvt_tolerance(PKVT_EPS_F32, s->channels + tokens, sizes) + 1e-36;
        if (!(fabs(p[t] - want) <= allowed)) {
            fail_msg("span %u head %u token %u: %.9g, want %.9g within %.3g", span, kv_head, t,
                     (double)p[t], want, allowed);
        }
    }
    for (uint32_t t = tokens; t < most; t++) {
        assert_true(isnan(p[t])); /* nothing beyond what is indexed */
    }
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

/* The best of a chunk, by the probabilities that the variant found. */
static void check_best(const struct predict_case *c, uint32_t span, uint32_t kv_head,
                       uint32_t chunk)
{
    const struct pkv_recall_state *state = &c->args.state;
    const struct pkvi_recall_scratch scratch = scratch_of(c, span);
    const uint32_t tokens = tokens_of(c, span), ring = ring_of(c, span);
    const uint32_t chunks = (state->blocks * 32 + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
    const uint32_t *resident =
        pkvt_recall_now(&c->memory, c->spans[span].view, c->args.state.resident);
    const uint64_t at = ((uint64_t)kv_head * chunks + chunk) * state->cap;
    int32_t candidate[PKV_PREDICT_CHUNK];
    uint32_t count = 0;
    sorted_by = scratch.p + (uint64_t)kv_head * state->blocks * 32;
    for (uint32_t t = chunk * PKV_PREDICT_CHUNK; t < (chunk + 1) * PKV_PREDICT_CHUNK; t++) {
        if (t < tokens && t < ring &&
            (resident[kv_head * state->blocks + t / 32] >> t % 32 & 1) == 0) {
            candidate[count++] = (int32_t)t;
        }
    }
    qsort(candidate, count, sizeof candidate[0], order);
    for (uint32_t i = 0; i < state->cap; i++) {
        const int32_t want = i < count ? candidate[i] : -1;
        if (scratch.best_token[at + i] != want) {
            fail_msg("span %u head %u chunk %u: number %u is token %d, want %d", span, kv_head,
                     chunk, i, scratch.best_token[at + i], want);
        }
        assert_true(want < 0 || scratch.best[at + i] == sorted_by[want]);
    }
}

static void check(const struct predict_case *c)
{
    for (uint32_t span = 0; span < SPANS; span++) {
        for (uint32_t h = 0; h < c->shape->kv_heads; h++) {
            check_probabilities(c, span, h);
        }
        for (uint32_t chunk = 0; chunk * PKV_PREDICT_CHUNK < tokens_of(c, span); chunk++) {
            for (uint32_t h = 0; h < c->shape->kv_heads; h++) {
                check_best(c, span, h, chunk);
            }
        }
    }
    pkvt_recall_case_assert_same(&c->memory);
}

/* One launch a span, with one thread: the bits of them all in one launch. */
static void check_alone(const struct predict_case *c, uint32_t cpu)
{
    const uint64_t bytes = c->scratch_bytes / SPANS;
    uint8_t *scratch = pkvt_alloc(bytes);
    for (uint32_t span = 0; span < SPANS; span++) {
        struct pkv_args_predict args = c->args;
        memset(scratch, 0xff, bytes);
        args.spans = pkvi_addr(c->spans + span);
        args.span_count = 1;
        args.scratch = pkvi_addr(scratch);
        pkvt_run(cpu, PKV_OP_PREDICT, &args, 1);
        assert_memory_equal(scratch, PKV_AT(uint8_t, c->args.scratch) + span * bytes, bytes);
    }
    free(scratch);
}

static const struct shape shapes[] = {
    /* short ones: no full block, one, a few */
    {9, 3, 64, 32, 4, 32, 1, false, false, 31, 1, 0, 8, 0, RANDOM},
    {9, 3, 64, 32, 4, 32, 1, false, false, 32, 1, 32, 8, 0, RANDOM},
    {9, 3, 64, 32, 4, 32, 0, false, false, 40, 60, 32, 50, 0, RANDOM},
    {9, 3, 64, 32, 4, 32, 0, false, false, 0, 33, 0, 3, 0, RANDOM},
    /* groups, sizes, forms of the query */
    {4, 1, 128, 64, 4, 64, 1, true, false, 601, 1, 512, 20, 0, RANDOM},
    {5, 1, 64, 48, 4, 32, 0, true, false, 601, 1, 512, 20, 0, RANDOM},
    {6, 1, 96, 24, 4, 24, 1, false, false, 601, 2, 608, 20, 0, RANDOM},
    {7, 1, 80, 40, 8, 20, 0, true, false, 500, 45, 480, 20, 0, RANDOM},
    {8, 1, 64, 16, 8, 32, 1, false, true, 601, 1, 512, 20, 0, RANDOM},
    {2, 2, 256, 128, 4, 128, 1, true, true, 401, 1, 352, 20, 0, RANDOM},
    {2, 1, 64, 64, 8, 0, 0, false, false, 401, 1, 352, 1, 0, RANDOM},
    {6, 3, 32, 8, 4, 16, 0, false, false, 700, 1, 640, 300, 0, RANDOM},
    {12, 1, 64, 32, 4, 32, 1, true, false, 601, 1, 512, 20, 0, RANDOM},
    {18, 2, 64, 40, 8, 32, 0, false, false, 601, 3, 512, 20, 0, RANDOM},
    {3, 3, 64, 40, 4, 32, 1, true, false, 333, 7, 320, 5, 0, RANDOM},
    /* equal ones: few codes, no query at all */
    {6, 2, 64, 32, 4, 32, 1, false, false, 1601, 1, 1536, 70, 3, RANDOM},
    {3, 1, 64, 32, 4, 32, 1, false, false, 1601, 1, 1536, 70, 0, RANDOM},
    {4, 2, 64, 32, 8, 32, 0, false, true, 1601, 1, 1536, 70, 0, RANDOM},
    {2, 1, 64, 32, 4, 32, 0, false, false, 801, 1, 736, 10, 0, ZERO},
    /* scores far apart */
    {3, 1, 64, 32, 4, 32, 1, false, false, 1601, 1, 1536, 70, 0, STEEP},
    {5, 1, 64, 32, 8, 32, 0, false, true, 4500, 1, 4448, 20, 0, STEEP},
    /* sums that 16 bits do not hold */
    {2, 1, 256, 256, 4, 128, 0, false, true, 230, 1, 160, 9, 0, LARGEST},
    {2, 1, 256, 256, 8, 128, 0, false, true, 230, 1, 160, 9, 0, LARGEST},
    {3, 1, 256, 256, 4, 128, 1, false, false, 230, 1, 160, 9, 0, RANDOM},
    {3, 1, 256, 256, 8, 128, 1, true, false, 230, 1, 160, 9, 0, RANDOM},
    /* borders of chunks */
    {3, 1, 64, 16, 4, 32, 1, false, false, 4064, 1, 4032, 8, 0, RANDOM},
    {3, 1, 64, 16, 4, 32, 1, false, false, 4069, 28, 4064, 8, 5, RANDOM},
    {3, 1, 64, 16, 4, 32, 0, false, false, 4069, 28, 4064, 8, 0, RANDOM},
    {2, 2, 64, 16, 4, 32, 1, false, false, 4128, 1, 4128, 5, 0, RANDOM},
    {4, 2, 32, 16, 8, 16, 1, false, true, 4150, 1, 4096, 300, 7, RANDOM},
    {6, 2, 64, 32, 4, 32, 1, false, false, 8300, 1, 8256, 42, 0, RANDOM},
    {3, 1, 64, 32, 4, 32, 0, false, false, 8300, 3, 3904, 42, 9, RANDOM},
};

static void test_predict__every_variant_and_shape__as_summed(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct predict_case c;
            case_open(&c, &shapes[i]);
            pkvt_run(cpu, PKV_OP_PREDICT, &c.args, 3);
            check(&c);
            check_alone(&c, cpu);
            case_close(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predict__every_variant_and_shape__as_summed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
