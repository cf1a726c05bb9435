/*
 * attend.cu: causal attention; twin of kernels/ref/attend.c. Here are any shape without tensor
 * cores, and the merge of divided spans. Reads K and V once for up to 4 query heads of a row.
 */
#include "kernels/cost.h"
#include "kernels/cuda/attend.cuh"

#define THREADS 128u
#define WARPS (THREADS / 32)
#define HEADS 4u     /* query heads that share a read of K and V; a warp each for the softmax */
#define KEY_LANES 8u /* that share a score */
#define MAX_HEAD_DIM 512u
/* Units that keep a multiprocessor busy. */
#define NARROW_UNITS 6u
#define WIDE_UNITS 1u

/* Two neighbouring values of half an entry, the first of even number. */
static __device__ __forceinline__ float2 load2(enum pkv_kv_type type, const uint8_t *in,
                                               uint32_t head_dim, uint32_t i)
{
    if (type == PKV_KV_F32) {
        return *(const float2 *)(in + 4 * i);
    }
    if (type == PKV_KV_Q8_0) {
        const float scale = pkvi_cuda_f16_to_f32(*(const uint16_t *)(in + head_dim + i / 32 * 2));
        return make_float2((float)(int8_t)in[i] * scale, (float)(int8_t)in[i + 1] * scale);
    }
    const unsigned word = *(const unsigned *)(in + 2 * i);
    return type == PKV_KV_F16 ? pkvi_cuda_f16x2_to_f32(word)
                              : make_float2(pkvi_cuda_bf16_to_f32((uint16_t)(word & 0xffffu)),
                                            pkvi_cuda_bf16_to_f32((uint16_t)(word >> 16)));
}

/* Some query heads of a row, and what they come to so far. */
struct heads {
    const struct pkv_kv_view *view;
    const float *q;
    uint32_t kv_head, count; /* <= HEADS */
    uint32_t begin, end;     /* keys */
    float (*score)[PKV_SPLIT_KEYS];
    float *max, *sum; /* [HEADS], of the split */
    float *total_max, *total_sum;
    float (*total)[MAX_HEAD_DIM];
};

static __device__ __forceinline__ const uint8_t *entry_of(const struct pkv_args_attend &args,
                                                          const struct heads &heads, uint32_t key)
{
    const uint8_t *page =
        pkvi_cuda_page_or_tile(*heads.view, args.tile, heads.kv_head, key / PKV_PAGE_TOKENS);
    return page + key % PKV_PAGE_TOKENS * pkvi_cuda_entry_bytes(args.kv_type, args.head_dim);
}

/* Scores of the keys [begin, end) of the split at `base`, 8 lanes a key. */
static __device__ void score_keys(const struct pkv_args_attend &args, const struct heads &heads,
                                  uint32_t base, uint32_t begin, uint32_t end)
{
    const uint32_t part = threadIdx.x % KEY_LANES;
    for (uint32_t first = begin; first < end; first += THREADS / KEY_LANES) {
        const uint32_t key = first + threadIdx.x / KEY_LANES;
        const uint8_t *k = key < end ? entry_of(args, heads, key) : NULL;
        float dot[HEADS] = {0};
        for (uint32_t i = 2 * part; k && i < args.head_dim; i += 2 * KEY_LANES) {
            const float2 value = load2(args.kv_type, k, args.head_dim, i);
            for (uint32_t h = 0; h < HEADS; h++) {
                const float *q = heads.q + h * args.head_dim + i;
                if (h < heads.count) {
                    dot[h] = __fmaf_rn(q[1], value.y, __fmaf_rn(q[0], value.x, dot[h]));
                }
            }
        }
        for (uint32_t h = 0; h < HEADS; h++) {
            for (uint32_t distance = KEY_LANES / 2; distance > 0; distance /= 2) {
                dot[h] += __shfl_xor_sync(PKV_WARP_ALL, dot[h], (int)distance);
            }
            if (k && part == 0) {
                heads.score[h][key - base] = pkvi_cuda_score(args, args.scale * dot[h]);
            }
        }
    }
}

/* Scores become exp(score - max); by a warp a head. */
static __device__ void softmax(const struct heads &heads, uint32_t begin, uint32_t end)
{
    const uint32_t h = threadIdx.x / 32, lane = threadIdx.x % 32;
    float max = -INFINITY, sum = 0.0f;
    if (h >= heads.count) {
        return;
    }
    /* lanes by absolute position, so that sums do not depend on where the range begins */
    for (uint32_t j = lane; j < end; j += 32) {
        max = j >= begin ? fmaxf(max, heads.score[h][j]) : max;
    }
    max = pkvi_cuda_warp_max(max);
    for (uint32_t j = lane; j < end; j += 32) {
        if (j >= begin) {
            const float p = exp2f(__fmul_rn(heads.score[h][j] - max, PKV_LOG2E));
            heads.score[h][j] = p;
            sum += p;
        }
    }
    sum = pkvi_cuda_warp_sum(sum);
    if (lane == 0) {
        heads.max[h] = max;
        heads.sum[h] = sum;
    }
}

/* Values of the split, two channels a thread: to a partial, or merged into the total. */
static __device__ void add_values(const struct pkvi_cuda_attend &job,
                                  const struct pkvi_cuda_attend_place &place,
                                  const struct heads &heads, uint32_t split, uint32_t row_head,
                                  uint32_t begin, uint32_t end)
{
    const struct pkv_args_attend &args = job.args;
    const uint32_t base = split * PKV_SPLIT_KEYS;
    const uint32_t half = pkvi_cuda_entry_bytes(args.kv_type, args.head_dim) / 2;
    for (uint32_t i = 2 * threadIdx.x; i < args.head_dim; i += 2 * THREADS) {
        float2 value[HEADS] = {};
        for (uint32_t j = begin; j < end; j++) {
            const float2 v =
                load2(args.kv_type, entry_of(args, heads, base + j) + half, args.head_dim, i);
            for (uint32_t h = 0; h < HEADS; h++) {
                if (h < heads.count) {
                    value[h].x = __fmaf_rn(heads.score[h][j], v.x, value[h].x);
                    value[h].y = __fmaf_rn(heads.score[h][j], v.y, value[h].y);
                }
            }
        }
        for (uint32_t h = 0; h < heads.count; h++) {
            if (place.divided) {
                const struct pkvi_cuda_partial partial = pkvi_cuda_attend_partial(
                    job, place, split - place.first_split, heads.kv_head, row_head + h);
                partial.values[i] = value[h].x;
                partial.values[i + 1] = value[h].y;
            } else {
                const float max = fmaxf(heads.total_max[h], heads.max[h]);
                const float keep = pkvi_cuda_weight(heads.total_max[h], max);
                const float take = pkvi_cuda_weight(heads.max[h], max);
                float *total = heads.total[h] + i;
                total[0] = pkvi_cuda_merge(total[0], keep, value[h].x, take);
                total[1] = pkvi_cuda_merge(total[1], keep, value[h].y, take);
            }
        }
    }
}

/* The same of maxima and sums, a thread a head. */
static __device__ void add_sums(const struct pkvi_cuda_attend &job,
                                const struct pkvi_cuda_attend_place &place,
                                const struct heads &heads, uint32_t split, uint32_t row_head)
{
    const uint32_t h = threadIdx.x;
    if (h >= heads.count) {
        return;
    }
    if (place.divided) {
        const struct pkvi_cuda_partial partial = pkvi_cuda_attend_partial(
            job, place, split - place.first_split, heads.kv_head, row_head + h);
        *partial.max = heads.max[h];
        *partial.sum = heads.sum[h];
        return;
    }
    const float max = fmaxf(heads.total_max[h], heads.max[h]);
    heads.total_sum[h] =
        pkvi_cuda_merge(heads.total_sum[h], pkvi_cuda_weight(heads.total_max[h], max), heads.sum[h],
                        pkvi_cuda_weight(heads.max[h], max));
    heads.total_max[h] = max;
}

static __device__ void attend_split(const struct pkvi_cuda_attend &job,
                                    const struct pkvi_cuda_attend_place &place,
                                    const struct heads &heads, uint32_t split, uint32_t row_head)
{
    const uint32_t base = split * PKV_SPLIT_KEYS;
    const uint32_t begin = heads.begin > base ? heads.begin : base;
    const uint32_t end = heads.end < base + PKV_SPLIT_KEYS ? heads.end : base + PKV_SPLIT_KEYS;
    __syncthreads();
    if (begin < end) {
        score_keys(job.args, heads, base, begin, end);
    }
    __syncthreads();
    const uint32_t seen = begin < end ? end - base : 0, unseen = begin < end ? begin - base : 0;
    softmax(heads, unseen, seen);
    __syncthreads();
    add_values(job, place, heads, split, row_head, unseen, seen);
    __syncthreads();
    add_sums(job, place, heads, split, row_head);
}

/* Totals from the carry, or nothing. */
static __device__ void start(const struct pkv_args_attend &args, const struct heads &heads,
                             uint32_t row, uint32_t head)
{
    for (uint32_t h = 0; h < heads.count; h++) {
        const struct pkvi_cuda_partial carry = pkvi_cuda_attend_carry(args, row, head + h);
        for (uint32_t i = threadIdx.x; i < args.head_dim; i += THREADS) {
            heads.total[h][i] = args.carry_in ? carry.values[i] : 0.0f;
        }
        if (threadIdx.x == 0) {
            heads.total_max[h] = args.carry_in ? *carry.max : -INFINITY;
            heads.total_sum[h] = args.carry_in ? *carry.sum : 0.0f;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 4) attend_plain(struct pkvi_cuda_attend job)
{
    PKV_SHARED(float, score, [HEADS][PKV_SPLIT_KEYS]);
    PKV_SHARED(float, total, [HEADS][MAX_HEAD_DIM]);
    PKV_SHARED(float, state, [4][HEADS]);
    const struct pkv_args_attend &args = job.args;
    const uint32_t group = args.heads / args.kv_heads;
    struct pkvi_cuda_attend_place place;
    for (uint32_t number = blockIdx.x; pkvi_cuda_attend_find<false>(job, 0, number, &place);
         number += gridDim.x) {
        const struct pkvi_cuda_attend_unit unit = pkvi_cuda_attend_unit_of(args, place);
        const uint32_t local_row = unit.first_row_head / group;
        const uint32_t row = place.span.first_row + local_row;
        const uint32_t position = place.span.first_position + local_row;
        for (uint32_t g = 0; g < group; g += HEADS) {
            const uint32_t head = unit.kv_head * group + g;
            const struct pkv_kv_view *view =
                PKV_AT(const struct pkv_kv_view, args.views) + place.span.view;
            const struct heads heads = {
                view,
                PKV_AT(const float, args.q) + (uint64_t)row * args.q_stride + head * args.head_dim,
                unit.kv_head,
                group - g < HEADS ? group - g : HEADS,
                max(pkvi_cuda_first_key(args, position),
                    pkvi_cuda_view_first_key(*view, unit.kv_head)),
                pkvi_cuda_end_key(args, position),
                score,
                state[0],
                state[1],
                state[2],
                state[3],
                total,
            };
            start(args, heads, row, head);
            for (uint32_t i = 0; i < unit.splits; i++) {
                attend_split(job, place, heads, unit.first_split + i, unit.first_row_head + g);
            }
            __syncthreads();
            for (uint32_t h = threadIdx.x / 32; !place.divided && h < heads.count; h += WARPS) {
                for (uint32_t col = 0; col < args.head_dim; col += 32) {
                    const uint32_t i = col + threadIdx.x % 32;
                    pkvi_cuda_attend_finish(args, row, head + h, state[2][h], state[3][h], col,
                                            i < args.head_dim ? total[h][i] : 0.0f);
                }
            }
            __syncthreads();
        }
    }
}

/*
 * Divided spans: the partials of a row head, a block each, 32 channels a warp. Weights of 32 splits
 * at a time are found together, a lane each; the merge itself goes split by split.
 */
static __global__ void __launch_bounds__(MAX_HEAD_DIM, 2) attend_merge(struct pkvi_cuda_attend job)
{
    const struct pkv_args_attend &args = job.args;
    const uint32_t row = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
    const uint32_t group = args.heads / args.kv_heads, lane = threadIdx.x % 32;
    struct pkvi_cuda_attend_place place;
    if (!pkvi_cuda_attend_find<true>(job, 0, row, &place) || !place.divided) {
        return;
    }
    const uint32_t row_head = (row - place.span.first_row) * group + head % group;
    const uint32_t channel = threadIdx.x < args.head_dim ? threadIdx.x : args.head_dim - 1;
    const uint64_t stride =
        (uint64_t)args.kv_heads * place.span.rows * group * args.head_dim; /* to the next split */
    const struct pkvi_cuda_partial carry = pkvi_cuda_attend_carry(args, row, head);
    float max = args.carry_in ? *carry.max : -INFINITY;
    float sum = args.carry_in ? *carry.sum : 0.0f;
    float value = args.carry_in ? carry.values[channel] : 0.0f;
    __syncthreads(); /* a carry is read before it is written */
    for (uint32_t first = 0; first < place.splits; first += 32) {
        const uint32_t count = place.splits - first < 32 ? place.splits - first : 32;
        const struct pkvi_cuda_partial mine = pkvi_cuda_attend_partial(
            job, place, first + (lane < count ? lane : 0), head / group, row_head);
        const float split_max = lane < count ? *mine.max : -INFINITY;
        const float split_sum = lane < count ? *mine.sum : 0.0f;
        float after = fmaxf(max, split_max);
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const float other = __shfl_up_sync(PKV_WARP_ALL, after, distance);
            after = lane >= distance ? fmaxf(after, other) : after;
        }
        const float before = __shfl_up_sync(PKV_WARP_ALL, after, 1);
        const float keep = pkvi_cuda_weight(lane == 0 ? max : before, after);
        const float take = pkvi_cuda_weight(split_max, after);
        const float *from =
            pkvi_cuda_attend_partial(job, place, first, head / group, row_head).values + channel;
#pragma unroll 16
        for (uint32_t j = 0; j < count; j++) {
            const float weight = __shfl_sync(PKV_WARP_ALL, keep, (int)j);
            const float split_weight = __shfl_sync(PKV_WARP_ALL, take, (int)j);
            const float split_part = __shfl_sync(PKV_WARP_ALL, split_sum, (int)j);
            value = pkvi_cuda_merge(value, weight, from[j * stride], split_weight);
            sum = pkvi_cuda_merge(sum, weight, split_part, split_weight);
        }
        max = __shfl_sync(PKV_WARP_ALL, after, (int)(count - 1));
    }
    pkvi_cuda_attend_finish(args, row, head, max, sum, threadIdx.x - lane, value);
}

/* The most shared memory that a block of the device at hand may have. */
static uint32_t shared_bytes(void)
{
    int device = 0, bytes = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess) {
        return 0;
    }
    return (uint32_t)bytes;
}

static bool launch_mma(cudaStream_t stream, struct pkvi_cuda_attend *job)
{
    switch (job->args.kv_type) {
    case PKV_KV_F16:
        return pkvi_cuda_attend_f16(stream, job, shared_bytes());
    case PKV_KV_BF16:
        return pkvi_cuda_attend_bf16(stream, job, shared_bytes());
    case PKV_KV_Q8_0:
        return pkvi_cuda_attend_q8(stream, job, shared_bytes());
    case PKV_KV_F32:
    case PKV_KV_TYPE_COUNT:
        break;
    }
    return false;
}

static void launch_plain(cudaStream_t stream, struct pkvi_cuda_attend *job)
{
    const uint64_t tiles = (uint64_t)job->args.rows * job->args.kv_heads;
    job->tile[0] = job->args.heads / job->args.kv_heads;
    job->wide_above = UINT32_MAX;
    PKV_LAUNCH(attend_plain, (unsigned)(tiles > job->target[0] ? tiles : job->target[0]), THREADS,
               0, stream, *job);
}

/* May a span be divided, as far as the host knows? Where they lie only the device does. */
static bool may_divide(const struct pkvi_cuda_attend *job)
{
    const struct pkv_args_attend *args = &job->args;
    const bool one_split = args->key_end > 0 && args->key_end - args->key_begin <= PKV_SPLIT_KEYS;
    return job->room >= 2 * (uint64_t)args->heads && !one_split;
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_attend *args = (const struct pkv_args_attend *)arguments;
    const struct pkvi_cuda_stream *native = (const struct pkvi_cuda_stream *)native_stream;
    if (args->rows == 0 || args->span_count == 0) {
        return PKV_OK;
    }
    struct pkvi_cuda_attend job = {};
    job.args = *args;
    job.room = args->scratch_bytes / (4 * ((uint64_t)args->head_dim + 2));
    job.target[0] = NARROW_UNITS * native->multiprocessors;
    job.target[1] = WIDE_UNITS * native->multiprocessors;
    if (!launch_mma(native->stream, &job)) {
        launch_plain(native->stream, &job);
    }
    if (may_divide(&job)) {
        PKV_LAUNCH(attend_merge, args->rows * args->heads, (args->head_dim + 31) / 32 * 32, 0,
                   native->stream, job);
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of attend");
}

const struct pkv_kernel pkvi_kernel_attend_cuda = {
    PKV_OP_ATTEND, "cuda", 0, sizeof(struct pkv_args_attend), launch, pkvi_cost_attend,
};
