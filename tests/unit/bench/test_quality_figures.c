/* The arithmetic of the quality command: paired differences, coverage of layers. */
#include "tests/support/pkv_test.h"

#include <math.h>

#include "bench/quality_figures.c"
#include "bench/stats.c"

#define TOKENS 64u

static void test_paired__worse_by_a_constant__interval_of_no_width(void **state)
{
    (void)state;
    struct quality_token one[TOKENS], other[TOKENS];
    double samples[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) { /* far apart from one another, alike in the two */
        other[i] = (struct quality_token){.kl = (float)(i % 8)};
        one[i] = (struct quality_token){.kl = (float)(i % 8) + 0.5f};
    }
    const struct quality_paired paired = quality_paired(one, other, TOKENS, 1, samples);
    assert_true(fabs(paired.diff - 0.5) < 1e-12);
    assert_true(fabs(paired.low - 0.5) < 1e-9 && fabs(paired.high - 0.5) < 1e-9);
    assert_true(fabs(paired.ratio - 4.0 / 3.5) < 1e-12);
    const struct quality_paired turned = quality_paired(other, one, TOKENS, 1, samples);
    assert_true(fabs(turned.diff + 0.5) < 1e-12 && fabs(turned.ratio - 3.5 / 4.0) < 1e-12);
}

static void test_paired__one_token_differs__interval_from_zero(void **state)
{
    (void)state;
    struct quality_token one[TOKENS] = {{0}}, other[TOKENS] = {{0}};
    double samples[TOKENS];
    one[7].kl = 64.0f;
    const struct quality_paired paired = quality_paired(one, other, TOKENS, 1, samples);
    assert_true(fabs(paired.diff - 1.0) < 1e-12);
    /* it is drawn 0 to 4 times or so */
    assert_true(paired.low == 0.0 && paired.high > 1.0 && paired.high < 6.0);
    assert_true(isnan(paired.ratio)); /* nothing to compare with */
    const struct quality_paired again = quality_paired(one, other, TOKENS, 1, samples);
    assert_true(paired.high == again.high);
}

static void test_figures__resampled_mean__interval_around_it(void **state)
{
    (void)state;
    struct quality_token token[TOKENS];
    double samples[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++) {
        token[i] = (struct quality_token){.kl = (float)i, .top1 = i % 4 == 0};
    }
    const struct quality_figures figures = quality_figures(token, TOKENS, 3, samples);
    assert_true(fabs(figures.kl_mean - 31.5) < 1e-9 && fabs(figures.top1 - 0.25) < 1e-12);
    /* 18.5 / sqrt(64) = 2.3 is its standard error */
    assert_true(figures.kl_low > 31.5 - 6.0 && figures.kl_low < 31.5 - 3.0);
    assert_true(figures.kl_high < 31.5 + 6.0 && figures.kl_high > 31.5 + 3.0);
    assert_true(figures.kl_p99 > 62.0 && figures.kl_p99 <= 63.0);
}

static void test_coverage__layers_of_texts__by_checks_then_by_layers(void **state)
{
    (void)state;
    /* two texts of three layers; the last was never checked */
    const struct quality_layer layer[] = {{.coverage = 0.5, .checks = 1},
                                          {.coverage = 0.6, .checks = 2},
                                          {.checks = 0},
                                          {.coverage = 2.5, .checks = 3},
                                          {.checks = 0},
                                          {.checks = 0}};
    assert_true(fabs(quality_layer_coverage(layer, 2, 3, 0) - 3.0 / 4) < 1e-12);
    assert_true(fabs(quality_layer_coverage(layer, 1, 3, 0) - 0.5) < 1e-12);
    assert_true(isnan(quality_layer_coverage(layer, 2, 3, 2)));
    assert_true(fabs(quality_coverage(layer, 2, 3) - (0.75 + 0.3) / 2) < 1e-12);
    assert_true(isnan(quality_coverage(layer + 2, 1, 1)));
}

static void test_hit_rate__layers_of_texts__tokens_together(void **state)
{
    (void)state;
    const struct quality_layer layer[] = {{.wanted = 8, .hits = 2},
                                          {.wanted = 2, .hits = 2},
                                          {.wanted = 8, .hits = 6},
                                          {.wanted = 0}};
    assert_true(fabs(quality_hit_rate(layer, 2, 2, 0, 1) - 0.5) < 1e-12);
    assert_true(fabs(quality_hit_rate(layer, 2, 2, 0, 2) - 10.0 / 18) < 1e-12);
    assert_true(isnan(quality_hit_rate(layer + 2, 1, 2, 1, 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paired__worse_by_a_constant__interval_of_no_width),
        cmocka_unit_test(test_paired__one_token_differs__interval_from_zero),
        cmocka_unit_test(test_figures__resampled_mean__interval_around_it),
        cmocka_unit_test(test_hit_rate__layers_of_texts__tokens_together),
        cmocka_unit_test(test_coverage__layers_of_texts__by_checks_then_by_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
