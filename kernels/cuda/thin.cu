/*
 * thin.cu: a zone of entries is thinned out, a block a KV head, each of which chooses anew, all the
 * same; twin of kernels/ref/thin.c, to the bit. A key's rank is how many are before it; a hole's
 * and a mover's number are counts too. Then a warp an entry.
 */
#include "kernels/cost.h"
#include "kernels/cuda/kv.cuh"

#define THREADS 256u
#define WARPS (THREADS / 32)

/* What all KV heads together give a key; twin of sum_of() there. */
static __device__ __forceinline__ float sum_of(const struct pkv_args_thin &args, uint32_t key)
{
    float plain = 0.0f, weighted = 0.0f;
    for (uint32_t h = 0; h < args.kv_heads; h++) {
        const uint64_t at = (uint64_t)h * args.view.score_stride + key;
        plain = __fadd_rn(plain, PKV_AT(const float, args.view.score)[at]);
        weighted = __fadd_rn(weighted, PKV_AT(const float, args.weighted)[at]);
    }
    const float sum =
        __fadd_rn(__fmul_rn(args.scale, plain), __fmul_rn(args.weighted_scale, weighted));
    return isnan(sum) ? -INFINITY : sum;
}

static __device__ __forceinline__ bool is_dropped(const struct pkv_args_thin &args,
                                                  const uint32_t *dropped, uint32_t key)
{
    return key >= args.zone_first && key < args.zone_first + args.zone &&
           dropped[key - args.zone_first] != 0;
}

/* Of the keys [begin, end) those that are dropped, or are not. */
static __device__ uint32_t count_of(const struct pkv_args_thin &args, const uint32_t *dropped,
                                    uint32_t begin, uint32_t end, bool wanted)
{
    uint32_t count = 0;
    for (uint32_t key = begin; key < end; key++) {
        count += is_dropped(args, dropped, key) == wanted;
    }
    return count;
}

static __global__ void __launch_bounds__(THREADS) thin(struct pkv_args_thin args)
{
    PKV_SHARED(float, sum, [PKV_THIN_MOST]);
    PKV_SHARED(uint32_t, dropped, [PKV_THIN_MOST]);
    PKV_SHARED(uint32_t, hole, [PKV_THIN_MOST]);
    PKV_SHARED(uint32_t, mover, [PKV_THIN_MOST]);
    const uint32_t head = blockIdx.x, begin = args.first_key + (args.zone - args.stay);
    const uint32_t zone_end = args.zone_first + args.zone;
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    for (uint32_t i = threadIdx.x; i < args.zone; i += THREADS) {
        sum[i] = sum_of(args, args.zone_first + i);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.zone; i += THREADS) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < args.zone; j++) {
            better += sum[j] > sum[i] || (sum[j] == sum[i] && j < i);
        }
        dropped[i] = better >= args.stay;
    }
    __syncthreads();
    const uint32_t first_hole = max(begin, args.zone_first);
    for (uint32_t key = first_hole + threadIdx.x; key < zone_end; key += THREADS) {
        if (is_dropped(args, dropped, key)) {
            hole[count_of(args, dropped, first_hole, key, true)] = key;
        }
    }
    for (uint32_t key = args.first_key + threadIdx.x; key < begin; key += THREADS) {
        if (!is_dropped(args, dropped, key)) {
            mover[count_of(args, dropped, args.first_key, key, false)] = key;
        }
    }
    __syncthreads();
    const uint32_t movers = count_of(args, dropped, args.first_key, begin, false);
    for (uint32_t i = threadIdx.x / 32; i < movers; i += WARPS) {
        pkvi_cuda_copy_entry(pkvi_cuda_page(args.view, head, hole[i] / PKV_PAGE_TOKENS) +
                                 hole[i] % PKV_PAGE_TOKENS * entry_bytes,
                             pkvi_cuda_page(args.view, head, mover[i] / PKV_PAGE_TOKENS) +
                                 mover[i] % PKV_PAGE_TOKENS * entry_bytes,
                             entry_bytes);
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_thin *args = (const struct pkv_args_thin *)arguments;
    if (args->kv_heads == 0 || args->stay >= args->zone) {
        return PKV_OK;
    }
    PKV_LAUNCH(thin, args->kv_heads, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of thin");
}

const struct pkv_kernel pkvi_kernel_thin_cuda = {
    PKV_OP_THIN, "cuda", 0, sizeof(struct pkv_args_thin), launch, pkvi_cost_thin,
};
