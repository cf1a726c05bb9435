/*
 * predict.c: what a query that is not there yet will attend to. 16 tokens at a time, the query
 * heads of a group share what is loaded of the index. Exponentials are taken once, from the largest
 * score of the chunk; p weighs them when the sums of all chunks are there. The candidates are those
 * above a bound that the largest of groups of tokens give.
 */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/index_dot.h"
#include "kernels/cpu/math.h"
#include "kernels/heap.h"
#include "kernels/ref/predict.h"
#include "runtime/base/thread.h"

/* Pages of the index that are fetched before they are read: a KV head's lie apart, and come from
 * memory. */
#define AHEAD_PAGES 6u

#define GROUPS 1024u /* of tokens that share a largest p, at most; a power of 2 */
#define FEW 128u     /* candidates that are sorted by comparing all with all */

/* Up to INDEX_DOT_HEADS query heads of a unit. */
struct part {
    uint32_t first, heads;
    struct index_query query;
    float unit[INDEX_DOT_HEADS], middle[INDEX_DOT_HEADS];
    float largest[INDEX_DOT_HEADS]; /* what comes out of a chunk */
};

static const uint8_t *codes_of(const struct pkvi_predict_unit *unit, uint32_t token)
{
    const struct pkv_args_predict *args = unit->args;
    const uint64_t page = (uint64_t)(token / PKV_PAGE_TOKENS) * args->kv_heads + unit->kv_head;
    return PKV_AT(const uint8_t, pkvi_recall_part(unit->view, args->state.index)) +
           page * pkvi_index_page_bytes(&args->index) + token % PKV_PAGE_TOKENS * 4;
}

/* The queries of heads from `first` on. */
static void open_part(const struct pkvi_predict_unit *unit, uint32_t first, uint32_t heads,
                      struct part *part)
{
    const struct pkv_args_predict *args = unit->args;
    const uint32_t channels = args->index.channels;
    part->first = first;
    part->heads = heads;
    for (uint32_t h = 0; h < heads; h++) {
        const struct pkvi_sketch sketch = pkvi_sketch_make(args, unit->span, unit->view, first + h);
        part->unit[h] = sketch.unit;
        part->middle[h] = sketch.middle;
        part->query.sum[h] = 0;
        for (uint32_t i = 0; i < channels; i++) {
            part->query.sum[h] += sketch.code[i];
        }
        for (uint32_t j = 0; j < channels / 4; j++) {
            memcpy(&part->query.quad[j][h], sketch.code + 4 * j, 4);
        }
    }
}

/* What 16 tokens have in a page. */
PKV_INLINE void fetch_codes(const uint8_t *codes, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++) {
        ahead_fetch(codes + g * INDEX_GROUP_BYTES);
    }
}

/* Where a query head's scores of token 0 are. */
static float *score_of(const struct pkvi_predict_unit *unit, uint32_t head)
{
    return unit->scratch.score + (uint64_t)head * unit->args->state.blocks * PKV_PAGE_TOKENS;
}

/* Scores of the chunk's tokens, and the largest; bits and heads are constants. */
PKV_INLINE void scan_of(const uint32_t bits, const uint32_t heads,
                        const struct pkvi_predict_unit *unit, struct part *part)
{
    const uint32_t channels = unit->args->index.channels;
    const uint64_t step =
        (uint64_t)unit->args->kv_heads * pkvi_index_page_bytes(&unit->args->index);
    const uint8_t *page = codes_of(unit, unit->begin);
    struct v16 most[INDEX_DOT_HEADS];
    float *score[INDEX_DOT_HEADS];
    for (uint32_t h = 0; h < heads; h++) {
        most[h] = v16_set1(-INFINITY);
        score[h] = score_of(unit, part->first + h);
    }
    for (uint32_t t = unit->begin; t < unit->end; t += V16_LANES) {
        struct v16 dot[INDEX_DOT_HEADS];
        const uint8_t *codes = page + t % PKV_PAGE_TOKENS * 4;
        fetch_codes(t + AHEAD_PAGES * PKV_PAGE_TOKENS < unit->end ? codes + AHEAD_PAGES * step
                                                                  : codes,
                    channels * bits / 32);
        index_dot(bits, heads, codes, &part->query, channels, dot);
        PKV_UNROLL
        for (uint32_t h = 0; h < heads; h++) {
            const struct v16 own =
                v16_mul(v16_sub(dot[h], v16_set1(part->middle[h])), v16_set1(part->unit[h]));
            most[h] = v16_max(most[h], own);
            v16_store(score[h] + t, own);
        }
        page += t % PKV_PAGE_TOKENS > 0 ? step : 0;
    }
    for (uint32_t h = 0; h < heads; h++) {
        part->largest[h] = v16_largest(most[h]);
    }
}

#define SCANS(X, bits) X(bits, 1) X(bits, 2) X(bits, 3) X(bits, 4)
#define SCAN_FUNCTION(bits, heads)                                                                 \
    static void scan_##bits##_##heads(const struct pkvi_predict_unit *unit, struct part *part)     \
    {                                                                                              \
        scan_of(bits, heads, unit, part);                                                          \
    }
SCANS(SCAN_FUNCTION, 4)
SCANS(SCAN_FUNCTION, 8)

static void scan(const struct pkvi_predict_unit *unit, struct part *part)
{
#define SCAN_ENTRY(bits, heads) scan_##bits##_##heads,
    static void (*const scans[2][INDEX_DOT_HEADS])(const struct pkvi_predict_unit *,
                                                   struct part *) = {{SCANS(SCAN_ENTRY, 4)},
                                                                     {SCANS(SCAN_ENTRY, 8)}};
    scans[unit->args->index.bits == 8][part->heads - 1](unit, part);
}

/* exp(score - largest) in place of scores, and their sum. */
static void exponentiate(const struct pkvi_predict_unit *unit, const struct part *part)
{
    for (uint32_t h = 0; h < part->heads; h++) {
        const uint64_t at = (uint64_t)(part->first + h) * unit->chunks + unit->chunk;
        const struct v16 largest = v16_set1(part->largest[h]);
        float *score = score_of(unit, part->first + h);
        struct v16 low = v16_set1(0.0f), high = low;
        for (uint32_t t = unit->begin; t < unit->end; t += PKV_PAGE_TOKENS) {
            const struct v16 a = v16_exp(v16_sub(v16_load(score + t), largest));
            const struct v16 b = v16_exp(v16_sub(v16_load(score + t + V16_LANES), largest));
            v16_store(score + t, a);
            v16_store(score + t + V16_LANES, b);
            low = v16_add(low, a);
            high = v16_add(high, b);
        }
        unit->scratch.largest[at] = part->largest[h];
        unit->scratch.sum[at] = v16_sum(v16_add(low, high));
    }
}

/* p of the chunk's tokens. */
static void weigh(const struct pkvi_predict_unit *unit, float *p)
{
    const uint32_t group = unit->args->heads / unit->args->kv_heads;
    for (uint32_t h = 0; h < group; h++) {
        const uint32_t head = unit->kv_head * group + h;
        const struct v16 factor = v16_set1(pkvi_predict_factor(unit, head));
        const float *score = score_of(unit, head);
        for (uint32_t t = unit->begin; t < unit->end; t += V16_LANES) {
            const struct v16 own = v16_load(score + t);
            v16_store(p + t, h > 0 ? v16_fma(own, factor, v16_load(p + t)) : v16_mul(own, factor));
        }
    }
}

/* Tokens of a block that may come: bit t is its token t. */
static uint32_t missing(const struct pkvi_predict_unit *unit, const uint32_t *resident,
                        uint32_t block)
{
    const uint32_t ring = pkvi_ring_token(unit->view, &unit->args->state);
    const uint32_t first = block * PKV_PAGE_TOKENS;
    if (ring <= first) {
        return 0;
    }
    const uint32_t before =
        ring - first < PKV_PAGE_TOKENS ? (1u << (ring - first)) - 1 : UINT32_MAX;
    return before & ~resident[block];
}

/* The largest number (a little below: of 15 bits) that at least `cap` of the `count` groups reach;
 * 0 where so many are not there. p >= 0 compares as integers do. */
static float bound_of(const int32_t *group, uint32_t count, uint32_t cap)
{
    int32_t bound = 0;
    for (int32_t bit = 1 << 30; bit >= 1 << 16; bit /= 2) {
        uint32_t reach = 0;
        for (uint32_t i = 0; i < count; i++) {
            reach += group[i] >= (bound | bit);
        }
        bound = reach >= cap ? bound | bit : bound;
    }
    float value;
    memcpy(&value, &bound, sizeof value);
    return value;
}

/* A number that no fewer than `cap` of the missing tokens reach, or 0; not many more do: the cap-th
 * of the largest of some groups. */
static float find_bound(const struct pkvi_predict_unit *unit, const uint32_t *resident,
                        const float *p)
{
    const uint32_t cap = unit->args->state.cap, tokens = unit->end - unit->begin;
    const struct v16 none = v16_set1(-1.0f);
    uint32_t groups = GROUPS; /* token t of the chunk is in group t % groups */
    while (groups > PKV_PAGE_TOKENS && groups / 2 >= 2 * cap) {
        groups /= 2;
    }
    float most[GROUPS];
    for (uint32_t i = 0; i < groups; i += V16_LANES) {
        v16_store(most + i, none);
    }
    for (uint32_t t = 0; t < tokens; t += PKV_PAGE_TOKENS) {
        const float *here = p + unit->begin + t;
        const uint32_t bits = missing(unit, resident, (unit->begin + t) / PKV_PAGE_TOKENS);
        float *at = most + t % groups;
        for (uint32_t i = 0; i < PKV_PAGE_TOKENS; i += V16_LANES) {
            const struct v16 own = v16_where_bits(bits >> i, v16_load(here + i), none);
            v16_store(at + i, v16_max(v16_load(at + i), own));
        }
    }
    int32_t code[GROUPS];
    memcpy(code, most, groups * sizeof *code);
    return bound_of(code, groups, cap);
}

/* Tokens of a block that may come and reach the bound. */
PKV_INLINE uint32_t reaching(const struct pkvi_predict_unit *unit, const uint32_t *resident,
                             const float *p, uint32_t first, struct v16 bound)
{
    const uint32_t bits = v16_reaches(v16_load(p + first), bound) |
                          v16_reaches(v16_load(p + first + V16_LANES), bound) << V16_LANES;
    return bits > 0 ? bits & missing(unit, resident, first / PKV_PAGE_TOKENS) : 0;
}

/* Those tokens of the chunk, if they are FEW at most, as numbers: the better a token, the larger.
 * How many. */
static uint32_t gather(const struct pkvi_predict_unit *unit, const uint32_t *resident,
                       const float *p, struct v16 bound, int64_t *number)
{
    uint32_t count = 0;
    for (uint32_t t = unit->begin; t < unit->end; t += PKV_PAGE_TOKENS) {
        for (uint32_t bits = reaching(unit, resident, p, t, bound); bits > 0; bits &= bits - 1) {
            const uint32_t token = t + (uint32_t)__builtin_ctz(bits);
            int32_t code;
            memcpy(&code, p + token, sizeof code);
            if (count == FEW) {
                return FEW + 1;
            }
            number[count++] = (int64_t)code << 32 | (UINT32_MAX - token);
        }
    }
    return count;
}

/* Each to the place that the number of better ones gives. */
static void put_few(const int64_t *number, uint32_t count, struct pkvi_heap *best)
{
    for (uint32_t i = 0; i < count; i++) {
        int64_t rank = 0;
        for (uint32_t j = 0; j < count; j++) {
            rank += number[j] > number[i];
        }
        if (rank < best->capacity) {
            const int32_t code = (int32_t)(number[i] >> 32);
            memcpy(best->value + rank, &code, sizeof code);
            best->id[rank] = (int32_t)(UINT32_MAX - (uint32_t)number[i]);
        }
    }
    best->count = count < best->capacity ? count : best->capacity;
}

/* The best that are neither in a slot nor in the ring. */
static void choose(const struct pkvi_predict_unit *unit, const float *p)
{
    const struct pkv_recall_state *state = &unit->args->state;
    const uint32_t *resident =
        PKV_AT(const uint32_t, pkvi_recall_part(unit->view, state->resident)) +
        (uint64_t)unit->kv_head * state->blocks;
    const uint64_t at = ((uint64_t)unit->kv_head * unit->chunks + unit->chunk) * state->cap;
    struct pkvi_heap best = {.value = unit->scratch.best + at,
                             .id = unit->scratch.best_token + at,
                             .capacity = state->cap};
    const struct v16 bound = v16_set1(find_bound(unit, resident, p));
    int64_t number[FEW];
    const uint32_t count = gather(unit, resident, p, bound, number);
    if (count <= FEW) {
        put_few(number, count, &best);
    } else {
        for (uint32_t t = unit->begin; t < unit->end; t += PKV_PAGE_TOKENS) {
            uint32_t bits = reaching(unit, resident, p, t, bound);
            for (; bits > 0; bits &= bits - 1) {
                const uint32_t token = t + (uint32_t)__builtin_ctz(bits);
                pkvi_heap_offer(&best, p[token], (int32_t)token);
            }
        }
        pkvi_heap_sort(&best);
    }
    for (uint32_t i = best.count; i < state->cap; i++) {
        best.value[i] = -1.0f;
        best.id[i] = -1;
    }
}

static void score_chunk(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_predict *args = context;
    const struct pkvi_predict_unit unit = pkvi_predict_unit(args, number);
    const uint32_t group = args->heads / args->kv_heads;
    for (uint32_t done = 0; unit.begin < unit.end && done < group; done += INDEX_DOT_HEADS) {
        struct part part;
        const uint32_t left = group - done;
        open_part(&unit, unit.kv_head * group + done,
                  left < INDEX_DOT_HEADS ? left : INDEX_DOT_HEADS, &part);
        scan(&unit, &part);
        exponentiate(&unit, &part);
    }
}

static void choose_chunk(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_predict *args = context;
    const struct pkvi_predict_unit unit = pkvi_predict_unit(args, number);
    float *p = unit.scratch.p + (uint64_t)unit.kv_head * args->state.blocks * PKV_PAGE_TOKENS;
    if (unit.begin < unit.end) {
        weigh(&unit, p);
        choose(&unit, p);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_predict predict = *(const struct pkv_args_predict *)args;
    struct pkvi_pool *pool = ((const struct pkvi_cpu_stream *)native_stream)->pool;
    pkvi_pool_run(pool, score_chunk, &predict, pkvi_predict_units(&predict));
    pkvi_pool_run(pool, choose_chunk, &predict, pkvi_predict_units(&predict));
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_predict) = {
    .op = PKV_OP_PREDICT,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_predict),
    .launch = launch,
    .cost = pkvi_cost_predict,
};
