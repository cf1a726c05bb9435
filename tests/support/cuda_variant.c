#include "tests/support/cuda_variant.h"

#include "tests/support/pkv_test.h"

#ifdef PKV_TEST_CUDA

#include "kernels/addr.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"
#ifdef PKV_TEST_CARD
#undef free /* for the tests it is pkvt_cuda_free() */
#include <stdlib.h>

#include "runtime/device/dev_cuda.h"
#include "runtime/device/device.h"
#endif

bool pkvt_cuda_here(void)
{
    return true;
}

static bool offer_blas = true;
static uint64_t offer_bytes = UINT64_MAX;
static uint32_t pretend;

void pkvt_cuda_offer(bool blas, uint64_t workspace_bytes)
{
    offer_blas = blas;
    offer_bytes = workspace_bytes;
}

void pkvt_cuda_pretend(uint32_t multiprocessors)
{
    pretend = multiprocessors;
}

static void assert_cuda(cudaError_t error, const char *what)
{
    assert_ok(pkvi_cuda_check(error, what));
}

#ifdef PKV_TEST_CARD

/* The device's own, with cuBLAS as it opens it. */
static const struct pkvi_cuda_stream *open_stream(void)
{
    static struct pkv_stream *stream;
    if (!stream) {
        struct pkv_device *device = NULL;
        if (pkv_device_open("cuda", NULL, &device) == PKV_ERR_UNSUPPORTED) {
            print_message("SKIP: %s\n", pkv_error_text());
            exit(77);
        }
        assert_non_null(device);
        assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &stream));
    }
    return &cuda_stream(stream)->native;
}

/* Pinned memory that kernels reach, given out once: what a test frees stays until it ends. */
static uint8_t *arena, *arena_end;
#define ARENA_BYTES ((size_t)4 << 30)
#define ARENA_ALIGNMENT 64u

void *pkvt_cuda_alloc(uint64_t bytes)
{
    static uint8_t *next;
    if (!arena) {
        void *memory = NULL;
        (void)open_stream();
        assert_cuda(cudaHostAlloc(&memory, ARENA_BYTES, cudaHostAllocMapped), "memory for tests");
        next = arena = memory;
        arena_end = arena + ARENA_BYTES;
    }
    const uint64_t rounded = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    if (rounded > (uint64_t)(arena_end - next)) {
        return NULL;
    }
    uint8_t *memory = next;
    next += rounded;
    return memory;
}

void pkvt_cuda_free(void *memory)
{
    if (!arena || (uint8_t *)memory < arena || (uint8_t *)memory >= arena_end) {
        free(memory);
    }
}

#else

/* As runtime/device/dev_cuda.c opens it. */
#define WORKSPACE_BYTES ((size_t)64 << 20)

static const struct pkvi_cuda_stream *open_stream(void)
{
    static struct pkvi_cublas blas = {
        .gemm = cublasGemmEx,
        .set_stream = cublasSetStream_v2,
        .set_workspace = cublasSetWorkspace_v2,
        .set_math_mode = cublasSetMathMode,
        .status_string = cublasGetStatusString,
    };
    static struct pkvi_cuda_stream stream;
    if (!stream.stream) {
        int multiprocessors;
        void *workspace;
        assert_cuda(cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking), "stream");
        assert_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
                    "multiprocessors");
        assert_cuda(cudaMalloc(&workspace, WORKSPACE_BYTES), "workspace");
        assert_int_equal(cublasCreate_v2(&blas.handle), CUBLAS_STATUS_SUCCESS);
        assert_int_equal(cublasSetStream_v2(blas.handle, stream.stream), CUBLAS_STATUS_SUCCESS);
        stream.blas = &blas;
        stream.workspace = pkvi_addr(workspace);
        stream.workspace_bytes = WORKSPACE_BYTES;
        stream.multiprocessors = (uint32_t)multiprocessors;
    }
    return &stream;
}

void *pkvt_cuda_alloc(uint64_t bytes)
{
    void *memory;
    return cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess ? memory : NULL;
}

#endif

void pkvt_cuda_run(uint32_t op, const void *args)
{
    struct pkvi_cuda_stream stream = *open_stream();
    stream.blas = offer_blas ? stream.blas : NULL;
    if (stream.workspace_bytes > offer_bytes) {
        stream.workspace_bytes = offer_bytes;
    }
    if (pretend > 0) {
        stream.multiprocessors = pretend;
    }
    const struct pkv_kernel *kernel = pkvi_cuda_kernel(op);
    assert_non_null(kernel);
    assert_int_equal(kernel->op, op);
    assert_ok(kernel->launch(&stream, args));
    assert_cuda(cudaStreamSynchronize(stream.stream), pkvi_op_name(op));
}

#else

bool pkvt_cuda_here(void)
{
    return false;
}

void pkvt_cuda_run(uint32_t op, const void *args)
{
    (void)args;
    fail_msg("operation %u: a program without CUDA kernels", op);
}

void pkvt_cuda_offer(bool blas, uint64_t workspace_bytes)
{
    (void)blas;
    (void)workspace_bytes;
}

void pkvt_cuda_pretend(uint32_t multiprocessors)
{
    (void)multiprocessors;
}

void *pkvt_cuda_alloc(uint64_t bytes)
{
    (void)bytes;
    return NULL;
}

#endif
