/* norm.c: RMS norm of rows, plain reference. Source: Zhang, Sennrich, arXiv:1910.07467. */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static void norm_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_norm *args = arguments;
    const int32_t *index = PKV_AT(const int32_t, args->row_index);
    uint64_t source = index ? (uint64_t)index[row] : row;
    const float *x = PKV_AT(const float, args->x) + source * args->cols;
    const float *weight = PKV_AT(const float, args->weight);
    float *residual = PKV_AT(float, args->residual);
    const float *shift = PKV_AT(const float, args->shift);
    float scale = pkvi_ref_rms_scale(x, shift, args->cols, args->eps);
    for (uint32_t col = 0; col < args->cols; col += PKV_ACT_BLOCK) {
        uint32_t count = args->cols - col < PKV_ACT_BLOCK ? args->cols - col : PKV_ACT_BLOCK;
        float y[PKV_ACT_BLOCK];
        for (uint32_t i = 0; i < count; i++) {
            y[i] = (shift ? x[col + i] + shift[col + i] : x[col + i]) * scale * weight[col + i];
        }
        if (residual) {
            for (uint32_t i = 0; i < count; i++) {
                residual[(uint64_t)row * args->cols + col + i] += y[i];
            }
        } else {
            pkvi_ref_act_put(&args->out, row, col, y, count);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_norm *norm = args;
    return pkvi_rows_run(native_stream, norm_row, norm, norm->rows, norm->cols);
}

const struct pkv_kernel pkvi_kernel_norm_scalar = {
    .op = PKV_OP_NORM,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_norm),
    .launch = launch,
    .cost = pkvi_cost_norm,
};
