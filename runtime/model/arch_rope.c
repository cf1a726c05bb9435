/*
 * arch_rope.c: rotary embeddings of a model: frequencies with all scaling applied.
 *
 * Sources: Su et al., RoFormer, arXiv:2104.09864; Peng et al., YaRN, arXiv:2309.00071 (ramp between
 * interpolated and kept frequencies, gain 1 + 0.1 ln(factor)); Ding et al., LongRoPE,
 * arXiv:2402.13753 (divisors per pair, a set for short and one for long contexts); divisors in
 * `rope_freqs.weight` as Llama 3.1 files carry them. Keys and defaults as llama.cpp reads them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/model/arch_impl.h"

/* Beyond any real file's, and tight enough that angles stay exact enough to mean something. */
#define LEAST_FACTOR 0.001f
#define MOST_FACTOR 1e6f

enum scaling_kind { SCALING_NONE, SCALING_LINEAR, SCALING_YARN, SCALING_LONGROPE };

struct scaling {
    enum scaling_kind kind;
    double factor; /* contexts grow by it */
    double attention_factor;
    uint32_t original_context;
    double extrapolation, beta_fast, beta_slow; /* yarn */
};

static enum pkv_status read_kind(const struct pkvi_arch_reader *reader, enum scaling_kind *kind_out)
{
    static const char *const names[] = {"none", "linear", "yarn", "longrope"};
    char name[PKVI_ARCH_KEY_BYTES];
    struct pkvi_str text;
    bool found;
    pkvi_arch_key_name(reader, "rope.scaling.type", name);
    *kind_out = SCALING_LINEAR; /* a factor without a type scales linearly */
    PKV_TRY(pkvi_gguf_str(reader->gguf, name, &found, &text));
    for (size_t i = 0; found && i < sizeof names / sizeof names[0]; i++) {
        if (pkvi_str_equal(text, names[i])) {
            *kind_out = (enum scaling_kind)i;
            return PKV_OK;
        }
    }
    if (found) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s' is '%.*s', supported are none, linear, yarn, longrope",
                        pkvi_gguf_path(reader->gguf), name, pkvi_str_shown(text), text.data);
    }
    return PKV_OK;
}

/* A factor; `absent` where the file has none. */
static enum pkv_status read_factor(const struct pkvi_arch_reader *reader, const char *suffix,
                                   double absent, double *value_out)
{
    float value;
    bool found;
    *value_out = absent;
    PKV_TRY(pkvi_arch_f32(reader, suffix, &found, &value));
    if (found && !(value >= LEAST_FACTOR && value <= MOST_FACTOR)) {
        return pkvi_arch_bad_f32(reader, suffix, (double)value, "0.001 to 1000000");
    }
    if (found) {
        *value_out = (double)value;
    }
    return PKV_OK;
}

static enum pkv_status read_yarn(const struct pkvi_arch_reader *reader, struct scaling *scaling)
{
    float extrapolation = 1;
    bool found;
    PKV_TRY(pkvi_arch_f32(reader, "rope.scaling.yarn_ext_factor", &found, &extrapolation));
    if (!(extrapolation >= 0 && extrapolation <= 1)) {
        return pkvi_arch_bad_f32(reader, "rope.scaling.yarn_ext_factor", (double)extrapolation,
                                 "0 to 1");
    }
    scaling->extrapolation = (double)extrapolation;
    PKV_TRY(read_factor(reader, "rope.scaling.yarn_beta_fast", 32, &scaling->beta_fast));
    PKV_TRY(read_factor(reader, "rope.scaling.yarn_beta_slow", 1, &scaling->beta_slow));
    if (scaling->beta_fast < scaling->beta_slow) {
        return pkvi_arch_bad_f32(reader, "rope.scaling.yarn_beta_fast", scaling->beta_fast,
                                 "at least yarn_beta_slow");
    }
    return PKV_OK;
}

static enum pkv_status read_scaling(const struct pkvi_arch_reader *reader, struct scaling *scaling)
{
    bool found;
    double old_factor;
    PKV_TRY(read_kind(reader, &scaling->kind));
    PKV_TRY(read_factor(reader, "rope.scale_linear", 1, &old_factor));
    PKV_TRY(read_factor(reader, "rope.scaling.factor", old_factor, &scaling->factor));
    PKV_TRY(read_factor(reader, "rope.scaling.attn_factor", 1, &scaling->attention_factor));
    scaling->original_context = reader->arch->context;
    PKV_TRY(pkvi_arch_u32(reader, "rope.scaling.original_context_length", &found,
                          &scaling->original_context));
    if (scaling->original_context < 1) {
        return pkvi_arch_bad_u32(reader, "rope.scaling.original_context_length", 0, "at least 1");
    }
    if (scaling->kind == SCALING_LONGROPE && scaling->factor != 1) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s.rope.scaling.factor' is %g, supported with longrope is only 1",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, scaling->factor);
    }
    if (scaling->kind == SCALING_YARN && reader->traits->local_rope) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s.rope.scaling.type' is 'yarn', supported with sliding layers "
                        "are none and linear",
                        pkvi_gguf_path(reader->gguf), reader->traits->name);
    }
    return read_yarn(reader, scaling);
}

static enum pkv_status read_theta(const struct pkvi_arch_reader *reader, const char *suffix,
                                  float absent, float *theta_out)
{
    bool found;
    *theta_out = absent;
    PKV_TRY(pkvi_arch_f32(reader, suffix, &found, theta_out));
    if (!(*theta_out > 1)) {
        return pkvi_arch_bad_f32(reader, suffix, (double)*theta_out, "more than 1");
    }
    return PKV_OK;
}

/* The pair that turns so often within the original context. */
static double pair_of_turns(double turns, uint32_t dims, double theta, uint32_t original_context)
{
    const double two_pi = 6.283185307179586;
    return dims * log(original_context / (turns * two_pi)) / (2 * log(theta));
}

static void scale_yarn(const struct scaling *scaling, uint32_t dims, double theta, double *freq)
{
    double low = floor(pair_of_turns(scaling->beta_fast, dims, theta, scaling->original_context));
    double high = ceil(pair_of_turns(scaling->beta_slow, dims, theta, scaling->original_context));
    low = fmax(0, low);
    high = fmin(dims - 1, high);
    for (uint32_t i = 0; i < dims / 2; i++) {
        double ramp = fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
        double keep = (1 - ramp) * scaling->extrapolation;
        freq[i] = freq[i] / scaling->factor * (1 - keep) + freq[i] * keep;
    }
}

static void scale(const struct scaling *scaling, uint32_t dims, double theta, double *freq)
{
    if (scaling->kind == SCALING_YARN) {
        scale_yarn(scaling, dims, theta, freq);
    } else if (scaling->kind == SCALING_LINEAR) {
        for (uint32_t i = 0; i < dims / 2; i++) {
            freq[i] /= scaling->factor;
        }
    }
}

/* theta^(-2i/dims), divided by the factors where there are some, then scaled. */
static enum pkv_status make_freq(const struct pkvi_arch_reader *reader,
                                 const struct scaling *scaling, double theta,
                                 const struct pkvi_gguf_tensor *factors, double **freq_out)
{
    uint32_t dims = reader->rope_dims;
    double *freq = malloc(dims / 2 * sizeof *freq);
    if (!freq) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "out of memory: %u rope frequencies", dims / 2);
    }
    for (uint32_t i = 0; i < dims / 2; i++) {
        float factor = 1;
        if (factors && pkvi_gguf_read(reader->gguf, factors, i * sizeof factor, sizeof factor,
                                      &factor) != PKV_OK) {
            free(freq);
            return PKV_ERR_IO;
        }
        if (!(factor >= LEAST_FACTOR && factor <= MOST_FACTOR)) {
            free(freq);
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "%s: element %u of tensor '%.*s' is %g, expected 0.001 to 1000000",
                            pkvi_gguf_path(reader->gguf), i, pkvi_str_shown(factors->name),
                            factors->name.data, (double)factor);
        }
        freq[i] = pow(theta, -2.0 * i / dims) / (double)factor;
    }
    scale(scaling, dims, theta, freq);
    *freq_out = freq;
    return PKV_OK;
}

/* The rotary embedding of the global layers. */
static enum pkv_status make_global(struct pkvi_arch_reader *reader, const struct scaling *scaling)
{
    struct pkvi_arch *arch = reader->arch;
    struct pkvi_rope *rope = &arch->rope[0];
    uint32_t pairs = reader->rope_dims / 2;
    const struct pkvi_gguf_tensor *factors, *factors_short, *factors_long;
    PKV_TRY(pkvi_arch_find_vector(reader, "rope_freqs.weight", pairs, &factors));
    PKV_TRY(pkvi_arch_find_vector(reader, "rope_factors_short.weight", pairs, &factors_short));
    PKV_TRY(pkvi_arch_find_vector(reader, "rope_factors_long.weight", pairs, &factors_long));
    if (!factors_short != !factors_long || (factors && factors_long)) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: tensors 'rope_factors_short.weight' and 'rope_factors_long.weight' "
                        "must both be there, without 'rope_freqs.weight', or none of them",
                        pkvi_gguf_path(reader->gguf));
    }
    if (scaling->kind == SCALING_LONGROPE && !factors_long) {
        return PKV_FAIL(PKV_ERR_CORRUPT,
                        "%s: tensor 'rope_factors_long.weight' is missing, expected with "
                        "'%s.rope.scaling.type' longrope",
                        pkvi_gguf_path(reader->gguf), reader->traits->name);
    }
    rope->pairs = pairs;
    rope->halves = reader->traits->rope_halves;
    rope->gain = scaling->attention_factor;
    if (scaling->kind == SCALING_YARN && scaling->extrapolation > 0 && scaling->factor > 1) {
        rope->gain *= 1 + 0.1 * log(scaling->factor);
    }
    if (factors_long) {
        rope->short_context = scaling->original_context;
        PKV_TRY(make_freq(reader, scaling, (double)rope->theta, factors_long, &rope->freq_long));
        factors = factors_short;
    }
    return make_freq(reader, scaling, (double)rope->theta, factors, &rope->freq);
}

enum pkv_status pkvi_arch_read_ropes(struct pkvi_arch_reader *reader)
{
    struct pkvi_arch *arch = reader->arch;
    struct scaling scaling, plain = {.kind = SCALING_NONE, .factor = 1};
    bool local = reader->traits->local_rope;
    float theta_local;
    PKV_TRY(read_scaling(reader, &scaling));
    PKV_TRY(read_theta(reader, "rope.freq_base", reader->traits->theta, &arch->rope[0].theta));
    PKV_TRY(read_theta(reader, "rope.freq_base_swa", local ? 10000.0f : arch->rope[0].theta,
                       &theta_local));
    PKV_TRY(make_global(reader, &scaling));
    arch->rope_count = 1;
    if (!local && theta_local == arch->rope[0].theta) {
        return PKV_OK;
    }
    if (!local) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%s: key '%s.rope.freq_base_swa' is %g, supported is only rope.freq_base "
                        "(%g)",
                        pkvi_gguf_path(reader->gguf), reader->traits->name, (double)theta_local,
                        (double)arch->rope[0].theta);
    }
    arch->rope[1] = (struct pkvi_rope){.pairs = reader->rope_dims / 2,
                                       .halves = reader->traits->rope_halves,
                                       .theta = theta_local,
                                       .gain = 1};
    arch->rope_count = 2;
    return make_freq(reader, &plain, (double)theta_local, NULL, &arch->rope[1].freq);
}
