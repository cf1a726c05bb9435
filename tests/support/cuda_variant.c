#include "tests/support/cuda_variant.h"

#include "tests/support/pkv_test.h"

#ifdef PKV_TEST_CUDA

#include "kernels/addr.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"

/* As runtime/device/dev_cuda.c opens it. */
#define WORKSPACE_BYTES ((size_t)64 << 20)

bool pkvt_cuda_here(void)
{
    return true;
}

static void assert_cuda(cudaError_t error, const char *what)
{
    assert_ok(pkvi_cuda_check(error, what));
}

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

void pkvt_cuda_run(uint32_t op, const void *args)
{
    struct pkvi_cuda_stream stream = *open_stream();
    const struct pkv_kernel *kernel = pkvi_cuda_kernel(op);
    assert_non_null(kernel);
    assert_int_equal(kernel->op, op);
    assert_ok(kernel->launch(&stream, args));
    assert_cuda(cudaStreamSynchronize(stream.stream), pkvi_op_name(op));
}

void *pkvt_cuda_alloc(uint64_t bytes)
{
    void *memory;
    return cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess ? memory : NULL;
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

void *pkvt_cuda_alloc(uint64_t bytes)
{
    (void)bytes;
    return NULL;
}

#endif
