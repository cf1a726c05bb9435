/* cuda_table.c: which operations have a CUDA kernel. Whoever adds one adds its line here. */
#include "kernels/cuda/cuda.h"

#include "kernels/kernels.h"

/* X(PKV_OP_NORM, norm) ... */
#define OPERATIONS(X)                                                                              \
    X(PKV_OP_EMBED, embed)                                                                         \
    X(PKV_OP_NORM, norm)                                                                           \
    X(PKV_OP_QUANTIZE, quantize)                                                                   \
    X(PKV_OP_LINEAR, linear)                                                                       \
    X(PKV_OP_GLU, glu)                                                                             \
    X(PKV_OP_ROPE_TABLE, rope_table)                                                               \
    X(PKV_OP_ROPE, rope)                                                                           \
    X(PKV_OP_APPEND, append)                                                                       \
    X(PKV_OP_ATTEND, attend)                                                                       \
    X(PKV_OP_SOFTCAP, softcap)                                                                     \
    X(PKV_OP_TOPK, topk)                                                                           \
    X(PKV_OP_SCORE, score)                                                                         \
    X(PKV_OP_PLACE, place)                                                                         \
    X(PKV_OP_COMPETE, compete)                                                                     \
    X(PKV_OP_KEEP, keep)                                                                           \
    X(PKV_OP_GATHER, gather)                                                                       \
    X(PKV_OP_THIN, thin)                                                                           \
    X(PKV_OP_INDEX, index)                                                                         \
    X(PKV_OP_PREDICT, predict)                                                                     \
    X(PKV_OP_RECALL, recall)

#define ENTRY(op, name) [op] = &pkvi_kernel_##name##_cuda,

static const struct pkv_kernel *const kernels[PKV_OP_COUNT + 1] = {[PKV_OP_COUNT] = NULL,
                                                                   OPERATIONS(ENTRY)};

const struct pkv_kernel *pkvi_cuda_kernel(uint32_t op)
{
    return op < PKV_OP_COUNT ? kernels[op] : NULL;
}
