/* limits.h: what this process may use, from /proc and the cgroup. Needs no library. */
#ifndef PKV_BASE_LIMITS_H
#define PKV_BASE_LIMITS_H

#include <stdint.h>

struct pkvi_limits {
    uint64_t memory_total_bytes;     /* of the machine, or of the cgroup where that is less */
    uint64_t memory_available_bytes; /* could be used now without swapping */
    uint64_t cgroup_limit_bytes;     /* 0 = none */
    uint64_t cgroup_used_bytes;
};

/* `root` as in cgroup.h. Cost: some ten small files. */
void pkvi_limits_memory(const char *root, struct pkvi_limits *limits_out);

#endif
