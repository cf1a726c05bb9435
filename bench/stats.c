/* stats.c: owns the arithmetic of samples. */
#include "bench/stats.h"

#include <stdlib.h>

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void pkvi_stats_sort(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
}

double pkvi_stats_quantile(const double *sorted, size_t count, double share)
{
    double at = share * (double)(count - 1);
    size_t low = (size_t)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

uint64_t pkvi_random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
