/*
 * Places (host blocks, device pages) against a naive model: an array of owner counts. 10,000 random
 * operations a seed.
 */
#include "offload/places.h"
#include "tests/support/pkv_test.h"

#include <string.h>

#define MOST 97u
#define OPERATIONS 10000u

struct model {
    uint32_t count, owners[MOST];
};

static uint32_t free_of(const struct model *model)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        count += model->owners[i] == 0;
    }
    return count;
}

static void check(const struct pkvi_places *places, const struct model *model)
{
    bool seen[MOST] = {false};
    assert_int_equal(places->free_count, free_of(model));
    for (uint32_t i = 0; i < model->count; i++) {
        assert_int_equal(places->refs[i], model->owners[i]);
    }
    for (uint32_t i = 0; i < places->free_count; i++) {
        const uint32_t place = places->free[i];
        assert_true(place < model->count && !seen[place] && model->owners[place] == 0);
        seen[place] = true;
    }
}

static void operate(struct pkvi_places *places, struct model *model, struct pkvt_rng *rng)
{
    const uint32_t place = pkvt_rng_below(rng, model->count);
    switch (pkvt_rng_below(rng, 5)) {
    case 0:
    case 1: {
        const uint32_t got = pkvi_places_take(places);
        if (free_of(model) == 0) {
            assert_int_equal(got, PKVI_NO_PLACE);
        } else {
            assert_true(got < model->count && model->owners[got] == 0);
            model->owners[got] = 1;
        }
        break;
    }
    case 2:
        if (model->owners[place] > 0) {
            pkvi_places_retain(places, place);
            model->owners[place]++;
        }
        break;
    default:
        if (model->owners[place] > 0) {
            pkvi_places_release(places, place);
            model->owners[place]--;
        }
    }
}

static void test_places__random_operations__as_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct pkvt_rng rng = {.state = seed};
        struct model model = {.count = 1 + pkvt_rng_below(&rng, MOST)};
        struct pkvi_places places;
        assert_ok(pkvi_places_open(&places, model.count));
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            operate(&places, &model, &rng);
            if (i % 16 == 0) {
                check(&places, &model);
            }
        }
        check(&places, &model);
        pkvi_places_close(&places);
    }
}

static void test_places__fresh__lowest_first_then_none(void **state)
{
    (void)state;
    struct pkvi_places places;
    assert_ok(pkvi_places_open(&places, 3));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pkvi_places_take(&places), i);
    }
    assert_int_equal(pkvi_places_take(&places), PKVI_NO_PLACE);
    pkvi_places_close(&places);
    assert_ok(pkvi_places_open(&places, 0));
    assert_int_equal(pkvi_places_take(&places), PKVI_NO_PLACE);
    pkvi_places_close(&places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places__random_operations__as_the_model),
        cmocka_unit_test(test_places__fresh__lowest_first_then_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
