/* softcap.c: soft-capping of logits, plain reference. Source: Gemma 2, arXiv:2408.00118. */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static void softcap_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_softcap *args = context;
    struct pkvi_rows rows = pkvi_rows_of_unit(unit, args->cols, args->rows);
    float *x = PKV_AT(float, args->x);
    for (uint64_t i = (uint64_t)rows.begin * args->cols; i < (uint64_t)rows.end * args->cols; i++) {
        x[i] = args->cap * tanhf(x[i] / args->cap);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_softcap *softcap = args;
    return pkvi_rows_run(native_stream, softcap_unit, softcap, softcap->rows, softcap->cols);
}

const struct pkv_kernel pkvi_kernel_softcap_scalar = {
    .op = PKV_OP_SOFTCAP,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_softcap),
    .launch = launch,
    .cost = pkvi_cost_softcap,
};
