/*
 * predict.cu: what a query that is not there yet will attend to; twin of kernels/ref/predict.c, its
 * codes to the bit. A block has a span, a KV head and a chunk of tokens; those behind the last
 * token leave at once. A lane has a token: a word of each of its warp's is one line of 128 bytes,
 * and all query heads of the group use it. The index is read once, the chunk's probabilities stay
 * in shared memory until its best are found.
 */
#include "kernels/cost.h"
#include "kernels/cuda/recall.cuh"

#define THREADS 512u
#define WARPS (THREADS / 32)
#define HEADS 8u /* query heads that share a read of the index */
#define WORDS 8u /* of a token on their way together */
#define LOG2E 1.44269504f

/* 4 codes a word, of which 4 a vector. */
#define CODES (PKV_INDEX_CHANNELS / 16)

/* A query head as an index asks for it; twin of struct pkvi_sketch. */
struct sketch {
    float unit, lse;
    int32_t bias; /* what codes of 8 bits less 128 leave out */
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

/* By a warp. code: [PKV_INDEX_CHANNELS], 0 where there are no more channels. */
static __device__ void make_sketch(const struct pkv_args_predict &args,
                                   const struct pkvi_cuda_recall &recall, uint32_t kv_head,
                                   uint32_t head, int8_t *code, struct sketch *out)
{
    const uint32_t lane = threadIdx.x % 32, count = args.index.channels;
    const uint16_t *channel =
        PKV_AT(const uint16_t, args.index.channel) + (uint64_t)kv_head * count;
    const float *step = PKV_AT(const float, args.index.step) + (uint64_t)kv_head * count;
    float2 x[PKV_INDEX_CHANNELS / 64];
    float largest = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < PKV_INDEX_CHANNELS / 64; j++) {
        const uint32_t i = 2 * (j * 32 + lane);
        x[j] = make_float2(0.0f, 0.0f);
        if (i < count) {
            x[j] = query_pair(args, recall, head, channel, i);
            x[j].x = __fmul_rn(__fmul_rn(x[j].x, step[i]), args.scale);
            x[j].y = __fmul_rn(__fmul_rn(x[j].y, step[i + 1]), args.scale);
            largest = fmaxf(largest, fmaxf(fabsf(x[j].x), fabsf(x[j].y)));
        }
    }
    largest = pkvi_cuda_warp_max(largest);
    const bool some = largest > 0.0f && largest < INFINITY;
    const float unit = some ? __fdiv_rn(largest, 127.0f) : 0.0f;
    int32_t sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < PKV_INDEX_CHANNELS / 64; j++) {
        const int32_t a = some ? __float2int_rn(__fdiv_rn(x[j].x, unit)) : 0;
        const int32_t b = some ? __float2int_rn(__fdiv_rn(x[j].y, unit)) : 0;
        code[2 * (j * 32 + lane)] = (int8_t)a;
        code[2 * (j * 32 + lane) + 1] = (int8_t)b;
        sum += a + b;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(PKV_WARP_ALL, sum, distance);
    }
    if (lane == 0) {
        *out = {unit, pkvi_cuda_recall_part<const float>(recall, args.state.lse)[head],
                args.index.bits == 8 ? 128 * sum : 0};
    }
}

/* Sums over channels of code * the key's code, of a token; word w of it is at 32 * w. */
template <uint32_t BITS>
static __device__ __forceinline__ void dots(const uint32_t *token, uint32_t words,
                                            const int4 (*code)[CODES], uint32_t heads,
                                            int32_t dot[HEADS])
{
    for (uint32_t first = 0; first < words; first += WORDS) {
        uint32_t key[WORDS];
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            key[i] = first + i < words ? token[(first + i) * PKV_PAGE_TOKENS] : 0;
        }
#pragma unroll
        for (uint32_t h = 0; h < HEADS; h++) {
            if (h >= heads) {
                continue;
            }
#pragma unroll
            for (uint32_t i = 0; i < WORDS; i += BITS / 2) {
                const int4 of = code[h][(first + i) / (BITS / 2)];
                int key4[4];
                if constexpr (BITS == 4) {
                    key4[0] = (int)(key[i] & 0x0f0f0f0fu);
                    key4[1] = (int)(key[i] >> 4 & 0x0f0f0f0fu);
                    key4[2] = (int)(key[i + 1] & 0x0f0f0f0fu);
                    key4[3] = (int)(key[i + 1] >> 4 & 0x0f0f0f0fu);
                } else { /* less 128: both factors have a sign */
                    for (uint32_t k = 0; k < 4; k++) {
                        key4[k] = (int)(key[i + k] ^ 0x80808080u);
                    }
                }
                dot[h] = __dp4a(key4[0], of.x, dot[h]);
                dot[h] = __dp4a(key4[1], of.y, dot[h]);
                dot[h] = __dp4a(key4[2], of.z, dot[h]);
                dot[h] = __dp4a(key4[3], of.w, dot[h]);
            }
        }
    }
}

/* A sum of exponentials of unit * dot, relative to that of the largest dot. */
struct tail {
    int32_t most;
    float sum;
};

static __device__ __forceinline__ struct tail join(const struct tail &a, const struct tail &b,
                                                   float unit2)
{
    const int32_t most = max(a.most, b.most);
    return {most, a.sum * exp2f((float)(a.most - most) * unit2) +
                      b.sum * exp2f((float)(b.most - most) * unit2)};
}

/* Log-sum-exp of a query head over the block's tokens. part: one a warp; in the first lane. */
static __device__ __forceinline__ void put_tail(struct tail mine, float unit2, struct tail *part)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        const int32_t most = __shfl_xor_sync(PKV_WARP_ALL, mine.most, distance);
        const float sum = __shfl_xor_sync(PKV_WARP_ALL, mine.sum, distance);
        mine = join(mine, {most, sum}, unit2);
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = mine;
    }
}

/* Adds the probabilities of `heads` query heads to p, and leaves log-sum-exp in parts. */
template <uint32_t BITS>
static __device__ void score(const struct pkv_args_predict &args,
                             const struct pkvi_cuda_recall &recall, uint32_t count, uint32_t heads,
                             bool fresh, const int4 (*code)[CODES], const struct sketch *sketch,
                             float *p, struct tail (*part)[WARPS])
{
    const uint32_t words = args.index.channels * BITS / 32, page_words = words * PKV_PAGE_TOKENS;
    const uint32_t first_page = blockIdx.x * (PKV_PREDICT_CHUNK / PKV_PAGE_TOKENS);
    const uint32_t *pages = pkvi_cuda_recall_part<const uint32_t>(recall, args.state.index) +
                            (uint64_t)blockIdx.y * page_words + threadIdx.x % 32;
    const float share = (float)args.kv_heads / (float)args.heads;
    struct tail mine[HEADS];
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
        mine[h] = {INT32_MIN / 2, 0.0f};
    }
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint64_t page = first_page + i / PKV_PAGE_TOKENS;
        int32_t dot[HEADS];
#pragma unroll
        for (uint32_t h = 0; h < HEADS; h++) {
            dot[h] = h < heads ? sketch[h].bias : 0;
        }
        dots<BITS>(pages + page * args.kv_heads * page_words, words, code, heads, dot);
        float sum = fresh ? 0.0f : p[i];
#pragma unroll
        for (uint32_t h = 0; h < HEADS; h++) {
            if (h < heads) {
                const float of = __fmul_rn(sketch[h].unit, (float)dot[h]);
                const float one = fminf(expf(__fsub_rn(of, sketch[h].lse)), 1.0f);
                sum = __fadd_rn(sum, __fmul_rn(share, one));
                const float apart =
                    exp2f(-fabsf((float)(dot[h] - mine[h].most)) * (sketch[h].unit * LOG2E));
                const bool more = dot[h] > mine[h].most;
                mine[h].sum = more ? fmaf(mine[h].sum, apart, 1.0f) : mine[h].sum + apart;
                mine[h].most = max(dot[h], mine[h].most);
            }
        }
        p[i] = sum;
    }
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
        if (h < heads) {
            put_tail(mine[h], sketch[h].unit * LOG2E, part[h]);
        }
    }
}

/* p of a chunk to memory; here what cannot come becomes -1. Returns how many can, of a lane's warp.
 */
static __device__ uint32_t keep_missing(const struct pkvi_cuda_recall &recall, uint32_t begin,
                                        uint32_t count, float *p)
{
    uint32_t missing = 0;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint32_t t = begin + i;
        const bool here = t >= recall.ring ||
                          (recall.resident[t / PKV_PAGE_TOKENS] >> t % PKV_PAGE_TOKENS & 1u) != 0;
        recall.p[t] = p[i];
        p[i] = here ? -1.0f : p[i];
        missing += (uint32_t)__popc(__ballot_sync(PKV_WARP_ALL, !here));
    }
    return missing;
}

template <uint32_t BITS>
static __global__ void __launch_bounds__(THREADS, 2) predict(struct pkv_args_predict args)
{
    PKV_SHARED(float, p, [PKV_PREDICT_CHUNK]);
    PKV_SHARED(int4, code, [HEADS][CODES]);
    PKV_SHARED(struct sketch, sketch, [HEADS]);
    PKV_SHARED(struct tail, part, [HEADS][WARPS]);
    PKV_SHARED(uint32_t, bins, [PKV_SELECT_BINS]);
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
        const uint32_t heads = min(group - first, HEADS), head = kv_head * group + first;
        for (uint32_t h = warp; h < heads; h += WARPS) {
            make_sketch(args, recall, kv_head, head + h, (int8_t *)code[h], &sketch[h]);
        }
        __syncthreads();
        score<BITS>(args, recall, count, heads, first == 0, code, sketch, p, part);
        __syncthreads();
        if (threadIdx.x < heads) {
            const float unit = sketch[threadIdx.x].unit;
            struct tail all = part[threadIdx.x][0];
            for (uint32_t w = 1; w < WARPS; w++) {
                all = join(all, part[threadIdx.x][w], unit * LOG2E);
            }
            const uint64_t at = (uint64_t)(head + threadIdx.x) * recall.chunks + chunk;
            recall.largest[at] = __fmul_rn(unit, (float)all.most);
            recall.sum[at] = all.sum;
        }
        __syncthreads();
    }
    const uint32_t missing_here = keep_missing(recall, begin, count, p);
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
        PKV_LAUNCH((predict<8>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    } else {
        PKV_LAUNCH((predict<4>), grid, THREADS, 0, pkvi_cuda_native(native_stream), *args);
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of predict");
}

const struct pkv_kernel pkvi_kernel_predict_cuda = {
    PKV_OP_PREDICT, "cuda", 0, sizeof(struct pkv_args_predict), launch, pkvi_cost_predict,
};
