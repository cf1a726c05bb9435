/*
 * attend_mma.cuh: attention with tensor cores, for one number format of K and V. Scores and values
 * are sums in f32 of products of f16: of q * scale, rounded; of K and V, rounded where they are
 * bf16 or q8_0; and of exp(score - largest so far).
 *
 * A block of 4 warps has a tile of 16 row heads for each ROW_WARPS; the other warps of the same row
 * heads share scores and channels. Keys come in pages: scores of 32, an online softmax, values of
 * 32. That is the same for every tile and partition, so a row head's bits depend on neither.
 * Pages are copied ahead, asynchronously, as they lie; they start at multiples of 16 bytes.
 *
 * Source: Dao, FlashAttention-2, arXiv:2307.08691; the order of fragments: PTX ISA, mma.m16n8k16.
 * A product does not care which channel is called which, nor do sums over keys as long as scores
 * and V agree: channels and keys are numbered so that lanes read 16 bytes without bank conflicts.
 */
#ifndef PKV_CUDA_ATTEND_MMA_CUH
#define PKV_CUDA_ATTEND_MMA_CUH

#include "kernels/cuda/attend.cuh"

#define PKV_MMA_THREADS 128u
#define PKV_MMA_LARGE_SMEM 160000u /* bytes a block may have; then there is room for 3 stages */
#define PKV_MMA_SCORES 40u         /* floats from one row head's scores of a page to the next */

/* Sizes of one kernel; bytes of shared memory in the order they lie in. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, uint32_t ROW_WARPS> struct pkvi_mma_shape {
    /* Blocks of a multiprocessor that registers must suffice for; more of them would spill. */
    static constexpr int blocks = ROW_WARPS > 1 ? (HEAD_DIM > 64 ? 2 : 3) : HEAD_DIM > 128 ? 3 : 4;
    static constexpr uint32_t rows = 16 * ROW_WARPS;
    static constexpr uint32_t col_warps = 4 / ROW_WARPS;
    static constexpr uint32_t channels = HEAD_DIM / col_warps; /* of a warp */
    /* A lane reads `run` neighbouring channels of V; 8 runs make a group. */
    static constexpr uint32_t run = channels / 8 < 8 ? channels / 8 : 8;
    static constexpr uint32_t groups = channels / (8 * run);
    static constexpr uint32_t half_bytes =
        TYPE == PKV_KV_Q8_0 ? HEAD_DIM + HEAD_DIM / 16 : 2 * HEAD_DIM;
    static constexpr uint32_t entry_bytes = 2 * half_bytes;
    static constexpr uint32_t entry_stride = TYPE == PKV_KV_Q8_0 ? entry_bytes : entry_bytes + 16;
    static constexpr uint32_t stage_bytes = PKV_PAGE_TOKENS * entry_stride;
    static constexpr uint32_t q_stride = HEAD_DIM + 32;    /* f16 */
    static constexpr uint32_t total_stride = HEAD_DIM + 4; /* f32 */
    static constexpr uint32_t q_bytes = rows * q_stride * 2;
    static constexpr uint32_t total_bytes = rows * total_stride * 4;
    static constexpr uint32_t state_bytes = rows * 2 * 4;
    static constexpr uint32_t score_bytes = col_warps > 1 ? rows *PKV_MMA_SCORES * 4 : 0;
    static constexpr uint32_t fixed_bytes = q_bytes + total_bytes + state_bytes + score_bytes;
};

/* Two bf16 in a word as two f16; those too large become the largest. */
static __device__ __forceinline__ unsigned pkvi_mma_bf16_to_f16(unsigned word)
{
    const float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
    return pkvi_cuda_f32_to_f16x2(fminf(fmaxf(low, -65504.0f), 65504.0f),
                                  fminf(fmaxf(high, -65504.0f), 65504.0f));
}

static __device__ __forceinline__ unsigned pkvi_mma_word(__half2 value)
{
    return (unsigned)__half_as_ushort(__low2half(value)) |
           (unsigned)__half_as_ushort(__high2half(value)) << 16;
}

/* Two i8, in the bytes of `bytes` that `select` names, times a scale. i8 + 128 as the low bits of
 * an f16 between 1024 and 2048 is exact. */
static __device__ __forceinline__ unsigned pkvi_mma_i8_to_f16(unsigned bytes, unsigned select,
                                                              __half2 scale)
{
    const unsigned word = __byte_perm(bytes ^ 0x80808080u, 0x64646464u, select);
    const __half2 biased = __halves2half2(__ushort_as_half((unsigned short)(word & 0xffffu)),
                                          __ushort_as_half((unsigned short)(word >> 16)));
    return pkvi_mma_word(__hmul2(__hsub2(biased, __float2half2_rn(1152.0f)), scale));
}

/* COUNT (2, 4 or 8) neighbouring channels from `channel` on of half an entry, as f16. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, uint32_t COUNT>
static __device__ __forceinline__ void pkvi_mma_load(const uint8_t *half, uint32_t channel,
                                                     unsigned word[COUNT / 2])
{
    if constexpr (TYPE == PKV_KV_Q8_0) {
        const uint16_t bits = *(const uint16_t *)(half + HEAD_DIM + channel / 32 * 2);
        const __half2 scale = __half2half2(__ushort_as_half(bits));
        if constexpr (COUNT == 2) {
            word[0] = pkvi_mma_i8_to_f16(*(const uint16_t *)(half + channel), 0x4140, scale);
        } else {
#pragma unroll
            for (uint32_t i = 0; i < COUNT / 4; i++) {
                const unsigned bytes = *(const unsigned *)(half + channel + 4 * i);
                word[2 * i] = pkvi_mma_i8_to_f16(bytes, 0x4140, scale);
                word[2 * i + 1] = pkvi_mma_i8_to_f16(bytes, 0x4342, scale);
            }
        }
    } else {
        const uint8_t *from = half + 2 * channel;
        if constexpr (COUNT == 8) {
            const uint4 value = pkvi_cuda_load16(from);
            word[0] = value.x;
            word[1] = value.y;
            word[2] = value.z;
            word[3] = value.w;
        } else if constexpr (COUNT == 4) {
            const uint2 value = *(const uint2 *)from;
            word[0] = value.x;
            word[1] = value.y;
        } else {
            word[0] = *(const unsigned *)from;
        }
    }
    if constexpr (TYPE == PKV_KV_BF16) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT / 2; i++) {
            word[i] = pkvi_mma_bf16_to_f16(word[i]);
        }
    }
}

/* A unit at work: what is the same for all threads. */
struct pkvi_mma_work {
    struct pkvi_cuda_attend_unit unit;
    struct pkv_kv_view view;
    uint32_t group;              /* query heads of a KV head */
    uint32_t begin, end;         /* keys that some row head sees */
    uint32_t all_begin, all_end; /* that all of them see */
    uint8_t *stage;
    uint32_t stages;
    uint16_t *q; /* f16 */
    float *total, *state, *score;
};

/* Two row heads of a lane, lane / 4 and 8 more: what they see, and come to. */
struct pkvi_mma_rows {
    uint32_t begin[2], end[2];
    float max[2], sum[2];             /* of the split; sum of this lane's keys */
    float total_max[2], total_sum[2]; /* of all splits so far, where the unit has them all */
};

/* Q of the tile, scaled, as f16; 0 beyond the last row head. */
template <class SHAPE, uint32_t HEAD_DIM>
static __device__ void pkvi_mma_load_q(const struct pkv_args_attend &args,
                                       const struct pkv_row_span &span,
                                       const struct pkvi_mma_work &work)
{
    for (uint32_t i = threadIdx.x / 32; i < SHAPE::rows; i += PKV_MMA_THREADS / 32) {
        const uint32_t row_head = work.unit.first_row_head + i;
        const uint32_t row = span.first_row + row_head / work.group;
        const uint32_t head = work.unit.kv_head * work.group + row_head % work.group;
        const float *q =
            PKV_AT(const float, args.q) + (uint64_t)row * args.q_stride + head * HEAD_DIM;
        for (uint32_t channel = threadIdx.x % 32; channel < HEAD_DIM; channel += 32) {
            const float value = i < work.unit.row_heads ? __fmul_rn(q[channel], args.scale) : 0.0f;
            work.q[i * SHAPE::q_stride + channel] =
                pkvi_cuda_f32_to_f16(fminf(fmaxf(value, -65504.0f), 65504.0f));
        }
    }
}

/* Totals from the carry, or nothing. */
template <class SHAPE, uint32_t HEAD_DIM>
static __device__ void pkvi_mma_start(const struct pkv_args_attend &args,
                                      const struct pkv_row_span &span,
                                      const struct pkvi_mma_work &work)
{
    for (uint32_t i = threadIdx.x / 32; i < SHAPE::rows; i += PKV_MMA_THREADS / 32) {
        const uint32_t row_head = work.unit.first_row_head + i, lane = threadIdx.x % 32;
        const bool carried = args.carry_in && i < work.unit.row_heads;
        struct pkvi_cuda_partial carry = {NULL, NULL, NULL};
        if (carried) {
            carry = pkvi_cuda_attend_carry(args, span.first_row + row_head / work.group,
                                           work.unit.kv_head * work.group + row_head % work.group);
        }
        for (uint32_t channel = lane; channel < HEAD_DIM; channel += 32) {
            work.total[i * SHAPE::total_stride + channel] = carried ? carry.values[channel] : 0.0f;
        }
        if (lane == 0) {
            work.state[2 * i] = carried ? *carry.max : -INFINITY;
            work.state[2 * i + 1] = carried ? *carry.sum : 0.0f;
        }
    }
}

/* A page into a stage. */
template <class SHAPE>
static __device__ __forceinline__ void pkvi_mma_copy_page(const uint8_t *page, uint8_t *stage)
{
#pragma unroll
    for (uint32_t i = 0; i < PKV_PAGE_TOKENS * SHAPE::entry_bytes / 16; i += PKV_MMA_THREADS) {
        const uint32_t from = 16 * (i + threadIdx.x);
        if (from < PKV_PAGE_TOKENS * SHAPE::entry_bytes) {
            const uint32_t gap = SHAPE::entry_stride - SHAPE::entry_bytes;
            __pipeline_memcpy_async(stage + from + from / SHAPE::entry_bytes * gap, page + from,
                                    16);
        }
    }
}

/* Scores of `count` key tiles of 8 from `first` on. Column c of a tile is its key c / 2 + 4 * (c %
 * 2), so that a lane's two are 4 apart. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, class SHAPE, uint32_t COUNT>
static __device__ __forceinline__ void pkvi_mma_scores(const uint16_t *q, const uint8_t *stage,
                                                       uint32_t first, float score[COUNT][4])
{
    const uint32_t lane = threadIdx.x % 32, column = lane / 4, part = lane % 4;
    const uint32_t key = column / 2 + 4 * (column % 2);
#pragma unroll
    for (uint32_t n = 0; n < COUNT; n++) {
        score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
    }
#pragma unroll
    for (uint32_t channel = 0; channel < HEAD_DIM; channel += 32) {
        const uint16_t *from = q + column * SHAPE::q_stride + channel + 8 * part;
        const uint4 low = pkvi_cuda_load16(from);
        const uint4 high = pkvi_cuda_load16(from + 8 * SHAPE::q_stride);
        const unsigned a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
        for (uint32_t n = 0; n < COUNT; n++) {
            unsigned k[4];
            pkvi_mma_load<HEAD_DIM, TYPE, 8>(stage + (8 * (first + n) + key) * SHAPE::entry_stride,
                                             channel + 8 * part, k);
            pkvi_mma_m16n8k16(score[n], a[0], k);
            pkvi_mma_m16n8k16(score[n], a[1], k + 2);
        }
    }
}

/* Softcap, and -infinity for keys that a row head does not see. */
template <uint32_t COUNT>
static __device__ __forceinline__ void
pkvi_mma_mask(const struct pkv_args_attend &args, const struct pkvi_mma_work &work,
              const struct pkvi_mma_rows &rows, uint32_t first_key, uint32_t first,
              float score[COUNT][4])
{
    const bool all = first_key >= work.all_begin && first_key + PKV_PAGE_TOKENS <= work.all_end;
#pragma unroll
    for (uint32_t n = 0; n < COUNT; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t key = first_key + 8 * (first + n) + threadIdx.x % 4 + 4 * (i % 2);
            if (args.softcap > 0) {
                score[n][i] = pkvi_cuda_score(args, score[n][i]);
            }
            if (!all && (key < rows.begin[i / 2] || key >= rows.end[i / 2])) {
                score[n][i] = -INFINITY;
            }
        }
    }
}

/* Scores of a page become weights; returns in keep what earlier values shrink by. */
static __device__ __forceinline__ void pkvi_mma_softmax(struct pkvi_mma_rows *rows,
                                                        float score[4][4], float keep[2])
{
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        float max = rows->max[r];
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            max = fmaxf(max, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
        }
        max = fmaxf(max, __shfl_xor_sync(PKV_WARP_ALL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(PKV_WARP_ALL, max, 2));
        const float offset = max == -INFINITY ? 0.0f : __fmul_rn(max, -PKV_LOG2E);
        keep[r] = pkvi_cuda_weight(rows->max[r], max);
        float sum = __fmul_rn(rows->sum[r], keep[r]);
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
#pragma unroll
            for (uint32_t i = 2 * r; i < 2 * r + 2; i++) {
                score[n][i] = exp2f(__fmaf_rn(score[n][i], PKV_LOG2E, offset));
                sum = __fadd_rn(sum, score[n][i]);
            }
        }
        rows->max[r] = max;
        rows->sum[r] = sum;
    }
}

/* values = values * keep + weights * V. Column c of a tile of 8 is run c / 2 + 4 * (c % 2) of its
 * group, so that lanes that read at once do so 4 runs apart. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, class SHAPE>
static __device__ __forceinline__ void
pkvi_mma_values(const uint8_t *stage, uint32_t first_channel, const float weight[4][4],
                const float keep[2], float values[SHAPE::groups * SHAPE::run][4])
{
    const uint32_t lane = threadIdx.x % 32, column = lane / 4, part = lane % 4;
#pragma unroll
    for (uint32_t n = 0; n < SHAPE::groups * SHAPE::run; n++) {
        values[n][0] = __fmul_rn(values[n][0], keep[0]);
        values[n][1] = __fmul_rn(values[n][1], keep[0]);
        values[n][2] = __fmul_rn(values[n][2], keep[1]);
        values[n][3] = __fmul_rn(values[n][3], keep[1]);
    }
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        unsigned a[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float *pair = weight[2 * k + i / 2] + 2 * (i % 2);
            a[i] = pkvi_cuda_f32_to_f16x2(pair[0], pair[1]);
        }
        const uint8_t *v = stage + (16 * k + part) * SHAPE::entry_stride + SHAPE::half_bytes;
#pragma unroll
        for (uint32_t group = 0; group < SHAPE::groups; group++) {
            const uint32_t channel = first_channel + group * 8 * SHAPE::run +
                                     (column / 2 + 4 * (column % 2)) * SHAPE::run;
            unsigned word[4][SHAPE::run / 2]; /* of keys 4 apart */
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                pkvi_mma_load<HEAD_DIM, TYPE, SHAPE::run>(v + 4 * i * SHAPE::entry_stride, channel,
                                                          word[i]);
            }
#pragma unroll
            for (uint32_t j = 0; j < SHAPE::run; j++) {
                const unsigned select = j % 2 ? 0x7632 : 0x5410;
                const unsigned b[2] = {__byte_perm(word[0][j / 2], word[1][j / 2], select),
                                       __byte_perm(word[2][j / 2], word[3][j / 2], select)};
                pkvi_mma_m16n8k16(values[group * SHAPE::run + j], a, b);
            }
        }
    }
}

/* A split is done: into the totals, or to its partial in scratch. */
template <uint32_t HEAD_DIM, class SHAPE>
static __device__ __forceinline__ void
pkvi_mma_end_split(const struct pkvi_cuda_attend &job, const struct pkvi_cuda_attend_place &place,
                   const struct pkvi_mma_work &work, uint32_t split, uint32_t first_channel,
                   struct pkvi_mma_rows *rows, float values[SHAPE::groups * SHAPE::run][4])
{
    const uint32_t warp_row = threadIdx.x / 32 / SHAPE::col_warps * 16;
    const uint32_t part = threadIdx.x % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t i = warp_row + threadIdx.x % 32 / 4 + 8 * r;
        float sum = rows->sum[r];
        sum += __shfl_xor_sync(PKV_WARP_ALL, sum, 1);
        sum += __shfl_xor_sync(PKV_WARP_ALL, sum, 2);
        float *total = work.total + i * SHAPE::total_stride;
        struct pkvi_cuda_partial to = {NULL, NULL, NULL};
        float keep = 0.0f, take = 1.0f;
        if (place.divided) {
            to = pkvi_cuda_attend_partial(job, place, split - place.first_split, work.unit.kv_head,
                                          work.unit.first_row_head + i);
            if (i < work.unit.row_heads && first_channel + part == 0) {
                *to.max = rows->max[r];
                *to.sum = sum;
            }
        } else {
            const float max = fmaxf(rows->total_max[r], rows->max[r]);
            keep = pkvi_cuda_weight(rows->total_max[r], max);
            take = pkvi_cuda_weight(rows->max[r], max);
            rows->total_max[r] = max;
            rows->total_sum[r] = pkvi_cuda_merge(rows->total_sum[r], keep, sum, take);
        }
#pragma unroll
        for (uint32_t n = 0; n < SHAPE::groups * SHAPE::run; n++) {
#pragma unroll
            for (uint32_t side = 0; side < 2; side++) {
                const uint32_t channel = first_channel + n / SHAPE::run * 8 * SHAPE::run +
                                         (part + 4 * side) * SHAPE::run + n % SHAPE::run;
                const float value = values[n][2 * r + side];
                if (!place.divided) {
                    total[channel] = pkvi_cuda_merge(total[channel], keep, value, take);
                } else if (i < work.unit.row_heads) {
                    to.values[channel] = value;
                }
                values[n][2 * r + side] = 0.0f;
            }
        }
        rows->max[r] = -INFINITY;
        rows->sum[r] = 0.0f;
    }
}

/* Keys of a page but [begin, end), which no row head sees, may never have been written: V is
 * weighted with 0, which a NaN survives, and scores that are masked later should not be made of
 * nothing. */
template <class SHAPE>
static __device__ __forceinline__ void pkvi_mma_clear(uint8_t *stage, uint32_t begin, uint32_t end)
{
    for (uint32_t key = threadIdx.x / 32; key < PKV_PAGE_TOKENS; key += PKV_MMA_THREADS / 32) {
        if (key >= begin && key < end) {
            continue;
        }
        unsigned *entry = (unsigned *)(stage + key * SHAPE::entry_stride);
        for (uint32_t i = threadIdx.x % 32; i < SHAPE::entry_bytes / 4; i += 32) {
            entry[i] = 0;
        }
    }
    __syncthreads();
}

/* All pages of a unit, in ascending order. */
template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, class SHAPE>
static __device__ void pkvi_mma_pages(const struct pkvi_cuda_attend &job,
                                      const struct pkvi_cuda_attend_place &place,
                                      const struct pkvi_mma_work &work, struct pkvi_mma_rows *rows)
{
    constexpr uint32_t per_split = PKV_SPLIT_KEYS / PKV_PAGE_TOKENS;
    constexpr uint32_t own = 4 / SHAPE::col_warps; /* key tiles that a warp scores */
    const uint32_t first = work.begin / PKV_PAGE_TOKENS;
    const uint32_t end = (work.end + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS;
    const uint32_t warp = threadIdx.x / 32, col_warp = warp % SHAPE::col_warps;
    const uint32_t warp_row = warp / SHAPE::col_warps * 16;
    const uint32_t first_channel = col_warp * SHAPE::channels;
    const uint32_t lane_score =
        (warp_row + threadIdx.x % 32 / 4) * PKV_MMA_SCORES + 2 * (threadIdx.x % 4);
    float values[SHAPE::groups * SHAPE::run][4] = {};
    uint32_t next = first; /* to be copied */
    const uint8_t *ahead =
        pkvi_cuda_page_or_tile(work.view, job.args.tile, work.unit.kv_head, first);
    for (uint32_t page = first + 1 - work.stages; page != end; page++) {
        const bool due = (int32_t)(page - first) >= 0;
        if (due) {
            __pipeline_wait_prior(work.stages - 2);
            __syncthreads();
        }
        if (next < end && next - page < work.stages) {
            pkvi_mma_copy_page<SHAPE>(ahead, work.stage + next % work.stages * SHAPE::stage_bytes);
            next++;
            if (next < end) {
                ahead = pkvi_cuda_page_or_tile(work.view, job.args.tile, work.unit.kv_head, next);
            }
        }
        __pipeline_commit();
        if (!due) {
            continue;
        }
        uint8_t *stage = work.stage + page % work.stages * SHAPE::stage_bytes;
        const uint32_t first_key = page * PKV_PAGE_TOKENS;
        if (work.begin > first_key || work.end - first_key < PKV_PAGE_TOKENS) {
            pkvi_mma_clear<SHAPE>(stage, work.begin > first_key ? work.begin - first_key : 0,
                                  work.end - first_key);
        }
        float score[4][4], keep[2];
        pkvi_mma_scores<HEAD_DIM, TYPE, SHAPE, own>(work.q + warp_row * SHAPE::q_stride, stage,
                                                    own * col_warp, score);
        pkvi_mma_mask<own>(job.args, work, *rows, first_key, own * col_warp, score);
        if constexpr (SHAPE::col_warps > 1) {
            float *mine = work.score + lane_score;
#pragma unroll
            for (uint32_t n = 0; n < own; n++) {
                float *to = mine + 8 * (own * col_warp + n);
                *(float2 *)to = make_float2(score[n][0], score[n][1]);
                *(float2 *)(to + 8 * PKV_MMA_SCORES) = make_float2(score[n][2], score[n][3]);
            }
            __syncthreads();
#pragma unroll
            for (uint32_t n = 0; n < 4; n++) {
                const float2 low = *(const float2 *)(mine + 8 * n);
                const float2 high = *(const float2 *)(mine + 8 * n + 8 * PKV_MMA_SCORES);
                score[n][0] = low.x;
                score[n][1] = low.y;
                score[n][2] = high.x;
                score[n][3] = high.y;
            }
        }
        pkvi_mma_softmax(rows, score, keep);
        pkvi_mma_values<HEAD_DIM, TYPE, SHAPE>(stage, first_channel, score, keep, values);
        if ((page + 1) % per_split == 0 || page + 1 == end) {
            pkvi_mma_end_split<HEAD_DIM, SHAPE>(job, place, work, page / per_split, first_channel,
                                                rows, values);
        }
    }
    __pipeline_wait_prior(0);
}

/* What the row heads of a tile, and of a lane, see. */
template <class SHAPE>
static __device__ void pkvi_mma_ranges(const struct pkv_args_attend &args,
                                       const struct pkv_row_span &span, struct pkvi_mma_work *work,
                                       struct pkvi_mma_rows *rows)
{
    const struct pkvi_cuda_attend_unit &unit = work->unit;
    const uint32_t first = span.first_position + unit.first_row_head / work->group;
    const uint32_t last =
        span.first_position + (unit.first_row_head + unit.row_heads - 1) / work->group;
    const uint32_t low = unit.first_split * PKV_SPLIT_KEYS;
    const uint32_t high = low + unit.splits * PKV_SPLIT_KEYS;
    const uint32_t there = pkvi_cuda_view_first_key(work->view, unit.kv_head);
    work->begin = max(max(pkvi_cuda_first_key(args, first), there), low);
    work->end = min(pkvi_cuda_end_key(args, last), high);
    work->all_begin = max(pkvi_cuda_first_key(args, last), there);
    work->all_end = pkvi_cuda_end_key(args, first);
    const uint32_t warp_row = threadIdx.x / 32 / SHAPE::col_warps * 16;
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t i = warp_row + threadIdx.x % 32 / 4 + 8 * r;
        const uint32_t position = span.first_position + (unit.first_row_head + i) / work->group;
        const bool some = i < unit.row_heads;
        rows->begin[r] = some ? max(pkvi_cuda_first_key(args, position), there) : 0;
        rows->end[r] = some ? pkvi_cuda_end_key(args, position) : 0;
        rows->max[r] = -INFINITY;
        rows->sum[r] = 0.0f;
    }
}

template <class SHAPE, uint32_t HEAD_DIM>
static __device__ void
pkvi_mma_finish(const struct pkv_args_attend &args, const struct pkv_row_span &span,
                const struct pkvi_mma_work &work, const struct pkvi_mma_rows &rows)
{
    const uint32_t warp_row = threadIdx.x / 32 / SHAPE::col_warps * 16;
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t i = warp_row + threadIdx.x % 32 / 4 + 8 * r;
        if (threadIdx.x % 4 == 0 && threadIdx.x / 32 % SHAPE::col_warps == 0) {
            work.state[2 * i] = rows.total_max[r];
            work.state[2 * i + 1] = rows.total_sum[r];
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < work.unit.row_heads; i += PKV_MMA_THREADS / 32) {
        const uint32_t row_head = work.unit.first_row_head + i;
        for (uint32_t col = 0; col < HEAD_DIM; col += 32) {
            pkvi_cuda_attend_finish(args, span.first_row + row_head / work.group,
                                    work.unit.kv_head * work.group + row_head % work.group,
                                    work.state[2 * i], work.state[2 * i + 1], col,
                                    work.total[i * SHAPE::total_stride + col + threadIdx.x % 32]);
        }
    }
}

template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, uint32_t ROW_WARPS>
static __global__ void __launch_bounds__(PKV_MMA_THREADS,
                                         pkvi_mma_shape<HEAD_DIM, TYPE, ROW_WARPS>::blocks)
    attend_mma(struct pkvi_cuda_attend job, uint32_t wide, uint32_t stages)
{
    using SHAPE = pkvi_mma_shape<HEAD_DIM, TYPE, ROW_WARPS>;
    PKV_DYN_SHARED(uint8_t, memory);
    const struct pkv_args_attend &args = job.args;
    struct pkvi_mma_work work;
    work.group = args.heads / args.kv_heads;
    work.q = (uint16_t *)memory;
    work.total = (float *)(memory + SHAPE::q_bytes);
    work.state = (float *)(memory + SHAPE::q_bytes + SHAPE::total_bytes);
    work.score = (float *)(memory + SHAPE::fixed_bytes - SHAPE::score_bytes);
    work.stage = memory + SHAPE::fixed_bytes;
    work.stages = stages;
    struct pkvi_cuda_attend_place place;
    for (uint32_t number = blockIdx.x; pkvi_cuda_attend_find<false>(job, wide, number, &place);
         number += gridDim.x) {
        struct pkvi_mma_rows rows;
        work.unit = pkvi_cuda_attend_unit_of(args, place);
        work.view = PKV_AT(const struct pkv_kv_view, args.views)[place.span.view];
        pkvi_mma_ranges<SHAPE>(args, place.span, &work, &rows);
        pkvi_mma_load_q<SHAPE, HEAD_DIM>(args, place.span, work);
        if (!place.divided) {
            pkvi_mma_start<SHAPE, HEAD_DIM>(args, place.span, work);
        }
        __syncthreads();
        for (uint32_t r = 0; !place.divided && r < 2; r++) {
            const uint32_t i = threadIdx.x / 32 / SHAPE::col_warps * 16 + threadIdx.x % 32 / 4;
            rows.total_max[r] = work.state[2 * (i + 8 * r)];
            rows.total_sum[r] = work.state[2 * (i + 8 * r) + 1];
        }
        if (work.begin < work.end) {
            pkvi_mma_pages<HEAD_DIM, TYPE, SHAPE>(job, place, work, &rows);
        } else if (place.divided) {
            float none[SHAPE::groups * SHAPE::run][4] = {};
            pkvi_mma_end_split<HEAD_DIM, SHAPE>(
                job, place, work, work.unit.first_split,
                threadIdx.x / 32 % SHAPE::col_warps * SHAPE::channels, &rows, none);
        }
        __syncthreads();
        if (!place.divided) {
            pkvi_mma_finish<SHAPE, HEAD_DIM>(args, place.span, work, rows);
            __syncthreads();
        }
    }
}

/* Shared memory of a kernel with so many stages, if the device has it, else 0. */
template <class SHAPE> static uint32_t pkvi_mma_smem(uint32_t stages, uint32_t limit)
{
    const uint32_t bytes = SHAPE::fixed_bytes + stages * SHAPE::stage_bytes;
    return bytes <= limit ? bytes : 0;
}

template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE, uint32_t ROW_WARPS>
static void pkvi_mma_launch_kernel(cudaStream_t stream, const struct pkvi_cuda_attend &job,
                                   uint32_t wide, uint32_t stages, uint32_t smem_bytes,
                                   uint64_t blocks_most)
{
    const struct pkv_args_attend &args = job.args;
    const uint64_t row_heads = (uint64_t)args.rows * (args.heads / args.kv_heads);
    const uint64_t tile = job.tile[wide];
    const uint64_t units = (row_heads + (tile - 1) * args.span_count) / tile * args.kv_heads;
    uint64_t blocks = units < blocks_most ? units : blocks_most;
    blocks = blocks > job.target[wide] ? blocks : job.target[wide];
    if (cudaFuncSetAttribute((const void *)attend_mma<HEAD_DIM, TYPE, ROW_WARPS>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)smem_bytes) == cudaSuccess) {
        PKV_LAUNCH((attend_mma<HEAD_DIM, TYPE, ROW_WARPS>), (unsigned)blocks, PKV_MMA_THREADS,
                   smem_bytes, stream, job, wide, stages);
    }
}

template <uint32_t HEAD_DIM, enum pkv_kv_type TYPE>
static bool pkvi_mma_launch_size(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t limit)
{
    constexpr uint32_t row_warps = HEAD_DIM == 256 ? 2 : 4;
    using NARROW = pkvi_mma_shape<HEAD_DIM, TYPE, 1>;
    using WIDE = pkvi_mma_shape<HEAD_DIM, TYPE, row_warps>;
    const uint32_t stages = limit >= PKV_MMA_LARGE_SMEM ? 3 : 2;
    const uint32_t narrow = pkvi_mma_smem<NARROW>(stages, limit);
    const uint32_t wide = pkvi_mma_smem<WIDE>(2, limit);
    if (narrow == 0) {
        return false;
    }
    job->tile[0] = NARROW::rows;
    job->tile[1] = WIDE::rows;
    job->wide_above = wide > 0 ? WIDE::rows / 2 : UINT32_MAX;
    pkvi_mma_launch_kernel<HEAD_DIM, TYPE, 1>(stream, *job, 0, stages, narrow,
                                              2 * (uint64_t)job->target[0]);
    if ((uint64_t)job->args.rows * (job->args.heads / job->args.kv_heads) > job->wide_above) {
        pkvi_mma_launch_kernel<HEAD_DIM, TYPE, row_warps>(stream, *job, 1, 2, wide, INT32_MAX);
    }
    return true;
}

template <enum pkv_kv_type TYPE>
static bool pkvi_mma_launch(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t limit)
{
    switch (job->args.head_dim) {
    case 64:
        return pkvi_mma_launch_size<64, TYPE>(stream, job, limit);
    case 128:
        return pkvi_mma_launch_size<128, TYPE>(stream, job, limit);
    case 256:
        return pkvi_mma_launch_size<256, TYPE>(stream, job, limit);
    default:
        return false;
    }
}

#endif
