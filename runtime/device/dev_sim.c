/*
 * dev_sim.c: the sim device's memory, life and table. Memory is address space: pages exist once
 * they are written, so that shapes can be looked at that this machine could not hold.
 */
#include "runtime/device/dev_sim.h"

#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include "kernels/addr.h"
#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/device/device.h"

#define UNKNOWN_MEMORY_BYTES ((uint64_t)1 << 46) /* where nothing else is said: 64 TiB */

/* ---- memory ---- */

bool pkvi_sim_is_device(const struct sim_device *device, pkv_addr addr)
{
    for (uint32_t i = 0; i < device->block_count; i++) {
        const struct sim_block *block = &device->blocks[i];
        if (block->mem == PKV_MEM_DEVICE && addr - block->base < block->bytes) {
            return true;
        }
    }
    return false;
}

static uint64_t memory_total(const struct sim_device *device)
{
    return device->config.memory_bytes > 0 ? device->config.memory_bytes : UNKNOWN_MEMORY_BYTES;
}

static enum pkv_status add_block(struct sim_device *device, enum pkv_mem mem, uint64_t bytes,
                                 pkv_addr *addr_out)
{
    const uint64_t available = memory_total(device) - device->used_bytes;
    if (mem == PKV_MEM_DEVICE && bytes > available) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "device memory: %llu bytes asked, %llu available",
                        (unsigned long long)bytes, (unsigned long long)available);
    }
    if (device->block_count == device->block_capacity) {
        const uint32_t capacity = device->block_capacity > 0 ? 2 * device->block_capacity : 16;
        struct sim_block *blocks = realloc(device->blocks, capacity * sizeof *blocks);
        if (!blocks) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the list of allocations");
        }
        device->blocks = blocks;
        device->block_capacity = capacity;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "the system refused %llu bytes of address space",
                        (unsigned long long)bytes);
    }
    device->used_bytes += mem == PKV_MEM_DEVICE ? bytes : 0;
    *addr_out = pkvi_addr(memory);
    device->blocks[device->block_count++] =
        (struct sim_block){.base = *addr_out, .bytes = bytes, .mem = mem};
    return PKV_OK;
}

static enum pkv_status mem_alloc(struct pkv_device *base, enum pkv_mem mem, uint64_t bytes,
                                 pkv_addr *addr_out)
{
    struct sim_device *device = sim_device(base);
    if ((int)mem < PKV_MEM_DEVICE || mem > PKV_MEM_HOST) {
        return PKV_FAIL(PKV_ERR_INVALID, "allocate: no such memory as %d", (int)mem);
    }
    pthread_mutex_lock(&device->lock);
    const enum pkv_status status = add_block(device, mem, bytes, addr_out);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void mem_free(struct pkv_device *base, enum pkv_mem mem, pkv_addr addr)
{
    struct sim_device *device = sim_device(base);
    uint32_t i = 0;
    pthread_mutex_lock(&device->lock);
    while (i < device->block_count &&
           (device->blocks[i].base != addr || device->blocks[i].mem != mem)) {
        i++;
    }
    if (i < device->block_count) {
        munmap(PKV_AT(void, addr), device->blocks[i].bytes);
        device->used_bytes -= mem == PKV_MEM_DEVICE ? device->blocks[i].bytes : 0;
        device->blocks[i] = device->blocks[--device->block_count];
    } else {
        pkvi_log(PKV_LOG_ERROR, "device", "free of address %llx: not an allocation of this kind",
                 (unsigned long long)addr);
    }
    pthread_mutex_unlock(&device->lock);
}

static enum pkv_status mem_pin(struct pkv_device *device, void *memory, uint64_t bytes,
                               pkv_addr *addr_out)
{
    (void)device;
    (void)bytes;
    *addr_out = pkvi_addr(memory);
    return PKV_OK;
}

static void mem_unpin(struct pkv_device *device, void *memory)
{
    (void)device;
    (void)memory;
}

/* ---- life ---- */

enum pkv_status pkvi_sim_open(const struct pkvi_profile *profile,
                              const struct pkv_device_config *config,
                              struct pkv_device **device_out)
{
    if (profile->cached) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "sim: the profile was measured in regions that fit the last-level cache "
                        "(link --quick, or a small --region): it says nothing about memory");
    }
    struct sim_device *device = calloc(1, sizeof *device);
    if (!device) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a device");
    }
    device->base.ops = &pkvi_sim_device_ops;
    device->config = *config;
    device->config.profile = NULL;
    device->profile = *profile;
    device->is_cpu = strcmp(profile->device, "cpu") == 0;
    device->last_stream = &device->streams;
    pthread_mutex_init(&device->lock, NULL);
    *device_out = &device->base;
    return PKV_OK;
}

static enum pkv_status sim_open(const struct pkv_device_config *config, struct pkv_device *below,
                                struct pkv_device **device_out)
{
    if (below) {
        return PKV_FAIL(PKV_ERR_INVALID, "the sim device wraps nothing: it computes nothing");
    }
    if (!config->profile || config->profile[0] == '\0') {
        return PKV_FAIL(PKV_ERR_INVALID, "the sim device needs a profile: a file that 'pivotkv "
                                         "link --profile FILE' has written");
    }
    struct pkvi_profile *profile = malloc(sizeof *profile);
    if (!profile) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a profile");
    }
    enum pkv_status status = pkvi_profile_read(config->profile, profile);
    if (status == PKV_OK) {
        status = pkvi_sim_open(profile, config, device_out);
    }
    free(profile);
    return status;
}

static void sim_close(struct pkv_device *base)
{
    struct sim_device *device = sim_device(base);
    for (uint32_t i = 0; i < device->block_count; i++) {
        munmap(PKV_AT(void, device->blocks[i].base), device->blocks[i].bytes);
    }
    while (device->progresses) {
        struct sim_progress *progress = device->progresses;
        device->progresses = progress->next;
        free(progress);
    }
    pthread_mutex_destroy(&device->lock);
    free(device->blocks);
    free(device);
}

static enum pkv_status sim_query(struct pkv_device *base, struct pkv_device_info *info_out)
{
    struct sim_device *device = sim_device(base);
    const struct pkvi_profile_curve *curve = &device->profile.link[PKVI_PROFILE_LOAD].contiguous;
    const double profile_gbps = curve->point[curve->count - 1].gbps,
                 given = device->config.link_gbps;
    pthread_mutex_lock(&device->lock);
    *info_out = (struct pkv_device_info){
        .name = "sim",
        .variant = device->profile.variant,
        .threads = device->profile.threads,
        .caps = PKV_CAP_READS_HOST | PKV_CAP_NO_DATA | PKV_CAP_VIRTUAL_TIME,
        .memory_total_bytes = memory_total(device),
        .memory_free_bytes = memory_total(device) - device->used_bytes,
        .numa_node = -1,
        .link_gbps = given > 0 ? given : profile_gbps,
    };
    pthread_mutex_unlock(&device->lock);
    return PKV_OK;
}

/* A cost is the same for every variant of an operation. */
static const struct pkv_kernel *sim_kernel(struct pkv_device *device, uint32_t op)
{
    (void)device;
    return op < PKV_OP_COUNT ? pkvi_cpu_kernel(PKV_CPU_SCALAR, op) : NULL;
}

static uint64_t sim_clock(struct pkv_device *base)
{
    struct sim_device *device = sim_device(base);
    pthread_mutex_lock(&device->lock);
    const uint64_t ns = (uint64_t)device->host_ns;
    pthread_mutex_unlock(&device->lock);
    return ns;
}

const struct pkv_device_ops pkvi_sim_device_ops = {
    .abi = PKV_DEVICE_ABI,
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .query = sim_query,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .mem_pin = mem_pin,
    .mem_unpin = mem_unpin,
    .stream_open = pkvi_sim_stream_open,
    .stream_close = pkvi_sim_stream_close,
    .stream_sync = pkvi_sim_stream_sync,
    .copy_async = pkvi_sim_copy_async,
    .kernel = sim_kernel,
    .launch = pkvi_sim_launch,
    .event_open = pkvi_sim_event_open,
    .event_close = pkvi_sim_event_close,
    .event_record = pkvi_sim_event_record,
    .event_wait = pkvi_sim_event_wait,
    .event_query = pkvi_sim_event_query,
    .event_sync = pkvi_sim_event_sync,
    .event_elapsed = pkvi_sim_event_elapsed,
    .clock_ns = sim_clock,
};
