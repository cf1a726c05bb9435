/*
 * Attention: every variant against sums in double over shapes, formats, windows and ragged steps;
 * and the promise of the canonical order: a row's bits depend neither on the rows beside it nor
 * on threads.
 */
#include "tests/support/kernel_test.h"
#include "tests/support/kv_case.h"
#include "tests/support/tolerance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    enum pkv_kv_type type;
    uint32_t heads, kv_heads, head_dim, window;
    float softcap;
    uint32_t ring_pages;
    uint32_t spans;
    struct {
        uint32_t first_position, rows;
    } span[4]; /* one sequence each */
};

/* One step: its rows, arguments and results. */
struct step {
    struct pkvt_kv_case kv;
    struct pkv_row_span spans[4];
    float *q;
    struct pkv_args_attend args;
};

static void step_open(struct step *step, const struct shape *s, uint32_t threads)
{
    struct pkvt_rng rng = {s->head_dim + s->heads * 1000u};
    *step = (struct step){.kv = {.type = s->type,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .sequences = s->spans,
                                 .ring_pages = s->ring_pages}};
    uint32_t rows = 0, max_keys = 0;
    for (uint32_t i = 0; i < s->spans; i++) {
        uint32_t keys = s->span[i].first_position + s->span[i].rows;
        step->kv.tokens[i] = keys;
        max_keys = keys > max_keys ? keys : max_keys;
        step->spans[i] = (struct pkv_row_span){i, rows, s->span[i].rows, s->span[i].first_position};
        rows += s->span[i].rows;
    }
    pkvt_kv_case_open(&step->kv, 11);
    uint32_t q_stride = s->heads * s->head_dim + 7;
    step->q = pkvt_normal(&rng, (uint64_t)rows * q_stride, 1.5f);
    uint64_t scratch =
        pkvi_attend_scratch_bytes(rows, max_keys, s->heads, s->kv_heads, s->head_dim, threads);
    step->args = (struct pkv_args_attend){
        .q = pkvi_addr(step->q),
        .views = pkvi_addr(step->kv.views),
        .spans = pkvi_addr(step->spans),
        .out = pkvt_act(rows, s->heads * s->head_dim, true, s->head_dim % 32 == 0),
        .lse = pkvi_addr(pkvt_alloc((uint64_t)rows * s->heads * sizeof(float))),
        .scratch = pkvi_addr(pkvt_alloc(scratch)),
        .scratch_bytes = scratch,
        .kv_type = s->type,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .softcap = s->softcap,
        .span_count = s->spans,
        .rows = rows,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .window = s->window,
        .q_stride = q_stride};
}

static void step_close(struct step *step)
{
    pkvt_kv_case_close(&step->kv);
    free(step->q);
    pkvt_act_free(&step->args.out);
    free(PKV_AT(void, step->args.lse));
    free(PKV_AT(void, step->args.scratch));
}

/* One row and head in double; returns its log-sum-exp. */
static double reference(const struct step *step, const struct pkv_row_span *span, uint32_t row,
                        uint32_t head, double *out)
{
    const struct pkv_args_attend *args = &step->args;
    uint32_t position = span->first_position + row - span->first_row;
    uint32_t kv_head = head / (args->heads / args->kv_heads);
    uint32_t first = args->window && position >= args->window ? position - args->window + 1 : 0;
    const float *q = step->q + (uint64_t)row * args->q_stride + head * args->head_dim;
    double *score = pkvt_alloc((position + 1) * sizeof *score), max = -INFINITY, sum = 0;
    double value[512];
    for (uint32_t j = first; j <= position; j++) {
        double dot = 0;
        pkvt_kv_case_read(&step->kv, span->view, kv_head, j, 0, value);
        for (uint32_t i = 0; i < args->head_dim; i++) {
            dot += q[i] * value[i];
        }
        dot *= (double)args->scale;
        score[j] = args->softcap > 0 ? args->softcap * tanh(dot / args->softcap) : dot;
        max = fmax(max, score[j]);
    }
    memset(out, 0, args->head_dim * sizeof *out);
    for (uint32_t j = first; j <= position; j++) {
        double p = exp(score[j] - max);
        sum += p;
        pkvt_kv_case_read(&step->kv, span->view, kv_head, j, 1, value);
        for (uint32_t i = 0; i < args->head_dim; i++) {
            out[i] += p * value[i];
        }
    }
    for (uint32_t i = 0; i < args->head_dim; i++) {
        out[i] /= sum;
    }
    free(score);
    return max + log(sum);
}

static const struct pkv_row_span *span_of(const struct step *step, uint32_t row)
{
    const struct pkv_row_span *span = step->spans;
    while (row >= span->first_row + span->rows) {
        span++;
    }
    return span;
}

/* Some rows: the reference is slow. */
static void check_values(const struct step *step, const char *what)
{
    const struct pkv_args_attend *args = &step->args;
    double want[512];
    for (uint32_t row = 0; row < args->rows; row += 1 + row / 8) {
        for (uint32_t head = 0; head < args->heads; head++) {
            const struct pkv_row_span *span = span_of(step, row);
            double lse = reference(step, span, row, head, want);
            uint64_t at = (uint64_t)row * args->heads + head;
            uint32_t keys = span->first_position + row - span->first_row + 1;
            pkvt_assert_close(what, PKV_AT(float, args->out.f32) + at * args->head_dim, want,
                              args->head_dim, PKVT_EPS_F32, keys + args->head_dim);
            double got = PKV_AT(float, args->lse)[at];
            assert_true(fabs(got - lse) <=
                        pkvt_tolerance(PKVT_EPS_F32, args->head_dim, fmax(1.0, fabs(lse))));
        }
    }
    if (args->out.q8) {
        pkvt_assert_quantised(&args->out, PKV_AT(float, args->out.f32), args->rows);
    }
}

/* One row as a step of its own gives the same bits. */
static void check_alone(const struct step *step, uint32_t cpu, uint32_t row, const char *what)
{
    struct pkv_args_attend args = step->args;
    struct pkv_row_span span = *span_of(step, row);
    uint64_t width = (uint64_t)args.heads * args.head_dim;
    float *out = pkvt_alloc(width * sizeof *out), *lse = pkvt_alloc(args.heads * sizeof *lse);
    span.first_position += row - span.first_row;
    span.first_row = 0;
    span.rows = 1;
    args.q += (uint64_t)row * args.q_stride * sizeof(float);
    args.spans = pkvi_addr(&span);
    args.out = (struct pkv_act){.cols = (uint32_t)width, .f32 = pkvi_addr(out)};
    args.lse = pkvi_addr(lse);
    args.rows = args.span_count = 1;
    for (uint32_t threads = 1; threads <= 2; threads++) {
        pkvt_run(cpu, PKV_OP_ATTEND, &args, threads);
        const float *among = PKV_AT(float, step->args.out.f32) + row * width;
        if (memcmp(out, among, width * sizeof *out) != 0 ||
            memcmp(lse, PKV_AT(float, step->args.lse) + row * args.heads,
                   args.heads * sizeof *lse) != 0) {
            fail_msg("%s: row %u alone, %u threads: other bits", what, row, threads);
        }
    }
    free(out);
    free(lse);
}

static void check_shape(uint32_t cpu, const struct shape *s, const char *family, uint32_t number)
{
    char what[128];
    snprintf(what, sizeof what, "%s %s %u: %s heads %u/%u dim %u", pkvi_cpu_name((enum pkv_cpu)cpu),
             family, number, pkv_kv_type_name(s->type), s->heads, s->kv_heads, s->head_dim);
    struct step step;
    step_open(&step, s, 3);
    pkvt_run(cpu, PKV_OP_ATTEND, &step.args, 1);
    check_values(&step, what);
    uint64_t values = (uint64_t)step.args.rows * s->heads * s->head_dim;
    float *first = pkvt_alloc(values * sizeof *first);
    memcpy(first, PKV_AT(float, step.args.out.f32), values * sizeof *first);
    for (uint32_t threads = 2; threads <= 3; threads++) {
        memset(PKV_AT(float, step.args.out.f32), 0, values * sizeof *first);
        pkvt_run(cpu, PKV_OP_ATTEND, &step.args, threads);
        assert_memory_equal(first, PKV_AT(float, step.args.out.f32), values * sizeof *first);
    }
    for (uint32_t row = 0; row < step.args.rows; row += 1 + row / 4) {
        check_alone(&step, cpu, row, what);
    }
    free(first);
    step_close(&step);
}

static void check_shapes(const struct shape *shapes, uint32_t count, const char *family)
{
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < count; i++) {
            /* emulated instructions are slow: some shapes must do */
            if (cpu != PKVT_CPU_SIMDE || i % 3 == 0) {
                check_shape(cpu, &shapes[i], family, i);
            }
        }
    }
}
#define CHECK_SHAPES(shapes, family)                                                               \
    check_shapes((shapes), sizeof(shapes) / sizeof((shapes)[0]), (family))

static void test_attend__one_row_at_every_edge__close_and_equal(void **state)
{
    (void)state;
    static const uint32_t keys[] = {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 700};
    struct shape shapes[12];
    for (uint32_t i = 0; i < 12; i++) {
        shapes[i] = (struct shape){PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{keys[i] - 1, 1}}};
    }
    CHECK_SHAPES(shapes, "one row");
}

static void test_attend__prompt_in_pieces__close_and_equal(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{0, 300}}},
        {PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{240, 70}}},
        {PKV_KV_F16, 3, 1, 64, 0, 0, 0, 1, {{690, 7}}},
        {PKV_KV_F16, 2, 2, 32, 0, 0, 0, 1, {{255, 2}}},
    };
    CHECK_SHAPES(shapes, "pieces");
}

static void test_attend__ragged_step__close_and_equal(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 9, 3, 64, 0, 0, 0, 4, {{0, 1}, {511, 33}, {300, 1}, {31, 3}}},
        {PKV_KV_F32, 4, 2, 32, 0, 0, 0, 4, {{700, 1}, {255, 1}, {256, 1}, {0, 40}}},
        {PKV_KV_F16, 4, 1, 256, 0, 0, 0, 3, {{100, 1}, {260, 5}, {0, 20}}},
    };
    CHECK_SHAPES(shapes, "ragged");
}

static void test_attend__every_format_group_and_size__close_and_equal(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 1, 1, 32, 0, 0, 0, 2, {{40, 1}, {270, 9}}},
        {PKV_KV_BF16, 3, 1, 64, 0, 0, 0, 2, {{40, 1}, {270, 9}}},
        {PKV_KV_F32, 4, 1, 80, 0, 0, 0, 2, {{40, 1}, {270, 9}}},
        {PKV_KV_Q8_0, 8, 1, 128, 0, 0, 0, 2, {{40, 1}, {270, 9}}},
        {PKV_KV_Q8_0, 9, 3, 64, 0, 0, 0, 2, {{300, 1}, {3, 30}}},
        {PKV_KV_BF16, 4, 1, 256, 0, 0, 0, 2, {{40, 1}, {270, 9}}},
        {PKV_KV_F16, 16, 1, 80, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_F16, 14, 2, 64, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_F16, 2, 1, 10, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_F32, 5, 1, 6, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_F16, 2, 2, 100, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_F16, 2, 1, 512, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
        {PKV_KV_Q8_0, 2, 1, 96, 0, 0, 0, 2, {{300, 1}, {40, 9}}},
    };
    CHECK_SHAPES(shapes, "formats");
}

static void test_attend__window_and_softcap__close_and_equal(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 4, 1, 64, 100, 0, 0, 3, {{500, 40}, {99, 3}, {0, 130}}},
        {PKV_KV_F16, 4, 2, 64, 512, 0, 0, 2, {{700, 20}, {511, 2}}},
        {PKV_KV_F16, 4, 2, 64, 1, 0, 0, 1, {{250, 20}}},
        {PKV_KV_F16, 4, 2, 64, 0, 20.0f, 0, 2, {{500, 1}, {30, 12}}},
        {PKV_KV_BF16, 4, 1, 128, 33, 5.0f, 0, 2, {{500, 1}, {250, 12}}},
        /* a ring as small as window and rows allow */
        {PKV_KV_F16, 4, 1, 64, 64, 0, 4, 2, {{650, 40}, {300, 1}}},
    };
    CHECK_SHAPES(shapes, "window");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend__one_row_at_every_edge__close_and_equal),
        cmocka_unit_test(test_attend__prompt_in_pieces__close_and_equal),
        cmocka_unit_test(test_attend__ragged_step__close_and_equal),
        cmocka_unit_test(test_attend__every_format_group_and_size__close_and_equal),
        cmocka_unit_test(test_attend__window_and_softcap__close_and_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
