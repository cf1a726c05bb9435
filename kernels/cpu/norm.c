/* norm.c: RMS norm of rows. Source: Zhang, Sennrich, arXiv:1910.07467. */
#include "kernels/cpu/norm.h"

#include "kernels/cost.h"
#include "kernels/cpu/act.h"
#include "kernels/rows.h"

struct row {
    const float *x, *weight;
    const float *shift; /* or NULL */
    float *residual;    /* or NULL */
    struct v16 scale;
};

PKV_INLINE struct v16 norm_part(const struct row *row, uint32_t col, uint32_t count)
{
    bool whole = count == V16_LANES;
    struct v16 x = shifted(row->x, row->shift, col, count);
    struct v16 w = whole ? v16_load(row->weight + col) : v16_load_part(row->weight + col, count);
    struct v16 y = v16_mul(v16_mul(x, row->scale), w);
    if (row->residual && whole) {
        v16_store(row->residual + col, v16_add(v16_load(row->residual + col), y));
    } else if (row->residual) {
        y = v16_add(v16_load_part(row->residual + col, count), y);
        v16_store_part(row->residual + col, y, count);
    }
    return y;
}

static void norm_row(const void *arguments, uint32_t number)
{
    const struct pkv_args_norm *args = arguments;
    const int32_t *index = PKV_AT(const int32_t, args->row_index);
    uint64_t source = index ? (uint64_t)index[number] : number;
    uint64_t at = (uint64_t)number * args->cols;
    struct row row = {.x = PKV_AT(const float, args->x) + source * args->cols,
                      .weight = PKV_AT(const float, args->weight),
                      .shift = PKV_AT(const float, args->shift)};
    row.residual = args->residual ? PKV_AT(float, args->residual) + at : NULL;
    row.scale = v16_set1(rms_scale(row.x, row.shift, args->cols, args->eps));
    uint32_t col = 0;
    for (; col + 32 <= args->cols; col += 32) {
        struct v16 low = norm_part(&row, col, 16), high = norm_part(&row, col + 16, 16);
        if (!row.residual) {
            act_put_32(&args->out, at + col, low, high);
        }
    }
    while (col < args->cols) {
        uint32_t count = args->cols - col < 16 ? args->cols - col : 16;
        struct v16 part = norm_part(&row, col, count);
        if (!row.residual) {
            act_put_part(&args->out, at + col, part, count);
        }
        col += count;
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_norm *norm = args;
    return pkvi_rows_run(native_stream, norm_row, norm, norm->rows, norm->cols);
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_norm) = {
    .op = PKV_OP_NORM,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_norm),
    .launch = launch,
    .cost = pkvi_cost_norm,
};
