/*
 * predict.cu: what a query that is not there yet will attend to; twin of kernels/ref/predict.c, its
 * codes to the bit. A block has a span, a KV head and a chunk of tokens; those behind the last
 * token leave at once. A lane has a token: a word of each of its warp's is one line of 128 bytes,
 * and all query heads of the group use it. Two kernels: one for log-sum-exp of every chunk, one for
 * probabilities by that of all chunks, which stay in shared memory until the best are found; the
 * index is read twice, the second time mostly from L2.
 */
#include "kernels/cost.h"
#include "kernels/cuda/recall.cuh"

#define THREADS 512u
#define WARPS (THREADS / 32)
#define HEADS 8u /* query heads that share a read of the index */
#define WORDS 4u /* of a token on their way together */
#define LOG2E 1.44269504f

/* 4 codes a word, of which 4 a vector. */
#define CODES (PKV_INDEX_CHANNELS / 16)

/* A query head as an index asks for it; twin of struct pkvi_sketch. */
struct sketch {
    float unit;          /* of a code */
    float unit2, shift2; /* unit and -lse as powers of 2 */
    float middle;        /* of a key in the middle of all channels, in its dots */
};

/* Two channels of a query head, a pair where it is rotated. */
static __device__ __forceinline__ float2 query_pair(const struct pkv_args_predict &args,
                                                    const struct pkvi_cuda_recall &recall,
                                                    uint32_t head, const uint16_t *channel,
                                                    uint32_t i)
{
    if (!args.q) {
        const float *q = pkvi_cuda_recall_part<const float>(recall, args.state.query) +
                         (uint64_t)head * args.head_dim;
        return make_float2(q[channel[i]], q[channel[i + 1]]);
    }
    const uint32_t row = recall.span->first_row + recall.span->rows - 1;
    const float *q = PKV_AT(const float, args.q) + (uint64_t)row * args.q_stride +
                     (uint64_t)head * args.index.channels;
    const float *norm = PKV_AT(const float, args.q_norm);
    float a = q[i], b = q[i + 1];
    if (norm) {
        const float gain = pkvi_cuda_recall_part<const float>(recall, args.state.gain)[head];
        a = __fmul_rn(a, __fmul_rn(gain, norm[channel[i]]));
        b = __fmul_rn(b, __fmul_rn(gain, norm[channel[i + 1]]));
    }
    const uint32_t pair = args.halves ? channel[i] : channel[i] / 2;
    if (pair >= args.pairs) {
        return make_float2(a, b);
    }
    const float *table = PKV_AT(const float, args.table) + ((uint64_t)row * args.pairs + pair) * 2;
    return make_float2(__fsub_rn(__fmul_rn(a, table[0]), __fmul_rn(b, table[1])),
                       __fadd_rn(__fmul_rn(a, table[1]), __fmul_rn(b, table[0])));
}

/* Log-sum-exp of a query head's scores, from the parts of all chunks. */
static __device__ float lse_of(const struct pkvi_cuda_recall &recall, uint32_t head)
{
    const uint32_t used = (recall.tokens + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK;
    const float *largest = recall.largest + (uint64_t)head * recall.chunks;
    const float *sum = recall.sum + (uint64_t)head * recall.chunks;
    float most = largest[0], total = 0.0f;
    for (uint32_t c = 1; c < used; c++) {
        most = fmaxf(most, largest[c]);
    }
    for (uint32_t c = 0; c < used; c++) {
        total += sum[c] * expf(largest[c] - most);
    }
    return most + logf(total);
}

/* By a warp. code: [PKV_INDEX_CHANNELS], 0 where there are no more channels. x: room for as many.
 */
template <bool MEASURE>
static __device__ void make_sketch(const struct pkv_args_predict &args,
                                   const struct pkvi_cuda_recall &recall, uint32_t kv_head,
                                   uint32_t head, uint32_t *x, int8_t *code, struct sketch *out)
{
    const uint32_t lane = threadIdx.x % 32, count = args.index.channels;
    const uint16_t *channel =
        PKV_AT(const uint16_t, args.index.channel) + (uint64_t)kv_head * count;
    const float *step = PKV_AT(const float, args.index.step) + (uint64_t)kv_head * count;
    float largest = 0.0f;
#pragma unroll 1 /* often there is but one: short code */
    for (uint32_t i = 2 * lane; i < count; i += 64) {
        const float2 pair = query_pair(args, recall, head, channel, i);
        const float a = __fmul_rn(__fmul_rn(pair.x, step[i]), args.scale);
        const float b = __fmul_rn(__fmul_rn(pair.y, step[i + 1]), args.scale);
        x[i] = __float_as_uint(a);
        x[i + 1] = __float_as_uint(b);
        largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
    }
    largest = pkvi_cuda_warp_max(largest);
    const bool some = largest > 0.0f && largest < INFINITY;
    const float unit = some ? __fdiv_rn(largest, 127.0f) : 0.0f;
    int32_t sum = 0;
#pragma unroll 1
    for (uint32_t i = 2 * lane; i < PKV_INDEX_CHANNELS; i += 64) {
        const bool here = some && i < count;
        const int32_t a = here ? __float2int_rn(__fdiv_rn(__uint_as_float(x[i]), unit)) : 0;
        const int32_t b = here ? __float2int_rn(__fdiv_rn(__uint_as_float(x[i + 1]), unit)) : 0;
        code[i] = (int8_t)a;
        code[i + 1] = (int8_t)b;
        sum += a + b;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(PKV_WARP_ALL, sum, distance);
    }
    if (lane == 0) {
        const float lse = MEASURE ? 0.0f : lse_of(recall, head);
        const float middle = (float)sum * (args.index.bits == 8 ? 127.5f - 128.0f : 7.5f);
        *out = {unit, unit * LOG2E, -lse * LOG2E, middle};
    }
}

/* Words of a token from `first` on; word w of it is at 32 * w. */
static __device__ __forceinline__ void load_words(const uint32_t *token, uint32_t first,
                                                  uint32_t words, uint32_t word[WORDS])
{
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) {
        word[i] = first + i < words ? token[(first + i) * PKV_PAGE_TOKENS] : 0;
    }
}

/* Codes of words, 4 channels each in order; those of 8 bits less 128: both factors have a sign. */
template <uint32_t BITS>
static __device__ __forceinline__ void split(const uint32_t word[WORDS], int key[WORDS * 8 / BITS])
{
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i++) {
        if constexpr (BITS == 4) {
            key[2 * i] = (int)(word[i] & 0x0f0f0f0fu);
            key[2 * i + 1] = (int)(word[i] >> 4 & 0x0f0f0f0fu);
        } else {
            key[i] = (int)(word[i] ^ 0x80808080u);
        }
    }
}

/* Adds up code * the key's code, from a vector of codes on. */
template <uint32_t KEYS>
static __device__ __forceinline__ void add_dots(const int key[KEYS], const int4 (*code)[CODES],
                                                uint32_t vector, uint32_t heads, int32_t dot[HEADS])
{
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
        if (h < heads) {
#pragma unroll
            for (uint32_t i = 0; i < KEYS; i += 4) {
                const int4 of = code[h][vector + i / 4];
                dot[h] = __dp4a(key[i], of.x, dot[h]);
                dot[h] = __dp4a(key[i + 1], of.y, dot[h]);
                dot[h] = __dp4a(key[i + 2], of.z, dot[h]);
                dot[h] = __dp4a(key[i + 3], of.w, dot[h]);
            }
        }
    }
}

/* A sum of exponentials of unit * dot, relative to that of the largest dot. As floats dots are
 * exact: multiples of 1/2 less than 2^23. */
struct tail {
    float most, sum;
};

static __device__ __forceinline__ struct tail join(const struct tail &a, const struct tail &b,
                                                   float unit2)
{
    const float most = fmaxf(a.most, b.most);
    return {most, a.sum * exp2f((a.most - most) * unit2) + b.sum * exp2f((b.most - most) * unit2)};
}

/* Log-sum-exp of a query head over a warp's tokens, to its place of a block's. */
static __device__ __forceinline__ void put_tail(struct tail mine, float unit2, struct tail *part)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        const float most = __shfl_xor_sync(PKV_WARP_ALL, mine.most, distance);
        const float sum = __shfl_xor_sync(PKV_WARP_ALL, mine.sum, distance);
        mine = join(mine, {most, sum}, unit2);
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = mine;
    }
}

static __device__ __forceinline__ void add_to_tail(const struct sketch &sketch, int32_t codes,
                                                   struct tail *tail)
{
    const float dot = __fsub_rn((float)codes, sketch.middle);
    const float apart = exp2f(-fabsf(dot - tail->most) * sketch.unit2);
    const bool more = dot > tail->most;
    tail->sum = __fmaf_rn(apart, more ? tail->sum : 1.0f, more ? 1.0f : tail->sum);
    tail->most = fmaxf(dot, tail->most);
}

/* Of a token, for a query head. */
static __device__ __forceinline__ float probability(const struct sketch &sketch, int32_t codes)
{
    const float dot = __fsub_rn((float)codes, sketch.middle);
    return exp2f(__fmaf_rn(dot, sketch.unit2, sketch.shift2));
}

/* MEASURE: log-sum-exp of `heads` query heads in parts; else adds their probabilities to p. */
template <uint32_t BITS, bool MEASURE>
static __device__ void score(const struct pkv_args_predict &args,
                             const struct pkvi_cuda_recall &recall, uint32_t count, uint32_t heads,
                             bool fresh, const int4 (*code)[CODES], const struct sketch *sketch,
                             float *p, struct tail (*part)[WARPS])
{
    constexpr uint32_t keys = WORDS * 8 / BITS; /* of 4 channels each, that words hold */
    const uint32_t words = args.index.channels * BITS / 32, page_words = words * PKV_PAGE_TOKENS;
    const uint64_t first_page = blockIdx.x * (PKV_PREDICT_CHUNK / PKV_PAGE_TOKENS);
    const uint64_t step = (uint64_t)args.kv_heads * page_words; /* to the next page */
    const uint32_t *token = pkvi_cuda_recall_part<const uint32_t>(recall, args.state.index) +
                            (first_page + threadIdx.x / PKV_PAGE_TOKENS) * step +
                            blockIdx.y * page_words + threadIdx.x % PKV_PAGE_TOKENS;
    struct tail mine[HEADS];
    uint32_t word[WORDS];
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
        mine[h] = {-0x1p30f, 0.0f};
    }
    if (threadIdx.x < count) {
        load_words(token, 0, words, word);
    }
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint32_t *next = token + THREADS / PKV_PAGE_TOKENS * step;
        int32_t dot[HEADS] = {};
        for (uint32_t first = 0; first < words; first += WORDS) {
            int key[keys];
            split<BITS>(word, key);
            if (first + WORDS < words) { /* the next ones are on their way meanwhile */
                load_words(token, first + WORDS, words, word);
            } else if (i + THREADS < count) {
                load_words(next, 0, words, word);
            }
            add_dots<keys>(key, code, first * keys / WORDS / 4, heads, dot);
        }
        float sum = MEASURE || fresh ? 0.0f : p[i];
#pragma unroll
        for (uint32_t h = 0; h < HEADS; h++) {
            if (h < heads && MEASURE) {
                add_to_tail(sketch[h], dot[h], &mine[h]);
            } else if (h < heads) {
                sum = __fadd_rn(sum, probability(sketch[h], dot[h]));
            }
        }
        if (!MEASURE) {
            p[i] = sum;
        }
        token = next;
    }
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
        if (h < heads && MEASURE) {
            put_tail(mine[h], sketch[h].unit2, part[h]);
        }
    }
}

/* p, a mean from now on, to memory; here it becomes -1 where a token cannot come. Returns how many
 * of the warp's can. */
static __device__ uint32_t keep_missing(const struct pkvi_cuda_recall &recall, float share,
                                        uint32_t begin, uint32_t count, float *p)
{
    uint32_t missing = 0;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint32_t t = begin + i;
        const bool here = t >= recall.ring ||
                          (recall.resident[t / PKV_PAGE_TOKENS] >> t % PKV_PAGE_TOKENS & 1u) != 0;
        const float mean = __fmul_rn(share, p[i]);
        recall.p[t] = mean;
        p[i] = here ? -1.0f : mean;
        missing += (uint32_t)__popc(__ballot_sync(PKV_WARP_ALL, !here));
    }
    return missing;
}

static_assert(HEADS * PKV_INDEX_CHANNELS <= PKV_SELECT_BINS, "queries are in the room of bins");

/* Queries of the heads from `first` on, by a block. */
template <bool MEASURE>
static __device__ void make_sketches(const struct pkv_args_predict &args,
                                     const struct pkvi_cuda_recall &recall, uint32_t first,
                                     uint32_t heads, uint32_t *x, int4 (*code)[CODES],
                                     struct sketch *sketch)
{
    for (uint32_t h = threadIdx.x / 32; h < heads; h += WARPS) {
        make_sketch<MEASURE>(args, recall, blockIdx.y, first + h, x + h * PKV_INDEX_CHANNELS,
                             (int8_t *)code[h], &sketch[h]);
    }
    __syncthreads();
}

template <uint32_t BITS>
static __global__ void __launch_bounds__(THREADS, 2) measure(struct pkv_args_predict args)
{
    PKV_SHARED(int4, code, [HEADS][CODES]);
    PKV_SHARED(struct sketch, sketch, [HEADS]);
    PKV_SHARED(struct tail, part, [HEADS][WARPS]);
    PKV_SHARED(uint32_t, x, [HEADS * PKV_INDEX_CHANNELS]);
    const uint32_t chunk = blockIdx.x, kv_head = blockIdx.y, group = args.heads / args.kv_heads;
    const struct pkvi_cuda_recall recall = pkvi_cuda_recall_of(args, blockIdx.z, kv_head);
    const uint32_t begin = chunk * PKV_PREDICT_CHUNK;
    if (begin >= recall.tokens) {
        return;
    }
    const uint32_t count = min(recall.tokens - begin, PKV_PREDICT_CHUNK);
    for (uint32_t first = 0; first < group; first += HEADS) {
        const uint32_t heads = min(group - first, HEADS), head = kv_head * group + first;
        make_sketches<true>(args, recall, head, heads, x, code, sketch);
        score<BITS, true>(args, recall, count, heads, true, code, sketch, (float *)0, part);
        __syncthreads();
        if (threadIdx.x < heads) {
            const struct sketch of = sketch[threadIdx.x];
            struct tail all = part[threadIdx.x][0];
            for (uint32_t w = 1; w < WARPS; w++) {
                all = join(all, part[threadIdx.x][w], of.unit2);
            }
            const uint64_t at = (uint64_t)(head + threadIdx.x) * recall.chunks + chunk;
            recall.largest[at] = __fmul_rn(of.unit, all.most);
            recall.sum[at] = all.sum;
        }
        __syncthreads();
    }
}

template <uint32_t BITS>
static __global__ void __launch_bounds__(THREADS, 2) predict(struct pkv_args_predict args)
{
    PKV_SHARED(float, p, [PKV_PREDICT_CHUNK]);
    PKV_SHARED(int4, code, [HEADS][CODES]);
    PKV_SHARED(struct sketch, sketch, [HEADS]);
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]); /* before: of a query head's channels */
    PKV_SHARED(uint32_t, counts, [WARPS]);
    PKV_SHARED(struct pkvi_cuda_select, found, [1]);
    PKV_SHARED(float, best, [PKV_RECALL_CAP]);
    PKV_SHARED(int32_t, place, [PKV_RECALL_CAP]);
    const uint32_t chunk = blockIdx.x, kv_head = blockIdx.y, cap = args.state.cap;
    const uint32_t warp = threadIdx.x / 32, group = args.heads / args.kv_heads;
    const struct pkvi_cuda_recall recall = pkvi_cuda_recall_of(args, blockIdx.z, kv_head);
    const uint32_t begin = chunk * PKV_PREDICT_CHUNK;
    if (begin >= recall.tokens) {
        return;
    }
    const uint32_t count = min(recall.tokens - begin, PKV_PREDICT_CHUNK);
    for (uint32_t first = 0; first < group; first += HEADS) {
        const uint32_t heads = min(group - first, HEADS);
        make_sketches<false>(args, recall, kv_head * group + first, heads, bins, code, sketch);
        score<BITS, false>(args, recall, count, heads, first == 0, code, sketch, p,
                           (struct tail(*)[WARPS])0);
        __syncthreads();
    }
    const float share = (float)args.kv_heads / (float)args.heads;
    const uint32_t missing_here = keep_missing(recall, share, begin, count, p);
    if (threadIdx.x % 32 == 0) {
        counts[warp] = missing_here;
    }
    __syncthreads();
    uint32_t missing = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        missing += counts[w];
    }
    __syncthreads();
    const uint32_t wanted = min(cap, missing);
    pkvi_cuda_best<THREADS>((const float *)p, count, wanted, {bins, counts, found}, best, place);
    for (uint32_t i = threadIdx.x; i < cap; i += THREADS) {
        const uint64_t at = (uint64_t)chunk * cap + i;
        recall.best[at] = i < wanted ? best[i] : -1.0f;
        recall.best_token[at] = i < wanted ? (int32_t)begin + place[i] : -1;
    }
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkv_args_predict *args = (const struct pkv_args_predict *)arguments;
    const uint32_t tokens = args->state.blocks * PKV_PAGE_TOKENS;
    const dim3 grid((tokens + PKV_PREDICT_CHUNK - 1) / PKV_PREDICT_CHUNK, args->kv_heads,
                    args->span_count);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
        return PKV_OK;
    }
    if (args->index.bits == 8) {
        PKV_LAUNCH((measure<8>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
        PKV_LAUNCH((predict<8>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    } else {
        PKV_LAUNCH((measure<4>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
        PKV_LAUNCH((predict<4>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of predict");
}

const struct pkv_kernel pkvi_kernel_predict_cuda = {
    PKV_OP_PREDICT, "cuda", 0, sizeof(struct pkv_args_predict), launch, pkvi_cost_predict,
};
