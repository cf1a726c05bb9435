/* cgroup.h: the limits that a container sets, v1 and v2. */
#ifndef PKV_BASE_CGROUP_H
#define PKV_BASE_CGROUP_H

#include <stdint.h>

struct pkvi_cgroup {
    double cpus;                /* CPU quota, 0 = none */
    uint64_t memory_bytes;      /* least limit of this group and its parents, 0 = none */
    uint64_t memory_used_bytes; /* of the group with that limit, without page cache */
};

/* Which limits are wanted; the others stay 0. */
enum pkvi_cgroup_want { PKVI_CGROUP_CPU = 1, PKVI_CGROUP_MEMORY = 2 };

/*
 * Read limits of this process: `want` is a sum of pkvi_cgroup_want. `root` is put before every path
 * ("" for the machine; tests pass a folder). What cannot be read counts as no limit. Cost: some ten
 * small files.
 */
void pkvi_cgroup_query(const char *root, uint32_t want, struct pkvi_cgroup *cgroup_out);

#endif
