/* append.c: K and V of the step's rows go to their slots, plain reference. */
#include <string.h>

#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "kernels/rows.h"

static void append_row(const struct pkv_args_append *args, uint32_t row)
{
    const struct pkv_row_span *span =
        pkvi_span_of_row(PKV_AT(const struct pkv_row_span, args->spans), row);
    const struct pkv_kv_view *view = PKV_AT(const struct pkv_kv_view, args->views) + span->view;
    uint32_t position = span->first_position + (row - span->first_row);
    uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const float *k = PKV_AT(const float, args->k) + (uint64_t)row * args->k_stride;
    const float *v = PKV_AT(const float, args->v) + (uint64_t)row * args->v_stride;
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        uint8_t *entry = pkvi_kv_entry(view, head, position, entry_bytes);
        uint32_t channel = head * args->head_dim;
        pkvi_ref_kv_store(args->kv_type, k + channel, args->head_dim, entry);
        pkvi_ref_kv_store(args->kv_type, v + channel, args->head_dim, entry + entry_bytes / 2);
    }
}

static uint32_t row_floats(const struct pkv_args_append *args)
{
    return 2 * args->kv_heads * args->head_dim;
}

static void append_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_append *args = context;
    struct pkvi_rows rows = pkvi_rows_of_unit(unit, row_floats(args), args->rows);
    for (uint32_t row = rows.begin; row < rows.end; row++) {
        append_row(args, row);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_append *append = args;
    return pkvi_rows_run(native_stream, append_unit, append, append->rows, row_floats(append));
}

const struct pkv_kernel pkvi_kernel_append_scalar = {
    .op = PKV_OP_APPEND,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_append),
    .launch = launch,
    .cost = pkvi_cost_append,
};
