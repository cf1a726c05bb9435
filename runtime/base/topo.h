/* topo.h: how CPUs, caches and memory hang together. */
#ifndef PKV_BASE_TOPO_H
#define PKV_BASE_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "pivotkv/status.h"

#define PKVI_TOPO_CPUS 8192u /* most that Linux can be built for */

/* A set of CPUs, laid out as the kernel's: CPU i is a bit of the (i / bits of a word)-th word. */
struct pkvi_topo_cpus {
    unsigned long word[PKVI_TOPO_CPUS / 8 / sizeof(unsigned long)];
};

struct pkvi_topo_node {
    uint32_t number;   /* as the system counts */
    uint32_t cpus;     /* that this process may use */
    char cpu_list[96]; /* "0-7,16-23"; cut where longer */
    uint64_t memory_bytes;
    uint64_t free_bytes;      /* 0 where unknown */
    uint64_t available_bytes; /* free, or page cache that can go; 0 where unknown */
    struct pkvi_topo_cpus cpu_set;
};

struct pkvi_topo {
    uint32_t sockets, cores, cpus;
    uint64_t l1d_bytes, l2_bytes; /* of one core, 0 where unknown */
    uint64_t last_level_bytes;    /* one last-level cache */
    uint32_t last_level_cpus;     /* CPUs that share it */
    uint32_t node_count;
    struct pkvi_topo_node nodes[]; /* [node_count] */
};

/*
 * Look at the machine, or at a made-up one ("node:2 core:4 pu:2", hwloc(7)) for tests.
 * PKV_ERR_INVALID: not a topology. Cost: 10 to 100 ms on large machines; never on the way to the
 * first token.
 */
enum pkv_status pkvi_topo_open(const char *synthetic_or_null, struct pkvi_topo **topo_out);
void pkvi_topo_close(struct pkvi_topo *topo);

/* Is there only one node, and which? Cost: one small file; no hwloc. */
bool pkvi_topo_one_node(uint32_t *number_out);

/*
 * The calls below return 0 or an errno. Binding holds for the calling thread and the threads it
 * starts later; the kernel leaves out CPUs that the cgroup does not allow.
 */
int pkvi_topo_thread_cpus(struct pkvi_topo_cpus *cpus_out); /* that this thread may run on */
int pkvi_topo_run_on(const struct pkvi_topo_cpus *cpus);

/*
 * Pages of [base, base + bytes) that are touched from now on come from the node: only from there
 * where `strict` (then a full node ends in the kernel's out-of-memory killer), else from there as
 * long as it has some. base lies at a page. EPERM: refused in a container; EINVAL: no such node,
 * or outside the cpuset; ENOSYS: a kernel without NUMA.
 */
int pkvi_topo_bind_memory(void *base, uint64_t bytes, uint32_t node, bool strict);

/* Node of each page, or a negative errno (-ENOENT: not touched). `count` pages. */
int pkvi_topo_page_nodes(void **pages, uint64_t count, int *nodes_out);

#endif
