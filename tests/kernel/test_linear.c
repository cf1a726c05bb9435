/*
 * LINEAR and EMBED: the scalar variant against double precision, every other variant against the
 * scalar one bit for bit, and one row alone against the same row among many.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/ref/quantize.h"
#include "runtime/base/thread.h"
#include "tests/support/weights.h"

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

static struct pkvi_pool *pools[3]; /* by number of threads */

static void *allocate(uint64_t count, uint64_t bytes)
{
    void *memory = calloc(count, bytes);
    assert_non_null(memory);
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
        if (kind > 0 && kind < 4) { /* and the largest spills */
            a.f32[32 * b + pkvt_rng_below(rng, 32)] *= kind == 1 ? 1000.0f : 200.0f;
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
    w.packed = pkvt_weights_pack(type, rows, cols, w.source);
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
static void run(const struct pkv_kernel *kernel, uint32_t threads, const struct weights *w,
                const struct acts *a, uint32_t first, uint32_t rows, float *y)
{
    struct pkv_args_linear args = {.x = act_from(a, first), .rows = rows, .part_count = 1};
    args.part[0] = (struct pkv_linear_part){matrix_of(w, false), pkvi_addr(y), w->rows, 0};
    struct pkvi_cpu_stream stream = {pools[threads]};
    assert_ok(kernel->launch(&stream, &args));
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

/* The scalar variant against sums in double precision of the values that it was given. */
static void check_values(const struct weights *w, const struct acts *a, const float *y)
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
            if (!(fabs(got - sum) <= 2e-6 * magnitude + 1e-6)) {
                fail_msg("%s output %u row %u: got %.9g, want %.9g", pkvi_weight_type_name(w->type),
                         o, i, got, sum);
            }
        }
    }
    free(row);
}

static void check_shape(enum pkv_weight_type type, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_LINEAR, kernels);
    struct pkvt_rng rng = {rows * 1000 + cols + tokens + type};
    struct weights w = weights_random(type, rows, cols, &rng);
    struct acts a = acts_random(tokens, cols, &rng);
    const uint64_t values = (uint64_t)tokens * rows;
    float *want = allocate(values, 4), *got = allocate(values, 4);
    run(kernels[0], 1, &w, &a, 0, tokens, want);
    check_values(&w, &a, want);
    for (uint32_t k = 1; k < count; k++) {
        run(kernels[k], 2, &w, &a, 0, tokens, got);
        assert_same_bits(got, want, values, kernels[k]->variant, type);
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

/* One row alone, 3, 8 or all of them; one thread or two: the same bits. */
static void check_batch(const struct pkv_kernel *kernel, enum pkv_weight_type type, uint32_t rows,
                        uint32_t cols, uint32_t tokens)
{
    static const uint32_t batches[] = {1, 2, 3, 4, 7, 8, 64, 65};
    struct pkvt_rng rng = {rows + cols + tokens + type};
    struct weights w = weights_random(type, rows, cols, &rng);
    struct acts a = acts_random(tokens, cols, &rng);
    float *all = allocate((uint64_t)tokens * rows, 4), *some = allocate((uint64_t)tokens * rows, 4);
    run(kernel, 2, &w, &a, 0, tokens, all);
    run(kernel, 1, &w, &a, 0, tokens, some);
    assert_same_bits(some, all, (uint64_t)tokens * rows, "one thread", type);
    for (uint32_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        if (batches[b] > tokens) {
            break;
        }
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t first = pkvt_rng_below(&rng, tokens - batches[b] + 1);
            run(kernel, 1 + i % 2, &w, &a, first, batches[b], some);
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
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_LINEAR, kernels);
    for (uint32_t k = 0; k < count; k++) {
        const bool slow = k == 0 || strstr(kernels[k]->variant, "simde");
        for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
            check_batch(kernels[k], (enum pkv_weight_type)t, 40, 768, slow ? 20 : 131);
        }
        check_batch(kernels[k], PKV_W_Q4_1, 200, 576, slow ? 20 : 512);
        check_batch(kernels[k], PKV_W_Q8_0, 31, 1536, slow ? 20 : 70);
        check_batch(kernels[k], PKV_W_F16, 31, 100, slow ? 20 : 70);
    }
}

/* Two parts more, with bias, with residual, in a wider y: only their places are written. */
static void test_linear__parts_bias_and_residual__as_separate_sums(void **state)
{
    (void)state;
    enum { COLS = 256, TOKENS = 11, STRIDE = 60 };
    static const uint32_t outputs[4] = {40, 16, 3, 57};
    static const enum pkv_weight_type types[4] = {PKV_W_Q4_K, PKV_W_Q8_0, PKV_W_Q6_K, PKV_W_F32};
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_LINEAR, kernels);
    struct pkvt_rng rng = {77};
    struct acts a = acts_random(TOKENS, COLS, &rng);
    struct weights w[4];
    float *y[4], *alone = allocate(TOKENS * 57, 4);
    for (uint32_t p = 0; p < 4; p++) {
        w[p] = weights_random(types[p], outputs[p], COLS, &rng);
        y[p] = allocate(TOKENS * STRIDE, 4);
    }
    for (uint32_t k = 0; k < count; k++) {
        struct pkv_args_linear args = {.x = act_from(&a, 0), .rows = TOKENS, .part_count = 4};
        for (uint32_t p = 0; p < 4; p++) {
            args.part[p] = (struct pkv_linear_part){matrix_of(&w[p], p % 2 == 0), pkvi_addr(y[p]),
                                                    STRIDE, p >= 2};
            for (uint32_t i = 0; i < TOKENS * STRIDE; i++) {
                y[p][i] = (float)i;
            }
        }
        struct pkvi_cpu_stream stream = {pools[2]};
        assert_ok(kernels[k]->launch(&stream, &args));
        for (uint32_t p = 0; p < 4; p++) {
            run(kernels[k], 2, &w[p], &a, 0, TOKENS, alone);
            for (uint32_t i = 0; i < TOKENS * STRIDE; i++) {
                const uint32_t o = i % STRIDE, token = i / STRIDE;
                float want = (float)i;
                if (o < outputs[p]) {
                    const float sum = alone[token * outputs[p] + o];
                    const float value = p % 2 == 0 ? sum + w[p].bias[o] : sum;
                    want = p >= 2 ? (float)i + value : value;
                }
                assert_same_bits(&y[p][i], &want, 1, kernels[k]->variant, types[p]);
            }
        }
    }
    for (uint32_t p = 0; p < 4; p++) {
        weights_free(&w[p]);
        free(y[p]);
    }
    free(alone);
    acts_free(&a);
}

static void test_embed__any_rows__scaled_values(void **state)
{
    (void)state;
    enum { VOCAB = 50, WIDTH = 256, TOKENS = 7 };
    static const int32_t ids[TOKENS] = {0, 49, 16, 15, 31, 7, 49};
    static float x[TOKENS * WIDTH], want[WIDTH];
    const struct pkv_kernel *kernels[8];
    const uint32_t count = pkvt_kernels(PKV_OP_EMBED, kernels);
    struct pkvt_rng rng = {9};
    for (uint32_t t = 0; t < PKV_W_COUNT; t++) {
        struct weights w = weights_random((enum pkv_weight_type)t, VOCAB, WIDTH, &rng);
        const struct pkv_args_embed args = {matrix_of(&w, false), pkvi_addr(ids), pkvi_addr(x),
                                            1.5f, TOKENS};
        for (uint32_t k = 0; k < count; k++) {
            struct pkvi_cpu_stream stream = {pools[2]};
            assert_ok(kernels[k]->launch(&stream, &args));
            for (uint32_t i = 0; i < TOKENS * WIDTH; i++) {
                const uint64_t row = (uint64_t)ids[i / WIDTH];
                if (i % WIDTH == 0) {
                    pkvi_weight_dequantize(
                        w.type, w.source + row * pkvi_weight_row_bytes(w.type, WIDTH), WIDTH, want);
                }
                assert_true(x[i] == want[i % WIDTH] * 1.5f);
            }
        }
        weights_free(&w);
    }
}

static int open_pools(void **state)
{
    (void)state;
    return pkvi_pool_open(1, &pools[1]) == PKV_OK && pkvi_pool_open(2, &pools[2]) == PKV_OK ? 0
                                                                                            : -1;
}

static int close_pools(void **state)
{
    (void)state;
    pkvi_pool_close(pools[1]);
    pkvi_pool_close(pools[2]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear__every_type__right_and_equal),
        cmocka_unit_test(test_linear__any_batch_and_threads__same_bits),
        cmocka_unit_test(test_linear__parts_bias_and_residual__as_separate_sums),
        cmocka_unit_test(test_embed__any_rows__scaled_values),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
