/*
 * card.h: what the programs of tests/gpu share: a few kernels of their own on a CUDA device
 * (card_kernels.cu), as the device's table launches them (card.c). The same files run over the fake
 * runtime of tests/simt, to try the programs themselves.
 */
#ifndef PKV_TEST_GPU_CARD_H
#define PKV_TEST_GPU_CARD_H

#include <cuda_runtime_api.h>

#include "pivotkv/impl/device_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pieces of `words` times 16 bytes from pinned host memory to device memory, side by side. */
struct pkvt_gather {
    pkv_addr source, target;
    pkv_addr first; /* u64 [pieces]: where in source each begins, in 16 bytes */
    uint32_t words, pieces;
    uint32_t blocks; /* of PKVT_GATHER_THREADS */
};
#define PKVT_GATHER_THREADS 512u
extern const struct pkv_kernel pkvt_card_gather;

/* Reads device memory once, with every multiprocessor, and keeps a word of its sum. */
struct pkvt_read {
    pkv_addr memory, sum; /* sum: u32 */
    uint64_t bytes;       /* a multiple of 16 */
};
extern const struct pkv_kernel pkvt_card_read;

/* Keeps a stream busy. */
struct pkvt_delay {
    uint32_t us;
};
extern const struct pkv_kernel pkvt_card_delay;

/* struct pkvt_step (tests/support/device_suite.h). */
extern const struct pkv_kernel pkvt_card_step;

/* card_kernels.cu */
cudaError_t pkvt_launch_gather(cudaStream_t stream, const struct pkvt_gather *args);
cudaError_t pkvt_launch_read(cudaStream_t stream, const struct pkvt_read *args, uint32_t blocks);
cudaError_t pkvt_launch_delay(cudaStream_t stream, uint32_t us);
cudaError_t pkvt_launch_step(cudaStream_t stream, pkv_addr x, uint64_t value, uint32_t delay_us);

#ifdef __cplusplus
}
#endif

#endif
