/* embed.c: rows of the embedding table, plain C. */
#include <string.h>

#include "kernels/addr.h"
#include "kernels/linear_plan.h"
#include "kernels/pack.h"
#include "runtime/base/thread.h"

static void run_row(void *context, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_embed *args = context;
    const uint32_t width = args->table.cols;
    float *x = PKV_AT(float, args->x) + (uint64_t)row * width;
    pkvi_pack_dequantize_row(&args->table, (uint32_t)PKV_AT(const int32_t, args->ids)[row], x);
    for (uint32_t i = 0; i < width; i++) {
        x[i] *= args->scale;
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_embed embed;
    memcpy(&embed, args, sizeof embed);
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, run_row, &embed,
                  embed.rows);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_embed_scalar = {
    .op = PKV_OP_EMBED,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_embed),
    .launch = launch,
    .cost = pkvi_cost_embed,
};
