/* thread.h: the pool that splits one operation among cores. */
#ifndef PKV_BASE_THREAD_H
#define PKV_BASE_THREAD_H

#include <stdint.h>

#include "pivotkv/status.h"

struct pkvi_pool;

/* One unit of work; `worker` is 0 .. threads-1, for scratch memory. */
typedef void (*pkvi_unit_fn)(void *context, uint32_t unit, uint32_t worker);

/*
 * A pool of `threads` workers, of which the caller of pkvi_pool_run() is one.
 * Waiting workers spin for a short while, then sleep. No allocation, no lock while running.
 */
enum pkv_status pkvi_pool_open(uint32_t threads, struct pkvi_pool **pool_out);
void pkvi_pool_close(struct pkvi_pool *pool);
uint32_t pkvi_pool_threads(const struct pkvi_pool *pool);

/*
 * Run fn for every unit 0 .. units-1 and return when all are done. Units are handed out in
 * ascending order, one at a time; make them large enough (some microseconds). What a unit wrote is
 * visible to the caller afterwards. Threads: one caller at a time; fn must not call it again.
 */
void pkvi_pool_run(struct pkvi_pool *pool, pkvi_unit_fn fn, void *context, uint32_t units);

/* min(CPUs of the affinity mask, cgroup quota rounded up), at least 1. */
uint32_t pkvi_threads_available(void);

#endif
