/* topo.c: the only file that knows hwloc and libnuma. */
#include "runtime/base/topo.h"

#include <hwloc.h>
#include <numa.h>
#include <stdbool.h>
#include <stdlib.h>

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

static void describe_node(hwloc_obj_t object, bool real, struct pkvi_topo_node *node)
{
    node->number = object->os_index;
    node->memory_bytes = object->attr ? object->attr->numanode.local_memory : 0;
    int cpus = object->cpuset ? hwloc_bitmap_weight(object->cpuset) : 0;
    node->cpus = cpus > 0 ? (uint32_t)cpus : 0;
    if (object->cpuset) {
        (void)hwloc_bitmap_list_snprintf(node->cpu_list, sizeof node->cpu_list, object->cpuset);
    }
    long long free_bytes = 0;
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
