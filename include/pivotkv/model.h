/* model.h: a model's weights on a device. */
#ifndef PIVOTKV_MODEL_H
#define PIVOTKV_MODEL_H

#include "pivotkv/device.h"
#include "pivotkv/text.h"
#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_model;

enum pkv_layer_kind { PKV_LAYER_GLOBAL, PKV_LAYER_SLIDING };

/* Layers differ. */
struct pkv_layer_info {
    enum pkv_layer_kind kind;
    uint32_t window; /* tokens a row sees, itself included; 0 = all */
    uint32_t heads, kv_heads, head_dim;
    uint32_t rope_pairs;
    uint32_t rope_halves; /* pairs (i, i + rope_pairs), else (2i, 2i + 1) */
    float rope_theta;
    bool qk_norm;
};

struct pkv_model_info {
    const char *architecture; /* "llama", ... */
    const char *name;         /* general.name, "" if absent */
    uint32_t layers, width, ffn, vocab, context;
    uint64_t file_bytes; /* all shards */
    uint64_t parameters;
    const char *weight_types; /* "Q4_1 x210, F32 x61, Q8_0 x1" */
    uint64_t
        identity; /* a hash: another model, or training, has another; 0 = no weights were read */
};

/* Begin with pkv_model_config_default(). */
struct pkv_model_config {
    uint32_t struct_bytes;
    bool exact;     /* expand all weights to float32 (`--exact`) */
    bool plan_only; /* read no weights: for pkv_session_plan() alone */
};
PKV_API struct pkv_model_config pkv_model_config_default(void);

/* Device bytes that opening would take, from the same code; allocates nothing on the device. */
PKV_API enum pkv_status pkv_model_plan(const char *path, const struct pkv_model_config *config,
                                       uint64_t *device_bytes_out);

/*
 * Check the whole file, then load. PKV_ERR_UNSUPPORTED names the architecture, key or tensor type;
 * PKV_ERR_CORRUPT what was found and expected. On "sim" no weights are read: only where they would
 * lie is known. The device must outlive the model.
 */
PKV_API enum pkv_status pkv_model_open(struct pkv_device *device, const char *path,
                                       const struct pkv_model_config *config,
                                       struct pkv_model **model_out);
/*
 * The weights of a model that was opened with plan_only, whose file is open until then; nothing is
 * done where they are there. Errors as of pkv_model_open(); after one the model can only be closed.
 */
PKV_API enum pkv_status pkv_model_load(struct pkv_model *model);
PKV_API void pkv_model_close(struct pkv_model *model);
PKV_API void pkv_model_query(const struct pkv_model *model, struct pkv_model_info *info_out);
PKV_API const struct pkv_layer_info *pkv_model_layer(const struct pkv_model *model, uint32_t layer);

/*
 * What is in a file, what would be used, what is not supported and why: text for people, or one
 * JSON object. Runs every check that loading runs; a file that pkv_model_open() would refuse gives
 * the same status and message, and no text. *text_out is freed with free().
 */
PKV_API enum pkv_status pkv_model_inspect(const char *path, bool json, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
