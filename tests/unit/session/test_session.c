/* The session's contract: what is refused, that a refusal changes nothing, that a step allocates
 * nothing. */
#include "tests/support/golden_model.h"

#include <stdlib.h>
#include <string.h>

/* Counts allocations of the whole process while `counting`. */
static volatile int counting;
static volatile int allocations;

#if !PKVT_SANITIZED
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

static void note(void)
{
    if (counting) {
        __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
    }
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    note();
    return __libc_realloc(old, bytes);
}
#endif

static void open_tiny(struct pkvt_engine *engine)
{
    const struct pkvt_engine_options options = {
        .kv_type = PKV_KV_F16, .context = 128, .sequences = 2, .step_rows = 16};
    pkvt_engine_open(engine, pkvt_path("golden/tiny/llama_q4_1.gguf"), &options);
}

static void test_step__bad_requests__refused_and_nothing_changed(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_seq *a = NULL, *b = NULL, *c = NULL;
    const int32_t ids[] = {1, 2, 3}, bad[] = {1, 320}, negative[] = {-1};
    const float *logits = NULL;
    open_tiny(&engine);
    assert_ok(pkv_seq_open(engine.session, &a));
    assert_ok(pkv_seq_open(engine.session, &b));
    assert_status(pkv_seq_open(engine.session, &c), PKV_ERR_NO_SLOT);
    struct pkv_step_part part = {.seq = a, .ids = bad, .count = 2, .logit_rows = 1};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_RANGE);
    part = (struct pkv_step_part){.seq = a, .ids = negative, .count = 1};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_RANGE);
    part = (struct pkv_step_part){.seq = a, .ids = ids, .count = 0};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_INVALID);
    part = (struct pkv_step_part){.seq = a, .ids = ids, .count = 2, .logit_rows = 3};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_INVALID);
    part.logit_rows = 1;
    struct pkv_step_part twice[] = {part, part};
    assert_status(pkv_step_run(engine.session, twice, 2, &logits), PKV_ERR_INVALID);
    assert_status(pkv_step_run(engine.session, &part, 0, &logits), PKV_ERR_RANGE);
    assert_int_equal(pkv_seq_tokens(a), 0);
    assert_ok(pkv_step_run(engine.session, &part, 1, &logits));
    assert_int_equal(pkv_seq_tokens(a), 2);
    pkv_seq_close(b);
    part.seq = b;
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_INVALID);
    pkvt_engine_close(&engine);
}

static void test_prompt__longer_than_context__refused_with_numbers(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    int32_t ids[129] = {0};
    const float *logits = NULL;
    open_tiny(&engine);
    assert_ok(pkv_seq_open(engine.session, &seq));
    assert_status(pkv_prompt_run(engine.session, seq, ids, 129, NULL, &logits), PKV_ERR_RANGE);
    assert_non_null(strstr(pkv_error_text(), "129"));
    assert_non_null(strstr(pkv_error_text(), "room for 128 in a context of 128"));
    assert_null(strstr(pkv_error_text(), "--")); /* options are the program's to name */
    assert_ok(pkv_prompt_run(engine.session, seq, ids, 128, NULL, &logits));
    struct pkv_step_part part = {.seq = seq, .ids = ids, .count = 1, .logit_rows = 1};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_RANGE);
    const int cancel = 1;
    assert_ok(pkv_seq_truncate(seq, 0));
    assert_status(pkv_prompt_run(engine.session, seq, ids, 40, &cancel, &logits), PKV_ERR_CANCELED);
    pkvt_engine_close(&engine);
}

static void test_plan__lines__sum_and_limits(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_memory_plan plan;
    open_tiny(&engine);
    assert_ok(pkv_session_plan(engine.model, &engine.config, &plan));
    uint64_t device = 0;
    for (uint32_t i = 0; i < plan.line_count; i++) {
        device += strcmp(plan.line[i].where, "device") == 0 ? plan.line[i].bytes : 0;
    }
    assert_true(device == plan.device_asked_bytes);
    assert_int_equal(plan.kv_token_bytes, 2 * 2 * 32 * 2 * 2); // layers, KV heads, size, K+V, f16
    struct pkv_session_config config = engine.config;
    config.kv_device_bytes = 1000;
    assert_status(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_NO_MEMORY);
    assert_non_null(strstr(pkv_error_text(), "leaves 1000 bytes: not even one token fits"));
    config.kv_device_bytes = plan.kv_token_bytes * 96 * config.sequences; // whole pages
    assert_status(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_NO_MEMORY);
    assert_non_null(strstr(pkv_error_text(), " x 96 tokens fit"));
    config = engine.config;
    config.context_tokens = 1u << 30;
    assert_status(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_RANGE);
    config = engine.config;
    config.sequences = 0;
    assert_status(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_RANGE);
    pkvt_engine_close(&engine);
}

static void test_decode__hundred_steps__allocates_nothing(void **state)
{
    (void)state;
    if (PKVT_SANITIZED) {
        skip();
    }
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    struct pkv_sampler *sampler = NULL;
    struct pkv_sampler_config config = pkv_sampler_config_default();
    int32_t ids[128] = {7};
    open_tiny(&engine);
    assert_ok(pkv_sampler_open(&config, engine.info.vocab, &sampler));
    assert_ok(pkv_seq_open(engine.session, &seq));
    allocations = 0;
    counting = 1;
    for (uint32_t i = 0; i < 100; i++) {
        struct pkv_step_part part = {.seq = seq, .ids = &ids[i], .count = 1, .logit_rows = 1};
        enum pkv_status status = pkv_step_run(engine.session, &part, 1, &logits);
        if (status == PKV_OK) {
            status = pkv_sampler_pick(sampler, logits, ids, i + 1, i + 1, &ids[i + 1]);
        }
        if (status != PKV_OK) {
            break;
        }
    }
    counting = 0;
    assert_int_equal(pkv_seq_tokens(seq), 100);
    assert_int_equal(allocations, 0);
    free(malloc(16)); // the counter can count
    counting = 1;
    free(malloc(16));
    counting = 0;
    assert_int_equal(allocations, 1);
    pkv_sampler_close(sampler);
    pkvt_engine_close(&engine);
}

/* A prompt, steps, a fork, parking: of a sequence that the device does not hold. */
static enum pkv_status streamed_work(struct pkv_session *session, struct pkv_seq *seq,
                                     const int32_t *ids)
{
    const float *logits = NULL;
    struct pkv_seq *fork = NULL;
    enum pkv_status status = pkv_prompt_run(session, seq, ids, 500, NULL, &logits);
    status = status == PKV_OK ? pkv_seq_fork(seq, &fork) : status;
    for (uint32_t i = 0; status == PKV_OK && i < 70; i++) {
        struct pkv_step_part part[] = {{seq, ids + i, 1, 1}, {fork, ids + 2 * i, 1, 1}};
        status = pkv_step_run(session, part, 2, &logits);
    }
    status = status == PKV_OK ? pkv_seq_truncate(seq, 333) : status;
    status = status == PKV_OK ? pkv_seq_park(seq) : status;
    status = status == PKV_OK ? pkv_prompt_run(session, fork, ids, 50, NULL, &logits) : status;
    status = status == PKV_OK ? pkv_seq_unpark(seq) : status;
    pkv_seq_close(fork);
    return status == PKV_OK ? pkv_prompt_run(session, seq, ids, 200, NULL, &logits) : status;
}

static void test_streamed__prompts_steps_forks_parking__allocate_nothing(void **state)
{
    (void)state;
    if (PKVT_SANITIZED) {
        skip();
    }
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    struct pkv_kv_report report;
    static int32_t ids[700];
    const struct pkvt_engine_options options = {
        .context = 700, .sequences = 2, .step_rows = 64, .parked = 1, .budget_bytes = 200 << 10};
    pkvt_engine_open(&engine, pkvt_path("golden/tiny/llama_q4_1.gguf"), &options);
    assert_ok(pkv_seq_open(engine.session, &seq));
    allocations = 0;
    counting = 1;
    const enum pkv_status status = streamed_work(engine.session, seq, ids);
    counting = 0;
    assert_ok(status);
    assert_int_equal(allocations, 0);
    pkv_session_kv_report(engine.session, &report);
    assert_true(report.loaded_tiles > 0);
    pkvt_engine_close(&engine);
}

static void test_model__planned_then_loaded__runs(void **state)
{
    (void)state;
    struct pkv_model_config config = pkv_model_config_default();
    struct pkv_session_config session_config = pkv_session_config_default();
    struct pkv_device *device = NULL;
    struct pkv_model *model = NULL;
    struct pkv_session *session = NULL;
    struct pkv_memory_plan planned, loaded;
    config.plan_only = true;
    session_config.context_tokens = 128;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    assert_ok(pkv_model_open(device, pkvt_path("golden/tiny/llama_q4_1.gguf"), &config, &model));
    assert_ok(pkv_session_plan(model, &session_config, &planned));
    assert_status(pkv_session_open(model, &session_config, &session), PKV_ERR_STATE);
    assert_ok(pkv_model_load(model));
    assert_ok(pkv_model_load(model));
    assert_ok(pkv_session_plan(model, &session_config, &loaded));
    assert_int_equal(planned.device_asked_bytes, loaded.device_asked_bytes);
    assert_ok(pkv_session_open(model, &session_config, &session));
    pkv_session_close(session);
    pkv_model_close(model);
    pkv_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__bad_requests__refused_and_nothing_changed),
        cmocka_unit_test(test_prompt__longer_than_context__refused_with_numbers),
        cmocka_unit_test(test_plan__lines__sum_and_limits),
        cmocka_unit_test(test_decode__hundred_steps__allocates_nothing),
        cmocka_unit_test(test_model__planned_then_loaded__runs),
        cmocka_unit_test(test_streamed__prompts_steps_forks_parking__allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
