/*
 * simt.h: the CUDA device language for a C++20 compiler, a fiber for each CUDA thread; test builds
 * only. kernels/cuda/lang.h includes it where nvcc does not compile. Types, enums and prototypes
 * are those of the toolkit's headers; launches go through tests/simt/fake_cuda.cpp, fibers are
 * switched in simt.cpp. Shows that a kernel's source is right, not that nvcc's code is
 * (docs/testing.md).
 */
#ifndef PKV_SIMT_H
#define PKV_SIMT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__ /* PKV_SHARED alone */
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline

/* Each block gets its own object of the exact size, filled with 0xff: NaN, -1. */
#define PKV_SHARED(type, name, ...)                                                                \
    typedef type simt_type_##name __VA_ARGS__;                                                     \
    static char simt_key_##name;                                                                   \
    simt_type_##name &name =                                                                       \
        *static_cast<simt_type_##name *>(simt::shared(&simt_key_##name, sizeof(simt_type_##name)))
#define PKV_DYN_SHARED(type, name) type *name = static_cast<type *>(simt::dynamic_shared())
#define PKV_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                   \
    simt::launch_typed(#kernel, kernel, (grid), (block), (smem_bytes),                             \
                       (stream)__VA_OPT__(, ) __VA_ARGS__)

/* Not variables of a namespace: cudaLaunchConfig_t has fields of these names, so no macros. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt {

/* Where in the kernel's source something is called. */
struct Site {
    const char *file;
    int line;
    static constexpr Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return {file, line};
    }
};

/* Calls that meet in a warp; lanes at different ones are a mistake. */
enum class Meet { Shuffle, Vote, Sync, Mma };

/* What lanes put in. Of lanes that are not in `live`: undefined on a device. */
struct Table {
    const uint64_t *put;
    unsigned live;
};

void *shared(const void *key, size_t bytes);
void *dynamic_shared();
unsigned lane();
/* The number of threads that said yes. */
unsigned barrier(bool yes, Site site);
/* Waits for the lanes of mask that have not ended. */
Table exchange(Meet meet, unsigned mask, uint64_t put, Site site);
void copy_async(void *to, const void *from, size_t bytes);
void copy_commit();
void copy_wait(int pending);
void fence();
void may_yield();
cudaError_t launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t smem_bytes,
                   cudaStream_t stream, void (*call)(const void *), std::shared_ptr<void> args,
                   size_t args_bytes);

/* Arguments are copied now, as a launch does. */
template <class... P, class... A>
cudaError_t launch_typed(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                         size_t smem_bytes, cudaStream_t stream, const A &...a)
{
    using Args = std::tuple<void (*)(P...), std::decay_t<P>...>;
    auto args = std::make_shared<Args>(kernel, static_cast<std::decay_t<P>>(a)...);
    void (*call)(const void *) = [](const void *packed) {
        std::apply([](auto function, const auto &...value) { function(value...); },
                   *static_cast<const Args *>(packed));
    };
    return launch(name, reinterpret_cast<const void *>(kernel), grid, block, smem_bytes, stream,
                  call, args, sizeof(Args));
}

/* The value of lane `from`; ones in every bit where it is not there. */
template <class T> T shuffle(unsigned mask, T value, unsigned from, Site site)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const Table table = exchange(Meet::Shuffle, mask, bits, site);
    bits = table.live >> from & 1 ? table.put[from] : ~UINT64_C(0);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Lane `to` if it lies in the segment of `width` lanes that the caller is in, else the caller. */
inline unsigned in_segment(int to, int width)
{
    const int first = (int)lane() / width * width;
    return (unsigned)(to >= first && to < first + width ? to : (int)lane());
}

/* read-modify-write, atomically: next(old) */
template <class T, class F> T update(T *at, F next)
{
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    static_assert(sizeof(T) == sizeof(Bits), "atomics are of 4 or 8 bytes");
    may_yield();
    Bits *word = reinterpret_cast<Bits *>(at);
    Bits old_bits = __atomic_load_n(word, __ATOMIC_RELAXED), new_bits;
    T old_value;
    do {
        memcpy(&old_value, &old_bits, sizeof old_value);
        const T new_value = next(old_value);
        memcpy(&new_bits, &new_value, sizeof new_bits);
    } while (!__atomic_compare_exchange_n(word, &old_bits, new_bits, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return old_value;
}

} // namespace simt

/* Barriers and warp functions. */
inline void __syncthreads(simt::Site site = simt::Site::here())
{
    simt::barrier(false, site);
}
inline int __syncthreads_count(int predicate, simt::Site site = simt::Site::here())
{
    return (int)simt::barrier(predicate != 0, site);
}
inline int __syncthreads_or(int predicate, simt::Site site = simt::Site::here())
{
    return simt::barrier(predicate != 0, site) != 0;
}
inline int __syncthreads_and(int predicate, simt::Site site = simt::Site::here())
{
    return simt::barrier(predicate == 0, site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Site site = simt::Site::here())
{
    simt::exchange(simt::Meet::Sync, mask, 0, site);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              simt::Site site = simt::Site::here())
{
    const unsigned first = simt::lane() / (unsigned)width * (unsigned)width;
    return simt::shuffle(mask, value, first + (unsigned)from % (unsigned)width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32,
                  simt::Site site = simt::Site::here())
{
    const int to = (int)simt::lane() ^ distance;
    return simt::shuffle(mask, value, simt::in_segment(to, width), site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                   simt::Site site = simt::Site::here())
{
    const int to = (int)simt::lane() + (int)distance;
    return simt::shuffle(mask, value, simt::in_segment(to, width), site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32,
                 simt::Site site = simt::Site::here())
{
    const int to = (int)simt::lane() - (int)distance;
    return simt::shuffle(mask, value, simt::in_segment(to, width), site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here())
{
    const simt::Table table = simt::exchange(simt::Meet::Vote, mask, predicate != 0, site);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++) {
        votes |= table.live >> i & 1 ? (unsigned)table.put[i] << i : 0;
    }
    return votes;
}
inline int __any_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here())
{
    return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simt::Site site = simt::Site::here())
{
    return __ballot_sync(mask, predicate == 0, site) == 0;
}

/* Fences, asynchronous copies, atomics. */
inline void __threadfence()
{
    simt::fence();
}
inline void __threadfence_block()
{
    simt::may_yield();
}
inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes)
{
    simt::copy_async(to, from, bytes);
}
inline void __pipeline_commit()
{
    simt::copy_commit();
}
inline void __pipeline_wait_prior(int pending)
{
    simt::copy_wait(pending);
}
template <class T> T atomicAdd(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return (T)(old + value); });
}
template <class T> T atomicSub(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return (T)(old - value); });
}
template <class T> T atomicExch(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T *at, std::type_identity_t<T> expected, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return old == expected ? value : old; });
}
template <class T> T atomicOr(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return (T)(old | value); });
}
template <class T> T atomicAnd(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return (T)(old & value); });
}
template <class T> T atomicMax(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return std::max(old, value); });
}
template <class T> T atomicMin(T *at, std::type_identity_t<T> value)
{
    return simt::update(at, [=](T old) { return std::min(old, value); });
}

/* Numbers as bits, and bits. */
inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline int __float_as_int(float value)
{
    return (int)__float_as_uint(value);
}
inline float __int_as_float(int bits)
{
    return __uint_as_float((unsigned)bits);
}
inline long long __double_as_longlong(double value)
{
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline double __longlong_as_double(long long bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}
inline int __clz(int bits)
{
    return bits ? __builtin_clz((unsigned)bits) : 32;
}
inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}
inline unsigned __brev(unsigned bits)
{
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) {
        reversed |= (bits >> i & 1) << (31 - i);
    }
    return reversed;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select)
{
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned nibble = select >> (4 * i) & 0xf;
        const unsigned byte = (unsigned)(bytes >> (8 * (nibble & 7))) & 0xff;
        result |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
inline int __dp4a(int a, int b, int sum)
{
    for (int i = 0; i < 32; i += 8) {
        sum += (int8_t)(a >> i) * (int8_t)(b >> i);
    }
    return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum)
{
    for (int i = 0; i < 32; i += 8) {
        sum += (uint8_t)(a >> i) * (unsigned)(uint8_t)(b >> i);
    }
    return sum;
}
/* a - b in each of four bytes */
inline unsigned __vsub4(unsigned a, unsigned b)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8) {
        result |= (((a >> i) - (b >> i)) & 0xff) << i;
    }
    return result;
}
inline unsigned __vadd4(unsigned a, unsigned b)
{
    unsigned result = 0;
    for (int i = 0; i < 32; i += 8) {
        result |= (((a >> i) + (b >> i)) & 0xff) << i;
    }
    return result;
}

/* Arithmetic of one rounding (-ffp-contract=off), and fast forms, here as exact as the libc's. */
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
inline int __float2int_rz(float x)
{
    return (int)x;
}
inline unsigned __float2uint_rn(float x)
{
    return (unsigned)rintf(x);
}
inline float __int2float_rn(int x)
{
    return (float)x;
}
inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __exp2f(float x)
{
    return exp2f(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline __half __hfma(__half a, __half b, __half c)
{
    return __float2half_rn(fmaf(__half2float(a), __half2float(b), __half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                          __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
using std::max;
using std::min;

/* A call whose struct goes straight to memory is a store that the check build does not see. */
inline unsigned short simt_half_bits(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}
__attribute__((always_inline)) inline __half simt_float2half(float value)
{
    __half_raw raw;
    raw.x = simt_half_bits(value);
    return __half(raw);
}
#define __float2half_rn(value) simt_float2half(value)

/* Loads and stores with a hint for the cache. */
template <class T> T __ldg(const T *from)
{
    return *from;
}
template <class T> T __ldcs(const T *from)
{
    return *from;
}
template <class T> T __ldcg(const T *from)
{
    return *from;
}
template <class T> void __stcs(T *to, T value)
{
    *to = value;
}
template <class T> void __stcg(T *to, T value)
{
    *to = value;
}

/* Of a word that lane puts in: the f16 in its low or high half. */
inline float simt_half_of(uint64_t words, unsigned word, unsigned high)
{
    const uint16_t bits = (uint16_t)(words >> (32 * word + 16 * high));
    return __half2float(__ushort_as_half(bits));
}

/* As kernels/cuda/lang.h says; sums in f32 by ascending k. */
inline void pkvi_mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2],
                              simt::Site site = simt::Site::here())
{
    const uint64_t put[3] = {a[0] | (uint64_t)a[1] << 32, a[2] | (uint64_t)a[3] << 32,
                             b[0] | (uint64_t)b[1] << 32};
    uint64_t got[3][32];
    for (int i = 0; i < 3; i++) {
        const simt::Table table = simt::exchange(simt::Meet::Mma, 0xffffffffu, put[i], site);
        memcpy(got[i], table.put, sizeof got[i]);
    }
    const unsigned row = simt::lane() / 4, pair = simt::lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned lower = i / 2, col = 2 * pair + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const unsigned far = k / 8, lane = k % 8 / 2, high = k % 2;
            d[i] += simt_half_of(got[far][4 * row + lane], lower, high) *
                    simt_half_of(got[2][4 * col + lane], far, high);
        }
    }
}

#endif
