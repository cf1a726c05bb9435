/* kernel_test.c: running one operation in every variant this machine has. */
#include "tests/support/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"
#include "tests/support/cuda_variant.h"
#include "tests/support/simde.h"

#define MAX_THREADS 8

uint32_t pkvt_next_cpu(uint32_t cpu)
{
    if (pkvt_cuda_here()) {
        return cpu < PKVT_CPU_CUDA ? PKVT_CPU_CUDA : PKVT_CPU_CUDA + 1;
    }
    do {
        cpu++;
    } while (!(cpu > PKV_CPU_NEON || pkvi_cpu_supports((enum pkv_cpu)cpu)));
    if (cpu == PKVT_CPU_SIMDE && !pkvt_simde_kernel(PKV_OP_LINEAR)) {
        cpu++;
    }
    return cpu == PKVT_CPU_CUDA ? cpu + 1 : cpu;
}

void pkvt_run(uint32_t cpu, uint32_t op, const void *args, uint32_t threads)
{
    if (cpu == PKVT_CPU_CUDA) {
        pkvt_cuda_run(op, args);
        return;
    }
    static struct pkvi_pool *pools[MAX_THREADS + 1];
    assert_in_range(threads, 1, MAX_THREADS);
    if (!pools[threads]) {
        assert_ok(pkvi_pool_open(threads, &pools[threads]));
    }
    struct pkvi_cpu_stream stream = {.pool = pools[threads]};
    const struct pkv_kernel *kernel =
        cpu == PKVT_CPU_SIMDE && pkvt_simde_kernel(op)
            ? pkvt_simde_kernel(op)
            : pkvi_cpu_kernel(cpu == PKVT_CPU_SIMDE ? PKV_CPU_SCALAR : (enum pkv_cpu)cpu, op);
    assert_non_null(kernel);
    assert_int_equal(kernel->op, op);
    assert_ok(kernel->launch(&stream, args));
}

void *pkvt_alloc(uint64_t bytes)
{
    void *memory =
        pkvt_cuda_here() ? pkvt_cuda_alloc(bytes) : aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) {
        fail_msg("no memory for %lu bytes", (unsigned long)bytes);
        return NULL;
    }
    memset(memory, 0xff, bytes);
    return memory;
}

float *pkvt_normal(struct pkvt_rng *rng, uint64_t count, float scale)
{
    float *values = pkvt_alloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = scale * pkvt_rng_normal(rng);
    }
    return values;
}

struct pkv_act pkvt_act(uint32_t rows, uint32_t cols, bool f32, bool q8)
{
    uint64_t values = (uint64_t)rows * cols;
    struct pkv_act act = {.cols = cols};
    act.f32 = f32 ? pkvi_addr(pkvt_alloc(4 * values)) : 0;
    act.q8 = q8 ? pkvi_addr(pkvt_alloc(values)) : 0;
    act.block = q8 ? pkvi_addr(pkvt_alloc(values / 32 * sizeof(struct pkv_act_block))) : 0;
    return act;
}

void pkvt_act_free(struct pkv_act *act)
{
    free(PKV_AT(void, act->f32));
    free(PKV_AT(void, act->q8));
    free(PKV_AT(void, act->block));
    *act = (struct pkv_act){0};
}

/* Every value within half a step; the step is that of the second largest magnitude. */
static void assert_block(const float *x, const int8_t *q8, const struct pkv_act_block *block)
{
    float top = 0.0f, second = 0.0f;
    int sum[2] = {0, 0};
    for (uint32_t i = 0; i < 32; i++) {
        const float magnitude = fabsf(x[i]);
        second = magnitude > top ? top : fmaxf(second, magnitude);
        top = fmaxf(top, magnitude);
        const int q = q8[i] + (i == block->channel ? block->spill : 0);
        assert_true(abs(q8[i]) <= 127 && abs(block->spill) <= PKV_ACT_SPILL_MAX);
        assert_true(fabsf((float)q * block->scale - x[i]) <=
                    0.5001f * block->scale + 1e-6f * magnitude);
        sum[i / 16] += q;
    }
    assert_true(block->scale == fmaxf(second / 127.0f, top / (127.0f + PKV_ACT_SPILL_MAX)) ||
                top < 1e-30f);
    assert_int_equal(block->sum[0], sum[0]);
    assert_int_equal(block->sum[1], sum[1]);
}

void pkvt_assert_quantised(const struct pkv_act *act, const float *values, uint32_t rows)
{
    for (uint64_t b = 0; b < (uint64_t)rows * act->cols / 32; b++) {
        assert_block(values + 32 * b, PKV_AT(const int8_t, act->q8) + 32 * b,
                     PKV_AT(const struct pkv_act_block, act->block) + b);
    }
}
