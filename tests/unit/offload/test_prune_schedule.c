/* Lengths under policies that prune: those of PyramidInfer's public code, by an integer simulation
 * of it (not ours), and what any schedule must keep to. */
#include "offload/prune_schedule.h"

#include <math.h>

#include "tests/support/pkv_test.h"

#define MOST_LAYERS 80u
#define MOST_STEPS 4096u

/* As its settings for 7B and 8B, 13B, 70B. */
static struct pkv_prune settings(double decay, uint32_t interval)
{
    struct pkv_prune prune = *pkv_policy_find("pyramidinfer")->prune;
    prune.decay = decay;
    prune.interval = interval;
    return prune;
}

static void test_prune_schedule__prompt__lengths_of_the_public_settings(void **state)
{
    (void)state;
    static const uint32_t all[] = {1024, 1024, 1023, 1022, 1020, 1016, 1011, 1004, 994, 982, 967,
                                   950,  930,  907,  882,  854,  824,  793,  760,  726, 692, 658,
                                   624,  591,  559,  528,  499,  472,  446,  422,  400, 380};
    static const uint32_t of_13b[][2] = {{4, 1022}, {8, 1009}, {10, 993}, {16, 897}, {20, 794},
                                         {24, 673}, {30, 496}, {34, 402}, {39, 306}};
    static const uint32_t of_70b[][2] = {{4, 1023}, {15, 1013}, {16, 1006}, {30, 946}, {31, 923},
                                         {45, 800}, {46, 764},  {60, 615},  {61, 580}, {79, 408}};
    const struct pkv_prune small = settings(0.9, 1), middle = settings(0.8, 2),
                           large = settings(0.9, 3);
    uint32_t rows[MOST_LAYERS];
    pkvi_prune_rows(&small, 32, 1024, rows);
    assert_memory_equal(rows, all, sizeof all);
    pkvi_prune_rows(&middle, 40, 1024, rows);
    for (uint32_t i = 0; i < sizeof of_13b / sizeof of_13b[0]; i++) {
        assert_int_equal(rows[of_13b[i][0]], of_13b[i][1]);
    }
    pkvi_prune_rows(&large, 80, 1024, rows);
    for (uint32_t i = 0; i < sizeof of_70b / sizeof of_70b[0]; i++) {
        assert_int_equal(rows[of_70b[i][0]], of_70b[i][1]);
    }
}

static double mean_share(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens)
{
    uint32_t rows[MOST_LAYERS];
    double sum = 0;
    pkvi_prune_rows(prune, layers, tokens, rows);
    for (uint32_t l = 0; l < layers; l++) {
        sum += rows[l];
    }
    return sum / layers / tokens;
}

static void test_prune_schedule__prompt__shares_of_entries_as_told(void **state)
{
    (void)state;
    static const struct {
        double decay;
        uint32_t interval, layers, tokens;
        double share;
    } told[] = {{0.9, 1, 32, 512, 0.757}, {0.9, 1, 32, 1024, 0.762}, {0.9, 1, 32, 4096, 0.766},
                {0.8, 2, 40, 512, 0.723}, {0.8, 2, 40, 1024, 0.722}, {0.8, 2, 40, 4096, 0.724},
                {0.9, 3, 80, 512, 0.774}, {0.9, 3, 80, 1024, 0.778}, {0.9, 3, 80, 4096, 0.781}};
    for (uint32_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        const struct pkv_prune prune = settings(told[i].decay, told[i].interval);
        assert_true(fabs(mean_share(&prune, told[i].layers, told[i].tokens) - told[i].share) <
                    5.1e-4);
    }
}

static void test_prune_schedule__zones__stays_of_the_public_settings(void **state)
{
    (void)state;
    static const uint32_t want[] = {14, 14, 14, 14, 13, 13, 13, 12, 12, 12, 11, 10, 10, 9, 9, 8,
                                    7,  7,  6,  6,  5,  4,  4,  3,  3,  2,  2,  2,  1,  1, 1, 1};
    const struct pkv_prune prune = settings(0.9, 1);
    for (uint32_t l = 0; l < 32; l++) {
        assert_int_equal(pkvi_prune_zone_stays(&prune, 32, l), want[l]);
    }
}

static void test_prune_schedule__decode__lengths_of_the_public_file(void **state)
{
    (void)state;
    static const uint32_t layer[] = {0, 8, 16, 24, 31}, want[] = {756, 727, 610, 454, 352};
    const struct pkv_prune prune = settings(0.9, 1);
    uint32_t rows[32], recent[257];
    double sum = 0;
    pkvi_prune_rows(&prune, 32, 512, rows);
    pkvi_prune_recents(&prune, 32, 512, 256, recent);
    for (uint32_t l = 0, i = 0; l < 32; l++) {
        struct pkvi_prune_state state_of = {.entries = rows[l], .base = rows[l]};
        const uint32_t stays = pkvi_prune_zone_stays(&prune, 32, l);
        assert_int_equal(pkvi_prune_next(&prune, recent, 256, stays, &state_of), 147);
        while (pkvi_prune_next(&prune, recent, 256, stays, &state_of) != PKVI_PRUNE_NEVER) {
        }
        assert_int_equal(state_of.step, 256);
        sum += state_of.entries;
        if (i < 5 && layer[i] == l) {
            assert_int_equal(state_of.entries, want[i++]);
        }
    }
    assert_true(fabs(sum / 32 / 768 - 0.772) < 5.1e-4);
}

/* A zone lies before the window of its step, behind all earlier ones, and its rows begin where its
 * own entries have all been appended. */
static void check_decode(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens)
{
    static uint32_t recent[MOST_STEPS + 1];
    uint32_t rows[MOST_LAYERS];
    pkvi_prune_rows(prune, layers, tokens, rows);
    pkvi_prune_recents(prune, layers, tokens, MOST_STEPS, recent);
    for (uint32_t l = 0; l < layers; l++) {
        const uint32_t stays = pkvi_prune_zone_stays(prune, layers, l);
        struct pkvi_prune_state state = {.entries = rows[l], .base = rows[l]};
        uint32_t begin = 0, step;
        assert_true(rows[l] >= 1 && rows[l] <= tokens && stays >= 1 && stays <= prune->zone);
        assert_true(l == 0 || rows[l] <= rows[l - 1]);
        while ((step = pkvi_prune_next(prune, recent, MOST_STEPS, stays, &state)) !=
               PKVI_PRUNE_NEVER) {
            const uint32_t end = rows[l] + step, window = recent[step] + 1;
            assert_true(window <= step && end >= window + prune->zone);
            assert_true(end - window - prune->zone >= begin);
            assert_true(state.base >= 1 && state.entries >= window);
            begin = end - window;
        }
    }
}

static void test_prune_schedule__any_settings__zones_follow_each_other(void **state)
{
    (void)state;
    struct pkvt_rng rng = {5};
    for (uint32_t i = 0; i < 300; i++) {
        struct pkv_prune prune = settings(pkvt_rng_below(&rng, 11) / 10.0, 1);
        prune.shape = pkvt_rng_below(&rng, 2) ? PKV_PRUNE_DECAY : PKV_PRUNE_COSINE;
        prune.interval = 1 + pkvt_rng_below(&rng, 3);
        prune.least = pkvt_rng_below(&rng, 100);
        prune.recent_ratio = pkvt_rng_below(&rng, 10) / 10.0;
        prune.ratio = pkvt_rng_below(&rng, 11) / 10.0;
        prune.zone = 1 + pkvt_rng_below(&rng, 40);
        prune.zone_ratio = pkvt_rng_below(&rng, 11) / 10.0;
        prune.zone_decay = pkvt_rng_below(&rng, 11) / 10.0;
        check_decode(&prune, 1 + pkvt_rng_below(&rng, 12), 1 + pkvt_rng_below(&rng, 900));
    }
}

static void test_prune_schedule__ratios_of_1__everything_stays(void **state)
{
    (void)state;
    struct pkv_prune prune = settings(1.0, 1);
    prune.zone_ratio = prune.zone_decay = 1.0;
    uint32_t rows[32];
    pkvi_prune_rows(&prune, 32, 1000, rows);
    for (uint32_t l = 0; l < 32; l++) {
        assert_int_equal(rows[l], 1000);
        assert_int_equal(pkvi_prune_zone_stays(&prune, 32, l), 16);
    }
}

static void test_prune_schedule__paper__proportion_times_decay_down_to_a_floor(void **state)
{
    (void)state;
    const struct pkv_prune *prune = pkv_policy_find("pyramidinfer-paper")->prune;
    uint32_t rows[32];
    pkvi_prune_rows(prune, 32, 1000, rows); /* 401 recent ones, 599 others */
    assert_int_equal(rows[0], 1000);
    assert_int_equal(rows[1], 1000);
    assert_int_equal(rows[2], 401 + 539); /* 599 * 0.9 */
    assert_int_equal(rows[3], 401 + 485); /* * 0.9 */
    assert_int_equal(rows[31], 401 + 64); /* 599 * 0.9^30 = 25 */
    assert_true(fabs(mean_share(prune, 32, 8192) - 0.59) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune_schedule__prompt__lengths_of_the_public_settings),
        cmocka_unit_test(test_prune_schedule__prompt__shares_of_entries_as_told),
        cmocka_unit_test(test_prune_schedule__zones__stays_of_the_public_settings),
        cmocka_unit_test(test_prune_schedule__decode__lengths_of_the_public_file),
        cmocka_unit_test(test_prune_schedule__any_settings__zones_follow_each_other),
        cmocka_unit_test(test_prune_schedule__ratios_of_1__everything_stays),
        cmocka_unit_test(test_prune_schedule__paper__proportion_times_decay_down_to_a_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
