/* cuda_device.h: the cuda device over the fake runtime, as tests of devices want it. */
#ifndef PKV_SIMT_CUDA_DEVICE_H
#define PKV_SIMT_CUDA_DEVICE_H

#include "pivotkv/impl/device_ops.h"

/* struct pkvt_step, computed in the stream's order. */
extern const struct pkv_kernel pkvt_cuda_step;

/* Calls by which the host waited for the GPU, since the program began. */
uint64_t pkvt_cuda_waits(void);
/* Calls that allocate or free and so may wait. */
uint64_t pkvt_cuda_allocations(void);

#endif
