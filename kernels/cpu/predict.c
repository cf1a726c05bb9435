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

#define STRETCH 256u     /* tokens whose products wait for the largest of them */
#define LOWEST (-126.0f) /* bits: exp() of less counts as this one's */
#define ROOM 80.0f       /* bits that a score may be above what exponentials are taken from */
#define LOG2E 1.4426950408889634

/*
 * Up to INDEX_DOT_HEADS query heads of a unit. score = unit * (product - rest): the middle of the
 * codes but for a half is in the product.
 */
struct part {
    uint32_t first, heads;
    struct index_query query;
    float unit[INDEX_DOT_HEADS], rest[INDEX_DOT_HEADS];
    float bits[INDEX_DOT_HEADS]; /* of a product: unit * log2(e) */
    float top[INDEX_DOT_HEADS];  /* product that exponentials are taken from */
    float sum[INDEX_DOT_HEADS];  /* of exponentials */
    /* of a stretch: */
    float product[INDEX_DOT_HEADS][STRETCH];
    float most[INDEX_DOT_HEADS]; /* the largest of them */
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
        const float middle = floorf(sketch.middle);
        part->query.begin[h] = -(int32_t)middle;
        part->rest[h] = sketch.middle - middle;
        part->bits[h] = (float)(LOG2E * (double)sketch.unit);
        part->sum[h] = 0.0f;
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

/* Products of the tokens [begin, end), and the largest; bits and heads are constants. */
PKV_INLINE void scan_of(const uint32_t bits, const uint32_t heads,
                        const struct pkvi_predict_unit *unit, uint32_t begin, uint32_t end,
                        struct part *part)
{
    const uint32_t channels = unit->args->index.channels;
    const uint64_t step =
        (uint64_t)unit->args->kv_heads * pkvi_index_page_bytes(&unit->args->index);
    const uint8_t *page = codes_of(unit, begin);
    struct v16 most[INDEX_DOT_HEADS];
    for (uint32_t h = 0; h < heads; h++) {
        most[h] = v16_set1(-INFINITY);
    }
    for (uint32_t t = begin; t < end; t += V16_LANES) {
        struct v16 dot[INDEX_DOT_HEADS];
        const uint8_t *codes = page + t % PKV_PAGE_TOKENS * 4;
        fetch_codes(t + AHEAD_PAGES * PKV_PAGE_TOKENS < unit->end ? codes + AHEAD_PAGES * step
                                                                  : codes,
                    channels * bits / 32);
        index_dot(bits, heads, codes, &part->query, channels, dot);
        PKV_UNROLL
        for (uint32_t h = 0; h < heads; h++) {
            most[h] = v16_max(most[h], dot[h]);
            v16_store(part->product[h] + t - begin, dot[h]);
        }
        page += t % PKV_PAGE_TOKENS > 0 ? step : 0;
    }
    for (uint32_t h = 0; h < heads; h++) {
        part->most[h] = v16_largest(most[h]);
    }
}

#define SCANS(X, bits) X(bits, 1) X(bits, 2) X(bits, 3) X(bits, 4)
#define SCAN_FUNCTION(bits, heads)                                                                 \
    static void scan_##bits##_##heads(const struct pkvi_predict_unit *unit, uint32_t begin,        \
                                      uint32_t end, struct part *part)                             \
    {                                                                                              \
        scan_of(bits, heads, unit, begin, end, part);                                              \
    }
SCANS(SCAN_FUNCTION, 4)
SCANS(SCAN_FUNCTION, 8)

static void scan(const struct pkvi_predict_unit *unit, uint32_t begin, uint32_t end,
                 struct part *part)
{
#define SCAN_ENTRY(bits, heads) scan_##bits##_##heads,
    static void (*const scans[2][INDEX_DOT_HEADS])(const struct pkvi_predict_unit *, uint32_t,
                                                   uint32_t, struct part *) = {
        {SCANS(SCAN_ENTRY, 4)}, {SCANS(SCAN_ENTRY, 8)}};
    scans[unit->args->index.bits == 8][part->heads - 1](unit, begin, end, part);
}

/* A larger product to take exponentials from: for what is there already too, in two halves, as each
 * exponential may be far above the new top. */
static void raise_top(const struct pkvi_predict_unit *unit, struct part *part, uint32_t h,
                      uint32_t begin)
{
    float *e = score_of(unit, part->first + h);
    if (begin > unit->begin) {
        const float half = exp2f(0.5f * (part->top[h] - part->most[h]) * part->bits[h]);
        for (uint32_t t = unit->begin; t < begin; t++) {
            e[t] = e[t] * half * half;
        }
        part->sum[h] = part->sum[h] * half * half;
    }
    part->top[h] = part->most[h];
}

/* exp(score - that of the top) of a stretch, and their sum. */
static void exponentiate(const struct pkvi_predict_unit *unit, struct part *part, uint32_t h,
                         uint32_t begin, uint32_t end)
{
    if (begin == unit->begin || (part->most[h] - part->top[h]) * part->bits[h] > ROOM) {
        raise_top(unit, part, h, begin);
    }
    const struct v16 bits = v16_set1(part->bits[h]), lowest = v16_set1(LOWEST);
    const struct v16 shift = v16_set1(-part->bits[h] * part->top[h]);
    float *e = score_of(unit, part->first + h);
    struct v16 low = v16_set1(0.0f), high = low;
    for (uint32_t t = begin; t < end; t += PKV_PAGE_TOKENS) {
        const float *product = part->product[h] + t - begin;
        const struct v16 a = v16_fma(v16_load(product), bits, shift);
        const struct v16 b = v16_fma(v16_load(product + V16_LANES), bits, shift);
        const struct v16 exp_a = v16_exp2(v16_max(a, lowest));
        const struct v16 exp_b = v16_exp2(v16_max(b, lowest));
        v16_store(e + t, exp_a);
        v16_store(e + t + V16_LANES, exp_b);
        low = v16_add(low, exp_a);
        high = v16_add(high, exp_b);
    }
    part->sum[h] += v16_sum(v16_add(low, high));
}

static void score_part(const struct pkvi_predict_unit *unit, struct part *part)
{
    for (uint32_t t = unit->begin; t < unit->end; t += STRETCH) {
        const uint32_t end = t + STRETCH < unit->end ? t + STRETCH : unit->end;
        scan(unit, t, end, part);
        for (uint32_t h = 0; h < part->heads; h++) {
            exponentiate(unit, part, h, t, end);
        }
    }
    for (uint32_t h = 0; h < part->heads; h++) {
        const uint64_t at = (uint64_t)(part->first + h) * unit->chunks + unit->chunk;
        unit->scratch.largest[at] = part->unit[h] * (part->top[h] - part->rest[h]);
        unit->scratch.sum[at] = part->sum[h];
    }
}

/* p of the chunk's tokens: query heads in ascending order. */
static void weigh(const struct pkvi_predict_unit *unit, float *p)
{
    const uint32_t group = unit->args->heads / unit->args->kv_heads;
    for (uint32_t first = 0; first < group; first += INDEX_DOT_HEADS) {
        const uint32_t left = group - first,
                       heads = left < INDEX_DOT_HEADS ? left : INDEX_DOT_HEADS;
        const float *e[INDEX_DOT_HEADS];
        float factor[INDEX_DOT_HEADS];
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t head = unit->kv_head * group + first + h;
            e[h] = score_of(unit, head);
            factor[h] = pkvi_predict_factor(unit, head);
        }
        for (uint32_t t = unit->begin; t < unit->end; t += V16_LANES) {
            struct v16 sum = first > 0 ? v16_load(p + t) : v16_set1(0.0f);
            for (uint32_t h = 0; h < heads; h++) {
                sum = v16_fma(v16_load(e[h] + t), v16_set1(factor[h]), sum);
            }
            v16_store(p + t, sum);
        }
    }
}

/* What a chunk's best are chosen from. */
struct choice {
    const float *p;           /* by token */
    const uint32_t *resident; /* by block */
    uint32_t begin, end;      /* tokens */
    uint32_t ring;            /* none of them from this one on */
    uint32_t cap;
};

/* Tokens of a block that may come: bit t is its token t. */
PKV_INLINE uint32_t missing(const struct choice *from, uint32_t first)
{
    const uint32_t absent = ~from->resident[first / PKV_PAGE_TOKENS];
    if (from->ring >= first + PKV_PAGE_TOKENS) {
        return absent;
    }
    return from->ring > first ? absent & ((1u << (from->ring - first)) - 1) : 0;
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
static float find_bound(const struct choice *from)
{
    const struct v16 none = v16_set1(-1.0f);
    uint32_t groups = GROUPS; /* a token's is its number modulo this */
    while (groups > PKV_PAGE_TOKENS && groups / 2 >= 2 * from->cap) {
        groups /= 2;
    }
    float most[GROUPS];
    for (uint32_t i = 0; i < groups; i += V16_LANES) {
        v16_store(most + i, none);
    }
    for (uint32_t t = from->begin; t < from->end; t += PKV_PAGE_TOKENS) {
        const uint32_t bits = missing(from, t);
        float *at = most + t % groups;
        for (uint32_t i = 0; i < PKV_PAGE_TOKENS; i += V16_LANES) {
            const struct v16 own = v16_where_bits(bits >> i, v16_load(from->p + t + i), none);
            v16_store(at + i, v16_max(v16_load(at + i), own));
        }
    }
    int32_t code[GROUPS];
    memcpy(code, most, groups * sizeof *code);
    return bound_of(code, groups, from->cap);
}

/* Tokens of a block that may come and reach the bound. */
PKV_INLINE uint32_t reaching(const struct choice *from, uint32_t first, struct v16 bound)
{
    const uint32_t bits = v16_reaches(v16_load(from->p + first), bound) |
                          v16_reaches(v16_load(from->p + first + V16_LANES), bound) << V16_LANES;
    return bits > 0 ? bits & missing(from, first) : 0;
}

/* Those tokens of the chunk, if they are FEW at most, as numbers: the better a token, the larger.
 * How many. */
static uint32_t gather(const struct choice *from, struct v16 bound, int64_t *number)
{
    uint32_t count = 0;
    for (uint32_t t = from->begin; t < from->end; t += PKV_PAGE_TOKENS) {
        for (uint32_t bits = reaching(from, t, bound); bits > 0; bits &= bits - 1) {
            const uint32_t token = t + (uint32_t)__builtin_ctz(bits);
            int32_t code;
            memcpy(&code, from->p + token, sizeof code);
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
    const struct choice from = {
        .p = p,
        .resident = PKV_AT(const uint32_t, pkvi_recall_part(unit->view, state->resident)) +
                    (uint64_t)unit->kv_head * state->blocks,
        .begin = unit->begin,
        .end = unit->end,
        .ring = pkvi_ring_token(unit->view, state),
        .cap = state->cap,
    };
    const uint64_t at = ((uint64_t)unit->kv_head * unit->chunks + unit->chunk) * state->cap;
    struct pkvi_heap best = {.value = unit->scratch.best + at,
                             .id = unit->scratch.best_token + at,
                             .capacity = state->cap};
    const struct v16 bound = v16_set1(find_bound(&from));
    int64_t number[FEW];
    const uint32_t count = gather(&from, bound, number);
    if (count <= FEW) {
        put_few(number, count, &best);
    } else {
        for (uint32_t t = from.begin; t < from.end; t += PKV_PAGE_TOKENS) {
            for (uint32_t bits = reaching(&from, t, bound); bits > 0; bits &= bits - 1) {
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
        score_part(&unit, &part);
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
