/*
 * cpu_stream.c: a stream of the cpu device is a ring of commands and one worker thread; an event is
 * a number in the count of records that its stream has passed. Waiting for an event is waiting for
 * that count, so events cost nothing to make and may be recorded again at once.
 *
 * Failures: the first one is kept in the stream's progress with the count at that moment. What was
 * recorded before stays good; what comes after is skipped, reported by every call and by every
 * event behind it, and handed on to streams that wait for such an event.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/futex.h"
#include "runtime/base/log.h"
#include "runtime/base/thread.h"
#include "runtime/device/dev_cpu.h"

/* Some 3000 launches: several steps of a large model. Untouched pages cost nothing. */
#define RING_BYTES (1u << 20)
/* A compute worker waits this long for its next command or event before it sleeps. */
#define COMPUTE_SPIN_US 40u
#define RING_FULL_SLEEP_NS 50000
#define SPANS_A_COMMAND 1024u

static struct cpu_stream *cpu_stream(struct pkv_stream *stream)
{
    return (struct cpu_stream *)(void *)stream;
}

static struct cpu_event *cpu_event(struct pkv_event *event)
{
    return (struct cpu_event *)(void *)event;
}

static bool is_scheduled(const struct cpu_device *device)
{
    return device->config.schedule != PKV_SCHEDULE_WORKERS;
}

static void release_event(struct cpu_event *event)
{
    if (atomic_fetch_sub(&event->references, 1) == 1) {
        free(event);
    }
}

/* ---- errors ---- */

static void keep_error(struct cpu_progress *progress, enum pkv_status status, const char *text)
{
    if (atomic_load_explicit(&progress->error, memory_order_relaxed) != PKV_OK) {
        return;
    }
    progress->error_after = atomic_load_explicit(&progress->done, memory_order_relaxed);
    snprintf(progress->error_text, sizeof progress->error_text, "%s", text);
    atomic_store_explicit(&progress->error, (int)status, memory_order_release);
}

/* The stream's error if it had happened before record `number` passed. */
static enum pkv_status error_before(struct cpu_progress *progress, uint64_t number)
{
    int error = atomic_load_explicit(&progress->error, memory_order_acquire);
    if (error == PKV_OK || number <= progress->error_after) {
        return PKV_OK;
    }
    return PKV_FAIL((enum pkv_status)error, "%s", progress->error_text);
}

/* ---- the worker's side ---- */

static void run_copy(struct cpu_stream *stream, const struct cpu_command *command)
{
    const struct pkv_span *span = (const void *)command->payload;
    struct cpu_device *device = stream->device;
    bool link = cpu_has_link(device);
    uint64_t begin_ns = link ? pkvi_clock_ns() : 0, bytes[2] = {0};
    uint32_t spans[2] = {0};
    for (uint32_t i = 0; i < command->count; i++) {
        if (span[i].bytes == 0) {
            continue;
        }
        /* memmove: a device-device span may overlap itself */
        memmove(PKV_AT(uint8_t, span[i].dst), PKV_AT(uint8_t, span[i].src), span[i].bytes);
        if (link) {
            bool from = pkvi_cpu_mem_of(device, span[i].src) == PKV_MEM_DEVICE;
            bool to = pkvi_cpu_mem_of(device, span[i].dst) == PKV_MEM_DEVICE;
            if (from != to) {
                bytes[from] += span[i].bytes;
                spans[from]++;
            }
        }
    }
    if (link) {
        pkvi_cpu_link_charge(stream, command, begin_ns, bytes, spans);
    }
}

static void run_launch(struct cpu_stream *stream, const struct cpu_command *command)
{
    bool link = cpu_has_link(stream->device);
    uint64_t begin_ns = link ? pkvi_clock_ns() : 0;
    enum pkv_status status = command->of.kernel->launch(&stream->native, command->payload);
    if (status < 0) {
        keep_error(stream->progress, status, pkv_error_text());
    }
    if (link) {
        struct pkv_cost cost = {0};
        if (command->of.kernel->cost) {
            command->of.kernel->cost(command->payload, &cost);
        }
        uint64_t bytes[2] = {cost.load_bytes, cost.store_bytes};
        uint32_t spans[2] = {cost.load_bytes > 0, 0};
        pkvi_cpu_link_charge(stream, command, begin_ns, bytes, spans);
    }
}

static void run_record(struct cpu_stream *stream, const struct cpu_command *command)
{
    struct cpu_progress *progress = stream->progress;
    struct cpu_event *event = command->of.event;
    if (event) {
        atomic_store_explicit(&event->time_ns, pkvi_clock_ns(), memory_order_relaxed);
    }
    atomic_store_explicit(&progress->done, command->number, memory_order_release);
    /* Both seq_cst, as in wait_for(): a waiter is seen, or sees the new beat */
    atomic_fetch_add(&progress->beat, 1);
    if (atomic_load(&progress->sleepers) > 0) {
        pkvi_futex_wake(&progress->beat, INT32_MAX);
    }
    if (event) {
        release_event(event);
    }
}

void pkvi_cpu_execute(struct cpu_stream *stream, struct cpu_command *command)
{
    bool failed = atomic_load_explicit(&stream->progress->error, memory_order_relaxed) != PKV_OK;
    switch (command->kind) {
    case CPU_LAUNCH:
        if (!failed) {
            run_launch(stream, command);
        }
        break;
    case CPU_COPY:
        if (!failed) {
            run_copy(stream, command);
        }
        break;
    case CPU_RECORD:
        run_record(stream, command);
        break;
    case CPU_WAIT: {
        enum pkv_status status = error_before(command->of.progress, command->number);
        if (status != PKV_OK) {
            keep_error(stream->progress, status, command->of.progress->error_text);
        }
        break;
    }
    }
    pkvi_ring_pop(&stream->ring);
}

/* Sleep until the record has passed; first spin for spin_us. */
static void wait_for(struct cpu_progress *progress, uint64_t number, uint32_t spin_us)
{
    uint64_t end_ns = spin_us > 0 ? pkvi_clock_ns() + spin_us * 1000u : 0;
    while (spin_us > 0 && !cpu_has_passed(progress, number)) {
        uint64_t now_ns = pkvi_clock_ns();
        if (now_ns >= end_ns) {
            break;
        }
        uint32_t beat = atomic_load_explicit(&progress->beat, memory_order_acquire);
        if (!cpu_has_passed(progress, number)) {
            (void)pkvi_spin_while(&progress->beat, beat, end_ns - now_ns);
        }
    }
    if (cpu_has_passed(progress, number)) {
        return;
    }
    atomic_fetch_add(&progress->sleepers, 1);
    for (;;) {
        uint32_t beat = atomic_load(&progress->beat);
        if (cpu_has_passed(progress, number)) {
            break;
        }
        pkvi_futex_wait(&progress->beat, beat);
    }
    atomic_fetch_sub(&progress->sleepers, 1);
}

/* The next command, or NULL when the stream is to end. */
static struct cpu_command *next_command(struct cpu_stream *stream)
{
    for (;;) {
        /* Look into the ring first: with work at hand the producer's counter stays untouched */
        struct cpu_command *command = pkvi_ring_peek(&stream->ring);
        if (command) {
            return command;
        }
        uint32_t seen = atomic_load_explicit(&stream->enqueued, memory_order_acquire);
        command = pkvi_ring_peek(&stream->ring);
        if (command) {
            return command;
        }
        if (atomic_load_explicit(&stream->stop, memory_order_acquire)) {
            return pkvi_ring_peek(&stream->ring); /* what came before the stop */
        }
        if (pkvi_spin_while(&stream->enqueued, seen, stream->spin_us * 1000u) != seen) {
            continue;
        }
        atomic_store(&stream->sleeping, 1);
        if (atomic_load(&stream->enqueued) == seen) {
            pkvi_futex_wait(&stream->enqueued, seen);
        }
        atomic_store(&stream->sleeping, 0);
    }
}

static void *stream_main(void *argument)
{
    struct cpu_stream *stream = argument;
    struct cpu_command *command;
    if (cpu_has_link(stream->device)) {
        (void)prctl(PR_SET_TIMERSLACK, 1ul); /* 50 us by default: longer than most transfers */
    }
    while ((command = next_command(stream)) != NULL) {
        if (command->kind == CPU_WAIT && !cpu_has_passed(command->of.progress, command->number)) {
            wait_for(command->of.progress, command->number, stream->spin_us);
            stream->link_busy_ns = 0; /* the next transfer begins now */
        }
        pkvi_cpu_execute(stream, command);
    }
    return NULL;
}

/* ---- the producer's side ---- */

/* Room in the ring. The one place where a full ring makes the host wait; counted. */
static struct cpu_command *reserve(struct cpu_stream *stream, uint32_t payload_bytes)
{
    const struct timespec nap = {.tv_nsec = RING_FULL_SLEEP_NS};
    uint32_t bytes = (uint32_t)sizeof(struct cpu_command) + payload_bytes;
    struct cpu_command *command = pkvi_ring_reserve(&stream->ring, bytes);
    if (!command) {
        stream->full_waits++;
    }
    while (!command) {
        if (is_scheduled(stream->device)) {
            (void)pkvi_cpu_schedule_step(stream->device);
        } else {
            (void)nanosleep(&nap, NULL);
        }
        command = pkvi_ring_reserve(&stream->ring, bytes);
    }
    command->enqueued_ns = cpu_has_link(stream->device) ? pkvi_clock_ns() : 0;
    return command;
}

static void commit(struct cpu_stream *stream)
{
    pkvi_ring_commit(&stream->ring);
    if (is_scheduled(stream->device)) {
        pkvi_cpu_schedule_enqueued(stream->device);
        return;
    }
    atomic_fetch_add(&stream->enqueued, 1);
    if (atomic_load(&stream->sleeping)) {
        pkvi_futex_wake(&stream->enqueued, 1);
    }
}

enum pkv_status pkvi_cpu_launch(struct pkv_stream *base, const struct pkv_kernel *kernel,
                                const void *args)
{
    struct cpu_stream *stream = cpu_stream(base);
    PKV_TRY(error_before(stream->progress, UINT64_MAX));
    if (kernel->args_bytes >
        pkvi_ring_record_max_bytes(&stream->ring) - sizeof(struct cpu_command)) {
        return PKV_FAIL(PKV_ERR_RANGE, "launch with %u bytes of arguments", kernel->args_bytes);
    }
    struct cpu_command *command = reserve(stream, kernel->args_bytes);
    command->kind = CPU_LAUNCH;
    command->of.kernel = kernel;
    memcpy(command->payload, args, kernel->args_bytes);
    commit(stream);
    return PKV_OK;
}

enum pkv_status pkvi_cpu_copy_async(struct pkv_stream *base, const struct pkv_span *spans,
                                    uint32_t count)
{
    struct cpu_stream *stream = cpu_stream(base);
    PKV_TRY(error_before(stream->progress, UINT64_MAX));
    while (count > 0) {
        uint32_t part = count < SPANS_A_COMMAND ? count : SPANS_A_COMMAND;
        struct cpu_command *command = reserve(stream, part * (uint32_t)sizeof *spans);
        command->kind = CPU_COPY;
        command->count = part;
        memcpy(command->payload, spans, part * sizeof *spans);
        commit(stream);
        spans += part;
        count -= part;
    }
    return PKV_OK;
}

/* Enqueue a record and return its number. */
static uint64_t enqueue_record(struct cpu_stream *stream, struct cpu_event *timed_event)
{
    struct cpu_command *command = reserve(stream, 0);
    uint64_t number = ++stream->records;
    command->kind = CPU_RECORD;
    command->of.event = timed_event;
    command->number = number;
    commit(stream);
    return number;
}

enum pkv_status pkvi_cpu_event_record(struct pkv_event *base, struct pkv_stream *stream_base)
{
    struct cpu_stream *stream = cpu_stream(stream_base);
    struct cpu_event *event = cpu_event(base);
    PKV_TRY(error_before(stream->progress, UINT64_MAX));
    if (event->timed) {
        atomic_fetch_add(&event->references, 1);
    }
    event->number = enqueue_record(stream, event->timed ? event : NULL);
    event->progress = stream->progress;
    return PKV_OK;
}

enum pkv_status pkvi_cpu_event_wait(struct pkv_stream *base, struct pkv_event *event_base)
{
    struct cpu_stream *stream = cpu_stream(base);
    struct cpu_event *event = cpu_event(event_base);
    PKV_TRY(error_before(stream->progress, UINT64_MAX));
    if (!event->progress || event->progress == stream->progress) {
        return PKV_OK; /* never recorded, or in order anyway */
    }
    struct cpu_command *command = reserve(stream, 0);
    command->kind = CPU_WAIT;
    command->of.progress = event->progress;
    command->number = event->number;
    commit(stream);
    return PKV_OK;
}

static enum pkv_status host_wait(struct cpu_device *device, struct cpu_progress *progress,
                                 uint64_t number)
{
    if (is_scheduled(device)) {
        PKV_TRY(pkvi_cpu_schedule_until(device, progress, number));
    } else {
        wait_for(progress, number, 0); /* the cores belong to the workers */
    }
    return error_before(progress, number);
}

enum pkv_status pkvi_cpu_stream_sync(struct pkv_stream *base)
{
    struct cpu_stream *stream = cpu_stream(base);
    return host_wait(stream->device, stream->progress, enqueue_record(stream, NULL));
}

enum pkv_status pkvi_cpu_event_query(struct pkv_event *base)
{
    struct cpu_event *event = cpu_event(base);
    struct cpu_device *device = cpu_device(base->device);
    if (!event->progress) {
        return PKV_OK;
    }
    if (!cpu_has_passed(event->progress, event->number) && is_scheduled(device)) {
        (void)pkvi_cpu_schedule_step(device); /* who polls waits */
    }
    if (!cpu_has_passed(event->progress, event->number)) {
        return PKV_PENDING;
    }
    return error_before(event->progress, event->number);
}

enum pkv_status pkvi_cpu_event_sync(struct pkv_event *base)
{
    struct cpu_event *event = cpu_event(base);
    if (!event->progress) {
        return PKV_OK;
    }
    return host_wait(cpu_device(base->device), event->progress, event->number);
}

enum pkv_status pkvi_cpu_event_elapsed(struct pkv_event *begin_base, struct pkv_event *end_base,
                                       uint64_t *ns_out)
{
    struct cpu_event *begin = cpu_event(begin_base), *end = cpu_event(end_base);
    if (!begin->timed || !end->timed || !begin->progress || !end->progress) {
        return PKV_FAIL(PKV_ERR_STATE, "time between events: both must be timed and recorded");
    }
    if (!cpu_has_passed(begin->progress, begin->number) ||
        !cpu_has_passed(end->progress, end->number)) {
        return PKV_PENDING;
    }
    PKV_TRY(error_before(end->progress, end->number));
    uint64_t begin_ns = atomic_load_explicit(&begin->time_ns, memory_order_relaxed);
    uint64_t end_ns = atomic_load_explicit(&end->time_ns, memory_order_relaxed);
    *ns_out = end_ns > begin_ns ? end_ns - begin_ns : 0;
    return PKV_OK;
}

/* ---- life ---- */

enum pkv_status pkvi_cpu_event_open(struct pkv_device *device, bool timed,
                                    struct pkv_event **event_out)
{
    struct cpu_event *event = calloc(1, sizeof *event);
    if (!event) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an event");
    }
    event->base.device = device;
    event->timed = timed;
    atomic_store_explicit(&event->references, 1, memory_order_relaxed);
    *event_out = &event->base;
    return PKV_OK;
}

void pkvi_cpu_event_close(struct pkv_event *event)
{
    release_event(cpu_event(event));
}

static struct cpu_progress *new_progress(struct cpu_device *device)
{
    struct cpu_progress *progress = aligned_alloc(64, sizeof *progress);
    if (progress) {
        memset(progress, 0, sizeof *progress);
        pthread_mutex_lock(&device->lock);
        progress->next = device->progresses;
        device->progresses = progress;
        pthread_mutex_unlock(&device->lock);
    }
    return progress;
}

/* Signals are for the program's own threads. */
static enum pkv_status start_worker(struct cpu_stream *stream)
{
    static const char *const names[] = {"pkv-compute", "pkv-recall", "pkv-load", "pkv-store"};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "cannot start the worker of a stream: %s",
                        strerror(error));
    }
    pthread_setname_np(stream->thread, names[stream->base.kind]);
    return PKV_OK;
}

static void add_to_schedule(struct cpu_stream *stream)
{
    struct cpu_device *device = stream->device;
    pthread_mutex_lock(&device->turn);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->turn);
}

enum pkv_status pkvi_cpu_stream_open(struct pkv_device *base, enum pkv_stream_kind kind,
                                     void *native, struct pkv_stream **stream_out)
{
    struct cpu_device *device = cpu_device(base);
    enum pkv_status status = PKV_OK;
    if (native) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the cpu device has no streams of another library");
    }
    struct cpu_stream *stream = aligned_alloc(64, sizeof *stream);
    struct cpu_progress *progress = new_progress(device);
    if (!stream || !progress) {
        free(stream);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a stream");
    }
    memset(stream, 0, sizeof *stream);
    stream->base = (struct pkv_stream){.device = base, .kind = kind};
    stream->device = device;
    stream->progress = progress;
    stream->spin_us = kind == PKV_COMPUTE ? COMPUTE_SPIN_US : 0;
    if ((status = pkvi_ring_init(&stream->ring, RING_BYTES)) != PKV_OK) {
        goto err_stream;
    }
    /* Each stream has its own pool: a pool takes one caller at a time. */
    uint32_t threads = kind == PKV_COMPUTE ? device->threads : 1;
    if ((status = pkvi_pool_open(threads, &stream->native.pool)) != PKV_OK) {
        goto err_ring;
    }
    if (is_scheduled(device)) {
        add_to_schedule(stream);
    } else if ((status = start_worker(stream)) != PKV_OK) {
        goto err_pool;
    }
    *stream_out = &stream->base;
    return PKV_OK;

err_pool:
    pkvi_pool_close(stream->native.pool);
err_ring:
    pkvi_ring_fini(&stream->ring);
err_stream:
    free(stream);
    return status;
}

void pkvi_cpu_stream_close(struct pkv_stream *base)
{
    struct cpu_stream *stream = cpu_stream(base);
    if (is_scheduled(stream->device)) {
        pkvi_cpu_schedule_drain(stream);
    } else {
        atomic_store_explicit(&stream->stop, 1, memory_order_release);
        atomic_fetch_add(&stream->enqueued, 1);
        pkvi_futex_wake(&stream->enqueued, 1);
        pthread_join(stream->thread, NULL);
    }
    if (stream->full_waits > 0) {
        pkvi_log(PKV_LOG_INFO, "device", "a full queue made the host wait %llu times",
                 (unsigned long long)stream->full_waits);
    }
    pkvi_pool_close(stream->native.pool);
    pkvi_ring_fini(&stream->ring);
    free(stream);
}
