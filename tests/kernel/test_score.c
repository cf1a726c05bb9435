/*
 * SCORE: every variant against sums in double, over whole sequences, hot sets, tiles, windows of
 * rows and running sums; the same bits however the keys are cut and with any number of threads.
 */
#include "tests/support/hot_case.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

struct shape {
    enum pkv_kv_type type;
    uint32_t heads, kv_heads, head_dim, first_position, rows, skip_rows;
    float softcap, weight, weight_step, keep;
    uint32_t slots, end, first_key[3]; /* slots 0: the whole sequence */
};

struct score_case {
    struct pkvt_kv_case kv;
    struct pkvt_hot_case hot;
    struct pkv_row_span *span;
    float *q, *lse, *before, *whole; /* whole: scores of a view of the whole sequence */
    uint32_t keys, stride;
    struct pkv_kv_view *view;
    struct pkv_args_score args;
};

static void case_open(struct score_case *c, const struct shape *s)
{
    struct pkvt_rng rng = {s->head_dim + s->rows};
    *c = (struct score_case){.kv = {.type = s->type,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .sequences = 1,
                                    .tokens = {s->first_position + s->rows}}};
    pkvt_kv_case_open(&c->kv, 3);
    c->view = c->kv.views;
    c->keys = c->kv.tokens[0];
    c->stride = c->keys + 5;
    c->whole = pkvt_normal(&rng, (uint64_t)s->kv_heads * c->stride, 1.0f);
    c->view->score = pkvi_addr(c->whole);
    c->view->score_stride = c->stride;
    if (s->slots > 0) {
        c->hot = (struct pkvt_hot_case){.from = &c->kv, .slots = s->slots, .end = s->end};
        memcpy(c->hot.first_key, s->first_key, sizeof s->first_key);
        pkvt_hot_case_open(&c->hot, 5, false);
        c->view = c->hot.view;
        c->keys = c->hot.keys;
        c->stride = c->view->score_stride;
    }
    const uint64_t scores = (uint64_t)s->kv_heads * c->stride;
    c->before = pkvt_alloc(scores * sizeof *c->before);
    memcpy(c->before, PKV_AT(float, c->view->score), scores * sizeof *c->before);
    c->span = pkvt_alloc(sizeof *c->span);
    *c->span = (struct pkv_row_span){.rows = s->rows, .first_position = s->first_position};
    const uint32_t q_stride = s->heads * s->head_dim + 3;
    c->q = pkvt_normal(&rng, (uint64_t)s->rows * q_stride, 1.0f);
    c->lse = pkvt_normal(&rng, (uint64_t)s->rows * s->heads, 1.0f);
    c->args = (struct pkv_args_score){
        .q = pkvi_addr(c->q),
        .lse = pkvi_addr(c->lse),
        .views = pkvi_addr(c->view),
        .spans = pkvi_addr(c->span),
        .scratch = pkvi_addr(
            pkvt_alloc(pkvi_score_scratch_bytes(s->rows, s->heads, s->kv_heads, s->head_dim, 3))),
        .kv_type = s->type,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .softcap = s->softcap,
        .span_count = 1,
        .rows = s->rows,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .q_stride = q_stride,
        .skip_rows = s->skip_rows,
        .weight = s->weight,
        .weight_step = s->weight_step,
        .keep = s->keep,
    };
}

static void case_close(struct score_case *c)
{
    if (c->hot.from) {
        pkvt_hot_case_close(&c->hot);
    }
    free(PKV_AT(void, c->args.scratch));
    free(c->q);
    free(c->lse);
    free(c->span);
    free(c->before);
    free(c->whole);
    pkvt_kv_case_close(&c->kv);
}

static void reset(struct score_case *c)
{
    memcpy(PKV_AT(float, c->view->score), c->before,
           (uint64_t)c->kv.kv_heads * c->stride * sizeof *c->before);
}

/* One key in double: what the rows that count give it. */
static double reference(const struct score_case *c, uint32_t kv_head, uint32_t key)
{
    const struct pkv_args_score *args = &c->args;
    const uint32_t group = args->heads / args->kv_heads;
    const uint32_t first = c->span->first_position - c->view->key_shift;
    double value[512], sum = 0;
    const uint32_t token = c->hot.from ? pkvt_hot_case_token(&c->hot, kv_head, key) : key;
    pkvt_kv_case_read(&c->kv, 0, kv_head, token, 0, value);
    for (uint32_t r = args->skip_rows; r < args->rows; r++) {
        double mean = 0;
        for (uint32_t h = kv_head * group; first + r >= key && h < (kv_head + 1) * group; h++) {
            const float *q = c->q + (uint64_t)r * args->q_stride + h * args->head_dim;
            double dot = 0;
            for (uint32_t i = 0; i < args->head_dim; i++) {
                dot += q[i] * value[i];
            }
            dot *= (double)args->scale;
            dot = args->softcap > 0 ? args->softcap * tanh(dot / args->softcap) : dot;
            mean += exp(dot - c->lse[r * args->heads + h]) / group;
        }
        sum += ((double)args->weight + (r - args->skip_rows) * (double)args->weight_step) * mean;
    }
    const bool fresh = key >= first || args->keep == 0.0f;
    return fresh ? sum : sum + (double)args->keep * c->before[(uint64_t)kv_head * c->stride + key];
}

/* CUDA's tensor cores multiply q * scale and K, rounded to f16 (kernels.h). */
static bool in_halves(uint32_t cpu, const struct shape *s)
{
    return cpu == PKVT_CPU_CUDA && s->type != PKV_KV_F32 &&
           (s->head_dim == 64 || s->head_dim == 128 || s->head_dim == 256);
}

static void check_values(const struct score_case *c, const struct shape *s, uint32_t cpu)
{
    const bool halves = in_halves(cpu, s);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        const float *got = PKV_AT(float, c->view->score) + (uint64_t)h * c->stride;
        const float *before = c->before + (uint64_t)h * c->stride;
        const uint32_t begin = s->slots > 0 ? s->first_key[h] : 0;
        for (uint32_t key = 0; key < c->stride; key++) {
            if (key < begin || key >= c->keys) { /* none of its keys */
                assert_memory_equal(&got[key], &before[key], sizeof *got);
                continue;
            }
            const double want = reference(c, h, key);
            const double allowed = halves ? pkvt_tolerance(PKVT_EPS_F16, 1, fmax(1.0, fabs(want)))
                                          : pkvt_tolerance(PKVT_EPS_F32, s->head_dim + s->rows,
                                                           fmax(1.0, fabs(want)) * 4);
            if (!(fabs((double)got[key] - want) <= allowed)) {
                fail_msg("head %u key %u: %.9g, want %.9g within %.3g", h, key, (double)got[key],
                         want, allowed);
            }
        }
    }
}

static const struct shape shapes[] = {
    {PKV_KV_F16, 9, 3, 64, 0, 1, 0, 0, 1, 0, 0, 0, 0, {0}},
    {PKV_KV_F16, 9, 3, 64, 500, 64, 0, 0, 1, 0.003f, 0, 0, 0, {0}},
    {PKV_KV_F16, 9, 3, 64, 1000, 70, 6, 0, 1, 0.003f, 0, 0, 0, {0}},
    {PKV_KV_F16, 9, 3, 64, 511, 1, 0, 0, 1, 0, 0.9f, 0, 0, {0}},
    {PKV_KV_F16, 4, 1, 128, 530, 20, 0, 30.0f, 1, 0, 1, 0, 0, {0}},
    {PKV_KV_Q8_0, 4, 2, 64, 40, 9, 3, 0, 2, -0.1f, 0, 0, 0, {0}},
    {PKV_KV_BF16, 2, 2, 96, 17, 33, 0, 0, 1, 0, 0.5f, 0, 0, {0}},
    {PKV_KV_F32, 5, 1, 10, 100, 3, 0, 0, 1, 0, 0, 0, 0, {0}},
    {PKV_KV_F16, 2, 1, 32, 7, 5, 5, 0, 1, 0, 1, 0, 0, {0}},
    {PKV_KV_Q8_0, 8, 1, 128, 90, 20, 1, 0, 1, 0.01f, 1, 0, 0, {0}},
    {PKV_KV_BF16, 2, 1, 256, 300, 7, 0, 0, 1, 0, 0.5f, 0, 0, {0}},
    {PKV_KV_F32, 6, 2, 64, 40, 30, 2, 20.0f, 1, 0.01f, 0, 0, 0, {0}},
    {PKV_KV_F16, 9, 3, 64, 499, 1, 0, 0, 1, 0, 0.9f, 96, 416, {0, 32, 75}},
    {PKV_KV_F16, 9, 3, 64, 700, 3, 0, 0, 1, 0, 1, 576, 640, {0, 300, 570}},
};

static void test_score__every_variant_and_shape__as_summed(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct score_case c;
            case_open(&c, &shapes[i]);
            const uint64_t bytes = (uint64_t)c.kv.kv_heads * c.stride * sizeof(float);
            pkvt_run(cpu, PKV_OP_SCORE, &c.args, 1);
            check_values(&c, &shapes[i], cpu);
            float *first = pkvt_alloc(bytes);
            memcpy(first, PKV_AT(float, c.view->score), bytes);
            reset(&c);
            pkvt_run(cpu, PKV_OP_SCORE, &c.args, 3);
            assert_memory_equal(first, PKV_AT(float, c.view->score), bytes);
            free(first);
            case_close(&c);
        }
    }
}

/* Pages before the view's first in a tile, a launch for each range: the bits of one launch. */
static void test_score__ranges_and_tiles__bits_of_one_launch(void **state)
{
    (void)state;
    static const struct shape shape = {PKV_KV_F16, 9, 3,     64,   600, 40, 8,
                                       0,          1, 0.01f, 0.5f, 0,   0,  {0}};
    PKVT_FOR_EACH_CPU(cpu)
    {
        struct score_case c;
        case_open(&c, &shape);
        const uint64_t bytes = (uint64_t)c.kv.kv_heads * c.stride * sizeof(float);
        float *want = pkvt_alloc(bytes);
        pkvt_run(cpu, PKV_OP_SCORE, &c.args, 1);
        memcpy(want, PKV_AT(float, c.view->score), bytes);
        reset(&c);
        const struct pkv_kv_view *view = c.view;
        const uint32_t pages = 17;
        pkv_addr *tile = pkvt_alloc(pages * shape.kv_heads * sizeof *tile);
        for (uint32_t i = 0; i < pages * shape.kv_heads; i++) {
            tile[i] = PKV_AT(pkv_addr, view->page)[i / shape.kv_heads * view->page_stride +
                                                   i % shape.kv_heads * view->head_stride];
        }
        c.view->first_page = pages;
        static const uint32_t cut[] = {0, 32, 256, 544, 0};
        for (uint32_t i = 0; i + 1 < sizeof cut / sizeof cut[0]; i++) {
            struct pkv_args_score args = c.args;
            args.tile =
                (struct pkv_kv_tile){.page = pkvi_addr(tile), .page_stride = shape.kv_heads};
            args.key_begin = cut[i];
            args.key_end = cut[i + 1];
            pkvt_run(cpu, PKV_OP_SCORE, &args, 2);
        }
        assert_memory_equal(want, PKV_AT(float, c.view->score), bytes);
        free(tile);
        free(want);
        case_close(&c);
    }
}

/* Sequences of one step, each with a view and scores of its own. */
static void test_score__several_spans__bits_of_each_alone(void **state)
{
    (void)state;
    static const struct shape shape = {PKV_KV_F16, 9, 3,    64,   600, 40, 3,
                                       0,          1, 0.1f, 0.5f, 0,   0,  {0}};
    PKVT_FOR_EACH_CPU(cpu)
    {
        struct score_case c;
        case_open(&c, &shape);
        const uint64_t scores = (uint64_t)c.kv.kv_heads * c.stride, bytes = scores * sizeof(float);
        struct pkv_kv_view *views = pkvt_alloc(2 * sizeof *views);
        struct pkv_row_span *spans = pkvt_alloc(2 * sizeof *spans);
        float *score = pkvt_alloc(2 * bytes), *together = pkvt_alloc(2 * bytes);
        for (uint32_t i = 0; i < 2; i++) {
            views[i] = *c.view;
            views[i].score = pkvi_addr(score + i * scores);
            memcpy(score + i * scores, c.before, bytes);
        }
        spans[0] = (struct pkv_row_span){.view = 1, .rows = 25, .first_position = 600};
        spans[1] = (struct pkv_row_span){.first_row = 25, .rows = 15, .first_position = 310};
        c.args.views = pkvi_addr(views);
        c.args.spans = pkvi_addr(spans);
        c.args.span_count = 2;
        pkvt_run(cpu, PKV_OP_SCORE, &c.args, 2);
        memcpy(together, score, 2 * bytes);
        c.args.span_count = 1;
        for (uint32_t i = 0; i < 2; i++) {
            memcpy(score + i * scores, c.before, bytes);
            c.args.spans = pkvi_addr(spans + 1 - i);
            pkvt_run(cpu, PKV_OP_SCORE, &c.args, 1);
        }
        assert_memory_equal(together, score, 2 * bytes);
        free(views);
        free(spans);
        free(score);
        free(together);
        case_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_score__every_variant_and_shape__as_summed),
        cmocka_unit_test(test_score__ranges_and_tiles__bits_of_one_launch),
        cmocka_unit_test(test_score__several_spans__bits_of_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
