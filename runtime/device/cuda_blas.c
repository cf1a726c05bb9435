/*
 * cuda_blas.c: cuBLAS by dlopen. Its libraries are 600 MB and take a second to load from a cold
 * disk: a program that needs no GPU must not pay for them, and one without them still runs (linear
 * then uses the kernels of small batches for prompts too).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/log.h"
#include "runtime/device/dev_cuda.h"

static const char *const library_names[] = {"libcublas.so.13", "libcublas.so.12"};

/* The types of functions that are used here alone; the others are in struct pkvi_cublas. */
struct life {
    cublasStatus_t (*create)(cublasHandle_t *handle);
    cublasStatus_t (*destroy)(cublasHandle_t handle);
};

/* A function pointer from dlsym: ISO C has no cast for it (POSIX.1-2008, dlsym). */
static bool find(void *library, const char *name, void *function_out)
{
    void *symbol = dlsym(library, name);
    memcpy(function_out, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(void *library, struct pkvi_cublas *blas, struct life *life)
{
    return find(library, "cublasCreate_v2", &life->create) &&
           find(library, "cublasDestroy_v2", &life->destroy) &&
           find(library, "cublasGemmEx", &blas->gemm) &&
           find(library, "cublasSetStream_v2", &blas->set_stream) &&
           find(library, "cublasSetWorkspace_v2", &blas->set_workspace) &&
           find(library, "cublasSetMathMode", &blas->set_math_mode) &&
           find(library, "cublasGetStatusString", &blas->status_string);
}

/* NULL where none is found. A runtime that brings cuBLAS itself comes first. */
static void *open_library(void)
{
    void *library = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    if (library && dlsym(library, "cublasGemmEx")) {
        return library;
    }
    if (library) {
        (void)dlclose(library);
    }
    for (size_t i = 0; i < sizeof library_names / sizeof *library_names; i++) {
        library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library) {
            return library;
        }
    }
    return NULL;
}

static bool start(struct cuda_stream *stream, const struct life *life)
{
    struct pkvi_cublas *blas = &stream->blas;
    if (life->create(&blas->handle) != CUBLAS_STATUS_SUCCESS) {
        blas->handle = NULL;
        return false;
    }
    /* Its own memory: the library would allocate, and wait, in the middle of a step. */
    const uint64_t bytes = stream->device->blas_workspace_bytes;
    if (cudaMalloc(&stream->blas_workspace, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        stream->blas_workspace = NULL;
        return false;
    }
    return blas->set_stream(blas->handle, stream->native.stream) == CUBLAS_STATUS_SUCCESS &&
           blas->set_workspace(blas->handle, stream->blas_workspace, bytes) ==
               CUBLAS_STATUS_SUCCESS;
}

void pkvi_cuda_blas_open(struct cuda_stream *stream)
{
    struct life life = {NULL, NULL};
    stream->blas_library = open_library();
    if (!stream->blas_library) {
        pkvi_log(PKV_LOG_WARN, "device",
                 "cuBLAS is not here (libcublas.so.13 or .12): prompts will be slow; install it or "
                 "name its folder in LD_LIBRARY_PATH");
        return;
    }
    if (!find_all(stream->blas_library, &stream->blas, &life)) {
        pkvi_log(PKV_LOG_WARN, "device", "cuBLAS lacks a function: prompts will be slow");
    } else if (!start(stream, &life)) {
        pkvi_log(PKV_LOG_WARN, "device",
                 "cuBLAS did not start, most likely for want of device memory: prompts will be "
                 "slow");
    } else {
        stream->native.blas = &stream->blas;
        return;
    }
    pkvi_cuda_blas_close(stream);
}

void pkvi_cuda_blas_close(struct cuda_stream *stream)
{
    cublasStatus_t (*destroy)(cublasHandle_t handle) = NULL;
    stream->native.blas = NULL;
    if (stream->blas.handle && find(stream->blas_library, "cublasDestroy_v2", &destroy)) {
        (void)destroy(stream->blas.handle);
    }
    stream->blas.handle = NULL;
    (void)cudaFree(stream->blas_workspace);
    stream->blas_workspace = NULL;
    if (stream->blas_library) {
        (void)dlclose(stream->blas_library);
    }
    stream->blas_library = NULL;
}
