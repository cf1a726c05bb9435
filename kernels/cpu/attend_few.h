/*
 * attend_few.h: scores and values for the few row heads of a decode step, straight from the pages.
 *
 * A panel pays when many row heads read it. A handful of them keep all their sums in registers
 * while K and V pass by once: 40 instead of 80 cycles an entry (3 heads of 64 channels, Zen 3).
 * Same sums in the same order as through panels.
 */
#ifndef PKV_CPU_ATTEND_FEW_H
#define PKV_CPU_ATTEND_FEW_H

#include "kernels/attend_plan.h"
#include "kernels/cpu/ahead.h"
#include "kernels/cpu/kv_panel.h"

#define ATTEND_FEW 4u /* row heads at most */
#define FEW_LINES 4u  /* fetched ahead with 8 channels of 16 keys: half a split of f16 */
#if defined(PKV_ISA_AVX512)
#define FEW_WIDE_ROWS 4u /* of these the sums of 32 channels fit in the registers */
#else
#define FEW_WIDE_ROWS 3u
#endif
/* The compiler may keep nothing of what `pointer` leads to in registers: it then loads again,
 * which costs less than the spills it would choose. */
#define FEW_FROM_MEMORY(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

/* X(rows) for every row count. */
#define ATTEND_FEW_CASES(X) X(1) X(2) X(3) X(4)

#if defined(PKV_ISA_AVX2) || defined(PKV_ISA_AVX512)

/* scores[r][0 .. 15] = q of `rows` row heads . K of 16 consecutive entries of f16, head_dim a
 * multiple of 8; q: [head_dim][PKV_BLOCK_ROWS]. */
PKV_INLINE void few_scores_rows(uint32_t rows, const uint8_t *entry, uint32_t entry_bytes,
                                uint32_t head_dim, const float *q, float *scores,
                                struct ahead *ahead)
{
    /* A few lines with every block: bursts of them would hold up the loads behind. */
    struct ahead_lines lines = ahead_take(ahead, head_dim / 8 * FEW_LINES);
    struct v16 sum[ATTEND_FEW];
    for (uint32_t r = 0; r < rows; r++) {
        sum[r] = v16_set1(0.0f);
    }
    /* Keys go through memory, where registers of them would drive the sums out; and one block ahead
     * of their use, so that the shuffles run beside the multiply-adds. */
    _Alignas(64) uint8_t keys[2][8][32];
    for (uint32_t channel = 0; channel <= head_dim; channel += 8) {
        uint32_t next = channel / 8 % 2;
        if (channel < head_dim) {
            kv_store_keys_16(entry + 2 * channel, entry_bytes, keys[next]);
            FEW_FROM_MEMORY(keys);
        }
        for (uint32_t i = 0; i < FEW_LINES && channel / 8 * FEW_LINES + i < lines.count; i++) {
            ahead_fetch(lines.line + (channel / 8 * FEW_LINES + i) * AHEAD_LINE_BYTES);
        }
        for (uint32_t i = 0; channel > 0 && i < 8; i++) {
            struct v16 column = v16_from_f16(keys[1 - next][i]);
            for (uint32_t r = 0; r < rows; r++) {
                sum[r] = v16_fma(v16_set1(q[r]), column, sum[r]);
            }
            q += PKV_BLOCK_ROWS;
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        v16_store(scores + r * PKV_SCORE_STRIDE, sum[r]);
    }
}

/* The same for a whole page. False where the format or the head's size needs panels. */
PKV_INLINE bool few_scores(enum pkv_kv_type type, uint32_t rows, const uint8_t *entry,
                           uint32_t entry_bytes, uint32_t head_dim, const float *q, float *scores,
                           struct ahead *ahead)
{
#define SCORES_CASE(n)                                                                             \
    case n:                                                                                        \
        for (uint32_t key = 0; key < PKV_PAGE_TOKENS; key += 16) {                                 \
            few_scores_rows(n, entry + key * entry_bytes, entry_bytes, head_dim, q, scores + key,  \
                            ahead);                                                                \
        }                                                                                          \
        return true;
    if (head_dim % 8 != 0 || type != PKV_KV_F16) {
        return false;
    }
    switch (rows) {
        ATTEND_FEW_CASES(SCORES_CASE)
    default:
        return false;
    }
#undef SCORES_CASE
}

#else

PKV_INLINE bool few_scores(enum pkv_kv_type type, uint32_t rows, const uint8_t *entry,
                           uint32_t entry_bytes, uint32_t head_dim, const float *q, float *scores,
                           struct ahead *ahead)
{
    (void)type, (void)rows, (void)entry, (void)entry_bytes;
    (void)head_dim, (void)q, (void)scores, (void)ahead;
    return false;
}

#endif

/* V of the keys of one page that are seen. */
struct few_page {
    const uint8_t *value; /* of the first of them */
    uint32_t count;
};

/* What the sums over values of a split need besides channels. */
struct few_values {
    struct few_page page[PKV_SPLIT_KEYS / PKV_PAGE_TOKENS];
    uint32_t page_count, entry_bytes, head_dim, rows;
    const float *weight; /* [rows][PKV_SCORE_STRIDE], of the first key */
    float *out;          /* [rows][out_stride] */
    uint32_t out_stride;
    struct ahead *ahead;
    uint32_t ahead_lines; /* with every page of every 16 channels */
};

/* out[r][channel ..] = sum over the keys of weight[r][key] * V, `vectors` times 16 channels. */
PKV_INLINE void few_values_rows(const struct few_values *few, enum pkv_kv_type type, uint32_t rows,
                                uint32_t vectors, uint32_t channel)
{
    struct v16 sum[ATTEND_FEW * 2];
    for (uint32_t i = 0; i < rows * vectors; i++) {
        sum[i] = v16_set1(0.0f);
    }
    const float *weight = few->weight;
    for (uint32_t p = 0; p < few->page_count; p++) {
        const uint8_t *value = few->page[p].value;
        struct ahead_lines lines = ahead_take(few->ahead, few->ahead_lines * vectors);
        for (uint32_t key = 0; key < few->page[p].count; key++) {
            if (key < lines.count) {
                ahead_fetch(lines.line + key * AHEAD_LINE_BYTES);
            }
            for (uint32_t v = 0; v < vectors; v++) {
                struct v16 x = kv_channels(type, value, few->head_dim, channel + 16 * v);
                for (uint32_t r = 0; r < rows; r++) {
                    sum[r * vectors + v] =
                        v16_fma(v16_set1(weight[r * PKV_SCORE_STRIDE]), x, sum[r * vectors + v]);
                }
                if (rows == FEW_WIDE_ROWS) {
                    FEW_FROM_MEMORY(weight);
                }
            }
            value += few->entry_bytes;
            weight++;
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < vectors; v++) {
            v16_store(few->out + r * few->out_stride + channel + 16 * v, sum[r * vectors + v]);
        }
    }
}

/* All channels for a constant number of rows: two vectors at a time where registers allow. */
PKV_INLINE void few_values_type(const struct few_values *few, enum pkv_kv_type type, uint32_t rows)
{
    uint32_t channel = 0;
    for (; rows <= FEW_WIDE_ROWS && channel + 32 <= few->head_dim; channel += 32) {
        few_values_rows(few, type, rows, 2, channel);
    }
    for (; channel + 16 <= few->head_dim; channel += 16) {
        few_values_rows(few, type, rows, 1, channel);
    }
}

/* One function a format keeps the code of each in one place. */
#define FEW_VALUES(name, type)                                                                     \
    static void few_values_##name(const struct few_values *few)                                    \
    {                                                                                              \
        switch (few->rows) {                                                                       \
            ATTEND_FEW_CASES(FEW_CASE_##type)                                                      \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }
#define FEW_CASE(n, type)                                                                          \
    case n:                                                                                        \
        few_values_type(few, type, n);                                                             \
        break;
#define FEW_CASE_PKV_KV_F16(n) FEW_CASE(n, PKV_KV_F16)
#define FEW_CASE_PKV_KV_Q8_0(n) FEW_CASE(n, PKV_KV_Q8_0)
FEW_VALUES(f16, PKV_KV_F16)
FEW_VALUES(q8_0, PKV_KV_Q8_0)

/* False where panels must do it: other formats, and heads that are no multiple of 16. */
PKV_INLINE bool few_values(enum pkv_kv_type type, const struct few_values *few)
{
    static void (*const of_type[PKV_KV_TYPE_COUNT])(const struct few_values *few) = {
        [PKV_KV_F16] = few_values_f16,
        [PKV_KV_Q8_0] = few_values_q8_0,
    };
    if (few->rows > ATTEND_FEW || few->head_dim % V16_LANES != 0 || !of_type[type]) {
        return false;
    }
    of_type[type](few);
    return true;
}

#endif
