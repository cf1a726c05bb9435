/* append.c: K and V of the step's rows go to their slots. The bytes are the scalar variant's. */
#include "kernels/cost.h"
#include "kernels/cpu/vec.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "kernels/rows.h"

static void store_values(enum pkv_kv_type type, const float *x, uint32_t count, uint8_t *out)
{
    uint32_t i = 0;
    if (type == PKV_KV_F16) {
        for (; i + V16_LANES <= count; i += V16_LANES) {
            v16_to_f16(out + 2 * i, v16_load(x + i));
        }
    } else if (type == PKV_KV_BF16) {
        for (; i + V16_LANES <= count; i += V16_LANES) {
            v16_to_bf16(out + 2 * i, v16_load(x + i));
        }
    } else {
        pkvi_ref_kv_store(type, x, count, out);
        return;
    }
    pkvi_ref_kv_store(type, x + i, count - i, out + 2 * i);
}

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
        store_values(args->kv_type, k + channel, args->head_dim, entry);
        store_values(args->kv_type, v + channel, args->head_dim, entry + entry_bytes / 2);
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

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_append) = {
    .op = PKV_OP_APPEND,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_append),
    .launch = launch,
    .cost = pkvi_cost_append,
};
