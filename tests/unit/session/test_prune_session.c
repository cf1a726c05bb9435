/*
 * Sessions with a policy that prunes: an independent forward pass in double precision
 * (tests/golden/make_prune.py); full attention where nothing is dropped; batches, prompts that
 * follow, prompts that are left; and what is refused, in words.
 */
#include "tests/support/golden_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"
#include "runtime/session/session.h"

#define VOCAB 320u

static const struct pkvt_engine_options exact = {.exact = true,
                                                 .kv_type = PKV_KV_F32,
                                                 .context = 700,
                                                 .step_rows = 96,
                                                 .threads = 2,
                                                 .policy = "pyramidinfer"};

static void open_tiny(struct pkvt_engine *engine, const struct pkvt_engine_options *options)
{
    pkvt_engine_open(engine, pkvt_path("golden/tiny/mistral.gguf"), options);
    assert_int_equal(engine->info.vocab, VOCAB);
}

static struct pkv_ids random_ids(uint64_t seed, uint32_t count)
{
    struct pkvt_rng rng = {seed};
    struct pkv_ids ids = {0};
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(pkv_ids_append(&ids, (int32_t)pkvt_rng_below(&rng, VOCAB)));
    }
    return ids;
}

static struct pkv_seq *open_seq(struct pkvt_engine *engine)
{
    struct pkv_seq *seq = NULL;
    assert_ok(pkv_seq_open(engine->session, &seq));
    return seq;
}

static const float *feed(struct pkv_seq *seq, const int32_t *ids, size_t count)
{
    const float *logits = NULL;
    assert_ok(pkv_prompt_run(seq->session, seq, ids, count, NULL, &logits));
    return logits;
}

static const float *one(struct pkv_seq *seq, int32_t id)
{
    const struct pkv_step_part part = {.seq = seq, .ids = &id, .count = 1, .logit_rows = 1};
    const float *logits = NULL;
    assert_ok(pkv_step_run(seq->session, &part, 1, &logits));
    return logits;
}

/* Entries of a layer that are on the device. */
static uint32_t entries_of(const struct pkv_seq *seq, uint32_t layer)
{
    const struct pkvi_prune_seq *pruned = &seq->session->tier->prune_seq[seq->index];
    return pruned->layer[layer].rows + pruned->step - pruned->layer[layer].first_key;
}

static double farthest(const float *got, const json_t *row)
{
    const json_t *values = json_object_get(row, "values");
    double most = 0;
    assert_int_equal(json_array_size(values), VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) {
        most = fmax(most, fabs((double)got[i] - json_number_value(json_array_get(values, i))));
    }
    return most;
}

/* Along the golden ids: at most this far from its rows, with its entries in every layer. */
static void check_golden(const struct pkvt_engine_options *options, double tolerance)
{
    struct pkvt_engine engine;
    json_t *root = pkvt_golden_json("prune.json"), *row;
    const json_t *list = json_object_get(root, "ids");
    struct pkv_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_ok(pkv_ids_append(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    }
    open_tiny(&engine, options);
    struct pkv_seq *seq = open_seq(&engine);
    const size_t prompt = (size_t)json_integer_value(json_object_get(root, "prompt"));
    const float *logits = feed(seq, ids.id, prompt);
    size_t n = prompt, index;
    json_array_foreach(json_object_get(root, "rows"), index, row)
    {
        for (; n < (size_t)json_integer_value(json_object_get(row, "n")); n++) {
            logits = one(seq, ids.id[n]);
        }
        assert_true(farthest(logits, row) <= tolerance);
        for (uint32_t l = 0; l < engine.info.layers; l++) {
            const json_t *entries = json_object_get(row, "entries");
            assert_int_equal(entries_of(seq, l), json_integer_value(json_array_get(entries, l)));
        }
    }
    assert_int_equal(index, 8);
    pkv_seq_close(seq);
    pkvt_engine_close(&engine);
    pkv_ids_free(&ids);
    json_decref(root);
}

static void test_prune_session__golden__as_in_double_precision(void **state)
{
    (void)state;
    struct pkvt_engine_options options = exact;
    check_golden(&options, 1e-3);
    options.step_rows = 512; /* in one row tile */
    check_golden(&options, 1e-3);
    options.step_rows = 33;
    options.schedule = PKV_SCHEDULE_ADVERSARIAL;
    check_golden(&options, 1e-3);
}

/* The golden rows are those of what was dropped: full attention is nowhere near them. */
static void test_prune_session__full_attention__far_from_golden(void **state)
{
    (void)state;
    struct pkvt_engine_options options = exact;
    struct pkvt_engine engine;
    json_t *root = pkvt_golden_json("prune.json");
    const json_t *list = json_object_get(root, "ids"), *rows = json_object_get(root, "rows");
    struct pkv_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_ok(pkv_ids_append(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    }
    options.policy = NULL;
    open_tiny(&engine, &options);
    struct pkv_seq *seq = open_seq(&engine);
    assert_true(farthest(feed(seq, ids.id, 500), json_array_get(rows, 0)) > 0.02);
    assert_true(farthest(feed(seq, ids.id + 500, ids.count - 500), json_array_get(rows, 7)) > 0.02);
    pkv_seq_close(seq);
    pkvt_engine_close(&engine);
    pkv_ids_free(&ids);
    json_decref(root);
}

/* The session again, with this policy. */
static void reopen(struct pkvt_engine *engine, const struct pkv_policy_ops *policy)
{
    pkv_session_close(engine->session);
    engine->config.kv_policy = PKV_KV_HOT;
    engine->config.policy = policy;
    assert_ok(pkv_session_open(engine->model, &engine->config, &engine->session));
}

static void test_prune_session__nothing_dropped__bits_of_full_attention(void **state)
{
    (void)state;
    struct pkv_policy_ops policy = *pkv_policy_find("pyramidinfer");
    struct pkv_prune prune = *policy.prune;
    prune.decay = prune.zone_ratio = prune.zone_decay = 1.0;
    policy.prune = &prune;
    for (uint32_t i = 0; i < 2; i++) {
        const struct pkvt_engine_options options = {
            .kv_type = i ? PKV_KV_Q8_0 : PKV_KV_F16, .context = 500, .step_rows = 96};
        struct pkvt_engine full, pruned;
        struct pkv_ids ids = random_ids(4, 500);
        open_tiny(&full, &options);
        open_tiny(&pruned, &options);
        reopen(&pruned, &policy);
        struct pkv_seq *a = open_seq(&full), *b = open_seq(&pruned);
        const float *want = feed(a, ids.id, 301), *got = feed(b, ids.id, 301);
        assert_memory_equal(got, want, VOCAB * sizeof *got);
        for (uint32_t n = 301; n < 500; n++) {
            want = one(a, ids.id[n]);
            got = one(b, ids.id[n]);
            assert_memory_equal(got, want, VOCAB * sizeof *got);
        }
        pkv_seq_close(a);
        pkv_seq_close(b);
        pkvt_engine_close(&full);
        pkvt_engine_close(&pruned);
        pkv_ids_free(&ids);
    }
}

/* Three sequences of other lengths, alone and in batches: the same bits; the second prompt of each,
 * also with steps of others in between, is what steps with its tokens are. */
static void test_prune_session__batches_and_more_prompts__as_alone(void **state)
{
    (void)state;
    static const uint32_t prompt[] = {320, 1, 150};
    struct pkvt_engine_options options = {.kv_type = PKV_KV_F16,
                                          .context = 600,
                                          .step_rows = 64,
                                          .sequences = 3,
                                          .policy = "pyramidinfer-paper"};
    struct pkvt_engine engine;
    struct pkv_ids ids[3];
    static float want[3][270][VOCAB];
    open_tiny(&engine, &options);
    for (uint32_t s = 0; s < 3; s++) {
        ids[s] = random_ids(s + 1, 600);
        struct pkv_seq *seq = open_seq(&engine);
        (void)feed(seq, ids[s].id, prompt[s]);
        for (uint32_t i = 0; i < 270; i++) {
            memcpy(want[s][i], one(seq, ids[s].id[prompt[s] + i]), sizeof want[s][i]);
        }
        pkv_seq_close(seq);
    }
    struct pkv_seq *seq[3];
    for (uint32_t s = 0; s < 3; s++) {
        seq[s] = open_seq(&engine);
        (void)feed(seq[s], ids[s].id, prompt[s]);
    }
    for (uint32_t i = 0; i < 200; i++) {
        struct pkv_step_part part[3];
        const float *logits = NULL;
        for (uint32_t s = 0; s < 3; s++) {
            part[s] = (struct pkv_step_part){
                .seq = seq[s], .ids = &ids[s].id[prompt[s] + i], .count = 1, .logit_rows = 1};
        }
        assert_ok(pkv_step_run(engine.session, part, 3, &logits));
        for (uint32_t s = 0; s < 3; s++) {
            assert_memory_equal(logits + s * VOCAB, want[s][i], sizeof want[s][i]);
        }
    }
    const float *logits = NULL;
    enum pkv_status status = PKV_PENDING;
    assert_ok(pkv_prompt_begin(engine.session, seq[0], ids[0].id + prompt[0] + 200, 70));
    for (uint32_t i = 200; status == PKV_PENDING; i++) {
        status = pkv_prompt_advance(engine.session, 5, &logits);
        if (status == PKV_PENDING && i < 270) {
            assert_memory_equal(one(seq[2], ids[2].id[prompt[2] + i]), want[2][i],
                                sizeof want[2][i]);
        }
    }
    assert_ok(status);
    assert_memory_equal(logits, want[0][269], sizeof want[0][269]);
    for (uint32_t s = 0; s < 3; s++) {
        pkv_seq_close(seq[s]);
        pkv_ids_free(&ids[s]);
    }
    pkvt_engine_close(&engine);
}

/* A first prompt that is left is forgotten; of a later one the tokens that were begun are there. */
static void test_prune_session__prompt_left__begins_anew_or_goes_on(void **state)
{
    (void)state;
    struct pkvt_engine_options options = exact;
    struct pkvt_engine engine;
    struct pkv_ids ids = random_ids(9, 420);
    float want[VOCAB];
    const float *logits = NULL;
    options.step_rows = 64;
    open_tiny(&engine, &options);
    struct pkv_seq *seq = open_seq(&engine);
    (void)feed(seq, ids.id, 400);
    for (uint32_t i = 400; i < 420; i++) {
        logits = one(seq, ids.id[i]);
    }
    memcpy(want, logits, sizeof want);
    assert_ok(pkv_seq_truncate(seq, 0));
    assert_ok(pkv_prompt_begin(engine.session, seq, ids.id, 400));
    assert_status(pkv_prompt_advance(engine.session, 17, &logits), PKV_PENDING);
    assert_ok(pkv_prompt_cancel(engine.session));
    assert_int_equal(pkv_seq_tokens(seq), 0);
    (void)feed(seq, ids.id, 400);
    assert_ok(pkv_prompt_begin(engine.session, seq, ids.id + 400, 20));
    assert_status(pkv_prompt_advance(engine.session, 2 * engine.info.layers + 1, &logits),
                  PKV_PENDING);
    assert_ok(pkv_prompt_cancel(engine.session));
    assert_int_equal(pkv_seq_tokens(seq), 403);
    assert_memory_equal(feed(seq, ids.id + 403, 17), want, sizeof want);
    pkv_seq_close(seq);
    pkvt_engine_close(&engine);
    pkv_ids_free(&ids);
}

static void assert_refused(enum pkv_status status, enum pkv_status want, const char *word)
{
    assert_status(status, want);
    assert_non_null(strstr(pkv_error_text(), word));
    assert_non_null(strstr(pkv_error_text(), "pyramidinfer"));
}

static void test_prune_session__what_cannot_be__refused_by_name(void **state)
{
    (void)state;
    struct pkvt_engine_options options = exact;
    struct pkvt_engine engine;
    struct pkv_ids ids = random_ids(2, 700);
    struct pkv_seq *fork = NULL;
    struct pkv_saved_info info = {.ids = ids.id, .id_count = (uint32_t)ids.count};
    options.sequences = 2;
    options.prompt_rows = 300;
    open_tiny(&engine, &options);
    struct pkv_seq *seq = open_seq(&engine);
    struct pkv_step_part part = {.seq = seq, .ids = ids.id, .count = 2, .logit_rows = 1};
    assert_refused(pkv_step_run(engine.session, &part, 1, NULL), PKV_ERR_UNSUPPORTED, "2 rows");
    assert_refused(pkv_prompt_begin(engine.session, seq, ids.id, 301), PKV_ERR_RANGE, "300 rows");
    (void)feed(seq, ids.id, 300);
    assert_refused(pkv_seq_truncate(seq, 299), PKV_ERR_RANGE, "299");
    assert_ok(pkv_seq_truncate(seq, 300));
    assert_refused(pkv_seq_fork(seq, &fork), PKV_ERR_UNSUPPORTED, "fork");
    assert_refused(pkv_seq_park(seq), PKV_ERR_UNSUPPORTED, "park");
    assert_refused(pkv_seq_save(seq, "/nonexistent/file", &info), PKV_ERR_UNSUPPORTED, "save");
    assert_int_equal(pkv_seq_tokens(seq), 300);
    (void)one(seq, 5);
    pkv_seq_close(seq);
    struct pkv_memory_plan plan;
    struct pkv_session_config config = engine.config;
    config.kv_budget_bytes = 1 << 20;
    assert_refused(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_INVALID, "budget");
    config = engine.config;
    config.parked_sequences = 1;
    assert_refused(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_INVALID, "parked");
    config = engine.config;
    config.kv_pyramid = PKV_PYRAMID_COSINE;
    assert_refused(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_INVALID, "pyramid");
    config = engine.config;
    config.kv_device_bytes = 100000;
    assert_status(pkv_session_plan(engine.model, &config, &plan), PKV_ERR_NO_MEMORY);
    pkvt_engine_close(&engine);
    struct pkv_device *device = NULL;
    struct pkv_model *model = NULL;
    const struct pkv_device_config device_config = pkv_device_config_default();
    const struct pkv_model_config model_config = pkv_model_config_default();
    assert_ok(pkv_device_open("cpu", &device_config, &device));
    assert_ok(pkv_model_open(device, pkvt_path("golden/tiny/gemma3.gguf"), &model_config, &model));
    config = engine.config;
    assert_refused(pkv_session_plan(model, &config, &plan), PKV_ERR_UNSUPPORTED, "window");
    pkv_model_close(model);
    pkv_device_close(device);
    pkv_ids_free(&ids);
}

/* Less memory than all entries take; with every length of a prompt what may follow fits. */
static void test_prune_session__any_prompt__fits_the_pages_planned(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_memory_plan all;
    struct pkv_policy_ops policy = *pkv_policy_find("pyramidinfer");
    struct pkv_prune prune = *policy.prune;
    prune.decay = 0.4;
    policy.prune = &prune;
    open_tiny(&engine, &exact);
    reopen(&engine, &policy);
    struct pkv_session_config config = engine.config;
    config.kv_policy = PKV_KV_DEVICE;
    config.policy = NULL;
    assert_ok(pkv_session_plan(engine.model, &config, &all));
    assert_true(engine.session->tier_sizes.pool_bytes < all.kv_sequence_bytes);
    for (uint32_t tokens = 1; tokens <= engine.config.context_tokens; tokens++) {
        assert_ok(pkvi_tier_check_prompt(engine.session->tier, tokens));
    }
    pkvt_engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune_session__golden__as_in_double_precision),
        cmocka_unit_test(test_prune_session__full_attention__far_from_golden),
        cmocka_unit_test(test_prune_session__nothing_dropped__bits_of_full_attention),
        cmocka_unit_test(test_prune_session__batches_and_more_prompts__as_alone),
        cmocka_unit_test(test_prune_session__prompt_left__begins_anew_or_goes_on),
        cmocka_unit_test(test_prune_session__what_cannot_be__refused_by_name),
        cmocka_unit_test(test_prune_session__any_prompt__fits_the_pages_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
