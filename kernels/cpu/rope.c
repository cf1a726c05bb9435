/*
 * rope.c: rotary position embedding, after RMS norm over each head where the model has it.
 * Source: Su et al., arXiv:2104.09864.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cpu/norm.h"
#include "kernels/rows.h"

/* Pairs that are prepared at a time; every head of a row then uses them. */
#define CHUNK 128u

/* One chunk of a row's table, spread out to fit the channels it multiplies. */
struct turn {
    float same[2 * CHUNK];  /* cos: a factor of the channel itself */
    float other[2 * CHUNK]; /* sin, signed: of its partner */
};

/* Its scale. */
static float norm_head(float *x, const float *weight, uint32_t head_dim, float eps)
{
    const float gain = rms_scale(x, NULL, head_dim, eps);
    struct v16 scale = v16_set1(gain);
    uint32_t i = 0;
    for (; i + V16_LANES <= head_dim; i += V16_LANES) {
        v16_store(x + i, v16_mul(v16_mul(v16_load(x + i), scale), v16_load(weight + i)));
    }
    if (i < head_dim) {
        uint32_t left = head_dim - i;
        struct v16 y = v16_mul(v16_load_part(x + i, left), scale);
        v16_store_part(x + i, v16_mul(y, v16_load_part(weight + i, left)), left);
    }
    return gain;
}

/* Pairs (2i, 2i + 1): channels as they come. */
static void prepare_neighbours(struct turn *turn, const float *table, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        turn->same[2 * i] = turn->same[2 * i + 1] = table[2 * i];
        turn->other[2 * i] = -table[2 * i + 1];
        turn->other[2 * i + 1] = table[2 * i + 1];
    }
}

static void turn_neighbours(const struct turn *turn, float *x, uint32_t pairs)
{
    for (uint32_t i = 0; i < 2 * pairs; i += V16_LANES) {
        uint32_t count = 2 * pairs - i < V16_LANES ? 2 * pairs - i : V16_LANES;
        struct v16 a = count == V16_LANES ? v16_load(x + i) : v16_load_part(x + i, count);
        struct v16 y = v16_fma(v16_swap_pairs(a), v16_load(turn->other + i),
                               v16_mul(a, v16_load(turn->same + i)));
        if (count == V16_LANES) {
            v16_store(x + i, y);
        } else {
            v16_store_part(x + i, y, count);
        }
    }
}

/* Pairs (i, i + distance). */
static void prepare_halves(struct turn *turn, const float *table, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        turn->same[i] = table[2 * i];
        turn->other[i] = table[2 * i + 1];
    }
}

static void turn_halves(const struct turn *turn, float *x, uint32_t pairs, uint32_t distance)
{
    for (uint32_t i = 0; i < pairs; i += V16_LANES) {
        uint32_t count = pairs - i < V16_LANES ? pairs - i : V16_LANES;
        float *low = x + i, *high = x + i + distance;
        struct v16 a = count == V16_LANES ? v16_load(low) : v16_load_part(low, count);
        struct v16 b = count == V16_LANES ? v16_load(high) : v16_load_part(high, count);
        struct v16 c = v16_load(turn->same + i), s = v16_load(turn->other + i);
        struct v16 y = v16_sub(v16_mul(a, c), v16_mul(b, s));
        struct v16 z = v16_fma(a, s, v16_mul(b, c));
        if (count == V16_LANES) {
            v16_store(low, y);
            v16_store(high, z);
        } else {
            v16_store_part(low, y, count);
            v16_store_part(high, z, count);
        }
    }
}

static void turn_heads(const struct pkv_args_rope *args, const struct turn *turn, float *x,
                       uint32_t heads, uint32_t first, uint32_t pairs)
{
    for (uint32_t head = 0; head < heads; head++) {
        float *channels = x + (uint64_t)head * args->head_dim;
        if (args->halves) {
            turn_halves(turn, channels + first, pairs, args->pairs);
        } else {
            turn_neighbours(turn, channels + 2 * first, pairs);
        }
    }
}

static void norm_heads(const struct pkv_args_rope *args, float *x, uint32_t heads, pkv_addr weight,
                       float *gain)
{
    for (uint32_t head = 0; weight && head < heads; head++) {
        const float own = norm_head(x + (uint64_t)head * args->head_dim,
                                    PKV_AT(const float, weight), args->head_dim, args->eps);
        if (gain) {
            gain[head] = own;
        }
    }
}

static void rope_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_rope *args = arguments;
    float *q = PKV_AT(float, args->q) + (uint64_t)row * args->q_stride;
    float *k = PKV_AT(float, args->k) + (uint64_t)row * args->k_stride;
    const float *table = PKV_AT(const float, args->table) + (uint64_t)row * args->pairs * 2;
    struct turn turn = {{0}, {0}};
    float *gain = args->q_gain ? PKV_AT(float, args->q_gain) + (uint64_t)row * args->heads : NULL;
    norm_heads(args, q, args->heads, args->q_norm, gain);
    norm_heads(args, k, args->kv_heads, args->k_norm, NULL);
    for (uint32_t first = 0; first < args->pairs; first += CHUNK) {
        uint32_t pairs = args->pairs - first < CHUNK ? args->pairs - first : CHUNK;
        if (args->halves) {
            prepare_halves(&turn, table + 2 * first, pairs);
        } else {
            prepare_neighbours(&turn, table + 2 * first, pairs);
        }
        turn_heads(args, &turn, q, args->heads, first, pairs);
        turn_heads(args, &turn, k, args->kv_heads, first, pairs);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_rope *rope = args;
    return pkvi_rows_run(native_stream, rope_row, rope, rope->rows, pkvi_rope_floats(rope));
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_rope) = {
    .op = PKV_OP_ROPE,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_rope),
    .launch = launch,
    .cost = pkvi_cost_rope,
};
