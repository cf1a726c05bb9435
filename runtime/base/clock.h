/* clock.h: the one clock. */
#ifndef PKV_BASE_CLOCK_H
#define PKV_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic nanoseconds from an unknown start. Cost: some 20-50 ns, no system call. */
uint64_t pkvi_clock_ns(void);

#endif
