/* predict.h: a query as an index asks for it, plain C. */
#ifndef PKV_REF_PREDICT_H
#define PKV_REF_PREDICT_H

#include <math.h>

#include "kernels/recall_plan.h"

struct pkvi_sketch {
    int8_t code[PKV_INDEX_CHANNELS];
    float unit;   /* of a code */
    float middle; /* sum of products with a key that is the mean in all channels */
};

/* The index's channels of a query head, rotated. */
static inline void pkvi_sketch_values(const struct pkv_args_predict *args,
                                      const struct pkv_row_span *span,
                                      const struct pkv_kv_view *view, uint32_t head, float *x)
{
    const uint32_t kv_head = head / (args->heads / args->kv_heads), count = args->index.channels;
    const uint16_t *channel =
        PKV_AT(const uint16_t, args->index.channel) + (uint64_t)kv_head * count;
    if (!args->q) {
        const float *q =
            PKV_AT(const float, pkvi_recall_part(view, args->state.query)) + head * args->head_dim;
        for (uint32_t i = 0; i < count; i++) {
            x[i] = q[channel[i]];
        }
        return;
    }
    const uint32_t row = span->first_row + span->rows - 1;
    const float *q =
        PKV_AT(const float, args->q) + (uint64_t)row * args->q_stride + (uint64_t)head * count;
    const float *table = PKV_AT(const float, args->table) + (uint64_t)row * args->pairs * 2;
    const float *norm = PKV_AT(const float, args->q_norm);
    const float gain =
        norm ? PKV_AT(const float, pkvi_recall_part(view, args->state.gain))[head] : 1.0f;
    for (uint32_t i = 0; i < count; i += 2) {
        const int32_t pair = pkvi_index_pair(channel[i], args->pairs, args->halves);
        const float a = q[i] * (norm ? gain * norm[channel[i]] : 1.0f);
        const float b = q[i + 1] * (norm ? gain * norm[channel[i + 1]] : 1.0f);
        const float cosine = pair < 0 ? 1.0f : table[2 * pair];
        const float sine = pair < 0 ? 0.0f : table[2 * pair + 1];
        x[i] = a * cosine - b * sine;
        x[i + 1] = a * sine + b * cosine;
    }
}

static inline struct pkvi_sketch pkvi_sketch_make(const struct pkv_args_predict *args,
                                                  const struct pkv_row_span *span,
                                                  const struct pkv_kv_view *view, uint32_t head)
{
    const uint32_t kv_head = head / (args->heads / args->kv_heads), count = args->index.channels;
    const float *step = PKV_AT(const float, args->index.step) + (uint64_t)kv_head * count;
    struct pkvi_sketch sketch = {.unit = 0.0f};
    float x[PKV_INDEX_CHANNELS], largest = 0.0f;
    int32_t sum = 0;
    pkvi_sketch_values(args, span, view, head, x);
    for (uint32_t i = 0; i < count; i++) {
        x[i] = x[i] * step[i] * args->scale;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    if (largest > 0.0f && largest < INFINITY) {
        sketch.unit = largest / 127.0f;
        for (uint32_t i = 0; i < count; i++) {
            sketch.code[i] = (int8_t)rintf(x[i] / sketch.unit);
            sum += sketch.code[i];
        }
        sketch.middle = (args->index.bits == 8 ? 127.5f : 7.5f) * (float)sum;
    }
    return sketch;
}

/* What exp(score - the largest of the unit's chunk) counts in p: once all chunks have their sums.
 */
static inline float pkvi_predict_factor(const struct pkvi_predict_unit *unit, uint32_t head)
{
    const uint32_t used = pkvi_recall_chunks(pkvi_indexed_tokens(unit->span));
    const float *largest = unit->scratch.largest + (uint64_t)head * unit->chunks;
    const float *sum = unit->scratch.sum + (uint64_t)head * unit->chunks;
    float most = largest[0], total = 0.0f;
    for (uint32_t c = 1; c < used; c++) {
        most = fmaxf(most, largest[c]);
    }
    for (uint32_t c = 0; c < used; c++) {
        total += sum[c] * expf(largest[c] - most);
    }
    return expf(largest[unit->chunk] - most) / total * (float)unit->args->kv_heads /
           (float)unit->args->heads;
}

#endif
