/* topk.c: the largest values of each row and the row's log-sum-exp, plain reference. */
#include <math.h>

#include "kernels/cost.h"
#include "kernels/heap.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

static void topk_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_topk *args = arguments;
    const float *x = PKV_AT(const float, args->x) + (uint64_t)row * args->cols;
    struct pkvi_heap heap = {.value = PKV_AT(float, args->values) + (uint64_t)row * args->k,
                             .id = PKV_AT(int32_t, args->ids) + (uint64_t)row * args->k,
                             .capacity = args->k};
    float max = -INFINITY;
    for (uint32_t i = 0; i < args->cols; i++) {
        float value = isnan(x[i]) ? -INFINITY : x[i];
        max = value > max ? value : max;
        pkvi_heap_offer(&heap, value, (int32_t)i);
    }
    pkvi_heap_sort(&heap);
    if (args->lse) {
        double sum = 0;
        for (uint32_t i = 0; i < args->cols; i++) {
            sum += exp((double)x[i] - (double)max);
        }
        PKV_AT(float, args->lse)[row] = (float)((double)max + log(sum));
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_topk *topk = args;
    return pkvi_rows_run(native_stream, topk_row, topk, topk->rows, topk->cols);
}

const struct pkv_kernel pkvi_kernel_topk_scalar = {
    .op = PKV_OP_TOPK,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_topk),
    .launch = launch,
    .cost = pkvi_cost_topk,
};
