/*
 * model.h: a loaded model: its shape, and where its weights are on the device.
 *
 * Nothing here refers to the file any more once weights are loaded: it is closed then.
 */
#ifndef PKV_MODEL_MODEL_H
#define PKV_MODEL_MODEL_H

#include "kernels/kernels.h"
#include "pivotkv/model.h"
#include "runtime/model/arch.h"

/* Which forms of its input a matrix reads. */
struct pkvi_act_need {
    bool f32, q8;
};

struct pkvi_model_layer {
    struct pkv_layer_info info;
    uint32_t rope; /* index in pkv_model.rope */
    struct pkv_matrix q, k, v, out, gate, up, down;
    pkv_addr attn_norm, q_norm, k_norm, post_attn_norm; /* f32, 0 = none */
    pkv_addr ffn_norm, post_ffn_norm;
};

struct pkvi_model_rope {
    uint32_t pairs;
    double gain;
    pkv_addr freq;      /* f64 [pairs] */
    pkv_addr freq_long; /* for contexts above short_context, or 0 */
    uint32_t short_context;
};

struct pkv_model {
    struct pkv_device *device;
    struct pkv_model_config config;
    bool loaded;            /* weights are there */
    struct pkvi_gguf *gguf; /* until then */
    struct pkvi_arch arch;  /* while gguf is open */
    struct pkv_model_info info;
    char *name, *weight_types; /* owned; info points to them */
    char *path;                /* as it was opened */
    float norm_eps, embedding_scale, attention_scale, attention_softcap, final_softcap;
    enum pkv_glu glu;
    bool post_norms;
    uint32_t rope_count;
    struct pkvi_model_rope rope[PKVI_ARCH_ROPES];
    struct pkvi_model_layer *layer; /* [info.layers] */
    struct pkv_matrix token_embd, output;
    pkv_addr output_norm;
    struct pkvi_act_need need_in, need_attn, need_ffn; /* of all layers and the output */
    pkv_addr weights;                                  /* one device allocation */
    uint64_t weights_bytes;
    /* Of every vector and the beginning of every matrix, as they stand in the file: another model,
     * or another training of this one, has another identity. 0 = no weights were read. */
    uint64_t identity;
};

/*
 * Bytes that pkvi_weights_load() allocates, and the same call with a device loads: places every
 * matrix and vector of `arch` in model->weights and fills in model's addresses.
 */
enum pkv_status pkvi_weights_plan(const struct pkvi_arch *arch,
                                  const struct pkv_model_config *config, struct pkv_model *model);
enum pkv_status pkvi_weights_load(const struct pkvi_gguf *gguf, const struct pkvi_arch *arch,
                                  const struct pkv_model_config *config, struct pkv_model *model);

#endif
