/*
 * The n-th device call fails, for every n of a short run of a session whose layers are streamed:
 * opening, a prompt, a cut, steps, a fork, parking, saving, loading, another prompt. Every call
 * tells the failure or succeeds with the right bits; a session that says it is broken stays so;
 * nothing leaks (ASan).
 */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/pivotkv.h"
#include "runtime/device/dev_fault.h"
#include "runtime/device/device.h"

#define CONTEXT 700u
#define VOCAB 320u
#define PROMPT 400u
#define RESULTS 5

static struct pkv_device *below, *device;
static struct pkv_model *model;
static int32_t ids[CONTEXT];
static char path[64];
static float want[RESULTS][VOCAB];

static struct pkv_session_config streaming(void)
{
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = CONTEXT;
    config.step_rows = 128;
    config.kv_policy = PKV_KV_FULL;
    config.kv_recent = 32;
    config.sequences = 2;
    config.parked_sequences = 1;
    config.kv_budget_bytes = 1;
    struct pkv_memory_plan plan;
    assert_int_equal(pkv_session_plan(model, &config, &plan), PKV_ERR_RANGE);
    unsigned long long least = 0;
    assert_int_equal(sscanf(strrchr(pkv_error_text(), ' '), "%llu", &least), 1);
    config.kv_budget_bytes = least * 1024;
    return config;
}

static enum pkv_status keep(enum pkv_status status, const float *const *logits, float out[VOCAB])
{
    if (status == PKV_OK) {
        memcpy(out, *logits, VOCAB * sizeof *out);
    }
    return status;
}

static enum pkv_status one_step(struct pkv_seq *seq, struct pkv_session *session, float out[VOCAB])
{
    const float *logits = NULL;
    const struct pkv_step_part part = {seq, ids + 7, 1, 1};
    return keep(pkv_step_run(session, &part, 1, &logits), &logits, out);
}

/* A fork goes its own way while the first one is parked, and then on from its file. */
static enum pkv_status fork_park_save(struct pkv_session *session, struct pkv_seq *seq,
                                      float got[RESULTS][VOCAB])
{
    struct pkv_seq *fork = NULL;
    struct pkv_saved *saved = NULL;
    enum pkv_status status = pkv_seq_fork(seq, &fork);
    status = status == PKV_OK ? pkv_seq_park(seq) : status;
    status = status == PKV_OK ? one_step(fork, session, got[3]) : status;
    const struct pkv_saved_info info = {.ids = ids, .id_count = CONTEXT};
    status = status == PKV_OK ? pkv_seq_save(fork, path, &info) : status;
    assert_int_equal(access(path, F_OK) == 0, status == PKV_OK); /* whole or not at all */
    pkv_seq_close(fork);
    status = status == PKV_OK ? pkv_saved_open(path, &saved) : status;
    fork = NULL;
    status = status == PKV_OK ? pkv_seq_load(session, saved, &fork) : status;
    pkv_saved_close(saved);
    (void)unlink(path);
    assert_int_equal(fork != NULL, status == PKV_OK);
    status = status == PKV_OK ? one_step(fork, session, got[4]) : status;
    pkv_seq_close(fork);
    return status == PKV_OK ? pkv_seq_unpark(seq) : status;
}

static enum pkv_status work(struct pkv_session *session, struct pkv_seq *seq,
                            float got[RESULTS][VOCAB])
{
    const float *logits = NULL;
    enum pkv_status status = pkv_prompt_run(session, seq, ids, PROMPT, NULL, &logits);
    status = status == PKV_OK ? keep(status, &logits, got[0]) : status;
    if (status == PKV_OK) {
        status = pkv_seq_truncate(seq, 333);
    }
    for (uint32_t i = 0; status == PKV_OK && i < 40; i++) {
        const struct pkv_step_part part = {seq, ids + 333 + i, 1, 1};
        status = keep(pkv_step_run(session, &part, 1, &logits), &logits, got[1]);
    }
    if (status == PKV_OK) {
        status = fork_park_save(session, seq, got);
    }
    if (status == PKV_OK) {
        status = keep(pkv_prompt_run(session, seq, ids, 200, NULL, &logits), &logits, got[2]);
    }
    return status;
}

/* What the run ends with; *calls_out: device calls that it made. */
static enum pkv_status run(const struct pkv_session_config *config, float got[RESULTS][VOCAB],
                           uint64_t *calls_out)
{
    struct pkv_session *session = NULL;
    struct pkv_seq *seq = NULL;
    enum pkv_status status = pkv_session_open(model, config, &session);
    if (status == PKV_OK) {
        assert_ok(pkv_seq_open(session, &seq));
        status = work(session, seq, got);
        if (status != PKV_OK) { /* it goes on, or says that it does not */
            const float *logits = NULL;
            const struct pkv_step_part part = {seq, ids, 1, 1};
            const enum pkv_status next = pkv_step_run(session, &part, 1, &logits);
            assert_true(next == PKV_OK || next < 0);
            if (next == PKV_ERR_STATE) {
                assert_int_equal(pkv_step_run(session, &part, 1, &logits), PKV_ERR_STATE);
            }
        }
        pkv_seq_close(seq);
        pkv_session_close(session);
    }
    *calls_out = pkvi_fault_count(device, PKVI_FAULT_CALLS);
    return status;
}

static void check_fault(const struct pkv_session_config *config, struct pkvi_fault_config fault)
{
    float got[RESULTS][VOCAB];
    uint64_t calls = 0;
    fault.status = PKV_ERR_DEVICE_LOST;
    pkvi_fault_set(device, &fault);
    const enum pkv_status status = run(config, got, &calls);
    if (status == PKV_OK) { /* an event that is only asked for, or a stream at its end */
        assert_memory_equal(got, want, sizeof want);
    } else {
        assert_true(status == PKV_ERR_DEVICE_LOST || status == PKV_ERR_NO_MEMORY ||
                    status == PKV_ERR_STATE);
        assert_true(strlen(pkv_error_text()) > 0);
    }
}

static void test_session__any_call_fails__told_and_nothing_leaks(void **state)
{
    (void)state;
    const struct pkvi_fault_config none = {0};
    const struct pkv_session_config config = streaming();
    uint64_t calls = 0;
    pkvi_fault_set(device, &none);
    assert_ok(run(&config, want, &calls));
    const uint64_t step = PKVT_SANITIZED ? 1 + calls / 25 : 1 + calls / 300;
    const uint64_t early = PKVT_SANITIZED ? 2 : 1; /* calls of the open and of the first pass */
    for (uint64_t n = 1, i = 0; n <= calls; n += n < 60 ? early : step, i++) {
        if (!PKVT_SANITIZED || i % 3 == 0) {
            check_fault(&config, (struct pkvi_fault_config){.fail_call = n});
        }
        if (!PKVT_SANITIZED || i % 3 == 1) {
            check_fault(&config, (struct pkvi_fault_config){.fail_call = n, .lasting = true});
        }
        if (i % 3 == 2) {
            check_fault(&config, (struct pkvi_fault_config){.fail_call = n, .async = true});
        }
    }
    print_message("%llu device calls, every %llu-th failed\n", (unsigned long long)calls,
                  (unsigned long long)step);
}

static void test_session__any_call_late__same_bits(void **state)
{
    (void)state;
    const struct pkv_session_config config = streaming();
    for (uint64_t seed = 0; seed < 3; seed++) {
        float got[RESULTS][VOCAB];
        uint64_t calls = 0;
        const struct pkvi_fault_config late = {.delay_us = 60, .seed = seed};
        pkvi_fault_set(device, &late);
        assert_ok(run(&config, got, &calls));
        assert_memory_equal(got, want, sizeof want);
    }
}

/* Opening takes what the plan says, a prompt and steps nothing more. */
static void test_session__prompt_and_steps__high_water_is_the_plan(void **state)
{
    (void)state;
    const struct pkvi_fault_config none = {0};
    for (uint32_t budget = 0; budget < 2; budget++) {
        struct pkv_session_config config = streaming();
        struct pkv_session *session = NULL;
        struct pkv_seq *seq = NULL;
        struct pkv_memory_plan plan;
        float got[RESULTS][VOCAB];
        config.kv_budget_bytes = budget == 0 ? config.kv_budget_bytes : 0;
        pkvi_fault_set(device, &none);
        (void)pkvi_fault_most_bytes(device, PKV_MEM_DEVICE);
        (void)pkvi_fault_most_bytes(device, PKV_MEM_PINNED);
        const uint64_t pinned = pkvi_fault_most_bytes(device, PKV_MEM_PINNED);
        assert_ok(pkv_session_plan(model, &config, &plan));
        assert_ok(pkv_session_open(model, &config, &session));
        assert_ok(pkv_seq_open(session, &seq));
        assert_int_equal(pkvi_fault_most_bytes(device, PKV_MEM_DEVICE), plan.device_asked_bytes);
        assert_int_equal(pkvi_fault_most_bytes(device, PKV_MEM_PINNED) - pinned,
                         plan.pinned_asked_bytes);
        assert_ok(work(session, seq, got));
        assert_int_equal(pkvi_fault_most_bytes(device, PKV_MEM_DEVICE), plan.device_asked_bytes);
        struct pkv_kv_report report;
        pkv_session_kv_report(session, &report);
        assert_int_equal(report.device_bytes_most + plan.line[0].bytes, plan.device_asked_bytes);
        pkv_seq_close(seq);
        pkv_session_close(session);
        assert_int_equal(pkvi_fault_most_bytes(device, PKV_MEM_DEVICE), plan.device_asked_bytes);
        assert_string_equal(plan.line[0].what, "weights");
        assert_int_equal(pkvi_fault_most_bytes(device, PKV_MEM_DEVICE), plan.line[0].bytes);
    }
}

static int open_all(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    const struct pkvi_fault_config none = {0};
    const struct pkv_model_config model_config = pkv_model_config_default();
    struct pkvt_rng rng = {.state = 8};
    snprintf(path, sizeof path, P_tmpdir "/session_fault.%ld.kv", (long)getpid());
    for (uint32_t i = 0; i < CONTEXT; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, VOCAB);
    }
    return pkv_device_open("cpu", &config, &below) == PKV_OK &&
                   pkvi_fault_open(below, &none, &device) == PKV_OK &&
                   pkv_model_open(device, pkvt_path("golden/tiny/llama_q4_1.gguf"), &model_config,
                                  &model) == PKV_OK
               ? 0
               : -1;
}

static int close_all(void **state)
{
    (void)state;
    pkv_model_close(model);
    pkv_device_close(device);
    pkv_device_close(below);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session__any_call_fails__told_and_nothing_leaks),
        cmocka_unit_test(test_session__any_call_late__same_bits),
        cmocka_unit_test(test_session__prompt_and_steps__high_water_is_the_plan),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
