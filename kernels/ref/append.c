/* append.c: K and V of the step's rows go to their slots, plain reference. */
#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "kernels/rows.h"

static void append_row(const void *args, uint32_t row)
{
    pkvi_append_row(args, row, pkvi_ref_kv_store);
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_append *append = args;
    return pkvi_rows_run(native_stream, append_row, append, append->rows,
                         pkvi_append_floats(append));
}

const struct pkv_kernel pkvi_kernel_append_scalar = {
    .op = PKV_OP_APPEND,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_append),
    .launch = launch,
    .cost = pkvi_cost_append,
};
