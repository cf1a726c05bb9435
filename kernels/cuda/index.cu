/*
 * index.cu: index pages of blocks that are full, a block of threads a page; twin of
 * kernels/ref/index.c, to the bit. K of some tokens goes to shared memory as it is, in whole lines:
 * it may lie in host memory. Then a lane has a token, a warp a word of each.
 */
#include "kernels/cost.h"
#include "kernels/cuda/kv.cuh"

#define THREADS 256u
#define WARPS (THREADS / 32)
#define TILE_WORDS (PKV_PAGE_TOKENS * 129u) /* a page of 512 bytes a key */

/* One load of either table, no choice of pointers: LDG. */
static __device__ __forceinline__ const uint8_t *
page_of(const struct pkv_args_index &args, uint32_t block, uint32_t head, uint32_t entry_bytes)
{
    const struct pkv_kv_view &view = args.from;
    const bool here = block >= view.first_page;
    const uint32_t page = (block - view.key_shift / PKV_PAGE_TOKENS) % view.ring_pages;
    const uint64_t of_view = (uint64_t)page * view.page_stride + (uint64_t)head * view.head_stride;
    const pkv_addr *table = PKV_AT(const pkv_addr, here ? view.page : args.blocks);
    const uint64_t skip = here ? 0 : (uint64_t)head * PKV_PAGE_TOKENS * entry_bytes;
    return PKV_AT(const uint8_t, table[here ? of_view : block] + skip);
}

static __device__ __forceinline__ uint16_t half_of(const uint32_t *words, uint32_t i)
{
    return (uint16_t)(words[i / 2] >> i % 2 * 16);
}

/* Value i of K. */
static __device__ __forceinline__ float value_of(enum pkv_kv_type type, const uint32_t *k,
                                                 uint32_t head_dim, uint32_t i)
{
    if (type == PKV_KV_F32) {
        return __uint_as_float(k[i]);
    }
    if (type == PKV_KV_Q8_0) {
        const float scale = pkvi_cuda_f16_to_f32(half_of(k, head_dim / 2 + i / 32));
        return __fmul_rn((float)(int8_t)(k[i / 4] >> i % 4 * 8), scale);
    }
    return type == PKV_KV_F16 ? pkvi_cuda_f16_to_f32(half_of(k, i))
                              : pkvi_cuda_bf16_to_f32(half_of(k, i));
}

/* A word of a token's code. */
static __device__ __forceinline__ uint32_t word_of(const struct pkv_args_index &args, uint32_t head,
                                                   uint32_t word, const uint32_t *k)
{
    const struct pkv_index &index = args.index;
    const uint32_t channels = 32 / index.bits;
    const uint32_t at = head * index.channels + word * channels;
    const float half = index.bits == 8 ? 127.5f : 7.5f;
    uint32_t codes = 0;
    for (uint32_t i = 0; i < channels; i++) {
        const float value =
            value_of(args.kv_type, k, args.head_dim, PKV_AT(const uint16_t, index.channel)[at + i]);
        const float centred = __fsub_rn(value, PKV_AT(const float, index.mean)[at + i]);
        const float scaled = __fdiv_rn(centred, PKV_AT(const float, index.step)[at + i]);
        const float code = rintf(__fadd_rn(scaled, half));
        codes |= (uint32_t)fminf(fmaxf(code, 0.0f), 2.0f * half) << (i % 4 * 8 + i / 4 * 4);
    }
    return codes;
}

static __global__ void __launch_bounds__(THREADS) index_pages(struct pkv_args_index args)
{
    PKV_SHARED(uint32_t, keys, [TILE_WORDS]);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t block = args.first_block + blockIdx.x / args.kv_heads;
    const uint32_t head = blockIdx.x % args.kv_heads;
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    const uint32_t words = (entry_bytes / 2 + 3) / 4, stride = words | 1; /* no bank conflicts */
    const uint32_t most = min(TILE_WORDS / stride, PKV_PAGE_TOKENS);
    const uint32_t page_words = args.index.channels * args.index.bits / 32;
    const uint8_t *from = page_of(args, block, head, entry_bytes);
    uint32_t *page = PKV_AT(uint32_t, args.pages) +
                     ((uint64_t)block * args.kv_heads + head) * PKV_PAGE_TOKENS * page_words;
    for (uint32_t first = 0; first < PKV_PAGE_TOKENS; first += most) {
        const uint32_t count = min(PKV_PAGE_TOKENS - first, most);
        for (uint32_t t = warp; t < count; t += WARPS) {
            const uint32_t *entry = (const uint32_t *)(from + (first + t) * entry_bytes);
#pragma unroll 4
            for (uint32_t i = lane; i < words; i += 32) {
                keys[t * stride + i] = entry[i];
            }
        }
        __syncthreads();
        for (uint32_t word = warp; word < page_words; word += WARPS) {
            if (lane < count) {
                page[word * PKV_PAGE_TOKENS + first + lane] =
                    word_of(args, head, word, keys + lane * stride);
            }
        }
        __syncthreads();
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_index *args = (const struct pkv_args_index *)arguments;
    const uint32_t blocks = (args->end_block - args->first_block) * args->kv_heads;
    if (blocks == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(index_pages, blocks, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of index");
}

const struct pkv_kernel pkvi_kernel_index_cuda = {
    PKV_OP_INDEX, "cuda",          PKV_CAP_READS_HOST, sizeof(struct pkv_args_index),
    launch,       pkvi_cost_index,
};
