/*
 * PLACE: the tokens that a hot set takes against a sorted list, entries bit for bit, from device
 * pages and from host blocks, ragged heads, sinks, pooling, ties and the blind control.
 */
#include "tests/support/hot_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    enum pkv_kv_type type;
    uint32_t kv_heads, head_dim, tokens, end, slots, first_key[3], sinks, pool, host_pages;
    enum pkv_place_pick pick;
    uint32_t levels; /* scores take so many values: ties */
};

struct place_case {
    struct pkvt_kv_case kv;
    struct pkvt_hot_case hot;
    float *score;
    uint8_t *host;
    pkv_addr *block;
    struct pkv_args_place args;
};

/* Blocks as the host has them, and pages of the view that nobody may read any more. */
static void move_to_host(struct place_case *c, uint32_t pages)
{
    const uint64_t page_bytes =
        (uint64_t)PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(c->kv.type, c->kv.head_dim);
    const struct pkv_kv_view *view = c->kv.views;
    c->host = pkvt_alloc(pages * c->kv.kv_heads * page_bytes + 1);
    c->block = pkvt_alloc(pages * sizeof *c->block + 8);
    for (uint32_t p = 0; p < pages; p++) {
        c->block[p] = pkvi_addr(c->host + (uint64_t)p * c->kv.kv_heads * page_bytes);
        for (uint32_t h = 0; h < c->kv.kv_heads; h++) {
            memcpy(c->host + ((uint64_t)p * c->kv.kv_heads + h) * page_bytes,
                   PKV_AT(uint8_t, c->kv.page[0][p * view->page_stride + h * view->head_stride]),
                   page_bytes);
        }
    }
    c->args.from.first_page = pages;
    c->args.blocks = pkvi_addr(c->block);
}

static void case_open(struct place_case *c, const struct shape *s)
{
    struct pkvt_rng rng = {s->tokens + s->slots};
    *c = (struct place_case){.kv = {.type = s->type,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .sequences = 1,
                                    .tokens = {s->tokens}}};
    pkvt_kv_case_open(&c->kv, 7);
    c->hot = (struct pkvt_hot_case){.from = &c->kv, .slots = s->slots, .end = s->end};
    memcpy(c->hot.first_key, s->first_key, sizeof s->first_key);
    pkvt_hot_case_open(&c->hot, 9, true);
    c->score = pkvt_alloc((uint64_t)s->kv_heads * (s->tokens + 2) * sizeof *c->score);
    for (uint32_t i = 0; i < s->kv_heads * (s->tokens + 2); i++) {
        c->score[i] = (float)pkvt_rng_below(&rng, s->levels) / (float)s->levels;
    }
    c->args = (struct pkv_args_place){
        .from = c->kv.views[0],
        .to = *c->hot.view,
        .slot_token = pkvi_addr(c->hot.token),
        .scratch =
            pkvi_addr(pkvt_alloc((uint64_t)s->kv_heads * (s->end + 2 * s->slots) * sizeof(float))),
        .kv_type = s->type,
        .pick = s->pick,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .slots = s->slots,
        .end = s->end,
        .tokens = s->tokens,
        .sinks = s->sinks,
        .pool = s->pool,
        .seed = 4,
        .gain = 2.0f,
    };
    c->args.from.score = pkvi_addr(c->score);
    c->args.from.score_stride = s->tokens + 2;
    move_to_host(c, s->host_pages);
}

static void case_close(struct place_case *c)
{
    free(PKV_AT(void, c->args.scratch));
    free(c->score);
    free(c->host);
    free(c->block);
    pkvt_hot_case_close(&c->hot);
    pkvt_kv_case_close(&c->kv);
}

static float pooled(const struct shape *s, const float *score, uint32_t token)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < s->pool; i++) {
        const uint32_t t = token + i - s->pool / 2; /* modulo 2^32 before the first */
        most = t < s->end && score[t] > most ? score[t] : most;
    }
    return most;
}

/* Is this token among the best? It is if fewer tokens come before it than there is room for. */
static bool belongs(const struct shape *s, const float *score, uint32_t head, uint32_t token)
{
    const uint32_t room = s->slots - s->first_key[head];
    if (token < s->sinks) {
        return token < room;
    }
    uint32_t before = s->sinks;
    const float own = pooled(s, score, token);
    for (uint32_t t = s->sinks; t < s->end; t++) {
        const float other = pooled(s, score, t);
        before += other > own || (other == own && t < token);
    }
    return before < room;
}

static void check_head(const struct place_case *c, const struct shape *s, uint32_t head)
{
    const float *score = c->score + head * (s->tokens + 2);
    const float *kept = c->hot.score + (uint64_t)head * c->hot.view->score_stride;
    int32_t previous = -1;
    for (uint32_t key = 0; key < s->slots; key++) {
        const int32_t token = c->hot.token[head * s->slots + key];
        if (key < s->first_key[head]) {
            assert_int_equal(token, -1);
            continue;
        }
        assert_true(token > previous && (uint32_t)token < s->end);
        assert_true(pkvt_hot_case_holds(&c->hot, head, key, (uint32_t)token));
        assert_true(s->pick == PKV_PLACE_RANDOM || belongs(s, score, head, (uint32_t)token));
        if ((uint32_t)token < s->sinks) {
            assert_true(isinf(kept[key]));
        } else {
            assert_true(kept[key] == 2.0f * score[token]);
        }
        previous = token;
    }
    for (uint32_t t = s->end; t < s->tokens; t++) {
        assert_true(kept[s->slots + t - s->end] == 2.0f * score[t]);
    }
}

/* The tokens and scores of the plain C, to the bit. */
static void check_same(const struct place_case *c)
{
    const uint64_t slots = (uint64_t)c->kv.kv_heads * c->args.slots;
    const uint64_t scores = (uint64_t)c->kv.kv_heads * c->hot.view->score_stride;
    int32_t *token = pkvt_alloc(slots * sizeof *token);
    float *score = pkvt_alloc(scores * sizeof *score);
    memcpy(token, c->hot.token, slots * sizeof *token);
    memcpy(score, c->hot.score, scores * sizeof *score);
    pkvt_run(PKV_CPU_SCALAR, PKV_OP_PLACE, &c->args, 1);
    assert_memory_equal(token, c->hot.token, slots * sizeof *token);
    assert_memory_equal(score, c->hot.score, scores * sizeof *score);
    free(token);
    free(score);
}

static void test_place__every_shape__the_best(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 3, 64, 300, 256, 64, {0, 10, 40}, 4, 7, 0, PKV_PLACE_TOP, 1000000},
        {PKV_KV_F16, 3, 64, 300, 256, 64, {0, 10, 40}, 4, 1, 5, PKV_PLACE_TOP, 1000000},
        {PKV_KV_F16, 1, 64, 700, 608, 96, {0}, 0, 7, 19, PKV_PLACE_TOP, 5},
        {PKV_KV_Q8_0, 2, 32, 100, 64, 64, {0, 0}, 4, 3, 0, PKV_PLACE_TOP, 9},
        {PKV_KV_F32, 2, 10, 70, 64, 96, {32, 95}, 4, 3, 1, PKV_PLACE_TOP, 9},
        {PKV_KV_BF16, 2, 48, 65, 32, 32, {0, 30}, 4, 5, 1, PKV_PLACE_TOP, 2},
        {PKV_KV_F16, 2, 64, 300, 256, 64, {0, 10}, 4, 7, 3, PKV_PLACE_RANDOM, 100},
        {PKV_KV_F16, 2, 16, 3050, 2976, 160, {0, 156}, 4, 7, 60, PKV_PLACE_TOP, 70},
        {PKV_KV_F16, 1, 16, 2100, 2048, 96, {0}, 0, 1, 64, PKV_PLACE_TOP, 1000000},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct place_case c;
            case_open(&c, &shapes[i]);
            pkvt_run(cpu, PKV_OP_PLACE, &c.args, 2);
            for (uint32_t h = 0; h < shapes[i].kv_heads; h++) {
                check_head(&c, &shapes[i], h);
            }
            check_same(&c);
            case_close(&c);
        }
    }
}

/* Every token is picked about as often as any other, and another seed picks others. */
static void test_place__random__even(void **state)
{
    (void)state;
    static const struct shape shape = {PKV_KV_F16,       2, 32, 160, 128, 32, {0, 0}, 0, 1, 0,
                                       PKV_PLACE_RANDOM, 10};
    PKVT_FOR_EACH_CPU(cpu)
    {
        struct place_case c;
        uint32_t times[128] = {0};
        const uint32_t runs = cpu == PKVT_CPU_CUDA ? 60 : 400;
        case_open(&c, &shape);
        for (uint32_t seed = 0; seed < runs; seed++) {
            c.args.seed = seed;
            pkvt_run(cpu, PKV_OP_PLACE, &c.args, 1);
            for (uint32_t i = 0; i < 64; i++) {
                times[c.hot.token[i]]++;
            }
        }
        for (uint32_t t = 0; t < 128; t++) { /* mean runs / 2; four sigma each way */
            const double off = fabs(times[t] - runs / 2.0);
            assert_true(off < 4 * sqrt(runs * 2 * 0.25 * 0.75) + 1);
        }
        case_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place__every_shape__the_best),
        cmocka_unit_test(test_place__random__even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
