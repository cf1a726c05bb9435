/*
 * arch.h: what a GGUF file's keys and tensors say about its mathematics.
 *
 * Owns: the table of architectures, the meaning of `<architecture>.*` keys, names and shapes of
 * tensors. Refuses to know: devices, packing, tokens.
 * A key or tensor that could change the result and is not implemented is refused by name: a model
 * that opens computes what its file says.
 * Sources: the GGUF specification (ggml, docs/gguf.md); llama.cpp at 0c1e570 for the defaults of
 * keys that files leave out.
 */
#ifndef PKV_MODEL_ARCH_H
#define PKV_MODEL_ARCH_H

#include "pivotkv/model.h"
#include "runtime/model/gguf.h"

enum pkvi_arch_kind {
    PKVI_ARCH_LLAMA, /* also Mistral, SmolLM: their files say "llama" */
    PKVI_ARCH_QWEN2,
    PKVI_ARCH_QWEN3,
    PKVI_ARCH_GEMMA2,
    PKVI_ARCH_GEMMA3,
    PKVI_ARCH_PHI3,
    PKVI_ARCH_COUNT
};

/*
 * A weight matrix: rows [first_row, first_row + rows) of a tensor, y = w x + bias. Matrices that a
 * file stores fused (q, k and v; gate and up) are ranges of one tensor, so that nothing above
 * needs to know. The tensor's type is supported and its data is there.
 */
struct pkvi_weight {
    const struct pkvi_gguf_tensor *tensor;
    const struct pkvi_gguf_tensor *bias; /* f32, element first_row belongs to our row 0; or NULL */
    uint32_t first_row, rows, cols;
};

/* A distinct rotary embedding; layers name it by its index. */
struct pkvi_rope {
    uint32_t pairs;
    bool halves; /* pairs (i, i + pairs), else (2i, 2i + 1) */
    float theta;
    double gain;  /* factor on the rotated values (yarn, longrope), else 1 */
    double *freq; /* [pairs] radians a position, all scaling applied */
    /* longrope: the frequencies of sessions whose context exceeds `short_context`; else NULL, 0. */
    double *freq_long;
    uint32_t short_context;
};

#define PKVI_ARCH_ROPES 2u

/*
 * One layer: x += post_attn_norm(out(attend(rope(norm(q), norm(k)), v))) with q, k, v of
 * attn_norm(x); x += post_ffn_norm(down(glu(gate, up))) with gate, up of ffn_norm(x).
 * Norm weights are f32 [width] ([head_dim] for q_norm, k_norm); NULL where the layer has none.
 */
struct pkvi_arch_layer {
    struct pkv_layer_info info;
    uint32_t rope; /* index in pkvi_arch.rope */
    const struct pkvi_gguf_tensor *attn_norm, *q_norm, *k_norm, *post_attn_norm;
    const struct pkvi_gguf_tensor *ffn_norm, *post_ffn_norm;
    struct pkvi_weight q;        /* [heads * head_dim][width] */
    struct pkvi_weight k, v;     /* [kv_heads * head_dim][width] */
    struct pkvi_weight out;      /* [width][heads * head_dim] */
    struct pkvi_weight gate, up; /* [ffn][width] */
    struct pkvi_weight down;     /* [width][ffn] */
};

struct pkvi_arch {
    enum pkvi_arch_kind kind;
    const char *architecture; /* static: "llama", ... */
    char *name;               /* general.name, "" if absent */
    char *weight_types;       /* "Q4_1 x210, F32 x61, Q8_0 x1", most frequent first */
    uint64_t parameters;
    uint32_t layer_count, width, ffn, heads, kv_heads, head_dim, vocab, context;
    float norm_eps;
    float embedding_scale;                  /* on the rows of token_embd; 1, or sqrt(width) */
    float attention_scale;                  /* on q.k */
    float attention_softcap, final_softcap; /* 0 = none */
    enum pkv_glu glu;
    bool tied_output, qkv_bias, qk_norm, post_norms, fused_qkv, fused_gate_up; /* as stored */
    uint32_t rope_count;
    struct pkvi_rope rope[PKVI_ARCH_ROPES];
    struct pkvi_arch_layer *layer;              /* [layer_count] */
    struct pkvi_weight token_embd;              /* [vocab][width] */
    struct pkvi_weight output;                  /* [vocab][width]; token_embd if tied */
    const struct pkvi_gguf_tensor *output_norm; /* f32 [width] */
};

/*
 * Read and check everything. The result borrows the file's tensors: the file must stay open as
 * long. PKV_ERR_UNSUPPORTED: an architecture, key, tensor or number format that is not implemented,
 * by name. PKV_ERR_CORRUPT: missing or contradicting keys and tensors: name, found, expected. On
 * failure *arch_out is all zero. Cost: touches the pages of keys and of rope_freqs, no weights.
 */
enum pkv_status pkvi_arch_read(const struct pkvi_gguf *gguf, struct pkvi_arch *arch_out);
/* All zero is fine. */
void pkvi_arch_free(struct pkvi_arch *arch);

/* What becomes of a key of a file that was read. */
enum pkvi_key_use {
    PKVI_KEY_MODEL,     /* part of the mathematics */
    PKVI_KEY_TOKENIZER, /* for the tokenizer and the chat template */
    PKVI_KEY_NEUTRAL,   /* not implemented, and its value asks for nothing */
    PKVI_KEY_REMARK     /* not used: says where the file comes from */
};
enum pkvi_key_use pkvi_arch_key_use(const struct pkvi_arch *arch, struct pkvi_str name);

/* "llama, qwen2, ..." for messages and inspect. */
const char *pkvi_arch_names(void);

#endif
