/* topo.c: the only file that knows hwloc and libnuma. */
#include "runtime/base/topo.h"

#include <errno.h>
#include <hwloc.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"

static uint32_t count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(topology, type);
    return count > 0 ? (uint32_t)count : 0;
}

/* Size of the first cache of a type, 0 = none. */
static uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    return cache && cache->attr ? cache->attr->cache.size : 0;
}

static void find_last_level(hwloc_topology_t topology, struct pkvi_topo *topo)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE,
                                             HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        hwloc_obj_t cache = hwloc_get_obj_by_type(topology, types[i], 0);
        if (cache && cache->attr && cache->attr->cache.size > 0) {
            topo->last_level_bytes = cache->attr->cache.size;
            topo->last_level_cpus = (uint32_t)hwloc_bitmap_weight(cache->cpuset);
        }
    }
}

/* Formats of /sys/devices/system/node: Documentation/ABI/stable/sysfs-devices-node of Linux. */
static uint64_t node_available_bytes(uint32_t number)
{
    char name[96], line[256], key[64];
    unsigned long long kib = 0, bytes = 0;
    snprintf(name, sizeof name, "/sys/devices/system/node/node%u/meminfo", number);
    FILE *file = fopen(name, "re");
    if (!file) {
        return 0;
    }
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "Node %*u %63s %llu kB", key, &kib) != 2) {
            continue;
        }
        if (strcmp(key, "MemFree:") == 0) {
            bytes += kib * 1024;
        } else if (strcmp(key, "Active(file):") == 0 || strcmp(key, "Inactive(file):") == 0) {
            bytes += kib * 512; /* half: as careful as MemAvailable is where cache is scarce */
        }
    }
    fclose(file);
    return bytes;
}

static void copy_cpus(hwloc_const_bitmap_t from, struct pkvi_topo_cpus *to)
{
    for (unsigned i = 0; i < sizeof to->word / sizeof to->word[0]; i++) {
        to->word[i] = hwloc_bitmap_to_ith_ulong(from, i);
    }
}

static void describe_node(hwloc_obj_t object, bool real, struct pkvi_topo_node *node)
{
    node->number = object->os_index;
    node->memory_bytes = object->attr ? object->attr->numanode.local_memory : 0;
    int cpus = object->cpuset ? hwloc_bitmap_weight(object->cpuset) : 0;
    node->cpus = cpus > 0 ? (uint32_t)cpus : 0;
    if (object->cpuset) {
        (void)hwloc_bitmap_list_snprintf(node->cpu_list, sizeof node->cpu_list, object->cpuset);
        copy_cpus(object->cpuset, &node->cpu_set);
    }
    long long free_bytes = 0;
    node->available_bytes = real ? node_available_bytes(node->number) : 0;
    if (real && numa_available() >= 0 && numa_node_size64((int)node->number, &free_bytes) >= 0 &&
        free_bytes > 0) {
        node->free_bytes = (uint64_t)free_bytes;
    }
}

static enum pkv_status describe(hwloc_topology_t topology, bool real, struct pkvi_topo **topo_out)
{
    uint32_t nodes = count_of(topology, HWLOC_OBJ_NUMANODE);
    struct pkvi_topo *topo = calloc(1, sizeof *topo + nodes * sizeof topo->nodes[0]);
    if (!topo) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a topology of %u nodes", nodes);
    }
    topo->sockets = count_of(topology, HWLOC_OBJ_PACKAGE);
    topo->cores = count_of(topology, HWLOC_OBJ_CORE);
    topo->cpus = count_of(topology, HWLOC_OBJ_PU);
    topo->l1d_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE);
    topo->l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    find_last_level(topology, topo);
    topo->node_count = nodes;
    for (uint32_t i = 0; i < nodes; i++) {
        describe_node(hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, i), real,
                      &topo->nodes[i]);
    }
    *topo_out = topo;
    return PKV_OK;
}

enum pkv_status pkvi_topo_open(const char *synthetic_or_null, struct pkvi_topo **topo_out)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for hwloc");
    }
    enum pkv_status status;
    if (synthetic_or_null && hwloc_topology_set_synthetic(topology, synthetic_or_null) != 0) {
        status = PKV_FAIL(PKV_ERR_INVALID, "topology '%.200s': not one that hwloc understands",
                          synthetic_or_null);
    } else if (hwloc_topology_load(topology) != 0) {
        status = PKV_FAIL(PKV_ERR_IO, "hwloc cannot read the machine's topology");
    } else {
        status = describe(topology, !synthetic_or_null, topo_out);
    }
    hwloc_topology_destroy(topology);
    return status;
}

void pkvi_topo_close(struct pkvi_topo *topo)
{
    free(topo);
}

bool pkvi_topo_one_node(uint32_t *number_out)
{
    unsigned number = 0;
    char after = '\n';
    FILE *file = fopen("/sys/devices/system/node/online", "re"); /* "0", "0-1", "0,2-3" */
    if (!file) {
        *number_out = 0; /* a kernel without NUMA */
        return true;
    }
    int read = fscanf(file, "%u%c", &number, &after);
    fclose(file);
    *number_out = number;
    return read >= 1 && after == '\n';
}

int pkvi_topo_thread_cpus(struct pkvi_topo_cpus *cpus_out)
{
    memset(cpus_out, 0, sizeof *cpus_out);
    return sched_getaffinity(0, sizeof *cpus_out, (cpu_set_t *)(void *)cpus_out) == 0 ? 0 : errno;
}

int pkvi_topo_run_on(const struct pkvi_topo_cpus *cpus)
{
    const void *set = cpus;
    return sched_setaffinity(0, sizeof *cpus, set) == 0 ? 0 : errno;
}

int pkvi_topo_bind_memory(void *base, uint64_t bytes, uint32_t node, bool strict)
{
    unsigned long nodes[1024 / 8 / sizeof(unsigned long)] = {0}; /* 1024: most that Linux knows */
    const uint32_t bits = 8 * sizeof nodes[0];
    if (node >= 8 * sizeof nodes) {
        return EINVAL;
    }
    nodes[node / bits] = 1ul << (node % bits);
    /* + 1: the kernel takes one bit less than it is told (get_nodes() in its mm/mempolicy.c) */
    long result =
        mbind(base, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, nodes, 8 * sizeof nodes + 1, 0);
    return result == 0 ? 0 : errno;
}

int pkvi_topo_page_nodes(void **pages, uint64_t count, int *nodes_out)
{
    return move_pages(0, count, pages, NULL, nodes_out, 0) >= 0 ? 0 : errno;
}
