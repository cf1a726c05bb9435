/*
 * Architectures: what the small models' files say is read as their README says; any key or tensor
 * that is missing, contradicts another or is not implemented is refused by its name.
 */
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/model/arch.h"
#include "tests/support/gguf_builder.h"

static const char *tiny_path(const char *name)
{
    char relative[128];
    snprintf(relative, sizeof relative, "golden/tiny/%s.gguf", name);
    return pkvt_path(relative);
}

static struct pkvi_gguf *open_arch(const char *path, struct pkvi_arch *arch)
{
    struct pkvi_gguf *gguf = NULL;
    assert_ok(pkvi_gguf_open(path, &gguf));
    assert_ok(pkvi_arch_read(gguf, arch));
    return gguf;
}

static void close_arch(struct pkvi_gguf *gguf, struct pkvi_arch *arch)
{
    pkvi_arch_free(arch);
    pkvi_gguf_close(gguf);
}

/* ---- what is read ---- */

static const struct {
    const char *name;
    enum pkvi_arch_kind kind;
    uint32_t layers, width, ffn, heads, kv_heads, head_dim, context;
    bool tied, halves, qkv_bias, qk_norm, post_norms, fused;
} shapes[] = {
    {"llama", PKVI_ARCH_LLAMA, 2, 256, 512, 8, 2, 32, 2048, 1, 0, 0, 0, 0, 0},
    {"llama_q4_k", PKVI_ARCH_LLAMA, 2, 256, 512, 8, 2, 32, 2048, 1, 0, 0, 0, 0, 0},
    {"llama_split-00002-of-00003", PKVI_ARCH_LLAMA, 2, 256, 512, 8, 2, 32, 2048, 1, 0, 0, 0, 0, 0},
    {"llama_linear", PKVI_ARCH_LLAMA, 4, 128, 160, 4, 4, 32, 2048, 1, 0, 0, 0, 0, 0},
    {"llama_rope_freqs", PKVI_ARCH_LLAMA, 4, 128, 160, 4, 2, 32, 2048, 1, 0, 0, 0, 0, 0},
    {"llama_yarn", PKVI_ARCH_LLAMA, 4, 128, 160, 4, 2, 32, 1024, 1, 0, 0, 0, 0, 0},
    {"mistral", PKVI_ARCH_LLAMA, 4, 128, 160, 4, 2, 64, 2048, 0, 0, 0, 0, 0, 0},
    {"qwen2", PKVI_ARCH_QWEN2, 4, 128, 96, 4, 2, 32, 2048, 1, 1, 1, 0, 0, 0},
    {"qwen3", PKVI_ARCH_QWEN3, 5, 128, 160, 6, 2, 32, 2048, 1, 1, 0, 1, 0, 0},
    {"gemma2", PKVI_ARCH_GEMMA2, 2, 128, 160, 4, 2, 64, 2048, 1, 1, 0, 0, 1, 0},
    {"gemma3", PKVI_ARCH_GEMMA3, 6, 128, 160, 4, 1, 64, 2048, 1, 1, 0, 1, 1, 0},
    {"phi3", PKVI_ARCH_PHI3, 4, 128, 160, 4, 4, 32, 2048, 0, 1, 0, 0, 0, 1},
};

static void check_shape(size_t i, const struct pkvi_arch *arch)
{
    const struct pkvi_arch_layer *last = &arch->layer[arch->layer_count - 1];
    assert_int_equal(arch->kind, shapes[i].kind);
    assert_int_equal(arch->layer_count, shapes[i].layers);
    assert_int_equal(arch->width, shapes[i].width);
    assert_int_equal(arch->ffn, shapes[i].ffn);
    assert_int_equal(arch->heads, shapes[i].heads);
    assert_int_equal(arch->kv_heads, shapes[i].kv_heads);
    assert_int_equal(arch->head_dim, shapes[i].head_dim);
    assert_int_equal(arch->context, shapes[i].context);
    assert_int_equal(arch->vocab, 320);
    assert_int_equal(arch->tied_output, shapes[i].tied);
    assert_int_equal(arch->qkv_bias, shapes[i].qkv_bias);
    assert_int_equal(arch->qk_norm, shapes[i].qk_norm);
    assert_int_equal(arch->post_norms, shapes[i].post_norms);
    assert_int_equal(arch->fused_qkv, shapes[i].fused);
    assert_int_equal(arch->fused_gate_up, shapes[i].fused);
    assert_int_equal(last->info.rope_halves, shapes[i].halves);
    assert_int_equal(last->info.rope_pairs, shapes[i].head_dim / 2);
    assert_int_equal(last->q.rows, shapes[i].heads * shapes[i].head_dim);
    assert_int_equal(last->v.rows, shapes[i].kv_heads * shapes[i].head_dim);
    assert_int_equal(last->out.cols, last->q.rows);
    assert_int_equal(last->up.rows, shapes[i].ffn);
    assert_int_equal(last->down.cols, shapes[i].ffn);
    assert_int_equal(!last->q_norm, !shapes[i].qk_norm);
    assert_int_equal(!last->post_ffn_norm, !shapes[i].post_norms);
    assert_int_equal(!last->k.bias, !shapes[i].qkv_bias);
}

static void test_arch__small_models__as_their_readme_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct pkvi_arch arch;
        struct pkvi_gguf *gguf = open_arch(tiny_path(shapes[i].name), &arch);
        check_shape(i, &arch);
        close_arch(gguf, &arch);
    }
}

static void test_arch__number_formats__all_read(void **state)
{
    (void)state;
    static const char *const types[] = {"bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
                                        "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
    static const char *const words[] = {"BF16 x15", "Q4_0 x15", "Q4_1 x15", "Q5_0 x15",
                                        "Q5_1 x15", "Q8_0 x15", "Q2_K x15", "Q3_K x15",
                                        "Q4_K x15", "Q5_K x15", "Q6_K x15"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char name[32], expected[32];
        struct pkvi_arch arch;
        snprintf(name, sizeof name, "llama_%s", types[i]);
        struct pkvi_gguf *gguf = open_arch(tiny_path(name), &arch);
        snprintf(expected, sizeof expected, "%s, F32 x5", words[i]);
        assert_string_equal(arch.weight_types, expected);
        assert_int_equal(arch.parameters,
                         320 * 256 + 5 * 256 + 2 * (2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256));
        close_arch(gguf, &arch);
    }
}

static void test_arch__fused_matrices__ranges_of_one_tensor(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvi_gguf *gguf = open_arch(tiny_path("phi3"), &arch);
    const struct pkvi_arch_layer *layer = &arch.layer[1];
    const struct pkvi_gguf_tensor *qkv = pkvi_gguf_find_tensor(gguf, "blk.1.attn_qkv.weight");
    const struct pkvi_gguf_tensor *up = pkvi_gguf_find_tensor(gguf, "blk.1.ffn_up.weight");
    assert_true(layer->q.tensor == qkv && layer->q.first_row == 0 && layer->q.rows == 128);
    assert_true(layer->k.tensor == qkv && layer->k.first_row == 128 && layer->k.rows == 128);
    assert_true(layer->v.tensor == qkv && layer->v.first_row == 256 && layer->v.rows == 128);
    assert_true(layer->gate.tensor == up && layer->gate.first_row == 0 && layer->gate.rows == 160);
    assert_true(layer->up.tensor == up && layer->up.first_row == 160 && layer->up.rows == 160);
    assert_null(layer->q.bias);
    close_arch(gguf, &arch);
}

static void test_arch__gemma__windows_scales_and_caps(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvi_gguf *gguf = open_arch(tiny_path("gemma3"), &arch);
    assert_int_equal(arch.rope_count, 2);
    for (uint32_t i = 0; i < 6; i++) {
        const struct pkv_layer_info *info = &arch.layer[i].info;
        assert_int_equal(info->kind, i == 5 ? PKV_LAYER_GLOBAL : PKV_LAYER_SLIDING);
        assert_int_equal(info->window, i == 5 ? 0 : 64);
        assert_int_equal(arch.layer[i].rope, i == 5 ? 0 : 1);
        assert_true(info->rope_theta == (i == 5 ? 1e6f : 1e4f));
    }
    assert_true(arch.embedding_scale == sqrtf(128.0f) && arch.attention_scale == 0.125f);
    assert_true(arch.attention_softcap == 0 && arch.final_softcap == 0);
    assert_int_equal(arch.glu, PKV_GLU_GELU);
    close_arch(gguf, &arch);
    gguf = open_arch(tiny_path("gemma2"), &arch);
    assert_int_equal(arch.rope_count, 1);
    assert_int_equal(arch.layer[0].info.window, 64);
    assert_int_equal(arch.layer[1].info.kind, PKV_LAYER_GLOBAL);
    assert_true(arch.attention_softcap == 5 && arch.final_softcap == 10);
    close_arch(gguf, &arch);
}

/* Expected: `frequencies` of tiny_forward.py (numpy, float64), which made the golden logits. */
static void test_arch__ropes__as_the_independent_forward_pass(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double freq[7], gain;
    } rows[] = {
        {"llama",
         {1.0, 0.562341325190349, 0.1, 0.01, 0.00562341325190349, 0.000562341325190349,
          0.000177827941003892},
         1},
        {"llama_linear",
         {0.25, 0.140585331297587, 0.025, 0.0025, 0.00140585331297587, 0.000140585331297587,
          4.44569852509731e-05},
         1},
        {"llama_yarn",
         {1.0, 0.502090468919955, 0.0571428571428571, 0.0025, 0.00140585331297587,
          0.000140585331297587, 4.44569852509731e-05},
         1.138629436111989},
        {"llama_rope_freqs",
         {1.0, 0.44036660267178, 0.0273441368381899, 0.000176776695296637, 7.78465527393245e-05,
          2.92749987017617e-06, 5.67708810075984e-07},
         1},
        {"gemma3",
         {1.0, 0.649381631576211, 0.0316227766016838, 0.001, 0.000649381631576211,
          3.65174127254838e-06, 1.53992652605949e-06},
         1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkvi_arch arch;
        struct pkvi_gguf *gguf = open_arch(tiny_path(rows[i].name), &arch);
        const struct pkvi_rope *rope = &arch.rope[0];
        uint32_t n = rope->pairs;
        const uint32_t at[7] = {0, 1, n / 4, n / 2, n / 2 + 1, n - 3, n - 1};
        for (size_t j = 0; j < 7; j++) {
            if (fabs(rope->freq[at[j]] / rows[i].freq[j] - 1) > 1e-7) {
                fail_msg("%s: pair %u turns %.12g, expected %.12g", rows[i].name, at[j],
                         rope->freq[at[j]], rows[i].freq[j]);
            }
        }
        assert_true(fabs(rope->gain - rows[i].gain) < 1e-7);
        assert_null(rope->freq_long);
        close_arch(gguf, &arch);
    }
}

static void test_arch__real_models__read(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    const char *path = pkvt_model_path("smollm2");
    if (path) {
        struct pkvi_gguf *gguf = open_arch(path, &arch);
        assert_string_equal(arch.weight_types, "Q4_1 x210, F32 x61, Q8_0 x1");
        assert_int_equal(arch.vocab, 49152);
        close_arch(gguf, &arch);
    }
    path = pkvt_model_path("gemma3");
    if (path) {
        struct pkvi_gguf *gguf = open_arch(path, &arch);
        assert_true(arch.layer_count == 18 && arch.head_dim == 256);
        assert_int_equal(arch.layer[17].info.kind, PKV_LAYER_GLOBAL);
        assert_int_equal(arch.layer[16].info.window, 512);
        close_arch(gguf, &arch);
    }
}

/* ---- what is refused ---- */

/* Reads the changed file; its message must name the file and hold these words. */
static void refuse(struct pkvt_gguf *made, enum pkv_status expected, const char *words)
{
    struct pkvi_arch arch;
    struct pkvi_gguf *gguf = NULL;
    pkvt_gguf_write(made);
    const char *path = pkvt_memory_file(made->file, made->file_bytes);
    assert_ok(pkvi_gguf_open(path, &gguf));
    enum pkv_status status = pkvi_arch_read(gguf, &arch);
    const char *text = pkv_error_text();
    if (status != expected || !strstr(text, words) || !strstr(text, path)) {
        fail_msg("want %s with '%s', got %s: %s", pkv_status_name(expected), words,
                 pkv_status_name(status), text);
    }
    assert_true(arch.layer == NULL && arch.name == NULL && arch.rope[0].freq == NULL);
    pkvi_gguf_close(gguf);
}

/* Reads the changed file, which must be fine; arch is freed by close_arch(). */
static struct pkvi_gguf *accept(struct pkvt_gguf *made, struct pkvi_arch *arch)
{
    pkvt_gguf_write(made);
    return open_arch(pkvt_memory_file(made->file, made->file_bytes), arch);
}

static void test_arch__key_missing__named(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("llama_q2_k"));
        pkvt_gguf_drop_key(made, keys[i]);
        refuse(made, PKV_ERR_CORRUPT, keys[i]);
        pkvt_gguf_free(made);
    }
    struct pkvi_gguf *gguf = NULL;
    struct pkvi_arch arch;
    assert_ok(pkvi_gguf_open(pkvt_path("golden/malformed/missing_key.gguf"), &gguf));
    assert_status(pkvi_arch_read(gguf, &arch), PKV_ERR_CORRUPT);
    assert_non_null(strstr(pkv_error_text(), "llama.attention.head_count"));
    pkvi_gguf_close(gguf);
    gguf = open_arch(pkvt_path("golden/malformed/ok.gguf"), &arch);
    close_arch(gguf, &arch);
}

static void refuse_u32(const char *model, const char *key, uint32_t value, enum pkv_status status)
{
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path(model));
    pkvt_gguf_set_u32(made, key, value);
    refuse(made, status, key);
    pkvt_gguf_free(made);
}

static void refuse_f32(const char *model, const char *key, float value, enum pkv_status status)
{
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path(model));
    pkvt_gguf_set_f32(made, key, value);
    refuse(made, status, key);
    pkvt_gguf_free(made);
}

static void test_arch__absurd_numbers__refused_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value[4];
    } rows[] = {
        {"llama.block_count", {0, 1025, UINT32_MAX, 0}},
        {"llama.context_length", {0, 1u << 31, UINT32_MAX, 0}},
        {"llama.embedding_length", {0, 1u << 20, UINT32_MAX, 1u << 31}},
        {"llama.feed_forward_length", {0, 1u << 24, UINT32_MAX, 1u << 31}},
        {"llama.attention.head_count", {0, 2048, UINT32_MAX, 1u << 31}},
        {"llama.attention.head_count_kv", {0, 3, 16, UINT32_MAX}},
        {"llama.attention.key_length", {0, 31, 1024, UINT32_MAX}},
        {"llama.rope.dimension_count", {0, 16, 33, 64}},
        {"llama.rope.scaling.original_context_length", {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t j = 0; j < 4; j++) {
            refuse_u32("llama_q2_k", rows[i].key, rows[i].value[j], PKV_ERR_CORRUPT);
        }
    }
    static const char *const positive[] = {"llama.attention.layer_norm_rms_epsilon",
                                           "llama.rope.freq_base",
                                           "llama.rope.scaling.factor",
                                           "llama.rope.scaling.attn_factor",
                                           "llama.attention.scale",
                                           "llama.rope.scaling.yarn_beta_fast"};
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        refuse_f32("llama_yarn", positive[i], 0, PKV_ERR_CORRUPT);
        refuse_f32("llama_yarn", positive[i], -1, PKV_ERR_CORRUPT);
        refuse_f32("llama_yarn", positive[i], NAN, PKV_ERR_CORRUPT);
        refuse_f32("llama_yarn", positive[i], INFINITY, PKV_ERR_CORRUPT);
    }
    refuse_f32("gemma2", "gemma2.attn_logit_softcapping", -1, PKV_ERR_CORRUPT);
    refuse_u32("llama_q2_k", "llama.vocab_size", 321, PKV_ERR_CORRUPT);
    refuse_u32("llama_q2_k", "llama.attention.layer_norm_rms_epsilon", 1, PKV_ERR_CORRUPT);
}

static void test_arch__mathematics_not_implemented__refused_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        float value;
    } reals[] = {
        {"llama.logit_scale", 0.5f},
        {"llama.residual_scale", 0.2f},
        {"llama.embedding_scale", 12},
        {"llama.attention.clamp_kqv", 8},
        {"llama.attention.max_alibi_bias", 8},
        {"llama.attn_logit_softcapping", 50},
        {"llama.final_logit_softcapping", 30},
        {"llama.rope.scaling.yarn_log_multiplier", 0.1f},
        {"llama.rope.scaling.yarn_attn_factor", 2},
        {"llama.rope.freq_base_swa", 5000},
        {"llama.attention.layer_norm_epsilon", 1e-5f},
    };
    static const struct {
        const char *key;
        uint32_t value;
    } integers[] = {
        {"llama.expert_count", 8},
        {"llama.expert_used_count", 2},
        {"llama.pooling_type", 3},
        {"llama.attention.sliding_window", 1024},
        {"llama.attention.value_length", 64},
        {"llama.general_surprise", 1},
        {"llama.rope.dimension_sections", 1},
        {"general.quantization_version", 1},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        refuse_f32("llama_q2_k", reals[i].key, reals[i].value, PKV_ERR_UNSUPPORTED);
    }
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        refuse_u32("llama_q2_k", integers[i].key, integers[i].value, PKV_ERR_UNSUPPORTED);
    }
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("llama_q2_k"));
    pkvt_gguf_set_bool(made, "llama.attention.causal", false);
    refuse(made, PKV_ERR_UNSUPPORTED, "llama.attention.causal");
    pkvt_gguf_set_bool(made, "llama.attention.causal", true);
    pkvt_gguf_set_str(made, "llama.rope.scaling.type", "dynamic");
    refuse(made, PKV_ERR_UNSUPPORTED, "'llama.rope.scaling.type' is 'dynamic'");
    pkvt_gguf_drop_key(made, "llama.rope.scaling.type");
    pkvt_gguf_set_str(made, "general.type", "adapter");
    refuse(made, PKV_ERR_UNSUPPORTED, "'general.type' is 'adapter'");
    pkvt_gguf_drop_key(made, "general.type");
    pkvt_gguf_set_str(made, "general.architecture", "mamba");
    refuse(made, PKV_ERR_UNSUPPORTED, "'general.architecture' is 'mamba', supported are llama");
    pkvt_gguf_free(made);
}

static void test_arch__neutral_and_harmless_keys__accepted(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("llama_q2_k"));
    pkvt_gguf_set_u32(made, "llama.expert_count", 0);
    pkvt_gguf_set_f32(made, "llama.logit_scale", 1);
    pkvt_gguf_set_bool(made, "llama.attention.causal", true);
    pkvt_gguf_set_bool(made, "llama.rope.scaling.finetuned", true);
    pkvt_gguf_set_str(made, "llama.tensor_data_layout", "Meta AI original pth");
    pkvt_gguf_set_u32(made, "llama.attention.sliding_window", 4096); /* context is 2048 */
    pkvt_gguf_set_f32(made, "llama.attention.scale", 0.25f);
    pkvt_gguf_set_f32(made, "llama.final_logit_softcapping", 0);
    pkvt_gguf_set_u32(made, "general.quantization_version", 2);
    pkvt_gguf_set_u32(made, "qwen2.logit_scale", 7); /* another architecture's */
    uint32_t same[2] = {2, 2}, other[2] = {2, 4};
    pkvt_gguf_set(made, "llama.attention.head_count_kv", 4, true, 2, same, sizeof same);
    struct pkvi_gguf *gguf = accept(made, &arch);
    assert_true(arch.attention_scale == 0.25f && arch.kv_heads == 2);
    assert_int_equal(arch.layer[0].info.kind, PKV_LAYER_GLOBAL);
    close_arch(gguf, &arch);
    pkvt_gguf_set(made, "llama.attention.head_count_kv", 4, true, 2, other, sizeof other);
    refuse(made, PKV_ERR_UNSUPPORTED, "'llama.attention.head_count_kv' is 4 in layer 1");
    pkvt_gguf_set(made, "llama.attention.head_count_kv", 4, true, 1, same, 4);
    refuse(made, PKV_ERR_CORRUPT, "has 1 elements, expected 2 (layers)");
    pkvt_gguf_free(made);
}

static void test_arch__tensor_missing_or_extra__named(void **state)
{
    (void)state;
    static const char *const models[] = {"llama_q2_k", "gemma2", "qwen3", "phi3"};
    static const char *const optional[] = {"output.weight"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct pkvt_gguf *made = pkvt_gguf_load(tiny_path(models[m]));
        size_t count = made->tensor_count;
        pkvt_gguf_free(made);
        for (size_t i = 0; i < count; i++) {
            char name[64];
            made = pkvt_gguf_load(tiny_path(models[m]));
            snprintf(name, sizeof name, "%s", made->tensor[i].name);
            pkvt_gguf_drop_tensor(made, name);
            if (strcmp(name, optional[0]) != 0) {
                /* Without attn_qkv or a fused ffn_up the plain ones are missed. */
                refuse(made, PKV_ERR_CORRUPT, strstr(name, "attn_qkv") ? "attn_q.weight" : name);
            }
            pkvt_gguf_free(made);
        }
    }
    static const char *const extras[] = {
        "blk.0.attn_q_norm.weight",        "blk.0.post_ffw_norm.weight", "blk.2.attn_q.weight",
        "blk.0.ffn_gate_inp.weight",       "blk.0.attn_norm.bias",       "position_embd.weight",
        "blk.0.ffn_gate_exps.weight",      "token_embd_norm.weight",     "token_embd.bias",
        "blk.0.attn_rot_embd.weight.more",
    };
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("llama_q2_k"));
        uint64_t dim = i == 8 ? 320 : 256;
        pkvt_gguf_add_tensor(made, extras[i], 0, (size_t)dim * 4, 1, &dim);
        refuse(made, PKV_ERR_UNSUPPORTED, extras[i]);
        pkvt_gguf_free(made);
    }
}

/* Every tensor, with another number of columns or rows: named with found and expected. */
static void test_arch__tensor_of_another_shape__named(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen2", "gemma3", "phi3", "llama_rope_freqs"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct pkvt_gguf *made = pkvt_gguf_load(tiny_path(models[m]));
        for (size_t i = 0; i < made->tensor_count; i++) {
            for (uint32_t d = 0; d < made->tensor[i].dim_count; d++) {
                made->tensor[i].dim[d] /= 2;
                refuse(made, PKV_ERR_CORRUPT, made->tensor[i].name);
                assert_non_null(strstr(pkv_error_text(), "expected"));
                made->tensor[i].dim[d] *= 2;
            }
        }
        pkvt_gguf_free(made);
    }
}

static void test_arch__format_not_supported__named(void **state)
{
    (void)state;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("qwen2"));
    pkvt_gguf_tensor(made, "blk.1.ffn_up.weight")->type = 20;
    refuse(made, PKV_ERR_UNSUPPORTED, "'blk.1.ffn_up.weight' has format IQ4_NL");
    pkvt_gguf_tensor(made, "blk.1.ffn_up.weight")->type = 77;
    refuse(made, PKV_ERR_UNSUPPORTED, "'blk.1.ffn_up.weight' has format number 77");
    pkvt_gguf_tensor(made, "blk.1.ffn_up.weight")->type = 0;
    pkvt_gguf_tensor(made, "blk.1.attn_norm.weight")->type = 1;
    refuse(made, PKV_ERR_UNSUPPORTED, "'blk.1.attn_norm.weight' has format F16, supported is only");
    pkvt_gguf_free(made);
}

static void test_arch__biases__wherever_a_matrix_has_one(void **state)
{
    (void)state;
    static const char *const names[] = {"blk.0.attn_output.bias", "blk.1.ffn_down.bias",
                                        "blk.1.ffn_gate.bias", "blk.0.attn_v.bias", "output.bias"};
    static const uint64_t counts[] = {256, 256, 512, 64, 320};
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("llama_q2_k"));
    struct pkvi_arch arch;
    for (size_t i = 0; i < 5; i++) {
        pkvt_gguf_add_tensor(made, names[i], 0, counts[i] * 4, 1, &counts[i]);
    }
    struct pkvi_gguf *gguf = accept(made, &arch);
    assert_non_null(arch.layer[0].out.bias);
    assert_null(arch.layer[1].out.bias);
    assert_non_null(arch.layer[1].down.bias);
    assert_non_null(arch.layer[0].v.bias);
    assert_true(arch.tied_output && arch.output.bias && !arch.token_embd.bias);
    assert_true(arch.qkv_bias);
    close_arch(gguf, &arch);
    pkvt_gguf_free(made);
}

/* ---- rarer keys ---- */

static void test_arch__gemma3_pattern__period_or_array(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("gemma3"));
    static const uint8_t flags[6] = {0, 1, 0, 0, 1, 1};
    pkvt_gguf_set(made, "gemma3.attention.sliding_window_pattern", 7, true, 6, flags, 6);
    struct pkvi_gguf *gguf = accept(made, &arch);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(arch.layer[i].info.kind == PKV_LAYER_SLIDING, flags[i]);
    }
    close_arch(gguf, &arch);
    pkvt_gguf_set_u32(made, "gemma3.attention.sliding_window_pattern", 3);
    gguf = accept(made, &arch);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(arch.layer[i].info.kind == PKV_LAYER_GLOBAL, i % 3 == 2);
    }
    close_arch(gguf, &arch);
    pkvt_gguf_set(made, "gemma3.attention.sliding_window_pattern", 7, true, 5, flags, 5);
    refuse(made, PKV_ERR_CORRUPT, "has 5 elements, expected 6 (layers)");
    pkvt_gguf_drop_key(made, "gemma3.attention.sliding_window_pattern");
    pkvt_gguf_set_f32(made, "gemma3.rope.freq_base_swa", 20000);
    pkvt_gguf_set_f32(made, "gemma3.rope.scaling.factor", 8);
    gguf = accept(made, &arch);
    assert_true(arch.layer[0].info.rope_theta == 20000.0f);
    assert_true(arch.rope[0].freq[0] == 0.125 && arch.rope[1].freq[0] == 1);
    close_arch(gguf, &arch);
    pkvt_gguf_set_u32(made, "gemma3.attention.sliding_window", 4096);
    gguf = accept(made, &arch);
    assert_int_equal(arch.layer[0].info.kind, PKV_LAYER_GLOBAL);
    assert_int_equal(arch.layer[0].rope, 1);
    close_arch(gguf, &arch);
    pkvt_gguf_free(made);
}

static void test_arch__gemma2_defaults__window_and_caps(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("gemma2"));
    pkvt_gguf_drop_key(made, "gemma2.attention.sliding_window");
    pkvt_gguf_drop_key(made, "gemma2.attn_logit_softcapping");
    pkvt_gguf_drop_key(made, "gemma2.final_logit_softcapping");
    pkvt_gguf_set_u32(made, "gemma2.context_length", 8192);
    struct pkvi_gguf *gguf = accept(made, &arch);
    assert_int_equal(arch.layer[0].info.window, 4096);
    assert_true(arch.attention_softcap == 50 && arch.final_softcap == 30);
    close_arch(gguf, &arch);
    pkvt_gguf_free(made);
}

static void test_arch__phi3_longrope__two_sets_of_frequencies(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("phi3"));
    float shorts[16], longs[16];
    for (int i = 0; i < 16; i++) {
        shorts[i] = 1.0f + (float)i / 16;
        longs[i] = 2.0f + (float)i;
    }
    uint64_t pairs = 16;
    pkvt_gguf_set_u32(made, "phi3.rope.scaling.original_context_length", 512);
    pkvt_gguf_set_f32(made, "phi3.rope.scaling.attn_factor", 1.25f);
    memcpy(pkvt_gguf_add_tensor(made, "rope_factors_long.weight", 0, 64, 1, &pairs)->data, longs,
           64);
    refuse(made, PKV_ERR_CORRUPT, "must both be there");
    memcpy(pkvt_gguf_add_tensor(made, "rope_factors_short.weight", 0, 64, 1, &pairs)->data, shorts,
           64);
    struct pkvi_gguf *gguf = accept(made, &arch);
    assert_int_equal(arch.rope[0].short_context, 512);
    assert_true(arch.rope[0].gain == 1.25);
    for (int i = 0; i < 16; i++) {
        double base = pow(10000, -i / 16.0);
        assert_true(fabs(arch.rope[0].freq[i] * (double)shorts[i] / base - 1) < 1e-12);
        assert_true(fabs(arch.rope[0].freq_long[i] * (double)longs[i] / base - 1) < 1e-12);
    }
    close_arch(gguf, &arch);
    longs[3] = 0;
    memcpy(pkvt_gguf_tensor(made, "rope_factors_long.weight")->data, longs, 64);
    refuse(made, PKV_ERR_CORRUPT, "element 3 of tensor 'rope_factors_long.weight' is 0");
    pkvt_gguf_free(made);
}

static void test_arch__phi3_window_and_partial_rope__read(void **state)
{
    (void)state;
    struct pkvi_arch arch;
    struct pkvt_gguf *made = pkvt_gguf_load(tiny_path("phi3"));
    pkvt_gguf_set_u32(made, "phi3.attention.sliding_window", 100);
    pkvt_gguf_set_u32(made, "phi3.rope.dimension_count", 24);
    struct pkvi_gguf *gguf = accept(made, &arch);
    assert_true(arch.layer[3].info.window == 100 && arch.layer[3].info.rope_pairs == 12);
    close_arch(gguf, &arch);
    pkvt_gguf_set_u32(made, "phi3.attention.sliding_window", 0);
    gguf = accept(made, &arch);
    assert_int_equal(arch.layer[3].info.kind, PKV_LAYER_GLOBAL);
    close_arch(gguf, &arch);
    pkvt_gguf_set_u32(made, "phi3.rope.dimension_count", 34);
    refuse(made, PKV_ERR_CORRUPT, "phi3.rope.dimension_count");
    pkvt_gguf_free(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arch__small_models__as_their_readme_says),
        cmocka_unit_test(test_arch__number_formats__all_read),
        cmocka_unit_test(test_arch__fused_matrices__ranges_of_one_tensor),
        cmocka_unit_test(test_arch__gemma__windows_scales_and_caps),
        cmocka_unit_test(test_arch__ropes__as_the_independent_forward_pass),
        cmocka_unit_test(test_arch__real_models__read),
        cmocka_unit_test(test_arch__key_missing__named),
        cmocka_unit_test(test_arch__absurd_numbers__refused_by_key),
        cmocka_unit_test(test_arch__mathematics_not_implemented__refused_by_key),
        cmocka_unit_test(test_arch__neutral_and_harmless_keys__accepted),
        cmocka_unit_test(test_arch__tensor_missing_or_extra__named),
        cmocka_unit_test(test_arch__tensor_of_another_shape__named),
        cmocka_unit_test(test_arch__format_not_supported__named),
        cmocka_unit_test(test_arch__biases__wherever_a_matrix_has_one),
        cmocka_unit_test(test_arch__gemma3_pattern__period_or_array),
        cmocka_unit_test(test_arch__gemma2_defaults__window_and_caps),
        cmocka_unit_test(test_arch__phi3_longrope__two_sets_of_frequencies),
        cmocka_unit_test(test_arch__phi3_window_and_partial_rope__read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
