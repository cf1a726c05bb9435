/*
 * rig.h: what programs that measure a card share: the cuda device with its streams, time between
 * events, our own GEMV to run beside something, JSON lines. A call that fails ends the program: 77
 * where there is no device, else 1.
 */
#ifndef PKV_TEST_GPU_RIG_H
#define PKV_TEST_GPU_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "pivotkv/impl/device_ops.h"

#define RIG_SAMPLES_MOST 64u

struct rig {
    const char *program;
    struct pkv_device *device;
    /* compute and normal share the lowest priority, high has the highest. */
    struct pkv_stream *compute, *normal, *high;
    struct pkv_event *begin, *end, *beside_begin, *beside_end;
    /* y = W x with W Q4_K [rows][cols] in device memory */
    const struct pkv_kernel *gemv;
    struct pkv_args_linear gemv_args;
    uint64_t gemv_bytes;
    uint64_t opened_ns;
};

void rig_check(const struct rig *rig, enum pkv_status status, const char *what);
#define RIG(rig, call) rig_check(rig, call, #call)

/* Weights are noise and the vector zero: a GEMV's time depends on neither. */
void rig_open(struct rig *rig, const char *program, uint32_t gemv_rows, uint32_t gemv_cols);
void rig_close(struct rig *rig);
double rig_seconds(const struct rig *rig); /* since it was opened */

pkv_addr rig_alloc(struct rig *rig, enum pkv_mem mem, uint64_t bytes);
/* Device memory of zeros, or of f16 of either sign from 0.5 to 1: zeros make a GPU faster. */
void rig_fill(struct rig *rig, pkv_addr addr, uint64_t bytes, bool is_zero);
/* Waits for the later one. */
double rig_us(struct rig *rig, struct pkv_event *begin, struct pkv_event *end);
/* Microseconds a GEMV, of `count` in a row on an idle device. */
double rig_gemv_us(struct rig *rig, uint32_t count);
void rig_enqueue_gemvs(struct rig *rig, uint32_t count);

/* `"samples_gbps":[...],"median_gbps":...`; sorts the samples, returns the median. */
double rig_print_samples(double *gbps, uint32_t count);

/* An option's number; ends the program with status 2 where it is none from `least` to `most`. */
uint64_t rig_number(const struct rig *rig, const char *option, const char *text, uint64_t least,
                    uint64_t most);

#endif
