/* host_calls.h: the system calls of the host arena, as a table, so that tests can fail them. */
#ifndef PKV_OFFLOAD_HOST_CALLS_H
#define PKV_OFFLOAD_HOST_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtime/base/host.h"
#include "runtime/base/thread.h"
#include "runtime/base/topo.h"

/* mmap, munmap and madvise as in libc; the others that return int give 0 or an errno. */
struct pkvi_host_calls {
    void *(*mmap)(void *base, size_t bytes, int protection, int flags, int file, off_t offset);
    int (*munmap)(void *base, size_t bytes);
    int (*madvise)(void *base, size_t bytes, int advice);

    /* topo.h */
    bool (*one_node)(uint32_t *number_out);
    enum pkv_status (*topo_open)(const char *synthetic_or_null, struct pkvi_topo **topo_out);
    int (*bind_memory)(void *base, uint64_t bytes, uint32_t node, bool strict);
    int (*page_nodes)(void **pages, uint64_t count, int *nodes_out);
    int (*thread_cpus)(struct pkvi_topo_cpus *cpus_out);
    int (*run_on)(const struct pkvi_topo_cpus *cpus);

    enum pkv_status (*pool_open)(uint32_t threads, struct pkvi_pool **pool_out);

    void (*facts)(const char *root, struct pkvi_host *host_out);

    /* Bytes of [base, base + bytes) on huge pages, from /proc/self/smaps. */
    int (*huge_bytes)(const void *base, uint64_t bytes, uint64_t *huge_out);

    /*
     * Share (0 to 1) of the touched pages of [base, base + bytes) on a node, from
     * /proc/self/numa_maps: what is left where page_nodes is refused. ENODATA: no page of it found.
     */
    int (*node_share)(const void *base, uint64_t bytes, uint32_t node, double *share_out);
};

extern const struct pkvi_host_calls pkvi_host_calls; /* the real ones */

#endif
