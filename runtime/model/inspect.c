/*
 * inspect.c: says what a model file holds and what becomes of it.
 *
 * Owns: the two forms, text and JSON. Refuses to know: formats and rules; it calls what loading
 * calls, so that both accept the same files.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/model.h"
#include "pivotkv/text.h"
#include "pivotkv/version.h"
#include "runtime/base/check.h"
#include "runtime/model/arch.h"

struct inspection {
    struct pkvi_gguf *gguf;
    struct pkvi_arch arch;
    struct pkv_tokenizer *tokenizer;
    struct pkv_tokenizer_info text;
    uint64_t device_bytes;
};

static const char *key_use_name(enum pkvi_key_use use)
{
    static const char *const names[] = {"model", "tokenizer", "neutral", "remark"};
    return names[use];
}

/* A whole number of any of the format's types, as text; "" if it is none. */
static void format_integer(const struct pkvi_gguf_key *key, char text[24])
{
    bool is_signed = key->type == PKVI_GGUF_I8 || key->type == PKVI_GGUF_I16 ||
                     key->type == PKVI_GGUF_I32 || key->type == PKVI_GGUF_I64;
    bool is_unsigned = key->type == PKVI_GGUF_U8 || key->type == PKVI_GGUF_U16 ||
                       key->type == PKVI_GGUF_U32 || key->type == PKVI_GGUF_U64;
    uint64_t bits = 0;
    text[0] = '\0';
    if (!is_signed && !is_unsigned) {
        return;
    }
    for (uint64_t i = 0; i < key->value_bytes; i++) {
        bits |= (uint64_t)key->value[i] << (8 * i);
    }
    uint64_t sign = (uint64_t)1 << (8 * key->value_bytes - 1);
    bool negative = is_signed && (bits & sign);
    uint64_t magnitude = negative ? (~bits & (sign - 1)) + 1 : bits;
    (void)snprintf(text, 24, "%s%" PRIu64, negative ? "-" : "", magnitude);
}

/* The value of a key in a few words: numbers, the begin of a text, how many elements. */
static void format_value(const struct pkvi_gguf_key *key, char value[160])
{
    float real;
    if (key->is_array) {
        (void)snprintf(value, 160, "%" PRIu64 " x %s", key->count, pkvi_gguf_type_name(key->type));
    } else if (key->type == PKVI_GGUF_STRING) {
        struct pkvi_str str = {(const char *)key->value + 8, key->value_bytes - 8};
        int shown = pkvi_str_shown(str);
        (void)snprintf(value, 160, "%.*s%s", shown, str.data,
                       (uint64_t)shown < str.bytes ? "..." : "");
    } else if (key->type == PKVI_GGUF_BOOL) {
        (void)snprintf(value, 160, "%s", key->value[0] ? "true" : "false");
    } else if (key->type == PKVI_GGUF_F32 || key->type == PKVI_GGUF_F64) {
        bool fine = pkvi_gguf_array_f32(key, 0, &real) == PKV_OK;
        (void)snprintf(value, 160, fine ? "%g" : "not a finite number", fine ? (double)real : 0);
    } else {
        format_integer(key, value);
    }
    for (char *c = value; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
}

/* ---- for people ---- */

static bool same_layer(const struct pkvi_arch_layer *a, const struct pkvi_arch_layer *b)
{
    return a->info.kind == b->info.kind && a->info.window == b->info.window && a->rope == b->rope;
}

static void write_layer_run(FILE *out, const struct pkvi_arch *arch, uint32_t first, uint32_t last)
{
    const struct pkv_layer_info *info = &arch->layer[first].info;
    (void)fprintf(out, "  layers %3u to %3u  ", first, last);
    if (info->kind == PKV_LAYER_SLIDING) {
        (void)fprintf(out, "sliding window of %u tokens", info->window);
    } else {
        (void)fputs("all tokens", out);
    }
    (void)fprintf(out, ", rope base %g over %u of %u channels (%s)%s\n", (double)info->rope_theta,
                  2 * info->rope_pairs, info->head_dim,
                  info->rope_halves ? "first half with second" : "neighbours",
                  info->qk_norm ? ", QK-norm" : "");
}

static void write_layers(FILE *out, const struct pkvi_arch *arch)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i <= arch->layer_count; i++) {
        if (i == arch->layer_count || !same_layer(&arch->layer[i], &arch->layer[first])) {
            write_layer_run(out, arch, first, i - 1);
            first = i;
        }
    }
}

static void write_model(FILE *out, const struct pkvi_arch *arch)
{
    (void)fprintf(out, "model      %s%s%s, %" PRIu64 " parameters\n", arch->architecture,
                  arch->name[0] ? ", " : "", arch->name, arch->parameters);
    (void)fprintf(out, "weights    %s\n", arch->weight_types);
    (void)fprintf(out,
                  "shape      %u layers, %u channels, %u in the feed-forward, %u heads of %u on %u "
                  "KV heads, vocabulary %u, context %u\n",
                  arch->layer_count, arch->width, arch->ffn, arch->heads, arch->head_dim,
                  arch->kv_heads, arch->vocab, arch->context);
    (void)fprintf(out, "output     %s\n",
                  arch->tied_output ? "shares token_embd.weight" : "output.weight");
    (void)fprintf(out, "attention  scale %g", (double)arch->attention_scale);
    if (arch->attention_softcap > 0) {
        (void)fprintf(out, ", soft cap %g", (double)arch->attention_softcap);
    }
    if (arch->final_softcap > 0) {
        (void)fprintf(out, ", logits' soft cap %g", (double)arch->final_softcap);
    }
    (void)fprintf(out, "%s\n", arch->qkv_bias ? ", q, k, v biases" : "");
    write_layers(out, arch);
    if (arch->rope[0].freq_long) {
        (void)fprintf(out, "           other rope frequencies for contexts beyond %u tokens\n",
                      arch->rope[0].short_context);
    }
}

static void write_text(FILE *out, const struct pkv_tokenizer_info *text)
{
    if (!text->has_text) {
        (void)fputs("tokenizer  none: token ids only\n", out);
        return;
    }
    (void)fprintf(out, "tokenizer  %s, %s, %u tokens, BOS %s\n", text->model, text->pre,
                  text->vocab, text->add_bos ? "added" : "not added");
    if (text->chat_family) {
        (void)fprintf(out, "chat       %s\n", text->chat_family);
    } else {
        (void)fprintf(out, "chat       not recognised: %s\n",
                      text->chat_problem ? text->chat_problem : "no template in the file");
    }
}

static void write_people(FILE *out, const struct inspection *it)
{
    const struct pkvi_gguf *gguf = it->gguf;
    (void)fprintf(out, "file       %s\n", pkvi_gguf_path(gguf));
    (void)fprintf(
        out, "format     GGUF version %u, %" PRIu64 " bytes in %u file%s, %" PRIu64 " tensors\n",
        pkvi_gguf_version(gguf), pkvi_gguf_file_bytes(gguf), pkvi_gguf_shard_count(gguf),
        pkvi_gguf_shard_count(gguf) == 1 ? "" : "s", pkvi_gguf_tensor_count(gguf));
    write_model(out, &it->arch);
    write_text(out, &it->text);
    (void)fprintf(out, "memory     %.1f MiB of weights on the device, without K and V\n",
                  (double)it->device_bytes / (1 << 20));
    (void)fputs(
        "supported  yes: every tensor is used, every key below is used or changes nothing\n"
        "keys       (model, tokenizer: used; neutral: asks for nothing; remark: not used)\n",
        out);
    for (uint64_t i = 0; i < pkvi_gguf_key_count(gguf); i++) {
        const struct pkvi_gguf_key *key = pkvi_gguf_key_at(gguf, i);
        char value[160];
        format_value(key, value);
        (void)fprintf(out, "  %-9s  %.*s = %s\n",
                      key_use_name(pkvi_arch_key_use(&it->arch, key->name)),
                      pkvi_str_shown(key->name), key->name.data, value);
    }
}

static enum pkv_status make_people(const struct inspection *it, char **text_out)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: the text about a model");
    }
    write_people(out, it);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: the text about a model");
    }
    *text_out = text;
    return PKV_OK;
}

/* ---- JSON; jansson gives NULL where memory is short, and its adders pass that on ---- */

/* Paths may be any bytes; JSON texts may not. */
static json_t *json_path(const char *path)
{
    json_t *text = json_string(path);
    if (text) {
        return text;
    }
    char *plain = strdup(path);
    if (!plain) {
        return NULL;
    }
    for (char *c = plain; *c; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    text = json_string(plain);
    free(plain);
    return text;
}

static json_t *json_key(const struct inspection *it, const struct pkvi_gguf_key *key)
{
    char value[160], type[32];
    format_value(key, value);
    (void)snprintf(type, sizeof type, "%s%s", pkvi_gguf_type_name(key->type),
                   key->is_array ? "[]" : "");
    return json_pack("{s:s%, s:s, s:s, s:s}", "name", key->name.data,
                     (size_t)pkvi_str_shown(key->name), "type", type, "value", value, "use",
                     key_use_name(pkvi_arch_key_use(&it->arch, key->name)));
}

static json_t *json_tensor(const struct pkvi_gguf_tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->dim[i]));
    }
    return json_pack("{s:s%, s:s, s:o, s:I, s:i}", "name", tensor->name.data,
                     (size_t)pkvi_str_shown(tensor->name), "type",
                     pkvi_gguf_ggml_type_name(tensor->ggml_type), "shape", shape, "bytes",
                     (json_int_t)tensor->bytes, "shard", (int)tensor->shard);
}

static json_t *json_layer(uint32_t index, const struct pkv_layer_info *info)
{
    return json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:b}", "layer", (int)index,
                     "kind", info->kind == PKV_LAYER_SLIDING ? "sliding" : "global", "window",
                     (int)info->window, "heads", (int)info->heads, "kv_heads", (int)info->kv_heads,
                     "head_dim", (int)info->head_dim, "rope_pairs", (int)info->rope_pairs,
                     "rope_pairing", info->rope_halves ? "halves" : "neighbours", "rope_theta",
                     (double)info->rope_theta, "qk_norm", (int)info->qk_norm);
}

static json_t *json_model(const struct pkvi_arch *arch)
{
    return json_pack(
        "{s:s, s:s, s:I, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:b, "
        "s:b}",
        "architecture", arch->architecture, "name", arch->name, "parameters",
        (json_int_t)arch->parameters, "weight_types", arch->weight_types, "layers",
        (int)arch->layer_count, "width", (int)arch->width, "ffn", (int)arch->ffn, "heads",
        (int)arch->heads, "kv_heads", (int)arch->kv_heads, "head_dim", (int)arch->head_dim, "vocab",
        (int)arch->vocab, "context", (int)arch->context, "norm_eps", (double)arch->norm_eps,
        "attention_scale", (double)arch->attention_scale, "attention_softcap",
        (double)arch->attention_softcap, "final_softcap", (double)arch->final_softcap,
        "tied_output", (int)arch->tied_output, "qkv_bias", (int)arch->qkv_bias);
}

static json_t *json_tokenizer(const struct pkv_tokenizer_info *text)
{
    return json_pack("{s:b, s:i, s:s?, s:s?, s:b, s:i, s:i, s:s?, s:s?}", "has_text",
                     (int)text->has_text, "vocab", (int)text->vocab, "model",
                     text->has_text ? text->model : NULL, "pre", text->has_text ? text->pre : NULL,
                     "add_bos", (int)text->add_bos, "bos", (int)text->bos, "eos", (int)text->eos,
                     "chat_family", text->chat_family, "chat_problem", text->chat_problem);
}

static json_t *json_all(const struct inspection *it)
{
    const struct pkvi_gguf *gguf = it->gguf;
    json_t *layers = json_array(), *keys = json_array(), *tensors = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < it->arch.layer_count; i++) {
        failed |= json_array_append_new(layers, json_layer(i, &it->arch.layer[i].info));
    }
    for (uint64_t i = 0; i < pkvi_gguf_key_count(gguf); i++) {
        failed |= json_array_append_new(keys, json_key(it, pkvi_gguf_key_at(gguf, i)));
    }
    for (uint64_t i = 0; i < pkvi_gguf_tensor_count(gguf); i++) {
        failed |= json_array_append_new(tensors, json_tensor(pkvi_gguf_tensor_at(gguf, i)));
    }
    json_t *all = json_pack(
        "{s:s, s:s, s:s, s:o, s:i, s:i, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o}", "schema",
        "pivotkv/inspect/1", "build", pkv_build(), "commit", pkv_commit(), "file",
        json_path(pkvi_gguf_path(gguf)), "gguf_version", (int)pkvi_gguf_version(gguf), "shards",
        (int)pkvi_gguf_shard_count(gguf), "file_bytes", (json_int_t)pkvi_gguf_file_bytes(gguf),
        "device_bytes", (json_int_t)it->device_bytes, "supported", 1, "model",
        json_model(&it->arch), "tokenizer", json_tokenizer(&it->text), "layers", layers, "keys",
        keys, "tensors", tensors);
    if (failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static enum pkv_status make_json(const struct inspection *it, char **text_out)
{
    json_t *all = json_all(it);
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(all);
    if (!text) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: the JSON about a model");
    }
    *text_out = text;
    return PKV_OK;
}

/* ---- all ---- */

enum pkv_status pkv_model_inspect(const char *path, bool json, char **text_out)
{
    if (!path || !text_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "pkv_model_inspect: NULL argument");
    }
    struct inspection it = {0};
    PKV_TRY(pkvi_gguf_open(path, &it.gguf));
    enum pkv_status status = pkvi_arch_read(it.gguf, &it.arch);
    if (status == PKV_OK) {
        status = pkv_tokenizer_open(path, &it.tokenizer);
    }
    struct pkv_model_config config = pkv_model_config_default();
    if (status == PKV_OK) {
        status = pkv_model_plan(path, &config, &it.device_bytes);
    }
    if (status == PKV_OK) {
        pkv_tokenizer_query(it.tokenizer, &it.text);
        status = json ? make_json(&it, text_out) : make_people(&it, text_out);
    }
    pkv_tokenizer_close(it.tokenizer);
    pkvi_arch_free(&it.arch);
    pkvi_gguf_close(it.gguf);
    return status;
}
