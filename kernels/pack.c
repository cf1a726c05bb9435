/*
 * pack.c: from a GGUF file's rows to groups of 16 rows side by side, and single rows back.
 *
 * Owns: the order of bytes in a packed matrix (pack_layout.h). Refuses to know: who reads it.
 * Cost, a thread of Zen 3: 2 GB/s of q4_0, q4_1; 3.6 GB/s of q8_0; 0.5 to 1.4 GB/s of the others.
 */
#include <math.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/half.h"
#include "kernels/pack_layout.h"

enum { LANES = PKV_PACK_ROWS };

uint64_t pkvi_pack_bytes(enum pkv_weight_type type, uint32_t rows, uint32_t cols)
{
    return pkvi_matrix_groups(rows) * pkvi_group_bytes(type, cols);
}

/* Bits [from, from + bits) of every code of one row go to their plane. */
static void store_plane(const uint32_t quad[8], uint32_t from, uint32_t bits, uint8_t *plane,
                        uint32_t lane)
{
    const uint32_t per_byte = 8 / bits;
    const uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
    for (uint32_t vector = 0; vector < bits; vector++) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < per_byte; i++) {
            word |= ((quad[vector * per_byte + i] >> from) & mask) << (bits * i);
        }
        memcpy(plane + 64 * vector + 4 * lane, &word, 4);
    }
}

/* The widths are constants here, so that the compiler unrolls. */
static void store_codes(const struct pkvi_layout *layout, const int8_t q[32], uint8_t *planes,
                        uint32_t lane)
{
    uint32_t quad[8];
    memcpy(quad, q, 32); /* 4 codes a word */
    switch (layout->low_bits) {
    case 2:
        store_plane(quad, 0, 2, planes, lane);
        break;
    case 4:
        store_plane(quad, 0, 4, planes, lane);
        break;
    default:
        store_plane(quad, 0, 8, planes, lane);
    }
    if (layout->high_bits == 1) {
        store_plane(quad, layout->low_bits, 1, planes + 64 * layout->low_bits, lane);
    } else if (layout->high_bits == 2) {
        store_plane(quad, layout->low_bits, 2, planes + 64 * layout->low_bits, lane);
    }
}

/* 16-bit numbers d (and m) of a lane, `at` the first of them. */
static void store_halves(uint8_t *at, const uint8_t *first, const uint8_t *second, uint32_t lane)
{
    memcpy(at + 2 * lane, first, 2);
    if (second != NULL) {
        memcpy(at + 2 * LANES + 2 * lane, second, 2);
    }
}

static void store_bytes(uint8_t *at, const void *bytes, uint32_t count, uint32_t lane)
{
    for (uint32_t i = 0; i < count; i++) {
        at[LANES * i + lane] = ((const uint8_t *)bytes)[i];
    }
}

static void store_scales(enum pkv_weight_type type, const uint8_t *block, uint8_t *scales,
                         uint32_t lane)
{
    uint8_t scale[8], min[8];
    int8_t scale_q3k[16];
    switch (type) {
    case PKV_W_Q4_1:
    case PKV_W_Q5_1:
        store_halves(scales, block, block + 2, lane);
        break;
    case PKV_W_Q2_K:
        store_bytes(scales, block, 16, lane);
        store_halves(scales + 256, block + 80, block + 82, lane);
        break;
    case PKV_W_Q3_K:
        pkvi_block_scales_q3k(block + 96, scale_q3k);
        store_bytes(scales, scale_q3k, 16, lane);
        store_halves(scales + 256, block + 108, NULL, lane);
        break;
    case PKV_W_Q4_K:
    case PKV_W_Q5_K:
        pkvi_block_scales_q4k(block + 4, scale, min);
        store_bytes(scales, scale, 8, lane);
        store_bytes(scales + 128, min, 8, lane);
        store_halves(scales + 256, block, block + 2, lane);
        break;
    case PKV_W_Q6_K:
        store_bytes(scales, block + 192, 16, lane);
        store_halves(scales + 256, block + 208, NULL, lane);
        break;
    default: /* q4_0 q5_0 q8_0 */
        store_halves(scales, block, NULL, lane);
    }
}

static void pack_quantised(enum pkv_weight_type type, uint32_t lanes, uint32_t cols,
                           const uint8_t *source, uint8_t *packed)
{
    const struct pkvi_layout *layout = &pkvi_layouts[type];
    const uint64_t row_bytes = pkvi_weight_row_bytes(type, cols);
    const uint32_t block_bytes = pkvi_weight_block_bytes(type);
    const uint32_t planes_bytes = pkvi_layout_planes_bytes(layout);
    const uint32_t subs = layout->values / 32;
    int8_t q[32];
    for (uint32_t b = 0; b < cols / layout->values; b++) {
        uint8_t *record = packed + (uint64_t)b * layout->record_bytes;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            const uint8_t *block = source + lane * row_bytes + (uint64_t)b * block_bytes;
            for (uint32_t sub = 0; sub < subs; sub++) {
                pkvi_block_codes(type, block, sub, q);
                store_codes(layout, q, record + sub * planes_bytes, lane);
            }
            store_scales(type, block, record + subs * planes_bytes, lane);
        }
    }
}

static void pack_floats(uint32_t value_bytes, uint32_t lanes, uint32_t cols, const uint8_t *source,
                        uint8_t *packed)
{
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const uint8_t *row = source + (uint64_t)lane * cols * value_bytes;
        for (uint32_t k = 0; k < cols; k++) {
            uint8_t *to = packed + ((uint64_t)k * LANES + lane) * value_bytes;
            if (value_bytes == 4) {
                memcpy(to, row + (uint64_t)k * 4, 4);
            } else {
                memcpy(to, row + (uint64_t)k * 2, 2);
            }
        }
    }
}

void pkvi_pack_rows(enum pkv_weight_type type, uint32_t rows, uint32_t cols, const void *source,
                    uint32_t first_group, uint32_t groups, void *packed)
{
    const uint64_t row_bytes = pkvi_weight_row_bytes(type, cols);
    const uint64_t group_bytes = pkvi_group_bytes(type, cols);
    for (uint32_t g = first_group; g < first_group + groups; g++) {
        const uint8_t *from = (const uint8_t *)source + (uint64_t)g * LANES * row_bytes;
        uint8_t *to = (uint8_t *)packed + g * group_bytes;
        const uint32_t left = rows - g * LANES, lanes = left < LANES ? left : LANES;
        if (lanes < LANES) {
            memset(to, 0, group_bytes);
        }
        if (pkvi_weight_is_quantised(type)) {
            pack_quantised(type, lanes, cols, from, to);
        } else {
            pack_floats(pkvi_weight_block_bytes(type), lanes, cols, from, to);
        }
    }
}

static uint32_t load_plane(const uint8_t *plane, uint32_t bits, uint32_t quad, uint32_t lane)
{
    const uint32_t per_byte = 8 / bits;
    uint32_t word;
    memcpy(&word, plane + 64 * (quad / per_byte) + 4 * lane, 4);
    return (word >> (bits * (quad % per_byte))) & (((1u << bits) - 1) * 0x01010101u);
}

void pkvi_record_codes(enum pkv_weight_type type, const uint8_t *record, uint32_t sub,
                       uint32_t lane, int8_t q[32])
{
    const struct pkvi_layout *layout = &pkvi_layouts[type];
    const uint8_t *planes = record + sub * pkvi_layout_planes_bytes(layout);
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t word = load_plane(planes, layout->low_bits, j, lane);
        if (layout->high_bits > 0) {
            word |= load_plane(planes + 64 * layout->low_bits, layout->high_bits, j, lane)
                    << layout->low_bits;
        }
        memcpy(q + 4 * j, &word, 4);
    }
}

static float half_at(const uint8_t *halves, uint32_t lane)
{
    uint16_t half;
    memcpy(&half, halves + 2 * lane, 2);
    return pkvi_f16_to_f32(half);
}

void pkvi_record_scales(enum pkv_weight_type type, const uint8_t *record, uint32_t sub,
                        uint32_t lane, float s[2], float m[2])
{
    const struct pkvi_layout *layout = &pkvi_layouts[type];
    const uint8_t *scales = record + layout->record_bytes - layout->scale_bytes;
    for (uint32_t h = 0; h < 2; h++) {
        const uint8_t byte = scales[LANES * (2 * sub + h) + lane]; /* K formats with 16 a scale */
        switch (type) {
        case PKV_W_Q4_1:
        case PKV_W_Q5_1:
            s[h] = half_at(scales, lane);
            m[h] = half_at(scales + 32, lane);
            break;
        case PKV_W_Q2_K:
            s[h] = half_at(scales + 256, lane) * (float)(byte & 15);
            m[h] = -(half_at(scales + 288, lane) * (float)(byte >> 4));
            break;
        case PKV_W_Q4_K:
        case PKV_W_Q5_K:
            s[h] = half_at(scales + 256, lane) * (float)scales[LANES * sub + lane];
            m[h] = -(half_at(scales + 288, lane) * (float)scales[128 + LANES * sub + lane]);
            break;
        case PKV_W_Q3_K:
        case PKV_W_Q6_K:
            s[h] = half_at(scales + 256, lane) * (float)(int8_t)byte;
            m[h] = -(float)layout->offset * s[h];
            break;
        default:
            s[h] = half_at(scales, lane);
            m[h] = -(float)layout->offset * s[h];
        }
    }
}

float pkvi_record_float(enum pkv_weight_type type, const uint8_t *record, uint32_t lane)
{
    float value;
    uint16_t half;
    if (type == PKV_W_F32) {
        memcpy(&value, record + 4 * lane, 4);
        return value;
    }
    memcpy(&half, record + 2 * lane, 2);
    return type == PKV_W_F16 ? pkvi_f16_to_f32(half) : pkvi_bf16_to_f32(half);
}

void pkvi_pack_dequantize_row(const struct pkv_matrix *matrix, uint32_t row, float *out)
{
    const struct pkvi_layout *layout = &pkvi_layouts[matrix->type];
    const uint32_t lane = row % LANES;
    const uint8_t *group = PKV_AT(const uint8_t, matrix->data) +
                           row / LANES * pkvi_group_bytes(matrix->type, matrix->cols);
    if (!pkvi_weight_is_quantised(matrix->type)) {
        for (uint32_t k = 0; k < matrix->cols; k++) {
            out[k] =
                pkvi_record_float(matrix->type, group + (uint64_t)k * layout->record_bytes, lane);
        }
        return;
    }
    for (uint32_t k = 0; k < matrix->cols; k += 32) {
        const uint8_t *record = group + (uint64_t)(k / layout->values) * layout->record_bytes;
        const uint32_t sub = k % layout->values / 32;
        int8_t q[32];
        float s[2], m[2];
        pkvi_record_codes(matrix->type, record, sub, lane, q);
        pkvi_record_scales(matrix->type, record, sub, lane, s, m);
        for (uint32_t i = 0; i < 32; i++) {
            out[k + i] = fmaf((float)q[i], s[i / 16], m[i / 16]);
        }
    }
}
