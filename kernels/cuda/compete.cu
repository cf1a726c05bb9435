/*
 * compete.cu: tokens that leave the ring compete with a hot set's slots, a block a KV head; twin of
 * kernels/ref/compete.c, to the bit. Free slots go to the first tokens at once. Then token by
 * token: a thread knows the least of its slots, and looks at them again only when one of them is
 * taken. Entries are copied last, so that of several tokens that take a slot only the last one is.
 */
#include "kernels/cost.h"
#include "kernels/cuda/kv.cuh"

#define THREADS 256u
#define WARPS (THREADS / 32)
#define BATCH 128u /* tokens whose slots are kept until their entries are copied */
#define NO_SLOT UINT32_MAX

struct least {
    float score;
    uint32_t slot;
};

static __device__ __forceinline__ struct least lesser(const struct least &a, const struct least &b)
{
    return b.score < a.score || (b.score == a.score && b.slot < a.slot) ? b : a;
}

/* Of this thread's slots of [begin, end); NO_SLOT, and a score that nothing exceeds, if none. */
static __device__ struct least least_of_mine(const float *score, uint32_t begin, uint32_t end)
{
    struct least least = {INFINITY, NO_SLOT};
    for (uint32_t slot = begin + threadIdx.x; slot < end; slot += THREADS) {
        least = lesser(least, {score[slot], slot});
    }
    return least;
}

/* Of the block, in each of its threads. part: one a warp, not the last call's. */
static __device__ __forceinline__ struct least least_of_all(struct least least, struct least *part)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        const float score = __shfl_xor_sync(PKV_WARP_ALL, least.score, distance);
        const uint32_t slot = __shfl_xor_sync(PKV_WARP_ALL, least.slot, distance);
        least = lesser(least, {score, slot});
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = least;
    }
    __syncthreads();
    least = part[0];
    for (uint32_t warp = 1; warp < WARPS; warp++) {
        least = lesser(least, part[warp]);
    }
    return least;
}

/* A token takes a slot from another, or a free one (-1): of those that threads mark at once none is
 * marked by two. */
static __device__ void take(const struct pkv_args_compete &args, int32_t *slot_token, uint32_t came)
{
    const int32_t went = *slot_token;
    *slot_token = (int32_t)came;
    if (args.resident) {
        uint32_t *resident =
            PKV_AT(uint32_t, args.resident) + (uint64_t)blockIdx.x * args.resident_stride;
        if (went >= 0) {
            pkvi_cuda_clear_bit(resident, (uint32_t)went);
        }
        pkvi_cuda_set_bit(resident, came);
    }
}

/* The entries of tokens [first, first + count) to the slots they took, where none took it later. */
static __device__ void copy(const struct pkv_args_compete &args, const uint32_t *taken,
                            uint32_t first, uint32_t count)
{
    const uint32_t head = blockIdx.x;
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    for (uint32_t i = threadIdx.x / 32; i < count; i += WARPS) {
        const uint32_t slot = taken[i], key = args.slots + first + i;
        bool last = slot != NO_SLOT;
        for (uint32_t j = i + 1; j < count; j++) {
            last = last && taken[j] != slot;
        }
        if (last) {
            pkvi_cuda_copy_entry(pkvi_cuda_page(args.hot, head, slot / PKV_PAGE_TOKENS) +
                                     slot % PKV_PAGE_TOKENS * entry_bytes,
                                 pkvi_cuda_page(args.hot, head, key / PKV_PAGE_TOKENS) +
                                     key % PKV_PAGE_TOKENS * entry_bytes,
                                 entry_bytes);
        }
    }
}

/* Scores of the ring that stays move down. */
static __device__ void move_down(float *ring, uint32_t leave, uint32_t tokens)
{
    for (uint32_t first = leave; first < tokens; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const float value = i < tokens ? ring[i] : 0.0f;
        __syncthreads();
        if (i < tokens) {
            ring[i - leave] = value;
        }
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS) compete(struct pkv_args_compete args)
{
    PKV_SHARED(uint32_t, taken, [BATCH]);
    PKV_SHARED(struct least, part, [2][WARPS]);
    const uint32_t head = blockIdx.x, begin = PKV_AT(const uint32_t, args.least_key)[head];
    const uint32_t first_key = pkvi_cuda_view_first_key(args.hot, head);
    const uint32_t room = first_key > begin ? first_key - begin : 0;
    const uint32_t free_slots = min(room, args.leave);
    float *score = PKV_AT(float, args.hot.score) + (uint64_t)head * args.hot.score_stride;
    const float *ring = score + args.slots;
    int32_t *token = PKV_AT(int32_t, args.slot_token) + (uint64_t)head * args.slots;
    for (uint32_t i = threadIdx.x; i < free_slots; i += THREADS) {
        score[first_key - 1 - i] = ring[i];
        take(args, &token[first_key - 1 - i], args.first_token + i);
    }
    __syncthreads();
    /* Slots are all there once a token has to compete. */
    struct least mine = {INFINITY, NO_SLOT};
    if (free_slots < args.leave) {
        mine = least_of_mine(score, begin, args.slots);
    }
    for (uint32_t first = 0; first < args.leave; first += BATCH) {
        const uint32_t count = min(args.leave - first, BATCH);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t number = first + i;
            uint32_t slot = number < free_slots ? first_key - 1 - number : NO_SLOT;
            if (number >= free_slots) {
                const struct least least = least_of_all(mine, part[i % 2]);
                const float own = ring[number];
                slot = own > least.score ? least.slot : NO_SLOT;
                if (slot != NO_SLOT && (slot - begin) % THREADS == threadIdx.x) {
                    score[slot] = own;
                    take(args, &token[slot], args.first_token + number);
                    mine = least_of_mine(score, begin, args.slots);
                }
            }
            if (threadIdx.x == 0) {
                taken[i] = slot;
            }
        }
        __syncthreads();
        copy(args, taken, first, count);
        __syncthreads();
    }
    move_down(score + args.slots, args.leave, args.tokens);
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_compete *args = (const struct pkv_args_compete *)arguments;
    if (args->kv_heads == 0 || args->leave == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(compete, args->kv_heads, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of compete");
}

const struct pkv_kernel pkvi_kernel_compete_cuda = {
    PKV_OP_COMPETE, "cuda", 0, sizeof(struct pkv_args_compete), launch, pkvi_cost_compete,
};
