/* model.c: opening, planning, describing and closing a model. */
#include "runtime/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/device/device.h"

struct pkv_model_config pkv_model_config_default(void)
{
    return (struct pkv_model_config){.struct_bytes = sizeof(struct pkv_model_config)};
}

static enum pkv_status check_config(const struct pkv_model_config *config)
{
    if (config->struct_bytes != sizeof *config) {
        return PKV_FAIL(PKV_ERR_INVALID, "model config: struct_bytes %u, expected %zu",
                        config->struct_bytes, sizeof *config);
    }
    return PKV_OK;
}

static enum pkv_status copy_shape(const char *path, const struct pkvi_gguf *gguf,
                                  const struct pkvi_arch *arch, struct pkv_model *model)
{
    model->path = strdup(path);
    model->name = strdup(arch->name);
    model->weight_types = strdup(arch->weight_types);
    if (!model->path || !model->name || !model->weight_types) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "names of the model");
    }
    model->info = (struct pkv_model_info){.architecture = arch->architecture,
                                          .name = model->name,
                                          .layers = arch->layer_count,
                                          .width = arch->width,
                                          .ffn = arch->ffn,
                                          .vocab = arch->vocab,
                                          .context = arch->context,
                                          .file_bytes = pkvi_gguf_file_bytes(gguf),
                                          .parameters = arch->parameters,
                                          .weight_types = model->weight_types};
    model->norm_eps = arch->norm_eps;
    model->embedding_scale = arch->embedding_scale;
    model->attention_scale = arch->attention_scale;
    model->attention_softcap = arch->attention_softcap;
    model->final_softcap = arch->final_softcap;
    model->glu = arch->glu;
    model->post_norms = arch->post_norms;
    return PKV_OK;
}

static void close_file(struct pkv_model *model)
{
    if (model->gguf) {
        pkvi_arch_free(&model->arch);
        pkvi_gguf_close(model->gguf);
    }
    model->gguf = NULL;
}

/* Tables, shape and the bytes that weights will take. */
static enum pkv_status open_file(struct pkv_model *model, const char *path)
{
    struct pkvi_gguf *gguf = NULL;
    PKV_TRY(pkvi_gguf_open(path, &gguf));
    const enum pkv_status status = pkvi_arch_read(gguf, &model->arch);
    if (status != PKV_OK) {
        pkvi_gguf_close(gguf);
        return status;
    }
    model->gguf = gguf;
    PKV_TRY(copy_shape(path, gguf, &model->arch, model));
    return pkvi_weights_plan(&model->arch, &model->config, model);
}

enum pkv_status pkv_model_load(struct pkv_model *model)
{
    if (model->loaded) {
        return PKV_OK;
    }
    if (!model->gguf) {
        return PKV_FAIL(PKV_ERR_STATE, "the model's weights could not be loaded before");
    }
    const enum pkv_status status =
        pkvi_weights_load(model->gguf, &model->arch, &model->config, model);
    close_file(model);
    model->loaded = status == PKV_OK;
    return status;
}

enum pkv_status pkv_model_plan(const char *path, const struct pkv_model_config *config,
                               uint64_t *device_bytes_out)
{
    PKV_TRY(check_config(config));
    struct pkv_model *model = calloc(1, sizeof *model);
    if (!model) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "model: %zu bytes", sizeof *model);
    }
    model->config = *config;
    enum pkv_status status = open_file(model, path);
    if (status == PKV_OK) {
        *device_bytes_out = model->weights_bytes;
    }
    pkv_model_close(model);
    return status;
}

enum pkv_status pkv_model_open(struct pkv_device *device, const char *path,
                               const struct pkv_model_config *config, struct pkv_model **model_out)
{
    PKV_TRY(check_config(config));
    struct pkv_model *model = calloc(1, sizeof *model);
    if (!model) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "model: %zu bytes", sizeof *model);
    }
    model->device = device;
    model->config = *config;
    enum pkv_status status = open_file(model, path);
    if (status == PKV_OK && !config->plan_only) {
        status = pkv_model_load(model);
    }
    if (status != PKV_OK) {
        pkv_model_close(model);
        return status;
    }
    *model_out = model;
    return PKV_OK;
}

void pkv_model_close(struct pkv_model *model)
{
    if (!model) {
        return;
    }
    close_file(model);
    if (model->weights) {
        pkvi_mem_free(model->device, PKV_MEM_DEVICE, model->weights);
    }
    free(model->layer);
    free(model->path);
    free(model->name);
    free(model->weight_types);
    free(model);
}

void pkv_model_query(const struct pkv_model *model, struct pkv_model_info *info_out)
{
    *info_out = model->info;
    info_out->identity = model->identity;
}

const struct pkv_layer_info *pkv_model_layer(const struct pkv_model *model, uint32_t layer)
{
    return layer < model->info.layers ? &model->layer[layer].info : NULL;
}
