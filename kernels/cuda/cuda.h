/*
 * cuda.h: what a CUDA kernel gets from its device, how it words an error, and where it is found.
 *
 * kernels/cuda/<op>.cu ends with `const struct pkv_kernel pkvi_kernel_<op>_cuda = {...}`, declared
 * here, and has a line in OPERATIONS of cuda_table.c. Its launch() runs on the host: it may read
 * its arguments but nothing they point to (all of it is device memory), allocates nothing, waits
 * for nothing, launches nothing for 0 rows, and returns
 * pkvi_cuda_check(cudaGetLastError(), "launch of <op>").
 *
 * Knows no device: runtime/device/dev_cuda.c makes the streams.
 */
#ifndef PKV_CUDA_CUDA_H
#define PKV_CUDA_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "pivotkv/impl/device_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuBLAS as one COMPUTE stream has it: its stream and workspace are set. Never linked. */
struct pkvi_cublas {
    cublasHandle_t handle;
    cublasStatus_t (*gemm)(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k, const void *alpha,
                           const void *a, cudaDataType a_type, int lda, const void *b,
                           cudaDataType b_type, int ldb, const void *beta, void *c,
                           cudaDataType c_type, int ldc, cublasComputeType_t compute,
                           cublasGemmAlgo_t algo); /* cublasGemmEx */
    cublasStatus_t (*set_stream)(cublasHandle_t handle, cudaStream_t stream);
    cublasStatus_t (*set_workspace)(cublasHandle_t handle, void *workspace, size_t bytes);
    cublasStatus_t (*set_math_mode)(cublasHandle_t handle, cublasMath_t mode);
    const char *(*status_string)(cublasStatus_t status);
};

/* What a CUDA kernel gets as native_stream. */
struct pkvi_cuda_stream {
    cudaStream_t stream;
    const struct pkvi_cublas *blas; /* NULL: not there, or no COMPUTE stream */
    /* Device memory for what one launch needs, such as dequantised weights; fixed at open. A launch
     * may use all of it: launches of a stream follow each other. 0 on streams but COMPUTE. */
    pkv_addr workspace;
    uint64_t workspace_bytes;
    uint32_t multiprocessors;
};

/*
 * PKV_OK, or the worded failure: the call (`what`), CUDA's name for the error, and what to do.
 * Clears the runtime's pending error, so that it does not come up in an unrelated call.
 * PKV_ERR_UNSUPPORTED: no driver or no GPU; PKV_ERR_NO_MEMORY; PKV_ERR_INVALID: a wrong call;
 * PKV_ERR_DEVICE_LOST: everything that only a new process cures.
 */
enum pkv_status pkvi_cuda_check(cudaError_t error, const char *what);
/* The same of cuBLAS. */
enum pkv_status pkvi_cuda_check_blas(const struct pkvi_cublas *blas, cublasStatus_t status,
                                     const char *what);

/* The CUDA kernel of an operation (enum pkv_op), or NULL. */
const struct pkv_kernel *pkvi_cuda_kernel(uint32_t op);

extern const struct pkv_kernel pkvi_kernel_embed_cuda;
extern const struct pkv_kernel pkvi_kernel_norm_cuda;
extern const struct pkv_kernel pkvi_kernel_quantize_cuda;
extern const struct pkv_kernel pkvi_kernel_linear_cuda;
extern const struct pkv_kernel pkvi_kernel_glu_cuda;
extern const struct pkv_kernel pkvi_kernel_rope_table_cuda;
extern const struct pkv_kernel pkvi_kernel_rope_cuda;
extern const struct pkv_kernel pkvi_kernel_append_cuda;
extern const struct pkv_kernel pkvi_kernel_attend_cuda;
extern const struct pkv_kernel pkvi_kernel_softcap_cuda;
extern const struct pkv_kernel pkvi_kernel_topk_cuda;
extern const struct pkv_kernel pkvi_kernel_score_cuda;
extern const struct pkv_kernel pkvi_kernel_place_cuda;
extern const struct pkv_kernel pkvi_kernel_compete_cuda;
extern const struct pkv_kernel pkvi_kernel_keep_cuda;
extern const struct pkv_kernel pkvi_kernel_gather_cuda;
extern const struct pkv_kernel pkvi_kernel_thin_cuda;
extern const struct pkv_kernel pkvi_kernel_index_cuda;
extern const struct pkv_kernel pkvi_kernel_predict_cuda;
extern const struct pkv_kernel pkvi_kernel_recall_cuda;

#ifdef __cplusplus
}
#endif
#endif
