/* softcap.c: soft-capping of logits, plain reference. Source: Gemma 2, arXiv:2408.00118. */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static void softcap_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_softcap *args = arguments;
    float *x = PKV_AT(float, args->x) + (uint64_t)row * args->cols;
    for (uint32_t i = 0; i < args->cols; i++) {
        x[i] = args->cap * tanhf(x[i] / args->cap);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_softcap *softcap = args;
    return pkvi_rows_run(native_stream, softcap_row, softcap, softcap->rows, softcap->cols);
}

const struct pkv_kernel pkvi_kernel_softcap_scalar = {
    .op = PKV_OP_SOFTCAP,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_softcap),
    .launch = launch,
    .cost = pkvi_cost_softcap,
};
