/* fake_device.cpp: what the fake CUDA runtime says of its one device, of versions and of errors. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

using namespace fake;

namespace {

constexpr int VERSION = 13000, MULTIPROCESSORS = 4, L2_BYTES = 4 << 20, CLOCK_KHZ = 1000000;

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};

const ErrorText errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
};

const ErrorText &find_error(cudaError_t error)
{
    static const ErrorText unknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    for (const ErrorText &known : errors) {
        if (known.error == error) {
            return known;
        }
    }
    return unknown;
}

} // namespace

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    return find_error(error).name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return find_error(error).text;
}

cudaError_t cudaRuntimeGetVersion(int *version_out)
{
    *version_out = VERSION;
    return cudaSuccess;
}

/* 0 where there is no driver. */
cudaError_t cudaDriverGetVersion(int *version_out)
{
    *version_out = trouble() == cudaErrorInsufficientDriver ? 0 : VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count_out)
{
    const cudaError_t error = trouble();
    if (!error) { /* else the count stays unwritten, as with the real one */
        *count_out = 1;
    }
    return error;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = trouble();
    return error ? error : device == 0 ? cudaSuccess : answer(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device_out)
{
    *device_out = 0;
    return trouble();
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    return trouble();
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    (void)device_flags;
    (void)flags;
    return cudaSetDevice(device);
}

cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out)
{
    std::lock_guard<std::mutex> lock(api);
    *free_out = vram_free();
    *total_out = vram_total();
    return trouble();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties_out, int device)
{
    if (cudaError_t error = cudaSetDevice(device)) {
        return error;
    }
    std::lock_guard<std::mutex> lock(api);
    cudaDeviceProp properties = {};
    snprintf(properties.name, sizeof properties.name, "SIMT on a CPU");
    memcpy(properties.uuid.bytes, "pivotkv-simt-gpu", sizeof properties.uuid.bytes);
    properties.totalGlobalMem = vram_total();
    properties.sharedMemPerBlock = 48 << 10;
    properties.sharedMemPerBlockOptin = 227 << 10;
    properties.sharedMemPerMultiprocessor = 228 << 10;
    properties.regsPerBlock = 65536;
    properties.warpSize = 32;
    properties.maxThreadsPerBlock = 1024;
    properties.maxThreadsPerMultiProcessor = 2048;
    properties.major = 9;
    properties.multiProcessorCount = MULTIPROCESSORS;
    properties.l2CacheSize = L2_BYTES;
    properties.memoryBusWidth = 384;
    properties.asyncEngineCount = 2;
    properties.canMapHostMemory = 1;
    properties.unifiedAddressing = 1;
    properties.concurrentKernels = 1;
    properties.hostRegisterSupported = 1;
    properties.pciBusID = 1;
    *properties_out = properties;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value_out, cudaDeviceAttr attribute, int device)
{
    if (cudaError_t error = cudaSetDevice(device)) {
        return error;
    }
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value_out = MULTIPROCESSORS;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value_out = 9;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value_out = 1024;
        break;
    case cudaDevAttrWarpSize:
        *value_out = 32;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value_out = 227 << 10;
        break;
    case cudaDevAttrL2CacheSize:
        *value_out = L2_BYTES;
        break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value_out = CLOCK_KHZ;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value_out = 384;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value_out = 2;
        break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrConcurrentKernels:
        *value_out = 1;
        break;
    default: /* what it has not */
        *value_out = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id_out, int bytes, int device)
{
    snprintf(id_out, (size_t)bytes, "0000:01:00.0");
    return cudaSetDevice(device);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks_out, const void *kernel,
                                                          int threads, size_t smem_bytes)
{
    (void)kernel;
    (void)smem_bytes;
    *blocks_out = 2048 / threads;
    return trouble();
}

} // extern "C"
