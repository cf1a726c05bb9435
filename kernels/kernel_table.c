/*
 * kernel_table.c: operation x variant, and which variants this machine runs.
 *
 * A new operation is a line in SCALAR_OPERATIONS and one in VECTOR_OPERATIONS; its kernels are
 * `pkvi_kernel_<op>_<variant>`, the scalar one in kernels/ref, the others from kernels/cpu. An
 * operation that gains nothing from vectors has the first line only.
 */
#include "kernels/kernels.h"

#if defined(PKV_HAVE_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define SCALAR_OPERATIONS(X)                                                                       \
    X(PKV_OP_EMBED, embed, scalar)                                                                 \
    X(PKV_OP_NORM, norm, scalar)                                                                   \
    X(PKV_OP_QUANTIZE, quantize, scalar)                                                           \
    X(PKV_OP_LINEAR, linear, scalar)                                                               \
    X(PKV_OP_GLU, glu, scalar)                                                                     \
    X(PKV_OP_ROPE_TABLE, rope_table, scalar)                                                       \
    X(PKV_OP_ROPE, rope, scalar)                                                                   \
    X(PKV_OP_APPEND, append, scalar)                                                               \
    X(PKV_OP_ATTEND, attend, scalar)                                                               \
    X(PKV_OP_SOFTCAP, softcap, scalar)                                                             \
    X(PKV_OP_TOPK, topk, scalar)                                                                   \
    X(PKV_OP_SCORE, score, scalar)                                                                 \
    X(PKV_OP_PLACE, place, scalar)                                                                 \
    X(PKV_OP_COMPETE, compete, scalar)                                                             \
    X(PKV_OP_KEEP, keep, scalar)                                                                   \
    X(PKV_OP_GATHER, gather, scalar)                                                               \
    X(PKV_OP_THIN, thin, scalar)                                                                   \
    X(PKV_OP_INDEX, index, scalar)                                                                 \
    X(PKV_OP_PREDICT, predict, scalar)                                                             \
    X(PKV_OP_RECALL, recall, scalar)

#define VECTOR_OPERATIONS(X, variant)                                                              \
    X(PKV_OP_NORM, norm, variant)                                                                  \
    X(PKV_OP_QUANTIZE, quantize, variant)                                                          \
    X(PKV_OP_LINEAR, linear, variant)                                                              \
    X(PKV_OP_GLU, glu, variant)                                                                    \
    X(PKV_OP_ROPE, rope, variant)                                                                  \
    X(PKV_OP_APPEND, append, variant)                                                              \
    X(PKV_OP_ATTEND, attend, variant)                                                              \
    X(PKV_OP_SOFTCAP, softcap, variant)                                                            \
    X(PKV_OP_TOPK, topk, variant)                                                                  \
    X(PKV_OP_SCORE, score, variant)                                                                \
    X(PKV_OP_INDEX, index, variant)                                                                \
    X(PKV_OP_PREDICT, predict, variant)

#define DECLARE(op, name, variant) extern const struct pkv_kernel pkvi_kernel_##name##_##variant;
#define ENTRY(op, name, variant) [op] = &pkvi_kernel_##name##_##variant,

SCALAR_OPERATIONS(DECLARE)
#ifdef PKV_HAVE_AVX2
VECTOR_OPERATIONS(DECLARE, avx2)
#endif
#ifdef PKV_HAVE_AVX512
VECTOR_OPERATIONS(DECLARE, avx512)
#endif
#ifdef PKV_HAVE_NEON
VECTOR_OPERATIONS(DECLARE, neon)
#endif

static const struct pkv_kernel *const kernels[][PKV_OP_COUNT] = {
    [PKV_CPU_SCALAR] = {SCALAR_OPERATIONS(ENTRY)},
#ifdef PKV_HAVE_AVX2
    [PKV_CPU_AVX2] = {VECTOR_OPERATIONS(ENTRY, avx2)},
#endif
#ifdef PKV_HAVE_AVX512
    [PKV_CPU_AVX512] = {VECTOR_OPERATIONS(ENTRY, avx512)},
#endif
#ifdef PKV_HAVE_NEON
    [PKV_CPU_NEON] = {VECTOR_OPERATIONS(ENTRY, neon)},
#endif
};

static const char *const op_names[PKV_OP_COUNT] = {
    "embed",  "norm",   "quantize", "linear", "glu",     "rope_table", "rope",
    "append", "attend", "softcap",  "topk",   "score",   "place",      "compete",
    "keep",   "gather", "thin",     "index",  "predict", "recall",
};
static const char *const cpu_names[] = {"auto", "scalar", "avx2", "avx512", "neon"};

const char *pkvi_op_name(uint32_t op)
{
    return op < PKV_OP_COUNT ? op_names[op] : NULL;
}

const char *pkvi_cpu_name(enum pkv_cpu cpu)
{
    return (uint32_t)cpu < sizeof cpu_names / sizeof *cpu_names ? cpu_names[cpu] : NULL;
}

#ifdef PKV_HAVE_AVX2
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef PKV_HAVE_AVX512
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef PKV_HAVE_NEON
static bool has_neon(void)
{
#ifdef __linux__
    const unsigned long hwcap = getauxval(AT_HWCAP);
    return (hwcap & HWCAP_ASIMDDP) != 0 && (hwcap & HWCAP_ASIMDHP) != 0;
#else
    return false;
#endif
}
#endif

bool pkvi_cpu_supports(enum pkv_cpu cpu)
{
    switch (cpu) {
    case PKV_CPU_AUTO:
    case PKV_CPU_SCALAR:
        return true;
#ifdef PKV_HAVE_AVX2
    case PKV_CPU_AVX2:
        return has_avx2();
#endif
#ifdef PKV_HAVE_AVX512
    case PKV_CPU_AVX512:
        return has_avx512();
#endif
#ifdef PKV_HAVE_NEON
    case PKV_CPU_NEON:
        return has_neon();
#endif
    default:
        return false;
    }
}

enum pkv_cpu pkvi_cpu_best(void)
{
    static const enum pkv_cpu order[] = {PKV_CPU_AVX512, PKV_CPU_AVX2, PKV_CPU_NEON};
    for (uint32_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (pkvi_cpu_supports(order[i])) {
            return order[i];
        }
    }
    return PKV_CPU_SCALAR;
}

const struct pkv_kernel *pkvi_cpu_kernel(enum pkv_cpu cpu, uint32_t op)
{
    const enum pkv_cpu chosen = cpu == PKV_CPU_AUTO ? pkvi_cpu_best() : cpu;
    if (op >= PKV_OP_COUNT || !pkvi_cpu_supports(chosen)) {
        return NULL;
    }
    return kernels[chosen][op] ? kernels[chosen][op] : kernels[PKV_CPU_SCALAR][op];
}
