/* kv.cuh: where entries of sequences lie, in kernels; twin of kernels/kv_view.h. */
#ifndef PKV_CUDA_KV_CUH
#define PKV_CUDA_KV_CUH

#include "kernels/addr.h"
#include "kernels/cuda/device.cuh"
#include "kernels/kernels.h"

/* As pkvi_kv_entry_bytes(). */
static __device__ __forceinline__ uint32_t pkvi_cuda_entry_bytes(enum pkv_kv_type type,
                                                                 uint32_t head_dim)
{
    return type == PKV_KV_F32    ? 8 * head_dim
           : type == PKV_KV_Q8_0 ? 2 * (head_dim + head_dim / 32 * 2)
                                 : 4 * head_dim;
}

/* Key of a span's first row. */
static __device__ __forceinline__ uint32_t pkvi_cuda_span_key(const struct pkv_kv_view &view,
                                                              const struct pkv_row_span &span)
{
    return span.first_position - view.key_shift;
}

/* First key of a KV head that is there. */
static __device__ __forceinline__ uint32_t pkvi_cuda_view_first_key(const struct pkv_kv_view &view,
                                                                    uint32_t kv_head)
{
    const uint32_t *first_key = PKV_AT(const uint32_t, view.first_key); /* before the branch: LDG */
    return first_key ? first_key[kv_head] : 0;
}

/* The page `page` of a sequence, in its view. */
static __device__ __forceinline__ uint8_t *pkvi_cuda_page(const struct pkv_kv_view &view,
                                                          uint32_t kv_head, uint32_t page)
{
    const uint64_t at = (uint64_t)(page % view.ring_pages) * view.page_stride +
                        (uint64_t)kv_head * view.head_stride;
    return PKV_AT(uint8_t, PKV_AT(const pkv_addr, view.page)[at]);
}

/* The same where a tile holds the pages before the view's first. */
static __device__ __forceinline__ const uint8_t *
pkvi_cuda_page_or_tile(const struct pkv_kv_view &view, const struct pkv_kv_tile &tile,
                       uint32_t kv_head, uint32_t page)
{
    if (page >= view.first_page) {
        return pkvi_cuda_page(view, kv_head, page);
    }
    const uint64_t at = (uint64_t)(page - tile.first_page) * tile.page_stride + kv_head;
    return PKV_AT(const uint8_t, PKV_AT(const pkv_addr, tile.page)[at]);
}

/* `bytes` from one multiple of sizeof(WORD) to another, by a warp. */
template <class WORD>
static __device__ __forceinline__ void pkvi_cuda_copy_words(uint8_t *to, const uint8_t *from,
                                                            uint32_t bytes)
{
    for (uint32_t i = threadIdx.x % 32; i < bytes / sizeof(WORD); i += 32) {
        ((WORD *)to)[i] = ((const WORD *)from)[i];
    }
}

/* An entry, by a warp: pages start at multiples of 16 bytes, entries are multiples of 4. */
static __device__ __forceinline__ void pkvi_cuda_copy_entry(uint8_t *to, const uint8_t *from,
                                                            uint32_t entry_bytes)
{
    if (entry_bytes % 16 == 0) {
        pkvi_cuda_copy_words<uint4>(to, from, entry_bytes);
    } else if (entry_bytes % 8 == 0) {
        pkvi_cuda_copy_words<uint2>(to, from, entry_bytes);
    } else {
        pkvi_cuda_copy_words<unsigned>(to, from, entry_bytes);
    }
}

/* The span that holds a row of the step, or NULL. All lanes of a warp call, with the same row. */
static __device__ __forceinline__ const struct pkv_row_span *
pkvi_cuda_span_of_row(const struct pkv_row_span *spans, uint32_t count, uint32_t row)
{
    for (uint32_t first = 0; first < count; first += 32) {
        const uint32_t i = first + threadIdx.x % 32;
        const bool here = i < count && row - spans[i].first_row < spans[i].rows;
        const unsigned found = __ballot_sync(PKV_WARP_ALL, here);
        if (found) {
            return spans + first + __ffs((int)found) - 1;
        }
    }
    return NULL;
}

#endif
