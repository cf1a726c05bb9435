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

static void append_row(const void *args, uint32_t row)
{
    pkvi_append_row(args, row, store_values);
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_append *append = args;
    return pkvi_rows_run(native_stream, append_row, append, append->rows,
                         pkvi_append_floats(append));
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_append) = {
    .op = PKV_OP_APPEND,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_append),
    .launch = launch,
    .cost = pkvi_cost_append,
};
