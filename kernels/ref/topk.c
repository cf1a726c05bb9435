/* topk.c: the largest values of each row and the row's log-sum-exp, plain reference. */
#include <math.h>

#include "kernels/cost.h"
#include "kernels/ref/ref.h"
#include "kernels/rows.h"

/* The best so far as a heap whose root is the worst of them. */
struct heap {
    float *value;
    int32_t *id;
    uint32_t count;
};

static bool worse(const struct heap *heap, uint32_t a, uint32_t b)
{
    return heap->value[a] < heap->value[b] ||
           (heap->value[a] == heap->value[b] && heap->id[a] > heap->id[b]);
}

static void swap(const struct heap *heap, uint32_t a, uint32_t b)
{
    float value = heap->value[a];
    int32_t id = heap->id[a];
    heap->value[a] = heap->value[b];
    heap->id[a] = heap->id[b];
    heap->value[b] = value;
    heap->id[b] = id;
}

static void sift_down(const struct heap *heap, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->count) {
            return;
        }
        if (child + 1 < heap->count && worse(heap, child + 1, child)) {
            child++;
        }
        if (!worse(heap, child, at)) {
            return;
        }
        swap(heap, child, at);
        at = child;
    }
}

static void sift_up(const struct heap *heap, uint32_t at)
{
    while (at > 0 && worse(heap, at, (at - 1) / 2)) {
        swap(heap, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}

/* Ids come in ascending order, so an equal value never displaces what is there. */
static void offer(struct heap *heap, uint32_t capacity, float value, int32_t id)
{
    if (heap->count < capacity) {
        heap->value[heap->count] = value;
        heap->id[heap->count] = id;
        sift_up(heap, heap->count++);
    } else if (capacity > 0 && value > heap->value[0]) {
        heap->value[0] = value;
        heap->id[0] = id;
        sift_down(heap, 0);
    }
}

/* Taking the worst off to the end, again and again, leaves a descending row. */
static void sort(struct heap heap)
{
    while (heap.count > 1) {
        heap.count--;
        swap(&heap, 0, heap.count);
        sift_down(&heap, 0);
    }
}

static void topk_row(const struct pkv_args_topk *args, uint32_t row)
{
    const float *x = PKV_AT(const float, args->x) + (uint64_t)row * args->cols;
    struct heap heap = {.value = PKV_AT(float, args->values) + (uint64_t)row * args->k,
                        .id = PKV_AT(int32_t, args->ids) + (uint64_t)row * args->k};
    float max = -INFINITY;
    for (uint32_t i = 0; i < args->cols; i++) {
        float value = isnan(x[i]) ? -INFINITY : x[i];
        max = value > max ? value : max;
        offer(&heap, args->k, value, (int32_t)i);
    }
    sort(heap);
    if (args->lse) {
        double sum = 0;
        for (uint32_t i = 0; i < args->cols; i++) {
            sum += exp((double)x[i] - (double)max);
        }
        PKV_AT(float, args->lse)[row] = (float)((double)max + log(sum));
    }
}

static void topk_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_topk *args = context;
    struct pkvi_rows rows = pkvi_rows_of_unit(unit, args->cols, args->rows);
    for (uint32_t row = rows.begin; row < rows.end; row++) {
        topk_row(args, row);
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    const struct pkv_args_topk *topk = args;
    return pkvi_rows_run(native_stream, topk_unit, topk, topk->rows, topk->cols);
}

const struct pkv_kernel pkvi_kernel_topk_scalar = {
    .op = PKV_OP_TOPK,
    .variant = "scalar",
    .args_bytes = sizeof(struct pkv_args_topk),
    .launch = launch,
    .cost = pkvi_cost_topk,
};
