/* topo.h: how CPUs, caches and memory hang together. */
#ifndef PKV_BASE_TOPO_H
#define PKV_BASE_TOPO_H

#include <stdint.h>

#include "pivotkv/status.h"

struct pkvi_topo_node {
    uint32_t number;   /* as the system counts */
    uint32_t cpus;     /* that this process may use */
    char cpu_list[96]; /* "0-7,16-23"; cut where longer */
    uint64_t memory_bytes;
    uint64_t free_bytes; /* 0 where unknown */
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

#endif
