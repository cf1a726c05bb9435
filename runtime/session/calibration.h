/*
 * calibration.h: what was measured about a model (docs/recall.md), and its file, version 1, little
 * endian: header, a record a layer, f32 values, a checksum of all before it. In memory it is the
 * same bytes.
 */
#ifndef PKV_SESSION_CALIBRATION_H
#define PKV_SESSION_CALIBRATION_H

#include "pivotkv/calibration.h"

#define PKVI_CALIBRATION_MAGIC "PKVCAL\x1a\n"
#define PKVI_CALIBRATION_VERSION 1u
#define PKVI_CALIBRATION_DELTA_ROWS 64u /* rows before it have activations like no others: they */
#define PKVI_CALIBRATION_KEY_ROWS 4u    /* count neither for deltas nor, these, for the rest */

struct pkvi_calibration_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t file_bytes, identity; /* of the model */
    uint32_t layers, width, tokens, source;
};

struct pkvi_calibration_shape {
    uint32_t kind; /* enum pkv_layer_kind */
    uint32_t heads, kv_heads, head_dim, rope_pairs, rope_halves;
};

_Static_assert(sizeof(struct pkvi_calibration_header) == 48, "the file has it so");
_Static_assert(sizeof(struct pkvi_calibration_shape) == 24, "the file has it so");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file has it so");

/*
 * Of a model layer, sliding ones too. In the file: `cosine` of all layers, then a layer after the
 * other what is pointed to, in this order.
 */
struct pkvi_layer_calibration {
    /* [width] means over rows: (residual entering this layer) - (the one entering the layer
     * before); and - (the one after the attention of the layer before, before its FFN). Zeros for
     * layer 0. */
    const float *delta_ahead, *delta_mid;
    const float *key_mean, *key_sd; /* [kv_heads][head_dim] of keys after norm, before RoPE, so that
                                       they hold for any context */
    const float *key_pair;          /* [kv_heads][head_dim / 2] covariance of a pair's channels */
    const float *query_power; /* [kv_heads][head_dim] mean of q^2 over rows and the query heads of
                                 the group, after norm and RoPE */
    float cosine;             /* mean of the residuals before and after this layer's attention */
};

struct pkv_calibration {
    uint64_t identity;
    uint32_t layers, width;
    struct pkvi_layer_calibration *layer; /* [layers] */
    char *file;                           /* [header->file_bytes] */
    struct pkvi_calibration_header *header;
    struct pkvi_calibration_shape *shape; /* [layers] */
    float *values;
    uint64_t value_count;
};

/*
 * Mean and deviation of each channel of a layer's keys as they are kept, after RoPE, over the
 * positions [0, tokens): [kv_heads][head_dim]. freq: f64 [rope_pairs], gain: as of ROPE_TABLE.
 */
void pkvi_calibration_keys(const struct pkv_calibration *calibration,
                           const struct pkv_layer_info *info, uint32_t layer, const double *freq,
                           double gain, uint32_t tokens, float *mean_out, float *sd_out);

/*
 * The r channels with the largest query_power * sd^2, summed over a rotary pair: those that a score
 * varies with; sd: f32 [kv_heads][head_dim]. Whole pairs, in ascending order of their first
 * channel, its second one next to it: channels_out[2i], [2i + 1]; of equal pairs the lower. Pairs
 * are those of PKV_OP_ROPE; channels that are not rotated pair up (c, c + 1). r: even, at most
 * head_dim.
 */
void pkvi_calibration_channels(const struct pkv_calibration *calibration,
                               const struct pkv_layer_info *info, uint32_t layer, uint32_t kv_head,
                               const float *sd, uint32_t r, uint16_t *channels_out);

/* The same as pkv_calibration_run(), `step_rows` rows at a time. */
enum pkv_status pkvi_calibration_measure(struct pkv_model *model, const int32_t *ids, size_t count,
                                         uint32_t step_rows, struct pkv_calibration **out);

/* calibration_file.c: all zero but header and shapes. */
enum pkv_status pkvi_calibration_new(const struct pkv_model *model, uint32_t tokens,
                                     enum pkv_calibration_source source,
                                     struct pkv_calibration **out);
/* Once the values are there: what else follows from them. PKV_ERR_CORRUPT: one is out of range. */
enum pkv_status pkvi_calibration_seal(struct pkv_calibration *calibration);
/* Where the checksum of so many bytes of a file is, which they end with, and what it should be. */
uint64_t pkvi_calibration_checksum(const char *file, uint64_t file_bytes);

/* calibration_text.c: texts that are encoded one after the other; NULL behind the last. */
extern const char *const pkvi_calibration_text[];

#endif
