/*
 * weights.cuh: what the bytes of a packed matrix (kernels/pack_layout.h) are worth, read by a
 * device thread for 1 or 4 neighbouring outputs of a group at a time.
 *
 * Refuses to know: what is done with the values.
 */
#ifndef PKV_CUDA_WEIGHTS_CUH
#define PKV_CUDA_WEIGHTS_CUH

#include "kernels/addr.h"
#include "kernels/cuda/device.cuh"
#include "kernels/pack_layout.h"

/* Properties of a format that the compiler knows. */
template <int TYPE> struct pkvi_cuda_format {
    static constexpr struct pkvi_layout layout = pkvi_layouts[TYPE];
    static constexpr bool quantised = layout.low_bits > 0;
    static constexpr uint32_t subs = layout.values / PKV_SUB_VALUES; /* in a record */
    static constexpr uint32_t planes_bytes = 64u * (layout.low_bits + layout.high_bits);
    static constexpr uint32_t scales_at = layout.record_bytes - layout.scale_bytes;
    /* Scales of 32 values. */
    static constexpr uint32_t halves = layout.scale_values == 16 ? 2 : 1;
    static constexpr bool has_min = quantised && layout.offset == 0 && TYPE != PKV_W_Q8_0;
};

/* From one group of 16 outputs to the next. */
template <int TYPE> static __device__ __forceinline__ uint64_t pkvi_cuda_group_bytes(uint32_t cols)
{
    using format = pkvi_cuda_format<TYPE>;
    return (uint64_t)(cols / format::layout.values) * format::layout.record_bytes;
}

/* A 4-byte word of each of N neighbouring outputs. */
template <int N> struct pkvi_cuda_words {
    uint32_t of[N];
};

template <int N>
static __device__ __forceinline__ struct pkvi_cuda_words<N> pkvi_cuda_load_words(const void *from) {
    struct pkvi_cuda_words<N> words;
    if constexpr (N == 4) {
        const uint4 four = pkvi_cuda_load16(from);
        words = {{four.x, four.y, four.z, four.w}};
    } else {
        words.of[0] = *static_cast<const uint32_t *>(from);
    }
    return words;
}

/* f16 numbers of N outputs. */
template <int N>
static __device__ __forceinline__ void pkvi_cuda_load_halves(const uint8_t *from, float out[N])
{
    if constexpr (N == 4) {
        const uint2 four = *reinterpret_cast<const uint2 *>(from);
        const float2 low = pkvi_cuda_f16x2_to_f32(four.x), high = pkvi_cuda_f16x2_to_f32(four.y);
        out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
    } else {
        out[0] = pkvi_cuda_f16_to_f32(*reinterpret_cast<const uint16_t *>(from));
    }
}

/* A byte of each of N outputs. */
template <int N>
static __device__ __forceinline__ uint32_t pkvi_cuda_load_bytes(const uint8_t *from)
{
    if constexpr (N == 4) {
        return *reinterpret_cast<const uint32_t *>(from);
    } else {
        return *from;
    }
}

/* byte < 2^23 as the last places of 2^23: two plain instructions where a conversion is slow. */
static __device__ __forceinline__ float pkvi_cuda_small_to_f32(uint32_t byte)
{
    return __uint_as_float(0x4b000000u | byte) - 8388608.0f;
}

/* Where 32 values of a group's 16 outputs stand. */
struct pkvi_cuda_sub {
    const uint8_t *planes, *scales;
    uint32_t number; /* in its record */
};

/* Values 32 block .. 32 block + 31. */
template <int TYPE>
static __device__ __forceinline__ struct pkvi_cuda_sub pkvi_cuda_sub_at(const uint8_t *group,
                                                                        uint32_t block)
{
    using format = pkvi_cuda_format<TYPE>;
    const uint8_t *record = group + (uint64_t)(block / format::subs) * format::layout.record_bytes;
    const uint32_t number = block % format::subs;
    return {record + number * format::planes_bytes, record + format::scales_at, number};
}

/* Codes of values 4 quad .. 4 quad + 3 of 32, of outputs lane .. lane + N - 1. q8_0: signed. */
template <int TYPE, int N>
static __device__ __forceinline__ struct pkvi_cuda_words<N>
pkvi_cuda_quad(const uint8_t *planes, uint32_t lane, uint32_t quad) {
    constexpr uint32_t low = pkvi_cuda_format<TYPE>::layout.low_bits;
    constexpr uint32_t high = pkvi_cuda_format<TYPE>::layout.high_bits;
    constexpr uint32_t bytes = 0x01010101u, a_byte = 8 / low;
    struct pkvi_cuda_words<N> codes =
        pkvi_cuda_load_words<N>(planes + 64 * (quad / a_byte) + 4 * lane);
#pragma unroll
    for (int i = 0; i < N; i++) {
        codes.of[i] = codes.of[i] >> (low * (quad % a_byte)) & ((1u << low) - 1) * bytes;
    }
    if constexpr (high > 0) {
        constexpr uint32_t a_high_byte = 8 / high;
        const struct pkvi_cuda_words<N> rest =
            pkvi_cuda_load_words<N>(planes + 64 * low + 64 * (quad / a_high_byte) + 4 * lane);
#pragma unroll
        for (int i = 0; i < N; i++) {
            codes.of[i] |=
                (rest.of[i] >> (high * (quad % a_high_byte)) & ((1u << high) - 1) * bytes) << low;
        }
    }
    return codes;
}

/*
 * Scales of values 16 half .. 16 half + 15, of outputs lane .. lane + N - 1: a code q means
 * (q - offset) * s + m. m is set only in formats that have a minimum.
 */
template <int TYPE, int N>
static __device__ __forceinline__ void pkvi_cuda_scales(const struct pkvi_cuda_sub &sub,
                                                        uint32_t lane, uint32_t half, float s[N],
                                                        float m[N])
{
    using format = pkvi_cuda_format<TYPE>;
    if constexpr (format::subs == 1) {
        pkvi_cuda_load_halves<N>(sub.scales + 2 * lane, s);
        if constexpr (format::has_min) {
            pkvi_cuda_load_halves<N>(sub.scales + 32 + 2 * lane, m);
        }
    } else {
        const uint32_t number = format::halves == 2 ? 2 * sub.number + half : sub.number;
        const uint32_t bytes = pkvi_cuda_load_bytes<N>(sub.scales + 16 * number + lane);
        const uint32_t mins = format::halves == 1
                                  ? pkvi_cuda_load_bytes<N>(sub.scales + 128 + 16 * number + lane)
                                  : bytes >> 4;
        pkvi_cuda_load_halves<N>(sub.scales + 256 + 2 * lane, s);
        if constexpr (format::has_min) {
            pkvi_cuda_load_halves<N>(sub.scales + 288 + 2 * lane, m);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t scale = bytes >> (8 * i) & 255;
            if constexpr (TYPE == PKV_W_Q2_K) {
                s[i] *= pkvi_cuda_small_to_f32(scale & 15);
                m[i] *= -pkvi_cuda_small_to_f32(mins >> (8 * i) & 15);
            } else if constexpr (format::has_min) {
                s[i] *= pkvi_cuda_small_to_f32(scale);
                m[i] *= -pkvi_cuda_small_to_f32(mins >> (8 * i) & 255);
            } else { /* signed */
                s[i] *= pkvi_cuda_small_to_f32(scale ^ 128) - 128.0f;
            }
        }
    }
}

/* A value of N outputs of a float matrix, 8 at once of 16 bits; `record` is that of the input. */
template <int TYPE, int N>
static __device__ __forceinline__ void pkvi_cuda_floats(const uint8_t *record, uint32_t lane,
                                                        float out[N])
{
    if constexpr (TYPE == PKV_W_F32) {
        const struct pkvi_cuda_words<N> words = pkvi_cuda_load_words<N>(record + 4 * lane);
#pragma unroll
        for (int i = 0; i < N; i++) {
            out[i] = __uint_as_float(words.of[i]);
        }
    } else if constexpr (N == 8) {
        const struct pkvi_cuda_words<4> words = pkvi_cuda_load_words<4>(record + 2 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = TYPE == PKV_W_F16 ? pkvi_cuda_f16x2_to_f32(words.of[i])
                                                 : pkvi_cuda_bf16x2_to_f32(words.of[i]);
            out[2 * i] = two.x, out[2 * i + 1] = two.y;
        }
    } else {
        static_assert(N == 1, "f16 and bf16 are read by 1 or 8");
        const uint16_t bits = *reinterpret_cast<const uint16_t *>(record + 2 * lane);
        out[0] = TYPE == PKV_W_F16 ? pkvi_cuda_f16_to_f32(bits) : pkvi_cuda_bf16_to_f32(bits);
    }
}

/*
 * Values col .. col + count - 1 of output `lane` of a group, count <= 8, col a multiple of 8;
 * those beyond are 0. Equal to pkvi_pack_dequantize_row().
 */
template <int TYPE>
static __device__ __forceinline__ void pkvi_cuda_octet(const uint8_t *group, uint32_t lane,
                                                       uint32_t col, uint32_t count, float out[8])
{
    using format = pkvi_cuda_format<TYPE>;
    if constexpr (!format::quantised) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            out[i] = 0.0f;
            if (i < count) {
                pkvi_cuda_floats<TYPE, 1>(group + (uint64_t)(col + i) * format::layout.record_bytes,
                                          lane, out + i);
            }
        }
    } else {
        const struct pkvi_cuda_sub sub = pkvi_cuda_sub_at<TYPE>(group, col / 32);
        const uint32_t octet = col % 32 / 8;
        float s[1], m[1] = {0.0f};
        pkvi_cuda_scales<TYPE, 1>(sub, lane, octet / 2, s, m);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t word =
                pkvi_cuda_quad<TYPE, 1>(sub.planes, lane, 2 * octet + i / 4).of[0];
            const uint32_t code = word >> (8 * (i % 4)) & 255;
            const int q = TYPE == PKV_W_Q8_0 ? (int8_t)code : (int)code - format::layout.offset;
            out[i] = fmaf((float)q, s[0], m[0]);
        }
    }
}

/*
 * PKV_CUDA_EACH_TYPE(type, X): X(T) with the constant T that `type` is. For kernels that are
 * templates of a format.
 */
#define PKV_CUDA_EACH_TYPE(type, X)                                                                \
    switch (type) {                                                                                \
    case PKV_W_F32:                                                                                \
        X(PKV_W_F32);                                                                              \
        break;                                                                                     \
    case PKV_W_F16:                                                                                \
        X(PKV_W_F16);                                                                              \
        break;                                                                                     \
    case PKV_W_BF16:                                                                               \
        X(PKV_W_BF16);                                                                             \
        break;                                                                                     \
    case PKV_W_Q4_0:                                                                               \
        X(PKV_W_Q4_0);                                                                             \
        break;                                                                                     \
    case PKV_W_Q4_1:                                                                               \
        X(PKV_W_Q4_1);                                                                             \
        break;                                                                                     \
    case PKV_W_Q5_0:                                                                               \
        X(PKV_W_Q5_0);                                                                             \
        break;                                                                                     \
    case PKV_W_Q5_1:                                                                               \
        X(PKV_W_Q5_1);                                                                             \
        break;                                                                                     \
    case PKV_W_Q8_0:                                                                               \
        X(PKV_W_Q8_0);                                                                             \
        break;                                                                                     \
    case PKV_W_Q2_K:                                                                               \
        X(PKV_W_Q2_K);                                                                             \
        break;                                                                                     \
    case PKV_W_Q3_K:                                                                               \
        X(PKV_W_Q3_K);                                                                             \
        break;                                                                                     \
    case PKV_W_Q4_K:                                                                               \
        X(PKV_W_Q4_K);                                                                             \
        break;                                                                                     \
    case PKV_W_Q5_K:                                                                               \
        X(PKV_W_Q5_K);                                                                             \
        break;                                                                                     \
    case PKV_W_Q6_K:                                                                               \
        X(PKV_W_Q6_K);                                                                             \
        break;                                                                                     \
    default:                                                                                       \
        break;                                                                                     \
    }

#endif
