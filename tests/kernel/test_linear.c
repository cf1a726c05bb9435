/*
 * LINEAR and EMBED: the scalar variant against double precision, every other CPU variant against
 * the scalar one bit for bit, the CUDA one against double precision, and one row alone against the
 * same row among many.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/quantize.h"
#include "tests/support/cuda_variant.h"
#include "tests/support/kernel_test.h"
#include "tests/support/weights.h"

enum { FEW = 8 }; /* rows up to which CUDA keeps the order of sums */

struct acts {
    uint32_t rows, cols;
    float *f32;
    int8_t *q8;
    struct pkv_act_block *block;
};

struct weights {
    enum pkv_weight_type type;
    uint32_t rows, cols;
    uint8_t *source;
    void *packed;
    float *bias;
};

static void *allocate(uint64_t count, uint64_t bytes)
{
    void *memory = pkvt_alloc(count * bytes);
    memset(memory, 0, count * bytes);
    return memory;
}

static struct acts acts_random(uint32_t rows, uint32_t cols, struct pkvt_rng *rng)
{
    const uint64_t values = (uint64_t)rows * cols;
    struct acts a = {rows, cols, allocate(values, 4), allocate(values, 1),
                     allocate(values / 32 + 1, sizeof(struct pkv_act_block))};
    for (uint64_t i = 0; i < values; i++) {
        a.f32[i] = pkvt_rng_normal(rng);
    }
    for (uint64_t b = 0; cols % 32 == 0 && b < values / 32; b++) {
        const uint32_t kind = pkvt_rng_below(rng, 8);
        for (uint32_t i = 0; kind < 2 && i < 32; i++) { /* the largest integer sums */
            a.f32[32 * b + i] = b % 2 ? 2.0f : -2.0f;
        }
        if (kind > 0 && kind < 4) { /* and the largest spills, once with those sums */
            a.f32[32 * b + pkvt_rng_below(rng, 32)] *= kind == 1 ? 236.0f : 1000.0f;
        }
        pkvi_ref_quantize_block(a.f32 + 32 * b, a.q8 + 32 * b, a.block + b);
    }
    return a;
}

static void acts_free(struct acts *a)
{
    free(a->f32);
    free(a->q8);
    free(a->block);
}

static struct weights weights_random(enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                                     struct pkvt_rng *rng)
{
    struct weights w = {type, rows, cols, pkvt_weights_random(type, rows, cols, rng), NULL, NULL};
    if (pkvi_weight_is_quantised(type)) { /* a row of the largest codes, one of the smallest */
        const uint64_t row_bytes = pkvi_weight_row_bytes(type, cols);
        const uint32_t block = pkvi_weight_block_bytes(type);
        for (uint64_t at = 0; at < row_bytes; at += block) {
            const uint32_t first = block >= 84 ? 16 : 4, last = block >= 84 ? 80 : block;
            memset(w.source + at + first, 0xff, last - first);
            memset(w.source + (rows - 1) * row_bytes + at + first, 0x80, last - first);
        }
    }
    void *packed = pkvt_weights_pack(type, rows, cols, w.source);
    w.packed = allocate(1, pkvi_pack_bytes(type, rows, cols));
    memcpy(w.packed, packed, pkvi_pack_bytes(type, rows, cols));
    free(packed);
    w.bias = allocate(rows, 4);
    for (uint32_t i = 0; i < rows; i++) {
        w.bias[i] = pkvt_rng_normal(rng);
    }
    return w;
}

static void weights_free(struct weights *w)
{
    free(w->source);
    free(w->packed);
    free(w->bias);
}

static struct pkv_matrix matrix_of(const struct weights *w, bool bias)
{
    return (struct pkv_matrix){w->type, w->rows, w->cols, pkvi_addr(w->packed),
                               bias ? pkvi_addr(w->bias) : 0};
}

static struct pkv_act act_from(const struct acts *a, uint32_t first_row)
{
    const uint64_t at = (uint64_t)first_row * a->cols;
    return (struct pkv_act){a->cols, pkvi_addr(a->f32 + at), pkvi_addr(a->q8 + at),
                            pkvi_addr(a->block + at / 32)};
}

/* y [rows][w->rows] of rows first .. first + rows - 1. */
static void run(uint32_t cpu, uint32_t threads, const struct weights *w, const struct acts *a,
                uint32_t first, uint32_t rows, float *y)
{
    struct pkv_args_linear args = {.x = act_from(a, first), .rows = rows, .part_count = 1};
    args.part[0] = (struct pkv_linear_part){matrix_of(w, false), pkvi_addr(y), w->rows, 0};
    pkvt_run(cpu, PKV_OP_LINEAR, &args, threads);
}

static void assert_same_bits(const float *got, const float *want, uint64_t count, const char *what,
                             enum pkv_weight_type type)
{
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &want[i], 4) != 0) {
            fail_msg("%s, %s, value %llu: got %.9g, want %.9g", what, pkvi_weight_type_name(type),
                     (unsigned long long)i, (double)got[i], (double)want[i]);
        }
    }
}

/*
 * Against sums in double precision of the values that it was given, within `relative` of the sum
 * of magnitudes.
 */
static void check_values(const char *what, const struct weights *w, const struct acts *a,
                         const float *y, double relative)
{
    float *row = allocate(w->cols, 4);
    const bool quantised = pkvi_weight_is_quantised(w->type);
    for (uint32_t o = 0; o < w->rows; o++) {
        pkvi_weight_dequantize(w->type, w->source + o * pkvi_weight_row_bytes(w->type, w->cols),
                               w->cols, row);
        for (uint32_t i = 0; i < a->rows; i++) {
            double sum = 0, magnitude = 0;
            for (uint32_t k = 0; k < w->cols; k++) {
                const uint64_t at = (uint64_t)i * w->cols + k;
                const struct pkv_act_block *block = &a->block[at / 32];
                const int spill = block->channel == k % 32 ? block->spill : 0;
                const double x =
                    quantised ? (a->q8[at] + spill) * (double)block->scale : (double)a->f32[at];
                sum += (double)row[k] * x;
                magnitude += fabs((double)row[k] * x);
            }
            const double got = (double)y[(uint64_t)i * w->rows + o];
            if (!(fabs(got - sum) <= relative * magnitude + 1e-6)) {
                fail_msg("%s %s output %u row %u: got %.9g, want %.9g", what,
                         pkvi_weight_type_name(w->type), o, i, got, sum);
            }
        }
    }
    free(row);
}

/*
 * CUDA: up to 8 rows sums of exact integers and products in float32, in its own order. More rows:
 * weights and activations rounded to f16, so each product off by at most 2 * 2^-11 of itself.
 */
static double cuda_tolerance(uint32_t tokens)
{
    return tokens <= FEW ? 2e-6 : 0x1p-10 + 2e-6;
}

static void check_shape(enum pkv_weight_type type, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    struct pkvt_rng rng = {rows * 1000 + cols + tokens + type};
    struct weights w = weights_random(type, rows, cols, &rng);
    struct acts a = acts_random(tokens, cols, &rng);
    const uint64_t values = (uint64_t)tokens * rows;
    float *want = allocate(values, 4), *got = allocate(values, 4);
    run(PKV_CPU_SCALAR, 1, &w, &a, 0, tokens, want);
    check_values("scalar", &w, &a, want, 2e-6);
    PKVT_FOR_EACH_CPU(cpu)
    {
        memset(got, 0xff, values * 4);
        run(cpu, 2, &w, &a, 0, tokens, got);
        if (cpu == PKVT_CPU_CUDA) {
            check_values("cuda", &w, &a, got, cuda_tolerance(tokens));
        } else {
            assert_same_bits(got, want, values, pkvi_cpu_name((enum pkv_cpu)cpu), type);
        }
    }
    free(got);
    free(want);
    acts_free(&a);
    weights_free(&w);
}

static void test_linear__every_type__right_and_equal(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{16, 256, 1}, {17, 512, 3}, {50, 1024, 9}, {3, 4096, 2}};
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        const enum pkv_weight_type type = (enum pkv_weight_type)t;
        for (uint32_t s = 0; s < 4; s++) {
            check_shape(type, shapes[s][0], shapes[s][1], shapes[s][2]);
        }
        if (pkvi_weight_block_values(type) <= 32) {
            check_shape(type, 33, 32, 5);
            check_shape(type, 192, 576, 13);
        }
    }
    check_shape(PKV_W_F32, 7, 37, 3);
    check_shape(PKV_W_F16, 20, 5, 70);
    check_shape(PKV_W_BF16, 33, 129, 6);
}

/* Rows on both sides of every boundary, one output, matrices that end inside a group. */
static void test_linear__rows_around_eight__right_and_equal(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 7, 8, 9, 33};
    for (uint32_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        check_shape(PKV_W_Q4_K, 1, 256, tokens[i]);
        check_shape(PKV_W_Q8_0, 15, 96, tokens[i]);
        check_shape(PKV_W_Q6_K, 65, 512, tokens[i]);
        check_shape(PKV_W_BF16, 17, 1, tokens[i]);
        check_shape(PKV_W_F32, 31, 67, tokens[i]);
    }
}

static void test_linear__no_rows__nothing_written(void **state)
{
    (void)state;
    struct pkvt_rng rng = {5};
    struct weights w = weights_random(PKV_W_Q4_0, 16, 32, &rng);
    struct acts a = acts_random(1, 32, &rng);
    float *y = allocate(16, 4);
    PKVT_FOR_EACH_CPU(cpu)
    {
        run(cpu, 2, &w, &a, 0, 0, y);
        for (uint32_t i = 0; i < 16; i++) {
            assert_true(y[i] == 0.0f);
        }
    }
    free(y);
    acts_free(&a);
    weights_free(&w);
}

/* Activations beyond f16, a row a magnitude. */
static void test_linear__huge_and_tiny_rows__right(void **state)
{
    (void)state;
    enum { TOKENS = 12, COLS = 64, OUTPUTS = 20 };
    static const enum pkv_weight_type types[] = {PKV_W_Q4_1, PKV_W_F16};
    struct pkvt_rng rng = {6};
    struct acts a = acts_random(TOKENS, COLS, &rng);
    for (uint32_t i = 0; i < TOKENS; i++) {
        for (uint32_t k = 0; k < COLS; k++) {
            a.f32[i * COLS + k] = pkvt_rng_normal(&rng) * powf(10.0f, 3.0f * (float)i - 16.0f);
        }
    }
    for (uint32_t b = 0; b < TOKENS * COLS / 32; b++) {
        pkvi_ref_quantize_block(a.f32 + 32 * b, a.q8 + 32 * b, a.block + b);
    }
    for (uint32_t t = 0; t < 2; t++) {
        struct weights w = weights_random(types[t], OUTPUTS, COLS, &rng);
        float *y = allocate(TOKENS * OUTPUTS, 4);
        PKVT_FOR_EACH_CPU(cpu)
        {
            run(cpu, 2, &w, &a, 0, TOKENS, y);
            check_values("huge", &w, &a, y, cpu == PKVT_CPU_CUDA ? cuda_tolerance(TOKENS) : 2e-6);
        }
        free(y);
        weights_free(&w);
    }
    acts_free(&a);
}

/* Pieces of rows and outputs, the last of them smaller; too little room for any; no cuBLAS. */
static void test_linear__little_workspace_or_no_blas__right(void **state)
{
    (void)state;
    static const uint64_t bytes[] = {0, 1000, 150000, 400000};
    if (!pkvt_cuda_here()) {
        skip();
    }
    for (uint32_t i = 0; i < 4; i++) {
        pkvt_cuda_offer(true, bytes[i]);
        check_shape(PKV_W_Q5_K, 200, 256, 80);
        check_shape(PKV_W_F32, 70, 33, 150);
    }
    pkvt_cuda_offer(false, UINT64_MAX);
    check_shape(PKV_W_Q5_K, 40, 256, 21);
    pkvt_cuda_offer(true, UINT64_MAX);
}

/* One row alone, 3, 8 or all of them; one thread or two: the same bits. */
static void check_batch(uint32_t cpu, enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                        uint32_t tokens)
{
    static const uint32_t batches[] = {1, 2, 3, 4, 7, 8, 64, 65};
    struct pkvt_rng rng = {rows + cols + tokens + type};
    struct weights w = weights_random(type, rows, cols, &rng);
    struct acts a = acts_random(tokens, cols, &rng);
    float *all = allocate((uint64_t)tokens * rows, 4), *some = allocate((uint64_t)tokens * rows, 4);
    run(cpu, 2, &w, &a, 0, tokens, all);
    run(cpu, 1, &w, &a, 0, tokens, some);
    assert_same_bits(some, all, (uint64_t)tokens * rows, "one thread", type);
    for (uint32_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        if (batches[b] > tokens) {
            break;
        }
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t first = pkvt_rng_below(&rng, tokens - batches[b] + 1);
            run(cpu, 1 + i % 2, &w, &a, first, batches[b], some);
            assert_same_bits(some, all + (uint64_t)first * rows, (uint64_t)batches[b] * rows,
                             "batch", type);
        }
    }
    free(some);
    free(all);
    acts_free(&a);
    weights_free(&w);
}

static void test_linear__any_batch_and_threads__same_bits(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        const bool slow = cpu == PKV_CPU_SCALAR || cpu == PKVT_CPU_SIMDE;
        const uint32_t many = cpu == PKVT_CPU_CUDA ? FEW : slow ? 20 : UINT32_MAX;
        for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
            check_batch(cpu, (enum pkv_weight_type)t, 40, 768, many < 131 ? many : 131);
        }
        check_batch(cpu, PKV_W_Q4_1, 200, 576, many < 512 ? many : 512);
        check_batch(cpu, PKV_W_Q8_0, 31, 1536, many < 70 ? many : 70);
        check_batch(cpu, PKV_W_F16, 31, 100, many < 70 ? many : 70);
    }
}

/* Inputs for a second round of a lane, and a bit of it; blocks of half as many warps on a device
 * that has few multiprocessors for the matrix. */
static void test_linear__any_device__same_bits(void **state)
{
    (void)state;
    enum { OUTPUTS = 19, COLS = 4608, TOKENS = 2 };
    if (!pkvt_cuda_here()) {
        skip();
    }
    float *small = allocate(OUTPUTS * TOKENS, 4), *large = allocate(OUTPUTS * TOKENS, 4);
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        struct pkvt_rng rng = {t};
        struct weights w = weights_random((enum pkv_weight_type)t, OUTPUTS, COLS, &rng);
        struct acts a = acts_random(TOKENS, COLS, &rng);
        pkvt_cuda_pretend(1);
        run(PKVT_CPU_CUDA, 1, &w, &a, 0, TOKENS, small);
        pkvt_cuda_pretend(1000);
        run(PKVT_CPU_CUDA, 1, &w, &a, 0, TOKENS, large);
        check_values("cuda", &w, &a, small, cuda_tolerance(TOKENS));
        assert_same_bits(large, small, OUTPUTS * TOKENS, "large device", w.type);
        acts_free(&a);
        weights_free(&w);
    }
    pkvt_cuda_pretend(0);
    free(small);
    free(large);
}

/* Two parts more, with bias, with residual, in a wider y: only their places are written. */
static void check_parts(uint32_t cpu, uint32_t tokens)
{
    enum { COLS = 256, STRIDE = 60 };
    static const uint32_t outputs[4] = {40, 16, 3, 57};
    static const enum pkv_weight_type types[4] = {PKV_W_Q4_K, PKV_W_Q8_0, PKV_W_Q6_K, PKV_W_F32};
    struct pkvt_rng rng = {77};
    struct acts a = acts_random(tokens, COLS, &rng);
    struct weights w[4];
    float *y[4], *alone = allocate((uint64_t)tokens * 57, 4);
    struct pkv_args_linear args = {.x = act_from(&a, 0), .rows = tokens, .part_count = 4};
    for (uint32_t p = 0; p < 4; p++) {
        w[p] = weights_random(types[p], outputs[p], COLS, &rng);
        y[p] = allocate((uint64_t)tokens * STRIDE, 4);
        args.part[p] =
            (struct pkv_linear_part){matrix_of(&w[p], p % 2 == 0), pkvi_addr(y[p]), STRIDE, p >= 2};
        for (uint32_t i = 0; i < tokens * STRIDE; i++) {
            y[p][i] = (float)i;
        }
    }
    pkvt_run(cpu, PKV_OP_LINEAR, &args, 2);
    for (uint32_t p = 0; p < 4; p++) {
        run(cpu, 2, &w[p], &a, 0, tokens, alone);
        for (uint32_t i = 0; i < tokens * STRIDE; i++) {
            const uint32_t o = i % STRIDE, token = i / STRIDE;
            float want = (float)i;
            if (o < outputs[p]) {
                const float sum = alone[token * outputs[p] + o];
                const float value = p % 2 == 0 ? sum + w[p].bias[o] : sum;
                want = p >= 2 ? (float)i + value : value;
            }
            assert_same_bits(&y[p][i], &want, 1, "parts", types[p]);
        }
        weights_free(&w[p]);
        free(y[p]);
    }
    free(alone);
    acts_free(&a);
}

static void test_linear__parts_bias_and_residual__as_separate_sums(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        check_parts(cpu, 3);
        check_parts(cpu, 11);
    }
}

/* Also widths that end inside 8 channels. */
static void check_embed(uint32_t cpu, enum pkv_weight_type type, uint32_t width)
{
    enum { VOCAB = 50, TOKENS = 7 };
    static const int32_t some[TOKENS] = {0, 49, 16, 15, 31, 7, 49};
    struct pkvt_rng rng = {9};
    struct weights w = weights_random(type, VOCAB, width, &rng);
    int32_t *ids = allocate(TOKENS, sizeof *ids);
    float *x = allocate((uint64_t)TOKENS * width, 4), *want = allocate(width, 4);
    memcpy(ids, some, sizeof some);
    const struct pkv_args_embed args = {matrix_of(&w, false), pkvi_addr(ids), pkvi_addr(x), 1.5f,
                                        TOKENS};
    pkvt_run(cpu, PKV_OP_EMBED, &args, 2);
    for (uint32_t i = 0; i < TOKENS * width; i++) {
        const uint64_t row = (uint64_t)ids[i / width];
        if (i % width == 0) {
            pkvi_weight_dequantize(type, w.source + row * pkvi_weight_row_bytes(type, width), width,
                                   want);
        }
        assert_true(x[i] == want[i % width] * 1.5f);
    }
    free(ids);
    free(x);
    free(want);
    weights_free(&w);
}

static void test_embed__any_rows__scaled_values(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
            check_embed(cpu, (enum pkv_weight_type)t, 256);
            check_embed(cpu, (enum pkv_weight_type)t, 1280);
        }
        check_embed(cpu, PKV_W_F32, 5);
        check_embed(cpu, PKV_W_F16, 77);
        check_embed(cpu, PKV_W_Q5_1, 96);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear__every_type__right_and_equal),
        cmocka_unit_test(test_linear__rows_around_eight__right_and_equal),
        cmocka_unit_test(test_linear__no_rows__nothing_written),
        cmocka_unit_test(test_linear__huge_and_tiny_rows__right),
        cmocka_unit_test(test_linear__little_workspace_or_no_blas__right),
        cmocka_unit_test(test_linear__any_batch_and_threads__same_bits),
        cmocka_unit_test(test_linear__any_device__same_bits),
        cmocka_unit_test(test_linear__parts_bias_and_residual__as_separate_sums),
        cmocka_unit_test(test_embed__any_rows__scaled_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
