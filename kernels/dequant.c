/*
 * dequant.c: what the codes of a GGUF file are worth: the plain reference of all formats.
 *
 * Refuses to know: the packed layout.
 * Format and order of the float operations: ggml's dequantize_row_* (ggml-quants.c).
 */
#include <string.h>

#include "kernels/half.h"
#include "kernels/pack_layout.h"

static float f16_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return pkvi_f16_to_f32(half);
}

static float float_at(enum pkv_weight_type type, const uint8_t *bytes)
{
    uint16_t half;
    float value;
    if (type == PKV_W_F32) {
        memcpy(&value, bytes, sizeof value);
        return value;
    }
    memcpy(&half, bytes, sizeof half);
    return type == PKV_W_F16 ? pkvi_f16_to_f32(half) : pkvi_bf16_to_f32(half);
}

/* value = scale * (code - offset) - minimum, for 16 values. */
struct affine {
    float scale, minimum;
    int offset;
};

static struct affine affine_of_32(enum pkv_weight_type type, const uint8_t *block)
{
    struct affine a = {.scale = f16_at(block)};
    switch (type) {
    case PKV_W_Q4_0:
        a.offset = 8;
        break;
    case PKV_W_Q5_0:
        a.offset = 16;
        break;
    case PKV_W_Q4_1:
    case PKV_W_Q5_1:
        a.minimum = -f16_at(block + 2);
        break;
    default:
        break;
    }
    return a;
}

/* `sixteenth` counts the 16 values inside a block of 256. */
static struct affine affine_of_256(enum pkv_weight_type type, const uint8_t *block,
                                   uint32_t sixteenth)
{
    struct affine a = {0};
    uint8_t scale[8], minimum[8];
    int8_t scale_q3k[16];
    switch (type) {
    case PKV_W_Q2_K:
        a.scale = f16_at(block + 80) * (float)(block[sixteenth] & 15);
        a.minimum = f16_at(block + 82) * (float)(block[sixteenth] >> 4);
        break;
    case PKV_W_Q3_K:
        pkvi_block_scales_q3k(block + 96, scale_q3k);
        a.scale = f16_at(block + 108) * (float)scale_q3k[sixteenth];
        a.offset = 4;
        break;
    case PKV_W_Q4_K:
    case PKV_W_Q5_K:
        pkvi_block_scales_q4k(block + 4, scale, minimum);
        a.scale = f16_at(block) * (float)scale[sixteenth / 2];
        a.minimum = f16_at(block + 2) * (float)minimum[sixteenth / 2];
        break;
    default: /* q6_K */
        a.scale = f16_at(block + 208) * (float)(int8_t)block[192 + sixteenth];
        a.offset = 32;
    }
    return a;
}

void pkvi_weight_dequantize(enum pkv_weight_type type, const void *row, uint32_t cols, float *out)
{
    const uint8_t *bytes = row;
    const uint32_t values = pkvi_weight_block_values(type);
    const uint32_t block_bytes = pkvi_weight_block_bytes(type);
    int8_t q[32];
    if (values == 1) {
        for (uint32_t i = 0; i < cols; i++) {
            out[i] = float_at(type, bytes + (uint64_t)i * block_bytes);
        }
        return;
    }
    for (uint32_t k = 0; k < cols; k += 16) {
        const uint8_t *block = bytes + (uint64_t)(k / values) * block_bytes;
        const uint32_t inside = k % values;
        const struct affine a =
            values == 32 ? affine_of_32(type, block) : affine_of_256(type, block, inside / 16);
        pkvi_block_codes(type, block, inside / 32, q);
        for (uint32_t i = 0; i < 16; i++) {
            out[k + i] = a.scale * (float)(q[inside % 32 + i] - a.offset) - a.minimum;
        }
    }
}
