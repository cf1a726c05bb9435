/* The arena: the same layout measured and built; overflow; the clock beside it. */
#include "tests/support/pkv_test.h"

#include "runtime/base/arena.h"
#include "runtime/base/clock.h"

struct layout {
    uint8_t *bytes;
    uint64_t *words;
};

static struct layout lay_out(struct pkvi_arena *arena)
{
    struct layout layout = {.bytes = pkvi_arena_take(arena, 100, 1)};
    layout.words = pkvi_arena_take(arena, 33, sizeof *layout.words);
    return layout;
}

static void test_arena__measured_then_built__fits_exactly(void **state)
{
    (void)state;
    struct pkvi_arena measure = {0}, arena;
    assert_null(lay_out(&measure).words);
    assert_int_equal(measure.used_bytes, 128 + 320);
    assert_ok(pkvi_arena_init(&arena, measure.used_bytes));
    struct layout layout = lay_out(&arena);
    assert_int_equal((uintptr_t)layout.words % 64, 0);
    assert_ptr_equal(layout.words, layout.bytes + 128);
    for (uint32_t i = 0; i < 33; i++) {
        assert_int_equal(layout.words[i], 0);
        layout.words[i] = i;
    }
    assert_null(pkvi_arena_take(&arena, 1, 1));
    assert_null(pkvi_arena_take(&arena, 0, 1)); /* full stays full */
    pkvi_arena_fini(&arena);
}

static void test_arena__sizes_past_64_bits__null_for_good(void **state)
{
    (void)state;
    struct pkvi_arena arena;
    assert_ok(pkvi_arena_init(&arena, 4096));
    assert_null(pkvi_arena_take(&arena, UINT64_MAX / 4, 8));
    assert_null(pkvi_arena_take(&arena, 1, 8));
    assert_int_equal(arena.used_bytes, UINT64_MAX);
    pkvi_arena_fini(&arena);
    assert_ok(pkvi_arena_init(&arena, 4096));
    assert_non_null(pkvi_arena_take(&arena, 1, 1));
    assert_null(pkvi_arena_take(&arena, 1, UINT64_MAX - 70));
    assert_null(pkvi_arena_take(&arena, 1, UINT64_MAX));
    pkvi_arena_fini(&arena);
    assert_status(pkvi_arena_init(&arena, UINT64_MAX), PKV_ERR_NO_MEMORY);
}

static void test_clock__two_looks__never_back(void **state)
{
    (void)state;
    uint64_t last = pkvi_clock_ns();
    for (uint32_t i = 0; i < 1000; i++) {
        uint64_t now = pkvi_clock_ns();
        assert_true(now >= last);
        last = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena__measured_then_built__fits_exactly),
        cmocka_unit_test(test_arena__sizes_past_64_bits__null_for_good),
        cmocka_unit_test(test_clock__two_looks__never_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
