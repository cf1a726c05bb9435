/* glu.c: gated activations. Source: Shazeer, arXiv:2002.05202. */
#include "kernels/cost.h"
#include "kernels/cpu/act.h"
#include "kernels/cpu/math.h"
#include "kernels/rows.h"

/* gelu's 0.5 x (1 + tanh(u)) is x sigmoid(2u), which does not cancel. */
PKV_INLINE struct v16 gated(enum pkv_glu kind, struct v16 x, struct v16 up)
{
    struct v16 u = x;
    if (kind == PKV_GLU_GELU) {
        const float twice_sqrt_2_over_pi = 1.5957691f;
        struct v16 cubic = v16_fma(v16_mul(x, x), v16_set1(0.044715f), v16_set1(1.0f));
        u = v16_mul(v16_mul(x, v16_set1(twice_sqrt_2_over_pi)), cubic);
    }
    return v16_mul(v16_mul(x, v16_sigmoid(u)), up);
}

static void glu_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_glu *args = arguments;
    uint64_t at = (uint64_t)row * args->cols;
    const float *gate = PKV_AT(const float, args->gate) + at;
    const float *up = PKV_AT(const float, args->up) + at;
    uint32_t col = 0;
    for (; col + 32 <= args->cols; col += 32) {
        struct v16 low = gated(args->kind, v16_load(gate + col), v16_load(up + col));
        struct v16 high = gated(args->kind, v16_load(gate + col + 16), v16_load(up + col + 16));
        act_put_32(&args->out, at + col, low, high);
    }
    while (col < args->cols) {
        uint32_t count = args->cols - col < 16 ? args->cols - col : 16;
        struct v16 x = v16_load_part(gate + col, count), y = v16_load_part(up + col, count);
        act_put_part(&args->out, at + col, gated(args->kind, x, y), count);
        col += count;
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_glu *glu = args;
    return pkvi_rows_run(native_stream, glu_row, glu, glu->rows, glu->cols);
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_glu) = {
    .op = PKV_OP_GLU,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_glu),
    .launch = launch,
    .cost = pkvi_cost_glu,
};
