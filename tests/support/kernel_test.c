/* kernel_test.c: running one operation in every CPU variant this machine has. */
#include "tests/support/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"
#include "tests/support/simde.h"

#define MAX_THREADS 8

uint32_t pkvt_next_cpu(uint32_t cpu)
{
    do {
        cpu++;
    } while (!(cpu > PKV_CPU_NEON || pkvi_cpu_supports((enum pkv_cpu)cpu)));
    if (cpu == PKVT_CPU_SIMDE && !pkvt_simde_kernel(PKV_OP_LINEAR)) {
        cpu++;
    }
    return cpu;
}

void pkvt_run(uint32_t cpu, uint32_t op, const void *args, uint32_t threads)
{
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
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
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
    act.scale = q8 ? pkvi_addr(pkvt_alloc(values / 32 * 4)) : 0;
    act.sum = q8 ? pkvi_addr(pkvt_alloc(values / 16 * 2)) : 0;
    return act;
}

void pkvt_act_free(struct pkv_act *act)
{
    free(PKV_AT(void, act->f32));
    free(PKV_AT(void, act->q8));
    free(PKV_AT(void, act->scale));
    free(PKV_AT(void, act->sum));
    *act = (struct pkv_act){0};
}

static void assert_block(const float *x, const int8_t *q8, float scale, const int16_t *sum)
{
    float max = 0;
    int total[2] = {0, 0};
    for (uint32_t i = 0; i < 32; i++) {
        max = fmaxf(max, fabsf(x[i]));
        total[i / 16] += q8[i];
    }
    assert_true(scale == max / 127.0f);
    for (uint32_t i = 0; i < 32; i++) {
        assert_true(fabsf((float)q8[i] * scale - x[i]) <= 0.5001f * scale);
    }
    assert_int_equal(sum[0], total[0]);
    assert_int_equal(sum[1], total[1]);
}

void pkvt_assert_quantised(const struct pkv_act *act, const float *values, uint32_t rows)
{
    for (uint64_t b = 0; b < (uint64_t)rows * act->cols / 32; b++) {
        assert_block(values + 32 * b, PKV_AT(const int8_t, act->q8) + 32 * b,
                     PKV_AT(const float, act->scale)[b], PKV_AT(const int16_t, act->sum) + 2 * b);
    }
}
