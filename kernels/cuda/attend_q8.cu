/* attend_q8.cu: attention with tensor cores over K and V in q8_0. */
#include "kernels/cuda/attend_mma.cuh"

bool pkvi_cuda_attend_q8(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes)
{
    return pkvi_mma_launch<PKV_KV_Q8_0>(stream, job, smem_bytes);
}
