/*
 * attend.cuh: how attention is cut into units, where what they come to is kept, and how it is put
 * together. Knows no way to compute a split (attend.cu: any shape; attend_mma.cu: tensor cores).
 *
 * A tile is some consecutive row heads (a row of the step and one query head) of one span and KV
 * head, by row, then by head. A unit is a tile with all its splits, or, where there are too few
 * tiles for the device, one split of it: its *partial* (largest score, sum, values) then waits in
 * scratch for a second kernel. Cuts have no influence on results: splits are computed alike and
 * merged in ascending order everywhere.
 *
 * Spans are in device memory: each warp finds the span of its unit by itself.
 */
#ifndef PKV_CUDA_ATTEND_CUH
#define PKV_CUDA_ATTEND_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/kv.cuh"

#define PKV_LOG2E 1.44269504088896341f

/* A launch as its kernels see it. */
struct pkvi_cuda_attend {
    struct pkv_args_attend args;
    uint64_t room; /* partials of a row head that scratch holds */
    /* [1]: of spans with more than wide_above row heads of a KV head. */
    uint32_t wide_above;
    uint32_t tile[2];   /* row heads in a tile */
    uint32_t target[2]; /* units that keep the device busy: fewer tiles are divided */
};

/* A unit, or a row, and the span it is in. */
struct pkvi_cuda_attend_place {
    struct pkv_row_span span;     /* its first_position is a key of the view */
    uint32_t first_split, splits; /* of the span; 0 where none of its keys is in the range */
    uint32_t tile, tiles, wide;
    bool wants, divided;
    uint64_t partial; /* the span's first */
    uint32_t local;   /* the unit's number in the span */
};

static __device__ __forceinline__ uint32_t pkvi_cuda_first_key(const struct pkv_args_attend &args,
                                                               uint32_t position)
{
    const uint32_t first =
        args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
    return first > args.key_begin ? first : args.key_begin;
}

static __device__ __forceinline__ uint32_t pkvi_cuda_end_key(const struct pkv_args_attend &args,
                                                             uint32_t position)
{
    return args.key_end > 0 && args.key_end <= position ? args.key_end : position + 1;
}

/* Span i, its first_position as a key; no rows where there is none. */
static __device__ __forceinline__ struct pkv_row_span
pkvi_cuda_attend_span(const struct pkv_args_attend &args, uint32_t i)
{
    if (i >= args.span_count) {
        return {0, 0, 0, 0};
    }
    struct pkv_row_span span = PKV_AT(const struct pkv_row_span, args.spans)[i];
    span.first_position =
        pkvi_cuda_span_key(PKV_AT(const struct pkv_kv_view, args.views)[span.view], span);
    return span;
}

static __device__ __forceinline__ void
pkvi_cuda_attend_describe(const struct pkvi_cuda_attend &job, struct pkvi_cuda_attend_place *place)
{
    const struct pkv_args_attend &args = job.args;
    const uint32_t first = place->span.first_position, last = first + place->span.rows - 1;
    const uint32_t begin = pkvi_cuda_first_key(args, first), end = pkvi_cuda_end_key(args, last);
    const uint32_t row_heads = place->span.rows * (args.heads / args.kv_heads);
    place->first_split = begin / PKV_SPLIT_KEYS;
    place->splits = begin < end ? (end - 1) / PKV_SPLIT_KEYS + 1 - place->first_split : 0;
    place->wide = row_heads > job.wide_above;
    place->tile = job.tile[place->wide];
    place->tiles = (row_heads + place->tile - 1) / place->tile;
    place->wants =
        place->splits > 1 && (uint64_t)place->tiles * args.kv_heads < job.target[place->wide];
}

/*
 * The place of unit `wanted` of those of narrow or wide spans, or (BY_ROW) of a row; false: there
 * is none. All lanes of a warp call, with the same arguments.
 */
template <bool BY_ROW>
static __device__ bool pkvi_cuda_attend_find(const struct pkvi_cuda_attend &job, uint32_t wide,
                                             uint32_t wanted, struct pkvi_cuda_attend_place *place)
{
    const struct pkv_args_attend &args = job.args;
    uint64_t partials = 0;
    for (uint32_t first = 0; first < args.span_count; first += 32) {
        const uint32_t i = first + threadIdx.x % 32;
        place->span = pkvi_cuda_attend_span(args, i);
        const bool some = place->span.rows > 0;
        pkvi_cuda_attend_describe(job, place);
        const uint64_t need =
            some && place->wants ? (uint64_t)place->span.rows * args.heads * place->splits : 0;
        uint64_t after = need;
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint64_t before = __shfl_up_sync(PKV_WARP_ALL, after, distance);
            after += threadIdx.x % 32 >= distance ? before : 0;
        }
        after += partials;
        const bool divided = need > 0 && after <= job.room;
        const uint32_t units = some && place->wide == wide
                                   ? place->tiles * args.kv_heads * (divided ? place->splits : 1)
                                   : 0;
        uint32_t last = units;
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t before = __shfl_up_sync(PKV_WARP_ALL, last, distance);
            last += threadIdx.x % 32 >= distance ? before : 0;
        }
        const bool here = BY_ROW ? wanted - place->span.first_row < place->span.rows
                                 : wanted - (last - units) < units;
        const unsigned found = __ballot_sync(PKV_WARP_ALL, here);
        if (found) {
            const uint32_t lane = (uint32_t)__ffs((int)found) - 1;
            place->span = pkvi_cuda_attend_span(args, first + lane);
            pkvi_cuda_attend_describe(job, place);
            place->divided = __shfl_sync(PKV_WARP_ALL, (int)divided, (int)lane) != 0;
            place->partial = __shfl_sync(PKV_WARP_ALL, after - need, (int)lane);
            place->local = wanted - __shfl_sync(PKV_WARP_ALL, last - units, (int)lane);
            return true;
        }
        wanted -= BY_ROW ? 0 : __shfl_sync(PKV_WARP_ALL, last, 31);
        partials = __shfl_sync(PKV_WARP_ALL, after, 31);
    }
    return false;
}

/* What a unit is of its span. */
struct pkvi_cuda_attend_unit {
    uint32_t kv_head, first_row_head, row_heads; /* of the span and KV head */
    uint32_t first_split, splits;
};

static __device__ __forceinline__ struct pkvi_cuda_attend_unit
pkvi_cuda_attend_unit_of(const struct pkv_args_attend &args,
                         const struct pkvi_cuda_attend_place &place)
{
    struct pkvi_cuda_attend_unit unit;
    uint32_t local = place.local;
    unit.first_split = place.first_split;
    unit.splits = place.splits;
    if (place.divided) {
        unit.first_split += local % place.splits;
        unit.splits = 1;
        local /= place.splits;
    }
    unit.kv_head = local % args.kv_heads;
    /* the last tile sees the most keys: it comes first */
    unit.first_row_head = (place.tiles - 1 - local / args.kv_heads) * place.tile;
    const uint32_t left = place.span.rows * (args.heads / args.kv_heads) - unit.first_row_head;
    unit.row_heads = left < place.tile ? left : place.tile;
    return unit;
}

/* Largest score, sum of exp(score - largest), and values weighted so, of one row head. */
struct pkvi_cuda_partial {
    float *max, *sum, *values;
};

/* Of the split numbered `split` in the span, and a row head of its KV head. */
static __device__ __forceinline__ struct pkvi_cuda_partial
pkvi_cuda_attend_partial(const struct pkvi_cuda_attend &job,
                         const struct pkvi_cuda_attend_place &place, uint32_t split,
                         uint32_t kv_head, uint32_t row_head)
{
    const uint32_t group = job.args.heads / job.args.kv_heads;
    const uint64_t row_heads = (uint64_t)place.span.rows * group;
    const uint64_t at =
        place.partial + ((uint64_t)split * job.args.kv_heads + kv_head) * row_heads + row_head;
    float *max = PKV_AT(float, job.args.scratch);
    return {max + at, max + job.room + at, max + 2 * job.room + at * job.args.head_dim};
}

static __device__ __forceinline__ struct pkvi_cuda_partial
pkvi_cuda_attend_carry(const struct pkv_args_attend &args, uint32_t row, uint32_t head)
{
    const uint64_t row_heads = (uint64_t)args.rows * args.heads;
    const uint64_t at = (uint64_t)row * args.heads + head;
    float *max = PKV_AT(float, args.carry);
    return {max + at, max + row_heads + at, max + 2 * row_heads + at * args.head_dim};
}

/* exp(from - to), from <= to; 1 where nothing has been seen yet. */
static __device__ __forceinline__ float pkvi_cuda_weight(float from, float to)
{
    return from == to ? 1.0f : exp2f(__fmul_rn(from - to, PKV_LOG2E));
}

/* total * keep + partial * take, rounded alike wherever it is done. */
static __device__ __forceinline__ float pkvi_cuda_merge(float total, float keep, float partial,
                                                        float take)
{
    return __fmaf_rn(total, keep, __fmul_rn(partial, take));
}

static __device__ __forceinline__ float pkvi_cuda_score(const struct pkv_args_attend &args,
                                                        float scaled)
{
    return args.softcap > 0 ? __fmul_rn(args.softcap, tanhf(scaled / args.softcap)) : scaled;
}

/*
 * What a row head came to: 32 channels from `col` of the head on, a lane each, to the results or
 * to the carry. All lanes call.
 */
static __device__ __forceinline__ void pkvi_cuda_attend_finish(const struct pkv_args_attend &args,
                                                               uint32_t row, uint32_t head,
                                                               float max, float sum, uint32_t col,
                                                               float value)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t count = args.head_dim - col < 32 ? args.head_dim - col : 32;
    const bool first = col == 0 && lane == 0;
    if (args.carry_out) {
        const struct pkvi_cuda_partial carry = pkvi_cuda_attend_carry(args, row, head);
        if (lane < count) {
            carry.values[col + lane] = value;
        }
        if (first) {
            *carry.max = max;
            *carry.sum = sum;
        }
        return;
    }
    pkvi_cuda_act_put(args.out, row, head * args.head_dim + col, count,
                      __fmul_rn(value, 1.0f / sum));
    if (first && args.lse) {
        PKV_AT(float, args.lse)[(uint64_t)row * args.heads + head] = max + logf(sum);
    }
}

/* Everything but the merge, with tensor cores: false, and nothing launched, where they do not serve
 * the shape or the device has too little shared memory (smem_bytes: what a block may have). */
bool pkvi_cuda_attend_f16(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes);
bool pkvi_cuda_attend_bf16(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes);
bool pkvi_cuda_attend_q8(cudaStream_t stream, struct pkvi_cuda_attend *job, uint32_t smem_bytes);

#endif
