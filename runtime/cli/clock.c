/* clock.c: owns reading time and memory use. */
#include "runtime/cli/cli.h"

#include <sys/resource.h>
#include <time.h>

uint64_t pkvi_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double pkvi_seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

double pkvi_rate(uint64_t count, uint64_t ns)
{
    return ns == 0 ? 0.0 : (double)count / pkvi_seconds(ns);
}

uint64_t pkvi_peak_rss_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024u : 0;
}
