/* The walk of the link command: every place once before any comes again, all within the region. */
#include "tests/support/pkv_test.h"

#include <stdlib.h>
#include <string.h>

#include "bench/link_place.c"

static void test_place__any_size__each_place_once_a_round(void **state)
{
    (void)state;
    struct pkvt_rng rng = {7};
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t piece = 1 + pkvt_rng_below(&rng, 300);
        uint64_t bytes = piece * (LINK_STRIDE + pkvt_rng_below(&rng, 2000)) + i % 3;
        uint64_t key = pkvt_rng_u64(&rng);
        for (int pattern = 0; pattern < LINK_PATTERNS; pattern++) {
            uint64_t count = pkvi_link_places((enum link_pattern)pattern, bytes, piece);
            assert_true(count > 0);
            uint8_t *seen = calloc(bytes / piece + 1, 1);
            assert_non_null(seen);
            for (uint64_t at = 0; at < count; at++) {
                uint64_t place =
                    pkvi_link_place((enum link_pattern)pattern, bytes, piece, key, count * 5 + at);
                assert_true(place % piece == 0 && place + piece <= bytes);
                assert_int_equal(seen[place / piece]++, 0);
            }
            free(seen);
        }
    }
}

static void test_place__patterns__as_named(void **state)
{
    (void)state;
    uint64_t steps = 0, before = 0;
    for (uint64_t i = 0; i < 256; i++) {
        assert_int_equal(pkvi_link_place(LINK_CONTIGUOUS, 1 << 20, 64, 9, i), i * 64);
        assert_int_equal(pkvi_link_place(LINK_STRIDED, 1 << 20, 64, 9, i), i * 64 * LINK_STRIDE);
        uint64_t place = pkvi_link_place(LINK_GATHER, 1 << 20, 64, 9, i);
        steps += place == before + 64;
        before = place;
    }
    assert_true(steps < 4); /* by chance, not in a row */
    assert_int_equal(pkvi_link_places(LINK_STRIDED, 255, 64), 0);
    assert_int_equal(pkvi_link_place(LINK_GATHER, 64, 64, 9, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place__any_size__each_place_once_a_round),
        cmocka_unit_test(test_place__patterns__as_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
