/*
 * pack_layout.h: the bytes of a packed matrix, for those who write or read them.
 *
 * Groups of 16 rows follow each other; a group is a row of *records*; a record holds 16 rows x 32
 * values (256 for the K formats, 1 for floats). Values go in *quads*: word r of a quad's 64 bytes
 * holds row r's codes of 4 neighbouring values, a byte each.
 *
 * Quantised record: for each 32 values the low plane, then the high plane; behind them the scales,
 * as compact as the file's. A plane of b bits has 8 / b quads to a byte: quad j (values 4j..4j+3)
 * stands at bit b * (j % (8 / b)) of the 64-byte vector j / (8 / b).
 *   q4_0 q5_0 q8_0   f16 d[16]
 *   q4_1 q5_1        f16 d[16], m[16]
 *   q4_K q5_K        u8 scale[8][16], u8 min[8][16], f16 d[16], dmin[16]
 *   q6_K q3_K        i8 scale[16][16], f16 d[16]
 *   q2_K             u8 (scale | min << 4)[16][16], f16 d[16], dmin[16]
 * Float record: 16 values of the file's format, one a row. Rows beyond the last are zero.
 *
 * A code q means q * s + m, where per 16 or 32 values (exact products in float32)
 *   q4_0 q5_0  s = d, m = -8d, -16d      q8_0       s = d, m = 0, q signed
 *   q4_1 q5_1  s = d, m                  q4_K q5_K  s = d * scale, m = -(dmin * min)
 *   q6_K q3_K  s = d * scale, m = -32s, -4s   q2_K  s = d * scale, m = -(dmin * min)
 */
#ifndef PKV_PACK_LAYOUT_H
#define PKV_PACK_LAYOUT_H

#include "kernels/pack.h"

#ifdef __cplusplus
extern "C" {
#define PKV_TABLE static constexpr /* CUDA kernels compute with it at compile time */
#else
#define PKV_TABLE static const
#endif

#define PKV_SUB_VALUES 32u /* values that share an activation scale */

struct pkvi_layout {
    uint16_t values;       /* in a record */
    uint8_t low_bits;      /* of a code; 0: floats */
    uint8_t high_bits;     /* the rest of the code, in its own plane */
    uint8_t scale_values;  /* values that share a scale */
    uint8_t offset;        /* m = -offset * s; 0: see above */
    uint16_t scale_bytes;  /* behind the planes */
    uint16_t record_bytes; /* a multiple of 32 */
};

/* By enum pkv_weight_type; without designators, for C++. */
PKV_TABLE struct pkvi_layout pkvi_layouts[PKV_W_COUNT] = {
    {1, 0, 0, 0, 0, 0, 64},                  /* f32 */
    {1, 0, 0, 0, 0, 0, 32},                  /* f16 */
    {1, 0, 0, 0, 0, 0, 32},                  /* bf16 */
    {32, 4, 0, 32, 8, 32, 256 + 32},         /* q4_0 */
    {32, 4, 0, 32, 0, 64, 256 + 64},         /* q4_1 */
    {32, 4, 1, 32, 16, 32, 320 + 32},        /* q5_0 */
    {32, 4, 1, 32, 0, 64, 320 + 64},         /* q5_1 */
    {32, 8, 0, 32, 0, 32, 512 + 32},         /* q8_0 */
    {256, 2, 0, 16, 0, 320, 8 * 128 + 320},  /* q2_K */
    {256, 2, 1, 16, 4, 288, 8 * 192 + 288},  /* q3_K */
    {256, 4, 0, 32, 0, 320, 8 * 256 + 320},  /* q4_K */
    {256, 4, 1, 32, 0, 320, 8 * 320 + 320},  /* q5_K */
    {256, 4, 2, 16, 32, 288, 8 * 384 + 288}, /* q6_K */
};

/* Bytes of a plane pair: 32 values of 16 rows. */
static inline uint32_t pkvi_layout_planes_bytes(const struct pkvi_layout *layout)
{
    return 64u * (layout->low_bits + layout->high_bits);
}

static inline uint32_t pkvi_matrix_groups(uint32_t rows)
{
    return rows / PKV_PACK_ROWS + (rows % PKV_PACK_ROWS != 0);
}

/* From one group to the next. */
static inline uint64_t pkvi_group_bytes(enum pkv_weight_type type, uint32_t cols)
{
    return (uint64_t)(cols / pkvi_layouts[type].values) * pkvi_layouts[type].record_bytes;
}

/* Codes of 32 values of one row: values 32 sub .. 32 sub + 31 of a record. q8_0: signed. */
void pkvi_record_codes(enum pkv_weight_type type, const uint8_t *record, uint32_t sub,
                       uint32_t lane, int8_t q[PKV_SUB_VALUES]);

/* Their scales: s[h], m[h] for values 16h .. 16h + 15. */
void pkvi_record_scales(enum pkv_weight_type type, const uint8_t *record, uint32_t sub,
                        uint32_t lane, float s[2], float m[2]);

/* A value of a float matrix. */
float pkvi_record_float(enum pkv_weight_type type, const uint8_t *record, uint32_t lane);

/* The same of a block as the file has it. */
void pkvi_block_codes(enum pkv_weight_type type, const uint8_t *block, uint32_t sub,
                      int8_t q[PKV_SUB_VALUES]);

/* Factors of q4_K and q5_K, 6 bits each in 12 bytes. */
void pkvi_block_scales_q4k(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8]);
/* Factors of q3_K, 6 bits each in 12 bytes, 32 taken away. */
void pkvi_block_scales_q3k(const uint8_t packed[12], int8_t scale[16]);

#ifdef __cplusplus
}
#endif

#endif
