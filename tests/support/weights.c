#include "tests/support/weights.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/support/simde.h"

/* Where f16 numbers stand in a block: first and second, -1 = none. */
static const int halves[PKV_W_COUNT][2] = {
    [PKV_W_F32] = {-1, -1},   [PKV_W_F16] = {-1, -1}, [PKV_W_BF16] = {-1, -1},
    [PKV_W_Q4_0] = {0, -1},   [PKV_W_Q4_1] = {0, 2},  [PKV_W_Q5_0] = {0, -1},
    [PKV_W_Q5_1] = {0, 2},    [PKV_W_Q8_0] = {0, -1}, [PKV_W_Q2_K] = {80, 82},
    [PKV_W_Q3_K] = {108, -1}, [PKV_W_Q4_K] = {0, 2},  [PKV_W_Q5_K] = {0, 2},
    [PKV_W_Q6_K] = {208, -1},
};

/* About what makes values of magnitude 1 of the format's integers. */
static const float unit[PKV_W_COUNT] = {
    [PKV_W_Q4_0] = 0.12f,  [PKV_W_Q4_1] = 0.12f,   [PKV_W_Q5_0] = 0.06f, [PKV_W_Q5_1] = 0.06f,
    [PKV_W_Q8_0] = 0.008f, [PKV_W_Q2_K] = 0.03f,   [PKV_W_Q3_K] = 0.01f, [PKV_W_Q4_K] = 0.002f,
    [PKV_W_Q5_K] = 0.001f, [PKV_W_Q6_K] = 0.0003f,
};

static void put_half(uint8_t *at, float value)
{
    const uint16_t half = pkvi_f32_to_f16(value);
    memcpy(at, &half, 2);
}

static void random_float(enum pkv_weight_type type, uint8_t *at, struct pkvt_rng *rng)
{
    const float value = pkvt_rng_normal(rng);
    const uint16_t bf16 = pkvi_f32_to_bf16(value);
    if (type == PKV_W_F32) {
        memcpy(at, &value, 4);
    } else if (type == PKV_W_F16) {
        put_half(at, value);
    } else {
        memcpy(at, &bf16, 2);
    }
}

uint8_t *pkvt_weights_random(enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                             struct pkvt_rng *rng)
{
    const uint32_t block_bytes = pkvi_weight_block_bytes(type);
    const uint64_t bytes = rows * pkvi_weight_row_bytes(type, cols);
    uint8_t *source = malloc(bytes);
    assert_non_null(source);
    for (uint64_t at = 0; at < bytes; at += block_bytes) {
        if (!pkvi_weight_is_quantised(type)) {
            random_float(type, source + at, rng);
            continue;
        }
        for (uint32_t i = 0; i < block_bytes; i++) {
            source[at + i] = (uint8_t)pkvt_rng_below(rng, 256);
        }
        for (int h = 0; h < 2; h++) {
            if (halves[type][h] >= 0) {
                put_half(source + at + halves[type][h], unit[type] * pkvt_rng_uniform(rng, -1, 1));
            }
        }
    }
    return source;
}

void *pkvt_weights_pack(enum pkv_weight_type type, uint32_t rows, uint32_t cols,
                        const uint8_t *source)
{
    const uint64_t bytes = pkvi_pack_bytes(type, rows, cols);
    void *packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(packed);
    memset(packed, 0xa5, bytes);
    pkvi_pack_rows(type, rows, cols, source, 0, (rows + PKV_PACK_ROWS - 1) / PKV_PACK_ROWS, packed);
    return packed;
}

uint32_t pkvt_kernels(enum pkv_op op, const struct pkv_kernel *kernels[8])
{
    static const enum pkv_cpu cpus[] = {PKV_CPU_SCALAR, PKV_CPU_AVX2, PKV_CPU_AVX512, PKV_CPU_NEON};
    uint32_t count = 0;
    for (uint32_t i = 0; i < sizeof cpus / sizeof *cpus; i++) {
        if (pkvi_cpu_supports(cpus[i])) {
            kernels[count++] = pkvi_cpu_kernel(cpus[i], op);
        }
    }
    if (pkvt_simde_kernel(op)) {
        kernels[count++] = pkvt_simde_kernel(op);
    }
    return count;
}
