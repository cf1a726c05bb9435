/* The pool: every unit once, results visible, whatever the number of threads and the gaps. */
#include "tests/support/pkv_test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/thread.h"

struct job {
    uint32_t *seen; /* plain memory: visibility is the pool's duty */
    _Atomic uint32_t *worker_busy;
    uint32_t threads, salt;
    _Atomic uint32_t errors;
};

static void mark(void *context, uint32_t unit, uint32_t worker)
{
    struct job *job = context;
    if (worker >= job->threads || atomic_exchange(&job->worker_busy[worker], 1) != 0) {
        atomic_fetch_add(&job->errors, 1);
    }
    job->seen[unit] += unit * 3 + job->salt;
    atomic_store(&job->worker_busy[worker], 0);
}

static void run_jobs(uint32_t threads, uint32_t runs, uint32_t max_units, uint64_t seed)
{
    struct pkvt_rng rng = {seed};
    struct pkvi_pool *pool;
    _Atomic uint32_t busy[8] = {0};
    uint32_t *seen = calloc(max_units, sizeof *seen);
    assert_ok(pkvi_pool_open(threads, &pool));
    assert_int_equal(pkvi_pool_threads(pool), threads);
    for (uint32_t r = 0; r < runs; r++) {
        uint32_t units = pkvt_rng_below(&rng, max_units + 1);
        struct job job = {.seen = seen, .worker_busy = busy, .threads = threads, .salt = r};
        memset(seen, 0, max_units * sizeof *seen);
        pkvi_pool_run(pool, mark, &job, units);
        assert_int_equal(job.errors, 0);
        for (uint32_t u = 0; u < max_units; u++) {
            assert_int_equal(seen[u], u < units ? u * 3 + r : 0);
        }
        if (pkvt_rng_below(&rng, 64) == 0) { /* let workers fall asleep */
            usleep(pkvt_rng_below(&rng, 200));
        }
    }
    pkvi_pool_close(pool);
    free(seen);
}

static void test_pool__any_threads_and_units__each_unit_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        run_jobs(threads, threads > 2 ? 300 : 3000, 40, 7 + threads);
    }
}

static void test_pool__open_and_close_at_once__joins(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct pkvi_pool *pool;
        assert_ok(pkvi_pool_open(3, &pool));
        pkvi_pool_close(pool);
    }
    pkvi_pool_close(NULL);
}

static void slow_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    _Atomic uint32_t *count = context;
    usleep(unit == 0 ? 100 : 3000); /* the caller runs out of units and must sleep */
    atomic_fetch_add(count, 1);
}

static void test_pool__a_unit_far_longer_than_the_spin__caller_waits(void **state)
{
    (void)state;
    struct pkvi_pool *pool;
    assert_ok(pkvi_pool_open(2, &pool));
    for (int i = 0; i < 20; i++) {
        _Atomic uint32_t count = 0;
        pkvi_pool_run(pool, slow_unit, &count, 2);
        assert_int_equal(count, 2);
    }
    pkvi_pool_close(pool);
}

static void test_pool__nothing_to_do__uses_no_cpu(void **state)
{
    (void)state;
    struct pkvi_pool *pool;
    _Atomic uint32_t count = 0;
    struct timespec before, after;
    assert_ok(pkvi_pool_open(4, &pool));
    pkvi_pool_run(pool, slow_unit, &count, 4);
    usleep(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    assert_in_range(used_ns, 0, 5000000);
    pkvi_pool_close(pool);
}

static void test_pool_open__no_or_too_many_threads__range(void **state)
{
    (void)state;
    struct pkvi_pool *pool = NULL;
    assert_status(pkvi_pool_open(0, &pool), PKV_ERR_RANGE);
    assert_status(pkvi_pool_open(1000000, &pool), PKV_ERR_RANGE);
    assert_null(pool);
}

static void test_threads_available__here__at_least_one(void **state)
{
    (void)state;
    assert_in_range(pkvi_threads_available(), 1, (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool__any_threads_and_units__each_unit_once),
        cmocka_unit_test(test_pool__open_and_close_at_once__joins),
        cmocka_unit_test(test_pool__a_unit_far_longer_than_the_spin__caller_waits),
        cmocka_unit_test(test_pool__nothing_to_do__uses_no_cpu),
        cmocka_unit_test(test_pool_open__no_or_too_many_threads__range),
        cmocka_unit_test(test_threads_available__here__at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
