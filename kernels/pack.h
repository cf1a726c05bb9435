/*
 * pack.h: weight matrices as GGUF files store them, and as the kernels read them.
 *
 * Packed, 16 output rows stand together, so that one vector lane is one row and a matrix of any
 * number format streams through the core once, whether one row of activations or 512 ask for it.
 */
#ifndef PKV_PACK_H
#define PKV_PACK_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_PACK_ROWS 16u

/* Values in one block of the file's format (1, 32 or 256), and its bytes. */
uint32_t pkvi_weight_block_values(enum pkv_weight_type type);
uint32_t pkvi_weight_block_bytes(enum pkv_weight_type type);
const char *pkvi_weight_type_name(enum pkv_weight_type type); /* "q4_K" as GGUF tools print it */
bool pkvi_weight_is_quantised(enum pkv_weight_type type);

/* Bytes of one row of the file's format. cols must be a multiple of the block's values. */
uint64_t pkvi_weight_row_bytes(enum pkv_weight_type type, uint32_t cols);

/* Plain reference: one row of the file's format to float32. */
void pkvi_weight_dequantize(enum pkv_weight_type type, const void *row, uint32_t cols, float *out);

/* Bytes of a packed matrix; rows are padded to a multiple of 16. */
uint64_t pkvi_pack_bytes(enum pkv_weight_type type, uint32_t rows, uint32_t cols);

/*
 * Pack groups [first_group, first_group + groups) of 16 rows from the file's rows (`source` is row
 * 0 of the matrix) into `packed` (the whole matrix, 64-byte aligned). Any thread; groups are
 * independent.
 */
void pkvi_pack_rows(enum pkv_weight_type type, uint32_t rows, uint32_t cols, const void *source,
                    uint32_t first_group, uint32_t groups, void *packed);

/* One row of a packed matrix to float32: equal to pkvi_weight_dequantize() of the source row. */
void pkvi_pack_dequantize_row(const struct pkv_matrix *matrix, uint32_t row, float *out);

#ifdef __cplusplus
}
#endif

#endif
