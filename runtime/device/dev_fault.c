/*
 * dev_fault.c: counts calls, then fails them or hands them to the device below. A failed call does
 * not reach the device below. Delays and failures of a stream are small kernels of its own, put
 * before the real work.
 */
#include "runtime/device/dev_fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/device/device.h"

static const char *const call_names[] = {
#define PKVI_FAULT_NAME(name, text) text,
    PKVI_FAULT_LIST(PKVI_FAULT_NAME)
#undef PKVI_FAULT_NAME
};

#define MOST_BLOCKS 256u

struct fault_block {
    pkv_addr addr; /* 0 = none */
    uint64_t bytes;
    enum pkv_mem mem;
};

struct fault_device {
    struct pkv_device base;
    struct pkvi_fault_config config;
    pthread_mutex_t lock; /* what follows */
    uint64_t counts[PKVI_FAULT_CALLS + 1], rng;
    bool lost;
    struct fault_block blocks[MOST_BLOCKS];
    uint64_t used[PKV_MEM_HOST + 1], most[PKV_MEM_HOST + 1];
};

struct fault_stream {
    struct pkv_stream base;
    struct pkv_stream *below;
};

struct fault_event {
    struct pkv_event base;
    struct pkv_event *below;
};

static struct fault_device *fault_device(struct pkv_device *device)
{
    return (struct fault_device *)(void *)device;
}

static struct pkv_stream *below_stream(struct pkv_stream *stream)
{
    return ((struct fault_stream *)(void *)stream)->below;
}

static struct pkv_event *below_event(struct pkv_event *event)
{
    return ((struct fault_event *)(void *)event)->below;
}

/* ---- kernels put into streams ---- */

struct fault_args {
    uint64_t delay_ns, count;
    enum pkvi_fault_call call;
    enum pkv_status status;
};

static enum pkv_status fail(enum pkvi_fault_call call, uint64_t count, enum pkv_status status)
{
    return PKV_FAIL(status, "fault: %s number %llu fails as asked", call_names[call],
                    (unsigned long long)count);
}

static enum pkv_status launch_fault(void *native_stream, const void *raw)
{
    const struct fault_args *args = raw;
    const struct timespec delay = {.tv_nsec = (long)args->delay_ns};
    (void)native_stream;
    if (args->delay_ns > 0) {
        (void)nanosleep(&delay, NULL);
    }
    return args->status == PKV_OK ? PKV_OK : fail(args->call, args->count, args->status);
}

static const struct pkv_kernel fault_kernel = {
    .variant = "fault", .args_bytes = sizeof(struct fault_args), .launch = launch_fault};

/* ---- counting ---- */

/* Count a call; PKV_OK lets it through. A delay comes out for calls that enqueue. */
static enum pkv_status count_call(struct fault_device *device, enum pkvi_fault_call call,
                                  struct fault_args *args_out)
{
    const struct pkvi_fault_config *config = &device->config;
    pthread_mutex_lock(&device->lock);
    uint64_t any = ++device->counts[PKVI_FAULT_CALLS], count = ++device->counts[call];
    bool fails = device->lost || any == config->fail_call || count == config->fail[call];
    device->lost |= fails && config->lasting;
    device->rng = device->rng * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    uint64_t delay_us = config->delay_us ? (device->rng >> 33) % (config->delay_us + 1ull) : 0;
    pthread_mutex_unlock(&device->lock);
    *args_out = (struct fault_args){.delay_ns = delay_us * 1000, .count = count, .call = call};
    if (fails) {
        args_out->status = config->status == PKV_OK ? PKV_ERR_DEVICE_LOST : config->status;
    }
    return args_out->status;
}

/* For calls that only pass or fail. */
static enum pkv_status pass(struct pkv_device *base, enum pkvi_fault_call call)
{
    struct fault_args args;
    enum pkv_status status = count_call(fault_device(base), call, &args);
    return status == PKV_OK ? PKV_OK : fail(call, args.count, status);
}

/* For calls that enqueue: they may be delayed, or fail later, on the stream. */
static enum pkv_status pass_enqueue(struct pkv_stream *stream, enum pkvi_fault_call call)
{
    struct fault_device *device = fault_device(stream->device);
    struct fault_args args;
    enum pkv_status status = count_call(device, call, &args);
    bool later = device->config.async && call != PKVI_FAULT_EVENT_RECORD;
    if (status != PKV_OK && !later) {
        return fail(call, args.count, status);
    }
    if (status != PKV_OK || args.delay_ns > 0) {
        return pkvi_launch(below_stream(stream), &fault_kernel, &args);
    }
    return PKV_OK;
}

/* ---- the table ---- */

static void fault_close(struct pkv_device *base)
{
    pthread_mutex_destroy(&fault_device(base)->lock);
    free(base);
}

static enum pkv_status fault_query(struct pkv_device *base, struct pkv_device_info *info_out)
{
    return pkv_device_query(base->below, info_out);
}

/* Note memory that was given out; without room for the note it is not counted. */
static void note_block(struct fault_device *device, enum pkv_mem mem, pkv_addr addr, uint64_t bytes)
{
    pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < MOST_BLOCKS; i++) {
        struct fault_block *block = &device->blocks[i];
        if (block->addr == 0) {
            *block = (struct fault_block){.addr = addr, .bytes = bytes, .mem = mem};
            device->used[mem] += bytes;
            break;
        }
    }
    const uint64_t used = device->used[mem];
    device->most[mem] = used > device->most[mem] ? used : device->most[mem];
    pthread_mutex_unlock(&device->lock);
}

static void forget_block(struct fault_device *device, pkv_addr addr)
{
    pthread_mutex_lock(&device->lock);
    for (uint32_t i = 0; i < MOST_BLOCKS; i++) {
        struct fault_block *block = &device->blocks[i];
        if (block->addr == addr) {
            device->used[block->mem] -= block->bytes;
            block->addr = 0;
            break;
        }
    }
    pthread_mutex_unlock(&device->lock);
}

static enum pkv_status fault_alloc(struct pkv_device *base, enum pkv_mem mem, uint64_t bytes,
                                   pkv_addr *addr_out)
{
    PKV_TRY(pass(base, PKVI_FAULT_ALLOC));
    PKV_TRY(pkvi_mem_alloc(base->below, mem, bytes, addr_out));
    note_block(fault_device(base), mem, *addr_out, bytes);
    return PKV_OK;
}

static void fault_free(struct pkv_device *base, enum pkv_mem mem, pkv_addr addr)
{
    forget_block(fault_device(base), addr);
    pkvi_mem_free(base->below, mem, addr);
}

static void fault_touch(struct pkv_device *base, pkv_addr addr, uint64_t bytes)
{
    pkvi_mem_touch(base->below, addr, bytes);
}

static enum pkv_status fault_pin(struct pkv_device *base, void *memory, uint64_t bytes,
                                 pkv_addr *addr_out)
{
    PKV_TRY(pass(base, PKVI_FAULT_PIN));
    PKV_TRY(pkvi_mem_pin(base->below, memory, bytes, addr_out));
    note_block(fault_device(base), PKV_MEM_PINNED, pkvi_addr(memory), bytes);
    return PKV_OK;
}

static void fault_unpin(struct pkv_device *base, void *memory)
{
    forget_block(fault_device(base), pkvi_addr(memory));
    pkvi_mem_unpin(base->below, memory);
}

static enum pkv_status fault_stream_open(struct pkv_device *base, enum pkv_stream_kind kind,
                                         void *native, struct pkv_stream **stream_out)
{
    PKV_TRY(pass(base, PKVI_FAULT_STREAM_OPEN));
    struct fault_stream *stream = malloc(sizeof *stream);
    if (!stream) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a stream");
    }
    stream->base = (struct pkv_stream){.device = base, .kind = kind};
    enum pkv_status status = pkvi_stream_open(base->below, kind, native, &stream->below);
    if (status != PKV_OK) {
        free(stream);
        return status;
    }
    *stream_out = &stream->base;
    return PKV_OK;
}

static void fault_stream_close(struct pkv_stream *stream)
{
    pkvi_stream_close(below_stream(stream));
    free(stream);
}

static enum pkv_status fault_stream_sync(struct pkv_stream *stream)
{
    PKV_TRY(pass(stream->device, PKVI_FAULT_STREAM_SYNC));
    return pkvi_stream_sync(below_stream(stream));
}

static enum pkv_status fault_copy(struct pkv_stream *stream, const struct pkv_span *spans,
                                  uint32_t count)
{
    PKV_TRY(pass_enqueue(stream, PKVI_FAULT_COPY));
    return pkvi_copy_async(below_stream(stream), spans, count);
}

static const struct pkv_kernel *fault_kernel_of(struct pkv_device *base, uint32_t op)
{
    return pkvi_device_kernel(base->below, op);
}

static enum pkv_status fault_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                                    const void *args)
{
    PKV_TRY(pass_enqueue(stream, PKVI_FAULT_LAUNCH));
    return pkvi_launch(below_stream(stream), kernel, args);
}

static enum pkv_status fault_event_open(struct pkv_device *base, bool timed,
                                        struct pkv_event **event_out)
{
    PKV_TRY(pass(base, PKVI_FAULT_EVENT_OPEN));
    struct fault_event *event = malloc(sizeof *event);
    if (!event) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an event");
    }
    event->base.device = base;
    enum pkv_status status = pkvi_event_open(base->below, timed, &event->below);
    if (status != PKV_OK) {
        free(event);
        return status;
    }
    *event_out = &event->base;
    return PKV_OK;
}

static void fault_event_close(struct pkv_event *event)
{
    pkvi_event_close(below_event(event));
    free(event);
}

static enum pkv_status fault_event_record(struct pkv_event *event, struct pkv_stream *stream)
{
    PKV_TRY(pass_enqueue(stream, PKVI_FAULT_EVENT_RECORD));
    return pkvi_event_record(below_event(event), below_stream(stream));
}

static enum pkv_status fault_event_wait(struct pkv_stream *stream, struct pkv_event *event)
{
    PKV_TRY(pass(stream->device, PKVI_FAULT_EVENT_WAIT));
    return pkvi_event_wait(below_stream(stream), below_event(event));
}

static enum pkv_status fault_event_query(struct pkv_event *event)
{
    PKV_TRY(pass(event->device, PKVI_FAULT_EVENT_QUERY));
    return pkvi_event_query(below_event(event));
}

static enum pkv_status fault_event_sync(struct pkv_event *event)
{
    PKV_TRY(pass(event->device, PKVI_FAULT_EVENT_SYNC));
    return pkvi_event_sync(below_event(event));
}

static enum pkv_status fault_event_elapsed(struct pkv_event *begin, struct pkv_event *end,
                                           uint64_t *ns_out)
{
    return pkvi_event_elapsed(below_event(begin), below_event(end), ns_out);
}

static enum pkv_status fault_open(const struct pkv_device_config *config, struct pkv_device *below,
                                  struct pkv_device **device_out)
{
    static const struct pkvi_fault_config none;
    (void)config;
    return pkvi_fault_open(below, &none, device_out);
}

static const struct pkv_device_ops fault_ops = {
    .abi = PKV_DEVICE_ABI,
    .name = "fault",
    .open = fault_open,
    .close = fault_close,
    .query = fault_query,
    .mem_alloc = fault_alloc,
    .mem_free = fault_free,
    .mem_touch = fault_touch,
    .mem_pin = fault_pin,
    .mem_unpin = fault_unpin,
    .stream_open = fault_stream_open,
    .stream_close = fault_stream_close,
    .stream_sync = fault_stream_sync,
    .copy_async = fault_copy,
    .kernel = fault_kernel_of,
    .launch = fault_launch,
    .event_open = fault_event_open,
    .event_close = fault_event_close,
    .event_record = fault_event_record,
    .event_wait = fault_event_wait,
    .event_query = fault_event_query,
    .event_sync = fault_event_sync,
    .event_elapsed = fault_event_elapsed,
};

enum pkv_status pkvi_fault_open(struct pkv_device *below, const struct pkvi_fault_config *config,
                                struct pkv_device **device_out)
{
    if (!below || !config) {
        return PKV_FAIL(PKV_ERR_INVALID, "fault device: NULL argument");
    }
    struct fault_device *device = calloc(1, sizeof *device);
    if (!device) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a device");
    }
    device->base = (struct pkv_device){.ops = &fault_ops, .below = below};
    pthread_mutex_init(&device->lock, NULL);
    pkvi_fault_set(&device->base, config);
    *device_out = &device->base;
    return PKV_OK;
}

void pkvi_fault_set(struct pkv_device *base, const struct pkvi_fault_config *config)
{
    struct fault_device *device = fault_device(base);
    pthread_mutex_lock(&device->lock);
    device->config = *config;
    device->rng = config->seed;
    device->lost = false;
    for (uint32_t i = 0; i <= PKVI_FAULT_CALLS; i++) {
        device->counts[i] = 0;
    }
    pthread_mutex_unlock(&device->lock);
}

uint64_t pkvi_fault_count(struct pkv_device *base, enum pkvi_fault_call call)
{
    struct fault_device *device = fault_device(base);
    pthread_mutex_lock(&device->lock);
    uint64_t count = device->counts[call];
    pthread_mutex_unlock(&device->lock);
    return count;
}

uint64_t pkvi_fault_most_bytes(struct pkv_device *base, enum pkv_mem mem)
{
    struct fault_device *device = fault_device(base);
    pthread_mutex_lock(&device->lock);
    const uint64_t most = device->most[mem];
    device->most[mem] = device->used[mem];
    pthread_mutex_unlock(&device->lock);
    return most;
}
