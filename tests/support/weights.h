/* weights.h: random weights in every format of a GGUF file, and the variants to test. */
#ifndef PKV_TEST_WEIGHTS_H
#define PKV_TEST_WEIGHTS_H

#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "tests/support/pkv_test.h"

/* Rows as a file has them, values of magnitude about 1; free() them. */
uint8_t *pkvt_weights_random(enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                             struct pkvt_rng *rng);

/* The same, packed; aligned, free() it. */
void *pkvt_weights_pack(enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                        const uint8_t *source);

/* Kernels of an operation that this machine runs, scalar first; returns their number (<= 8). */
uint32_t pkvt_kernels(enum pkv_op op, const struct pkv_kernel *kernels[8]);

#endif
