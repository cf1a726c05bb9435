/* host_fake.c: see host_fake.h. Maps and touches for real unless told otherwise. */
#include "tests/support/host_fake.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/device/device.h"
#include "tests/support/pkv_test.h"

struct pkvt_host pkvt_host;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* populating comes from threads */

/* Note a call; true: it is to fail, errno says how. */
static bool fails(const char *name)
{
    struct pkvt_host *host = &pkvt_host;
    pthread_mutex_lock(&lock);
    size_t length = strlen(host->trace), word = strlen(name);
    bool again = length > word && strncmp(host->trace + length - word - 1, name, word) == 0;
    if (!again && length + word + 2 < sizeof host->trace) {
        snprintf(host->trace + length, sizeof host->trace - length, "%s ", name);
    }
    bool fail = ++host->call_count == host->fail_call ||
                (host->fail_name && strcmp(host->fail_name, name) == 0);
    if (fail) {
        host->failed = name;
        errno = host->fail_errno;
    }
    pthread_mutex_unlock(&lock);
    return fail;
}

static void *fake_mmap(void *base, size_t bytes, int protection, int flags, int file, off_t offset)
{
    void *map = fails("mmap") ? MAP_FAILED : mmap(base, bytes, protection, flags, file, offset);
    if (map != MAP_FAILED) {
        pkvt_host.mapped_bytes += bytes;
    }
    return map;
}

static int fake_munmap(void *base, size_t bytes)
{
    if (fails("munmap")) {
        pkvt_host.kept_map = base;
        pkvt_host.kept_bytes = bytes;
        return -1;
    }
    pkvt_host.mapped_bytes -= bytes;
    return munmap(base, bytes);
}

static int fake_madvise(void *base, size_t bytes, int advice)
{
    const char *name = advice == MADV_HUGEPAGE   ? "huge"
                       : advice == MADV_DONTFORK ? "dontfork"
                                                 : "populate";
    if (fails(name)) {
        return -1;
    }
    return pkvt_host.untouched ? 0 : madvise(base, bytes, advice);
}

static bool fake_one_node(uint32_t *number_out)
{
    *number_out = 0;
    return !pkvt_host.topology;
}

static enum pkv_status fake_topo_open(const char *synthetic, struct pkvi_topo **topo_out)
{
    assert_null(synthetic);
    if (fails("topo")) {
        return PKV_FAIL(PKV_ERR_IO, "no topology today");
    }
    return pkvi_topo_open(pkvt_host.topology, topo_out);
}

static int fake_bind(void *base, uint64_t bytes, uint32_t node, bool strict)
{
    if (fails("bind")) {
        return pkvt_host.fail_errno;
    }
    assert_non_null(base);
    pkvt_host.bound_bytes = bytes;
    pkvt_host.bound_node = node;
    pkvt_host.bound_strict = strict;
    return 0;
}

static int fake_page_nodes(void **pages, uint64_t count, int *nodes_out)
{
    if (fails("pages")) {
        return pkvt_host.fail_errno;
    }
    for (uint64_t i = 0; i < count && pkvt_host.page_node >= 0; i++) {
        nodes_out[i] = pkvt_host.page_node;
    }
    return pkvt_host.page_node >= 0 ? 0 : pkvi_topo_page_nodes(pages, count, nodes_out);
}

static int fake_thread_cpus(struct pkvi_topo_cpus *cpus_out)
{
    const int bits = 8 * (int)sizeof cpus_out->word[0];
    if (fails("cpus")) {
        return pkvt_host.fail_errno;
    }
    memset(cpus_out, 0, sizeof *cpus_out);
    for (int cpu = pkvt_host.first_cpu; cpu <= pkvt_host.last_cpu; cpu++) {
        cpus_out->word[cpu / bits] |= 1ul << (cpu % bits);
    }
    return 0;
}

static int fake_run_on(const struct pkvi_topo_cpus *cpus)
{
    static const struct pkvi_topo_cpus none;
    if (fails("run")) {
        return pkvt_host.fail_errno;
    }
    pkvt_host.ran_on[memcmp(&pkvt_host.ran_on[0], &none, sizeof none) != 0] = *cpus;
    return 0;
}

static enum pkv_status fake_pool_open(uint32_t threads, struct pkvi_pool **pool_out)
{
    if (fails("pool")) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no threads today");
    }
    return pkvi_pool_open(threads, pool_out);
}

static void fake_facts(const char *root, struct pkvi_host *host_out)
{
    const struct pkvt_host *host = &pkvt_host;
    assert_string_equal(root, "");
    *host_out = (struct pkvi_host){.memory = {.memory_total_bytes = host->available_bytes,
                                              .memory_available_bytes = host->available_bytes,
                                              .cgroup_limit_bytes = host->cgroup_limit_bytes,
                                              .cgroup_used_bytes = host->cgroup_used_bytes},
                                   .memlock_bytes = host->memlock_bytes,
                                   .may_lock = host->may_lock};
    snprintf(host_out->huge_pages, sizeof host_out->huge_pages, "%s", host->huge_pages);
}

static int fake_huge_bytes(const void *base, uint64_t bytes, uint64_t *huge_out)
{
    return fails("smaps") ? pkvt_host.fail_errno
                          : pkvi_host_calls.huge_bytes(base, bytes, huge_out);
}

static int fake_node_share(const void *base, uint64_t bytes, uint32_t node, double *share_out)
{
    return fails("numa_maps") ? pkvt_host.fail_errno
                              : pkvi_host_calls.node_share(base, bytes, node, share_out);
}

const struct pkvi_host_calls pkvt_host_calls = {
    .mmap = fake_mmap,
    .munmap = fake_munmap,
    .madvise = fake_madvise,
    .one_node = fake_one_node,
    .topo_open = fake_topo_open,
    .bind_memory = fake_bind,
    .page_nodes = fake_page_nodes,
    .thread_cpus = fake_thread_cpus,
    .run_on = fake_run_on,
    .pool_open = fake_pool_open,
    .facts = fake_facts,
    .huge_bytes = fake_huge_bytes,
    .node_share = fake_node_share,
};

void pkvt_host_reset(void)
{
    pkvt_host = (struct pkvt_host){.device_node = -1,
                                   .last_cpu = 1023,
                                   .available_bytes = UINT64_MAX,
                                   .memlock_bytes = UINT64_MAX,
                                   .huge_pages = "madvise",
                                   .page_node = -1,
                                   .fail_errno = EPERM,
                                   .pin_status = PKV_ERR_NO_MEMORY};
}

/* ---- the device ---- */

static enum pkv_status fake_query(struct pkv_device *device, struct pkv_device_info *info_out)
{
    PKV_TRY(pkvi_cpu_device_ops.query(device, info_out));
    info_out->numa_node = pkvt_host.device_node;
    return PKV_OK;
}

static enum pkv_status fake_pin(struct pkv_device *device, void *base, uint64_t bytes,
                                pkv_addr *addr_out)
{
    (void)device;
    uint64_t index = pkvt_host.pin_count++;
    (void)fails("pin"); /* for the trace; fail_pin decides */
    if (pkvt_host.pin_count == pkvt_host.fail_pin) {
        return PKV_FAIL(pkvt_host.pin_status, "driver: no more");
    }
    assert_true(index < PKVT_HOST_PINS);
    *addr_out = pkvi_addr(base) + (index + 1) * ((uint64_t)1 << 48);
    pkvt_host.pins[index] = (struct pkvt_host_pin){base, bytes, *addr_out};
    return PKV_OK;
}

static void fake_unpin(struct pkv_device *device, void *base)
{
    (void)device;
    for (size_t i = 0; i < PKVT_HOST_PINS; i++) {
        if (pkvt_host.pins[i].base == base) {
            pkvt_host.pins[i].base = NULL;
            return;
        }
    }
    fail_msg("unpin of what was not pinned");
}

struct pkv_device *pkvt_host_device(void)
{
    static struct pkv_device_ops ops;
    struct pkv_device *device;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    ops = pkvi_cpu_device_ops;
    ops.query = fake_query;
    ops.mem_pin = fake_pin;
    ops.mem_unpin = fake_unpin;
    device->ops = &ops;
    return device;
}

uint64_t pkvt_host_pinned(void)
{
    uint64_t count = 0;
    for (size_t i = 0; i < PKVT_HOST_PINS; i++) {
        count += pkvt_host.pins[i].base != NULL;
    }
    return count;
}

const char *pkvt_host_note(const struct pkvi_host_arena *arena, const char *name)
{
    const struct pkvi_host_report *report = pkvi_host_arena_report(arena);
    for (uint32_t i = 0; i < report->note_count; i++) {
        if (strcmp(report->notes[i].name, name) == 0) {
            return report->notes[i].text;
        }
    }
    return NULL;
}
