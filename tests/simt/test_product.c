/*
 * The whole runtime with --device cuda over the fake runtime (tests/simt): tiny models of every
 * architecture and number format against the CPU device, fed the same tokens, with K and V whole on
 * the device, in a pool too small for any whole layer, and as hot sets. One call waits in a decode
 * step, and none allocates. With a model's name as argument: that real model, for minutes.
 * In the builds that look at every access (PKVT_FEW) eight number formats are left out: q2_k, q3_k,
 * q4_0, q4_1, q5_0, q5_1, q5_k, q6_k; and phi3 is there dense, not streamed.
 * With PKVT_HOST_REST rehearsal and recall alone, the rest by CPU kernels: the choice of what comes
 * back turns around on the last bits of everything before.
 */
#include "tests/support/golden_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "tests/simt/cuda_device.h"

#define MARGIN 0.5 /* of the largest logit over the second: what rounding may not turn around */

struct work {
    uint32_t prompt, steps, context, recent;
    const int32_t *ids; /* [prompt + steps] */
    bool full;
    const char *policy; /* of hot sets; NULL = none */
    uint64_t budget_bytes;
    double most, rms; /* bars */
};

/* What a page of the least budget needs is told by the refusal of a smaller one. */
static uint64_t least_budget(const char *path, struct pkvt_engine_options options)
{
    struct pkvt_engine engine;
    struct pkv_memory_plan plan;
    struct pkvt_engine_options dense = options;
    dense.policy = NULL;
    pkvt_engine_open(&engine, path, &dense);
    struct pkv_session_config least = engine.config;
    least.kv_policy = options.policy ? PKV_KV_HOT : PKV_KV_FULL;
    least.policy = pkv_policy_find(options.policy);
    least.kv_budget_bytes = 1;
    least.kv_recent = options.recent;
    assert_int_equal(pkv_session_plan(engine.model, &least, &plan), PKV_ERR_RANGE);
    const char *kib = strrchr(pkv_error_text(), ' ');
    assert_non_null(kib);
    least.kv_budget_bytes = strtoull(kib, NULL, 10) * 1024;
    assert_ok(pkv_session_plan(engine.model, &least, &plan));
    assert_int_equal(plan.kv_dense_layers, 0);
    pkvt_engine_close(&engine);
    return least.kv_budget_bytes;
}

/* How often a step found that what it loads has not been stored yet, and waited: where the schedule
 * lets STORE lag behind. */
static uint64_t late_stores(struct pkv_session *session)
{
    struct pkv_kv_report report;
    pkv_session_kv_report(session, &report);
    return report.late_stores;
}

/* Logits behind the prompt and behind every step: f32 [steps + 1][vocab]. */
static float *run(const char *path, const char *device, const struct work *work,
                  uint32_t *vocab_out)
{
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    const bool cuda = strcmp(device, "cuda") == 0;
    const struct pkvt_engine_options options = {.context = work->context,
                                                .device = device,
                                                .threads = 1,
                                                .step_rows = 64,
                                                .recent =
                                                    work->full || work->policy ? work->recent : 0,
                                                .policy = work->policy,
                                                .budget_bytes = work->budget_bytes};
    pkvt_engine_open(&engine, path, &options);
    const uint32_t vocab = engine.info.vocab;
    float *out = malloc(sizeof *out * vocab * (work->steps + 1));
    assert_non_null(out);
    assert_ok(pkv_seq_open(engine.session, &seq));
    assert_ok(pkv_prompt_run(engine.session, seq, work->ids, work->prompt, NULL, &logits));
    memcpy(out, logits, sizeof *out * vocab);
    for (uint32_t i = 0; i < work->steps; i++) {
        const struct pkv_step_part part = {
            .seq = seq, .ids = &work->ids[work->prompt + i], .count = 1, .logit_rows = 1};
        const uint64_t waits = pkvt_cuda_waits(), allocations = pkvt_cuda_allocations();
        const uint64_t late = late_stores(engine.session);
        assert_ok(pkv_step_run(engine.session, &part, 1, &logits));
        assert_int_equal(pkvt_cuda_waits() - waits,
                         cuda ? 1 + late_stores(engine.session) - late : 0);
        assert_int_equal(pkvt_cuda_allocations(), allocations);
        memcpy(out + (uint64_t)vocab * (i + 1), logits, sizeof *out * vocab);
    }
    struct pkv_kv_report report;
    pkv_session_kv_report(engine.session, &report);
    if (work->full) { /* no layer is whole on the device */
        assert_true(report.streamed_layers > 0);
        assert_true(report.loaded_tiles >= work->steps * report.streamed_layers);
        assert_true(report.late_stores <= 1 + work->steps / PKV_PAGE_TOKENS);
    } else {
        assert_true(report.late_stores == 0 || work->policy);
    }
    int32_t slots[1024];
    uint32_t count = 0;
    assert_ok(pkv_seq_hot_tokens(seq, 0, 0, slots, 1024, &count));
    assert_int_equal(count > 0, work->policy != NULL);
    pkv_seq_close(seq);
    pkvt_engine_close(&engine);
    *vocab_out = vocab;
    return out;
}

static uint32_t best_of(const float *logits, uint32_t vocab, double *margin_out)
{
    uint32_t best = 0;
    for (uint32_t v = 1; v < vocab; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    *margin_out = INFINITY;
    for (uint32_t v = 0; v < vocab; v++) {
        const double margin = (double)logits[best] - logits[v];
        *margin_out = v != best && margin < *margin_out ? margin : *margin_out;
    }
    return best;
}

static void compare(const char *name, const struct work *work, const float *cpu, const float *cuda,
                    uint32_t vocab)
{
    double most = 0.0, squares = 0.0;
    uint32_t clear = 0;
    for (uint64_t row = 0; row <= work->steps; row++) {
        const float *a = cpu + row * vocab, *b = cuda + row * vocab;
        double margin, other;
        const uint32_t want = best_of(a, vocab, &margin), got = best_of(b, vocab, &other);
        if (margin > MARGIN) {
            clear++;
            if (want != got) {
                fail_msg("%s, step %u: arg-max %u, on the cpu %u by %.3f", name, (unsigned)row, got,
                         want, margin);
            }
        }
        for (uint32_t v = 0; v < vocab; v++) {
            const double off = fabs((double)a[v] - b[v]);
            most = isnan(off) ? INFINITY : fmax(most, off);
            squares += off * off;
        }
    }
    const double rms = sqrt(squares / ((double)vocab * (work->steps + 1)));
    print_message("%s, %s: most %.4f, rms %.5f; %u of %u rows with a clear arg-max\n", name,
                  work->policy ? work->policy
                  : work->full ? "full"
                               : "dense",
                  most, rms, clear, work->steps + 1);
    if (!(most <= work->most && rms <= work->rms)) {
        fail_msg("%s: most %.4f (bar %.4f), rms %.5f (%.5f)", name, most, work->most, rms,
                 work->rms);
    }
}

static void check(const char *name, const char *path, struct work work)
{
    uint32_t vocab = 0;
    simt_set_streams(SIMT_STREAMS_RANDOM, 7, SIMT_STREAM_NONE, SIMT_STREAM_NONE);
    if (work.full || work.policy) {
        const struct pkvt_engine_options options = {.context = work.context,
                                                    .threads = 1,
                                                    .step_rows = 64,
                                                    .recent = work.recent,
                                                    .policy = work.policy};
        work.budget_bytes = least_budget(path, options);
    }
    float *cpu = run(path, "cpu", &work, &vocab);
    float *cuda = run(path, "cuda", &work, &vocab);
    compare(name, &work, cpu, cuda, vocab);
    free(cpu);
    free(cuda);
    const struct simt_live live = simt_count_live();
    assert_int_equal(live.device_blocks + live.pinned_blocks + live.streams + live.events, 0);
}

#ifdef PKVT_FEW /* of the number formats, whose kernels have tests of their own in these builds */
static const char *const models[] = {
    "llama",      "llama_bf16", "llama_q4_k", "llama_q8_0", "gemma2", "gemma3",
    "llama_yarn", "mistral",    "phi3",       "qwen2",      "qwen3",
};
#else
static const char *const models[] = {
    "llama",      "llama_bf16", "llama_q2_k", "llama_q3_k", "llama_q4_0",
    "llama_q4_1", "llama_q4_k", "llama_q5_0", "llama_q5_1", "llama_q5_k",
    "llama_q6_k", "llama_q8_0", "gemma2",     "gemma3",     "llama_yarn",
    "mistral",    "phi3",       "qwen2",      "qwen3",
};
#endif

/* In a pool of the least budget no layer of these is whole with 256 tokens. */
#ifdef PKVT_FEW
static const char *const streamed[] = {"mistral", "qwen3"};
#else
static const char *const streamed[] = {"mistral", "phi3", "qwen3"};
#endif

static void check_tiny(const char *const *names, size_t count, bool full, uint32_t prompt)
{
    int32_t ids[256];
    struct pkvt_rng rng = {3};
    for (uint32_t i = 0; i < 256; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, 320);
    }
    for (size_t m = 0; m < count; m++) {
        char file[128];
        (void)snprintf(file, sizeof file, "golden/tiny/%s.gguf", names[m]);
        const bool rounded = strstr(names[m], "_q") != NULL;
        check(names[m], pkvt_path(file),
              (struct work){.prompt = prompt,
                            .steps = 4,
                            .context = 256,
                            .recent = 32,
                            .ids = ids,
                            .full = full,
                            .most = rounded ? 1.0 : 0.1,
                            .rms = rounded ? 0.2 : 0.02});
    }
}

static void test_product__tiny_models_dense__as_on_the_cpu(void **state)
{
    (void)state;
    check_tiny(models, sizeof models / sizeof *models, false, 20);
}

static void test_product__tiny_models_streamed__as_on_the_cpu(void **state)
{
    (void)state;
    check_tiny(streamed, sizeof streamed / sizeof *streamed, true, 170);
}

#ifdef PKVT_HOST_REST
#define HOT_MOST 0.001
#else
#define HOT_MOST 0.1
#endif

/* A prompt is scored and placed; then a page leaves the ring, and competes or is kept. */
static void test_product__tiny_models_hot__as_on_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *model, *policy;
    } hot[] = {
#ifdef PKVT_HOST_REST
        {"llama", "prevstep"},
        {"qwen3", "pivot"},
#else
#ifndef PKVT_FEW
        {"qwen3", "h2o"},
        {"qwen2", "snapkv"},
        {"mistral", "snapkv-keep"},
        {"llama", "oracle"},
#endif
        {"llama", "pivot-norecall"},
#endif
    };
    const uint32_t prompt = sizeof hot / sizeof *hot > 1 ? 300 : 180;
    static int32_t ids[512];
    struct pkvt_rng rng = {5};
    for (uint32_t i = 0; i < 512; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, 320);
    }
    for (size_t i = 0; i < sizeof hot / sizeof *hot; i++) {
        char file[128];
        (void)snprintf(file, sizeof file, "golden/tiny/%s.gguf", hot[i].model);
        check(hot[i].model, pkvt_path(file),
              (struct work){.prompt = prompt,
                            .steps = 40,
                            .context = 512,
                            .recent = 16,
                            .ids = ids,
                            .policy = hot[i].policy,
                            .most = HOT_MOST,
                            .rms = HOT_MOST / 5});
    }
}

/* ---- a real model ---- */

static const char *real_path;

static void check_real(bool full, uint32_t prompt, uint32_t steps)
{
    struct pkvt_engine engine;
    const struct pkvt_engine_options options = {.context = 64};
    pkvt_engine_open(&engine, real_path, &options);
    struct pkv_ids ids = pkvt_golden_ids(&engine, "report");
    pkvt_engine_close(&engine);
    assert_true(ids.count >= prompt + steps);
    check("smollm2", real_path,
          (struct work){.prompt = prompt,
                        .steps = steps,
                        .context = 256,
                        .recent = 32,
                        .ids = ids.id,
                        .full = full,
                        .most = 1.0,
                        .rms = 0.2});
    pkv_ids_free(&ids);
}

static void test_product__smollm2_dense__as_on_the_cpu(void **state)
{
    (void)state;
    check_real(false, 64, 32);
}

static void test_product__smollm2_streamed__as_on_the_cpu(void **state)
{
    (void)state;
    check_real(true, 192, 32);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tiny[] = {
#ifndef PKVT_HOST_REST
        cmocka_unit_test(test_product__tiny_models_dense__as_on_the_cpu),
        cmocka_unit_test(test_product__tiny_models_streamed__as_on_the_cpu),
#endif
        cmocka_unit_test(test_product__tiny_models_hot__as_on_the_cpu),
    };
    const struct CMUnitTest real[] = {
        cmocka_unit_test(test_product__smollm2_dense__as_on_the_cpu),
        cmocka_unit_test(test_product__smollm2_streamed__as_on_the_cpu),
    };
    if (argc < 2) {
        return cmocka_run_group_tests(tiny, NULL, NULL);
    }
    real_path = pkvt_model_path(argv[1]);
    if (!real_path) {
        print_message("SKIP: no model: scripts/get-model %s\n", argv[1]);
        return 77;
    }
    return cmocka_run_group_tests(real, NULL, NULL);
}
