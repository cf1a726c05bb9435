/*
 * Every model of tests/golden/tiny (all architectures, all number formats) against an independent
 * float64 forward pass and llama.cpp. Tolerances: tests/golden/tiny/README.md, where what was
 * observed stands too.
 */
#include "tests/support/golden_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const models[] = {
    "llama",      "llama_bf16", "llama_q2_k",   "llama_q3_k", "llama_q4_0",       "llama_q4_1",
    "llama_q4_k", "llama_q5_0", "llama_q5_1",   "llama_q5_k", "llama_q6_k",       "llama_q8_0",
    "gemma2",     "gemma3",     "llama_linear", "llama_yarn", "llama_rope_freqs", "mistral",
    "phi3",       "qwen2",      "qwen3",
};

/* How far a kind of run may be from a kind of reference row. */
struct bar {
    const char *reference;
    double most, rms, kl;
};

static const json_t *row_of(const json_t *root, const char *list, const char *kv, json_int_t n)
{
    size_t index;
    json_t *row;
    json_array_foreach(json_object_get(root, list), index, row)
    {
        if (json_integer_value(json_object_get(row, "n")) == n &&
            strcmp(json_string_value(json_object_get(row, "kv")), kv) == 0) {
            return row;
        }
    }
    fail_msg("no %s of %s %lld", list, kv, (long long)n);
    return NULL;
}

static struct pkv_ids ids_of(const json_t *list)
{
    struct pkv_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_ok(pkv_ids_append(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    }
    return ids;
}

static void compare(const char *name, json_int_t n, const float *got, const json_t *values,
                    const struct bar *bar)
{
    size_t count = json_array_size(values);
    double worst = 0.0, squares = 0.0, kl = 0.0, most = -INFINITY, sum = 0.0;
    double *want = malloc(count * sizeof *want);
    for (size_t i = 0; i < count; i++) {
        want[i] = json_number_value(json_array_get(values, i));
        most = fmax(most, want[i]);
        double off = fabs(want[i] - got[i]);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
        squares += off * off;
    }
    for (size_t i = 0; i < count; i++) {
        sum += exp(want[i] - most);
    }
    double want_lse = most + log(sum), got_lse = pkvt_log_sum_exp(got, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        kl += exp(want[i] - want_lse) * ((want[i] - want_lse) - (got[i] - got_lse));
    }
    double rms = sqrt(squares / (double)count);
    free(want);
    if (!(worst <= bar->most && rms <= bar->rms && kl <= bar->kl)) {
        fail_msg("%s, %lld tokens, to %s: most %.3g (bar %.3g), rms %.3g (%.3g), KL %.3g (%.3g)",
                 name, (long long)n, bar->reference, worst, bar->most, rms, bar->rms, kl, bar->kl);
    }
}

/* Greedy tokens against llama.cpp's, up to the first margin that the tolerance could turn around.
 */
static void follow(const char *name, struct pkvt_engine *engine, const json_t *root,
                   const struct pkv_ids *prompt, const char *kv, double tolerance)
{
    const json_t *row = row_of(root, "greedy", kv, (json_int_t)prompt->count);
    const json_t *ids = json_object_get(row, "ids"), *margins = json_object_get(row, "margins");
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    assert_ok(pkv_seq_open(engine->session, &seq));
    assert_ok(pkv_prompt_run(engine->session, seq, prompt->id, prompt->count, NULL, &logits));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        if (json_number_value(json_array_get(margins, i)) < 2.0 * tolerance) {
            break;
        }
        int32_t best = 0, want = (int32_t)json_integer_value(json_array_get(ids, i));
        for (uint32_t v = 1; v < engine->info.vocab; v++) {
            best = logits[v] > logits[best] ? (int32_t)v : best;
        }
        if (best != want) {
            fail_msg("%s, %zu tokens, greedy step %zu: %d, expected %d", name, prompt->count, i,
                     best, want);
        }
        struct pkv_step_part part = {.seq = seq, .ids = &want, .count = 1, .logit_rows = 1};
        assert_ok(pkv_step_run(engine->session, &part, 1, &logits));
    }
    pkv_seq_close(seq);
}

static void check(const char *name, const struct pkvt_engine_options *options,
                  const struct bar *bar, const char *greedy_kv, double greedy_tolerance)
{
    char file[128];
    struct pkvt_engine engine;
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", name);
    pkvt_engine_open(&engine, pkvt_path(file), options);
    snprintf(file, sizeof file, "tiny/%s.json", name);
    json_t *root = pkvt_golden_json(file), *sequence;
    float *logits = malloc(engine.info.vocab * sizeof *logits);
    size_t index;
    json_array_foreach(json_object_get(root, "sequences"), index, sequence)
    {
        struct pkv_ids ids = ids_of(json_object_get(sequence, "ids"));
        const json_t *row = row_of(root, "logits", bar->reference, (json_int_t)ids.count);
        pkvt_last_logits(&engine, ids.id, ids.count, logits);
        compare(name, (json_int_t)ids.count, logits, json_object_get(row, "values"), bar);
        follow(name, &engine, root, &ids, greedy_kv, greedy_tolerance);
        pkv_ids_free(&ids);
    }
    free(logits);
    json_decref(root);
    pkvt_engine_close(&engine);
}

static void test_tiny__exact__equals_float64(void **state)
{
    (void)state;
    const struct bar bar = {.reference = "f64", .most = 1e-3, .rms = 1e-3, .kl = 1e-7};
    const struct pkvt_engine_options options = {
        .exact = true, .kv_type = PKV_KV_F32, .context = 768};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        // llama.cpp's own "exact" is 6e-3 off on gemma: its GELU is a table in f16.
        check(models[i], &options, &bar, "exact", strncmp(models[i], "gemma", 5) ? 1e-3 : 1e-2);
    }
}

static void test_tiny__fast__within_tolerance(void **state)
{
    (void)state;
    const struct bar plain = {.reference = "f64-kv16", .most = 1e-2, .rms = 1e-2, .kl = 2e-4};
    const struct bar rounded = {.reference = "f64-kv16", .most = 1.4, .rms = 0.4, .kl = 0.06};
    const struct pkvt_engine_options options = {.kv_type = PKV_KV_F16, .context = 768};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        bool quantised = strstr(models[i], "_q") != NULL;
        bool bf16 = strstr(models[i], "bf16") != NULL;
        check(models[i], &options, quantised ? &rounded : &plain, "f16",
              quantised ? 1.4 : (bf16 ? 0.3 : 0.1));
    }
}

static void test_tiny__split_file__equals_whole(void **state)
{
    (void)state;
    const struct pkvt_engine_options options = {.kv_type = PKV_KV_F16, .context = 64};
    const char *const files[] = {"llama_q4_k", "llama_split-00001-of-00003",
                                 "llama_split-00003-of-00003"};
    const int32_t ids[] = {5, 100, 319, 7, 7, 42};
    float *logits[3];
    for (int i = 0; i < 3; i++) {
        char file[128];
        struct pkvt_engine engine;
        snprintf(file, sizeof file, "golden/tiny/%s.gguf", files[i]);
        pkvt_engine_open(&engine, pkvt_path(file), &options);
        logits[i] = malloc(engine.info.vocab * sizeof(float));
        pkvt_last_logits(&engine, ids, 6, logits[i]);
        assert_memory_equal(logits[i], logits[0], engine.info.vocab * sizeof(float));
        pkvt_engine_close(&engine);
    }
    for (int i = 0; i < 3; i++) {
        free(logits[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny__exact__equals_float64),
        cmocka_unit_test(test_tiny__fast__within_tolerance),
        cmocka_unit_test(test_tiny__split_file__equals_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
