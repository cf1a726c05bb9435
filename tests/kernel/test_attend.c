/*
 * Attention: every variant against sums in double over shapes, formats, windows and ragged steps;
 * and the promise of the canonical order: a row's bits depend neither on the rows beside it nor
 * on threads, nor on how many launches share its keys.
 */
#include "tests/support/hot_case.h"
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
    struct pkv_row_span *spans; /* [4] */
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
    step->spans = pkvt_alloc(4 * sizeof *step->spans);
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
    free(step->spans);
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

/* Tensor cores multiply f16: as exact as one rounding to it, whatever is summed. */
static bool in_halves(uint32_t cpu, const struct pkv_args_attend *args)
{
    const uint32_t head_dim = args->head_dim;
    return cpu == PKVT_CPU_CUDA && args->kv_type != PKV_KV_F32 &&
           (head_dim == 64 || head_dim == 128 || head_dim == 256);
}

/* Some rows: the reference is slow. */
static void check_values(const struct step *step, uint32_t cpu, const char *what)
{
    const struct pkv_args_attend *args = &step->args;
    const bool halves = in_halves(cpu, args);
    const double eps = halves ? PKVT_EPS_F16 : PKVT_EPS_F32;
    double want[512];
    for (uint32_t row = 0; row < args->rows; row += 1 + row / 8) {
        for (uint32_t head = 0; head < args->heads; head++) {
            const struct pkv_row_span *span = span_of(step, row);
            double lse = reference(step, span, row, head, want);
            uint64_t at = (uint64_t)row * args->heads + head;
            uint32_t keys = span->first_position + row - span->first_row + 1;
            pkvt_assert_close(what, PKV_AT(float, args->out.f32) + at * args->head_dim, want,
                              args->head_dim, eps, halves ? 1 : keys + args->head_dim);
            double got = PKV_AT(float, args->lse)[at];
            assert_true(fabs(got - lse) <=
                        pkvt_tolerance(eps, halves ? 1 : args->head_dim, fmax(1.0, fabs(lse))));
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
    struct pkv_row_span *span = pkvt_alloc(sizeof *span);
    uint64_t width = (uint64_t)args.heads * args.head_dim;
    float *out = pkvt_alloc(width * sizeof *out), *lse = pkvt_alloc(args.heads * sizeof *lse);
    *span = *span_of(step, row);
    span->first_position += row - span->first_row;
    span->first_row = 0;
    span->rows = 1;
    args.q += (uint64_t)row * args.q_stride * sizeof(float);
    args.spans = pkvi_addr(span);
    args.out = (struct pkv_act){.cols = (uint32_t)width, .f32 = pkvi_addr(out)};
    args.lse = pkvi_addr(lse);
    args.rows = args.span_count = 1;
    for (uint32_t threads = 1; threads <= (cpu == PKVT_CPU_CUDA ? 1u : 2u); threads++) {
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
    free(span);
}

/* A launch a span, with all rows of the step: the same bits, and other spans' rows stay. */
static void check_span_by_span(struct step *step, uint32_t cpu, const float *want, uint64_t values)
{
    float *out = PKV_AT(float, step->args.out.f32);
    const uint64_t width = (uint64_t)step->args.heads * step->args.head_dim;
    memset(out, 0, values * sizeof *out);
    for (uint32_t i = step->args.span_count; i-- > 0;) {
        struct pkv_args_attend args = step->args;
        args.spans += i * sizeof(struct pkv_row_span);
        args.span_count = 1;
        pkvt_run(cpu, PKV_OP_ATTEND, &args, 2);
        for (uint64_t before = 0; before < step->spans[i].first_row * width; before++) {
            assert_true(out[before] == 0.0f);
        }
    }
    assert_memory_equal(out, want, values * sizeof *out);
}

static void check_shape(uint32_t cpu, const struct shape *s, const char *family, uint32_t number)
{
    char what[128];
    snprintf(what, sizeof what, "%s %s %u: %s heads %u/%u dim %u", pkvi_cpu_name((enum pkv_cpu)cpu),
             family, number, pkv_kv_type_name(s->type), s->heads, s->kv_heads, s->head_dim);
    struct step step;
    step_open(&step, s, 3);
    pkvt_run(cpu, PKV_OP_ATTEND, &step.args, 1);
    check_values(&step, cpu, what);
    uint64_t values = (uint64_t)step.args.rows * s->heads * s->head_dim;
    float *first = pkvt_alloc(values * sizeof *first);
    memcpy(first, PKV_AT(float, step.args.out.f32), values * sizeof *first);
    for (uint32_t threads = 2; threads <= 3; threads++) {
        struct pkv_args_attend args = step.args;
        memset(PKV_AT(float, args.out.f32), 0, values * sizeof *first);
        if (cpu == PKVT_CPU_CUDA) { /* it has no threads, but takes any scratch: some, none */
            args.scratch_bytes = threads == 2 ? 0 : values * 2;
        }
        pkvt_run(cpu, PKV_OP_ATTEND, &args, threads);
        assert_memory_equal(first, PKV_AT(float, args.out.f32), values * sizeof *first);
    }
    check_span_by_span(&step, cpu, first, values);
    memcpy(PKV_AT(float, step.args.out.f32), first, values * sizeof *first);
    for (uint32_t row = 0; row < step.args.rows; row += 1 + row / 4) {
        check_alone(&step, cpu, row, what);
    }
    free(first);
    step_close(&step);
}

/* Emulated instructions and fibers are slow: some shapes must do. */
static bool is_chosen(uint32_t cpu, const struct shape *s, uint32_t number)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->spans; i++) {
        rows += s->span[i].rows;
    }
    return cpu < PKVT_CPU_SIMDE || (cpu == PKVT_CPU_SIMDE && number % 3 == 0) ||
           (cpu == PKVT_CPU_CUDA && number % 2 == 0 && rows <= 100);
}

static void check_shapes(const struct shape *shapes, uint32_t count, const char *family)
{
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < count; i++) {
            if (is_chosen(cpu, &shapes[i], i)) {
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

/* Sizes that tensor cores serve: tiles of 16 row heads and of more, in every format. */
static void test_attend__tensor_core_sizes__close_and_equal(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 4, 1, 128, 0, 0, 0, 2, {{250, 1}, {240, 20}}},
        {PKV_KV_BF16, 2, 1, 64, 0, 0, 0, 2, {{33, 2}, {0, 40}}},
        {PKV_KV_Q8_0, 4, 2, 128, 40, 0, 0, 1, {{30, 20}}},
        {PKV_KV_BF16, 2, 1, 256, 0, 0, 0, 1, {{250, 12}}},
        {PKV_KV_Q8_0, 2, 1, 256, 0, 0, 0, 1, {{0, 3}}},
        {PKV_KV_F16, 40, 2, 64, 0, 0, 0, 1, {{60, 1}}},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; cpu != PKVT_CPU_SIMDE && i < sizeof shapes / sizeof shapes[0]; i++) {
            check_shape(cpu, &shapes[i], "tensor cores", i);
        }
    }
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

/* Sequence 0 of a step as it lies while some of it is elsewhere: pages before view.first_page only
 * in copies, all others in a ring of their own; a page table entry that must not be read crashes.
 */
struct away {
    struct pkv_kv_view *view;
    pkv_addr *page;    /* of the view */
    uint8_t *copies;   /* every page, by page and KV head */
    pkv_addr *tile;    /* table of the tile at hand */
    uint32_t stride;   /* of the tile's table */
    uint32_t kv_heads; /* used of it */
    uint32_t pages;    /* of the sequence */
    uint64_t page_bytes;
};
#define AWAY_NOWHERE 64u /* an address that nothing lies at */

static void away_open(struct away *away, const struct step *step, struct pkvt_rng *rng)
{
    const struct pkvt_kv_case *kv = &step->kv;
    const struct pkv_kv_view *view = &kv->views[0];
    uint32_t heads = kv->kv_heads, pages = (kv->tokens[0] + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS;
    uint32_t first = pkvt_rng_below(rng, pages); /* at least one page stays */
    uint32_t ring = pages - pkvt_rng_below(rng, first + 1);
    *away = (struct away){
        .page_bytes = (uint64_t)PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(kv->type, kv->head_dim),
        .stride = heads + pkvt_rng_below(rng, 3),
        .kv_heads = heads,
        .pages = pages,
    };
    away->page = pkvt_alloc((uint64_t)ring * (heads + 1) * sizeof *away->page);
    away->tile = pkvt_alloc((uint64_t)pages * away->stride * sizeof *away->tile);
    away->copies = pkvt_alloc(pages * heads * away->page_bytes);
    away->view = pkvt_alloc(sizeof *away->view);
    *away->view = (struct pkv_kv_view){.page = pkvi_addr(away->page),
                                       .head_stride = 1,
                                       .page_stride = heads + 1,
                                       .ring_pages = ring,
                                       .first_page = first};
    for (uint32_t i = 0; i < ring * (heads + 1); i++) {
        away->page[i] = AWAY_NOWHERE;
    }
    for (uint32_t p = 0; p < pages; p++) {
        for (uint32_t h = 0; h < heads; h++) {
            pkv_addr from = kv->page[0][p * view->page_stride + h * view->head_stride];
            uint8_t *copy = away->copies + ((uint64_t)p * heads + h) * away->page_bytes;
            memcpy(copy, PKV_AT(const uint8_t, from), away->page_bytes);
            if (p >= first) {
                away->page[p % ring * (heads + 1) + h] = from;
            }
        }
    }
}

static void away_close(struct away *away)
{
    free(away->view);
    free(away->page);
    free(away->tile);
    free(away->copies);
}

/* A tile for the keys of a launch: no more pages than it needs, none where it needs none. */
static struct pkv_kv_tile away_tile(const struct away *away, uint32_t key_begin, uint32_t key_end)
{
    uint32_t begin = key_begin / PKV_PAGE_TOKENS, end = away->view->first_page;
    if (key_end > 0 && key_end / PKV_PAGE_TOKENS < end) {
        end = key_end / PKV_PAGE_TOKENS;
    }
    if (begin >= end) {
        return (struct pkv_kv_tile){0};
    }
    for (uint32_t i = 0; i < away->pages * away->stride; i++) {
        away->tile[i] = AWAY_NOWHERE;
    }
    for (uint32_t p = begin; p < end; p++) {
        for (uint32_t h = 0; h < away->kv_heads; h++) {
            away->tile[(p - begin) * away->stride + h] =
                pkvi_addr(away->copies + ((uint64_t)p * away->kv_heads + h) * away->page_bytes);
        }
    }
    return (struct pkv_kv_tile){pkvi_addr(away->tile), begin, away->stride};
}

/* All that a launch writes: f32, q8 with blocks, lse. */
struct results {
    void *part[4];
    uint64_t bytes[4];
};

static struct results results_of(const struct pkv_args_attend *args)
{
    uint64_t values = (uint64_t)args->rows * args->heads * args->head_dim;
    bool q8 = args->out.q8 != 0;
    return (struct results){
        .part = {PKV_AT(void, args->out.f32), PKV_AT(void, args->out.q8),
                 PKV_AT(void, args->out.block), PKV_AT(void, args->lse)},
        .bytes = {values * sizeof(float), q8 ? values : 0,
                  q8 ? values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block) : 0,
                  (uint64_t)args->rows * args->heads * sizeof(float)},
    };
}

#define RANGES_MOST 5u

/* Launches over [cut[i], cut[i + 1]), the last one to the end; none but it writes results. */
static void run_ranges(const struct pkv_args_attend *whole, const struct away *away, uint32_t cpu,
                       uint32_t threads, const uint32_t *cut, uint32_t ranges)
{
    struct pkv_args_attend args = *whole;
    struct results results = results_of(whole);
    uint64_t bytes = pkvi_attend_carry_bytes(args.rows, args.heads, args.head_dim);
    void *carry = pkvt_alloc(bytes);
    for (uint32_t i = 0; i < 4; i++) {
        if (results.bytes[i] > 0) {
            memset(results.part[i], 0x7f, results.bytes[i]);
        }
    }
    for (uint32_t range = 0; range < ranges; range++) {
        args.carry = pkvi_addr(carry);
        args.carry_in = range > 0;
        args.carry_out = range + 1 < ranges;
        args.key_begin = cut[range];
        args.key_end = args.carry_out ? cut[range + 1] : 0;
        if (away) {
            args.views = pkvi_addr(away->view);
            args.tile = away_tile(away, args.key_begin, args.key_end);
        }
        pkvt_run(cpu, PKV_OP_ATTEND, &args, threads);
        for (uint32_t i = 0; args.carry_out && i < 4; i++) {
            for (uint64_t at = 0; at < results.bytes[i]; at++) {
                assert_int_equal(((const uint8_t *)results.part[i])[at], 0x7f);
            }
        }
    }
    free(carry);
}

/* Ascending multiples of a split, 0 first; some may lie beyond the last key. */
static uint32_t random_cuts(struct pkvt_rng *rng, uint32_t keys, uint32_t *cut_out)
{
    uint32_t ranges = 0, next = 0, most = 2 + pkvt_rng_below(rng, RANGES_MOST - 1);
    do {
        cut_out[ranges++] = next;
        next += PKV_SPLIT_KEYS * (1 + pkvt_rng_below(rng, 3));
    } while (ranges < most && (ranges < 2 || next < keys + 2 * PKV_SPLIT_KEYS));
    return ranges;
}

static void check_ranges(uint32_t cpu, const struct shape *s, uint32_t tries, uint32_t number)
{
    struct pkvt_rng rng = {number + 1};
    struct step step;
    step_open(&step, s, 2);
    struct results results = results_of(&step.args);
    void *want[4];
    pkvt_run(cpu, PKV_OP_ATTEND, &step.args, 1);
    for (uint32_t i = 0; i < 4; i++) {
        want[i] = pkvt_alloc(results.bytes[i] + 1);
        if (results.bytes[i] > 0) {
            memcpy(want[i], results.part[i], results.bytes[i]);
        }
    }
    for (uint32_t n = 0; n < tries; n++) {
        uint32_t cut[RANGES_MOST], threads = 1 + n % 2;
        uint32_t ranges = random_cuts(&rng, step.kv.tokens[0], cut);
        struct away away = {0};
        bool elsewhere = s->spans == 1;
        if (elsewhere) {
            away_open(&away, &step, &rng);
        }
        run_ranges(&step.args, elsewhere ? &away : NULL, cpu, threads, cut, ranges);
        away_close(&away);
        for (uint32_t i = 0; i < 4; i++) {
            if (results.bytes[i] > 0 && memcmp(want[i], results.part[i], results.bytes[i]) != 0) {
                fail_msg("%s ranges %u, try %u: %u launches, %u threads: other bits in part %u",
                         pkvi_cpu_name((enum pkv_cpu)cpu), number, n, ranges, threads, i);
            }
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        free(want[i]);
    }
    step_close(&step);
}

static void test_attend__ranges_of_keys__bits_of_one_launch(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        /* decode */
        {PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{1500, 1}}},
        {PKV_KV_Q8_0, 3, 1, 64, 0, 0, 0, 1, {{1023, 1}}},
        {PKV_KV_F16, 4, 1, 80, 0, 30.0f, 0, 1, {{1300, 1}}},
        {PKV_KV_Q8_0, 4, 1, 256, 0, 0, 0, 1, {{1024, 1}}},
        {PKV_KV_F16, 2, 2, 256, 0, 20.0f, 0, 1, {{800, 1}}},
        /* rows of which the first see nothing of the last range or two */
        {PKV_KV_F16, 4, 2, 64, 0, 0, 0, 1, {{500, 70}}},
        {PKV_KV_Q8_0, 4, 2, 64, 0, 20.0f, 0, 1, {{1010, 30}}},
        {PKV_KV_F16, 2, 1, 80, 0, 0, 0, 1, {{766, 5}}},
        {PKV_KV_Q8_0, 2, 1, 256, 0, 30.0f, 0, 1, {{760, 17}}},
        {PKV_KV_F16, 2, 1, 256, 0, 0, 0, 1, {{250, 41}}},
        /* windows, so that some see nothing of the first ranges */
        {PKV_KV_F16, 4, 1, 64, 100, 0, 0, 1, {{600, 1}}},
        {PKV_KV_F16, 4, 2, 64, 270, 0, 0, 1, {{500, 70}}},
        {PKV_KV_Q8_0, 2, 1, 64, 1, 0, 0, 1, {{1020, 9}}},
        /* without tiles: several spans, a ring */
        {PKV_KV_F16, 4, 2, 64, 0, 0, 0, 3, {{700, 1}, {300, 20}, {0, 3}}},
        {PKV_KV_BF16, 4, 1, 64, 64, 0, 5, 2, {{650, 40}, {300, 1}}},
        {PKV_KV_F32, 4, 2, 32, 300, 5.0f, 0, 2, {{20, 1}, {520, 6}}},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (cpu != PKVT_CPU_CUDA || i % 2 == 0) {
                check_ranges(cpu, &shapes[i], cpu < PKVT_CPU_SIMDE ? 8 : 2, i);
            }
        }
    }
}

/* A range that no row sees anything of leaves bits as they are, also where nothing came before. */
static void test_attend__range_that_no_row_sees__passes_through(void **state)
{
    (void)state;
    static const struct shape shape = {PKV_KV_F16, 4, 2, 64, 50, 0, 0, 1, {{600, 20}}};
    static const uint32_t cut[] = {0, 256, 512, 768, 1024};
    PKVT_FOR_EACH_CPU(cpu)
    {
        struct step step;
        step_open(&step, &shape, 2);
        struct results results = results_of(&step.args);
        void *want = pkvt_alloc(results.bytes[0]);
        pkvt_run(cpu, PKV_OP_ATTEND, &step.args, 1);
        memcpy(want, results.part[0], results.bytes[0]);
        for (uint32_t threads = 1; threads <= 2; threads++) {
            run_ranges(&step.args, NULL, cpu, threads, cut, 5);
            assert_memory_equal(want, results.part[0], results.bytes[0]);
        }
        free(want);
        step_close(&step);
    }
}

/* One row and head over the keys of a hot set, in double. */
static void hot_reference(const struct step *step, const struct pkvt_hot_case *hot, uint32_t row,
                          uint32_t head, double *out)
{
    const struct pkv_args_attend *args = &step->args;
    const uint32_t kv_head = head / (args->heads / args->kv_heads);
    const uint32_t last = step->spans->first_position + row - hot->view->key_shift;
    const float *q = step->q + (uint64_t)row * args->q_stride + head * args->head_dim;
    double value[512], max = -INFINITY, sum = 0;
    double *score = pkvt_alloc((last + 1) * sizeof *score);
    for (uint32_t key = hot->first_key[kv_head]; key <= last; key++) {
        pkvt_kv_case_read(&step->kv, 0, kv_head, pkvt_hot_case_token(hot, kv_head, key), 0, value);
        score[key] = 0;
        for (uint32_t i = 0; i < args->head_dim; i++) {
            score[key] += q[i] * value[i] * (double)args->scale;
        }
        max = fmax(max, score[key]);
    }
    memset(out, 0, args->head_dim * sizeof *out);
    for (uint32_t key = hot->first_key[kv_head]; key <= last; key++) {
        pkvt_kv_case_read(&step->kv, 0, kv_head, pkvt_hot_case_token(hot, kv_head, key), 1, value);
        sum += exp(score[key] - max);
        for (uint32_t i = 0; i < args->head_dim; i++) {
            out[i] += exp(score[key] - max) * value[i];
        }
    }
    for (uint32_t i = 0; i < args->head_dim; i++) {
        out[i] /= sum;
    }
    free(score);
}

static void check_hot(uint32_t cpu, const struct shape *s, struct pkvt_hot_case hot,
                      uint32_t number)
{
    struct step step;
    step_open(&step, s, 2);
    hot.from = &step.kv;
    pkvt_hot_case_open(&hot, number + 1, false);
    step.args.views = pkvi_addr(hot.view);
    const bool halves = in_halves(cpu, &step.args);
    const uint64_t width = (uint64_t)s->heads * s->head_dim, values = step.args.rows * width;
    float *first = pkvt_alloc(values * sizeof *first);
    double want[512];
    for (uint32_t threads = 1; threads <= 2; threads++) {
        pkvt_run(cpu, PKV_OP_ATTEND, &step.args, threads);
        const float *got = PKV_AT(float, step.args.out.f32);
        if (threads == 2) {
            assert_memory_equal(first, got, values * sizeof *first);
        }
        memcpy(first, got, values * sizeof *first);
        for (uint32_t i = 0; i < step.args.rows * s->heads; i++) {
            hot_reference(&step, &hot, i / s->heads, i % s->heads, want);
            pkvt_assert_close("hot set", got + (uint64_t)i * s->head_dim, want, s->head_dim,
                              halves ? PKVT_EPS_F16 : PKVT_EPS_F32, halves ? 1 : hot.keys);
        }
    }
    free(first);
    pkvt_hot_case_close(&hot);
    step_close(&step);
}

/* Slots of some tokens, ragged over KV heads, and the ring behind them. */
static void test_attend__hot_set__its_keys_and_the_ring(void **state)
{
    (void)state;
    static const struct {
        struct shape shape;
        uint32_t slots, end, first_key[3];
    } cases[] = {
        {{PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{499, 1}}}, 96, 416, {0, 32, 75}},
        {{PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{700, 1}}}, 576, 640, {0, 300, 570}},
        {{PKV_KV_F16, 9, 3, 64, 0, 0, 0, 1, {{679, 32}}}, 320, 640, {290, 0, 1}},
        {{PKV_KV_F16, 4, 2, 128, 0, 0, 0, 1, {{90, 1}}}, 96, 64, {32, 40}},
        {{PKV_KV_F32, 4, 2, 32, 0, 0, 0, 1, {{400, 5}}}, 64, 352, {0, 33}},
        {{PKV_KV_Q8_0, 4, 2, 64, 0, 0, 0, 1, {{331, 1}}}, 288, 320, {0, 287}},
        {{PKV_KV_BF16, 2, 1, 80, 0, 0, 0, 1, {{128, 1}}}, 32, 128, {7}},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct pkvt_hot_case hot = {.slots = cases[i].slots, .end = cases[i].end};
            memcpy(hot.first_key, cases[i].first_key, sizeof cases[i].first_key);
            check_hot(cpu, &cases[i].shape, hot, i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend__one_row_at_every_edge__close_and_equal),
        cmocka_unit_test(test_attend__prompt_in_pieces__close_and_equal),
        cmocka_unit_test(test_attend__ragged_step__close_and_equal),
        cmocka_unit_test(test_attend__every_format_group_and_size__close_and_equal),
        cmocka_unit_test(test_attend__tensor_core_sizes__close_and_equal),
        cmocka_unit_test(test_attend__window_and_softcap__close_and_equal),
        cmocka_unit_test(test_attend__ranges_of_keys__bits_of_one_launch),
        cmocka_unit_test(test_attend__range_that_no_row_sees__passes_through),
        cmocka_unit_test(test_attend__hot_set__its_keys_and_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
