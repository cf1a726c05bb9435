/*
 * block_codes.c: the integer codes inside a block of a GGUF file.
 *
 * Refuses to know: what a code is worth (dequant.c), where it goes (pack.c).
 * Format: ggml's block_q* structures (ggml-common.h). Bytes are little endian, unaligned.
 */
#include <string.h>

#include "kernels/pack_layout.h"

/* q[0..15] from low nibbles, q[16..31] from high ones. */
static void nibbles(const uint8_t *qs, int8_t q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(qs[i] & 15);
        q[i + 16] = (int8_t)(qs[i] >> 4);
    }
}

/* Bit i of the mask is bit 4 of q[i]. */
static void fifth_bits(const uint8_t *mask, int8_t q[32])
{
    for (int i = 0; i < 4; i++) {
        /* Byte k keeps bit k only; adding 127 moves any bit to the top, without a carry. */
        const uint64_t bits = mask[i] * 0x0101010101010101u & 0x8040201008040201u;
        uint64_t eight;
        memcpy(&eight, q + 8 * i, 8);
        eight |= ((bits + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u) << 4;
        memcpy(q + 8 * i, &eight, 8);
    }
}

/* q = (byte >> shift) & mask, 32 times. */
static void shifted(const uint8_t *bytes, uint32_t shift, uint8_t mask, int8_t q[32])
{
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)((bytes[i] >> shift) & mask);
    }
}

/* Add (byte >> shift) & mask above `low` bits. */
static void shifted_high(const uint8_t *bytes, uint32_t shift, uint8_t mask, uint32_t low,
                         int8_t q[32])
{
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)(q[i] | ((bytes[i] >> shift) & mask) << low);
    }
}

void pkvi_block_codes(enum pkv_weight_type type, const uint8_t *block, uint32_t sub, int8_t q[32])
{
    const uint32_t half = sub / 4, quarter = sub % 4; /* of a K block's two halves of 128 */
    switch (type) {
    case PKV_W_Q4_0:
        nibbles(block + 2, q);
        break;
    case PKV_W_Q4_1:
        nibbles(block + 4, q);
        break;
    case PKV_W_Q5_0:
        nibbles(block + 6, q);
        fifth_bits(block + 2, q);
        break;
    case PKV_W_Q5_1:
        nibbles(block + 8, q);
        fifth_bits(block + 4, q);
        break;
    case PKV_W_Q8_0:
        memcpy(q, block + 2, 32);
        break;
    case PKV_W_Q2_K:
        shifted(block + 16 + 32 * half, 2 * quarter, 3, q);
        break;
    case PKV_W_Q3_K:
        shifted(block + 32 + 32 * half, 2 * quarter, 3, q);
        shifted_high(block, sub, 1, 2, q);
        break;
    case PKV_W_Q4_K:
        shifted(block + 16 + 32 * (sub / 2), 4 * (sub % 2), 15, q);
        break;
    case PKV_W_Q5_K:
        shifted(block + 48 + 32 * (sub / 2), 4 * (sub % 2), 15, q);
        shifted_high(block + 16, sub, 1, 4, q);
        break;
    case PKV_W_Q6_K:
        shifted(block + 64 * half + 32 * (quarter % 2), 4 * (quarter / 2), 15, q);
        shifted_high(block + 128 + 32 * half, 2 * quarter, 3, 4, q);
        break;
    default:
        memset(q, 0, 32);
    }
}

void pkvi_block_scales_q4k(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8])
{
    for (int i = 0; i < 4; i++) {
        scale[i] = packed[i] & 63;
        min[i] = packed[i + 4] & 63;
        scale[i + 4] = (uint8_t)((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
        min[i + 4] = (uint8_t)((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
    }
}

void pkvi_block_scales_q3k(const uint8_t packed[12], int8_t scale[16])
{
    for (int i = 0; i < 16; i++) {
        const int low = (packed[i % 8] >> (4 * (i / 8))) & 15;
        const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        scale[i] = (int8_t)((low | high << 4) - 32);
    }
}
