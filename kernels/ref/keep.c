/* keep.c: which rows of a prompt go on behind a layer, plain C: a heap over the sums, then order.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/heap.h"
#include "runtime/base/thread.h"

/* What all KV heads together give a key. */
static float sum_of(const struct pkv_args_keep *args, uint32_t key)
{
    float sum = 0.0f;
    for (uint32_t h = 0; h < args->kv_heads; h++) {
        sum += PKV_AT(const float, args->score)[(uint64_t)h * args->score_stride + key];
    }
    return isnan(sum) ? -INFINITY : sum;
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static void keep_all(void *context, uint32_t number, uint32_t worker)
{
    (void)number;
    (void)worker;
    const struct pkv_args_keep *args = context;
    const uint32_t sinks = args->sinks < args->stay ? args->sinks : args->stay;
    int32_t *index = PKV_AT(int32_t, args->index);
    struct pkvi_heap heap = {
        .value = PKV_AT(float, args->scratch), .id = index + sinks, .capacity = args->stay - sinks};
    for (uint32_t i = 0; i < sinks; i++) {
        index[i] = (int32_t)i;
    }
    for (uint32_t key = sinks; key < args->count; key++) {
        pkvi_heap_offer(&heap, sum_of(args, key), (int32_t)key);
    }
    qsort(heap.id, heap.count, sizeof *heap.id, ascending);
    for (uint32_t i = 0; i < args->window; i++) {
        index[args->stay + i] = (int32_t)(args->count + i);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_keep keep = *(const struct pkv_args_keep *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, keep_all, &keep, 1);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_keep_scalar = {
    .op = PKV_OP_KEEP,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_keep),
    .launch = launch,
    .cost = pkvi_cost_keep,
};
