/* stats.h: what measurements share: quantiles, and numbers by chance that a seed repeats. */
#ifndef PKV_BENCH_STATS_H
#define PKV_BENCH_STATS_H

#include <stddef.h>
#include <stdint.h>

void pkvi_stats_sort(double *values, size_t count);

/* Of sorted values, count > 0, between the two nearest ranks. */
double pkvi_stats_quantile(const double *sorted, size_t count, double share);

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
uint64_t pkvi_random_next(uint64_t *state);

#endif
