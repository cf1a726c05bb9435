/* attend_bf16.cu: attention with tensor cores over K and V in bf16. */
#include "kernels/cuda/attend_mma.cuh"

bool pkvi_cuda_attend_bf16(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes)
{
    return pkvi_mma_launch<PKV_KV_BF16>(stream, job, smem_bytes);
}
