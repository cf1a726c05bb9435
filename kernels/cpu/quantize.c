/* quantize.c: rows of activations to 8 bits. */
#include "kernels/cpu/quantize.h"

#include "kernels/addr.h"
#include "kernels/linear_plan.h"
#include "runtime/base/thread.h"

enum { UNIT_VALUES = 16384 };

static uint32_t rows_in_unit(const struct pkv_args_quantize *args)
{
    return args->cols < UNIT_VALUES ? UNIT_VALUES / (args->cols + 1) : 1;
}

static void run_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_quantize *args = context;
    const struct pkv_act *out = &args->out;
    const uint32_t rows = rows_in_unit(args);
    const uint32_t begin = unit * rows, end = args->rows - begin < rows ? args->rows : begin + rows;
    for (uint32_t row = begin; row < end; row++) {
        const uint64_t first = (uint64_t)row * args->cols;
        const float *x = PKV_AT(const float, args->x) + first;
        if (out->f32 != 0 && out->f32 != args->x) {
            memcpy(PKV_AT(float, out->f32) + first, x, args->cols * sizeof *x);
        }
        if (out->q8 != 0) {
            pkvi_quantize_row(x, args->cols, PKV_AT(int8_t, out->q8) + first,
                              PKV_AT(struct pkv_act_block, out->block) + first / 32);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_quantize quantize;
    memcpy(&quantize, args, sizeof quantize);
    const uint32_t rows = rows_in_unit(&quantize);
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, run_unit, &quantize,
                  (quantize.rows + rows - 1) / rows);
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_quantize) = {
    .op = PKV_OP_QUANTIZE,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_quantize),
    .launch = launch,
    .cost = pkvi_cost_quantize,
};
