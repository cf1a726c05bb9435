/* kernel_test.h: running one operation in every variant this machine has. */
#ifndef PKV_KERNEL_TEST_H
#define PKV_KERNEL_TEST_H

#include "kernels/addr.h"
#include "kernels/kernels.h"
#include "tests/support/pkv_test.h"

/* A variant beside those of enum pkv_cpu: the AVX-512 kernels made of SIMDe. */
#define PKVT_CPU_SIMDE (PKV_CPU_NEON + 1u)
/* The CUDA kernels; the one variant of programs that have it (tests/support/cuda_variant.h). */
#define PKVT_CPU_CUDA (PKV_CPU_NEON + 2u)

/* for (uint32_t cpu = ...): every variant but AUTO that runs here. */
#define PKVT_FOR_EACH_CPU(cpu)                                                                     \
    for (uint32_t cpu = pkvt_next_cpu(PKV_CPU_AUTO); cpu <= PKVT_CPU_CUDA; cpu = pkvt_next_cpu(cpu))

uint32_t pkvt_next_cpu(uint32_t cpu);

/* Launch with a pool of `threads`. The args struct is passed by address. */
void pkvt_run(uint32_t cpu, uint32_t op, const void *args, uint32_t threads);

/* Memory that fails the test when it cannot be had, for free(). Filled with a pattern that reads as
 * NaN. Everything that a kernel reads or writes comes from here: no GPU reaches anything else. */
void *pkvt_alloc(uint64_t bytes);

/* Normal numbers. */
float *pkvt_normal(struct pkvt_rng *rng, uint64_t count, float scale);

/* An act with room for f32, and q8 where asked. */
struct pkv_act pkvt_act(uint32_t rows, uint32_t cols, bool f32, bool q8);
void pkvt_act_free(struct pkv_act *act);

/* act.q8 is what quantising `values` gives, and its sums are right. `values` are an act's f32. */
void pkvt_assert_quantised(const struct pkv_act *act, const float *values, uint32_t rows);

#endif
