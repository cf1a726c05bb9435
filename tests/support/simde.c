#include "tests/support/simde.h"

#ifdef PKV_TEST_SIMDE

#define OPERATIONS(X)                                                                              \
    X(PKV_OP_NORM, norm)                                                                           \
    X(PKV_OP_QUANTIZE, quantize)                                                                   \
    X(PKV_OP_LINEAR, linear)                                                                       \
    X(PKV_OP_GLU, glu)                                                                             \
    X(PKV_OP_ROPE, rope)                                                                           \
    X(PKV_OP_APPEND, append)                                                                       \
    X(PKV_OP_ATTEND, attend)                                                                       \
    X(PKV_OP_SOFTCAP, softcap)                                                                     \
    X(PKV_OP_TOPK, topk)                                                                           \
    X(PKV_OP_SCORE, score)                                                                         \
    X(PKV_OP_INDEX, index)                                                                         \
    X(PKV_OP_PREDICT, predict)

#define DECLARE(op, name) extern const struct pkv_kernel pkvi_kernel_##name##_avx512_simde;
#define ENTRY(op, name) [op] = &pkvi_kernel_##name##_avx512_simde,

OPERATIONS(DECLARE)

static const struct pkv_kernel *const kernels[PKV_OP_COUNT] = {OPERATIONS(ENTRY)};

const struct pkv_kernel *pkvt_simde_kernel(uint32_t op)
{
    return pkvi_cpu_supports(PKV_CPU_AVX512) ? NULL : kernels[op];
}

#else

const struct pkv_kernel *pkvt_simde_kernel(uint32_t op)
{
    (void)op;
    return NULL;
}

#endif
