/*
 * Recall within whole models: what a step comes to depends neither on the order in which streams go
 * on, nor on the stream that recalls, nor on company, forks and parking; and each of its two edges,
 * taken away, is seen.
 */
#include "tests/support/golden_model.h"

#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/session/session.h"

#define CONTEXT 1000u
#define PROMPT 700u
#define STEPS 40u
#define VOCAB 320u
#define SEEDS (PKVT_SANITIZED ? 2u : 8u)

static const struct {
    const char *model;
    uint64_t budget_bytes;
} cases[] = {{"llama", 240 << 10}, {"qwen3", 400 << 10}, {"gemma3", 150 << 10}};
static const char *const policies[] = {"pivot", "pivot-ahead", "prevstep"};

/* A sanitized build takes one policy a case: thirty times as long for all of them. */
static bool is_taken(uint32_t number, uint32_t policy)
{
    return !PKVT_SANITIZED || policy == number % 3;
}

static struct pkv_calibration *calibration; /* of the case at hand */

static int32_t id_of(uint32_t i)
{
    return (int32_t)((i * 2654435761u >> 16) % 300u);
}

static void open_case(struct pkvt_engine *engine, uint32_t number, const char *policy,
                      enum pkv_schedule schedule, uint64_t seed)
{
    char path[64];
    const struct pkvt_engine_options options = {.threads = 2,
                                                .context = CONTEXT,
                                                .sequences = 2,
                                                .parked = 1,
                                                .step_rows = 64,
                                                .recent = 16,
                                                .policy = policy,
                                                .budget_bytes = cases[number].budget_bytes,
                                                .schedule = schedule,
                                                .calibration = calibration,
                                                .seed = seed};
    snprintf(path, sizeof path, "golden/tiny/%s.gguf", cases[number].model);
    pkvt_engine_open(engine, pkvt_path(path), &options);
    assert_true(engine->info.vocab <= VOCAB);
}

static void open_calibration(uint32_t number)
{
    char path[64];
    struct pkvt_engine engine;
    int32_t ids[256];
    const struct pkvt_engine_options options = {.threads = 1, .context = 300};
    snprintf(path, sizeof path, "golden/tiny/%s.gguf", cases[number].model);
    pkvt_engine_open(&engine, pkvt_path(path), &options);
    for (uint32_t i = 0; i < 256; i++) {
        ids[i] = id_of(i + 5000);
    }
    assert_ok(pkv_calibration_run(engine.model, ids, 256, &calibration));
    pkvt_engine_close(&engine);
}

static void close_calibration(void)
{
    pkv_calibration_close(calibration);
    calibration = NULL;
}

static struct pkv_seq *open_prompt(struct pkvt_engine *engine, uint32_t shift)
{
    static int32_t ids[PROMPT];
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = id_of(i + shift);
    }
    assert_ok(pkv_seq_open(engine->session, &seq));
    assert_ok(pkv_prompt_run(engine->session, seq, ids, PROMPT, NULL, &logits));
    return seq;
}

/* Steps [first, end) behind the prompt, their logits to out[STEPS][VOCAB]; `other`, if there is
 * one, goes along. */
static void run_steps(struct pkvt_engine *engine, struct pkv_seq *seq, struct pkv_seq *other,
                      uint32_t first, uint32_t end, float *out)
{
    for (uint32_t i = first; i < end; i++) {
        const int32_t id = id_of(PROMPT + i), beside = id_of(9000 + i);
        const float *logits = NULL;
        const struct pkv_step_part parts[] = {
            {.seq = seq, .ids = &id, .count = 1, .logit_rows = 1},
            {.seq = other, .ids = &beside, .count = 1, .logit_rows = 1}};
        assert_ok(pkv_step_run(engine->session, parts, other ? 2 : 1, &logits));
        memcpy(out + (size_t)i * VOCAB, logits, engine->info.vocab * sizeof *out);
    }
}

static uint64_t recalled(const struct pkvt_engine *engine)
{
    struct pkv_kv_report report;
    pkv_session_kv_report(engine->session, &report);
    return report.recalled_entries;
}

static float *new_logits(void)
{
    float *logits = calloc((size_t)STEPS * VOCAB, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static void run_alone(uint32_t number, const char *policy, enum pkv_schedule schedule,
                      uint64_t seed, uint32_t dropped_edges, float *out)
{
    struct pkvt_engine engine;
    open_case(&engine, number, policy, schedule, seed);
    struct pkv_seq *seq = open_prompt(&engine, 0);
    run_steps(&engine, seq, NULL, 0, 1, out);
    /* What comes too early finds what the step before left: it is wrong, not wild. */
    engine.session->tier->config.dropped_edges = dropped_edges;
    run_steps(&engine, seq, NULL, 1, STEPS, out);
    assert_true(recalled(&engine) > 0);
    pkvt_engine_close(&engine);
}

static void test_recall__any_order_of_streams__same_logits(void **state)
{
    (void)state;
    static const enum pkv_schedule schedules[] = {PKV_SCHEDULE_LAZY, PKV_SCHEDULE_RANDOM};
    float *want = new_logits(), *got = new_logits();
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        open_calibration(c);
        for (uint32_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            if (!is_taken(c, p)) {
                continue;
            }
            run_alone(c, policies[p], PKV_SCHEDULE_WORKERS, 0, 0, want);
            for (uint64_t seed = 1; seed <= (c == 0 ? SEEDS : 2); seed++) {
                run_alone(c, policies[p], schedules[seed % 2], seed, 0, got);
                assert_memory_equal(want, got, (size_t)STEPS * VOCAB * sizeof *want);
            }
        }
        close_calibration();
    }
    free(want);
    free(got);
}

static void test_recall__an_edge_less__is_seen(void **state)
{
    (void)state;
    static const enum pkvi_edge edges[] = {PKVI_EDGE_QUERY_RECALL, PKVI_EDGE_RECALL_ATTEND};
    float *want = new_logits(), *got = new_logits();
    open_calibration(0);
    for (uint32_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        if (!is_taken(0, p)) {
            continue;
        }
        run_alone(0, policies[p], PKV_SCHEDULE_WORKERS, 0, 0, want);
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t seen = 0;
            for (uint64_t seed = 1; seed <= SEEDS; seed++) {
                run_alone(0, policies[p], PKV_SCHEDULE_RANDOM, seed, 1u << edges[e], got);
                seen += memcmp(want, got, (size_t)STEPS * VOCAB * sizeof *want) != 0;
            }
            if (seen < SEEDS / 2) {
                fail_msg("%s without edge %d: seen at %u of %u seeds", policies[p], (int)edges[e],
                         seen, SEEDS);
            }
        }
    }
    close_calibration();
    free(want);
    free(got);
}

static void test_recall__company_forks_and_parking__same_logits(void **state)
{
    (void)state;
    float *want = new_logits(), *got = new_logits(), *fork = new_logits();
    for (uint32_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct pkvt_engine engine;
        struct pkv_seq *copy = NULL;
        open_calibration(c);
        open_case(&engine, c, "pivot", PKV_SCHEDULE_WORKERS, 0);
        struct pkv_seq *seq = open_prompt(&engine, 0);
        run_steps(&engine, seq, NULL, 0, STEPS, want);
        pkv_seq_close(seq);
        seq = open_prompt(&engine, 0);
        struct pkv_seq *other = open_prompt(&engine, 300);
        run_steps(&engine, seq, other, 0, STEPS / 2, got);
        pkv_seq_close(other);
        assert_ok(pkv_seq_fork(seq, &copy));
        assert_ok(pkv_seq_park(copy));
        memcpy(fork, got, (size_t)STEPS * VOCAB * sizeof *got);
        run_steps(&engine, seq, NULL, STEPS / 2, STEPS, got);
        assert_memory_equal(want, got, (size_t)STEPS * VOCAB * sizeof *want);
        pkv_seq_close(seq);
        assert_ok(pkv_seq_unpark(copy));
        run_steps(&engine, copy, NULL, STEPS / 2, STEPS, fork);
        assert_memory_equal(want, fork, (size_t)STEPS * VOCAB * sizeof *want);
        pkvt_engine_close(&engine);
        close_calibration();
    }
    free(want);
    free(got);
    free(fork);
}

static void test_recall__calibration_of_another_model__refused(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_session *session = NULL;
    const struct pkvt_engine_options options = {.threads = 1, .context = 300};
    open_calibration(0);
    pkvt_engine_open(&engine, pkvt_path("golden/tiny/qwen3.gguf"), &options);
    struct pkv_session_config config = engine.config;
    config.context_tokens = CONTEXT;
    config.kv_recent = 16;
    config.kv_policy = PKV_KV_HOT;
    config.policy = pkv_policy_find("pivot");
    config.kv_budget_bytes = 400 << 10;
    config.calibration = calibration;
    assert_int_equal(pkv_session_open(engine.model, &config, &session), PKV_ERR_INVALID);
    assert_null(session);
    pkvt_engine_close(&engine);
    close_calibration();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall__any_order_of_streams__same_logits),
        cmocka_unit_test(test_recall__an_edge_less__is_seen),
        cmocka_unit_test(test_recall__calibration_of_another_model__refused),
        cmocka_unit_test(test_recall__company_forks_and_parking__same_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
