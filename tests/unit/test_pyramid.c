/* Shapes of budgets: their ends, exact sums, clamps; against shares by hand. */
#include "offload/pyramid.h"

#include <math.h>

#include "tests/support/pkv_test.h"

#define LAYERS 32u

static void test_pyramid__every_shape__ends_and_mean(void **state)
{
    (void)state;
    static const struct {
        enum pkv_pyramid shape;
        double first, last; /* last < 0: not told */
    } shapes[] = {{PKV_PYRAMID_FLAT, 1.0, 1.0},
                  {PKV_PYRAMID_COSINE, 1.8, 0.2},
                  {PKV_PYRAMID_LINEAR, 1.8, 0.2},
                  {PKV_PYRAMID_POWER, 1.8, -1},
                  {PKV_PYRAMID_REVERSED, 0.2, 1.8}};
    double weight[LAYERS];
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        double sum = 0;
        pkvi_pyramid_weights(shapes[i].shape, 0.8, LAYERS, weight);
        for (uint32_t l = 0; l < LAYERS; l++) {
            sum += weight[l];
            const bool falls = shapes[i].shape != PKV_PYRAMID_REVERSED;
            assert_true(l == 0 ||
                        (falls ? weight[l] <= weight[l - 1] : weight[l] >= weight[l - 1]));
        }
        assert_true(fabs(sum - LAYERS) < 1e-9);
        assert_true(fabs(weight[0] - shapes[i].first) < 1e-9);
        assert_true(shapes[i].last < 0 || fabs(weight[LAYERS - 1] - shapes[i].last) < 1e-9);
    }
    pkvi_pyramid_weights(PKV_PYRAMID_COSINE, 0.8, 1, weight);
    assert_true(fabs(weight[0] - 1.0) < 1e-9);
}

static void test_pyramid__share__by_hand(void **state)
{
    (void)state;
    static const double weight[] = {4, 2, 1, 1};
    double scratch[4];
    uint32_t pages[4];
    static const struct {
        uint32_t least, most;
        uint64_t total;
        uint32_t want[4];
    } cases[] = {
        {0, 100, 16, {8, 4, 2, 2}}, {0, 6, 16, {6, 5, 3, 2}}, /* 6; 5, 2.5, 2.5 */
        {3, 100, 16, {7, 3, 3, 3}}, {1, 100, 9, {5, 2, 1, 1}},
        {4, 4, 16, {4, 4, 4, 4}},   {0, 3, 12, {3, 3, 3, 3}},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pkvi_pyramid_share(weight, 4, cases[i].least, cases[i].most, cases[i].total, scratch,
                           pages);
        assert_memory_equal(pages, cases[i].want, sizeof pages);
    }
}

/* Any weights, bounds and total: the sum, the bounds, and never more than a page off the order. */
static void test_pyramid__share__sums_to_the_page(void **state)
{
    (void)state;
    struct pkvt_rng rng = {5};
    for (uint32_t run = 0; run < 2000; run++) {
        double weight[40], scratch[40];
        uint32_t pages[40];
        const uint32_t count = 1 + pkvt_rng_below(&rng, 40), least = pkvt_rng_below(&rng, 4);
        const uint32_t most = least + pkvt_rng_below(&rng, 60);
        const uint64_t total =
            (uint64_t)count * least + pkvt_rng_below(&rng, count * (most - least) + 1);
        for (uint32_t i = 0; i < count; i++) {
            weight[i] = pkvt_rng_below(&rng, 5) == 0 ? 0.0 : pow(2.0, pkvt_rng_below(&rng, 12));
        }
        weight[0] = 1.0;
        pkvi_pyramid_share(weight, count, least, most, total, scratch, pages);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            sum += pages[i];
            assert_true(pages[i] >= least && pages[i] <= most);
            for (uint32_t j = 0; j < i; j++) {
                assert_true(weight[i] <= weight[j] || pages[i] + 1 >= pages[j]);
            }
        }
        assert_true(sum == total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pyramid__every_shape__ends_and_mean),
        cmocka_unit_test(test_pyramid__share__by_hand),
        cmocka_unit_test(test_pyramid__share__sums_to_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
