/*
 * rope.c: rotary position embedding, after RMS norm over each head where the model has it; plain
 * reference. Source: Su et al., arXiv:2104.09864.
 */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static void table_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_rope_table *args = arguments;
    const double position = (double)PKV_AT(const int32_t, args->positions)[row];
    const double *freq = PKV_AT(const double, args->freq);
    float *table = PKV_AT(float, args->table) + (uint64_t)row * args->pairs * 2;
    for (uint32_t i = 0; i < args->pairs; i++) {
        double angle = position * freq[i];
        table[2 * i] = (float)(args->gain * cos(angle));
        table[2 * i + 1] = (float)(args->gain * sin(angle));
    }
}

static enum pkv_status launch_table(void *native_stream, const void *args)
{
    const struct pkv_args_rope_table *table = args;
    return pkvi_rows_run(native_stream, table_row, table, table->rows, 32 * table->pairs);
}

static void rotate_head(const struct pkv_args_rope *args, float *x, const float *table,
                        const float *weight, float *gain)
{
    if (weight) {
        float scale = pkvi_ref_rms_scale(x, NULL, args->head_dim, args->eps);
        if (gain) {
            *gain = scale;
        }
        for (uint32_t i = 0; i < args->head_dim; i++) {
            x[i] = x[i] * scale * weight[i];
        }
    }
    for (uint32_t i = 0; i < args->pairs; i++) {
        uint32_t a = args->halves ? i : 2 * i, b = args->halves ? i + args->pairs : 2 * i + 1;
        float c = table[2 * i], s = table[2 * i + 1], xa = x[a], xb = x[b];
        x[a] = xa * c - xb * s;
        x[b] = xa * s + xb * c;
    }
}

static void rope_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_rope *args = arguments;
    float *q = PKV_AT(float, args->q) + (uint64_t)row * args->q_stride;
    float *k = PKV_AT(float, args->k) + (uint64_t)row * args->k_stride;
    const float *table = PKV_AT(const float, args->table) + (uint64_t)row * args->pairs * 2;
    float *gain = args->q_gain ? PKV_AT(float, args->q_gain) + (uint64_t)row * args->heads : NULL;
    for (uint32_t head = 0; head < args->heads; head++) {
        rotate_head(args, q + head * args->head_dim, table, PKV_AT(const float, args->q_norm),
                    gain ? gain + head : NULL);
    }
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        rotate_head(args, k + head * args->head_dim, table, PKV_AT(const float, args->k_norm),
                    NULL);
    }
}

static enum pkv_status launch_rope(void *native_stream, const void *args)
{
    const struct pkv_args_rope *rope = args;
    return pkvi_rows_run(native_stream, rope_row, rope, rope->rows, pkvi_rope_floats(rope));
}

const struct pkv_kernel pkvi_kernel_rope_table_scalar = {
    .op = PKV_OP_ROPE_TABLE,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_rope_table),
    .launch = launch_table,
    .cost = pkvi_cost_rope_table,
};

const struct pkv_kernel pkvi_kernel_rope_scalar = {
    .op = PKV_OP_ROPE,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_rope),
    .launch = launch_rope,
    .cost = pkvi_cost_rope,
};
