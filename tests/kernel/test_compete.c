/* COMPETE: what leaves the ring against a plain model of the slots, ragged, free slots, ties,
 * the bitmap of resident tokens. */
#include "tests/support/hot_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    enum pkv_kv_type type;
    uint32_t kv_heads, head_dim, tokens, end, slots, first_key[3], least_key[3], leave, levels;
    bool resident;
};

/* Words of a KV head's bitmap: more than its tokens need. */
#define WORDS 40u

static void mark(uint32_t *resident, int32_t token, bool here)
{
    if (token >= 0) {
        const uint32_t bit = 1u << token % 32;
        resident[token / 32] = here ? resident[token / 32] | bit : resident[token / 32] & ~bit;
    }
}

/* The same with arrays: token and score of every key, and which tokens are in slots. */
static void model(const struct shape *s, uint32_t head, const float *score, float *score_out,
                  int32_t *token, uint32_t *resident)
{
    uint32_t first = s->first_key[head];
    memcpy(score_out, score, (s->slots + s->tokens - s->end) * sizeof *score);
    for (uint32_t i = 0; i < s->leave; i++) {
        uint32_t slot = s->least_key[head];
        if (first > slot) {
            slot = --first;
        } else {
            for (uint32_t k = slot + 1; k < s->slots; k++) {
                slot = score_out[k] < score_out[slot] ? k : slot;
            }
            if (!(score[s->slots + i] > score_out[slot])) {
                continue;
            }
        }
        score_out[slot] = score[s->slots + i];
        mark(resident, token[slot], false);
        mark(resident, (int32_t)(s->end + i), true);
        token[slot] = (int32_t)(s->end + i);
    }
    for (uint32_t i = s->leave; i < s->tokens - s->end; i++) {
        score_out[s->slots + i - s->leave] = score[s->slots + i];
    }
}

static uint32_t *bitmap_of(const struct shape *s, const int32_t *token)
{
    uint32_t *resident = pkvt_alloc(s->kv_heads * WORDS * sizeof *resident);
    memset(resident, 0, s->kv_heads * WORDS * sizeof *resident);
    for (uint32_t i = 0; i < s->kv_heads * s->slots; i++) {
        mark(resident + i / s->slots * WORDS, token[i], true);
    }
    return resident;
}

static void check(uint32_t cpu, const struct shape *s)
{
    struct pkvt_kv_case kv = {.type = s->type,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->head_dim,
                              .sequences = 1,
                              .tokens = {s->tokens}};
    struct pkvt_rng rng = {s->slots};
    pkvt_kv_case_open(&kv, 7);
    struct pkvt_hot_case hot = {.from = &kv, .slots = s->slots, .end = s->end};
    memcpy(hot.first_key, s->first_key, sizeof s->first_key);
    pkvt_hot_case_open(&hot, 9, false);
    /* Room for what the free slots take: pages are there. */
    const uint32_t stride = hot.view->score_stride, ring = s->tokens - s->end;
    for (uint32_t i = 0; i < s->kv_heads * stride; i++) {
        hot.score[i] = (float)pkvt_rng_below(&rng, s->levels);
    }
    hot.score[s->first_key[0]] = INFINITY; /* a sink */
    uint32_t *least = pkvt_alloc(sizeof s->least_key);
    memcpy(least, s->least_key, sizeof s->least_key);
    float *before = pkvt_alloc((uint64_t)s->kv_heads * stride * sizeof *before);
    float *want = pkvt_alloc((s->slots + ring) * sizeof *want);
    int32_t *token = pkvt_alloc((uint64_t)s->kv_heads * s->slots * sizeof *token);
    memcpy(before, hot.score, (uint64_t)s->kv_heads * stride * sizeof *before);
    memcpy(token, hot.token, (uint64_t)s->kv_heads * s->slots * sizeof *token);
    uint32_t *resident = bitmap_of(s, hot.token), *resident_want = bitmap_of(s, hot.token);
    const struct pkv_args_compete args = {.hot = *hot.view,
                                          .slot_token = pkvi_addr(hot.token),
                                          .least_key = pkvi_addr(least),
                                          .resident = s->resident ? pkvi_addr(resident) : 0,
                                          .resident_stride = s->resident ? WORDS : 0,
                                          .kv_type = s->type,
                                          .kv_heads = s->kv_heads,
                                          .head_dim = s->head_dim,
                                          .slots = s->slots,
                                          .first_token = s->end,
                                          .leave = s->leave,
                                          .tokens = ring};
    pkvt_run(cpu, PKV_OP_COMPETE, &args, 2);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        int32_t *expected = token + h * s->slots;
        model(s, h, before + h * stride, want, expected, resident_want + h * WORDS);
        const uint32_t free_slots = s->first_key[h] - s->least_key[h];
        const uint32_t taken = s->leave < free_slots ? s->leave : free_slots;
        const uint32_t first = s->first_key[h] - taken;
        assert_memory_equal(hot.token + h * s->slots, expected, s->slots * sizeof *expected);
        assert_memory_equal(hot.score + h * stride + first, want + first,
                            (s->slots + ring - s->leave - first) * sizeof *want);
        for (uint32_t key = first; key < s->slots; key++) {
            assert_true(pkvt_hot_case_holds(&hot, h, key, (uint32_t)expected[key]));
        }
    }
    if (s->resident) {
        assert_memory_equal(resident, resident_want, s->kv_heads * WORDS * sizeof *resident);
    }
    free(resident);
    free(resident_want);
    free(least);
    free(token);
    free(want);
    free(before);
    pkvt_hot_case_close(&hot);
    pkvt_kv_case_close(&kv);
}

static void test_compete__every_shape__as_the_model(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {PKV_KV_F16, 3, 64, 300, 224, 64, {0, 10, 52}, {0, 0, 32}, 32, 1000, false},
        {PKV_KV_F16, 1, 64, 700, 608, 96, {0}, {0}, 64, 6, false},
        {PKV_KV_Q8_0, 2, 32, 110, 64, 64, {32, 31}, {32, 0}, 32, 30, false},
        {PKV_KV_F32, 2, 10, 96, 64, 32, {1, 0}, {0, 0}, 32, 9, false},
        {PKV_KV_BF16, 2, 48, 65, 32, 32, {0, 5}, {0, 0}, 32, 2, false},
        {PKV_KV_F16, 2, 16, 1120, 640, 320, {0, 9}, {0, 0}, 160, 40, false},
        {PKV_KV_F16, 3, 64, 300, 224, 64, {0, 10, 52}, {0, 0, 32}, 32, 1000, true},
        {PKV_KV_F16, 1, 64, 700, 608, 96, {0}, {0}, 64, 6, true},
        {PKV_KV_Q8_0, 2, 32, 110, 64, 64, {32, 31}, {32, 0}, 32, 30, true},
        {PKV_KV_F32, 2, 10, 96, 64, 32, {1, 0}, {0, 0}, 32, 9, true},
        {PKV_KV_BF16, 2, 48, 65, 32, 32, {0, 5}, {0, 0}, 32, 2, true},
        {PKV_KV_F16, 2, 16, 1120, 640, 320, {0, 9}, {0, 0}, 160, 40, true},
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
        cmocka_unit_test(test_compete__every_shape__as_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
