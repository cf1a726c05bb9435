/* limits.c: the machine's memory seen through the cgroup. */
#include "runtime/base/limits.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/cgroup.h"

/* Total and available memory of the machine; what is missing stays UINT64_MAX. */
static void read_meminfo(const char *root, struct pkvi_limits *limits)
{
    char name[PATH_MAX], line[256];
    unsigned long long kib = 0;
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    FILE *file = fopen(name, "re");
    if (!file) {
        return;
    }
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) {
            limits->memory_total_bytes = kib * 1024;
        } else if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            limits->memory_available_bytes = kib * 1024;
            break;
        }
    }
    fclose(file);
}

void pkvi_limits_memory(const char *root, struct pkvi_limits *limits_out)
{
    struct pkvi_cgroup cgroup;
    *limits_out = (struct pkvi_limits){.memory_total_bytes = UINT64_MAX,
                                       .memory_available_bytes = UINT64_MAX};
    read_meminfo(root, limits_out);
    pkvi_cgroup_query(root, PKVI_CGROUP_MEMORY, &cgroup);
    if (cgroup.memory_bytes == 0) {
        return;
    }
    limits_out->cgroup_limit_bytes = cgroup.memory_bytes;
    limits_out->cgroup_used_bytes = cgroup.memory_used_bytes;
    if (cgroup.memory_bytes < limits_out->memory_total_bytes) {
        limits_out->memory_total_bytes = cgroup.memory_bytes;
    }
    uint64_t left = cgroup.memory_used_bytes < cgroup.memory_bytes
                        ? cgroup.memory_bytes - cgroup.memory_used_bytes
                        : 0;
    if (left < limits_out->memory_available_bytes) {
        limits_out->memory_available_bytes = left;
    }
}
