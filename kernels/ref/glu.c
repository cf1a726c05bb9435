/* glu.c: gated activations, plain reference. Source: Shazeer, arXiv:2002.05202. */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

static float gelu(float x)
{
    const float sqrt_2_over_pi = 0.79788456f;
    return 0.5f * x * (1.0f + tanhf(sqrt_2_over_pi * x * (1.0f + 0.044715f * x * x)));
}

static void glu_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_glu *args = arguments;
    uint64_t at = (uint64_t)row * args->cols;
    const float *gate = PKV_AT(const float, args->gate) + at;
    const float *up = PKV_AT(const float, args->up) + at;
    for (uint32_t col = 0; col < args->cols; col += PKV_ACT_BLOCK) {
        uint32_t count = args->cols - col < PKV_ACT_BLOCK ? args->cols - col : PKV_ACT_BLOCK;
        float y[PKV_ACT_BLOCK];
        for (uint32_t i = 0; i < count; i++) {
            float x = gate[col + i];
            y[i] = (args->kind == PKV_GLU_SILU ? silu(x) : gelu(x)) * up[col + i];
        }
        pkvi_ref_act_put(&args->out, row, col, y, count);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_glu *glu = args;
    return pkvi_rows_run(native_stream, glu_row, glu, glu->rows, glu->cols);
}

const struct pkv_kernel pkvi_kernel_glu_scalar = {
    .op = PKV_OP_GLU,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_glu),
    .launch = launch,
    .cost = pkvi_cost_glu,
};
