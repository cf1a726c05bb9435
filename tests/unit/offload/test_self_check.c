/* The self-check: finds nothing where nothing is wrong, and a bit that changed in host memory. */
#include "tests/support/golden_model.h"

#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/session/session.h"

#define VOCAB 320u
#define PROMPT 500u

static int32_t ids[PROMPT + 200];

struct checked {
    struct pkvt_engine engine;
    struct pkv_seq *seq;
};

/* Every step is checked; the budget holds a part of the layers. */
static void open_checked(struct checked *c, const char *model, uint32_t percent, uint32_t steps)
{
    char file[128];
    struct pkvt_engine plain;
    struct pkv_memory_plan plan;
    struct pkvt_engine_options options = {.context = 700, .step_rows = 64};
    const float *logits = NULL;
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", model);
    pkvt_engine_open(&plain, pkvt_path(file), &options);
    assert_ok(pkv_session_plan(plain.model, &plain.config, &plan));
    pkvt_engine_close(&plain);
    options.budget_bytes = plan.kv_token_bytes * 700 * percent / 100;
    options.check_steps = steps;
    pkvt_engine_open(&c->engine, pkvt_path(file), &options);
    assert_ok(pkv_seq_open(c->engine.session, &c->seq));
    assert_ok(pkv_prompt_run(c->engine.session, c->seq, ids, PROMPT, NULL, &logits));
}

static struct pkv_kv_report run_steps(struct checked *c, uint32_t steps)
{
    struct pkv_kv_report report;
    const float *logits = NULL;
    for (uint32_t i = 0; i < steps; i++) {
        const struct pkv_step_part part = {c->seq, ids + i, 1, 1};
        assert_ok(pkv_step_run(c->engine.session, &part, 1, &logits));
    }
    pkv_session_kv_report(c->engine.session, &report);
    return report;
}

static void test_check__nothing_wrong__finds_nothing(void **state)
{
    (void)state;
    static const char *const models[] = {"llama_q4_1", "gemma3", "qwen3"};
    for (uint32_t m = 0; m < 3; m++) {
        for (uint32_t percent = 92; percent < 100; percent += 5) {
            struct checked c;
            open_checked(&c, models[m], percent, 1);
            const struct pkv_kv_report report = run_steps(&c, 40);
            assert_true(report.checks >= 30);
            assert_int_equal(report.check_differences, 0);
            assert_true(report.check_least_coverage == 1.0);
            pkvt_engine_close(&c.engine);
        }
    }
}

static void test_check__every_fifth_step__that_many(void **state)
{
    (void)state;
    struct checked c;
    open_checked(&c, "llama_q4_1", 60, 5);
    assert_int_equal(run_steps(&c, 41).checks, 8);
    pkvt_engine_close(&c.engine);
}

/* In a layer that is whole on the device the host's copy is not read, so only a check can see it.
 */
static void test_check__a_bit_changed_on_the_host__is_found(void **state)
{
    (void)state;
    struct checked c;
    open_checked(&c, "llama_q4_1", 95, 1);
    struct pkvi_tier *tier = c.engine.session->tier;
    uint32_t dense = 0;
    assert_int_equal(run_steps(&c, 4).check_differences, 0);
    while (!tier->layer[dense].global || tier->seq[0].state[dense].streamed) {
        dense++;
        assert_true(dense < tier->config.layers);
    }
    const uint64_t block = tier->seq[0].state[dense].block[7];
    *((uint8_t *)pkvi_host(pkvi_host_block_addr(tier, (uint32_t)block)) + 1) ^= 0x40;
    const struct pkv_kv_report report = run_steps(&c, 10);
    assert_true(report.check_differences > 0);
    assert_true(report.check_differences < report.checks); /* other layers are as they were */
    assert_true(report.check_least_coverage != 1.0);
    pkvt_engine_close(&c.engine);
}

int main(void)
{
    struct pkvt_rng rng = {.state = 4};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, VOCAB);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check__nothing_wrong__finds_nothing),
        cmocka_unit_test(test_check__every_fifth_step__that_many),
        cmocka_unit_test(test_check__a_bit_changed_on_the_host__is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
