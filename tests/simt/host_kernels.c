/*
 * host_kernels.c: the CPU kernels of the KV tier on a CUDA stream, in its order: for tests of edges
 * between streams, to which it does not matter who computes. With PKVT_HOST_REST those of every
 * operation but recall's and the hot set's, which then have to do exactly as on the CPU device.
 * Linked with -Wl,--wrap=pkvi_cuda_kernel.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/thread.h"

const struct pkv_kernel *__wrap_pkvi_cuda_kernel(uint32_t op);
const struct pkv_kernel *__real_pkvi_cuda_kernel(uint32_t op);

struct call {
    const struct pkv_kernel *kernel;
    _Alignas(16) uint8_t args[];
};

/* One pool for all: the fake runtime runs one command at a time. */
static struct pkvi_pool *pool;

static void run(void *context)
{
    struct call *call = context;
    struct pkvi_cpu_stream stream = {.pool = pool};
    if (call->kernel->launch(&stream, call->args) != PKV_OK) {
        abort(); /* the tests launch nothing that is refused */
    }
    free(call);
}

static enum pkv_status enqueue(uint32_t op, void *native_stream, const void *args)
{
    const struct pkvi_cuda_stream *native = native_stream;
    const struct pkv_kernel *kernel = pkvi_cpu_kernel(PKV_CPU_AUTO, op);
    if (!pool) {
        PKV_TRY(pkvi_pool_open(1, &pool));
    }
    struct call *call = malloc(sizeof *call + kernel->args_bytes);
    if (!call) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a launch");
    }
    call->kernel = kernel;
    memcpy(call->args, args, kernel->args_bytes);
    return pkvi_cuda_check(cudaLaunchHostFunc(native->stream, run, call), "cudaLaunchHostFunc");
}

#ifdef PKVT_HOST_REST
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
    X(PKV_OP_SCORE, score)
#else
#define OPERATIONS(X)                                                                              \
    X(PKV_OP_APPEND, append)                                                                       \
    X(PKV_OP_ATTEND, attend)
#endif

#define LAUNCH(op, name)                                                                           \
    static enum pkv_status launch_##name(void *native_stream, const void *args)                    \
    {                                                                                              \
        return enqueue(op, native_stream, args);                                                   \
    }
OPERATIONS(LAUNCH)

#define KERNEL(which, name) [which] = {.op = (which), .variant = "host", .launch = launch_##name},
static const struct pkv_kernel kernels[PKV_OP_COUNT] = {OPERATIONS(KERNEL)};

const struct pkv_kernel *__wrap_pkvi_cuda_kernel(uint32_t op)
{
    if (op < PKV_OP_COUNT && kernels[op].launch) {
        return &kernels[op];
    }
#ifdef PKVT_HOST_REST
    return __real_pkvi_cuda_kernel(op);
#else
    return NULL;
#endif
}
