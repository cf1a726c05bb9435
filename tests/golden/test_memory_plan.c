/*
 * The memory plan is what a process takes: Gemma 3 at 32,768 tokens, after opening and after a
 * prompt. The bar is 5 %.
 */
#include "tests/support/golden_model.h"

#include <stdio.h>
#include <string.h>

static const char *gemma3;

static double resident_bytes(void)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        (void)sscanf(line, "VmRSS: %lf", &kib);
    }
    fclose(file);
    return kib * 1024;
}

static void check_near(const char *when, double used, double planned)
{
    print_message("%s: %.1f MiB resident of %.1f MiB planned: %.3f\n", when, used / 1048576,
                  planned / 1048576, used / planned);
    assert_true(used <= planned * 1.05 && used >= planned * 0.95);
}

static uint64_t line_bytes(const struct pkv_memory_plan *plan, const char *what)
{
    for (uint32_t i = 0; i < plan->line_count; i++) {
        if (strcmp(plan->line[i].what, what) == 0) {
            return plan->line[i].bytes;
        }
    }
    fail_msg("no line '%s' in the plan", what);
    return 0;
}

static void check(enum pkv_kv_policy policy, uint64_t budget_bytes)
{
    struct pkv_device_config device_config = pkv_device_config_default();
    struct pkv_model_config model_config = pkv_model_config_default();
    struct pkv_session_config config = pkv_session_config_default();
    struct pkv_device *device = NULL;
    struct pkv_model *model = NULL;
    struct pkv_session *session = NULL;
    struct pkv_memory_plan plan;
    struct pkv_seq *seq = NULL;
    static int32_t ids[2000];
    config.context_tokens = 32768;
    config.kv_policy = policy;
    config.kv_budget_bytes = budget_bytes;
    assert_ok(pkv_device_open("cpu", &device_config, &device));
    const double before = resident_bytes();
    assert_ok(pkv_model_open(device, gemma3, &model_config, &model));
    assert_ok(pkv_session_plan(model, &config, &plan));
    assert_int_equal(plan.kv_token_bytes, 3072);
    if (policy == PKV_KV_DEVICE) {
        assert_int_equal(line_bytes(&plan, "K and V, global layers"), 100663296);
    }
    assert_true(line_bytes(&plan, "K and V, sliding layers (window and ring)") > 0);
    assert_true(line_bytes(&plan, "logits and staging") >= 262144 * sizeof(float));
    const double planned = (double)plan.device_asked_bytes + (double)plan.pinned_asked_bytes +
                           (double)plan.pageable_asked_bytes;
    assert_ok(pkv_session_open(model, &config, &session));
    check_near("opened", resident_bytes() - before, planned);
    assert_ok(pkv_seq_open(session, &seq));
    const float *logits = NULL;
    for (uint32_t i = 0; i < 2000; i++) {
        ids[i] = (int32_t)(i * 7919 % 262144);
    }
    assert_ok(pkv_prompt_run(session, seq, ids, 2000, NULL, &logits));
    check_near("after 2,000 tokens", resident_bytes() - before, planned);
    pkv_seq_close(seq);
    pkv_session_close(session);
    pkv_model_close(model);
    pkv_device_close(device);
}

static void test_plan__gemma3_in_memory__is_resident(void **state)
{
    (void)state;
    check(PKV_KV_DEVICE, 0);
}

static void test_plan__gemma3_streamed__is_resident(void **state)
{
    (void)state;
    check(PKV_KV_FULL, UINT64_C(30) << 20);
}

int main(void)
{
    gemma3 = pkvt_model_path("gemma3");
    if (!gemma3) {
        print_message("SKIP: no model: scripts/get-model gemma3\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan__gemma3_in_memory__is_resident),
        cmocka_unit_test(test_plan__gemma3_streamed__is_resident),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
