/*
 * arch_keys.c: which `<architecture>.*` keys may stand in a file.
 *
 * A key is read (by arch.c or arch_rope.c), or cannot change the result, or has the value that
 * changes nothing. Anything else is refused by name: a key that nobody here knows may be the very
 * one that makes the model another. Names: gguf-py 0.19 constants.py, llama.cpp llama-arch.cpp.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/model/arch_impl.h"

static const char *const read_keys[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

/* Remarks on how a file was made. */
static const char *const harmless_keys[] = {
    "rope.scaling.finetuned",
    "tensor_data_layout",
};

/* Not implemented; with this value they ask for nothing. */
static const struct {
    const char *suffix;
    double value;
} neutral_keys[] = {
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.output_scale", 1},
    {"attention.q_lora_rank", 0},
    {"attention.kv_lora_rank", 0},
    {"attention.shared_kv_layers", 0},
    {"attention.temperature_length", 0},
    {"attention.temperature_scale", 0},
    {"embedding_length_per_layer_input", 0},
    {"embedding_scale", 1},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"expert_group_count", 0},
    {"expert_group_used_count", 0},
    {"expert_feed_forward_length", 0},
    {"expert_shared_feed_forward_length", 0},
    {"expert_gating_func", 0},
    {"expert_weights_norm", 0},
    {"expert_weights_scale", 0},
    {"interleave_moe_layer_step", 0},
    {"leading_dense_block_count", 0},
    {"logit_scale", 1},
    {"moe_every_n_layers", 0},
    {"n_deepstack_layers", 0},
    {"nextn_predict_layers", 0},
    {"pooling_type", 0},
    {"rescale_every_n_layers", 0},
    {"residual_scale", 1},
    {"rope.scaling.alpha", 0},
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"swin_norm", 0},
    {"use_parallel_residual", 0},
};

static bool is_listed(struct pkvi_str suffix, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pkvi_str_equal(suffix, list[i])) {
            return true;
        }
    }
    return false;
}

/* A number or bool; false if the key is neither. */
static bool load_number(const struct pkvi_gguf_key *key, double *value_out)
{
    float real;
    int32_t integer;
    if (key->is_array || key->type == PKVI_GGUF_STRING) {
        return false;
    }
    if (key->type == PKVI_GGUF_BOOL) {
        *value_out = key->value[0];
        return true;
    }
    if (key->type == PKVI_GGUF_F32 || key->type == PKVI_GGUF_F64) {
        bool fine = pkvi_gguf_array_f32(key, 0, &real) == PKV_OK;
        *value_out = fine ? (double)real : 0;
        return fine;
    }
    bool fine = pkvi_gguf_array_i32(key, 0, &integer) == PKV_OK;
    *value_out = fine ? (double)integer : 0;
    return fine;
}

static enum pkv_status check_neutral(const struct pkvi_arch_reader *reader,
                                     const struct pkvi_gguf_key *key, double neutral)
{
    double value;
    if (!load_number(key, &value)) {
        return PKV_FAIL(
            PKV_ERR_UNSUPPORTED, "%s: key '%.*s' is not supported with this value, only with %g",
            pkvi_gguf_path(reader->gguf), pkvi_str_shown(key->name), key->name.data, neutral);
    }
    if (value != neutral) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: key '%.*s' is %g, supported is only %g",
                        pkvi_gguf_path(reader->gguf), pkvi_str_shown(key->name), key->name.data,
                        value, neutral);
    }
    return PKV_OK;
}

/* The number of a suffix in neutral_keys, or -1. */
static int find_neutral(struct pkvi_str suffix)
{
    for (size_t i = 0; i < sizeof neutral_keys / sizeof neutral_keys[0]; i++) {
        if (pkvi_str_equal(suffix, neutral_keys[i].suffix)) {
            return (int)i;
        }
    }
    return -1;
}

/* What stands behind "PREFIX." in a name; false if it does not begin so. */
static bool cut_prefix(struct pkvi_str name, const char *prefix, struct pkvi_str *suffix_out)
{
    size_t bytes = strlen(prefix);
    if (name.bytes <= bytes || name.data[bytes] != '.' || memcmp(name.data, prefix, bytes) != 0) {
        return false;
    }
    *suffix_out = (struct pkvi_str){name.data + bytes + 1, name.bytes - bytes - 1};
    return true;
}

static enum pkv_status check_key(const struct pkvi_arch_reader *reader,
                                 const struct pkvi_gguf_key *key, struct pkvi_str suffix)
{
    if (is_listed(suffix, read_keys, sizeof read_keys / sizeof read_keys[0]) ||
        is_listed(suffix, harmless_keys, sizeof harmless_keys / sizeof harmless_keys[0])) {
        return PKV_OK;
    }
    int neutral = find_neutral(suffix);
    if (neutral >= 0) {
        return check_neutral(reader, key, neutral_keys[neutral].value);
    }
    return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                    "%s: key '%.*s' is not known, it may change what the model computes",
                    pkvi_gguf_path(reader->gguf), pkvi_str_shown(key->name), key->name.data);
}

/* Files that are no language model, and an old layout of the quantised formats. */
static enum pkv_status check_general(const struct pkvi_arch_reader *reader)
{
    const struct pkvi_gguf *gguf = reader->gguf;
    struct pkvi_str type = {"model", 5};
    uint32_t version = 2;
    bool found;
    PKV_TRY(pkvi_gguf_str(gguf, "general.type", &found, &type));
    if (!pkvi_str_equal(type, "model")) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key 'general.type' is '%.*s', supported is only 'model'",
                        pkvi_gguf_path(gguf), pkvi_str_shown(type), type.data);
    }
    PKV_TRY(pkvi_gguf_u32(gguf, "general.quantization_version", &found, &version));
    if (version != 2) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key 'general.quantization_version' is %u, supported is only 2",
                        pkvi_gguf_path(gguf), version);
    }
    return PKV_OK;
}

enum pkv_status pkvi_arch_check_keys(const struct pkvi_arch_reader *reader)
{
    PKV_TRY(check_general(reader));
    for (uint64_t i = 0; i < pkvi_gguf_key_count(reader->gguf); i++) {
        const struct pkvi_gguf_key *key = pkvi_gguf_key_at(reader->gguf, i);
        struct pkvi_str suffix;
        if (cut_prefix(key->name, reader->traits->name, &suffix)) {
            PKV_TRY(check_key(reader, key, suffix));
        }
    }
    return PKV_OK;
}

enum pkvi_key_use pkvi_arch_key_use(const struct pkvi_arch *arch, struct pkvi_str name)
{
    static const char *const general[] = {"architecture", "name", "type", "alignment",
                                          "quantization_version"};
    struct pkvi_str suffix;
    bool model = false;
    if (cut_prefix(name, "tokenizer", &suffix)) {
        return PKVI_KEY_TOKENIZER;
    }
    if (cut_prefix(name, arch->architecture, &suffix)) {
        if (find_neutral(suffix) >= 0) {
            return PKVI_KEY_NEUTRAL;
        }
        model = is_listed(suffix, read_keys, sizeof read_keys / sizeof read_keys[0]);
    } else if (cut_prefix(name, "general", &suffix)) {
        model = is_listed(suffix, general, sizeof general / sizeof general[0]);
    } else {
        model = cut_prefix(name, "split", &suffix);
    }
    return model ? PKVI_KEY_MODEL : PKVI_KEY_REMARK;
}

/* ---- reading by suffix ---- */

void pkvi_arch_key_name(const struct pkvi_arch_reader *reader, const char *suffix,
                        char name_out[PKVI_ARCH_KEY_BYTES])
{
    (void)snprintf(name_out, PKVI_ARCH_KEY_BYTES, "%s.%s", reader->traits->name, suffix);
}

enum pkv_status pkvi_arch_u32(const struct pkvi_arch_reader *reader, const char *suffix,
                              bool *found_out, uint32_t *value_out)
{
    char name[PKVI_ARCH_KEY_BYTES];
    pkvi_arch_key_name(reader, suffix, name);
    return pkvi_gguf_u32(reader->gguf, name, found_out, value_out);
}

enum pkv_status pkvi_arch_f32(const struct pkvi_arch_reader *reader, const char *suffix,
                              bool *found_out, float *value_out)
{
    char name[PKVI_ARCH_KEY_BYTES];
    pkvi_arch_key_name(reader, suffix, name);
    return pkvi_gguf_f32(reader->gguf, name, found_out, value_out);
}

enum pkv_status pkvi_arch_bad_u32(const struct pkvi_arch_reader *reader, const char *suffix,
                                  uint32_t found, const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s.%s' is %u, expected %s",
                    pkvi_gguf_path(reader->gguf), reader->traits->name, suffix, found, expected);
}

enum pkv_status pkvi_arch_bad_f32(const struct pkvi_arch_reader *reader, const char *suffix,
                                  double found, const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s.%s' is %g, expected %s",
                    pkvi_gguf_path(reader->gguf), reader->traits->name, suffix, found, expected);
}
