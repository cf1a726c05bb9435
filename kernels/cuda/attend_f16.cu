/* attend_f16.cu: attention with tensor cores over K and V in f16. */
#include "kernels/cuda/attend_mma.cuh"

bool pkvi_cuda_attend_f16(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes)
{
    return pkvi_mma_launch<PKV_KV_F16>(stream, job, smem_bytes);
}
