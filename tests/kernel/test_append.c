/* Append: every variant writes what the format allows, to the right slot, and nothing else. */
#include "tests/support/kernel_test.h"
#include "tests/support/kv_case.h"
#include "tests/support/tolerance.h"

#include <stdlib.h>
#include <string.h>

/* Error that the format allows for x in a block whose largest magnitude is max. */
static double allowed(enum pkv_kv_type type, double x, double max)
{
    switch (type) {
    case PKV_KV_F16:
        return 0.5 * PKVT_EPS_F16 * fabs(x) + 0x1p-25;
    case PKV_KV_BF16:
        return 0.5 * PKVT_EPS_BF16 * fabs(x);
    case PKV_KV_Q8_0:
        return 0.51 * max / 127.0 * (1 + PKVT_EPS_F16) + 127 * 0x1p-25;
    case PKV_KV_F32:
    case PKV_KV_TYPE_COUNT:
        break;
    }
    return 0;
}

static void check_values(const struct pkvt_kv_case *c, const float *x, uint32_t position,
                         uint32_t head, uint32_t which)
{
    double got[512];
    pkvt_kv_case_read(c, 0, head, position, which, got);
    for (uint32_t i = 0; i < c->head_dim; i++) {
        double max = 0;
        for (uint32_t j = i / 32 * 32; j < c->head_dim && j < i / 32 * 32 + 32; j++) {
            max = fmax(max, fabs((double)x[j]));
        }
        if (!(fabs(got[i] - x[i]) <= allowed(c->type, x[i], max))) {
            fail_msg("%s: position %u channel %u: %.9g from %.9g", pkv_kv_type_name(c->type),
                     position, i, got[i], (double)x[i]);
        }
    }
}

/* Appends spans of one sequence again with `cpu` and compares whole pages with the scalar's. */
static void check_case(uint32_t cpu, enum pkv_kv_type type, uint32_t kv_heads, uint32_t head_dim)
{
    struct pkvt_kv_case c = {
        .type = type, .kv_heads = kv_heads, .head_dim = head_dim, .sequences = 1, .tokens = {75}};
    pkvt_kv_case_open(&c, head_dim);
    for (uint32_t t = 0; t < c.tokens[0]; t++) {
        for (uint32_t h = 0; h < kv_heads; h++) {
            check_values(&c, c.k[0] + t * c.stride + h * head_dim, t, h, 0);
            check_values(&c, c.v[0] + t * c.stride + h * head_dim, t, h, 1);
        }
    }
    uint64_t bytes = (uint64_t)c.views[0].ring_pages * kv_heads * PKV_PAGE_TOKENS *
                     pkvi_kv_entry_bytes(type, head_dim);
    uint8_t *scalar = pkvt_alloc(bytes);
    memcpy(scalar, c.pages[0], bytes);
    memset(c.pages[0], 0xff, bytes);
    struct pkv_row_span *spans = pkvt_alloc(3 * sizeof *spans);
    spans[0] = (struct pkv_row_span){.first_row = 0, .rows = 1, .first_position = 0};
    spans[1] = (struct pkv_row_span){.first_row = 1, .rows = 33, .first_position = 1};
    spans[2] = (struct pkv_row_span){.first_row = 34, .rows = 41, .first_position = 34};
    struct pkv_args_append args = {.k = pkvi_addr(c.k[0]),
                                   .v = pkvi_addr(c.v[0]),
                                   .views = pkvi_addr(c.views),
                                   .spans = pkvi_addr(spans),
                                   .kv_type = type,
                                   .span_count = 3,
                                   .rows = 75,
                                   .kv_heads = kv_heads,
                                   .head_dim = head_dim,
                                   .k_stride = c.stride,
                                   .v_stride = c.stride};
    pkvt_run(cpu, PKV_OP_APPEND, &args, 2);
    assert_memory_equal(c.pages[0], scalar, bytes);
    free(scalar);
    free(spans);
    pkvt_kv_case_close(&c);
}

static void test_append__every_variant_type_and_shape__right_bytes(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t type = 0; type < PKV_KV_TYPE_COUNT; type++) {
            check_case(cpu, (enum pkv_kv_type)type, 3, 64);
            check_case(cpu, (enum pkv_kv_type)type, 1, 256);
            check_case(cpu, (enum pkv_kv_type)type, 2, 96);
            if (type != PKV_KV_Q8_0) {
                check_case(cpu, (enum pkv_kv_type)type, 2, 10);
                check_case(cpu, (enum pkv_kv_type)type, 1, 80);
            }
        }
    }
}

/* All that a kernel reads and writes, in memory that every device reaches. */
struct one_entry {
    float x[32];
    uint8_t entry[256];
    pkv_addr page;
    struct pkv_kv_view view;
    struct pkv_row_span span;
};

static void append_one(uint32_t cpu, enum pkv_kv_type type, struct one_entry *one)
{
    one->page = pkvi_addr(one->entry);
    one->view = (struct pkv_kv_view){
        .page = pkvi_addr(&one->page), .head_stride = 1, .page_stride = 1, .ring_pages = 1};
    one->span = (struct pkv_row_span){.rows = 1};
    struct pkv_args_append args = {.k = pkvi_addr(one->x),
                                   .v = pkvi_addr(one->x),
                                   .views = pkvi_addr(&one->view),
                                   .spans = pkvi_addr(&one->span),
                                   .kv_type = type,
                                   .span_count = 1,
                                   .rows = 1,
                                   .kv_heads = 1,
                                   .head_dim = 32,
                                   .k_stride = 32,
                                   .v_stride = 32};
    pkvt_run(cpu, PKV_OP_APPEND, &args, 1);
}

/* Subnormals, overflow, signed zero and NaN as the scalar conversion has them. */
static void test_append__special_values__as_the_scalar_conversion(void **state)
{
    (void)state;
    static const float x[32] = {0.0f,     -0.0f,    1e-8f,   -6e-8f,   3e-5f,   65504.0f,
                                65519.9f, 65520.0f, -1e30f,  INFINITY, -1e-30f, 1.0009766f,
                                0.1f,     1e-45f,   2048.5f, -2049.5f};
    struct one_entry *scalar = pkvt_alloc(sizeof *scalar), *other = pkvt_alloc(sizeof *other);
    memcpy(scalar->x, x, sizeof x);
    memcpy(other->x, x, sizeof x);
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t type = 0; type < PKV_KV_TYPE_COUNT; type++) {
            const uint32_t bytes = pkvi_kv_entry_bytes((enum pkv_kv_type)type, 32);
            append_one(PKV_CPU_SCALAR, (enum pkv_kv_type)type, scalar);
            append_one(cpu, (enum pkv_kv_type)type, other);
            assert_memory_equal(scalar->entry, other->entry, bytes);
        }
    }
    free(scalar);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append__every_variant_type_and_shape__right_bytes),
        cmocka_unit_test(test_append__special_values__as_the_scalar_conversion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
