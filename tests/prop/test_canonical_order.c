/*
 * The same row alone or among 3, 8, 512 rows, with 1 or 2 threads, its prompt fed in pieces of 1,
 * 7, 64, 512: bit-equal logits. Method: one sequence of random ids is the subject; others are
 * random company.
 */
#include "tests/support/golden_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 600u
#define VOCAB 320u

static const char *const models[] = {"llama_q4_1", "llama_q6_k", "llama_q4_k", "llama_q8_0",
                                     "llama",      "gemma3",     "qwen3",      "llama_bf16"};

static void random_ids(struct pkvt_rng *rng, int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (int32_t)pkvt_rng_below(rng, VOCAB);
    }
}

static void open_tiny(struct pkvt_engine *engine, const char *name, uint32_t threads,
                      uint32_t sequences, uint32_t step_rows)
{
    char file[128];
    const struct pkvt_engine_options options = {.threads = threads,
                                                .kv_type = PKV_KV_F16,
                                                .context = TOKENS + 64,
                                                .sequences = sequences,
                                                .step_rows = step_rows};
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", name);
    pkvt_engine_open(engine, pkvt_path(file), &options);
}

/* Logits after all ids, fed `piece` at a time beside `company` other sequences that take one row
 * each. */
static void run(const char *name, uint32_t threads, uint32_t piece, uint32_t company,
                const int32_t *ids, float *out)
{
    struct pkvt_engine engine;
    struct pkvt_rng rng = {.state = 77 + piece + company};
    struct pkv_step_part parts[16];
    struct pkv_seq *seqs[16];
    int32_t other[16];
    const float *logits = NULL;
    open_tiny(&engine, name, threads, company + 1, piece + company);
    for (uint32_t i = 0; i <= company; i++) {
        assert_ok(pkv_seq_open(engine.session, &seqs[i]));
    }
    for (uint32_t done = 0; done < TOKENS;) {
        uint32_t count = TOKENS - done < piece ? TOKENS - done : piece;
        uint32_t place = company / 2; // the subject stands in the middle of its company
        for (uint32_t i = 0; i <= company; i++) {
            other[i] = (int32_t)pkvt_rng_below(&rng, VOCAB);
            parts[i] = (struct pkv_step_part){.seq = seqs[i], .ids = &other[i], .count = 1};
        }
        parts[place].ids = ids + done;
        parts[place].count = count;
        parts[place].logit_rows = 1;
        assert_ok(pkv_step_run(engine.session, parts, company + 1, &logits));
        done += count;
    }
    memcpy(out, logits, VOCAB * sizeof *out);
    pkvt_engine_close(&engine);
}

static void test_rows__any_company_threads_pieces__bit_equal(void **state)
{
    (void)state;
    static const struct {
        uint32_t threads, piece, company;
    } ways[] = {{2, 512, 0}, {1, 64, 0}, {2, 7, 0}, {2, 1, 2}, {1, 1, 7}, {2, 64, 7}, {2, 600, 3}};
    // Sanitizers look at the code paths, which two models have: quantised and float, global and
    // sliding.
    const size_t step = PKVT_SANITIZED ? 5 : 1;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m += step) {
        struct pkvt_rng rng = {.state = 1000 + m};
        int32_t ids[TOKENS];
        float want[VOCAB], got[VOCAB];
        random_ids(&rng, ids, TOKENS);
        run(models[m], 1, 512, 0, ids, want);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            run(models[m], ways[w].threads, ways[w].piece, ways[w].company, ids, got);
            for (uint32_t v = 0; v < VOCAB; v++) {
                if (memcmp(&want[v], &got[v], sizeof(float)) != 0) {
                    fail_msg("%s: %u threads, pieces of %u, %u other rows: logit %u is %.9g, "
                             "expected %.9g",
                             models[m], ways[w].threads, ways[w].piece, ways[w].company, v,
                             (double)got[v], (double)want[v]);
                }
            }
        }
    }
}

/* Truncate and go on: equal to a run that never went the other way. */
static void test_truncate__then_other_tokens__equals_fresh_run(void **state)
{
    (void)state;
    const uint32_t cuts[] = {0, 1, 31, 32, 33, 100};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        struct pkvt_engine engine;
        struct pkvt_rng rng = {.state = 5 + c};
        int32_t first[140], second[140];
        float want[VOCAB];
        const float *logits = NULL;
        struct pkv_seq *seq = NULL;
        open_tiny(&engine, "llama_q4_1", 2, 1, 64);
        random_ids(&rng, first, 140);
        random_ids(&rng, second, 140);
        memcpy(second, first, cuts[c] * sizeof *first);
        pkvt_last_logits(&engine, second, 140, want);
        assert_ok(pkv_seq_open(engine.session, &seq));
        assert_ok(pkv_prompt_run(engine.session, seq, first, 140, NULL, &logits));
        assert_ok(pkv_seq_truncate(seq, cuts[c]));
        assert_int_equal(pkv_seq_tokens(seq), cuts[c]);
        assert_ok(
            pkv_prompt_run(engine.session, seq, second + cuts[c], 140 - cuts[c], NULL, &logits));
        assert_memory_equal(logits, want, sizeof want);
        pkvt_engine_close(&engine);
    }
}

/* Sliding layers keep a ring: truncation that would need what it overwrote is refused, and changes
 * nothing. */
static void test_truncate__sliding_ring_overwritten__refused(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkvt_rng rng = {.state = 9};
    int32_t ids[TOKENS], other[TOKENS];
    float want[VOCAB];
    const float *logits = NULL;
    struct pkv_seq *seq = NULL;
    open_tiny(&engine, "gemma3", 2, 1, 32);
    random_ids(&rng, ids, TOKENS);
    memcpy(other, ids, sizeof ids);
    random_ids(&rng, other + TOKENS - 20, 20);
    pkvt_last_logits(&engine, other, TOKENS, want);
    assert_ok(pkv_seq_open(engine.session, &seq));
    assert_ok(pkv_prompt_run(engine.session, seq, ids, TOKENS, NULL, &logits));
    assert_status(pkv_seq_truncate(seq, 100), PKV_ERR_RANGE);
    assert_int_equal(pkv_seq_tokens(seq), TOKENS);
    assert_status(pkv_seq_truncate(seq, TOKENS + 1), PKV_ERR_RANGE);
    assert_ok(pkv_seq_truncate(seq, TOKENS - 20)); // the ring has room for a window and a step
    assert_ok(pkv_prompt_run(engine.session, seq, other + TOKENS - 20, 20, NULL, &logits));
    assert_memory_equal(logits, want, sizeof want);
    pkvt_engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__any_company_threads_pieces__bit_equal),
        cmocka_unit_test(test_truncate__then_other_tokens__equals_fresh_run),
        cmocka_unit_test(test_truncate__sliding_ring_overwritten__refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
