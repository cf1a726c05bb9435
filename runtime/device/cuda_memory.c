/*
 * cuda_memory.c: memory of the cuda device. Pinned and registered host memory is mapped, and has
 * one address for host and kernels (dev_cuda.c refuses GPUs where it has two).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/resource.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/device/dev_cuda.h"

#define LINE_BYTES 64u

static const char *const mem_names[] = {"device", "pinned", "host"};

enum pkv_status pkvi_cuda_mem_query(struct cuda_device *device, uint64_t *total_out,
                                    uint64_t *free_out)
{
    size_t free_bytes = 0, total_bytes = 0;
    const uint64_t limit = device->config.memory_bytes;
    PKV_TRY(pkvi_cuda_result(device, cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    pthread_mutex_lock(&device->lock);
    const uint64_t used = device->used_bytes;
    const bool computes = device->computes > 0;
    pthread_mutex_unlock(&device->lock);
    /* The first COMPUTE stream will take its workspaces. */
    const uint64_t taken = computes ? 0 : device->workspace_bytes + device->blas_workspace_bytes;
    uint64_t left = free_bytes > taken ? free_bytes - taken : 0;
    if (limit > 0) {
        left = limit - used < left ? limit - used : left;
        total_bytes = limit < total_bytes ? (size_t)limit : total_bytes;
    }
    *total_out = total_bytes;
    *free_out = left < total_bytes ? left : total_bytes;
    return PKV_OK;
}

static enum pkv_status refuse(struct cuda_device *device, enum pkv_mem mem, uint64_t bytes)
{
    uint64_t total = 0, available = 0;
    if (mem != PKV_MEM_DEVICE) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "%s memory: the system refused %llu bytes; see the memory limit of the "
                        "machine and of its container",
                        mem_names[mem], (unsigned long long)bytes);
    }
    PKV_TRY(pkvi_cuda_mem_query(device, &total, &available));
    return PKV_FAIL(PKV_ERR_NO_MEMORY, "device memory: %llu bytes asked, %llu of %llu available%s",
                    (unsigned long long)bytes, (unsigned long long)available,
                    (unsigned long long)total, bytes <= available ? ", but not in one piece" : "");
}

static cudaError_t take(enum pkv_mem mem, uint64_t bytes, void **memory_out)
{
    switch (mem) {
    case PKV_MEM_DEVICE:
        return cudaMalloc(memory_out, bytes);
    case PKV_MEM_PINNED:
        return cudaHostAlloc(memory_out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
    default:
        *memory_out = aligned_alloc(LINE_BYTES, bytes);
        return *memory_out ? cudaSuccess : cudaErrorMemoryAllocation;
    }
}

static void give(enum pkv_mem mem, pkv_addr addr)
{
    void *memory = PKV_AT(void, addr);
    switch (mem) {
    case PKV_MEM_DEVICE:
        (void)cudaFree(memory);
        break;
    case PKV_MEM_PINNED:
        (void)cudaFreeHost(memory);
        break;
    default:
        free(memory);
    }
    (void)cudaGetLastError(); /* of a lost device: told already */
}

/* Take bytes from the limit; false: it does not leave so many. */
static bool charge(struct cuda_device *device, uint64_t bytes)
{
    const uint64_t limit = device->config.memory_bytes;
    pthread_mutex_lock(&device->lock);
    const bool enough = limit == 0 || bytes <= limit - device->used_bytes;
    if (enough) {
        device->used_bytes += bytes;
    }
    pthread_mutex_unlock(&device->lock);
    return enough;
}

static void uncharge(struct cuda_device *device, uint64_t bytes)
{
    pthread_mutex_lock(&device->lock);
    device->used_bytes -= bytes;
    pthread_mutex_unlock(&device->lock);
}

enum pkv_status pkvi_cuda_mem_alloc(struct pkv_device *base, enum pkv_mem mem, uint64_t bytes,
                                    pkv_addr *addr_out)
{
    struct cuda_device *device = cuda_device(base);
    void *memory = NULL;
    if ((int)mem < PKV_MEM_DEVICE || mem > PKV_MEM_HOST) {
        return PKV_FAIL(PKV_ERR_INVALID, "allocate: no such memory as %d", (int)mem);
    }
    PKV_TRY(pkvi_cuda_lost(device));
    if (bytes > UINT64_MAX / 2) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "%llu bytes of memory asked", (unsigned long long)bytes);
    }
    const uint64_t rounded = (bytes + LINE_BYTES - 1) & ~(uint64_t)(LINE_BYTES - 1);
    const uint64_t charged = mem == PKV_MEM_DEVICE ? rounded : 0;
    struct cuda_block *block = malloc(sizeof *block);
    if (!block) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the list of allocations");
    }
    if (!charge(device, charged)) {
        free(block);
        return refuse(device, mem, bytes);
    }
    const cudaError_t error = take(mem, rounded, &memory);
    if (error != cudaSuccess) {
        enum pkv_status status = error == cudaErrorMemoryAllocation
                                     ? PKV_ERR_NO_MEMORY
                                     : pkvi_cuda_result(device, error, "allocating memory");
        (void)cudaGetLastError();
        uncharge(device, charged);
        free(block);
        return status == PKV_ERR_NO_MEMORY ? refuse(device, mem, bytes) : status;
    }
    *block = (struct cuda_block){.addr = pkvi_addr(memory), .bytes = charged, .mem = mem};
    pthread_mutex_lock(&device->lock);
    block->next = device->blocks;
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
    *addr_out = block->addr;
    return PKV_OK;
}

void pkvi_cuda_mem_free(struct pkv_device *base, enum pkv_mem mem, pkv_addr addr)
{
    struct cuda_device *device = cuda_device(base);
    struct cuda_block *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_block **link = &device->blocks; *link; link = &(*link)->next) {
        if ((*link)->addr == addr) {
            found = *link;
            *link = found->next;
            device->used_bytes -= found->bytes;
            break;
        }
    }
    pthread_mutex_unlock(&device->lock);
    if (!found || found->mem != mem) {
        pkvi_log(PKV_LOG_ERROR, "device", "free of address %llx: not an allocation of this kind",
                 (unsigned long long)addr);
    }
    if (found) {
        give(found->mem, addr);
        free(found);
    }
}

void pkvi_cuda_mem_release(struct cuda_device *device)
{
    while (device->blocks) {
        struct cuda_block *block = device->blocks;
        device->blocks = block->next;
        give(block->mem, block->addr);
        free(block);
    }
}

/* ---- memory of the caller ---- */

static enum pkv_status refuse_pin(struct cuda_device *device, cudaError_t error, uint64_t bytes)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)cudaGetLastError();
    switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorOperatingSystem:
        (void)getrlimit(RLIMIT_MEMLOCK, &limit);
        if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY,
                            "cudaHostRegister refused to pin %llu bytes; this process may lock "
                            "%llu: ulimit -l unlimited (docker run --ulimit memlock=-1)",
                            (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
        }
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "cudaHostRegister refused to pin %llu bytes: the system has too little "
                        "memory that can be locked, or its container too low a limit (memory.max)",
                        (unsigned long long)bytes);
    case cudaErrorHostMemoryAlreadyRegistered:
        return PKV_FAIL(PKV_ERR_INVALID, "pin %llu bytes: some of them are pinned already",
                        (unsigned long long)bytes);
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "pin %llu bytes: this system does not let host memory be registered (%s)",
                        (unsigned long long)bytes, cudaGetErrorName(error));
    default:
        return pkvi_cuda_result(device, error, "cudaHostRegister");
    }
}

enum pkv_status pkvi_cuda_mem_pin(struct pkv_device *base, void *memory, uint64_t bytes,
                                  pkv_addr *addr_out)
{
    struct cuda_device *device = cuda_device(base);
    void *mapped = NULL;
    PKV_TRY(pkvi_cuda_lost(device));
    cudaError_t error =
        cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        return refuse_pin(device, error, bytes);
    }
    error = cudaHostGetDevicePointer(&mapped, memory, 0);
    if (error != cudaSuccess) {
        (void)cudaHostUnregister(memory);
        return pkvi_cuda_result(device, error, "cudaHostGetDevicePointer");
    }
    *addr_out = pkvi_addr(mapped);
    return PKV_OK;
}

void pkvi_cuda_mem_unpin(struct pkv_device *base, void *memory)
{
    (void)base;
    (void)cudaHostUnregister(memory);
    (void)cudaGetLastError(); /* not pinned: nothing to undo */
}
