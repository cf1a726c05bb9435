/* quantize.c: rows of activations to 8 bits, plain C. */
#include "kernels/ref/quantize.h"

#include <string.h>

#include "kernels/addr.h"
#include "kernels/linear_plan.h"
#include "runtime/base/thread.h"

static void run_row(void *context, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_quantize *args = context;
    const struct pkv_act *out = &args->out;
    const uint64_t first = (uint64_t)row * args->cols;
    const float *x = PKV_AT(const float, args->x) + first;
    if (out->f32 != 0 && out->f32 != args->x) {
        memcpy(PKV_AT(float, out->f32) + first, x, args->cols * sizeof *x);
    }
    for (uint32_t k = 0; out->q8 != 0 && k < args->cols; k += 32) {
        pkvi_ref_quantize_block(x + k, PKV_AT(int8_t, out->q8) + first + k,
                                PKV_AT(struct pkv_act_block, out->block) + (first + k) / 32);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_quantize quantize;
    memcpy(&quantize, args, sizeof quantize);
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, run_row, &quantize,
                  quantize.rows);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_quantize_scalar = {
    .op = PKV_OP_QUANTIZE,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_quantize),
    .launch = launch,
    .cost = pkvi_cost_quantize,
};
