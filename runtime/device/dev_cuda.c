/* dev_cuda.c: the cuda device: its life, its events, its table. */
#include "runtime/device/dev_cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/device/device.h"

/* What NVIDIA advises for cuBLAS: 32 MiB from Hopper on, 4 MiB before. */
#define BLAS_WORKSPACE_BYTES ((uint64_t)4 << 20)
#define BLAS_WORKSPACE_90_BYTES ((uint64_t)32 << 20)
/* For dequantised weights and activations; of a small limit on memory an eighth. */
#define WORKSPACE_BYTES ((uint64_t)64 << 20)
#define LEAST_WORKSPACE_BYTES ((uint64_t)1 << 20)
#define OLDEST_MAJOR 7
#define OLDEST_MINOR 5
#define BATCH_DRIVER 12080 /* cudaMemcpyBatchAsync */

/* ---- errors ---- */

enum pkv_status pkvi_cuda_lost(struct cuda_device *device)
{
    pthread_mutex_lock(&device->lock);
    const struct cuda_failure lost = device->lost;
    pthread_mutex_unlock(&device->lock);
    return lost.status == PKV_OK ? PKV_OK : PKV_FAIL(lost.status, "%s", lost.text);
}

enum pkv_status pkvi_cuda_result(struct cuda_device *device, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return PKV_OK;
    }
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return PKV_PENDING;
    }
    const enum pkv_status status = pkvi_cuda_check(error, what);
    if (status != PKV_ERR_DEVICE_LOST) {
        return status;
    }
    pthread_mutex_lock(&device->lock);
    if (device->lost.status == PKV_OK) {
        device->lost.status = status;
        snprintf(device->lost.text, sizeof device->lost.text, "%s", pkv_error_text());
    }
    pthread_mutex_unlock(&device->lock);
    return pkvi_cuda_lost(device);
}

/* ---- events ---- */

static struct cuda_event *cuda_event(struct pkv_event *event)
{
    return (struct cuda_event *)(void *)event;
}

static enum pkv_status event_open(struct pkv_device *base, bool timed, struct pkv_event **event_out)
{
    struct cuda_device *device = cuda_device(base);
    const unsigned flags = cudaEventBlockingSync | (timed ? 0u : cudaEventDisableTiming);
    PKV_TRY(pkvi_cuda_lost(device));
    struct cuda_event *event = calloc(1, sizeof *event);
    if (!event) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an event");
    }
    enum pkv_status status = pkvi_cuda_result(
        device, cudaEventCreateWithFlags(&event->event, flags), "cudaEventCreateWithFlags");
    if (status != PKV_OK) {
        free(event);
        return status;
    }
    event->base.device = base;
    event->timed = timed;
    *event_out = &event->base;
    return PKV_OK;
}

static void event_close(struct pkv_event *base)
{
    struct cuda_event *event = cuda_event(base);
    (void)cudaEventDestroy(event->event);
    (void)cudaGetLastError(); /* of a lost device: told already */
    free(event);
}

static enum pkv_status event_record(struct pkv_event *base, struct pkv_stream *stream_base)
{
    struct cuda_stream *stream = cuda_stream(stream_base);
    struct cuda_event *event = cuda_event(base);
    PKV_TRY(pkvi_cuda_stream_status(stream));
    PKV_TRY(pkvi_cuda_result(stream->device, cudaEventRecord(event->event, stream->native.stream),
                             "cudaEventRecord"));
    event->recorded = true;
    return PKV_OK;
}

static enum pkv_status event_wait(struct pkv_stream *base, struct pkv_event *event)
{
    struct cuda_stream *stream = cuda_stream(base);
    PKV_TRY(pkvi_cuda_stream_status(stream));
    return pkvi_cuda_result(stream->device,
                            cudaStreamWaitEvent(stream->native.stream, cuda_event(event)->event, 0),
                            "cudaStreamWaitEvent");
}

static enum pkv_status event_query(struct pkv_event *base)
{
    return pkvi_cuda_result(cuda_device(base->device), cudaEventQuery(cuda_event(base)->event),
                            "cudaEventQuery");
}

static enum pkv_status event_sync(struct pkv_event *base)
{
    return pkvi_cuda_result(cuda_device(base->device),
                            cudaEventSynchronize(cuda_event(base)->event), "cudaEventSynchronize");
}

static enum pkv_status event_elapsed(struct pkv_event *begin_base, struct pkv_event *end_base,
                                     uint64_t *ns_out)
{
    struct cuda_event *begin = cuda_event(begin_base), *end = cuda_event(end_base);
    float ms = 0;
    if (!begin->timed || !end->timed || !begin->recorded || !end->recorded) {
        return PKV_FAIL(PKV_ERR_STATE, "time between events: both must be timed and recorded");
    }
    PKV_TRY(pkvi_cuda_result(cuda_device(begin_base->device),
                             cudaEventElapsedTime(&ms, begin->event, end->event),
                             "cudaEventElapsedTime"));
    *ns_out = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return PKV_OK;
}

/* ---- life ---- */

/* The node that the GPU hangs on, from its PCI address; -1 where the system does not tell. */
static int32_t numa_node(void)
{
    char bus[32] = "", path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    for (char *c = bus; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%d", &node) != 1) {
            node = -1;
        }
        (void)fclose(file);
    }
    return node < 0 ? -1 : node;
}

static enum pkv_status attribute(enum cudaDeviceAttr which, int *value_out)
{
    return pkvi_cuda_check(cudaDeviceGetAttribute(value_out, which, 0), "cudaDeviceGetAttribute");
}

static enum pkv_status look_at(struct cuda_device *device)
{
    int major = 0, minor = 0, processors = 0, unified = 0, maps = 0, same_address = 0, driver = 0;
    PKV_TRY(attribute(cudaDevAttrComputeCapabilityMajor, &major));
    PKV_TRY(attribute(cudaDevAttrComputeCapabilityMinor, &minor));
    PKV_TRY(attribute(cudaDevAttrMultiProcessorCount, &processors));
    PKV_TRY(attribute(cudaDevAttrUnifiedAddressing, &unified));
    PKV_TRY(attribute(cudaDevAttrCanMapHostMemory, &maps));
    PKV_TRY(attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, &same_address));
    if (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR)) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "GPU 0 is sm_%d%d: this build has code for sm_%d%d and newer", major, minor,
                        OLDEST_MAJOR, OLDEST_MINOR);
    }
    if (!unified) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "GPU 0 has no unified addresses: a 64-bit system on bare metal or a "
                        "passed-through GPU is needed");
    }
    snprintf(device->variant, sizeof device->variant, "sm_%d%d", major, minor);
    device->multiprocessors = (uint32_t)processors;
    device->reads_host = maps && same_address;
    device->workspace_bytes = WORKSPACE_BYTES;
    device->blas_workspace_bytes = major >= 9 ? BLAS_WORKSPACE_90_BYTES : BLAS_WORKSPACE_BYTES;
    const uint64_t limit = device->config.memory_bytes;
    if (limit > 0 && limit / 8 < WORKSPACE_BYTES) {
        device->workspace_bytes =
            limit / 8 > LEAST_WORKSPACE_BYTES ? limit / 8 : LEAST_WORKSPACE_BYTES;
        device->blas_workspace_bytes = LEAST_WORKSPACE_BYTES;
    }
    device->has_batch = cudaDriverGetVersion(&driver) == cudaSuccess && driver >= BATCH_DRIVER;
    device->numa_node = numa_node();
    return PKV_OK;
}

static enum pkv_status cuda_open(const struct pkv_device_config *config, struct pkv_device *below,
                                 struct pkv_device **device_out)
{
    int count = 0;
    enum pkv_status status = PKV_OK;
    if (below) {
        return PKV_FAIL(PKV_ERR_INVALID, "the cuda device wraps nothing");
    }
    PKV_TRY(pkvi_cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
    PKV_TRY(pkvi_cuda_check(count > 0 ? cudaSetDevice(0) : cudaErrorNoDevice, "cudaSetDevice"));
    struct cuda_device *device = calloc(1, sizeof *device);
    if (!device) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a device");
    }
    device->base.ops = &pkvi_cuda_device_ops;
    device->config = *config;
    pthread_mutex_init(&device->lock, NULL);
    if ((status = look_at(device)) != PKV_OK) {
        pthread_mutex_destroy(&device->lock);
        free(device);
        return status;
    }
    *device_out = &device->base;
    return PKV_OK;
}

static void cuda_close(struct pkv_device *base)
{
    struct cuda_device *device = cuda_device(base);
    pkvi_cuda_mem_release(device);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static enum pkv_status cuda_query(struct pkv_device *base, struct pkv_device_info *info_out)
{
    struct cuda_device *device = cuda_device(base);
    struct pkvi_limits host;
    uint64_t total = 0, free_bytes = 0;
    PKV_TRY(pkvi_cuda_mem_query(device, &total, &free_bytes));
    pkvi_limits_memory("", &host);
    *info_out = (struct pkv_device_info){
        .name = "cuda",
        .variant = device->variant,
        .threads = device->multiprocessors,
        .caps = device->reads_host ? PKV_CAP_READS_HOST : 0,
        .memory_total_bytes = total,
        .memory_free_bytes = free_bytes,
        .numa_node = device->numa_node,
        .host_free_bytes = host.memory_available_bytes,
    };
    return PKV_OK;
}

static const struct pkv_kernel *cuda_kernel(struct pkv_device *base, uint32_t op)
{
    (void)base;
    return pkvi_cuda_kernel(op);
}

const struct pkv_device_ops pkvi_cuda_device_ops = {
    .abi = PKV_DEVICE_ABI,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .query = cuda_query,
    .mem_alloc = pkvi_cuda_mem_alloc,
    .mem_free = pkvi_cuda_mem_free,
    .mem_pin = pkvi_cuda_mem_pin,
    .mem_unpin = pkvi_cuda_mem_unpin,
    .stream_open = pkvi_cuda_stream_open,
    .stream_close = pkvi_cuda_stream_close,
    .stream_sync = pkvi_cuda_stream_sync,
    .copy_async = pkvi_cuda_copy_async,
    .kernel = cuda_kernel,
    .launch = pkvi_cuda_launch,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .event_elapsed = event_elapsed,
};
