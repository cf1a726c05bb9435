/*
 * cuda_device.c: see cuda_device.h. Linked with -Wl,--wrap for the runtime's calls that are counted
 * here, so that neither the device nor the fake runtime knows of it.
 */
#include "tests/simt/cuda_device.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "kernels/cuda/cuda.h"
#include "runtime/base/check.h"
#include "tests/support/device_suite.h"
#include "tests/support/edge_device.h"

/* ---- counting ---- */

static _Atomic uint64_t waits, allocations;

uint64_t pkvt_cuda_waits(void)
{
    return waits;
}

uint64_t pkvt_cuda_allocations(void)
{
    return allocations;
}

#define COUNTED(counter, name, parameters, arguments)                                              \
    cudaError_t __real_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters;                                                          \
    cudaError_t __wrap_##name parameters                                                           \
    {                                                                                              \
        counter++;                                                                                 \
        return __real_##name arguments;                                                            \
    }

COUNTED(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
COUNTED(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
COUNTED(waits, cudaDeviceSynchronize, (void), ())
COUNTED(allocations, cudaMalloc, (void **memory, size_t bytes), (memory, bytes))
COUNTED(allocations, cudaFree, (void *memory), (memory))
COUNTED(allocations, cudaHostAlloc, (void **memory, size_t bytes, unsigned flags),
        (memory, bytes, flags))
COUNTED(allocations, cudaFreeHost, (void *memory), (memory))

/* ---- a kernel ---- */

static void run_step(void *context)
{
    struct pkvt_step *step = context;
    uint64_t *x = (uint64_t *)(uintptr_t)step->x;
    if (step->delay_us > 0) {
        usleep(step->delay_us);
    }
    *x = *x * 3 + step->value;
    free(step);
}

static enum pkv_status launch_step(void *native_stream, const void *args)
{
    const struct pkvi_cuda_stream *native = native_stream;
    if (((const struct pkvt_step *)args)->fail) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "step refused");
    }
    struct pkvt_step *step = malloc(sizeof *step);
    if (!step) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a step");
    }
    memcpy(step, args, sizeof *step);
    return pkvi_cuda_check(cudaLaunchHostFunc(native->stream, run_step, step), "launch of step");
}

const struct pkv_kernel pkvt_cuda_step = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_step), .launch = launch_step};

/* ---- edges ---- */

/* Streams by the order in which they are opened. */
static int32_t number_of(uint32_t kind)
{
    static const int32_t numbers[] = {
        [PKV_COMPUTE] = 0, [PKV_STORE] = 1, [PKV_LOAD] = 2, [PKV_RECALL] = 3};
    return numbers[kind];
}

enum pkv_status pkvt_edge_device_open(const struct pkv_device_config *config,
                                      struct pkv_device **device_out)
{
    static const enum simt_streams ways[] = {
        [PKV_SCHEDULE_WORKERS] = SIMT_STREAMS_THREADS,
        [PKV_SCHEDULE_LAZY] = SIMT_STREAMS_LAZY,
        [PKV_SCHEDULE_RANDOM] = SIMT_STREAMS_RANDOM,
        [PKV_SCHEDULE_ADVERSARIAL] = SIMT_STREAMS_ADVERSARIAL,
    };
    struct pkv_device_config small = *config;
    small.memory_bytes = (uint64_t)64 << 20; /* small workspaces: they are filled at each open */
    simt_set_streams(
        ways[config->schedule], config->schedule_seed, number_of(config->schedule_first),
        config->schedule_last > 0 ? number_of(config->schedule_last - 1) : SIMT_STREAM_NONE);
    return pkv_device_open("cuda", &small, device_out);
}

const struct pkv_kernel *pkvt_edge_step(void)
{
    return &pkvt_cuda_step;
}

uint32_t pkvt_edge_seeds(uint32_t seeds)
{
    return (seeds + 3) / 4;
}

bool pkvt_edge_must_show(void)
{
    return true;
}
