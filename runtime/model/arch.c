/* arch.c: the table of architectures, and the numbers of a model. */
#include "runtime/model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "runtime/base/check.h"
#include "runtime/model/arch_impl.h"

#define MAX_LAYERS 1024u
#define MAX_WIDTH (1u << 16)
#define MAX_CHANNELS (1u << 17) /* of any row of weights: what the loader can stage */
#define MAX_HEADS 1024u
#define MAX_HEAD_DIM 512u
#define MAX_CONTEXT (1u << 30)

/*
 * Defaults of keys that files leave out are llama.cpp's, but for gemma3's theta, which is Google's.
 * phi3: llama.cpp ignores the window since its pull request 13676; we honour it in every layer, as
 * the model's authors do (it matters beyond 2,047 tokens of Phi-3-mini-4k only).
 */
static const struct pkvi_arch_traits all_traits[PKVI_ARCH_COUNT] = {
    [PKVI_ARCH_LLAMA] = {.name = "llama", .theta = 10000, .glu = PKV_GLU_SILU},
    [PKVI_ARCH_QWEN2] = {.name = "qwen2", .rope_halves = true, .theta = 10000, .glu = PKV_GLU_SILU},
    [PKVI_ARCH_QWEN3] = {.name = "qwen3",
                         .rope_halves = true,
                         .qk_norm = true,
                         .theta = 10000,
                         .glu = PKV_GLU_SILU},
    [PKVI_ARCH_GEMMA2] = {.name = "gemma2",
                          .rope_halves = true,
                          .post_norms = true,
                          .scaled_embedding = true,
                          .windows = true,
                          .window = 4096,
                          .window_period = 2,
                          .wide_layers = 46,
                          .theta = 10000,
                          .softcaps = true,
                          .attention_softcap = 50,
                          .final_softcap = 30,
                          .glu = PKV_GLU_GELU},
    [PKVI_ARCH_GEMMA3] = {.name = "gemma3",
                          .rope_halves = true,
                          .qk_norm = true,
                          .post_norms = true,
                          .scaled_embedding = true,
                          .windows = true,
                          .local_rope = true,
                          .window_period = 6,
                          .wide_layers = 62,
                          .theta = 1000000,
                          .softcaps = true,
                          .glu = PKV_GLU_GELU},
    [PKVI_ARCH_PHI3] = {.name = "phi3",
                        .rope_halves = true,
                        .partial_rope = true,
                        .fused_gate_up = true,
                        .windows = true,
                        .theta = 10000,
                        .glu = PKV_GLU_SILU},
};

const char *pkvi_arch_names(void)
{
    return "llama (also Mistral), qwen2, qwen3, gemma2, gemma3, phi3";
}

static enum pkv_status find_traits(struct pkvi_arch_reader *reader)
{
    struct pkvi_str name;
    PKV_TRY(pkvi_gguf_str(reader->gguf, "general.architecture", NULL, &name));
    for (uint32_t i = 0; i < PKVI_ARCH_COUNT; i++) {
        if (pkvi_str_equal(name, all_traits[i].name)) {
            reader->traits = &all_traits[i];
            reader->arch->kind = (enum pkvi_arch_kind)i;
            reader->arch->architecture = all_traits[i].name;
            return PKV_OK;
        }
    }
    return PKV_FAIL(
        PKV_ERR_UNSUPPORTED, "%s: key 'general.architecture' is '%.*s', supported are %s",
        pkvi_gguf_path(reader->gguf), pkvi_str_shown(name), name.data, pkvi_arch_names());
}

/* ---- numbers ---- */

static enum pkv_status check_range(const struct pkvi_arch_reader *reader, const char *suffix,
                                   uint32_t value, uint32_t most)
{
    char expected[40];
    (void)snprintf(expected, sizeof expected, "1 to %u", most);
    return value >= 1 && value <= most ? PKV_OK
                                       : pkvi_arch_bad_u32(reader, suffix, value, expected);
}

/* One number, or an array of the same number for every layer. *found_out false: absent. */
static enum pkv_status read_per_layer(const struct pkvi_arch_reader *reader, const char *suffix,
                                      uint32_t most, bool *found_out, uint32_t *value_out)
{
    char name[PKVI_ARCH_KEY_BYTES];
    pkvi_arch_key_name(reader, suffix, name);
    const struct pkvi_gguf_key *key = pkvi_gguf_find_key(reader->gguf, name);
    if (!key || !key->is_array) {
        PKV_TRY(pkvi_gguf_u32(reader->gguf, name, found_out, value_out));
        return key ? check_range(reader, suffix, *value_out, most) : PKV_OK;
    }
    if (key->count != reader->arch->layer_count) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' has %llu elements, expected %u (layers)",
                        pkvi_gguf_path(reader->gguf), name, (unsigned long long)key->count,
                        reader->arch->layer_count);
    }
    int32_t first = 0, value;
    for (uint64_t i = 0; i < key->count; i++) {
        PKV_TRY(pkvi_gguf_array_i32(key, i, &value));
        first = i == 0 ? value : first;
        if (value != first) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                            "%s: key '%s' is %d in layer %llu and %d in layer 0, supported is only "
                            "the same in all layers",
                            pkvi_gguf_path(reader->gguf), name, value, (unsigned long long)i,
                            first);
        }
    }
    *value_out = first < 0 ? 0 : (uint32_t)first;
    if (found_out) {
        *found_out = true;
    }
    return check_range(reader, suffix, *value_out, most);
}

static enum pkv_status read_sizes(const struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    bool found;
    PKV_TRY(pkvi_arch_u32(reader, "block_count", NULL, &arch->layer_count));
    PKV_TRY(check_range(reader, "block_count", arch->layer_count, MAX_LAYERS));
    PKV_TRY(pkvi_arch_u32(reader, "context_length", NULL, &arch->context));
    PKV_TRY(check_range(reader, "context_length", arch->context, MAX_CONTEXT));
    PKV_TRY(pkvi_arch_u32(reader, "embedding_length", NULL, &arch->width));
    PKV_TRY(check_range(reader, "embedding_length", arch->width, MAX_WIDTH));
    PKV_TRY(read_per_layer(reader, "feed_forward_length", MAX_CHANNELS, NULL, &arch->ffn));
    PKV_TRY(read_per_layer(reader, "attention.head_count", MAX_HEADS, NULL, &arch->heads));
    arch->kv_heads = arch->heads;
    PKV_TRY(
        read_per_layer(reader, "attention.head_count_kv", arch->heads, &found, &arch->kv_heads));
    if (arch->heads % arch->kv_heads != 0) {
        char expected[60];
        (void)snprintf(expected, sizeof expected, "a divisor of the %u heads", arch->heads);
        return pkvi_arch_bad_u32(reader, "attention.head_count_kv", arch->kv_heads, expected);
    }
    PKV_TRY(pkvi_arch_f32(reader, "attention.layer_norm_rms_epsilon", NULL, &arch->norm_eps));
    if (!(arch->norm_eps > 0 && arch->norm_eps < 1)) {
        return pkvi_arch_bad_f32(reader, "attention.layer_norm_rms_epsilon", (double)arch->norm_eps,
                                 "between 0 and 1");
    }
    return PKV_OK;
}

static enum pkv_status read_head_dim(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    bool found;
    uint32_t value_dim;
    arch->head_dim = arch->width / arch->heads;
    PKV_TRY(pkvi_arch_u32(reader, "attention.key_length", &found, &arch->head_dim));
    if (!found && arch->width % arch->heads != 0) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: key '%s.attention.key_length' is missing, expected as %u channels are "
                        "not a multiple of %u heads",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, arch->width,
                        arch->heads);
    }
    if (arch->head_dim < 2 || arch->head_dim > MAX_HEAD_DIM || arch->head_dim % 2 != 0) {
        return pkvi_arch_bad_u32(reader, "attention.key_length", arch->head_dim,
                                 "an even number, 2 to 512");
    }
    if (arch->heads * arch->head_dim > MAX_CHANNELS) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: %u heads (%s.attention.head_count) of %u channels, expected at most "
                        "%u channels together",
                        pkvi_gguf_path(reader->gguf), arch->heads, reader->traits->name,
                        arch->head_dim, MAX_CHANNELS);
    }
    value_dim = arch->head_dim;
    PKV_TRY(pkvi_arch_u32(reader, "attention.value_length", &found, &value_dim));
    if (value_dim != arch->head_dim) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s.attention.value_length' is %u, supported is only the key "
                        "length, %u",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, value_dim,
                        arch->head_dim);
    }
    reader->rope_dims = arch->head_dim;
    PKV_TRY(pkvi_arch_u32(reader, "rope.dimension_count", &found, &reader->rope_dims));
    uint32_t dims = reader->rope_dims;
    bool fine = reader->traits->partial_rope ? dims >= 2 && dims <= arch->head_dim && dims % 2 == 0
                                             : dims == arch->head_dim;
    if (!fine) {
        char expected[60];
        (void)snprintf(expected, sizeof expected, "the head size, %u%s", arch->head_dim,
                       reader->traits->partial_rope ? ", or an even number below" : "");
        return pkvi_arch_bad_u32(reader, "rope.dimension_count", dims, expected);
    }
    return PKV_OK;
}

/* 0 = none. Architectures without caps may carry the key with 0. */
static enum pkv_status read_softcap(const struct pkvi_arch_reader *reader, const char *suffix,
                                    float absent, float *cap_out)
{
    bool found;
    *cap_out = absent;
    PKV_TRY(pkvi_arch_f32(reader, suffix, &found, cap_out));
    if (*cap_out < 0) {
        return pkvi_arch_bad_f32(reader, suffix, (double)*cap_out, "at least 0");
    }
    if (*cap_out > 0 && !reader->traits->softcaps) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "%s: key '%s.%s' is %g, supported is only 0",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, suffix,
                        (double)*cap_out);
    }
    return PKV_OK;
}

static enum pkv_status read_scales(const struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    const struct pkvi_arch_traits *traits = reader->traits;
    bool found, wide = traits->wide_layers != 0 && arch->layer_count == traits->wide_layers;
    float dim = (float)(wide ? arch->width / arch->heads : arch->head_dim);
    arch->attention_scale = 1.0f / sqrtf(dim);
    PKV_TRY(pkvi_arch_f32(reader, "attention.scale", &found, &arch->attention_scale));
    if (!(arch->attention_scale > 0 && arch->attention_scale <= 1000)) {
        return pkvi_arch_bad_f32(reader, "attention.scale", (double)arch->attention_scale,
                                 "more than 0, at most 1000");
    }
    arch->embedding_scale = traits->scaled_embedding ? sqrtf((float)arch->width) : 1.0f;
    PKV_TRY(read_softcap(reader, "attn_logit_softcapping", traits->attention_softcap,
                         &arch->attention_softcap));
    return read_softcap(reader, "final_logit_softcapping", traits->final_softcap,
                        &arch->final_softcap);
}

/* ---- layers ---- */

/* Does a layer slide? The pattern is a period, or a bool (or 0, 1) for every layer. */
static enum pkv_status read_pattern(const struct pkvi_arch_reader *reader, bool *slides)
{
    struct pkvi_arch *arch = reader->arch;
    uint32_t period = reader->traits->window_period;
    char name[PKVI_ARCH_KEY_BYTES];
    bool found;
    pkvi_arch_key_name(reader, "attention.sliding_window_pattern", name);
    const struct pkvi_gguf_key *key = pkvi_gguf_find_key(reader->gguf, name);
    if (!key || !key->is_array) {
        PKV_TRY(pkvi_gguf_u32(reader->gguf, name, &found, &period));
        for (uint32_t i = 0; i < arch->layer_count; i++) {
            slides[i] = period == 0 || i % period < period - 1;
        }
        return PKV_OK;
    }
    if (key->count != arch->layer_count) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "%s: key '%s' has %llu elements, expected %u (layers)",
                        pkvi_gguf_path(reader->gguf), name, (unsigned long long)key->count,
                        arch->layer_count);
    }
    for (uint32_t i = 0; i < arch->layer_count; i++) {
        int32_t value = key->type == PKVI_GGUF_BOOL ? key->value[i] : -1;
        if (key->type != PKVI_GGUF_BOOL) {
            PKV_TRY(pkvi_gguf_array_i32(key, i, &value));
        }
        if (value != 0 && value != 1) {
            return PKV_FAIL(PKV_ERR_CORRUPT, "%s: element %u of key '%s' is %d, expected 0 or 1",
                            pkvi_gguf_path(reader->gguf), i, name, value);
        }
        slides[i] = value == 1;
    }
    return PKV_OK;
}

static enum pkv_status read_layers(const struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    uint32_t window = reader->traits->window;
    bool found, slides[MAX_LAYERS];
    PKV_TRY(pkvi_arch_u32(reader, "attention.sliding_window", &found, &window));
    PKV_TRY(read_pattern(reader, slides));
    /* No sequence is longer than the context: such a window cuts nothing. */
    bool cuts = window > 0 && window < arch->context;
    if (cuts && !reader->traits->windows) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s.attention.sliding_window' is %u, supported is only 0 or at "
                        "least the context length, %u",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, window, arch->context);
    }
    for (uint32_t i = 0; i < arch->layer_count; i++) {
        struct pkvi_arch_layer *layer = &arch->layer[i];
        bool local = slides[i] && window > 0;
        layer->rope = local ? arch->rope_count - 1 : 0;
        const struct pkvi_rope *rope = &arch->rope[layer->rope];
        layer->info = (struct pkv_layer_info){
            .kind = local && cuts ? PKV_LAYER_SLIDING : PKV_LAYER_GLOBAL,
            .window = local && cuts ? window : 0,
            .heads = arch->heads,
            .kv_heads = arch->kv_heads,
            .head_dim = arch->head_dim,
            .rope_pairs = rope->pairs,
            .rope_halves = rope->halves,
            .rope_theta = rope->theta,
            .qk_norm = reader->traits->qk_norm,
        };
    }
    return PKV_OK;
}

/* ---- texts ---- */

static enum pkv_status read_name(const struct pkvi_arch_reader *reader)
{
    struct pkvi_str name = {"", 0};
    bool found;
    PKV_TRY(pkvi_gguf_str(reader->gguf, "general.name", &found, &name));
    reader->arch->name = strndup(name.data, (size_t)pkvi_str_shown(name));
    return reader->arch->name ? PKV_OK : PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: a name");
}

static enum pkv_status list_types(const struct pkvi_arch_reader *reader)
{
    uint64_t count[64] = {0};
    char text[1024] = "";
    size_t at = 0;
    for (uint64_t i = 0; i < pkvi_gguf_tensor_count(reader->gguf); i++) {
        count[pkvi_gguf_tensor_at(reader->gguf, i)->ggml_type & 63]++;
    }
    for (;;) {
        uint32_t most = 0;
        for (uint32_t i = 1; i < 64; i++) {
            most = count[i] > count[most] ? i : most;
        }
        if (count[most] == 0) {
            break;
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s x%llu", at ? ", " : "",
                               pkvi_gguf_ggml_type_name(most), (unsigned long long)count[most]);
        count[most] = 0;
    }
    reader->arch->weight_types = strdup(text);
    return reader->arch->weight_types ? PKV_OK
                                      : PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: a text");
}

/* ---- all ---- */

static enum pkv_status read_all(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    PKV_TRY(find_traits(reader));
    PKV_TRY(pkvi_arch_check_keys(reader));
    arch->glu = reader->traits->glu;
    arch->qk_norm = reader->traits->qk_norm;
    arch->post_norms = reader->traits->post_norms;
    PKV_TRY(read_name(reader));
    PKV_TRY(read_sizes(reader));
    PKV_TRY(read_head_dim(reader));
    PKV_TRY(read_scales(reader));
    PKV_TRY(pkvi_arch_read_ropes(reader));
    arch->layer = calloc(arch->layer_count, sizeof *arch->layer);
    if (!arch->layer) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: a table of %u layers",
                        arch->layer_count);
    }
    PKV_TRY(read_layers(reader));
    PKV_TRY(pkvi_arch_read_tensors(reader));
    return list_types(reader);
}

enum pkv_status pkvi_arch_read(const struct pkvi_gguf *gguf, struct pkvi_arch *arch_out)
{
    uint64_t tensors = pkvi_gguf_tensor_count(gguf);
    *arch_out = (struct pkvi_arch){0};
    bool *seen = calloc((size_t)tensors + 1, sizeof *seen);
    if (!seen) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: marks for %llu tensors",
                        (unsigned long long)tensors);
    }
    struct pkvi_arch_reader reader = {.gguf = gguf, .arch = arch_out, .seen = seen};
    enum pkv_status status = read_all(&reader);
    free(seen);
    if (status != PKV_OK) {
        pkvi_arch_free(arch_out);
    }
    return status;
}

void pkvi_arch_free(struct pkvi_arch *arch)
{
    for (uint32_t i = 0; i < PKVI_ARCH_ROPES; i++) {
        free(arch->rope[i].freq);
        free(arch->rope[i].freq_long);
    }
    free(arch->name);
    free(arch->weight_types);
    free(arch->layer);
    *arch = (struct pkvi_arch){0};
}
