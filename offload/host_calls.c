/*
 * host_calls.c: the real calls, and the readers of /proc/self/smaps and numa_maps. The kernel may
 * have put neighbours into one area; such an area counts by the part of it that was asked for.
 * Formats: proc_pid_smaps(5), proc_pid_numa_maps(5).
 */
#include "offload/host_calls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int huge_bytes(const void *base, uint64_t bytes, uint64_t *huge_out)
{
    char line[4096];
    uint64_t begin, end, kib, from = (uintptr_t)base, to = from + bytes;
    uint64_t inside = 0, area = 1;
    double huge = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) {
        return errno;
    }
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2) {
            uint64_t low = begin > from ? begin : from, high = end < to ? end : to;
            inside = low < high ? high - low : 0;
            area = end - begin;
            if (begin >= to) {
                break;
            }
        } else if (inside > 0 && sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1) {
            huge += (double)(kib * 1024) * (double)inside / (double)area;
        }
    }
    fclose(file);
    *huge_out = (uint64_t)huge;
    return 0;
}

/* Pages of a line of numa_maps: all, and those on the node. */
static void count_pages(const char *line, uint32_t node, uint64_t *all, uint64_t *there)
{
    uint32_t number;
    uint64_t pages;
    for (const char *at = line; (at = strstr(at, " N")) != NULL; at += 2) {
        if (sscanf(at, " N%" SCNu32 "=%" SCNu64, &number, &pages) == 2) {
            *all += pages;
            *there += number == node ? pages : 0;
        }
    }
}

static int node_share(const void *base, uint64_t bytes, uint32_t node, double *share_out)
{
    char line[4096];
    uint64_t begin, from = (uintptr_t)base, all = 0, there = 0;
    FILE *file = fopen("/proc/self/numa_maps", "re");
    if (!file) {
        return errno;
    }
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNx64 " ", &begin) != 1 || begin >= from + bytes) {
            continue;
        }
        if (begin <= from) { /* so far the last area that may hold base */
            all = there = 0;
        }
        count_pages(line, node, &all, &there);
    }
    fclose(file);
    if (all == 0) {
        return ENODATA;
    }
    *share_out = (double)there / (double)all;
    return 0;
}

const struct pkvi_host_calls pkvi_host_calls = {
    .mmap = mmap,
    .munmap = munmap,
    .madvise = madvise,
    .one_node = pkvi_topo_one_node,
    .topo_open = pkvi_topo_open,
    .bind_memory = pkvi_topo_bind_memory,
    .page_nodes = pkvi_topo_page_nodes,
    .thread_cpus = pkvi_topo_thread_cpus,
    .run_on = pkvi_topo_run_on,
    .pool_open = pkvi_pool_open,
    .facts = pkvi_host_query,
    .huge_bytes = huge_bytes,
    .node_share = node_share,
};
