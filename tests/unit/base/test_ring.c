/* The ring: records come out whole, in order, whatever their sizes, across threads. */
#include "tests/support/pkv_test.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "runtime/base/ring.h"

#define RECORDS 20000u

struct record {
    uint32_t number, bytes;
    uint8_t body[];
};

static uint32_t size_of(struct pkvt_rng *rng, const struct pkvi_ring *ring)
{
    uint32_t most = pkvi_ring_record_max_bytes(ring) - (uint32_t)sizeof(struct record);
    return pkvt_rng_below(rng, 8) == 0 ? pkvt_rng_below(rng, most + 1) : pkvt_rng_below(rng, 100);
}

static void *produce(void *argument)
{
    struct pkvi_ring *ring = argument;
    struct pkvt_rng rng = {5};
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint32_t bytes = size_of(&rng, ring);
        struct record *record;
        while (!(record = pkvi_ring_reserve(ring, (uint32_t)sizeof *record + bytes))) {
            sched_yield();
        }
        record->number = i;
        record->bytes = bytes;
        memset(record->body, (int)(i & 0xff), bytes);
        pkvi_ring_commit(ring);
    }
    return NULL;
}

static void test_ring__two_threads__every_record_in_order(void **state)
{
    (void)state;
    struct pkvi_ring ring;
    struct pkvt_rng rng = {5};
    pthread_t thread;
    assert_ok(pkvi_ring_init(&ring, 4096));
    assert_int_equal(pthread_create(&thread, NULL, produce, &ring), 0);
    for (uint32_t i = 0; i < RECORDS; i++) {
        struct record *record;
        while (!(record = pkvi_ring_peek(&ring))) {
            sched_yield();
        }
        assert_int_equal((uintptr_t)record % 16, 0);
        assert_int_equal(record->number, i);
        assert_int_equal(record->bytes, size_of(&rng, &ring));
        for (uint32_t b = 0; b < record->bytes; b++) {
            assert_int_equal(record->body[b], i & 0xff);
        }
        pkvi_ring_pop(&ring);
    }
    pthread_join(thread, NULL);
    assert_null(pkvi_ring_peek(&ring));
    pkvi_ring_fini(&ring);
}

static void test_ring__full__null_until_popped(void **state)
{
    (void)state;
    struct pkvi_ring ring;
    uint32_t count = 0;
    assert_ok(pkvi_ring_init(&ring, 1024));
    assert_null(pkvi_ring_peek(&ring));
    while (pkvi_ring_reserve(&ring, 48)) {
        pkvi_ring_commit(&ring);
        count++;
    }
    assert_int_equal(count, 1024 / 64);
    assert_non_null(pkvi_ring_peek(&ring));
    pkvi_ring_pop(&ring);
    assert_non_null(pkvi_ring_reserve(&ring, 48));
    pkvi_ring_fini(&ring);
}

/* A record of the greatest size finds room in an empty ring wherever its head stands. */
static void test_ring__largest_record__fits_at_any_position(void **state)
{
    (void)state;
    struct pkvi_ring ring;
    assert_ok(pkvi_ring_init(&ring, 1024));
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t bytes = i % 2 ? pkvi_ring_record_max_bytes(&ring) : 1 + i * 7;
        assert_non_null(pkvi_ring_reserve(&ring, bytes));
        assert_null(pkvi_ring_peek(&ring)); /* not before commit */
        pkvi_ring_commit(&ring);
        assert_non_null(pkvi_ring_peek(&ring));
        pkvi_ring_pop(&ring);
    }
    pkvi_ring_fini(&ring);
}

static void test_ring_init__not_a_power_of_two__invalid(void **state)
{
    (void)state;
    struct pkvi_ring ring;
    assert_status(pkvi_ring_init(&ring, 1000), PKV_ERR_INVALID);
    assert_status(pkvi_ring_init(&ring, 3000), PKV_ERR_INVALID);
    assert_status(pkvi_ring_init(&ring, 0), PKV_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring__two_threads__every_record_in_order),
        cmocka_unit_test(test_ring__full__null_until_popped),
        cmocka_unit_test(test_ring__largest_record__fits_at_any_position),
        cmocka_unit_test(test_ring_init__not_a_power_of_two__invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
