/*
 * recall.cu: what PREDICT found comes into the slots; twin of kernels/ref/recall.c, its choices to
 * the bit. A block has a KV head of a span from the first choice to the last byte: the best of all
 * chunks, the slots with the least keys, then entries from host memory in order of their address,
 * each thread with several loads of 16 bytes on their way. Few blocks: the link is the bound, and
 * multiprocessors belong to who computes meanwhile.
 */
#include "kernels/cost.h"
#include "kernels/cuda/recall.cuh"

#define THREADS 512u
#define WARPS (THREADS / 32)
#define MOST_BLOCKS 16u
#define BATCH 4u /* loads of a thread on their way together */

struct unit {
    struct pkvi_cuda_recall recall;
    uint32_t kv_head, chunks; /* chunks: with tokens */
    uint32_t first_slot;      /* slots that tokens are in begin here */
    float *key;               /* of slots, then the ring */
    int32_t *token;           /* of slots */
    int32_t *swap;
};

static __device__ struct unit unit_of(const struct pkv_args_recall &args, uint32_t number)
{
    const struct pkv_recall_state &state = args.state;
    struct unit unit;
    unit.kv_head = number % args.kv_heads;
    unit.recall = pkvi_cuda_recall_of(args, number / args.kv_heads, unit.kv_head);
    unit.chunks = (unit.recall.tokens + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
    unit.first_slot = pkvi_cuda_view_first_key(*unit.recall.view, unit.kv_head);
    unit.key = PKV_AT(float, unit.recall.view->score) +
               (uint64_t)unit.kv_head * unit.recall.view->score_stride;
    unit.token = pkvi_cuda_recall_part<int32_t>(unit.recall, state.slot_token) +
                 (uint64_t)unit.kv_head * state.slots;
    unit.swap = pkvi_cuda_recall_part<int32_t>(unit.recall, state.swap) +
                (uint64_t)unit.kv_head * state.cap * 2;
    return unit;
}

static __device__ void start(const struct pkv_args_recall &args, const struct unit &unit)
{
    for (uint32_t i = threadIdx.x; i < args.state.blocks; i += THREADS) {
        unit.recall.resident[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = unit.first_slot + threadIdx.x; i < args.state.slots; i += THREADS) {
        pkvi_cuda_set_bit(unit.recall.resident, (uint32_t)unit.token[i]);
    }
}

static __device__ void update_keys(const struct pkv_args_recall &args, const struct unit &unit)
{
    const float *p = unit.recall.p;
    const uint32_t slots = args.state.slots, ring = unit.recall.ring;
    const uint32_t end = unit.recall.span->first_position - ring; /* tokens of the ring */
    for (uint32_t i = unit.first_slot + threadIdx.x; i < slots; i += THREADS) {
        unit.key[i] = __fadd_rn(__fmul_rn(args.decay, unit.key[i]), p[(uint32_t)unit.token[i]]);
    }
    for (uint32_t i = threadIdx.x; i < end; i += THREADS) {
        float *key = &unit.key[slots + i];
        *key = ring + i < unit.recall.tokens ? __fadd_rn(__fmul_rn(args.decay, *key), p[ring + i])
                                             : 0.0f;
    }
}

/* Values of which the least are wanted. */
struct negated {
    const float *value;

    __device__ __forceinline__ float operator[](uint32_t i) const
    {
        return -value[i];
    }
};

/* Who comes, who goes, by their order, in shared memory. */
struct choice {
    float *best, *least; /* least: negated */
    int32_t *come;       /* place among the best of all chunks, then token */
    int32_t *go;         /* slot, from the first one on */
    uint32_t *count;     /* [1] */
};

/* The best that are missing against the slots with the least keys; count: how many change. */
static __device__ void choose(const struct pkv_args_recall &args, const struct unit &unit,
                              const struct pkvi_cuda_best_room &room, const struct choice &choice)
{
    const uint32_t cap = args.state.cap, all = unit.chunks * cap;
    const uint32_t wanted = min(cap, all), slots = args.state.slots - unit.first_slot;
    if (threadIdx.x == 0) {
        *choice.count = min(wanted, slots);
    }
    __syncthreads();
    pkvi_cuda_best<THREADS>((const float *)unit.recall.best, all, wanted, room, choice.best,
                            choice.come);
    pkvi_cuda_best<THREADS>(negated{unit.key + unit.first_slot}, slots, min(wanted, slots), room,
                            choice.least, choice.go);
    for (uint32_t i = threadIdx.x; i < min(wanted, slots); i += THREADS) {
        const int32_t token = unit.recall.best_token[(uint32_t)choice.come[i]];
        choice.come[i] = token;
        if (token < 0 || !(choice.best[i] > __fmul_rn(args.hysteresis, -choice.least[i]))) {
            atomicMin(choice.count, i);
        }
    }
    __syncthreads();
}

/* An entry's way. */
struct copy {
    pkv_addr from, to;
};

struct by_address {
    struct copy *copies;

    __device__ __forceinline__ bool before(uint32_t a, uint32_t b) const
    {
        return copies[a].from < copies[b].from;
    }

    __device__ __forceinline__ void swap(uint32_t a, uint32_t b) const
    {
        const struct copy of_a = copies[a];
        copies[a] = copies[b];
        copies[b] = of_a;
    }
};

/* Number i takes its slot. */
static __device__ struct copy swap_in(const struct pkv_args_recall &args, const struct unit &unit,
                                      const struct choice &choice, uint32_t i)
{
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    const uint32_t slot = unit.first_slot + (uint32_t)choice.go[i], came = (uint32_t)choice.come[i];
    const int32_t went = unit.token[slot];
    unit.swap[2 * i] = (int32_t)came;
    unit.swap[2 * i + 1] = went;
    pkvi_cuda_clear_bit(unit.recall.resident, (uint32_t)went);
    pkvi_cuda_set_bit(unit.recall.resident, came);
    unit.token[slot] = (int32_t)came;
    unit.key[slot] = choice.best[i];
    const pkv_addr *blocks =
        PKV_AT(const pkv_addr, args.blocks) + unit.recall.span->view * args.blocks_stride;
    const uint8_t *page = pkvi_cuda_page(*unit.recall.view, unit.kv_head, slot / PKV_PAGE_TOKENS);
    const uint64_t entry = (uint64_t)unit.kv_head * PKV_PAGE_TOKENS + came % PKV_PAGE_TOKENS;
    return {blocks[came / PKV_PAGE_TOKENS] + entry * entry_bytes,
            (pkv_addr)(page + slot % PKV_PAGE_TOKENS * entry_bytes)};
}

template <class WORD>
static __device__ void fetch_words(const struct copy *copies, uint32_t count, uint32_t words)
{
    for (uint32_t first = threadIdx.x; first < count * words; first += BATCH * THREADS) {
        WORD word[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            const uint32_t i = first + j * THREADS;
            if (i < count * words) {
                word[j] = __ldcs(PKV_AT(const WORD, copies[i / words].from) + i % words);
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            const uint32_t i = first + j * THREADS;
            if (i < count * words) {
                PKV_AT(WORD, copies[i / words].to)[i % words] = word[j];
            }
        }
    }
}

/* Pages start at multiples of 16 bytes, entries are multiples of 4. */
static __device__ void fetch(const struct pkv_args_recall &args, const struct copy *copies,
                             uint32_t count)
{
    const uint32_t entry_bytes = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
    if (entry_bytes % sizeof(uint4) == 0) {
        fetch_words<uint4>(copies, count, entry_bytes / (uint32_t)sizeof(uint4));
    } else {
        fetch_words<unsigned>(copies, count, entry_bytes / (uint32_t)sizeof(unsigned));
    }
}

static __global__ void __launch_bounds__(THREADS, 2) recall(struct pkv_args_recall args)
{
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]);
    PKV_SHARED(uint32_t, part, [WARPS]);
    PKV_SHARED(struct pkvi_cuda_select, found, [1]);
    PKV_SHARED(float, value, [2][PKV_RECALL_CAP]);
    PKV_SHARED(int32_t, place, [2][PKV_RECALL_CAP]);
    PKV_SHARED(struct copy, copies, [PKV_RECALL_CAP]);
    PKV_SHARED(uint32_t, change, [1]);
    for (uint32_t number = blockIdx.x; number < args.span_count * args.kv_heads;
         number += gridDim.x) {
        const struct unit unit = unit_of(args, number);
        uint32_t count = 0;
        if (args.start) {
            start(args, unit);
        } else {
            const struct choice choice = {value[0], value[1], place[0], place[1], change};
            update_keys(args, unit);
            choose(args, unit, {bins, part, found}, choice);
            count = *change;
            for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
                copies[i] = swap_in(args, unit, choice, i);
            }
            pkvi_cuda_sort<THREADS>(by_address{copies}, count);
            __syncthreads();
            fetch(args, copies, count);
        }
        for (uint32_t i = 2 * count + threadIdx.x; i < 2 * args.state.cap; i += THREADS) {
            unit.swap[i] = -1;
        }
        if (count > 0 && threadIdx.x == 0) {
            atomicAdd(PKV_AT(uint32_t, args.counter) + unit.kv_head, count);
        }
        __syncthreads();
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_recall *args = (const struct pkv_args_recall *)arguments;
    const uint32_t units = args->span_count * args->kv_heads;
    if (units == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(recall, units < MOST_BLOCKS ? units : MOST_BLOCKS, THREADS, 0,
               pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of recall");
}

const struct pkv_kernel pkvi_kernel_recall_cuda = {
    PKV_OP_RECALL, "cuda",           PKV_CAP_READS_HOST, sizeof(struct pkv_args_recall),
    launch,        pkvi_cost_recall,
};
