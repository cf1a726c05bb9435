/* addr.h: device addresses as the pointers that CPU kernels dereference. */
#ifndef PKV_ADDR_H
#define PKV_ADDR_H

#include <stdint.h>

#include "pivotkv/types.h"

/* PKV_AT(float, args->x): NULL where the address is 0. In a kernel: global memory, as the compiler
 * is told (kernels/cuda/lang.h). */
#if defined(__CUDA_ARCH__)
#define PKV_AT(type, addr) ((type *)pkvi_cuda_global(addr))
#else
#define PKV_AT(type, addr) ((type *)(uintptr_t)(addr))
#endif

static inline pkv_addr pkvi_addr(const void *pointer)
{
    return (pkv_addr)(uintptr_t)pointer;
}

#endif
