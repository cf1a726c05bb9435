/*
 * lang.h: the CUDA language as the kernels here write it; the only header a .cu includes for it.
 *
 * nvcc compiles kernels/cuda/<op>.cu for devices, a C++ compiler compiles the same file against a
 * header named simt.h that the build brings (tests/simt): so what both must agree on has a name
 * here. Written without: <<<>>> (PKV_LAUNCH), bare __shared__ (PKV_SHARED, PKV_DYN_SHARED), inline
 * PTX (a function here for each), cooperative groups, textures, the null stream, and waiting for
 * another block of the same launch. Asynchronous copies: __pipeline_memcpy_async, _commit,
 * _wait_prior. Warp functions: those that end in _sync.
 */
#ifndef PKV_CUDA_LANG_H
#define PKV_CUDA_LANG_H

#include <stdint.h>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

/* PKV_LAUNCH(norm, rows, 256, 0, stream, args); of a template: PKV_LAUNCH((attend<64>), ...) */
#define PKV_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                   \
    kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__)

/* PKV_SHARED(float, tile, [32][33]): one of it a block. Its first contents are anything. */
#define PKV_SHARED(type, name, ...) __shared__ type name __VA_ARGS__

/* The smem_bytes of the launch, as `type *name`; aligned to 16 bytes. */
#define PKV_DYN_SHARED(type, name)                                                                 \
    extern __shared__ __align__(16) unsigned char pkvi_cuda_dynamic[];                             \
    type *name = reinterpret_cast<type *>(pkvi_cuda_dynamic)

/*
 * An address as a pointer of which the compiler knows that it is to global memory, which host
 * memory that a kernel may read is too: from a bare number it would make generic loads (LD in place
 * of LDG). No instruction: an address outside of the windows of shared and local memory is the same
 * number in both spaces. Source: PTX ISA, generic addressing.
 */
static __device__ __forceinline__ void *pkvi_cuda_global(uint64_t address)
{
    void *pointer = (void *)address;
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}

/*
 * d += a * b of a warp: a f16 [16][16], b f16 [16][8], d f32 [16][8]. Lane 4g + t holds, two f16 a
 * word: a[0] row g, columns 2t and 2t + 1; a[1] the same of row g + 8; a[2], a[3] the same of
 * columns + 8; b[0] column g, rows 2t and 2t + 1, b[1] rows + 8; d[0], d[1] row g, columns 2t and
 * 2t + 1, d[2], d[3] of row g + 8. Source: PTX ISA, mma.m16n8k16.
 */
static __device__ __forceinline__ void pkvi_mma_m16n8k16(float d[4], const unsigned a[4],
                                                         const unsigned b[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    for (int half = 0; half < 2; half++) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#else
#include "simt.h"
#endif

#endif
