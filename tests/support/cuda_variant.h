/*
 * cuda_variant.h: the CUDA kernels as a variant of the conformance tests, in programs that are
 * compiled with PKV_TEST_CUDA: on fibers (cmake/simt.cmake), or on a card.
 */
#ifndef PKV_TEST_CUDA_VARIANT_H
#define PKV_TEST_CUDA_VARIANT_H

#include <stdbool.h>
#include <stdint.h>

/* Is this such a program? The functions below fail the test in others. */
bool pkvt_cuda_here(void);

/* Runs and waits. The operation has a CUDA kernel. */
void pkvt_cuda_run(uint32_t op, const void *args);

/* What later runs find beside their stream: cuBLAS or not, and so much workspace at most. */
void pkvt_cuda_offer(bool blas, uint64_t workspace_bytes);

/* What later runs take for the device's multiprocessors; 0: as many as there are. */
void pkvt_cuda_pretend(uint32_t multiprocessors);

/* Memory that kernels reach; of the exact size, so that its end is guarded. NULL: none. */
void *pkvt_cuda_alloc(uint64_t bytes);

/* In programs for a card (PKV_TEST_CARD, cmake/gpu.cmake) what free() means. */
void pkvt_cuda_free(void *memory);

#endif
