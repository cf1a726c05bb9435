/*
 * arch_tensors.c: gives every tensor of a file its role, or refuses it.
 *
 * A tensor without a role would be left out of the result in silence; so it is an error, as a
 * missing one or one of another shape is. Names: gguf-py 0.19, constants.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/model/arch_impl.h"

#define NAME_BYTES 80u
#define MAX_VOCAB (1u << 21)

static void mark(struct pkvi_arch_reader *reader, const struct pkvi_gguf_tensor *tensor)
{
    reader->seen[tensor - pkvi_gguf_tensor_at(reader->gguf, 0)] = true;
}

static enum pkv_status check_shape(const struct pkvi_arch_reader *reader,
                                   const struct pkvi_gguf_tensor *tensor, uint64_t cols,
                                   uint64_t rows)
{
    const uint64_t *dim = tensor->dim;
    if (dim[0] == cols && dim[1] == rows && dim[2] == 1 && dim[3] == 1) {
        return PKV_OK;
    }
    char found[100];
    size_t at = 0;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%" PRIu64, i ? ", " : "", dim[i]);
    }
    char expected[50];
    (void)snprintf(expected, sizeof expected, rows == 1 ? "%" PRIu64 : "%" PRIu64 ", %" PRIu64,
                   cols, rows);
    return PKV_FAIL(PKV_ERR_CORRUPT, "%s: tensor '%.*s' has shape [%s], expected [%s]",
                    pkvi_gguf_path(reader->gguf), pkvi_str_shown(tensor->name), tensor->name.data,
                    found, expected);
}

static enum pkv_status check_format(const struct pkvi_arch_reader *reader,
                                    const struct pkvi_gguf_tensor *tensor, bool f32_only)
{
    if (tensor->supported && tensor->offset && (!f32_only || tensor->weight_type == PKV_W_F32)) {
        return PKV_OK;
    }
    char number[32];
    const char *type = pkvi_gguf_ggml_type_name(tensor->ggml_type);
    (void)snprintf(number, sizeof number, "number %" PRIu32, tensor->ggml_type);
    return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: tensor '%.*s' has format %s, supported %s",
                    pkvi_gguf_path(reader->gguf), pkvi_str_shown(tensor->name), tensor->name.data,
                    type ? type : number,
                    f32_only
                        ? "is only F32 here"
                        : "are F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K");
}

enum pkv_status pkvi_arch_find_vector(struct pkvi_arch_reader *reader, const char *name,
                                      uint32_t count, const struct pkvi_gguf_tensor **tensor_out)
{
    const struct pkvi_gguf_tensor *tensor = pkvi_gguf_find_tensor(reader->gguf, name);
    *tensor_out = tensor;
    if (!tensor) {
        return PKV_OK;
    }
    mark(reader, tensor);
    PKV_TRY(check_shape(reader, tensor, count, 1));
    return check_format(reader, tensor, true);
}

/* rows 0: a vector, or a number of rows that only this tensor could tell. */
static enum pkv_status missing(const struct pkvi_arch_reader *reader, const char *name,
                               uint32_t cols, uint32_t rows)
{
    char shape[40];
    (void)snprintf(shape, sizeof shape, rows ? "%u, %u" : "%u", cols, rows);
    return PKV_FAIL(PKV_ERR_CORRUPT, "%s: tensor '%s' is missing, expected shape [%s]",
                    pkvi_gguf_path(reader->gguf), name, shape);
}

/* A norm's weights, which must be there. */
static enum pkv_status need_vector(struct pkvi_arch_reader *reader, const char *name,
                                   uint32_t count, const struct pkvi_gguf_tensor **tensor_out)
{
    PKV_TRY(pkvi_arch_find_vector(reader, name, count, tensor_out));
    return *tensor_out ? PKV_OK : missing(reader, name, count, 0);
}

/* "blk.3.attn_q" + ".weight" */
static void layer_name(uint32_t layer, const char *role, const char *part, char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "blk.%u.%s%s", layer, role, part);
}

static enum pkv_status need_layer_vector(struct pkvi_arch_reader *reader, uint32_t layer,
                                         const char *role, uint32_t count,
                                         const struct pkvi_gguf_tensor **tensor_out)
{
    char name[NAME_BYTES];
    layer_name(layer, role, ".weight", name);
    return need_vector(reader, name, count, tensor_out);
}

/* `stem`.weight, which must be there, and `stem`.bias, which may. */
static enum pkv_status need_matrix(struct pkvi_arch_reader *reader, const char *stem, uint32_t rows,
                                   uint32_t cols, struct pkvi_weight *weight_out)
{
    char name[NAME_BYTES + 8];
    (void)snprintf(name, sizeof name, "%s.weight", stem);
    const struct pkvi_gguf_tensor *tensor = pkvi_gguf_find_tensor(reader->gguf, name);
    if (!tensor) {
        return missing(reader, name, cols, rows);
    }
    mark(reader, tensor);
    PKV_TRY(check_shape(reader, tensor, cols, rows));
    PKV_TRY(check_format(reader, tensor, false));
    *weight_out = (struct pkvi_weight){.tensor = tensor, .rows = rows, .cols = cols};
    (void)snprintf(name, sizeof name, "%s.bias", stem);
    return pkvi_arch_find_vector(reader, name, rows, &weight_out->bias);
}

static enum pkv_status need_layer_matrix(struct pkvi_arch_reader *reader, uint32_t layer,
                                         const char *role, uint32_t rows, uint32_t cols,
                                         struct pkvi_weight *weight_out)
{
    char stem[NAME_BYTES];
    layer_name(layer, role, "", stem);
    return need_matrix(reader, stem, rows, cols, weight_out);
}

static bool has_layer_tensor(const struct pkvi_arch_reader *reader, uint32_t layer,
                             const char *role)
{
    char name[NAME_BYTES];
    layer_name(layer, role, ".weight", name);
    return pkvi_gguf_find_tensor(reader->gguf, name) != NULL;
}

static struct pkvi_weight rows_of(const struct pkvi_weight *fused, uint32_t first_row,
                                  uint32_t rows)
{
    struct pkvi_weight part = *fused;
    part.first_row = first_row;
    part.rows = rows;
    return part;
}

static enum pkv_status read_attention(struct pkvi_arch_reader *reader, uint32_t index)
{
    struct pkvi_arch *arch = reader->arch;
    struct pkvi_arch_layer *layer = &arch->layer[index];
    uint32_t q_rows = arch->heads * arch->head_dim, kv_rows = arch->kv_heads * arch->head_dim;
    PKV_TRY(need_layer_vector(reader, index, "attn_norm", arch->width, &layer->attn_norm));
    if (has_layer_tensor(reader, index, "attn_qkv")) {
        struct pkvi_weight fused;
        PKV_TRY(need_layer_matrix(reader, index, "attn_qkv", q_rows + 2 * kv_rows, arch->width,
                                  &fused));
        layer->q = rows_of(&fused, 0, q_rows);
        layer->k = rows_of(&fused, q_rows, kv_rows);
        layer->v = rows_of(&fused, q_rows + kv_rows, kv_rows);
        arch->fused_qkv = true;
    } else {
        PKV_TRY(need_layer_matrix(reader, index, "attn_q", q_rows, arch->width, &layer->q));
        PKV_TRY(need_layer_matrix(reader, index, "attn_k", kv_rows, arch->width, &layer->k));
        PKV_TRY(need_layer_matrix(reader, index, "attn_v", kv_rows, arch->width, &layer->v));
    }
    arch->qkv_bias = arch->qkv_bias || layer->q.bias || layer->k.bias || layer->v.bias;
    if (reader->traits->qk_norm) {
        PKV_TRY(need_layer_vector(reader, index, "attn_q_norm", arch->head_dim, &layer->q_norm));
        PKV_TRY(need_layer_vector(reader, index, "attn_k_norm", arch->head_dim, &layer->k_norm));
    }
    PKV_TRY(need_layer_matrix(reader, index, "attn_output", arch->width, q_rows, &layer->out));
    if (reader->traits->post_norms) {
        PKV_TRY(need_layer_vector(reader, index, "post_attention_norm", arch->width,
                                  &layer->post_attn_norm));
    }
    return PKV_OK;
}

static enum pkv_status read_ffn(struct pkvi_arch_reader *reader, uint32_t index)
{
    struct pkvi_arch *arch = reader->arch;
    struct pkvi_arch_layer *layer = &arch->layer[index];
    PKV_TRY(need_layer_vector(reader, index, "ffn_norm", arch->width, &layer->ffn_norm));
    if (reader->traits->fused_gate_up && !has_layer_tensor(reader, index, "ffn_gate")) {
        struct pkvi_weight fused;
        PKV_TRY(need_layer_matrix(reader, index, "ffn_up", 2 * arch->ffn, arch->width, &fused));
        layer->gate = rows_of(&fused, 0, arch->ffn);
        layer->up = rows_of(&fused, arch->ffn, arch->ffn);
        arch->fused_gate_up = true;
    } else {
        PKV_TRY(need_layer_matrix(reader, index, "ffn_gate", arch->ffn, arch->width, &layer->gate));
        PKV_TRY(need_layer_matrix(reader, index, "ffn_up", arch->ffn, arch->width, &layer->up));
    }
    PKV_TRY(need_layer_matrix(reader, index, "ffn_down", arch->width, arch->ffn, &layer->down));
    if (reader->traits->post_norms) {
        PKV_TRY(
            need_layer_vector(reader, index, "post_ffw_norm", arch->width, &layer->post_ffn_norm));
    }
    return PKV_OK;
}

/* The vocabulary is as large as token_embd says; other places must agree. */
static enum pkv_status read_vocab(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    const struct pkvi_gguf_tensor *embd = pkvi_gguf_find_tensor(reader->gguf, "token_embd.weight");
    const struct pkvi_gguf_key *tokens = pkvi_gguf_find_key(reader->gguf, "tokenizer.ggml.tokens");
    const char *path = pkvi_gguf_path(reader->gguf);
    uint32_t named;
    bool found;
    if (!embd) {
        return missing(reader, "token_embd.weight", arch->width, 0);
    }
    if (embd->dim[1] > MAX_VOCAB) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: tensor 'token_embd.weight' has %" PRIu64
                        " rows, expected a vocabulary of at most %u",
                        path, embd->dim[1], MAX_VOCAB);
    }
    arch->vocab = (uint32_t)embd->dim[1];
    PKV_TRY(pkvi_arch_u32(reader, "vocab_size", &found, &named));
    if (found && named != arch->vocab) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: tensor 'token_embd.weight' has %u rows, expected %u (%s.vocab_size)",
                        path, arch->vocab, named, reader->traits->name);
    }
    if (tokens && tokens->is_array && tokens->count != arch->vocab) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: tensor 'token_embd.weight' has %u rows, expected %" PRIu64
                        " (elements of tokenizer.ggml.tokens)",
                        path, arch->vocab, tokens->count);
    }
    return need_matrix(reader, "token_embd", arch->vocab, arch->width, &arch->token_embd);
}

static enum pkv_status read_output(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    PKV_TRY(need_vector(reader, "output_norm.weight", arch->width, &arch->output_norm));
    arch->tied_output = !pkvi_gguf_find_tensor(reader->gguf, "output.weight");
    if (arch->tied_output) {
        arch->output = arch->token_embd;
        return pkvi_arch_find_vector(reader, "output.bias", arch->vocab, &arch->output.bias);
    }
    return need_matrix(reader, "output", arch->vocab, arch->width, &arch->output);
}

enum pkv_status pkvi_arch_read_tensors(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    PKV_TRY(read_vocab(reader));
    if (arch->token_embd.bias) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: tensor 'token_embd.bias' is not supported",
                        pkvi_gguf_path(reader->gguf));
    }
    PKV_TRY(read_output(reader));
    for (uint32_t i = 0; i < arch->layer_count; i++) {
        PKV_TRY(read_attention(reader, i));
        PKV_TRY(read_ffn(reader, i));
    }
    for (uint64_t i = 0; i < pkvi_gguf_tensor_count(reader->gguf); i++) {
        const struct pkvi_gguf_tensor *tensor = pkvi_gguf_tensor_at(reader->gguf, i);
        if (!reader->seen[i]) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                            "%s: tensor '%.*s' is not part of a %s model of %u layers as "
                            "implemented",
                            pkvi_gguf_path(reader->gguf), pkvi_str_shown(tensor->name),
                            tensor->name.data, reader->traits->name, arch->layer_count);
        }
        arch->parameters += tensor->dim[0] * tensor->dim[1] * tensor->dim[2] * tensor->dim[3];
    }
    return PKV_OK;
}
