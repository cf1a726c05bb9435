/* cuda_check.c: an error of CUDA or cuBLAS as a status and one line that says what to do. */
#include "kernels/cuda/cuda.h"

#include "runtime/base/check.h"

static enum pkv_status no_device(cudaError_t error, const char *what)
{
    if (error == cudaErrorNoDevice) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "device 'cuda': the NVIDIA driver shows no GPU (in a container: "
                        "docker run --gpus all; CUDA_VISIBLE_DEVICES may hide it)");
    }
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 &&
        cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "device 'cuda': the NVIDIA driver supports CUDA %d.%d, this build needs "
                        "%d.%d or newer (%s)",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                        what);
    }
    return PKV_FAIL(
        PKV_ERR_UNSUPPORTED,
        "device 'cuda': no NVIDIA driver on this machine (libcuda.so.1 is missing, or is "
        "none that can be loaded; in a container: docker run --gpus all)");
}

enum pkv_status pkvi_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return PKV_OK;
    }
    (void)cudaGetLastError();
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
        return no_device(error, what);
    case cudaErrorMemoryAllocation:
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "%s: out of memory (%s); a smaller context or batch needs less", what,
                        name);
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: this build has no code for this GPU (%s); build it with "
                        "CMAKE_CUDA_ARCHITECTURES=native",
                        what, name);
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchOutOfResources:
        return PKV_FAIL(PKV_ERR_INVALID, "%s: %s (%s)", what, text, name);
    case cudaErrorDevicesUnavailable:
        return PKV_FAIL(PKV_ERR_DEVICE_LOST,
                        "%s: the GPU is busy or in exclusive mode (%s); end the other process or "
                        "see nvidia-smi -q -d COMPUTE",
                        what, name);
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
        return PKV_FAIL(PKV_ERR_DEVICE_LOST,
                        "%s: a kernel failed: %s (%s); the process must start anew, and "
                        "compute-sanitizer tells where",
                        what, text, name);
    case cudaErrorECCUncorrectable:
        return PKV_FAIL(PKV_ERR_DEVICE_LOST,
                        "%s: the GPU's memory is faulty (%s); nvidia-smi -q -d ECC, then reset it",
                        what, name);
    default:
        return PKV_FAIL(PKV_ERR_DEVICE_LOST,
                        "%s: %s (%s, error %d); see dmesg for Xid lines, then start anew", what,
                        text, name, (int)error);
    }
}

enum pkv_status pkvi_cuda_check_blas(const struct pkvi_cublas *blas, cublasStatus_t status,
                                     const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return PKV_OK;
    }
    return PKV_FAIL(status == CUBLAS_STATUS_ALLOC_FAILED ? PKV_ERR_NO_MEMORY
                    : status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_NOT_SUPPORTED
                        ? PKV_ERR_INVALID
                        : PKV_ERR_DEVICE_LOST,
                    "%s: cuBLAS: %s", what, blas->status_string(status));
}
