/* topk.c: the largest values of each row and the row's log-sum-exp. */
#include <math.h>

#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cpu/math.h"
#include "kernels/heap.h"
#include "kernels/rows.h"

/* Values looked at together: nearly all blocks hold nothing for the heap. */
#define BLOCK 64u

static void offer_all(struct pkvi_heap *heap, const float *x, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        pkvi_heap_offer(heap, isnan(x[i]) ? -INFINITY : x[i], (int32_t)i);
    }
}

PKV_INLINE float largest_of_block(const float *x)
{
    struct v16 a = v16_max(v16_load(x), v16_load(x + 16));
    struct v16 b = v16_max(v16_load(x + 32), v16_load(x + 48));
    return v16_largest(v16_max(a, b));
}

/* Sum of exp(x - max): blocks in float32, their sums in double. */
static double sum_exp(const float *x, uint32_t count, float max)
{
    double total = 0;
    struct v16 shift = v16_set1(-max);
    uint32_t i = 0;
    while (i + V16_LANES <= count) {
        struct v16 sum = v16_set1(0.0f);
        for (uint32_t n = 0; n < BLOCK / V16_LANES && i + V16_LANES <= count; n++) {
            sum = v16_add(sum, v16_exp(v16_add(v16_load(x + i), shift)));
            i += V16_LANES;
        }
        total += (double)v16_sum(sum);
    }
    for (; i < count; i++) {
        total += exp((double)x[i] - (double)max);
    }
    return total;
}

static void topk_row(const void *arguments, uint32_t row)
{
    const struct pkv_args_topk *args = arguments;
    const float *x = PKV_AT(const float, args->x) + (uint64_t)row * args->cols;
    struct pkvi_heap heap = {.value = PKV_AT(float, args->values) + (uint64_t)row * args->k,
                             .id = PKV_AT(int32_t, args->ids) + (uint64_t)row * args->k,
                             .capacity = args->k};
    float max = -INFINITY;
    uint32_t i = 0;
    for (; i + BLOCK <= args->cols; i += BLOCK) {
        float largest = largest_of_block(x + i);
        max = largest > max ? largest : max;
        if (heap.count < heap.capacity || largest > heap.value[0]) {
            offer_all(&heap, x, i, i + BLOCK);
        }
    }
    offer_all(&heap, x, i, args->cols);
    for (; i < args->cols; i++) {
        max = x[i] > max ? x[i] : max;
    }
    pkvi_heap_sort(&heap);
    if (args->lse) {
        double sum = sum_exp(x, args->cols, max);
        PKV_AT(float, args->lse)[row] = (float)((double)max + log(sum));
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_topk *topk = args;
    return pkvi_rows_run(native_stream, topk_row, topk, topk->rows, topk->cols);
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_topk) = {
    .op = PKV_OP_TOPK,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_topk),
    .launch = launch,
    .cost = pkvi_cost_topk,
};
