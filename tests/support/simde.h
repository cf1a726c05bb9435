/* simde.h: the AVX-512 kernels made of SIMDe (cmake/simde.cmake). */
#ifndef PKV_TEST_SIMDE_H
#define PKV_TEST_SIMDE_H

#include "kernels/kernels.h"

/* NULL where the operation has no vector kernel, where SIMDe is not there, and where the machine
 * runs the real ones. */
const struct pkv_kernel *pkvt_simde_kernel(uint32_t op);

#endif
