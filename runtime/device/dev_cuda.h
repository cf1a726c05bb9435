/*
 * dev_cuda.h: what the files of the cuda device share: dev_cuda.c (life, events), cuda_memory.c,
 * cuda_stream.c (streams, copies, launches), cuda_blas.c (cuBLAS, opened when it is wanted).
 *
 * One device is GPU 0 of those that CUDA_VISIBLE_DEVICES shows. Plain C over the runtime's C
 * interface: the tests link the same files with a runtime that runs on the CPU.
 */
#ifndef PKV_DEVICE_DEV_CUDA_H
#define PKV_DEVICE_DEV_CUDA_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels/cuda/cuda.h"
#include "pivotkv/impl/device_ops.h"

#define CUDA_SPANS_A_BATCH 512u
#define CUDA_ERROR_TEXT_BYTES 512u

/* The first error of something; later ones are its consequences. */
struct cuda_failure {
    enum pkv_status status; /* PKV_OK: none */
    char text[CUDA_ERROR_TEXT_BYTES];
};

struct cuda_block {
    pkv_addr addr;
    uint64_t bytes;
    enum pkv_mem mem;
    struct cuda_block *next;
};

struct cuda_device {
    struct pkv_device base;
    struct pkv_device_config config;
    char variant[16]; /* "sm_90" */
    uint32_t multiprocessors;
    bool reads_host;
    _Atomic bool has_batch; /* cudaMemcpyBatchAsync works; a driver may refuse it yet */
    int32_t numa_node;
    uint64_t workspace_bytes, blas_workspace_bytes; /* of a COMPUTE stream: kernels, cuBLAS */

    pthread_mutex_t lock; /* what follows */
    struct cuda_block *blocks;
    uint64_t used_bytes;      /* device memory given out */
    uint32_t computes;        /* COMPUTE streams opened so far */
    struct cuda_failure lost; /* of the context: nothing works any more */
};

struct cuda_stream {
    struct pkv_stream base;
    struct cuda_device *device;
    struct pkvi_cuda_stream native; /* what kernels get */
    struct pkvi_cublas blas;
    void *blas_library, *blas_workspace;
    bool adopted;                /* the cudaStream_t belongs to the caller */
    struct cuda_failure failure; /* of this stream: a launch that was refused */
    /* Of the batch that is enqueued. */
    const void *src[CUDA_SPANS_A_BATCH];
    void *dst[CUDA_SPANS_A_BATCH];
    size_t bytes[CUDA_SPANS_A_BATCH];
};

struct cuda_event {
    struct pkv_event base;
    cudaEvent_t event;
    bool timed, recorded;
};

static inline struct cuda_device *cuda_device(struct pkv_device *device)
{
    return (struct cuda_device *)(void *)device;
}

static inline struct cuda_stream *cuda_stream(struct pkv_stream *stream)
{
    return (struct cuda_stream *)(void *)stream;
}

/* The device's first lasting error, or PKV_OK. Cost: an uncontended lock. */
enum pkv_status pkvi_cuda_lost(struct cuda_device *device);
/*
 * The result of a call: PKV_OK, PKV_PENDING for cudaErrorNotReady, or the failure, which is kept if
 * nothing works after it; who asks later gets the first one.
 */
enum pkv_status pkvi_cuda_result(struct cuda_device *device, cudaError_t error, const char *what);

/* cuda_memory.c */
enum pkv_status pkvi_cuda_mem_alloc(struct pkv_device *device, enum pkv_mem mem, uint64_t bytes,
                                    pkv_addr *addr_out);
void pkvi_cuda_mem_free(struct pkv_device *device, enum pkv_mem mem, pkv_addr addr);
enum pkv_status pkvi_cuda_mem_pin(struct pkv_device *device, void *base, uint64_t bytes,
                                  pkv_addr *addr_out);
void pkvi_cuda_mem_unpin(struct pkv_device *device, void *base);
void pkvi_cuda_mem_release(struct cuda_device *device); /* what the caller left */
/* All of the GPU's memory, and what of it may still be given out. */
enum pkv_status pkvi_cuda_mem_query(struct cuda_device *device, uint64_t *total_out,
                                    uint64_t *free_out);

/* cuda_stream.c */
enum pkv_status pkvi_cuda_stream_open(struct pkv_device *device, enum pkv_stream_kind kind,
                                      void *native, struct pkv_stream **stream_out);
void pkvi_cuda_stream_close(struct pkv_stream *stream);
enum pkv_status pkvi_cuda_stream_sync(struct pkv_stream *stream);
enum pkv_status pkvi_cuda_copy_async(struct pkv_stream *stream, const struct pkv_span *spans,
                                     uint32_t count);
enum pkv_status pkvi_cuda_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                                 const void *args);
/* The first error of the stream or of its device. */
enum pkv_status pkvi_cuda_stream_status(struct cuda_stream *stream);

/* cuda_blas.c: sets stream->native.blas, or says in one line of the log why not. */
void pkvi_cuda_blas_open(struct cuda_stream *stream);
void pkvi_cuda_blas_close(struct cuda_stream *stream);

#endif
