/*
 * thread.c: the pool that splits one operation among cores. Knows nothing of what units do.
 *
 * A run lives in one cache line: what to do, how many units are not finished, and `ticket`, the
 * word on which workers spin and sleep. A unit belongs to whoever takes its ticket. The run cannot
 * end, and so its fields cannot change, while somebody owns a unit of it; hence a worker reads the
 * fields only after it has won a ticket, and one that wakes late helps the run of the day or finds
 * no ticket. Nobody waits for a worker that got no unit: a descheduled thread costs nothing.
 *
 *   ticket  NO_TICKET - units at the start; from NO_TICKET on it stands for no unit
 *   left    units not finished by workers; its top bit says that the caller sleeps on it
 */
#include "runtime/base/thread.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "runtime/base/cgroup.h"
#include "runtime/base/check.h"
#include "runtime/base/futex.h"

#define NO_TICKET 0x80000000u
#define CALLER_SLEEPS 0x80000000u
#define MAX_THREADS 1024u
/* Longer than the gaps between the operations of a step, shorter than anybody would notice. */
#define SPIN_NS 40000u

struct worker {
    struct pkvi_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct pkvi_pool {
    _Alignas(64) pkvi_unit_fn fn;
    void *context;
    uint32_t units;
    _Atomic uint32_t ticket, left;
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t stop;
    uint64_t spin_ns;
    uint32_t threads, started;
    struct worker *workers; /* [threads - 1] */
};

/* Take units until there are none; how many it were. */
static uint32_t work(struct pkvi_pool *pool, uint32_t worker)
{
    uint32_t ticket, done = 0;
    while ((ticket = atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_acq_rel)) <
           NO_TICKET) {
        pool->fn(pool->context, ticket + pool->units - NO_TICKET, worker);
        done++;
    }
    return done;
}

/* Wait until there are tickets; false: the pool closes. */
static bool wait_for_run(struct pkvi_pool *pool)
{
    uint32_t seen;
    while ((seen = atomic_load_explicit(&pool->ticket, memory_order_relaxed)) >= NO_TICKET) {
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
            return false;
        }
        if (pkvi_spin_while(&pool->ticket, seen, pool->spin_ns) != seen) {
            continue;
        }
        /* Both sides seq_cst: either the caller sees the sleeper or this sees the new ticket */
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(&pool->ticket) == seen) {
            pkvi_futex_wait(&pool->ticket, seen);
        }
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return true;
}

static void *worker_main(void *argument)
{
    struct worker *self = argument;
    struct pkvi_pool *pool = self->pool;
    while (wait_for_run(pool)) {
        uint32_t done = work(pool, self->index);
        if (done == 0) {
            continue;
        }
        /* acq_rel: a chain from every unit to the caller, which reads the last value */
        if (atomic_fetch_sub_explicit(&pool->left, done, memory_order_acq_rel) & CALLER_SLEEPS) {
            pkvi_futex_wake(&pool->left, 1);
        }
    }
    return NULL;
}

/* Change the ticket and wake who sleeps on it. */
static void announce(struct pkvi_pool *pool, uint32_t ticket, uint32_t wanted)
{
    atomic_exchange(&pool->ticket, ticket);
    if (atomic_load(&pool->sleepers) > 0) {
        pkvi_futex_wake(&pool->ticket, wanted);
    }
}

/* Wait until workers have finished all units but the caller's own. */
static void wait_for_units(struct pkvi_pool *pool, uint32_t own)
{
    uint32_t left;
    while (left = atomic_load_explicit(&pool->left, memory_order_acquire),
           (left & ~CALLER_SLEEPS) != own) {
        if (!(left & CALLER_SLEEPS)) {
            if (pkvi_spin_while(&pool->left, left, pool->spin_ns) != left ||
                !atomic_compare_exchange_strong(&pool->left, &left, left | CALLER_SLEEPS)) {
                continue;
            }
            left |= CALLER_SLEEPS;
        }
        pkvi_futex_wait(&pool->left, left);
    }
}

void pkvi_pool_run(struct pkvi_pool *pool, pkvi_unit_fn fn, void *context, uint32_t units)
{
    if (units <= 1 || pool->threads == 1 || units >= NO_TICKET) {
        for (uint32_t unit = 0; unit < units; unit++) {
            fn(context, unit, 0);
        }
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->units = units;
    atomic_store_explicit(&pool->left, units, memory_order_relaxed);
    /* Unit 0 is the caller's: the line is busiest now, and it need not ask for it again. */
    announce(pool, NO_TICKET - units + 1, units - 1);
    fn(context, 0, 0);
    wait_for_units(pool, 1 + work(pool, 0));
}

/* Signals are for the program's own threads. */
static int start_thread(struct worker *worker)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_setname_np(worker->thread, "pkv-pool");
    }
    return error;
}

/* CPUs this process may run on; the kernel's mask may be wider than cpu_set_t. */
static uint32_t affinity_count(void)
{
    for (int cpus = 1024; cpus <= (1 << 16); cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        if (!set) {
            return 1;
        }
        int failed = sched_getaffinity(0, bytes, set);
        int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0) {
            return (uint32_t)count;
        }
    }
    return 1;
}

enum pkv_status pkvi_pool_open(uint32_t threads, struct pkvi_pool **pool_out)
{
    if (threads == 0 || threads > MAX_THREADS) {
        return PKV_FAIL(PKV_ERR_RANGE, "threads %u: expected 1 to %u", threads, MAX_THREADS);
    }
    struct pkvi_pool *pool = aligned_alloc(64, sizeof *pool);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a pool of %u threads", threads);
    }
    *pool = (struct pkvi_pool){.threads = threads, .workers = workers};
    atomic_store(&pool->ticket, NO_TICKET);
    /* With more threads than CPUs a spinning thread keeps the CPU from one that has work. */
    pool->spin_ns = threads <= affinity_count() ? SPIN_NS : 0;
    for (; pool->started < threads - 1; pool->started++) {
        struct worker *worker = &workers[pool->started];
        *worker = (struct worker){.pool = pool, .index = pool->started + 1};
        if (start_thread(worker) != 0) {
            uint32_t started = pool->started + 1;
            pkvi_pool_close(pool);
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "cannot start thread %u of %u", started + 1,
                            threads);
        }
    }
    *pool_out = pool;
    return PKV_OK;
}

void pkvi_pool_close(struct pkvi_pool *pool)
{
    if (!pool) {
        return;
    }
    atomic_store_explicit(&pool->stop, 1, memory_order_relaxed);
    announce(pool, NO_TICKET + MAX_THREADS + 1, MAX_THREADS); /* a value that nobody waits on */
    for (uint32_t i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->workers);
    free(pool);
}

uint32_t pkvi_pool_threads(const struct pkvi_pool *pool)
{
    return pool->threads;
}

uint32_t pkvi_threads_available(void)
{
    struct pkvi_cgroup cgroup;
    uint32_t count = affinity_count();
    pkvi_cgroup_query("", PKVI_CGROUP_CPU, &cgroup);
    if (cgroup.cpus > 0 && cgroup.cpus < count) {
        count = (uint32_t)ceil(cgroup.cpus);
    }
    return count > 0 ? count : 1;
}
