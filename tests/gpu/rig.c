/* rig.c: see rig.h. */
#include "tests/gpu/rig.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "runtime/base/clock.h"
#include "runtime/device/device.h"

#define FILL_BYTES ((uint64_t)1 << 20)

void rig_check(const struct rig *rig, enum pkv_status status, const char *what)
{
    if (status != PKV_OK) {
        fprintf(stderr, "%s: %s: %s\n", rig->program, what, pkv_error_text());
        exit(1);
    }
}

pkv_addr rig_alloc(struct rig *rig, enum pkv_mem mem, uint64_t bytes)
{
    pkv_addr addr = 0;
    RIG(rig, pkvi_mem_alloc(rig->device, mem, bytes, &addr));
    return addr;
}

void rig_fill(struct rig *rig, pkv_addr addr, uint64_t bytes, bool is_zero)
{
    const pkv_addr source = rig_alloc(rig, PKV_MEM_PINNED, FILL_BYTES);
    uint16_t *value = (uint16_t *)(uintptr_t)source;
    uint32_t random = 1;
    for (uint64_t i = 0; i < FILL_BYTES / 2; i++) {
        random = random * 1664525u + 1013904223u;
        value[i] = is_zero ? 0 : (uint16_t)(0x3800u | (random >> 16 & 0x83ffu));
    }
    for (uint64_t at = 0; at < bytes; at += FILL_BYTES) {
        const uint64_t left = bytes - at;
        const struct pkv_span span = {addr + at, source, left < FILL_BYTES ? left : FILL_BYTES};
        RIG(rig, pkvi_copy_async(rig->compute, &span, 1));
    }
    RIG(rig, pkvi_stream_sync(rig->compute));
    pkvi_mem_free(rig->device, PKV_MEM_PINNED, source);
}

static void open_gemv(struct rig *rig, uint32_t rows, uint32_t cols)
{
    const uint64_t weights = pkvi_pack_bytes(PKV_W_Q4_K, rows, cols);
    const uint64_t acts = cols, blocks = cols / PKV_ACT_BLOCK * sizeof(struct pkv_act_block);
    const pkv_addr memory = rig_alloc(rig, PKV_MEM_DEVICE, weights + acts + blocks + 4ull * rows);
    rig_fill(rig, memory, weights, false);
    rig_fill(rig, memory + weights, acts + blocks + 4ull * rows, true);
    rig->gemv = pkvi_device_kernel(rig->device, PKV_OP_LINEAR);
    rig->gemv_bytes = weights;
    rig->gemv_args = (struct pkv_args_linear){
        .x = {.cols = cols, .q8 = memory + weights, .block = memory + weights + acts},
        .rows = 1,
        .part_count = 1,
        .part = {{.w = {.type = PKV_W_Q4_K, .rows = rows, .cols = cols, .data = memory},
                  .y = memory + weights + acts + blocks,
                  .y_stride = rows}}};
}

void rig_open(struct rig *rig, const char *program, uint32_t gemv_rows, uint32_t gemv_cols)
{
    *rig = (struct rig){.program = program, .opened_ns = pkvi_clock_ns()};
    const enum pkv_status status = pkv_device_open("cuda", NULL, &rig->device);
    if (status == PKV_ERR_UNSUPPORTED) {
        fprintf(stderr, "%s: SKIP: %s\n", program, pkv_error_text());
        exit(77);
    }
    rig_check(rig, status, "the device");
    RIG(rig, pkvi_stream_open(rig->device, PKV_COMPUTE, NULL, &rig->compute));
    RIG(rig, pkvi_stream_open(rig->device, PKV_LOAD, NULL, &rig->normal));
    RIG(rig, pkvi_stream_open(rig->device, PKV_RECALL, NULL, &rig->high));
    RIG(rig, pkvi_event_open(rig->device, true, &rig->begin));
    RIG(rig, pkvi_event_open(rig->device, true, &rig->end));
    RIG(rig, pkvi_event_open(rig->device, true, &rig->beside_begin));
    RIG(rig, pkvi_event_open(rig->device, true, &rig->beside_end));
    open_gemv(rig, gemv_rows, gemv_cols);
}

void rig_close(struct rig *rig)
{
    pkvi_event_close(rig->begin);
    pkvi_event_close(rig->end);
    pkvi_event_close(rig->beside_begin);
    pkvi_event_close(rig->beside_end);
    pkvi_stream_close(rig->compute);
    pkvi_stream_close(rig->normal);
    pkvi_stream_close(rig->high);
    pkv_device_close(rig->device); /* frees what was allocated */
}

double rig_seconds(const struct rig *rig)
{
    return (double)(pkvi_clock_ns() - rig->opened_ns) / 1e9;
}

double rig_us(struct rig *rig, struct pkv_event *begin, struct pkv_event *end)
{
    uint64_t ns = 0;
    RIG(rig, pkvi_event_sync(end));
    RIG(rig, pkvi_event_elapsed(begin, end, &ns));
    return (double)ns / 1e3;
}

void rig_enqueue_gemvs(struct rig *rig, uint32_t count)
{
    RIG(rig, pkvi_event_record(rig->beside_begin, rig->compute));
    for (uint32_t i = 0; i < count; i++) {
        RIG(rig, pkvi_launch(rig->compute, rig->gemv, &rig->gemv_args));
    }
    RIG(rig, pkvi_event_record(rig->beside_end, rig->compute));
}

double rig_gemv_us(struct rig *rig, uint32_t count)
{
    double us = 0;
    for (int i = 0; i < 2; i++) { /* the first warms up */
        rig_enqueue_gemvs(rig, count);
        us = rig_us(rig, rig->beside_begin, rig->beside_end) / count;
    }
    return us > 0 ? us : 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rig_print_samples(double *gbps, uint32_t count)
{
    printf("\"samples_gbps\":[");
    for (uint32_t i = 0; i < count; i++) {
        printf("%s%.4f", i > 0 ? "," : "", gbps[i]);
    }
    qsort(gbps, count, sizeof *gbps, compare);
    printf("],\"median_gbps\":%.4f", gbps[count / 2]);
    return gbps[count / 2];
}

uint64_t rig_number(const struct rig *rig, const char *option, const char *text, uint64_t least,
                    uint64_t most)
{
    char *end = NULL;
    const uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "%s: %s: a number from %" PRIu64 " to %" PRIu64 ", not '%s'\n",
                rig->program, option, least, most, text);
        exit(2);
    }
    return value;
}
