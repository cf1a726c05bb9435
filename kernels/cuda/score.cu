/*
 * score.cu: how much rows attend to keys; twin of kernels/ref/score.c. A block takes some keys of a
 * KV head and all rows that count, so that K is read once and a key's sum stays in registers:
 *   score_mma    heads of 64, 128 and 256 channels in 16 bits or q8_0: K in registers as tensor
 *                cores want it, q (f16, as in ATTEND: the scores are its to the bit) through
 *                shared memory, 16 row heads at a time;
 *   score_plain  everything else, in f32: K of a page in shared memory, a lane a key.
 * A row head is a row that counts and one query head of the KV head, by row, then by head. Each
 * lane sums some of them in ascending order, a fixed tree adds up the lanes: bits depend on neither
 * the grid nor on how the keys are cut.
 *
 * A block knows its span by blockIdx.y; of those in x each takes every gridDim.x-th unit.
 */
#include "kernels/cost.h"
#include "kernels/cuda/attend_mma.cuh"

#define THREADS 256u
#define WARPS (THREADS / 32)
#define ROW_HEADS 16u /* of a tile */
#define BLOCKS 2u     /* of a multiprocessor, with tensor cores */
#define PLAIN_THREADS 128u
#define PLAIN_WARPS (PLAIN_THREADS / 32)
#define PLAIN_HEADS 4u /* row heads that share a read of K */
#define PLAIN_BLOCKS 4u

struct unit {
    const struct pkv_kv_view *view;
    uint32_t kv_head, group;
    uint32_t begin, end; /* keys, begin a multiple of a page's tokens */
    uint32_t low;        /* those before are not there */
    uint32_t row;        /* of the step, the first that counts */
    uint32_t row_key;    /* its key */
    uint32_t row_heads;
    uint32_t span_key; /* key of the span's first row */
};

static __device__ bool find(const struct pkv_args_score &args, uint32_t number, uint32_t keys,
                            struct unit *unit)
{
    const struct pkv_row_span &span = PKV_AT(const struct pkv_row_span, args.spans)[blockIdx.y];
    unit->view = PKV_AT(const struct pkv_kv_view, args.views) + span.view;
    unit->span_key = pkvi_cuda_span_key(*unit->view, span);
    const uint32_t last = unit->span_key + span.rows;
    const uint32_t end = args.key_end > 0 && args.key_end < last ? args.key_end : last;
    const uint32_t count = args.key_begin < end ? end - args.key_begin : 0;
    const uint32_t chunks = (count + keys - 1) / keys;
    if (number >= chunks * args.kv_heads) {
        return false;
    }
    const uint32_t skip = args.skip_rows < span.rows ? args.skip_rows : span.rows;
    unit->kv_head = number / chunks;
    unit->group = args.heads / args.kv_heads;
    unit->begin = args.key_begin + number % chunks * keys;
    unit->end = min(end, unit->begin + keys);
    unit->low = max(unit->begin, pkvi_cuda_view_first_key(*unit->view, unit->kv_head));
    unit->row = span.first_row + skip;
    unit->row_key = unit->span_key + skip;
    unit->row_heads = unit->low < unit->end ? (span.rows - skip) * unit->group : 0;
    return true;
}

/* What a row head adds to a key: weight * exp(score - lse), where key <= last. */
struct row_head {
    float lse, weight;
    uint32_t last;
};

static __device__ __forceinline__ struct row_head row_head_of(const struct pkv_args_score &args,
                                                              const struct unit &unit, uint32_t i)
{
    if (i >= unit.row_heads) {
        return {0.0f, 0.0f, 0};
    }
    const uint32_t row = i / unit.group, head = unit.kv_head * unit.group + i % unit.group;
    const float weight = __fmaf_rn((float)row, args.weight_step, args.weight);
    return {PKV_AT(const float, args.lse)[(uint64_t)(unit.row + row) * args.heads + head],
            weight / (float)unit.group, unit.row_key + row};
}

static __device__ __forceinline__ const float *q_of(const struct pkv_args_score &args,
                                                    const struct unit &unit, uint32_t i)
{
    const uint32_t row = unit.row + i / unit.group;
    const uint32_t head = unit.kv_head * unit.group + i % unit.group;
    return PKV_AT(const float, args.q) + (uint64_t)row * args.q_stride +
           (uint64_t)head * args.head_dim;
}

static __device__ __forceinline__ float capped(const struct pkv_args_score &args, float score)
{
    return args.softcap > 0 ? __fmul_rn(args.softcap, tanhf(score / args.softcap)) : score;
}

/* What rows came to, to a key's score. */
static __device__ __forceinline__ void put(const struct pkv_args_score &args,
                                           const struct unit &unit, uint32_t key, float sum)
{
    if (key >= unit.low && key < unit.end) {
        float *out = PKV_AT(float, unit.view->score) +
                     (uint64_t)unit.kv_head * unit.view->score_stride + key;
        const bool fresh = key >= unit.span_key || args.keep == 0.0f;
        *out = fresh ? sum : __fmaf_rn(args.keep, *out, sum);
    }
}

/* Sizes with tensor cores. */
template <uint32_t HEAD_DIM> struct mma_shape {
    static constexpr uint32_t tiles = HEAD_DIM > 128 ? 2 : 4; /* of 8 keys that a warp has */
    static constexpr uint32_t keys = 8 * tiles;               /* all in one page */
    static constexpr uint32_t words = HEAD_DIM / 8;           /* of a lane and tile of keys */
    static constexpr uint32_t q_stride = (HEAD_DIM + 32) / 8; /* uint4: no bank conflicts */
    static constexpr uint32_t pairs = ROW_HEADS * HEAD_DIM / 2 / THREADS; /* of q, of a thread */
};

/* 8 neighbouring channels of a key as f16. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE>
static __device__ __forceinline__ void load8(const uint8_t *k, uint32_t channel, unsigned word[4])
{
    if constexpr (TYPE == PKV_KV_Q8_0) { /* entries start at multiples of 4 */
        const uint16_t bits = *(const uint16_t *)(k + HEAD_DIM + channel / 32 * 2);
        const __half2 scale = __half2half2(__ushort_as_half(bits));
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const unsigned bytes = *(const unsigned *)(k + channel + 4 * i);
            word[2 * i] = pkvi_mma_i8_to_f16(bytes, 0x4140, scale);
            word[2 * i + 1] = pkvi_mma_i8_to_f16(bytes, 0x4342, scale);
        }
    } else {
        const uint4 value = *(const uint4 *)(k + 2 * channel);
        const unsigned all[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            word[i] = TYPE == PKV_KV_BF16 ? pkvi_mma_bf16_to_f16(all[i]) : all[i];
        }
    }
}

/* K of a warp's keys from `first` on, a column of a tile a key; 0 where none is there. Channels go
 * to lanes as in ATTEND: 4 of them read 64 bytes. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE>
static __device__ void load_keys(const struct pkv_args_score &args, const struct unit &unit,
                                 uint32_t first,
                                 unsigned k[mma_shape<HEAD_DIM>::tiles][mma_shape<HEAD_DIM>::words])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint8_t *page =
        pkvi_cuda_page_or_tile(*unit.view, args.tile, unit.kv_head, first / PKV_PAGE_TOKENS);
#pragma unroll
    for (uint32_t n = 0; n < mma_shape<HEAD_DIM>::tiles; n++) {
        const uint32_t key = first + 8 * n + lane / 4;
        const uint8_t *entry = page + key % PKV_PAGE_TOKENS * pkvi_cuda_entry_bytes(TYPE, HEAD_DIM);
#pragma unroll
        for (uint32_t i = 0; i < HEAD_DIM / 32; i++) {
            unsigned *word = k[n] + 4 * i;
            word[0] = word[1] = word[2] = word[3] = 0;
            if (key >= unit.low && key < unit.end) {
                load8<HEAD_DIM, TYPE>(entry, 32 * i + 8 * (lane % 4), word);
            }
        }
    }
}

/* This thread's share of a tile of row heads, on its way to shared memory. */
template <uint32_t HEAD_DIM> struct fetched {
    float2 q[mma_shape<HEAD_DIM>::pairs];
    struct row_head row_head; /* of the first threads */
};

template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void fetch(const struct pkv_args_score &args,
                                             const struct unit &unit, uint32_t first,
                                             struct fetched<HEAD_DIM> *share)
{
#pragma unroll
    for (uint32_t j = 0; j < mma_shape<HEAD_DIM>::pairs; j++) {
        const uint32_t pair = j * THREADS + threadIdx.x, i = first + pair / (HEAD_DIM / 2);
        share->q[j] = make_float2(0.0f, 0.0f);
        if (i < unit.row_heads) {
            const float *q = q_of(args, unit, i) + pair % (HEAD_DIM / 2) * 2;
            share->q[j] = make_float2(__fmul_rn(q[0], args.scale), __fmul_rn(q[1], args.scale));
        }
    }
    if (threadIdx.x < ROW_HEADS) {
        share->row_head = row_head_of(args, unit, first + threadIdx.x);
    }
}

template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void store(const struct fetched<HEAD_DIM> &share, uint4 *q,
                                             struct row_head *row_heads)
{
#pragma unroll
    for (uint32_t j = 0; j < mma_shape<HEAD_DIM>::pairs; j++) {
        const uint32_t pair = j * THREADS + threadIdx.x, i = pair / (HEAD_DIM / 2);
        unsigned *row = (unsigned *)(q + i * mma_shape<HEAD_DIM>::q_stride);
        row[pair % (HEAD_DIM / 2)] =
            pkvi_cuda_f32_to_f16x2(fminf(fmaxf(share.q[j].x, -65504.0f), 65504.0f),
                                   fminf(fmaxf(share.q[j].y, -65504.0f), 65504.0f));
    }
    if (threadIdx.x < ROW_HEADS) {
        row_heads[threadIdx.x] = share.row_head;
    }
}

/* What a tile of row heads adds to a warp's keys: this lane's columns, of rows lane / 4 and 8 on.
 */
template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void
add_tile(const struct pkv_args_score &args, const uint4 *q, const struct row_head *row_heads,
         const unsigned k[mma_shape<HEAD_DIM>::tiles][mma_shape<HEAD_DIM>::words], uint32_t first,
         float sum[mma_shape<HEAD_DIM>::tiles][2])
{
    using SHAPE = mma_shape<HEAD_DIM>;
    const uint32_t row = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    float score[SHAPE::tiles][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < HEAD_DIM / 32; i++) {
        const uint4 low = q[row * SHAPE::q_stride + 4 * i + part];
        const uint4 high = q[(row + 8) * SHAPE::q_stride + 4 * i + part];
        const unsigned a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::tiles; n++) {
            pkvi_mma_m16n8k16(score[n], a[0], k[n] + 4 * i);
            pkvi_mma_m16n8k16(score[n], a[1], k[n] + 4 * i + 2);
        }
    }
    if (args.softcap > 0) {
#pragma unroll
        for (uint32_t i = 0; i < 4 * SHAPE::tiles; i++) {
            score[i / 4][i % 4] = capped(args, score[i / 4][i % 4]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const struct row_head mine = row_heads[row + 8 * r];
        const float shift = __fmul_rn(mine.lse, -PKV_LOG2E);
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::tiles; n++) {
#pragma unroll
            for (uint32_t side = 0; side < 2; side++) {
                const float p = exp2f(__fmaf_rn(score[n][2 * r + side], PKV_LOG2E, shift));
                const float seen = first + 8 * n + 2 * part + side <= mine.last ? p : 0.0f;
                sum[n][side] = __fmaf_rn(seen, mine.weight, sum[n][side]);
            }
        }
    }
}

/* Rows of a tile are added up: the row of that number among 8 writes a tile of keys. */
template <uint32_t TILES>
static __device__ __forceinline__ void put_keys(const struct pkv_args_score &args,
                                                const struct unit &unit, uint32_t first,
                                                float sum[TILES][2])
{
    const uint32_t row = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < TILES; n++) {
#pragma unroll
        for (uint32_t side = 0; side < 2; side++) {
            float all = sum[n][side];
            all += __shfl_xor_sync(PKV_WARP_ALL, all, 4);
            all += __shfl_xor_sync(PKV_WARP_ALL, all, 8);
            all += __shfl_xor_sync(PKV_WARP_ALL, all, 16);
            if (row == n) {
                put(args, unit, first + 8 * n + 2 * part + side, all);
            }
        }
    }
}

template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE>
static __global__ void __launch_bounds__(THREADS, BLOCKS) score_mma(struct pkv_args_score args)
{
    using SHAPE = mma_shape<HEAD_DIM>;
    PKV_SHARED(uint4, q, [2][ROW_HEADS * SHAPE::q_stride]);
    PKV_SHARED(struct row_head, row_heads, [2][ROW_HEADS]);
    struct unit unit;
    for (uint32_t number = blockIdx.x; find(args, number, WARPS * SHAPE::keys, &unit);
         number += gridDim.x) {
        const uint32_t first = unit.begin + threadIdx.x / 32 * SHAPE::keys;
        const bool some = first < unit.end && first + SHAPE::keys > unit.low;
        unsigned k[SHAPE::tiles][SHAPE::words];
        float sum[SHAPE::tiles][2] = {};
        struct fetched<HEAD_DIM> share;
        if (some) {
            load_keys<HEAD_DIM, TYPE>(args, unit, first, k);
        }
        const uint32_t tiles = (unit.row_heads + ROW_HEADS - 1) / ROW_HEADS;
        fetch<HEAD_DIM>(args, unit, 0, &share);
        for (uint32_t tile = 0; tile < tiles; tile++) {
            store<HEAD_DIM>(share, q[tile % 2], row_heads[tile % 2]);
            __syncthreads(); /* once a tile: two of them lie in shared memory */
            if (tile + 1 < tiles) {
                fetch<HEAD_DIM>(args, unit, (tile + 1) * ROW_HEADS, &share);
            }
            if (some) {
                add_tile<HEAD_DIM>(args, q[tile % 2], row_heads[tile % 2], k, first, sum);
            }
        }
        if (some) {
            put_keys<SHAPE::tiles>(args, unit, first, sum);
        }
        __syncthreads();
    }
}

/* Value i of K. */
static __device__ __forceinline__ float load1(enum pkv_kv_type type, const uint8_t *k,
                                              uint32_t head_dim, uint32_t i)
{
    if (type == PKV_KV_F32) {
        return ((const float *)k)[i];
    }
    if (type == PKV_KV_Q8_0) {
        return (float)(int8_t)k[i] *
               pkvi_cuda_f16_to_f32(*(const uint16_t *)(k + head_dim + i / 32 * 2));
    }
    const uint16_t bits = ((const uint16_t *)k)[i];
    return type == PKV_KV_F16 ? pkvi_cuda_f16_to_f32(bits) : pkvi_cuda_bf16_to_f32(bits);
}

/* Where value i of a page's key lies: lanes meet no bank conflict along keys, nor along values. */
static __device__ __forceinline__ uint32_t place_of(uint32_t key, uint32_t i)
{
    return i * PKV_PAGE_TOKENS + (key + i) % PKV_PAGE_TOKENS;
}

/* K of a page; 0 where no key is there. */
static __device__ void load_page(const struct pkv_args_score &args, const struct unit &unit,
                                 float *k)
{
    const uint8_t *page =
        pkvi_cuda_page_or_tile(*unit.view, args.tile, unit.kv_head, unit.begin / PKV_PAGE_TOKENS);
    for (uint32_t i = threadIdx.x / 32; i < PKV_PAGE_TOKENS; i += PLAIN_WARPS) {
        const uint8_t *entry = page + i * pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
        const bool there = unit.begin + i >= unit.low && unit.begin + i < unit.end;
        for (uint32_t c = threadIdx.x % 32; c < args.head_dim; c += 32) {
            k[place_of(i, c)] = there ? load1(args.kv_type, entry, args.head_dim, c) : 0.0f;
        }
    }
}

/* What some row heads from `first` on add to this lane's key. */
static __device__ float add_heads(const struct pkv_args_score &args, const struct unit &unit,
                                  const float *k, uint32_t first, float sum)
{
    const uint32_t lane = threadIdx.x % 32;
    const float *q[PLAIN_HEADS];
    float dot[PLAIN_HEADS] = {};
#pragma unroll
    for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
        q[h] = q_of(args, unit, min(first + h, unit.row_heads - 1));
    }
    for (uint32_t c = 0; c < args.head_dim; c++) {
        const float value = k[place_of(lane, c)];
#pragma unroll
        for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
            dot[h] = __fmaf_rn(q[h][c], value, dot[h]);
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
        const struct row_head mine = row_head_of(args, unit, first + h);
        const float p = expf(capped(args, __fmul_rn(args.scale, dot[h])) - mine.lse);
        const bool seen = first + h < unit.row_heads && unit.begin + lane <= mine.last;
        sum = __fmaf_rn(seen ? p : 0.0f, mine.weight, sum);
    }
    return sum;
}

static __global__ void __launch_bounds__(PLAIN_THREADS) score_plain(struct pkv_args_score args)
{
    PKV_DYN_SHARED(float, k); /* [head_dim][PKV_PAGE_TOKENS], then sums [PLAIN_WARPS][32] */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct unit unit;
    for (uint32_t number = blockIdx.x; find(args, number, PKV_PAGE_TOKENS, &unit);
         number += gridDim.x) {
        if (unit.low >= unit.end) { /* its page may not be there */
            continue;
        }
        load_page(args, unit, k);
        __syncthreads();
        float sum = 0.0f;
        for (uint32_t i = warp * PLAIN_HEADS; i < unit.row_heads; i += PLAIN_WARPS * PLAIN_HEADS) {
            sum = add_heads(args, unit, k, i, sum);
        }
        __syncthreads();
        k[32 * warp + lane] = sum;
        __syncthreads();
        if (warp == 0) {
            put(args, unit, unit.begin + lane,
                (k[lane] + k[32 + lane]) + (k[64 + lane] + k[96 + lane]));
        }
        __syncthreads();
    }
}

template <enum pkv_kv_type TYPE>
static bool launch_mma(const struct pkvi_cuda_stream *native, const struct pkv_args_score &args)
{
    const uint32_t most = BLOCKS * native->multiprocessors / args.span_count;
    const dim3 grid(most > 0 ? most : 1, args.span_count);
    switch (args.head_dim) {
    case 64:
        PKV_LAUNCH((score_mma<64, TYPE>), grid, THREADS, 0, native->stream, args);
        return true;
    case 128:
        PKV_LAUNCH((score_mma<128, TYPE>), grid, THREADS, 0, native->stream, args);
        return true;
    case 256:
        PKV_LAUNCH((score_mma<256, TYPE>), grid, THREADS, 0, native->stream, args);
        return true;
    default:
        return false;
    }
}

static enum pkv_status launch_plain(const struct pkvi_cuda_stream *native,
                                    const struct pkv_args_score &args)
{
    const uint32_t most = PLAIN_BLOCKS * native->multiprocessors / args.span_count;
    const uint32_t values = args.head_dim > PLAIN_WARPS ? args.head_dim : PLAIN_WARPS;
    const uint32_t bytes = values * PKV_PAGE_TOKENS * (uint32_t)sizeof(float); /* 64 KB at 512 */
    const cudaError_t error = cudaFuncSetAttribute(
        (const void *)score_plain, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess) {
        return pkvi_cuda_check(error, "shared memory of score");
    }
    PKV_LAUNCH(score_plain, dim3(most > 0 ? most : 1, args.span_count), PLAIN_THREADS, bytes,
               native->stream, args);
    return PKV_OK;
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_score *args = (const struct pkv_args_score *)arguments;
    const struct pkvi_cuda_stream *native = (const struct pkvi_cuda_stream *)native_stream;
    if (args->rows == 0 || args->span_count == 0) {
        return PKV_OK;
    }
    const bool done = args->kv_type == PKV_KV_F16    ? launch_mma<PKV_KV_F16>(native, *args)
                      : args->kv_type == PKV_KV_BF16 ? launch_mma<PKV_KV_BF16>(native, *args)
                      : args->kv_type == PKV_KV_Q8_0 ? launch_mma<PKV_KV_Q8_0>(native, *args)
                                                     : false;
    if (!done) {
        const enum pkv_status status = launch_plain(native, *args);
        if (status != PKV_OK) {
            return status;
        }
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of score");
}

const struct pkv_kernel pkvi_kernel_score_cuda = {
    PKV_OP_SCORE, "cuda", 0, sizeof(struct pkv_args_score), launch, pkvi_cost_score,
};
