/*
 * memcpy-loop.c: the plainest measurement of a large copy, to hold against `pivotkv link`: two
 * areas on huge pages, touched, then memcpy() of all of it again and again. Shares no code with the
 * rest.
 *
 *   cc -O2 -D_GNU_SOURCE -o /tmp/memcpy-loop bench/baselines/memcpy-loop.c && /tmp/memcpy-loop
 * [MIB] [REPEATS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static char *area(size_t bytes, int value)
{
    char *at =
        mmap(NULL, bytes + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    at += (2 << 20) - (size_t)at % (2 << 20);
    madvise(at, bytes, MADV_HUGEPAGE);
    memset(at, value, bytes);
    return at;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 1024) << 20;
    int repeats = argc > 2 ? atoi(argv[2]) : 11;
    if (bytes == 0 || repeats < 1) {
        fprintf(stderr, "usage: memcpy-loop [MIB] [REPEATS]\n");
        return 2;
    }
    double *rates = calloc((size_t)repeats, sizeof *rates);
    char *from = area(bytes, 1), *to = area(bytes, 2);
    for (int i = 0; rates && i < repeats; i++) {
        double begin = seconds();
        memcpy(to, from, bytes);
        rates[i] = 1e-9 * (double)bytes / (seconds() - begin);
    }
    if (!rates || to[bytes - 1] != 1) {
        return 1;
    }
    qsort(rates, (size_t)repeats, sizeof *rates, compare);
    printf("%zu MiB: median %.2f GB/s, p10 %.2f, p90 %.2f\n", bytes >> 20, rates[repeats / 2],
           rates[repeats / 10], rates[repeats - 1 - repeats / 10]);
    return 0;
}
