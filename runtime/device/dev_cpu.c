/*
 * dev_cpu.c: the cpu device: its memory and its table. Device, pinned and host memory are all plain
 * memory here; which is which is remembered for the emulated link and for the limit.
 */
#include "runtime/device/dev_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/device/device.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define HUGE_BYTES ((uint64_t)2 << 20)
#define LINE_BYTES 64u

/* ---- what lies where ---- */

/* Index of the first block that starts behind addr. */
static size_t upper_block(const struct cpu_device *device, uint64_t addr)
{
    size_t low = 0, high = device->block_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (device->blocks[middle].base <= addr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

enum pkv_mem pkvi_cpu_mem_of(struct cpu_device *device, uint64_t addr)
{
    enum pkv_mem mem = PKV_MEM_HOST;
    pthread_mutex_lock(&device->lock);
    size_t at = upper_block(device, addr);
    if (at > 0 && addr - device->blocks[at - 1].base < device->blocks[at - 1].bytes) {
        mem = device->blocks[at - 1].mem;
    }
    pthread_mutex_unlock(&device->lock);
    return mem;
}

/* Called with the lock held. */
static enum pkv_status add_block(struct cpu_device *device, const struct cpu_block *block)
{
    if (device->block_count == device->block_capacity) {
        size_t capacity = device->block_capacity ? device->block_capacity * 2 : 64;
        struct cpu_block *blocks = realloc(device->blocks, capacity * sizeof *blocks);
        if (!blocks) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the list of allocations");
        }
        device->blocks = blocks;
        device->block_capacity = capacity;
    }
    size_t at = upper_block(device, block->base);
    memmove(&device->blocks[at + 1], &device->blocks[at],
            (device->block_count - at) * sizeof *device->blocks);
    device->blocks[at] = *block;
    device->block_count++;
    return PKV_OK;
}

/* Take the block that starts at base out of the list; false: there is none. Lock held. */
static bool remove_block(struct cpu_device *device, uint64_t base, bool owned,
                         struct cpu_block *block_out)
{
    size_t at = upper_block(device, base);
    if (at == 0 || device->blocks[at - 1].base != base || device->blocks[at - 1].owned != owned) {
        return false;
    }
    *block_out = device->blocks[at - 1];
    memmove(&device->blocks[at - 1], &device->blocks[at],
            (device->block_count - at) * sizeof *device->blocks);
    device->block_count--;
    return true;
}

/* ---- memory ---- */

/* Anonymous memory on huge pages where the machine has them: fewer faults, fewer TLB misses. */
static void *map_huge(uint64_t bytes, uint64_t *mapped_out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t mapped = (bytes + page - 1) & ~(page - 1);
    uint8_t *raw = mmap(NULL, mapped + HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    uint64_t before = (HUGE_BYTES - ((uintptr_t)raw & (HUGE_BYTES - 1))) & (HUGE_BYTES - 1);
    if (before > 0) {
        munmap(raw, before);
    }
    if (HUGE_BYTES - before > 0) {
        munmap(raw + before + mapped, HUGE_BYTES - before);
    }
    (void)madvise(raw + before, mapped, MADV_HUGEPAGE); /* refused where there are none: fine */
    *mapped_out = mapped;
    return raw + before;
}

static void free_block(const struct cpu_block *block)
{
    void *memory = PKV_AT(void, block->base);
    if (!block->owned) {
        return;
    }
    if (block->mapped_bytes > 0) {
        munmap(memory, block->mapped_bytes);
    } else {
        free(memory);
    }
}

/* Take bytes from the limit, or say what is there. */
static enum pkv_status charge(struct cpu_device *device, enum pkv_mem mem, uint64_t bytes)
{
    static const char *const names[] = {"device", "pinned", "host"};
    uint64_t limit = device->config.memory_bytes;
    uint64_t available = UINT64_MAX;
    if (bytes >= HUGE_BYTES) { /* small ones are not worth reading /proc */
        struct pkvi_limits limits;
        pkvi_limits_memory("", &limits);
        available = limits.memory_available_bytes;
    }
    pthread_mutex_lock(&device->lock);
    if (mem == PKV_MEM_DEVICE && limit > 0 && limit - device->used_bytes < available) {
        available = limit - device->used_bytes;
    }
    bool enough = bytes <= available;
    if (enough && mem == PKV_MEM_DEVICE) {
        device->used_bytes += bytes;
    }
    pthread_mutex_unlock(&device->lock);
    if (!enough) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%s memory: %llu bytes asked, %llu available",
                        names[mem], (unsigned long long)bytes, (unsigned long long)available);
    }
    return PKV_OK;
}

static void uncharge(struct cpu_device *device, enum pkv_mem mem, uint64_t bytes)
{
    if (mem == PKV_MEM_DEVICE) {
        pthread_mutex_lock(&device->lock);
        device->used_bytes -= bytes;
        pthread_mutex_unlock(&device->lock);
    }
}

static enum pkv_status mem_alloc(struct pkv_device *base, enum pkv_mem mem, uint64_t bytes,
                                 pkv_addr *addr_out)
{
    struct cpu_device *device = cpu_device(base);
    if ((int)mem < PKV_MEM_DEVICE || mem > PKV_MEM_HOST) {
        return PKV_FAIL(PKV_ERR_INVALID, "allocate: no such memory as %d", (int)mem);
    }
    if (bytes > UINT64_MAX / 2) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%llu bytes of memory asked", (unsigned long long)bytes);
    }
    uint64_t rounded = (bytes + LINE_BYTES - 1) & ~(uint64_t)(LINE_BYTES - 1);
    PKV_TRY(charge(device, mem, rounded));
    struct cpu_block block = {.bytes = rounded, .mem = mem, .owned = true};
    void *memory = rounded >= HUGE_BYTES ? map_huge(rounded, &block.mapped_bytes)
                                         : aligned_alloc(LINE_BYTES, rounded);
    if (!memory) {
        uncharge(device, mem, rounded);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "the system refused %llu bytes",
                        (unsigned long long)rounded);
    }
    block.base = pkvi_addr(memory);
    if (device->config.schedule != PKV_SCHEDULE_WORKERS) {
        memset(memory, 0xff, rounded); /* tests: NaN in every float that nobody wrote */
    }
    pthread_mutex_lock(&device->lock);
    enum pkv_status status = add_block(device, &block);
    pthread_mutex_unlock(&device->lock);
    if (status != PKV_OK) {
        free_block(&block);
        uncharge(device, mem, rounded);
        return status;
    }
    *addr_out = block.base;
    return PKV_OK;
}

static void mem_free(struct pkv_device *base, enum pkv_mem mem, pkv_addr addr)
{
    struct cpu_device *device = cpu_device(base);
    struct cpu_block block;
    pthread_mutex_lock(&device->lock);
    bool found = remove_block(device, addr, true, &block);
    pthread_mutex_unlock(&device->lock);
    if (!found || block.mem != mem) {
        pkvi_log(PKV_LOG_ERROR, "device", "free of address %llx: not an allocation of this kind",
                 (unsigned long long)addr);
    }
    if (found) {
        uncharge(device, block.mem, block.bytes);
        free_block(&block);
    }
}

/* Where the kernel cannot (before Linux 5.14), pages come at first use as they always did. */
static void mem_touch(struct pkv_device *base, pkv_addr addr, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t first = (addr + page - 1) & ~(page - 1), end = (addr + bytes) & ~(page - 1);
    (void)base;
    if (end > first) {
        (void)madvise(PKV_AT(void, first), end - first, MADV_POPULATE_WRITE);
    }
}

static enum pkv_status mem_pin(struct pkv_device *base, void *memory, uint64_t bytes,
                               pkv_addr *addr_out)
{
    struct cpu_device *device = cpu_device(base);
    struct cpu_block block = {.base = pkvi_addr(memory), .bytes = bytes, .mem = PKV_MEM_PINNED};
    pthread_mutex_lock(&device->lock);
    enum pkv_status status = add_block(device, &block);
    pthread_mutex_unlock(&device->lock);
    if (status == PKV_OK) {
        *addr_out = block.base;
    }
    return status;
}

static void mem_unpin(struct pkv_device *base, void *memory)
{
    struct cpu_device *device = cpu_device(base);
    struct cpu_block block;
    pthread_mutex_lock(&device->lock);
    (void)remove_block(device, pkvi_addr(memory), false, &block);
    pthread_mutex_unlock(&device->lock);
}

/* ---- life ---- */

static enum pkv_status cpu_open(const struct pkv_device_config *config, struct pkv_device *below,
                                struct pkv_device **device_out)
{
    enum pkv_cpu cpu = config->cpu == PKV_CPU_AUTO ? pkvi_cpu_best() : config->cpu;
    if (below) {
        return PKV_FAIL(PKV_ERR_INVALID, "the cpu device wraps nothing");
    }
    if (!pkvi_cpu_supports(cpu)) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "this CPU does not run %s kernels; its best are %s",
                        pkvi_cpu_name(cpu), pkvi_cpu_name(pkvi_cpu_best()));
    }
    struct cpu_device *device = calloc(1, sizeof *device);
    if (!device) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a device");
    }
    device->base.ops = &pkvi_cpu_device_ops;
    device->config = *config;
    device->cpu = cpu;
    device->threads = pkvi_threads_available();
    if (config->threads > 0 && config->threads < device->threads) {
        device->threads = config->threads;
    }
    device->rng = config->schedule_seed * 2 + 1;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->link_lock, NULL);
    pthread_mutex_init(&device->turn, NULL);
    *device_out = &device->base;
    return PKV_OK;
}

static void cpu_close(struct pkv_device *base)
{
    struct cpu_device *device = cpu_device(base);
    for (size_t i = 0; i < device->block_count; i++) {
        free_block(&device->blocks[i]); /* what the caller left */
    }
    while (device->progresses) {
        struct cpu_progress *progress = device->progresses;
        device->progresses = progress->next;
        free(progress);
    }
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->link_lock);
    pthread_mutex_destroy(&device->turn);
    free(device->blocks);
    free(device);
}

static enum pkv_status cpu_query(struct pkv_device *base, struct pkv_device_info *info_out)
{
    struct cpu_device *device = cpu_device(base);
    struct pkvi_limits limits;
    pkvi_limits_memory("", &limits);
    pthread_mutex_lock(&device->lock);
    uint64_t used = device->used_bytes;
    pthread_mutex_unlock(&device->lock);
    uint64_t total = limits.memory_total_bytes, free_bytes = limits.memory_available_bytes;
    if (device->config.memory_bytes > 0) {
        uint64_t left = device->config.memory_bytes - used;
        total = device->config.memory_bytes < total ? device->config.memory_bytes : total;
        free_bytes = left < free_bytes ? left : free_bytes;
    }
    /* A link sleeps: others run meanwhile. A test's schedule is about orders, not about time. */
    const bool overlaps = cpu_has_link(device) || device->config.schedule != PKV_SCHEDULE_WORKERS;
    const uint32_t shared = overlaps ? 0 : PKV_CAP_SHARES_CORES;
    *info_out = (struct pkv_device_info){
        .name = "cpu",
        .variant = pkvi_cpu_name(device->cpu),
        .threads = device->threads,
        .caps = PKV_CAP_READS_HOST | shared,
        .memory_total_bytes = total,
        .memory_free_bytes = free_bytes,
        .numa_node = -1,
    };
    return PKV_OK;
}

static const struct pkv_kernel *cpu_kernel(struct pkv_device *base, uint32_t op)
{
    return op < PKV_OP_COUNT ? pkvi_cpu_kernel(cpu_device(base)->cpu, op) : NULL;
}

const struct pkv_device_ops pkvi_cpu_device_ops = {
    .abi = PKV_DEVICE_ABI,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .query = cpu_query,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_touch = mem_touch,
    .mem_pin = mem_pin,
    .mem_unpin = mem_unpin,
    .stream_open = pkvi_cpu_stream_open,
    .stream_close = pkvi_cpu_stream_close,
    .stream_sync = pkvi_cpu_stream_sync,
    .copy_async = pkvi_cpu_copy_async,
    .kernel = cpu_kernel,
    .launch = pkvi_cpu_launch,
    .event_open = pkvi_cpu_event_open,
    .event_close = pkvi_cpu_event_close,
    .event_record = pkvi_cpu_event_record,
    .event_wait = pkvi_cpu_event_wait,
    .event_query = pkvi_cpu_event_query,
    .event_sync = pkvi_cpu_event_sync,
    .event_elapsed = pkvi_cpu_event_elapsed,
};
