/*
 * calibration.h: what is measured once about a model, by one pass over a text: how the residual
 * changes from layer to layer, and which channels of its keys and queries are large.
 * docs/recall.md says what for. A file of it holds sums over tokens, nothing of the text.
 */
#ifndef PIVOTKV_CALIBRATION_H
#define PIVOTKV_CALIBRATION_H

#include "pivotkv/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_calibration;

#define PKV_CALIBRATION_LEAST_TOKENS 128u

enum pkv_calibration_source {
    PKV_CALIBRATION_BUILT_IN, /* a text in this library */
    PKV_CALIBRATION_GIVEN,    /* ids of the caller */
    PKV_CALIBRATION_RANDOM,   /* the model has no vocabulary: ids that only look random */
    PKV_CALIBRATION_SOURCE_COUNT
};

struct pkv_calibration_info {
    uint64_t identity; /* of the model, as in pkv_model_info */
    uint64_t file_bytes;
    uint32_t layers, width, tokens;
    enum pkv_calibration_source source;
    /* f32 [layers], borrowed: mean cosine of the residual before and after a layer's attention */
    const float *cosine;
};

/*
 * Run `count` tokens through the model and keep what they tell. ids NULL: a text of about 2,400
 * tokens that is built in, cut to the model's context; the tokenizer is read from the model's file
 * (PKV_ERR_IO: it is gone), of a model without a vocabulary ids are made up. Results are the same
 * however many threads there are.
 * PKV_ERR_RANGE: fewer tokens than PKV_CALIBRATION_LEAST_TOKENS, more than the model's context, an
 * id that it does not have. PKV_ERR_UNSUPPORTED: a device that computes nothing. PKV_ERR_NO_MEMORY:
 * no room for the K and V of so many tokens. PKV_ERR_CORRUPT: the model computes no numbers.
 * Cost: a prompt of so many tokens, with all K and V on the device meanwhile, and three times the
 * result's bytes on the host. Threads: no other session of the model may run a step.
 */
PKV_API enum pkv_status pkv_calibration_run(struct pkv_model *model, const int32_t *ids,
                                            size_t count, struct pkv_calibration **out);

/*
 * Read a file that pkv_calibration_save() wrote. PKV_ERR_IO: cannot be read, is no regular file.
 * PKV_ERR_CORRUPT: not such a file, or damaged; what was found and expected. PKV_ERR_UNSUPPORTED:
 * of another version. PKV_ERR_INVALID: of another model. PKV_ERR_STATE: the model's weights are not
 * loaded, so that it is not known whose the file is.
 */
PKV_API enum pkv_status pkv_calibration_load(const struct pkv_model *model, const char *path,
                                             struct pkv_calibration **out);

/* Under another name beside `path` first, then to disk, then renamed. PKV_ERR_IO: `path` is as it
 * was. */
PKV_API enum pkv_status pkv_calibration_save(const struct pkv_calibration *calibration,
                                             const char *path);

/* Valid until it is closed. */
PKV_API void pkv_calibration_query(const struct pkv_calibration *calibration,
                                   struct pkv_calibration_info *info_out);
PKV_API void pkv_calibration_close(struct pkv_calibration *calibration); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
