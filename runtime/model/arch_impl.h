/* arch_impl.h: what the files of pkvi_arch_read() share. */
#ifndef PKV_MODEL_ARCH_IMPL_H
#define PKV_MODEL_ARCH_IMPL_H

#include "runtime/model/arch.h"

/* How the architectures differ, as data. */
struct pkvi_arch_traits {
    const char *name;
    bool rope_halves;  /* pairs (i, i + pairs) */
    bool partial_rope; /* rope.dimension_count below head_dim is allowed */
    bool qk_norm, post_norms;
    bool scaled_embedding;  /* by sqrt(width) */
    bool fused_gate_up;     /* ffn_up may hold gate and up */
    bool windows;           /* attention.sliding_window is implemented */
    bool local_rope;        /* sliding layers: own theta, no scaling */
    uint32_t window;        /* where the file names none; 0 = none */
    uint32_t window_period; /* the last of so many layers is global; 0 = none is */
    uint32_t wide_layers;   /* with so many layers, attention is scaled by 1/sqrt(width / heads) */
    float theta, attention_softcap, final_softcap; /* where the file names none */
    bool softcaps;
    enum pkv_glu glu;
};

struct pkvi_arch_reader {
    const struct pkvi_gguf *gguf;
    const struct pkvi_arch_traits *traits;
    struct pkvi_arch *arch;
    uint32_t rope_dims;
    bool *seen; /* [tensor count] which tensors have a role */
};

#define PKVI_ARCH_KEY_BYTES 128u

/* "llama.rope.freq_base" of "rope.freq_base". */
void pkvi_arch_key_name(const struct pkvi_arch_reader *reader, const char *suffix,
                        char name_out[PKVI_ARCH_KEY_BYTES]);
/* As pkvi_gguf_u32() and pkvi_gguf_f32(), by suffix. */
enum pkv_status pkvi_arch_u32(const struct pkvi_arch_reader *reader, const char *suffix,
                              bool *found_out, uint32_t *value_out);
enum pkv_status pkvi_arch_f32(const struct pkvi_arch_reader *reader, const char *suffix,
                              bool *found_out, float *value_out);
/* A key out of range: PKV_ERR_CORRUPT with found and expected. */
enum pkv_status pkvi_arch_bad_u32(const struct pkvi_arch_reader *reader, const char *suffix,
                                  uint32_t found, const char *expected);
enum pkv_status pkvi_arch_bad_f32(const struct pkvi_arch_reader *reader, const char *suffix,
                                  double found, const char *expected);

/* arch_keys.c: every key of the file that could change the result is implemented or neutral. */
enum pkv_status pkvi_arch_check_keys(const struct pkvi_arch_reader *reader);
/* arch_rope.c: arch->rope. Before: heads, head_dim, context, the reader's rope_dims. */
enum pkv_status pkvi_arch_read_ropes(struct pkvi_arch_reader *reader);
/* arch_tensors.c: every tensor has a role and the right shape. Before: all numbers, arch->layer. */
enum pkv_status pkvi_arch_read_tensors(struct pkvi_arch_reader *reader);

/* A tensor that may be absent (*tensor_out = NULL): marked as seen, f32 [count], data there. */
enum pkv_status pkvi_arch_find_vector(struct pkvi_arch_reader *reader, const char *name,
                                      uint32_t count, const struct pkvi_gguf_tensor **tensor_out);

#endif
