/*
 * Every policy on short prompts and small budgets: it runs, with finite logits and as many entries
 * on the device as it says, equal to full attention wherever the sequence fits its budget; or it is
 * refused, with the least budget, which then runs. Method: all combinations of policy, prompt and
 * budget on two tiny models, in the shortest context and in a long one; decode to the end of it.
 */
#include "tests/support/golden_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/session/session.h"

enum { VOCAB = 320, MOST = 1024, LAYERS_MOST = 16, SLOTS_MOST = 2048 };

static struct {
    struct pkv_device *device;
    struct pkv_model *model;
    struct pkv_model_info info;
    double numbers[LAYERS_MOST];
    int32_t ids[MOST];
} it;

static struct {
    uint32_t ran, refused, dense, hot, least;
} seen;

struct run {
    float logits[MOST][VOCAB];
    uint32_t rows;
};

static struct pkv_session_config config_of(const struct pkv_policy_ops *policy, uint32_t context,
                                           uint64_t budget)
{
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = context;
    config.step_rows = 64;
    config.kv_recent = 16;
    config.kv_budget_bytes = budget;
    config.kv_policy = policy ? PKV_KV_HOT : PKV_KV_FULL;
    config.policy = policy;
    config.kv_layer_weights = policy && policy->budget ? it.numbers : NULL;
    return config;
}

/* Entries of every KV head: slots, and what is not in host memory alone. */
static void check_entries(struct pkv_session *session, struct pkv_seq *seq,
                          const struct pkv_policy_ops *policy, bool hot)
{
    struct pkv_kv_report report;
    pkv_session_kv_report(session, &report);
    const struct pkvi_tier_sizes *sizes = &session->tier_sizes;
    uint32_t slots = 0;
    for (uint32_t l = 0; l < it.info.layers; l++) {
        const struct pkv_layer_info *layer = &it.model->layer[l].info;
        for (uint32_t h = 0; h < layer->kv_heads; h++) {
            int32_t token[SLOTS_MOST];
            bool has[MOST] = {false};
            uint32_t count = 0, ring = 0;
            assert_ok(pkv_seq_hot_tokens(seq, l, h, token, SLOTS_MOST, &count));
            assert_ok(pkv_seq_hot_ring(seq, l, &ring));
            assert_true(!hot || layer->kind != PKV_LAYER_GLOBAL ||
                        (ring < pkv_seq_tokens(seq) &&
                         pkv_seq_tokens(seq) - ring <= sizes->ring_pages * PKV_PAGE_TOKENS));
            assert_true(layer->kind == PKV_LAYER_GLOBAL || count == 0);
            assert_true(!hot || layer->kind != PKV_LAYER_GLOBAL || count >= policy->recipe.sinks);
            for (uint32_t i = 0; i < count; i++) {
                assert_true(token[i] >= 0 && (uint32_t)token[i] < ring);
                assert_false(has[token[i]]);
                has[token[i]] = true;
            }
            slots += count;
        }
    }
    assert_true(slots <= sizes->hot_pages * PKV_PAGE_TOKENS);
    assert_int_equal(slots > 0, hot);
    assert_true(report.pages_used <= sizes->quota_pages);
    assert_true(report.pages_used >= (slots + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS);
}

/* A prompt, then one token at a time until the context is full, or `steps` of them. */
static void run(struct pkv_session *session, const struct pkv_policy_ops *policy, uint32_t prompt,
                uint32_t steps, struct run *out, uint32_t *dense_rows_out)
{
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    bool hot = false;
    *dense_rows_out = 0;
    out->rows = 0;
    assert_ok(pkv_seq_open(session, &seq));
    for (uint32_t at = 0; at < prompt + steps; at = pkv_seq_tokens(seq)) {
        if (at == 0) {
            assert_ok(pkv_prompt_run(session, seq, it.ids, prompt, NULL, &logits));
        } else {
            const struct pkv_step_part part = {
                .seq = seq, .ids = it.ids + at, .count = 1, .logit_rows = 1};
            assert_ok(pkv_step_run(session, &part, 1, &logits));
        }
        for (uint32_t i = 0; i < VOCAB; i++) {
            assert_true(isfinite(logits[i]));
        }
        memcpy(out->logits[out->rows++], logits, VOCAB * sizeof *logits);
        hot = policy && pkvi_hot_wanted(session->tier, pkv_seq_tokens(seq));
        *dense_rows_out += !hot;
    }
    if (policy) {
        check_entries(session, seq, policy, hot);
    }
    pkv_seq_close(seq);
}

/* Runs it and compares; false: refused, naming the bytes that would do. */
static bool run_budget(const struct pkv_policy_ops *policy, uint32_t context, uint32_t prompt,
                       uint64_t budget, const struct run *full, uint64_t *least_out)
{
    static struct run out;
    uint32_t dense = 0;
    struct pkv_session *session = NULL;
    const struct pkv_session_config config = config_of(policy, context, budget);
    const enum pkv_status status = pkv_session_open(it.model, &config, &session);
    if (status != PKV_OK) {
        unsigned long long kib = 0;
        const char *need = strstr(pkv_error_text(), "need ");
        assert_int_equal(status, PKV_ERR_RANGE);
        assert_non_null(need);
        assert_int_equal(sscanf(need, "need %lluKiB", &kib), 1);
        assert_true(kib * 1024 > budget);
        *least_out = kib * 1024;
        seen.refused++;
        return false;
    }
    run(session, policy, prompt, context - prompt, &out, &dense);
    assert_int_equal(out.rows, full->rows);
    assert_memory_equal(out.logits, full->logits, dense * sizeof *out.logits);
    assert_true(dense == out.rows || budget < session->tier_sizes.full_bytes);
    seen.ran++;
    seen.dense += dense == out.rows;
    seen.hot += dense < out.rows;
    pkv_session_close(session);
    return true;
}

static void run_prompt(uint32_t context, uint32_t prompt)
{
    static struct run full;
    static const uint32_t percents[] = {1, 4, 10, 96, 100};
    uint32_t dense = 0;
    struct pkv_session *session = NULL;
    const struct pkv_session_config config = config_of(NULL, context, 0);
    assert_ok(pkv_session_open(it.model, &config, &session));
    const uint64_t bytes = session->tier_sizes.full_bytes;
    run(session, NULL, prompt, context - prompt, &full, &dense);
    pkv_session_close(session);
    for (uint32_t p = 0; pkv_policy_at(p); p++) {
        const struct pkv_policy_ops *policy = pkv_policy_at(p);
        if (policy->prune) { /* takes none */
            const struct pkv_session_config none = config_of(policy, context, bytes);
            assert_status(pkv_session_open(it.model, &none, &session), PKV_ERR_INVALID);
            assert_non_null(strstr(pkv_error_text(), "no budget"));
            continue;
        }
        for (uint32_t b = 0; b < 7; b++) {
            const uint64_t budget = b < 5    ? bytes * percents[b] / 100
                                    : b == 5 ? bytes / context
                                             : 4 * (bytes / context);
            uint64_t least = 0;
            if (!run_budget(policy, context, prompt, budget > 0 ? budget : 1, &full, &least) &&
                b == 0) {
                assert_true(run_budget(policy, context, prompt, least, &full, &least));
                seen.least++;
            }
        }
    }
}

static void test_small_budgets__every_policy__runs_right_or_is_refused(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/tiny/llama.gguf", "golden/tiny/gemma3.gguf"};
    static const uint32_t prompts[] = {1, 2, 7, 31, 33, 64};
    struct pkv_device_config device = pkv_device_config_default();
    struct pkv_model_config config = pkv_model_config_default();
    device.threads = 1;
    for (uint32_t i = 0; i < MOST; i++) {
        it.ids[i] = (int32_t)(i * 37 % 311 + 3);
    }
    for (uint32_t l = 0; l < LAYERS_MOST; l++) {
        it.numbers[l] = l * 0.37 - (double)(uint32_t)(l * 0.37);
    }
    assert_ok(pkv_device_open("cpu", &device, &it.device));
    for (uint32_t m = 0; m < 2; m++) {
        assert_ok(pkv_model_open(it.device, pkvt_path(models[m]), &config, &it.model));
        pkv_model_query(it.model, &it.info);
        assert_true(it.info.vocab == VOCAB && it.info.layers <= LAYERS_MOST);
        for (uint32_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
            if (!PKVT_SANITIZED || i % 2 == m) {
                run_prompt(prompts[i] + 8, prompts[i]);
            }
            if ((i == 3 && m == 0) || (!PKVT_SANITIZED && i % 3 == m)) { /* long enough to be HOT */
                run_prompt(480, prompts[i]);
            }
        }
        pkv_model_close(it.model);
    }
    pkv_device_close(it.device);
    printf("%u runs (%u dense, %u hot), %u refused, %u of them run with the least budget named\n",
           seen.ran, seen.dense, seen.hot, seen.refused, seen.least);
    assert_true(seen.dense > 0 && seen.hot > 0 && seen.refused > 0 && seen.least > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_budgets__every_policy__runs_right_or_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
