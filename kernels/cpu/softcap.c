/* softcap.c: soft-capping of logits. Source: Gemma 2, arXiv:2408.00118. */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cpu/math.h"
#include "kernels/rows.h"

PKV_INLINE struct v16 capped(struct v16 x, struct v16 cap)
{
    return v16_mul(cap, v16_tanh(v16_div(x, cap)));
}

static void softcap_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_softcap *args = arguments;
    float *x = PKV_AT(float, args->x) + (uint64_t)row * args->cols;
    struct v16 cap = v16_set1(args->cap);
    uint32_t i = 0;
    for (; i + V16_LANES <= args->cols; i += V16_LANES) {
        v16_store(x + i, capped(v16_load(x + i), cap));
    }
    if (i < args->cols) {
        uint32_t left = args->cols - i;
        v16_store_part(x + i, capped(v16_load_part(x + i, left), cap), left);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_softcap *softcap = args;
    return pkvi_rows_run(native_stream, softcap_row, softcap, softcap->rows, softcap->cols);
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_softcap) = {
    .op = PKV_OP_SOFTCAP,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_softcap),
    .launch = launch,
    .cost = pkvi_cost_softcap,
};
