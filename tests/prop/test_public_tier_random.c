/*
 * Random calls of the public tier (passes of one and several sequences, in pieces, aborted ones,
 * cuts, forks, parking, closing) on two tiers: one keeps everything on its device, the other has
 * the least budget or half of it all. Both say the same to every call but those about room on the
 * device, and every result is the same bit for bit.
 */
#include "tests/support/tier_case.h"

#include <string.h>

#define TOKENS ((uint32_t)PKVT_TIER_CONTEXT)
#define STEP_ROWS ((uint32_t)PKVT_TIER_STEP_ROWS)

enum { SEQUENCES = 3, ACTIVE = 2 };

struct pair {
    struct pkvt_tier dense, tier;
    bool open[SEQUENCES];
    uint32_t ids[SEQUENCES][PKVT_TIER_CONTEXT];
    uint64_t seed;
    uint32_t number;
};

static struct pkv_device *device;
static struct pair pair;
static pkvt_tier_out want, got;
static struct {
    uint32_t passes, aborts, emptied, cuts, cuts_refused, forks, parked, streamed;
} seen;

static uint32_t tokens(uint32_t s)
{
    const uint32_t a = pkv_tier_seq_tokens(pair.dense.tier, s);
    assert_int_equal(a, pkv_tier_seq_tokens(pair.tier.tier, s));
    return a;
}

static uint32_t active(void)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        count += pair.open[s] && !pkv_tier_seq_parked(pair.tier.tier, s);
    }
    return count;
}

/* Room on the device under test for one more: of those there, another one than `keep` parks. */
static void make_room(struct pkvt_rng *rng, uint32_t keep)
{
    uint32_t victim = pkvt_rng_below(rng, SEQUENCES);
    if (active() < ACTIVE) {
        return;
    }
    while (!pair.open[victim] || victim == keep || pkv_tier_seq_parked(pair.tier.tier, victim)) {
        victim = (victim + 1) % SEQUENCES;
    }
    const enum pkv_status status = pkv_tier_seq_park(pair.tier.tier, victim);
    if (status == PKV_ERR_NO_SLOT) { /* one is parked already: close this one */
        assert_ok(pkv_tier_seq_close(pair.tier.tier, victim));
        assert_ok(pkv_tier_seq_close(pair.dense.tier, victim));
        pair.open[victim] = false;
    } else {
        assert_ok(status);
        seen.parked++;
    }
}

/* An open sequence that may run. */
static uint32_t pick(struct pkvt_rng *rng)
{
    const uint32_t s = pkvt_rng_below(rng, SEQUENCES);
    uint32_t a = 9, b = 9;
    if (!pair.open[s]) {
        make_room(rng, SEQUENCES);
        assert_ok(pkv_tier_seq_open(pair.dense.tier, &a));
        assert_ok(pkv_tier_seq_open(pair.tier.tier, &b));
        assert_int_equal(a, b);
        pair.open[a] = true;
        return a;
    }
    if (pkv_tier_seq_parked(pair.tier.tier, s)) {
        assert_status(pkv_tier_seq_park(pair.tier.tier, s), PKV_ERR_STATE);
        if (active() == ACTIVE) { /* no place to park another one: one leaves */
            const uint32_t victim = (s + 1) % SEQUENCES;
            assert_status(pkv_tier_seq_unpark(pair.tier.tier, s), PKV_ERR_NO_SLOT);
            assert_ok(pkv_tier_seq_close(pair.tier.tier, victim));
            assert_ok(pkv_tier_seq_close(pair.dense.tier, victim));
            pair.open[victim] = false;
        }
        assert_ok(pkv_tier_seq_unpark(pair.tier.tier, s));
    }
    return s;
}

/* New tokens for a sequence; 0 rows where it is full. */
static struct pkvt_tier_part grow(struct pkvt_rng *rng, uint32_t s, uint32_t most)
{
    struct pkvt_tier_part part = {.seq = s, .first = tokens(s), .ids = pair.ids[s]};
    const uint32_t room = TOKENS - part.first;
    part.rows = room == 0 ? 0 : 1 + pkvt_rng_below(rng, room < most ? room : most);
    for (uint32_t i = 0; i < part.rows; i++) {
        pair.ids[s][part.first + i] = pkvt_rng_below(rng, 1000);
    }
    return part;
}

static void random_pass(struct pkvt_rng *rng)
{
    struct pkvt_tier_part parts[2];
    const uint32_t s = pick(rng), piece = STEP_ROWS * pkvt_rng_below(rng, 3);
    uint32_t count = 1, rows = 0;
    uint32_t other = (s + 1) % SEQUENCES;
    if (pkvt_rng_below(rng, 2) == 0 && pair.open[other] &&
        !pkv_tier_seq_parked(pair.tier.tier, other)) {
        parts[1] = grow(rng, other, STEP_ROWS / 2);
        count += parts[1].rows > 0;
    }
    parts[0] = grow(rng, s, count == 2 ? STEP_ROWS / 2 : pkvt_rng_below(rng, 2) == 0 ? 3 : 400);
    if (parts[0].rows == 0) {
        return;
    }
    assert_ok(pkvt_tier_pass(&pair.dense, parts, count, 0, want));
    assert_ok(pkvt_tier_pass(&pair.tier, parts, count, piece, got));
    for (uint32_t p = 0; p < count; p++) {
        rows += parts[p].rows;
    }
    for (uint32_t l = 0; l < PKVT_TIER_LAYERS; l++) {
        if (memcmp(want[l], got[l], rows * sizeof want[0][0]) != 0) {
            fail_msg("seed %llu, call %u: layer %u differs", (unsigned long long)pair.seed,
                     pair.number, l);
        }
    }
    seen.passes++;
}

/* Some units of a pass, then never mind. */
static void random_abort(struct pkvt_rng *rng)
{
    const uint32_t s = pick(rng), units = pkvt_rng_below(rng, 12);
    const struct pkvt_tier_part part = grow(rng, s, 300);
    const struct pkv_tier_part begun = {.seq = s, .rows = part.rows};
    struct pkvt_tier *tiers[] = {&pair.dense, &pair.tier};
    for (uint32_t i = 0; part.rows > 0 && i < 2; i++) {
        uint32_t layer = 0, row = 0;
        assert_ok(pkv_tier_begin(tiers[i]->tier, &begun, 1));
        for (uint32_t u = 0; u < units && layer < PKVT_TIER_LAYERS; u++) {
            const uint32_t left = part.rows - row, n = left < STEP_ROWS ? left : STEP_ROWS;
            assert_ok(pkvt_tier_layer(tiers[i], &part, 1, layer, row, n, 0, got));
            row = n == left ? 0 : row + n;
            layer += n == left;
        }
        assert_ok(pkv_tier_abort(tiers[i]->tier));
    }
    seen.aborts += part.rows > 0;
    seen.emptied += part.first > 0 && part.rows > 0 && tokens(s) == 0;
    assert_true(tokens(s) == 0 || tokens(s) == part.first);
}

static void random_cut(struct pkvt_rng *rng)
{
    const uint32_t s = pkvt_rng_below(rng, SEQUENCES);
    if (!pair.open[s]) {
        return;
    }
    const uint32_t have = tokens(s), back = pkvt_rng_below(rng, 3) == 0 ? have : 60;
    const uint32_t off = pkvt_rng_below(rng, back + 1), to = off < have ? have - off : 0;
    const enum pkv_status status = pkv_tier_seq_truncate(pair.dense.tier, s, to);
    assert_true(status == PKV_OK || status == PKV_ERR_RANGE);
    assert_status(pkv_tier_seq_truncate(pair.tier.tier, s, to), status);
    assert_int_equal(tokens(s), status == PKV_OK ? to : have);
    seen.cuts += status == PKV_OK;
    seen.cuts_refused += status != PKV_OK;
}

static void random_fork(struct pkvt_rng *rng)
{
    const uint32_t s = pick(rng);
    uint32_t a = 9, b = 9;
    if (active() == ACTIVE) {
        assert_status(pkv_tier_seq_fork(pair.tier.tier, s, &b), PKV_ERR_NO_SLOT);
        make_room(rng, s);
    }
    const enum pkv_status status = pkv_tier_seq_fork(pair.dense.tier, s, &a);
    assert_status(pkv_tier_seq_fork(pair.tier.tier, s, &b), status);
    if (status == PKV_OK) {
        assert_int_equal(a, b);
        memcpy(pair.ids[a], pair.ids[s], sizeof pair.ids[a]);
        pair.open[a] = true;
        seen.forks++;
    }
}

static void run_seed(uint64_t seed, uint32_t calls)
{
    struct pkvt_rng rng = {.state = seed};
    struct pkv_tier_config config = pkvt_tier_dense();
    struct pkv_kv_report report;
    memset(&pair, 0, sizeof pair);
    pair.seed = seed;
    config.prompt_rows = TOKENS;
    assert_ok(pkvt_tier_open(&pair.dense, device, &config));
    config = pkvt_tier_least(device);
    config.kv_budget_bytes = seed % 2 ? config.kv_budget_bytes
                                      : (config.kv_budget_bytes + pair.dense.sizes.full_bytes) / 2;
    config.kv_resident = (enum pkv_full_resident)(seed % 3);
    assert_ok(pkvt_tier_open(&pair.tier, device, &config));
    for (pair.number = 0; pair.number < calls; pair.number++) {
        switch (pkvt_rng_below(&rng, 12)) {
        case 0:
            random_abort(&rng);
            break;
        case 1:
            random_cut(&rng);
            break;
        case 2:
            random_fork(&rng);
            break;
        default:
            random_pass(&rng);
        }
    }
    pkv_tier_report(pair.tier.tier, &report);
    seen.streamed += report.loaded_tiles > 0;
    pkvt_tier_close(&pair.dense);
    pkvt_tier_close(&pair.tier);
}

static void test_random__two_budgets__same_answers_and_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (PKVT_SANITIZED ? 3 : 8); seed++) {
        run_seed(seed, PKVT_SANITIZED ? 60 : 120);
    }
    print_message("passes %u, aborted %u (emptied %u), cuts %u (refused %u), forks %u, parked %u\n",
                  seen.passes, seen.aborts, seen.emptied, seen.cuts, seen.cuts_refused, seen.forks,
                  seen.parked);
    assert_true(seen.streamed > 0 && seen.emptied > 0 && seen.cuts_refused > 0 && seen.forks > 0 &&
                seen.parked > 0);
}

static int open_all(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    config.threads = 1;
    return pkv_device_open("cpu", &config, &device) == PKV_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    pkv_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random__two_budgets__same_answers_and_bits),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
