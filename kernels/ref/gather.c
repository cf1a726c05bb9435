/* gather.c: rows move up in place, plain C. A unit is some columns: rows follow each other in it,
 * so that none is overwritten before it has moved. */
#include <string.h>

#include "kernels/addr.h"
#include "kernels/cost.h"
#include "runtime/base/thread.h"

#define UNIT_COLS 256u

static void gather_unit(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_gather *args = context;
    const uint32_t first = number * UNIT_COLS, left = args->cols - first;
    const uint32_t cols = left < UNIT_COLS ? left : UNIT_COLS;
    const int32_t *index = PKV_AT(const int32_t, args->index);
    float *x = PKV_AT(float, args->x) + first;
    for (uint32_t i = 0; i < args->rows; i++) {
        if ((uint32_t)index[i] != i) {
            memcpy(x + (uint64_t)i * args->cols, x + (uint64_t)(uint32_t)index[i] * args->cols,
                   cols * sizeof *x);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_gather gather = *(const struct pkv_args_gather *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, gather_unit, &gather,
                  (gather.cols + UNIT_COLS - 1) / UNIT_COLS);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_gather_scalar = {
    .op = PKV_OP_GATHER,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_gather),
    .launch = launch,
    .cost = pkvi_cost_gather,
};
