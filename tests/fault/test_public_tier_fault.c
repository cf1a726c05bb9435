/*
 * The n-th device call fails, for every n of a short run of the public tier: opening, a prompt in
 * pieces, an aborted pass, a cut, steps, a fork, parking. Every call tells the failure or succeeds
 * with the right bits; after a failure the tier is closed or says that it is of no more use;
 * nothing leaks (ASan).
 */
#include "tests/support/tier_case.h"

#include <string.h>

#include "runtime/device/dev_fault.h"

#define PROMPT 400u
#define TOKENS ((uint32_t)PKVT_TIER_CONTEXT)
#define RESULTS 4

typedef float results[RESULTS][PKVT_TIER_LAYERS][PKVT_TIER_COLS]; /* of the last row of a pass */

static struct pkv_device *below, *device;
static struct pkv_tier_config config;
static uint32_t ids[PKVT_TIER_CONTEXT];
static pkvt_tier_out out;
static results want, got;

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const enum pkv_status try_status = (expression);                                           \
        if (try_status != PKV_OK) {                                                                \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

static enum pkv_status pass(struct pkvt_tier *t, uint32_t seq, uint32_t rows, uint32_t piece,
                            float kept[PKVT_TIER_LAYERS][PKVT_TIER_COLS])
{
    const struct pkvt_tier_part part = {
        .seq = seq, .first = pkv_tier_seq_tokens(t->tier, seq), .rows = rows, .ids = ids};
    TRY(pkvt_tier_pass(t, &part, 1, piece, out));
    for (uint32_t l = 0; l < PKVT_TIER_LAYERS; l++) {
        memcpy(kept[l], out[l][rows - 1], sizeof kept[l]);
    }
    return PKV_OK;
}

static enum pkv_status abandon(struct pkvt_tier *t, uint32_t seq)
{
    const struct pkv_tier_part part = {.seq = seq, .rows = 30};
    const struct pkvt_tier_part made = {.seq = seq, .first = PROMPT, .rows = 30, .ids = ids};
    TRY(pkv_tier_begin(t->tier, &part, 1));
    TRY(pkvt_tier_layer(t, &made, 1, 0, 0, 30, 0, out));
    return pkv_tier_abort(t->tier);
}

static enum pkv_status work(struct pkvt_tier *t, results kept)
{
    uint32_t seq = 0, fork = 0;
    TRY(pkv_tier_seq_open(t->tier, &seq));
    TRY(pass(t, seq, PROMPT, 3 * PKVT_TIER_STEP_ROWS, kept[0]));
    TRY(abandon(t, seq));
    TRY(pkv_tier_seq_truncate(t->tier, seq, PROMPT - 20));
    TRY(pass(t, seq, 1, 0, kept[1]));
    TRY(pkv_tier_seq_fork(t->tier, seq, &fork));
    TRY(pkv_tier_seq_park(t->tier, seq));
    TRY(pass(t, fork, 40, 0, kept[2]));
    TRY(pkv_tier_seq_unpark(t->tier, seq));
    TRY(pass(t, seq, 2, 0, kept[3]));
    TRY(pkv_tier_seq_close(t->tier, fork));
    return pkv_tier_wait(t->tier);
}

/* What the run ends with; *calls_out: device calls that it made. */
static enum pkv_status run(results kept, uint64_t *calls_out)
{
    struct pkvt_tier t;
    memset(kept, 0, sizeof(results));
    enum pkv_status status = pkvt_tier_open(&t, device, &config);
    if (status == PKV_OK) {
        uint32_t seq = 0;
        status = work(&t, kept);
        if (status != PKV_OK) {
            assert_int_equal(pkv_tier_seq_open(t.tier, &seq), PKV_ERR_STATE);
            assert_non_null(strstr(pkv_error_text(), "close the tier"));
            assert_int_equal(pkv_tier_abort(t.tier), PKV_ERR_STATE);
        }
    } else {
        assert_null(t.tier);
    }
    pkvt_tier_close(&t);
    *calls_out = pkvi_fault_count(device, PKVI_FAULT_CALLS);
    return status;
}

static void check_fault(struct pkvi_fault_config fault)
{
    uint64_t calls = 0;
    pkvi_fault_set(device, &fault);
    const enum pkv_status status = run(got, &calls);
    if (status == PKV_OK) { /* an event that is only asked for, or a stream at its end */
        assert_memory_equal(got, want, sizeof want);
    } else {
        assert_true(status == PKV_ERR_DEVICE_LOST || status == PKV_ERR_NO_MEMORY ||
                    status == PKV_ERR_STATE);
        assert_true(strlen(pkv_error_text()) > 0);
    }
}

static void test_tier__any_call_fails__told_and_nothing_leaks(void **state)
{
    (void)state;
    uint64_t calls = 0;
    const struct pkvi_fault_config none = {0};
    pkvi_fault_set(device, &none);
    assert_ok(run(want, &calls));
    const uint64_t step = PKVT_SANITIZED ? 1 + calls / 25 : 1 + calls / 150;
    for (uint64_t n = 1, i = 0; n <= calls; n += n < 40 ? 1 : step, i++) {
        check_fault((struct pkvi_fault_config){.fail_call = n, .lasting = i % 3 == 1});
        if (i % 3 == 2) {
            check_fault((struct pkvi_fault_config){.fail_call = n, .async = true});
        }
    }
    print_message("%llu device calls, every %llu-th failed\n", (unsigned long long)calls,
                  (unsigned long long)step);
}

static void test_tier__any_call_late__same_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        uint64_t calls = 0;
        const struct pkvi_fault_config late = {.delay_us = 60, .seed = seed};
        pkvi_fault_set(device, &late);
        assert_ok(run(got, &calls));
        assert_memory_equal(got, want, sizeof want);
    }
}

static int open_all(void **state)
{
    (void)state;
    struct pkv_device_config device_config = pkv_device_config_default();
    const struct pkvi_fault_config none = {0};
    device_config.threads = 1;
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = i * 7 % 1000;
    }
    if (pkv_device_open("cpu", &device_config, &below) != PKV_OK ||
        pkvi_fault_open(below, &none, &device) != PKV_OK) {
        return -1;
    }
    config = pkvt_tier_least(device);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    pkv_device_close(device);
    pkv_device_close(below);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tier__any_call_fails__told_and_nothing_leaks),
        cmocka_unit_test(test_tier__any_call_late__same_bits),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
