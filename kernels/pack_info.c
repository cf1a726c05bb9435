/*
 * pack_info.c: sizes and names of the weight formats, as GGUF files have them.
 *
 * Refuses to know: what the bytes of a block mean (dequant.c, pack.c).
 * Format: ggml's block_q* structures (ggml-common.h).
 */
#include "kernels/pack.h"

struct format {
    const char *name;
    uint32_t block_values, block_bytes;
    bool quantised;
};

static const struct format formats[PKV_W_COUNT] = {
    [PKV_W_F32] = {"f32", 1, 4, false},      [PKV_W_F16] = {"f16", 1, 2, false},
    [PKV_W_BF16] = {"bf16", 1, 2, false},    [PKV_W_Q4_0] = {"q4_0", 32, 18, true},
    [PKV_W_Q4_1] = {"q4_1", 32, 20, true},   [PKV_W_Q5_0] = {"q5_0", 32, 22, true},
    [PKV_W_Q5_1] = {"q5_1", 32, 24, true},   [PKV_W_Q8_0] = {"q8_0", 32, 34, true},
    [PKV_W_Q2_K] = {"q2_K", 256, 84, true},  [PKV_W_Q3_K] = {"q3_K", 256, 110, true},
    [PKV_W_Q4_K] = {"q4_K", 256, 144, true}, [PKV_W_Q5_K] = {"q5_K", 256, 176, true},
    [PKV_W_Q6_K] = {"q6_K", 256, 210, true},
};

uint32_t pkvi_weight_block_values(enum pkv_weight_type type)
{
    return formats[type].block_values;
}

uint32_t pkvi_weight_block_bytes(enum pkv_weight_type type)
{
    return formats[type].block_bytes;
}

const char *pkvi_weight_type_name(enum pkv_weight_type type)
{
    return formats[type].name;
}

bool pkvi_weight_is_quantised(enum pkv_weight_type type)
{
    return formats[type].quantised;
}

uint64_t pkvi_weight_row_bytes(enum pkv_weight_type type, uint32_t cols)
{
    return (uint64_t)(cols / formats[type].block_values) * formats[type].block_bytes;
}
