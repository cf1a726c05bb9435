/*
 * lanes.h: 16 numbers at once, one a row of a packed group, in every instruction set.
 *
 * struct pkvi_f16x: 16 float32. struct pkvi_i16x: 16 int32. Loads and stores need no alignment.
 * dot_quads() is the integer heart of LINEAR: codes of 16 rows times 8-bit activations, exact.
 */
#ifndef PKV_CPU_LANES_H
#define PKV_CPU_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/isa.h"

/* How the codes of a format stand in its planes (pack_layout.h); constants where it is used. */
struct pkvi_codes {
    int low, high; /* bits in the two planes */
    int width;     /* bits of a code that matter: 2 .. 6; 8: signed */
};

#if defined(PKV_ISA_AVX2)
#include "kernels/cpu/lanes_avx2.h"
#elif defined(PKV_ISA_AVX512)
#include "kernels/cpu/lanes_avx512.h"
#else
#include "kernels/cpu/lanes_neon.h"
#endif

#endif
