/*
 * linear.c: y = W x in plain C: the order of sums that every variant keeps.
 *
 * Quantised weights, a block of 32 inputs at a time: the products of codes and 8-bit activations
 * (with the spill of the block's largest) are summed exactly in int32, for each scale of the block
 * (one, or one per 16 inputs), then
 *   acc = fma(sum of q * x8, s * scale, acc);  acc = fma(m, scale * sum of x8, acc)
 * (the second only in formats that have an m). Float weights: acc = fma(w, x, acc), input by input.
 * Then y = acc, + bias where there is one, and y = old y + that where asked.
 */
#include <math.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/linear_plan.h"
#include "kernels/pack_layout.h"
#include "runtime/base/thread.h"

enum { ROWS = 64 }; /* rows for which a row of weights is decoded once */

static int32_t dot(const int8_t *q, const int8_t *x, uint32_t count)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += q[i] * x[i];
    }
    return sum;
}

/* acc[i] += block `b` of one output, for all rows of the unit. */
static void add_block(const struct pkv_act *x, const struct pkvi_linear_unit *unit,
                      const uint8_t *record, uint32_t lane, uint32_t b, float acc[ROWS])
{
    const enum pkv_weight_type type = unit->part->w.type;
    const struct pkvi_layout *layout = &pkvi_layouts[type];
    const uint32_t step = layout->scale_values, sub = b % (layout->values / 32);
    int8_t q[32];
    float s[2], m[2];
    pkvi_record_codes(type, record, sub, lane, q);
    pkvi_record_scales(type, record, sub, lane, s, m);
    for (uint32_t i = 0; i < unit->rows; i++) {
        const uint64_t at = (uint64_t)(unit->first_row + i) * (x->cols / 32) + b;
        const int8_t *q8 = PKV_AT(const int8_t, x->q8) + 32 * at;
        const struct pkv_act_block *block = PKV_AT(const struct pkv_act_block, x->block) + at;
        for (uint32_t k = 0; k < 32; k += step) {
            const bool here = block->channel - k < step; /* unsigned: also not below k */
            const int32_t x_sum = step == 32 ? block->sum[0] + block->sum[1] : block->sum[k / 16];
            const int32_t products =
                dot(q + k, q8 + k, step) + (here ? q[block->channel] * block->spill : 0);
            acc[i] = fmaf((float)products, s[k / 16] * block->scale, acc[i]);
            if (type != PKV_W_Q8_0) {
                acc[i] = fmaf(m[k / 16], block->scale * (float)x_sum, acc[i]);
            }
        }
    }
}

static void sum_quantised(const struct pkv_act *x, const struct pkvi_linear_unit *unit,
                          const uint8_t *group, uint32_t lane, float acc[ROWS])
{
    const struct pkvi_layout *layout = &pkvi_layouts[unit->part->w.type];
    for (uint32_t b = 0; b < x->cols / 32; b++) {
        const uint64_t record = b / (layout->values / 32);
        add_block(x, unit, group + record * layout->record_bytes, lane, b, acc);
    }
}

static void sum_floats(const struct pkv_act *x, const struct pkvi_linear_unit *unit,
                       const uint8_t *group, uint32_t lane, float acc[ROWS])
{
    const enum pkv_weight_type type = unit->part->w.type;
    const float *first = PKV_AT(const float, x->f32) + (uint64_t)unit->first_row * x->cols;
    for (uint32_t k = 0; k < x->cols; k++) {
        const uint8_t *record = group + (uint64_t)k * pkvi_layouts[type].record_bytes;
        const float w = pkvi_record_float(type, record, lane);
        for (uint32_t i = 0; i < unit->rows; i++) {
            acc[i] = fmaf(w, first[(uint64_t)i * x->cols + k], acc[i]);
        }
    }
}

static void store(const struct pkvi_linear_unit *unit, uint32_t output, const float acc[ROWS])
{
    const struct pkv_linear_part *part = unit->part;
    const float *bias = PKV_AT(const float, part->w.bias);
    for (uint32_t i = 0; i < unit->rows; i++) {
        float *y = PKV_AT(float, part->y) + (uint64_t)(unit->first_row + i) * part->y_stride;
        const float value = bias ? acc[i] + bias[output] : acc[i];
        y[output] = part->add ? y[output] + value : value;
    }
}

static void run_unit(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkvi_linear_plan *plan = context;
    const struct pkvi_linear_unit unit = pkvi_linear_unit(plan, number);
    const struct pkv_matrix *w = &unit.part->w;
    const uint32_t first = unit.first_group * PKV_PACK_ROWS;
    for (uint32_t o = first; o < w->rows && o < first + unit.groups * PKV_PACK_ROWS; o++) {
        const uint8_t *group =
            PKV_AT(const uint8_t, w->data) + o / PKV_PACK_ROWS * pkvi_group_bytes(w->type, w->cols);
        float acc[ROWS] = {0};
        if (pkvi_weight_is_quantised(w->type)) {
            sum_quantised(&plan->args->x, &unit, group, o % PKV_PACK_ROWS, acc);
        } else {
            sum_floats(&plan->args->x, &unit, group, o % PKV_PACK_ROWS, acc);
        }
        store(&unit, o, acc);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkvi_pool *pool = ((const struct pkvi_cpu_stream *)native_stream)->pool;
    const struct pkvi_linear_limits limits = {16384, ROWS, UINT32_MAX, pkvi_pool_threads(pool), 4};
    struct pkvi_linear_plan plan;
    pkvi_linear_plan(args, &limits, &plan);
    pkvi_pool_run(pool, run_unit, &plan, plan.first_unit[plan.args->part_count]);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_linear_scalar = {
    .op = PKV_OP_LINEAR,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_linear),
    .launch = launch,
    .cost = pkvi_cost_linear,
};
