/*
 * cuda_stream.c: streams of the cuda device: copies, launches and their errors.
 *
 * Two kinds of failure stay. A launch that was refused belongs to its stream: nothing of it ran, so
 * only that stream is out of step. An error that CUDA reports for work that ran (an illegal
 * address, a lost GPU) ends the context and with it the device. The first of either is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/device/dev_cuda.h"

/* ---- errors ---- */

enum pkv_status pkvi_cuda_stream_status(struct cuda_stream *stream)
{
    PKV_TRY(pkvi_cuda_lost(stream->device));
    if (stream->failure.status != PKV_OK) {
        return PKV_FAIL(stream->failure.status, "%s", stream->failure.text);
    }
    return PKV_OK;
}

/* Keep what pkv_error_text() says, and return the stream's first error. */
static enum pkv_status keep(struct cuda_stream *stream, enum pkv_status status)
{
    if (status < 0 && stream->failure.status == PKV_OK) {
        stream->failure.status = status;
        snprintf(stream->failure.text, sizeof stream->failure.text, "%s", pkv_error_text());
    }
    return status == PKV_OK ? PKV_OK : pkvi_cuda_stream_status(stream);
}

/* ---- work ---- */

static enum pkv_status copy_one(struct cuda_stream *stream, void *dst, const void *src,
                                uint64_t bytes)
{
    char what[64];
    cudaError_t error = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream->native.stream);
    if (error == cudaSuccess) {
        return PKV_OK;
    }
    snprintf(what, sizeof what, "copy of %llu bytes", (unsigned long long)bytes);
    return keep(stream, pkvi_cuda_result(stream->device, error, what));
}

/* The first `count` of the stream's batch. */
static enum pkv_status copy_batch(struct cuda_stream *stream, uint32_t count)
{
#if CUDART_VERSION >= 12080
    if (count > 1 && stream->device->has_batch) {
        struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
        size_t first = 0;
        char what[64];
#if CUDART_VERSION >= 13000
        cudaError_t error =
            cudaMemcpyBatchAsync((void *const *)stream->dst, stream->src, stream->bytes, count,
                                 &attributes, &first, 1, stream->native.stream);
#else
        size_t failed = 0;
        cudaError_t error =
            cudaMemcpyBatchAsync(stream->dst, (void **)stream->src, stream->bytes, count,
                                 &attributes, &first, 1, &failed, stream->native.stream);
#endif
        if (error == cudaSuccess) {
            return PKV_OK;
        }
        if (error != cudaErrorNotSupported && error != cudaErrorCallRequiresNewerDriver) {
            snprintf(what, sizeof what, "batch of %u copies", count);
            return keep(stream, pkvi_cuda_result(stream->device, error, what));
        }
        (void)cudaGetLastError();
        stream->device->has_batch = false;
    }
#endif
    for (uint32_t i = 0; i < count; i++) {
        PKV_TRY(copy_one(stream, stream->dst[i], stream->src[i], stream->bytes[i]));
    }
    return PKV_OK;
}

enum pkv_status pkvi_cuda_copy_async(struct pkv_stream *base, const struct pkv_span *spans,
                                     uint32_t count)
{
    struct cuda_stream *stream = cuda_stream(base);
    uint32_t filled = 0;
    PKV_TRY(pkvi_cuda_stream_status(stream));
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].bytes == 0) {
            continue;
        }
        stream->dst[filled] = PKV_AT(void, spans[i].dst);
        stream->src[filled] = PKV_AT(const void, spans[i].src);
        stream->bytes[filled] = spans[i].bytes;
        if (++filled == CUDA_SPANS_A_BATCH) {
            PKV_TRY(copy_batch(stream, filled));
            filled = 0;
        }
    }
    return copy_batch(stream, filled);
}

enum pkv_status pkvi_cuda_launch(struct pkv_stream *base, const struct pkv_kernel *kernel,
                                 const void *args)
{
    struct cuda_stream *stream = cuda_stream(base);
    PKV_TRY(pkvi_cuda_stream_status(stream));
    return keep(stream, kernel->launch(&stream->native, args));
}

enum pkv_status pkvi_cuda_stream_sync(struct pkv_stream *base)
{
    struct cuda_stream *stream = cuda_stream(base);
    PKV_TRY(pkvi_cuda_result(stream->device, cudaStreamSynchronize(stream->native.stream),
                             "cudaStreamSynchronize"));
    return pkvi_cuda_stream_status(stream);
}

/* ---- life ---- */

/* RECALL is what the next layer waits for; the others share the lowest priority. */
static enum pkv_status make_stream(struct cuda_device *device, enum pkv_stream_kind kind,
                                   cudaStream_t *stream_out)
{
    int lowest = 0, highest = 0;
    PKV_TRY(pkvi_cuda_result(device, cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                             "cudaDeviceGetStreamPriorityRange"));
    return pkvi_cuda_result(device,
                            cudaStreamCreateWithPriority(stream_out, cudaStreamNonBlocking,
                                                         kind == PKV_RECALL ? highest : lowest),
                            "cudaStreamCreateWithPriority");
}

static enum pkv_status open_compute(struct cuda_stream *stream)
{
    struct cuda_device *device = stream->device;
    void *memory = NULL;
    const cudaError_t error = cudaMalloc(&memory, device->workspace_bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "device memory: no %llu bytes left for the workspace of a compute stream",
                        (unsigned long long)device->workspace_bytes);
    }
    PKV_TRY(pkvi_cuda_result(device, error, "cudaMalloc of a workspace"));
    stream->native.workspace = pkvi_addr(memory);
    stream->native.workspace_bytes = device->workspace_bytes;
    pkvi_cuda_blas_open(stream);
    pthread_mutex_lock(&device->lock);
    device->computes++;
    pthread_mutex_unlock(&device->lock);
    return PKV_OK;
}

enum pkv_status pkvi_cuda_stream_open(struct pkv_device *base, enum pkv_stream_kind kind,
                                      void *native, struct pkv_stream **stream_out)
{
    struct cuda_device *device = cuda_device(base);
    enum pkv_status status = PKV_OK;
    PKV_TRY(pkvi_cuda_lost(device));
    struct cuda_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a stream");
    }
    stream->base = (struct pkv_stream){.device = base, .kind = kind};
    stream->device = device;
    stream->adopted = native != NULL;
    stream->native.stream = native;
    stream->native.multiprocessors = device->multiprocessors;
    if (!native && (status = make_stream(device, kind, &stream->native.stream)) != PKV_OK) {
        goto err_stream;
    }
    if (kind == PKV_COMPUTE && (status = open_compute(stream)) != PKV_OK) {
        goto err_native;
    }
    *stream_out = &stream->base;
    return PKV_OK;

err_native:
    if (!stream->adopted) {
        (void)cudaStreamDestroy(stream->native.stream);
    }
err_stream:
    free(stream);
    return status;
}

void pkvi_cuda_stream_close(struct pkv_stream *base)
{
    struct cuda_stream *stream = cuda_stream(base);
    (void)cudaStreamSynchronize(stream->native.stream);
    pkvi_cuda_blas_close(stream);
    (void)cudaFree(PKV_AT(void, stream->native.workspace));
    if (!stream->adopted) {
        (void)cudaStreamDestroy(stream->native.stream);
    }
    (void)cudaGetLastError(); /* of a lost device: told already */
    free(stream);
}
