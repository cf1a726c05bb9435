/*
 * Policy full under any budget gives the bits of a session whose K and V are all on the device.
 * Method: the same random operations (steps of some sequences, prompts, cuts, closing, forks,
 * canceled prompts) on two sessions of one tiny model; logits are compared byte for byte. The one
 * under test has room for fewer sequences on its device: the others are parked.
 */
#include "tests/support/golden_model.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT 700u
#define VOCAB 320u
#define SEQUENCES 4u
#define ACTIVE 3u /* on the device of the one under test */
#define PARKED 2u
#define STEP_ROWS 96u

static const char *const models[] = {"llama_q4_1", "gemma3", "llama", "qwen3"};

struct pair {
    struct pkvt_engine plain, tier;
    struct pkv_seq *a[SEQUENCES], *b[SEQUENCES];
    uint32_t streamed;         /* steps that ended with a streamed layer */
    uint32_t within;           /* prompts canceled within a pass */
    uint32_t parked, reloaded; /* times that a sequence was */
    uint32_t preempted;        /* times that others ran within a prompt */
    char file[64];
};

static struct {
    uint32_t within, parked, reloaded, streamed, checks, preempted;
} seen; /* of all seeds */

/* Bytes that a sequence has at the context's end, and the least budget, told by the refusal. */
static void open_pair(struct pair *pair, const char *name, uint32_t permille, uint64_t seed)
{
    char file[128];
    struct pkvt_engine_options options = {.threads = 1 + seed % 2,
                                          .kv_type = seed % 3 == 0 ? PKV_KV_F32 : PKV_KV_F16,
                                          .context = CONTEXT,
                                          .sequences = SEQUENCES,
                                          .step_rows = STEP_ROWS};
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", name);
    memset(pair, 0, sizeof *pair);
    snprintf(pair->file, sizeof pair->file, P_tmpdir "/kv_full.%ld.kv", (long)getpid());
    pkvt_engine_open(&pair->plain, pkvt_path(file), &options);
    struct pkv_memory_plan plan;
    assert_ok(pkv_session_plan(pair->plain.model, &pair->plain.config, &plan));
    options.budget_bytes = plan.kv_token_bytes * CONTEXT * permille / 1000;
    options.recent = 1 + (uint32_t)(seed * 29 % 90);
    options.prompt_rows = seed % 2 ? 0 : 200;
    options.resident = (enum pkv_full_resident)(seed % 3);
    options.sequences = ACTIVE;
    options.check_steps = seed % 2 ? 3 : 0;
    options.parked = PARKED;
    options.schedule = seed % 4 == 3 ? PKV_SCHEDULE_RANDOM : PKV_SCHEDULE_WORKERS;
    options.seed = seed;
    struct pkv_session_config least = pair->plain.config;
    least.kv_policy = PKV_KV_FULL;
    least.kv_budget_bytes = options.budget_bytes;
    least.kv_recent = options.recent;
    least.sequences = ACTIVE;
    if (pkv_session_plan(pair->plain.model, &least, &plan) == PKV_ERR_RANGE) {
        const char *last = strrchr(pkv_error_text(), ' ');
        options.budget_bytes = strtoull(last, NULL, 10) * 1024;
        assert_true(options.budget_bytes > 0);
    }
    pkvt_engine_open(&pair->tier, pkvt_path(file), &options);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct pkv_seq *refused = NULL;
        if (s == ACTIVE) {
            assert_status(pkv_seq_open(pair->tier.session, &refused), PKV_ERR_NO_SLOT);
            assert_ok(pkv_seq_park(pair->b[0]));
        }
        assert_ok(pkv_seq_open(pair->plain.session, &pair->a[s]));
        assert_ok(pkv_seq_open(pair->tier.session, &pair->b[s]));
    }
}

/* Device memory for one sequence more: of those that have some, another one than `keep` parks. */
static void make_room(struct pair *pair, struct pkvt_rng *rng, uint32_t keep)
{
    uint32_t active = 0, parked = 0, victim = pkvt_rng_below(rng, SEQUENCES);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        active += pair->b[s] && !pkv_seq_parked(pair->b[s]);
        parked += pair->b[s] && pkv_seq_parked(pair->b[s]);
    }
    const bool spare = active > 1 && parked < PARKED && pkvt_rng_below(rng, 4) == 0;
    if (active == ACTIVE || spare) {
        while (!pair->b[victim] || victim == keep || pkv_seq_parked(pair->b[victim])) {
            victim = (victim + 1) % SEQUENCES;
        }
        assert_ok(pkv_seq_park(pair->b[victim]));
        pair->parked++;
    }
}

/* A sequence that may run. */
static uint32_t pick(struct pair *pair, struct pkvt_rng *rng)
{
    const uint32_t s = pkvt_rng_below(rng, SEQUENCES);
    if (pkv_seq_parked(pair->b[s])) {
        make_room(pair, rng, s);
        assert_ok(pkv_seq_unpark(pair->b[s]));
    }
    return s;
}

static void close_pair(struct pair *pair)
{
    pkvt_engine_close(&pair->plain);
    pkvt_engine_close(&pair->tier);
}

static void random_ids(struct pkvt_rng *rng, int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (int32_t)pkvt_rng_below(rng, VOCAB);
    }
}

static void assert_same(const float *want, const float *got, uint32_t rows, const char *what,
                        uint64_t seed, uint32_t step)
{
    for (uint32_t i = 0; i < rows * VOCAB; i++) {
        if (memcmp(&want[i], &got[i], sizeof *want) != 0) {
            fail_msg("seed %llu, operation %u (%s): logit %u is %.9g, want %.9g",
                     (unsigned long long)seed, step, what, i, (double)got[i], (double)want[i]);
        }
    }
}

static uint32_t room(const struct pair *pair, uint32_t s)
{
    return CONTEXT - pkv_seq_tokens(pair->a[s]);
}

static void random_step(struct pair *pair, struct pkvt_rng *rng, uint64_t seed, uint32_t number)
{
    int32_t ids[SEQUENCES][STEP_ROWS];
    struct pkv_step_part a[SEQUENCES], b[SEQUENCES];
    const float *want = NULL, *got = NULL;
    const uint32_t most = pkvt_rng_below(rng, 3) == 0 ? STEP_ROWS / SEQUENCES : 3;
    uint32_t count = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t rows = 1 + pkvt_rng_below(rng, pkvt_rng_below(rng, 6) == 0 ? 90 : most);
        rows = count > 0 && rows > most ? most : rows;
        if (rows > room(pair, s) || pkvt_rng_below(rng, 3) == 0 || (count > 0 && a[0].count > 40) ||
            pkv_seq_parked(pair->b[s])) {
            continue;
        }
        random_ids(rng, ids[s], rows);
        a[count] = (struct pkv_step_part){pair->a[s], ids[s], rows, 1};
        b[count] = a[count];
        b[count++].seq = pair->b[s];
    }
    if (count > 0) {
        assert_ok(pkv_step_run(pair->plain.session, a, count, &want));
        assert_ok(pkv_step_run(pair->tier.session, b, count, &got));
        assert_same(want, got, count, "step", seed, number);
    }
}

static void random_prompt(struct pair *pair, struct pkvt_rng *rng, uint64_t seed, uint32_t number)
{
    int32_t ids[CONTEXT];
    const float *want = NULL, *got = NULL;
    const uint32_t s = pick(pair, rng);
    const uint32_t rows = 1 + pkvt_rng_below(rng, 600);
    if (rows <= room(pair, s)) {
        random_ids(rng, ids, rows);
        assert_ok(pkv_prompt_run(pair->plain.session, pair->a[s], ids, rows, NULL, &want));
        assert_ok(pkv_prompt_run(pair->tier.session, pair->b[s], ids, rows, NULL, &got));
        assert_same(want, got, 1, "prompt", seed, number);
    }
}

/* A step of the others, between two units of a prompt. */
static void step_beside(struct pair *pair, struct pkvt_rng *rng, uint32_t prompt, uint64_t seed,
                        uint32_t number)
{
    int32_t ids[SEQUENCES][PKV_PAGE_TOKENS];
    struct pkv_step_part a[SEQUENCES], b[SEQUENCES];
    const float *want = NULL, *got = NULL;
    uint32_t count = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        const uint32_t rows = 1 + pkvt_rng_below(rng, pkvt_rng_below(rng, 4) ? 3 : PKV_PAGE_TOKENS);
        if (s != prompt && rows <= room(pair, s) && !pkv_seq_parked(pair->b[s]) &&
            pkvt_rng_below(rng, 2)) {
            random_ids(rng, ids[s], rows);
            a[count] = (struct pkv_step_part){pair->a[s], ids[s], rows, 1};
            b[count] = a[count];
            b[count++].seq = pair->b[s];
        }
    }
    if (count > 0) {
        assert_ok(pkv_step_run(pair->plain.session, a, count, &want));
        assert_ok(pkv_step_run(pair->tier.session, b, count, &got));
        assert_same(want, got, count, "step beside a prompt", seed, number);
    }
    struct pkv_step_part part = {pair->b[prompt], ids[0], 1, 1};
    ids[0][0] = 1;
    assert_status(pkv_step_run(pair->tier.session, &part, 1, &got), PKV_ERR_STATE);
    assert_status(pkv_seq_truncate(pair->b[prompt], 0), PKV_ERR_STATE);
}

/* A prompt in pieces of units, steps of the others in between; or it is left on the way. */
static void interrupted_prompt(struct pair *pair, struct pkvt_rng *rng, uint64_t seed,
                               uint32_t number)
{
    int32_t ids[CONTEXT];
    float last[VOCAB];
    const float *want = NULL, *got = NULL;
    const uint32_t s = pick(pair, rng), before = pkv_seq_tokens(pair->a[s]);
    const uint32_t rows = 1 + pkvt_rng_below(rng, 500);
    if (rows > room(pair, s)) {
        return;
    }
    const bool leave = pkvt_rng_below(rng, 3) == 0;
    random_ids(rng, ids, rows);
    assert_ok(pkv_prompt_begin(pair->tier.session, pair->b[s], ids, rows));
    enum pkv_status status = PKV_PENDING;
    while (status == PKV_PENDING && !(leave && pkvt_rng_below(rng, 5) == 0)) {
        status = pkv_prompt_advance(pair->tier.session, 1 + pkvt_rng_below(rng, 4), &got);
        if (status == PKV_PENDING) {
            step_beside(pair, rng, s, seed, number);
            pair->preempted++;
        }
    }
    if (status == PKV_OK) {
        memcpy(last, got, sizeof last);
        assert_ok(pkv_prompt_run(pair->plain.session, pair->a[s], ids, rows, NULL, &want));
        assert_same(want, last, 1, "interrupted prompt", seed, number);
        return;
    }
    assert_int_equal(status, PKV_PENDING);
    assert_ok(pkv_prompt_cancel(pair->tier.session));
    const uint32_t after = pkv_seq_tokens(pair->b[s]);
    if (after < before) {
        assert_int_equal(after, 0); /* a ring lost its window */
        assert_ok(pkv_seq_truncate(pair->a[s], 0));
    } else if (after > before) {
        assert_ok(
            pkv_prompt_run(pair->plain.session, pair->a[s], ids, after - before, NULL, &want));
    }
}

static void cut(struct pair *pair, uint32_t s, uint32_t tokens)
{
    const enum pkv_status status = pkv_seq_truncate(pair->a[s], tokens);
    const enum pkv_status other = pkv_seq_truncate(pair->b[s], tokens);
    if (status != PKV_OK || other != PKV_OK) { /* a ring; it may have lost more in one of them */
        assert_ok(pkv_seq_truncate(pair->a[s], 0));
        assert_ok(pkv_seq_truncate(pair->b[s], 0));
    }
    assert_int_equal(pkv_seq_tokens(pair->a[s]), pkv_seq_tokens(pair->b[s]));
}

static void close_both(struct pair *pair, uint32_t s)
{
    pkv_seq_close(pair->a[s]);
    pkv_seq_close(pair->b[s]);
    pair->a[s] = pair->b[s] = NULL;
}

/* A sequence goes on from a file: its own, or what the other session saved of it. */
static void random_reload(struct pair *pair, struct pkvt_rng *rng)
{
    const uint32_t s = pkvt_rng_below(rng, SEQUENCES), tokens = pkv_seq_tokens(pair->a[s]);
    struct pkv_seq *from = pkvt_rng_below(rng, 2) ? pair->a[s] : pair->b[s];
    int32_t ids[CONTEXT];
    const struct pkv_saved_info info = {
        .ids = ids, .id_count = tokens, .note = "x", .note_bytes = 1};
    struct pkv_saved *saved = NULL;
    random_ids(rng, ids, tokens);
    if (tokens == 0) {
        assert_status(pkv_seq_save(from, pair->file, &info), PKV_ERR_RANGE);
        return;
    }
    assert_ok(pkv_seq_save(from, pair->file, &info));
    pkv_seq_close(pair->b[s]);
    pair->b[s] = NULL;
    make_room(pair, rng, s);
    assert_ok(pkv_saved_open(pair->file, &saved));
    assert_ok(pkv_seq_load(pair->tier.session, saved, &pair->b[s]));
    pkv_saved_close(saved);
    assert_int_equal(pkv_seq_tokens(pair->b[s]), tokens);
    pair->reloaded++;
}

/* One sequence's place is taken by a fork of another. */
static void random_fork(struct pair *pair, struct pkvt_rng *rng)
{
    const uint32_t from = pick(pair, rng),
                   to = (from + 1 + pkvt_rng_below(rng, SEQUENCES - 1)) % SEQUENCES;
    close_both(pair, to);
    make_room(pair, rng, from);
    assert_ok(pkv_seq_fork(pair->a[from], &pair->a[to]));
    assert_ok(pkv_seq_fork(pair->b[from], &pair->b[to]));
}

static void random_cut(struct pair *pair, struct pkvt_rng *rng)
{
    const uint32_t s = pkvt_rng_below(rng, SEQUENCES), tokens = pkv_seq_tokens(pair->a[s]);
    if (pkvt_rng_below(rng, 4) == 0) {
        close_both(pair, s);
        make_room(pair, rng, s);
        assert_ok(pkv_seq_open(pair->plain.session, &pair->a[s]));
        assert_ok(pkv_seq_open(pair->tier.session, &pair->b[s]));
    } else if (tokens > 0) {
        uint32_t to = pkvt_rng_below(rng, tokens + 1);
        cut(pair, s, pkvt_rng_below(rng, 3) == 0 ? to / 32 * 32 : to);
    }
}

static volatile int canceled;

static void on_signal(int number)
{
    (void)number;
    canceled = 1;
}

/* Interrupts the thread that runs the prompt after a while, as Ctrl-C would. */
struct canceler {
    pthread_t thread, target;
    uint32_t after_us;
};

static void *cancel_later(void *argument)
{
    const struct canceler *canceler = argument;
    usleep(canceler->after_us);
    pthread_kill(canceler->target, SIGUSR1);
    return NULL;
}

/*
 * A prompt that is canceled at any moment: before a pass, within one, or too late. What is left of
 * it is a number of tokens, at which both sessions must go on alike.
 */
static void canceled_prompt(struct pair *pair, struct pkvt_rng *rng, uint64_t seed, uint32_t number)
{
    int32_t ids[CONTEXT];
    const float *want = NULL, *got = NULL;
    struct canceler canceler = {.target = pthread_self(), .after_us = pkvt_rng_below(rng, 4000)};
    const uint32_t s = pick(pair, rng), before = pkv_seq_tokens(pair->a[s]);
    const uint32_t rows = 200 + pkvt_rng_below(rng, 200);
    if (rows > room(pair, s)) {
        return;
    }
    random_ids(rng, ids, rows);
    canceled = 0;
    assert_int_equal(pthread_create(&canceler.thread, NULL, cancel_later, &canceler), 0);
    const enum pkv_status status =
        pkv_prompt_run(pair->tier.session, pair->b[s], ids, rows, &canceled, &got);
    pair->within += status == PKV_ERR_CANCELED && strstr(pkv_error_text(), "within a pass");
    pthread_join(canceler.thread, NULL);
    const uint32_t after = pkv_seq_tokens(pair->b[s]);
    if (status == PKV_OK) {
        assert_ok(pkv_prompt_run(pair->plain.session, pair->a[s], ids, rows, NULL, &want));
        assert_same(want, got, 1, "prompt, canceled too late", seed, number);
    } else if (after < before) {
        assert_int_equal(status, PKV_ERR_CANCELED);
        assert_int_equal(after, 0); /* a ring lost its window */
        assert_ok(pkv_seq_truncate(pair->a[s], 0));
    } else if (after > before) {
        assert_int_equal(status, PKV_ERR_CANCELED);
        assert_ok(
            pkv_prompt_run(pair->plain.session, pair->a[s], ids, after - before, NULL, &want));
    }
    assert_int_equal(pkv_seq_tokens(pair->a[s]), pkv_seq_tokens(pair->b[s]));
}

static void run_seed(const char *name, uint32_t permille, uint64_t seed, uint32_t operations)
{
    struct pair pair;
    struct pkvt_rng rng = {.state = seed * 7919 + permille};
    struct pkv_kv_report report;
    open_pair(&pair, name, permille, seed);
    for (uint32_t i = 0; i < operations; i++) {
        const uint32_t kind = pkvt_rng_below(&rng, 16);
        if (kind == 0) {
            random_prompt(&pair, &rng, seed, i);
        } else if (kind == 1) {
            random_cut(&pair, &rng);
        } else if (kind == 2) {
            canceled_prompt(&pair, &rng, seed, i);
        } else if (kind == 3) {
            random_fork(&pair, &rng);
        } else if (kind == 4) {
            random_reload(&pair, &rng);
        } else if (kind == 5) {
            interrupted_prompt(&pair, &rng, seed, i);
        } else {
            random_step(&pair, &rng, seed, i);
        }
        pkv_session_kv_report(pair.tier.session, &report);
        pair.streamed += report.streamed_layers > 0;
    }
    assert_true(report.stored_bytes > 0);
    assert_int_equal(report.check_differences, 0);
    assert_true(report.checks == 0 || report.check_least_coverage == 1.0);
    seen.checks += (uint32_t)report.checks;
    if (permille >= 1000) {
        assert_int_equal(report.loaded_tiles, 0); /* what was parked comes back, nothing else */
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        pkv_seq_close(pair.b[s]);
    }
    pkv_session_kv_report(pair.tier.session, &report);
    assert_int_equal(report.pages_used, 0); /* nothing was lost on the way */
    unlink(pair.file);
    seen.within += pair.within;
    seen.parked += pair.parked;
    seen.reloaded += pair.reloaded;
    seen.streamed += pair.streamed;
    seen.preempted += pair.preempted;
    close_pair(&pair);
}

static void test_full__any_budget_and_operations__bits_of_device(void **state)
{
    (void)state;
    static const uint32_t permilles[] = {1, 100, 250, 500, 1000};
    const uint32_t operations = PKVT_SANITIZED ? 40 : 150;
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 5 : 20); seed++) {
        run_seed(models[seed % 4], permilles[seed % 5], seed, operations);
    }
    print_message("%u prompts canceled within a pass, %u times parked, %u saved and loaded, %u "
                  "operations with streamed layers, %u self-checks, %u steps within prompts\n",
                  seen.within, seen.parked, seen.reloaded, seen.streamed, seen.checks,
                  seen.preempted);
    assert_true(seen.within > 0 && seen.parked > 0 && seen.reloaded > 0 && seen.streamed > 20 &&
                seen.checks > 0 && seen.preempted > 0);
}

int main(void)
{
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full__any_budget_and_operations__bits_of_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
