/* host.h: facts about this machine that need no library: what `doctor` looks at. */
#ifndef PKV_BASE_HOST_H
#define PKV_BASE_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/limits.h"

struct pkvi_host {
    char cpu_model[128];    /* "" where unknown */
    char cpu_features[256]; /* of those that kernels care for, separated by blanks */
    double cpu_quota;       /* of the cgroup, 0 = none */
    struct pkvi_limits memory;
    char huge_pages[16]; /* transparent huge pages: "always", "madvise", "never"; "" = no such thing
                          */
    uint64_t memlock_bytes; /* UINT64_MAX = unlimited */
    bool may_lock;          /* CAP_IPC_LOCK: the limit does not hold */
    char driver[96];        /* version of the NVIDIA driver, "" = not loaded */
    uint32_t gpus;          /* that it has found */
    bool gpu_node;          /* /dev/nvidiactl is there: in a container it may be missing */
};

/* `root` as in cgroup.h; memlock is always this process's. Cost: about 1 ms. */
void pkvi_host_query(const char *root, struct pkvi_host *host_out);

#endif
