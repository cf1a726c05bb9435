/* LONG: at full size every budget, chunking and interruption gives the bits of K and V in memory:
 * SmolLM2 at 7,680 tokens, Gemma 3 at 16,384, one sequence and eight. */
#include "tests/support/golden_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 24u
#define MANY 8u

enum interruption { NOTHING, SAVED, PARKED, FORKED, PREEMPTED };

struct way {
    const char *name;
    uint32_t percent; /* 0: the policy device */
    uint32_t piece;   /* tokens fed at once, 0 = all */
    enum interruption interruption;
};

struct work {
    const char *model;
    uint32_t tokens; /* at the end */
    int32_t *ids;    /* [tokens] */
    float *want, *got;
    uint32_t vocab;
};

/* Both texts, one after the other, as often as it takes. */
static void read_ids(const struct pkvt_engine *engine, struct work *work)
{
    work->ids = malloc(work->tokens * sizeof *work->ids);
    assert_non_null(work->ids);
    for (uint32_t at = 0, round = 0; at < work->tokens; round++) {
        struct pkv_ids text = pkvt_golden_ids(engine, round % 2 ? "report" : "code");
        for (size_t i = 0; i < text.count && at < work->tokens; i++) {
            work->ids[at++] = text.id[i];
        }
        pkv_ids_free(&text);
    }
}

static void open_engine(const struct work *work, const struct way *way, uint32_t sequences,
                        struct pkvt_engine *engine)
{
    struct pkvt_engine_options options = {.context = work->tokens,
                                          .sequences = sequences,
                                          .parked = way->percent > 0 ? 1 : 0,
                                          .logit_rows = sequences};
    if (way->percent > 0) {
        struct pkvt_engine plain;
        struct pkv_memory_plan plan;
        const struct pkvt_engine_options small = {.context = 64};
        pkvt_engine_open(&plain, work->model, &small);
        assert_ok(pkv_session_plan(plain.model, &plain.config, &plan));
        pkvt_engine_close(&plain);
        options.budget_bytes = plan.kv_token_bytes * work->tokens * way->percent / 100;
    }
    pkvt_engine_open(engine, work->model, &options);
}

static void interrupt(struct pkvt_engine *engine, const struct work *work, enum interruption kind,
                      struct pkv_seq **seq)
{
    struct pkv_seq *other = NULL;
    struct pkv_saved *saved = NULL;
    char path[64];
    const struct pkv_saved_info info = {.ids = work->ids, .id_count = work->tokens};
    switch (kind) {
    case SAVED:
        snprintf(path, sizeof path, P_tmpdir "/kv_long.%ld.kv", (long)getpid());
        assert_ok(pkv_seq_save(*seq, path, &info));
        pkv_seq_close(*seq);
        assert_ok(pkv_saved_open(path, &saved));
        assert_ok(pkv_seq_load(engine->session, saved, seq));
        pkv_saved_close(saved);
        unlink(path);
        break;
    case PARKED:
        assert_ok(pkv_seq_park(*seq));
        assert_ok(pkv_seq_unpark(*seq));
        break;
    case FORKED:
        assert_ok(pkv_seq_fork(*seq, &other));
        pkv_seq_close(*seq);
        *seq = other;
        break;
    default:
        break;
    }
}

/* A prompt in the pieces of this way, or unit by unit with steps of another sequence in between. */
static void feed(struct pkvt_engine *engine, const struct work *work, const struct way *way,
                 struct pkv_seq *seq, uint32_t prompt)
{
    const float *logits = NULL;
    struct pkv_seq *other = NULL;
    if (way->interruption != PREEMPTED) {
        for (uint32_t at = 0; at < prompt;) {
            const uint32_t piece = way->piece ? way->piece : prompt, left = prompt - at;
            const uint32_t count = piece < left ? piece : left;
            assert_ok(pkv_prompt_run(engine->session, seq, work->ids + at, count, NULL, &logits));
            at += count;
        }
        return;
    }
    uint32_t steps = 0;
    assert_ok(pkv_seq_open(engine->session, &other));
    assert_ok(pkv_prompt_begin(engine->session, seq, work->ids, prompt));
    while (pkv_prompt_advance(engine->session, 5, &logits) == PKV_PENDING) {
        const struct pkv_step_part part = {other, work->ids + steps++, 1, 1};
        assert_ok(pkv_step_run(engine->session, &part, 1, &logits));
    }
    assert_int_equal(pkv_seq_tokens(seq), prompt);
    assert_true(steps > 50);
    pkv_seq_close(other);
}

/* A prompt, the interruption, then steps; their logits: f32 [STEPS][vocab]. */
static void run_one(const struct work *work, const struct way *way, float *out)
{
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    const uint32_t prompt = work->tokens - STEPS;
    open_engine(work, way, way->interruption >= FORKED ? 2 : 1, &engine);
    assert_ok(pkv_seq_open(engine.session, &seq));
    feed(&engine, work, way, seq, prompt);
    interrupt(&engine, work, way->interruption, &seq);
    for (uint32_t i = 0; i < STEPS; i++) {
        const struct pkv_step_part part = {seq, work->ids + prompt + i, 1, 1};
        assert_ok(pkv_step_run(engine.session, &part, 1, &logits));
        memcpy(out + (size_t)i * work->vocab, logits, work->vocab * sizeof *out);
    }
    struct pkv_kv_report report;
    pkv_session_kv_report(engine.session, &report);
    print_message("%s: %.0f MB written to the host, %.0f MB read back\n", way->name,
                  (double)report.stored_bytes / 1e6, (double)report.loaded_bytes / 1e6);
    assert_true((way->percent > 0 && way->percent < 100) == (report.loaded_tiles > 0));
    pkvt_engine_close(&engine);
}

/* Eight sequences with one past, each of which goes its own way. */
static void run_many(const struct work *work, const struct way *way, float *out)
{
    struct pkvt_engine engine;
    struct pkv_seq *seq[MANY] = {NULL};
    const float *logits = NULL;
    const uint32_t prompt = work->tokens - STEPS;
    open_engine(work, way, MANY, &engine);
    assert_ok(pkv_seq_open(engine.session, &seq[0]));
    assert_ok(pkv_prompt_run(engine.session, seq[0], work->ids, prompt, NULL, &logits));
    for (uint32_t s = 1; s < MANY; s++) {
        assert_ok(pkv_seq_fork(seq[0], &seq[s]));
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        struct pkv_step_part part[MANY];
        for (uint32_t s = 0; s < MANY; s++) {
            part[s] = (struct pkv_step_part){seq[s], work->ids + i * MANY + s, 1, 1};
        }
        assert_ok(pkv_step_run(engine.session, part, MANY, &logits));
    }
    memcpy(out, logits, (size_t)MANY * work->vocab * sizeof *out);
    pkvt_engine_close(&engine);
}

static void compare(const struct work *work, const struct way *way, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        if (memcmp(work->want + (size_t)i * work->vocab, work->got + (size_t)i * work->vocab,
                   work->vocab * sizeof *work->got) != 0) {
            fail_msg("%s: logits of row %u are others than in memory", way->name, i);
        }
    }
}

static void check(const char *model, uint32_t tokens, const struct way *ways, uint32_t count,
                  bool many)
{
    struct work work = {.model = model, .tokens = tokens};
    const struct way plain = {.name = "in memory"};
    struct pkvt_engine engine;
    const struct pkvt_engine_options options = {.context = 64};
    pkvt_engine_open(&engine, model, &options);
    work.vocab = engine.info.vocab;
    read_ids(&engine, &work);
    pkvt_engine_close(&engine);
    const uint32_t rows = STEPS > MANY ? STEPS : MANY;
    work.want = malloc((size_t)rows * work.vocab * sizeof *work.want);
    work.got = malloc((size_t)rows * work.vocab * sizeof *work.got);
    assert_true(work.want && work.got);
    if (many) {
        run_many(&work, &plain, work.want);
    } else {
        run_one(&work, &plain, work.want);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (many) {
            run_many(&work, &ways[i], work.got);
        } else {
            run_one(&work, &ways[i], work.got);
        }
        compare(&work, &ways[i], many ? MANY : STEPS);
    }
    free(work.ids);
    free(work.want);
    free(work.got);
}

static const char *smollm2, *gemma3;

static void test_smollm2__7680_tokens__bits_of_memory(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {"10 %, at once", 10, 0, NOTHING},
        {"10 %, pieces of 1,111, forked", 10, 1111, FORKED},
        {"25 %, pieces of 700, saved and loaded", 25, 700, SAVED},
        {"100 %, parked", 100, 0, PARKED},
        {"25 %, parked", 25, 0, PARKED},
        {"10 %, steps of another sequence within the prompt", 10, 0, PREEMPTED},
    };
    check(smollm2, 7680, ways, sizeof ways / sizeof ways[0], false);
}

static void test_smollm2__eight_sequences__bits_of_memory(void **state)
{
    (void)state;
    static const struct way ways[] = {{"8 x 10 %", 10, 0, NOTHING}, {"8 x 25 %", 25, 0, NOTHING}};
    check(smollm2, 7680, ways, sizeof ways / sizeof ways[0], true);
}

static void test_gemma3__16384_tokens__bits_of_memory(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {"10 %, pieces of 5,000, saved and loaded", 10, 5000, SAVED},
        {"25 %, forked", 25, 0, FORKED},
        {"100 %, parked", 100, 0, PARKED},
        {"25 %, steps of another sequence within the prompt", 25, 0, PREEMPTED},
    };
    check(gemma3, 16384, ways, sizeof ways / sizeof ways[0], false);
}

int main(void)
{
    smollm2 = pkvt_model_path("smollm2");
    gemma3 = pkvt_model_path("gemma3");
    if (!smollm2 || !gemma3) {
        print_message("SKIP: no models: scripts/get-model smollm2, scripts/get-model gemma3\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2__7680_tokens__bits_of_memory),
        cmocka_unit_test(test_smollm2__eight_sequences__bits_of_memory),
        cmocka_unit_test(test_gemma3__16384_tokens__bits_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
