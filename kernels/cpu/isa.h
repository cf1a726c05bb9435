/*
 * isa.h: the instruction set a file of kernels/cpu is being compiled for.
 *
 * Every file there is compiled once an instruction set (cmake/isa.cmake) with PKV_ISA=<name> and
 * one of PKV_ISA_AVX2, PKV_ISA_AVX512, PKV_ISA_NEON. Symbols with external linkage carry the name:
 * PKV_ISA_NAME(pkvi_kernel_linear) is pkvi_kernel_linear_avx2.
 * PKV_ISA_SIMDE (tests only): AVX-512 intrinsics come from SIMDe, so that any x86 runs them.
 */
#ifndef PKV_CPU_ISA_H
#define PKV_CPU_ISA_H

#define PKV_ISA_JOIN2(name, isa) name##_##isa
#define PKV_ISA_JOIN(name, isa) PKV_ISA_JOIN2(name, isa)
#define PKV_ISA_NAME(name) PKV_ISA_JOIN(name, PKV_ISA)
#define PKV_ISA_TEXT2(isa) #isa
#define PKV_ISA_TEXT1(isa) PKV_ISA_TEXT2(isa)
#define PKV_ISA_TEXT PKV_ISA_TEXT1(PKV_ISA) /* "avx2" */

/* Before a loop whose trip count is constant and at most 8: sums stay in registers. */
#if defined(__clang__)
#define PKV_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PKV_UNROLL _Pragma("GCC unroll 8")
#endif

#define PKV_INLINE static inline __attribute__((always_inline, unused))

#if defined(PKV_ISA_SIMDE)
/* tests/support/simde_avx512.h is there already */
#elif defined(PKV_ISA_AVX2) || defined(PKV_ISA_AVX512)
#include <immintrin.h>
#elif defined(PKV_ISA_NEON)
#include <arm_neon.h>
#else
#error "kernels/cpu is compiled with PKV_ISA and PKV_ISA_<NAME>"
#endif

#endif
