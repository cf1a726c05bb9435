/* THIN: which entries of a zone stay, and where those from the front go, against a list by hand. */
#include "tests/support/kv_case.h"

#include <stdlib.h>
#include <string.h>

struct shape {
    enum pkv_kv_type type;
    uint32_t kv_heads, head_dim, tokens, first_key, zone_first, zone, stay, levels;
};

static uint8_t *entry_at(const struct pkv_kv_view *view, const struct shape *s, uint32_t head,
                         uint32_t key)
{
    const uint32_t bytes = pkvi_kv_entry_bytes(s->type, s->head_dim);
    const pkv_addr *page = PKV_AT(const pkv_addr, view->page);
    return PKV_AT(uint8_t,
                  page[key / PKV_PAGE_TOKENS * view->page_stride + head * view->head_stride]) +
           key % PKV_PAGE_TOKENS * bytes;
}

/* token_out[key]: whose entry a key holds afterwards; from first_key + zone - stay on. */
static void model(const struct shape *s, const float *sum, uint32_t *token_out)
{
    const uint32_t begin = s->first_key + s->zone - s->stay;
    bool dropped[512] = {false};
    uint32_t mover[512], movers = 0, used = 0;
    for (uint32_t i = 0; i < s->zone; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < s->zone; j++) {
            better += sum[j] > sum[i] || (sum[j] == sum[i] && j < i);
        }
        dropped[s->zone_first + i] = better >= s->stay;
    }
    for (uint32_t key = s->first_key; key < begin; key++) {
        mover[movers] = key;
        movers += !dropped[key];
    }
    for (uint32_t key = begin; key < s->tokens; key++) {
        token_out[key] = dropped[key] ? mover[used++] : key;
    }
    assert_int_equal(used, movers);
}

static void check(uint32_t cpu, const struct shape *s)
{
    struct pkvt_kv_case kv = {.type = s->type,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->head_dim,
                              .sequences = 1,
                              .tokens = {s->tokens}};
    struct pkvt_rng rng = {s->zone_first + s->zone};
    const uint32_t bytes = pkvi_kv_entry_bytes(s->type, s->head_dim), stride = s->tokens + 5;
    pkvt_kv_case_open(&kv, 3);
    float *plain = pkvt_alloc((uint64_t)s->kv_heads * stride * sizeof *plain);
    float *weighted = pkvt_alloc((uint64_t)s->kv_heads * stride * sizeof *weighted);
    uint8_t *before = pkvt_alloc((uint64_t)s->kv_heads * s->tokens * bytes);
    float sum[512] = {0};
    uint32_t token[512];
    for (uint32_t i = 0; i < s->zone; i++) {
        for (uint32_t h = 0; h < s->kv_heads; h++) { /* all exact */
            const float a = (float)pkvt_rng_below(&rng, s->levels) / 8.0f;
            const float b = (float)pkvt_rng_below(&rng, s->levels) / 8.0f;
            plain[h * stride + s->zone_first + i] = a;
            weighted[h * stride + s->zone_first + i] = b;
            sum[i] += 0.5f * a + 0.25f * b;
        }
    }
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        for (uint32_t t = 0; t < s->tokens; t++) {
            memcpy(before + (h * s->tokens + t) * bytes, entry_at(&kv.views[0], s, h, t), bytes);
        }
    }
    struct pkv_args_thin args = {.view = kv.views[0],
                                 .weighted = pkvi_addr(weighted),
                                 .kv_type = s->type,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .zone_first = s->zone_first,
                                 .zone = s->zone,
                                 .stay = s->stay,
                                 .first_key = s->first_key,
                                 .scale = 0.5f,
                                 .weighted_scale = 0.25f};
    args.view.score = pkvi_addr(plain);
    args.view.score_stride = stride;
    pkvt_run(cpu, PKV_OP_THIN, &args, 2);
    model(s, sum, token);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        for (uint32_t key = s->first_key + s->zone - s->stay; key < s->tokens; key++) {
            assert_memory_equal(entry_at(&kv.views[0], s, h, key),
                                before + (h * s->tokens + token[key]) * bytes, bytes);
        }
    }
    free(before);
    free(weighted);
    free(plain);
    pkvt_kv_case_close(&kv);
}

static void test_thin__every_shape__as_the_list(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 3, 64, 300, 0, 100, 16, 7, 1000},
        {PKV_KV_F16, 1, 64, 200, 37, 64, 16, 1, 3},
        {PKV_KV_Q8_0, 2, 32, 110, 5, 80, 16, 14, 30},
        {PKV_KV_F32, 2, 10, 90, 0, 0, 16, 7, 9},
        {PKV_KV_BF16, 2, 48, 65, 3, 5, 16, 3, 2},
        {PKV_KV_F16, 2, 16, 320, 9, 12, 255, 100, 40},
        {PKV_KV_F16, 2, 16, 64, 1, 20, 16, 16, 40},
        {PKV_KV_F16, 1, 16, 40, 0, 1, 1, 1, 4},
        {PKV_KV_F16, 1, 16, 33, 0, 4, 4, 1, 1},
    };
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check(cpu, &shapes[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thin__every_shape__as_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
