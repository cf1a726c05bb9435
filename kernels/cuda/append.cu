/*
 * append.cu: K and V of the step's rows go to their slots, a warp a row and KV head; twin of
 * kernels/ref/append.c, to the bit. Reads 4 bytes a value and writes those of its format.
 */
#include "kernels/cost.h"
#include "kernels/cuda/kv.cuh"

#define THREADS 256u

/* As kernels/half.h rounds: a NaN keeps its sign and nothing else. */
static __device__ uint16_t to_f16(float x)
{
    return isnan(x) ? (uint16_t)((__float_as_uint(x) >> 16 & 0x8000u) | 0x7e00u)
                    : pkvi_cuda_f32_to_f16(x);
}

static __device__ uint16_t to_bf16(float x)
{
    return isnan(x) ? (uint16_t)(__float_as_uint(x) >> 16 | 0x40u) : pkvi_cuda_f32_to_bf16(x);
}

/* 32 channels as i8 times one f16 scale, which is rounded first: it is what they are divided by. */
static __device__ void store_q8(float x, int8_t *q8, uint16_t *scale)
{
    const float max = pkvi_cuda_warp_max(fabsf(x));
    const uint16_t half = to_f16(fminf(max / 127.0f, 65504.0f));
    const float step = pkvi_cuda_f16_to_f32(half), inverse = step > 0.0f ? 1.0f / step : 0.0f;
    *q8 = (int8_t)fmaxf(-127.0f, fminf(127.0f, rintf(x * inverse)));
    if (threadIdx.x % 32 == 0) {
        *scale = half;
    }
}

/* One half of an entry, by a warp. */
static __device__ void store(enum pkv_kv_type type, const float *x, uint32_t head_dim, uint8_t *out)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = lane; i < head_dim; i += 32) {
        if (type == PKV_KV_Q8_0) { /* head_dim is a multiple of 32 */
            store_q8(x[i], (int8_t *)out + i, (uint16_t *)(out + head_dim) + i / 32);
        } else if (type == PKV_KV_F32) {
            ((float *)out)[i] = x[i];
        } else {
            ((uint16_t *)out)[i] = type == PKV_KV_F16 ? to_f16(x[i]) : to_bf16(x[i]);
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 4) append(struct pkv_args_append args)
{
    const uint64_t warp = (uint64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const uint32_t row = (uint32_t)(warp / args.kv_heads), head = (uint32_t)(warp % args.kv_heads);
    if (row >= args.rows) {
        return;
    }
    const struct pkv_row_span *span =
        pkvi_cuda_span_of_row(PKV_AT(const struct pkv_row_span, args.spans), args.span_count, row);
    if (!span) {
        return;
    }
    const struct pkv_kv_view &view = PKV_AT(const struct pkv_kv_view, args.views)[span->view];
    const uint32_t key = pkvi_cuda_span_key(view, *span) + (row - span->first_row);
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    uint8_t *entry =
        pkvi_cuda_page(view, head, key / PKV_PAGE_TOKENS) + key % PKV_PAGE_TOKENS * entry_bytes;
    const float *k = PKV_AT(const float, args.k) + (uint64_t)row * args.k_stride;
    const float *v = PKV_AT(const float, args.v) + (uint64_t)row * args.v_stride;
    store(args.kv_type, k + head * args.head_dim, args.head_dim, entry);
    store(args.kv_type, v + head * args.head_dim, args.head_dim, entry + entry_bytes / 2);
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_append *args = (const struct pkv_args_append *)arguments;
    const uint64_t warps = (uint64_t)args->rows * args->kv_heads;
    if (warps == 0) {
        return PKV_OK;
    }
    const uint64_t blocks = (warps + THREADS / 32 - 1) / (THREADS / 32);
    PKV_LAUNCH(append, (unsigned)blocks, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of append");
}

const struct pkv_kernel pkvi_kernel_append_cuda = {
    PKV_OP_APPEND, "cuda", 0, sizeof(struct pkv_args_append), launch, pkvi_cost_append,
};
