/*
 * fake_cublas.cpp: cuBLAS's GemmEx in plain loops, sums in f32 by ascending k, in the order of its
 * stream. Programs export it, so that dlsym() finds it; PKV_SIMT_NO_CUBLAS=1: it does not start.
 */
#include "fake.h"

#include "engine.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdlib.h>
#include <string.h>

struct cublasContext {
    cudaStream_t stream;
    bool has_workspace;
};

using namespace fake;

namespace {

struct Matrix {
    const void *data;
    cudaDataType type;
    size_t leading, rows, cols; /* by columns, as cuBLAS has it */
    size_t value_bytes() const
    {
        return type == CUDA_R_32F ? 4 : 2;
    }
    size_t bytes() const
    {
        return rows && cols ? ((cols - 1) * leading + rows) * value_bytes() : 0;
    }
    float at(size_t row, size_t col) const
    {
        const size_t i = col * leading + row;
        uint16_t bits;
        if (type == CUDA_R_32F) {
            return static_cast<const float *>(data)[i];
        }
        memcpy(&bits, static_cast<const unsigned char *>(data) + 2 * i, sizeof bits);
        return type == CUDA_R_16F ? __half2float(__ushort_as_half(bits))
                                  : __bfloat162float(__ushort_as_bfloat16(bits));
    }
    void put(size_t row, size_t col, float value) const
    {
        const size_t i = col * leading + row;
        unsigned char *to = const_cast<unsigned char *>(static_cast<const unsigned char *>(data)) +
                            value_bytes() * i;
        const uint16_t bits = type == CUDA_R_16F ? __half_as_ushort(__float2half_rn(value))
                                                 : __bfloat16_as_ushort(__float2bfloat16_rn(value));
        if (type == CUDA_R_32F) {
            memcpy(to, &value, sizeof value);
        } else {
            memcpy(to, &bits, sizeof bits);
        }
        simt::note_copy(to, nullptr, value_bytes());
    }
};

bool is_float(cudaDataType type)
{
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

/* As [rows][k], whatever the operation: what is summed lies together. */
std::vector<float> unfold(const Matrix &matrix, bool summed_is_row, size_t others, size_t summed)
{
    std::vector<float> values(others * summed);
    for (size_t i = 0; i < others; i++) {
        for (size_t l = 0; l < summed; l++) {
            values[i * summed + l] = summed_is_row ? matrix.at(l, i) : matrix.at(i, l);
        }
    }
    return values;
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle_out)
{
    std::lock_guard<std::mutex> lock(api);
    if (trouble() || simt::number("PKV_SIMT_NO_CUBLAS", 0)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle_out = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->has_workspace = false; /* as the real one: back to its own */
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    std::lock_guard<std::mutex> lock(api);
    if (!is_device(workspace, bytes) || (uintptr_t)workspace % 256) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    handle->has_workspace = true;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    (void)handle;
    (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version_out)
{
    (void)handle;
    *version_out = 130000;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "failure of the fake cuBLAS";
}

/* c = alpha * op(a) * op(b) + beta * c; alpha and beta lie in host memory. */
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type,
                            int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    std::lock_guard<std::mutex> lock(api);
    (void)algorithm;
    const bool is_f32_sum =
        compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!is_f32_sum || !is_float(a_type) || a_type != b_type || !is_float(c_type)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const bool a_by_k = op_a == CUBLAS_OP_T, b_by_k = op_b == CUBLAS_OP_N;
    if (m < 0 || n < 0 || k < 0 || lda < (a_by_k ? k : m) || ldb < (b_by_k ? k : n) || ldc < m) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const size_t rows = (size_t)m, cols = (size_t)n, summed = (size_t)k;
    const Matrix left = {a, a_type, (size_t)lda, a_by_k ? summed : rows, a_by_k ? rows : summed};
    const Matrix right = {b, b_type, (size_t)ldb, b_by_k ? summed : cols, b_by_k ? cols : summed};
    const Matrix result = {c, c_type, (size_t)ldc, rows, cols};
    for (const Matrix &matrix : {left, right, result}) {
        if (matrix.bytes() && !is_reachable(matrix.data, matrix.bytes())) {
            answer(cudaErrorInvalidValue,
                   "a matrix that is not in device memory, or not all of it");
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    }
    const float scale = *static_cast<const float *>(alpha),
                keep = *static_cast<const float *>(beta);
    const auto run = [=] {
        const std::vector<float> x = unfold(left, a_by_k, rows, summed);
        const std::vector<float> y = unfold(right, b_by_k, cols, summed);
        for (size_t j = 0; j < cols; j++) {
            for (size_t i = 0; i < rows; i++) {
                float sum = 0.0f;
                for (size_t l = 0; l < summed; l++) {
                    sum += x[i * summed + l] * y[j * summed + l];
                }
                result.put(i, j, scale * sum + (keep != 0.0f ? keep * result.at(i, j) : 0.0f));
            }
        }
    };
    return submit(handle->stream, {run, {}}) ? CUBLAS_STATUS_EXECUTION_FAILED
                                             : CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
