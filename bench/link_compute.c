/*
 * link_compute.c: owns the kernels that are timed, alone and beside copies: matrices times vectors,
 * one that must be read from device memory (its bytes), two that stay in caches (their operations),
 * and a launch that does next to nothing. Everything is zero: no kernel minds.
 */
#include "bench/link.h"

#include <string.h>

#include "kernels/addr.h"
#include "kernels/pack.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

#define COLS 4096u
#define ROWS 32u           /* rows of activations where operations count */
#define INT8_OUTPUTS 1024u /* 4.3 MiB */
#define F32_OUTPUTS 512u   /* 8 MiB */
#define READ_MOST 32768u   /* outputs: 136 MiB */
#define EMPTY_LAUNCHES 1000u
#define EMPTY_LAUNCHES_QUICK 100u

/* Offsets in kernel_memory; with base 0 they measure. */
struct layout {
    pkv_addr int8, f32, read, x_f32, x_q8, x_block, y, end;
};

static uint32_t read_outputs(const struct link *link)
{
    uint64_t outputs = link->region_bytes / (COLS + COLS / 16) / PKV_PACK_ROWS * PKV_PACK_ROWS;
    outputs = outputs > PKV_PACK_ROWS ? outputs : PKV_PACK_ROWS;
    return outputs < READ_MOST ? (uint32_t)outputs : READ_MOST;
}

static pkv_addr take(pkv_addr *at, uint64_t bytes)
{
    pkv_addr here = *at;
    *at += (bytes + 63) & ~(uint64_t)63;
    return here;
}

static struct layout lay_out(const struct link *link, pkv_addr base)
{
    struct layout l;
    pkv_addr at = base;
    const uint64_t values = (uint64_t)ROWS * COLS;
    l.int8 = take(&at, pkvi_pack_bytes(PKV_W_Q8_0, INT8_OUTPUTS, COLS));
    l.f32 = take(&at, pkvi_pack_bytes(PKV_W_F32, F32_OUTPUTS, COLS));
    l.read = take(&at, pkvi_pack_bytes(PKV_W_Q8_0, read_outputs(link), COLS));
    l.x_f32 = take(&at, 4 * values);
    l.x_q8 = take(&at, values);
    l.x_block = take(&at, values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block));
    l.y = take(&at,
               4 * (uint64_t)(READ_MOST > ROWS * INT8_OUTPUTS ? READ_MOST : ROWS * INT8_OUTPUTS));
    l.end = at;
    return l;
}

uint64_t pkvi_link_compute_bytes(const struct link *link)
{
    return lay_out(link, 0).end + pkvi_link_works_bytes(link);
}

/* The zeros stay until the stream is closed: a copy may still read them when the wait fails. */
static enum pkv_status set_zero(struct link *link, uint64_t bytes)
{
    PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_PINNED, LINK_ZERO_BYTES, &link->zeros));
    memset(PKV_AT(void, link->zeros), 0, LINK_ZERO_BYTES);
    for (uint64_t at = 0; at < bytes; at += LINK_ZERO_BYTES) {
        struct pkv_span span = {.dst = link->kernel_memory + at,
                                .src = link->zeros,
                                .bytes =
                                    bytes - at < LINK_ZERO_BYTES ? bytes - at : LINK_ZERO_BYTES};
        PKV_TRY(pkvi_copy_async(link->compute, &span, 1));
    }
    return pkvi_stream_sync(link->compute);
}

static struct link_kernel multiply(const struct link *link, const struct layout *l,
                                   enum pkv_weight_type type, pkv_addr data, uint32_t outputs,
                                   uint32_t rows)
{
    struct link_kernel kernel = {.kernel = pkvi_device_kernel(link->device, PKV_OP_LINEAR)};
    kernel.args.linear = (struct pkv_args_linear){

        .x = {.cols = COLS, .f32 = l->x_f32, .q8 = l->x_q8, .block = l->x_block},
        .rows = rows,
        .part_count = 1,
        .part = {{.w = {.type = type, .rows = outputs, .cols = COLS, .data = data},
                  .y = l->y,
                  .y_stride = outputs}}};
    return kernel;
}

static enum pkv_status check_kernel(struct link_kernel *kernel, const char *name)
{
    if (!kernel->kernel || !kernel->kernel->cost) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the device has no kernel of '%s', or no cost of it",
                        name);
    }
    kernel->kernel->cost(&kernel->args, &kernel->cost);
    return PKV_OK;
}

enum pkv_status pkvi_link_compute_open(struct link *link)
{
    const uint64_t bytes = lay_out(link, 0).end;
    PKV_TRY(pkvi_stream_open(link->device, PKV_COMPUTE, NULL, &link->compute));
    PKV_TRY(pkvi_event_open(link->device, true, &link->compute_begin));
    PKV_TRY(pkvi_event_open(link->device, true, &link->compute_end));
    PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_DEVICE, bytes, &link->kernel_memory));
    PKV_TRY(set_zero(link, bytes));
    const struct layout l = lay_out(link, link->kernel_memory);
    link->int8 = multiply(link, &l, PKV_W_Q8_0, l.int8, INT8_OUTPUTS, ROWS);
    link->f32 = multiply(link, &l, PKV_W_F32, l.f32, F32_OUTPUTS, ROWS);
    link->read = multiply(link, &l, PKV_W_Q8_0, l.read, read_outputs(link), 1);
    link->nothing =
        (struct link_kernel){.kernel = pkvi_device_kernel(link->device, PKV_OP_SOFTCAP),
                             .args.softcap = {.x = l.y, .cap = 1.0f, .rows = 1, .cols = 1}};
    PKV_TRY(check_kernel(&link->int8, "linear"));
    PKV_TRY(check_kernel(&link->f32, "linear"));
    PKV_TRY(check_kernel(&link->read, "linear"));
    PKV_TRY(check_kernel(&link->nothing, "softcap"));
    return pkvi_link_works_open(link);
}

void pkvi_link_compute_close(struct link *link)
{
    pkvi_stream_close(link->compute);
    pkvi_event_close(link->compute_begin);
    pkvi_event_close(link->compute_end);
    pkvi_mem_free(link->device, PKV_MEM_DEVICE, link->kernel_memory);
    pkvi_link_works_close(link);
    pkvi_mem_free(link->device, PKV_MEM_PINNED, link->zeros);
}

const struct link_kernel *pkvi_link_beside(const struct link *link, enum link_compute compute)
{
    return compute == LINK_READ ? &link->read : &link->int8;
}

enum pkv_status pkvi_link_launch(struct link *link, const struct link_kernel *kernel,
                                 uint32_t launches)
{
    for (uint32_t i = 0; i < launches; i++) {
        PKV_TRY(pkvi_launch(link->compute, kernel->kernel, &kernel->args));
    }
    return PKV_OK;
}

enum pkv_status pkvi_link_time_launches(struct link *link, const struct link_kernel *kernel,
                                        uint32_t launches, uint64_t *ns_out)
{
    PKV_TRY(pkvi_event_record(link->compute_begin, link->compute));
    PKV_TRY(pkvi_link_launch(link, kernel, launches));
    PKV_TRY(pkvi_event_record(link->compute_end, link->compute));
    PKV_TRY(pkvi_event_sync(link->compute_end));
    return pkvi_event_elapsed(link->compute_begin, link->compute_end, ns_out);
}

static const struct link_kernel *kernel_of(const struct link *link, const struct link_cell *cell)
{
    switch (cell->measure) {
    case LINK_LOCAL_READ:
        return &link->read;
    case LINK_LOCAL_INT8:
        return &link->int8;
    case LINK_LOCAL_F32:
        return &link->f32;
    case LINK_KERNEL:
        return &link->works[cell->work].kernel;
    default:
        return &link->nothing;
    }
}

enum pkv_status pkvi_link_compute_first(struct link *link, struct link_cell *cell)
{
    const struct link_kernel *kernel = kernel_of(link, cell);
    uint64_t ns = 0;
    if (kernel == &link->nothing) {
        cell->launches = link->options.quick ? EMPTY_LAUNCHES_QUICK : EMPTY_LAUNCHES;
        return PKV_OK;
    }
    PKV_TRY(pkvi_link_time_launches(link, kernel, 1, &ns));
    PKV_TRY(pkvi_link_time_launches(link, kernel, 1, &ns));
    uint64_t launches = link->target_ns / (ns > 0 ? ns : 1);
    cell->launches = launches < 1 ? 1 : launches > 100000 ? 100000 : (uint32_t)launches;
    return PKV_OK;
}

static enum pkv_status time_calls(struct link *link, struct link_cell *cell)
{
    for (uint32_t i = 0; i < LINK_BURST; i++) {
        uint64_t begin_ns = pkvi_clock_ns();
        PKV_TRY(pkvi_link_launch(link, &link->nothing, 1));
        uint64_t called_ns = pkvi_clock_ns();
        PKV_TRY(pkvi_event_record(link->done, link->compute));
        PKV_TRY(pkvi_event_sync(link->done));
        uint64_t end_ns = cell->measure == LINK_LAUNCH_CALL ? called_ns : pkvi_clock_ns();
        cell->samples[cell->sample_count++] = (double)(end_ns - begin_ns) * 1e-3;
    }
    return PKV_OK;
}

enum pkv_status pkvi_link_compute_visit(struct link *link, struct link_cell *cell)
{
    const struct link_kernel *kernel = kernel_of(link, cell);
    uint64_t ns = 0;
    if (cell->measure == LINK_LAUNCH_LATENCY || cell->measure == LINK_LAUNCH_CALL) {
        return time_calls(link, cell);
    }
    PKV_TRY(pkvi_link_time_launches(link, kernel, 1, &ns)); /* warm */
    PKV_TRY(pkvi_link_time_launches(link, kernel, cell->launches, &ns));
    double each_ns = (double)(ns > 0 ? ns : 1) / (double)cell->launches;
    double work = kernel->cost.flops;
    if (cell->measure == LINK_LAUNCH || cell->measure == LINK_KERNEL) {
        work = each_ns * each_ns * 1e-3; /* us a launch */
    } else if (cell->measure == LINK_LOCAL_READ) {
        work = (double)kernel->cost.local_bytes;
    }
    cell->samples[cell->sample_count++] = work / each_ns;
    return PKV_OK;
}
