/*
 * sim_stream.c: streams, events and the virtual clock.
 *
 * The host's calls only fill queues. Whoever waits or asks makes time pass: from one moment at
 * which something begins or ends to the next, in the order of virtual time, as far as the host has
 * come; a wait goes on until what it waits for has passed, and the host's clock with it. So what
 * runs beside what is known at every moment, and shares: kernels of several streams the device,
 * copies of one direction the link. Ties go by the order in which streams were opened.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/device/dev_sim.h"

#include <string.h>

/* A host that polls must get somewhere even if calls cost nothing. */
#define POLL_LEAST_NS 100.0

static struct sim_stream *sim_stream(struct pkv_stream *stream)
{
    return (struct sim_stream *)(void *)stream;
}

static struct sim_event *sim_event(struct pkv_event *event)
{
    return (struct sim_event *)(void *)event;
}

static void release_event(struct sim_event *event)
{
    if (--event->references == 0) {
        free(event);
    }
}

/* ---- time; the lock is held ---- */

static bool is_busy(const struct sim_stream *stream)
{
    return stream->running && stream->left.latency_ns <= 0 && stream->left.busy_ns > 0;
}

static bool is_copy(const struct sim_work *work)
{
    return work->copies[0] || work->copies[1];
}

/* What runs at a moment. */
struct load {
    uint32_t kernels, copies[2];
};

static struct load load_of(const struct sim_device *device)
{
    struct load load = {0};
    for (const struct sim_stream *s = device->streams; s; s = s->next) {
        if (is_busy(s)) {
            load.kernels += !is_copy(&s->left);
            load.copies[0] += s->left.copies[0];
            load.copies[1] += s->left.copies[1];
        }
    }
    return load;
}

/* Speed of a busy stream beside the others, 1 = alone. */
static double speed_of(const struct sim_stream *stream, const struct load *load)
{
    const struct sim_work *work = &stream->left;
    const struct pkvi_profile *p = &sim_device(stream->base.device)->profile;
    const bool copies = load->copies[0] + load->copies[1] > 0;
    double speed = 1;
    if (!is_copy(work)) {
        return (copies && p->beside_kernel > 0 ? p->beside_kernel : 1) / load->kernels;
    }
    if (load->kernels > 0 && p->beside_copy > 0) {
        speed = p->beside_copy;
    }
    for (int d = 0; d < 2; d++) {
        if (work->copies[d]) {
            speed /= load->copies[d];
        }
    }
    return load->copies[0] > 0 && load->copies[1] > 0 ? speed * work->both_share : speed;
}

/* Until the stream's command changes by itself. */
static double step_ns(const struct sim_device *device, const struct sim_stream *stream,
                      const struct load *load)
{
    if (stream->left.latency_ns > 0) {
        return stream->left.latency_ns;
    }
    if (stream->left.busy_ns > 0) {
        return stream->left.busy_ns / speed_of(stream, load);
    }
    return fmax(stream->link_end_ns - device->now_ns, 0);
}

static void pop(struct sim_stream *stream)
{
    if (stream->running) {
        stream->running = false;
        stream->before = SIM_GOING;
    }
    if (++stream->head == stream->count) {
        stream->head = stream->count = 0;
    }
}

static void pass_record(struct sim_device *device, struct sim_stream *stream,
                        const struct sim_command *command)
{
    struct sim_event *event = command->of.event;
    stream->progress->done = command->number;
    if (event) {
        if (event->progress == stream->progress && event->number == command->number) {
            event->time_ns = device->now_ns;
        }
        release_event(event);
    }
}

/* The link that the config asks for: each direction serves one after the other. */
static void take_link(struct sim_device *device, struct sim_stream *stream)
{
    const struct sim_work *work = &stream->left;
    double end_ns = device->now_ns;
    for (int d = 0; d < 2; d++) {
        if (work->link_bytes[d] > 0 && device->config.link_gbps > 0) {
            device->link_free_ns[d] = fmax(device->link_free_ns[d], device->now_ns) +
                                      work->link_bytes[d] / device->config.link_gbps;
            end_ns = fmax(end_ns, device->link_free_ns[d]);
        }
    }
    stream->link_end_ns = end_ns + work->link_ns;
}

/* Begin or pass the stream's next command if it can be now; false: nothing changed. */
static bool begin_next(struct sim_device *device, struct sim_stream *stream)
{
    if (stream->running || stream->head == stream->count) {
        return false;
    }
    struct sim_command *command = &stream->queue[stream->head];
    if (command->enqueued_ns > device->now_ns) {
        stream->before = SIM_IDLE;
        return false;
    }
    switch (command->kind) {
    case SIM_RECORD:
        pass_record(device, stream, command);
        pop(stream);
        return true;
    case SIM_WAIT:
        if (command->of.progress->done < command->number) {
            stream->before = SIM_WAITED;
            return false;
        }
        pop(stream);
        return true;
    case SIM_WORK:
        break;
    }
    stream->running = true;
    stream->left = command->of.work;
    if (stream->before == SIM_WAITED) {
        stream->left.latency_ns = 1e3 * device->profile.wait_us;
    } else if (stream->before == SIM_GOING) {
        stream->left.latency_ns = 0;
    }
    take_link(device, stream);
    return true;
}

/* All that happens at this moment. */
static void settle(struct sim_device *device)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (struct sim_stream *s = device->streams; s; s = s->next) {
            if (s->running && s->left.latency_ns <= 0 && s->left.busy_ns <= 0 &&
                s->link_end_ns <= device->now_ns) {
                pop(s);
                changed = true;
            }
            changed |= begin_next(device, s);
        }
    }
}

/* Let dt_ns pass for a running stream; `ends`: to the end of what it is at. */
static void run_for(struct sim_stream *stream, const struct load *load, double dt_ns, bool ends)
{
    struct sim_work *left = &stream->left;
    if (left->latency_ns > 0) {
        left->latency_ns = ends ? 0 : left->latency_ns - dt_ns;
    } else if (left->busy_ns > 0) {
        left->busy_ns = ends ? 0 : left->busy_ns - dt_ns * speed_of(stream, load);
    }
}

/* The next moment at which something changes; INFINITY: nothing does. */
static double next_ns(const struct sim_device *device, const struct load *load)
{
    double next = INFINITY;
    for (const struct sim_stream *s = device->streams; s; s = s->next) {
        if (s->running) {
            next = fmin(next, device->now_ns + step_ns(device, s, load));
        } else if (s->head < s->count && s->queue[s->head].enqueued_ns > device->now_ns) {
            next = fmin(next, s->queue[s->head].enqueued_ns);
        }
    }
    return next;
}

static void pass_to(struct sim_device *device, double to_ns, const struct load *load)
{
    const double now_ns = device->now_ns;
    for (struct sim_stream *s = device->streams; s; s = s->next) {
        if (s->running) {
            const bool ends = now_ns + step_ns(device, s, load) <= to_ns;
            run_for(s, load, to_ns - now_ns, ends);
        }
    }
    device->now_ns = to_ns;
}

/*
 * Follow the streams until the record has passed, or, without one, as far as the host has come. A
 * record that was enqueued passes: it waits for records that were enqueued before it.
 */
static void follow(struct sim_device *device, const struct sim_progress *progress, uint64_t number)
{
    for (;;) {
        settle(device);
        if (progress && progress->done >= number) {
            break;
        }
        const struct load load = load_of(device);
        const double next = next_ns(device, &load);
        if (!progress && next > device->host_ns) {
            if (device->host_ns > device->now_ns) {
                pass_to(device, device->host_ns, &load);
                settle(device);
            }
            break;
        }
        if (isinf(next)) {
            break;
        }
        pass_to(device, next, &load);
    }
    device->host_ns = fmax(device->host_ns, device->now_ns);
}

/* ---- queues ---- */

/* Room for one more command; the caller counts it. */
static enum pkv_status reserve(struct sim_stream *stream, struct sim_command **command_out)
{
    if (stream->count == stream->capacity) {
        if (stream->head > stream->capacity / 2) {
            stream->count -= stream->head;
            memmove(stream->queue, stream->queue + stream->head,
                    stream->count * sizeof *stream->queue);
            stream->head = 0;
        } else {
            const uint32_t capacity = stream->capacity > 0 ? 2 * stream->capacity : 256;
            struct sim_command *queue = realloc(stream->queue, capacity * sizeof *queue);
            if (!queue) {
                return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a queue of %u commands",
                                capacity);
            }
            stream->queue = queue;
            stream->capacity = capacity;
        }
    }
    *command_out = &stream->queue[stream->count];
    return PKV_OK;
}

/* Enqueue; the call keeps the host for call_us. */
static enum pkv_status enqueue(struct sim_device *device, struct sim_stream *stream,
                               struct sim_command command, double call_us)
{
    struct sim_command *place = NULL;
    PKV_TRY(reserve(stream, &place));
    device->host_ns += 1e3 * call_us;
    command.enqueued_ns = device->host_ns;
    if (stream->head == stream->count && device->now_ns < device->host_ns) {
        stream->before = SIM_IDLE;
    }
    *place = command;
    stream->count++;
    return PKV_OK;
}

enum pkv_status pkvi_sim_launch(struct pkv_stream *base, const struct pkv_kernel *kernel,
                                const void *args)
{
    struct sim_device *device = sim_device(base->device);
    if (!kernel->cost) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "sim: kernel '%s' does not tell what it costs",
                        kernel->variant);
    }
    pthread_mutex_lock(&device->lock);
    const enum pkv_status status =
        enqueue(device, sim_stream(base),
                (struct sim_command){.kind = SIM_WORK,
                                     .of.work = pkvi_sim_launch_work(device, kernel, args)},
                device->profile.launch_call_us);
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* What cost() of later launches reads. Nobody writes it before the host has waited, so it may as
 * well be done now. */
static void carry_out(const struct sim_device *device, const struct pkv_span *spans, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (pkvi_sim_is_device(device, spans[i].dst) && !pkvi_sim_is_device(device, spans[i].src)) {
            memcpy(PKV_AT(void, spans[i].dst), PKV_AT(const void, spans[i].src), spans[i].bytes);
        }
    }
}

enum pkv_status pkvi_sim_copy_async(struct pkv_stream *base, const struct pkv_span *spans,
                                    uint32_t count)
{
    struct sim_device *device = sim_device(base->device);
    pthread_mutex_lock(&device->lock);
    if (base->kind == PKV_COMPUTE) {
        carry_out(device, spans, count);
    }
    const enum pkv_status status = enqueue(
        device, sim_stream(base),
        (struct sim_command){.kind = SIM_WORK, .of.work = pkvi_sim_copy_work(device, spans, count)},
        device->profile.copy_call_us);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static enum pkv_status enqueue_record(struct sim_stream *stream, struct sim_event *event)
{
    PKV_TRY(enqueue(
        sim_device(stream->base.device), stream,
        (struct sim_command){.kind = SIM_RECORD, .number = stream->records + 1, .of.event = event},
        0));
    stream->records++;
    return PKV_OK;
}

enum pkv_status pkvi_sim_event_record(struct pkv_event *base, struct pkv_stream *stream_base)
{
    struct sim_device *device = sim_device(base->device);
    struct sim_stream *stream = sim_stream(stream_base);
    struct sim_event *event = sim_event(base);
    pthread_mutex_lock(&device->lock);
    const enum pkv_status status = enqueue_record(stream, event);
    if (status == PKV_OK) {
        event->references++;
        event->progress = stream->progress;
        event->number = stream->records;
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

enum pkv_status pkvi_sim_event_wait(struct pkv_stream *base, struct pkv_event *event_base)
{
    struct sim_device *device = sim_device(base->device);
    struct sim_stream *stream = sim_stream(base);
    struct sim_event *event = sim_event(event_base);
    enum pkv_status status = PKV_OK;
    pthread_mutex_lock(&device->lock);
    if (event->progress && event->progress != stream->progress) {
        status =
            enqueue(device, stream,
                    (struct sim_command){
                        .kind = SIM_WAIT, .number = event->number, .of.progress = event->progress},
                    0);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* ---- the host waits ---- */

enum pkv_status pkvi_sim_stream_sync(struct pkv_stream *base)
{
    struct sim_device *device = sim_device(base->device);
    struct sim_stream *stream = sim_stream(base);
    pthread_mutex_lock(&device->lock);
    const enum pkv_status status = enqueue_record(stream, NULL);
    if (status == PKV_OK) {
        follow(device, stream->progress, stream->records);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

enum pkv_status pkvi_sim_event_sync(struct pkv_event *base)
{
    struct sim_device *device = sim_device(base->device);
    const struct sim_event *event = sim_event(base);
    pthread_mutex_lock(&device->lock);
    if (event->progress) {
        follow(device, event->progress, event->number);
    }
    pthread_mutex_unlock(&device->lock);
    return PKV_OK;
}

enum pkv_status pkvi_sim_event_query(struct pkv_event *base)
{
    struct sim_device *device = sim_device(base->device);
    const struct sim_event *event = sim_event(base);
    enum pkv_status status = PKV_OK;
    pthread_mutex_lock(&device->lock);
    follow(device, NULL, 0);
    if (event->progress && event->progress->done < event->number) {
        device->host_ns += fmax(1e3 * device->profile.launch_call_us, POLL_LEAST_NS);
        status = PKV_PENDING;
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

enum pkv_status pkvi_sim_event_elapsed(struct pkv_event *begin_base, struct pkv_event *end_base,
                                       uint64_t *ns_out)
{
    struct sim_device *device = sim_device(begin_base->device);
    const struct sim_event *begin = sim_event(begin_base), *end = sim_event(end_base);
    enum pkv_status status = PKV_OK;
    if (!begin->timed || !end->timed || !begin->progress || !end->progress) {
        return PKV_FAIL(PKV_ERR_STATE, "time between events: both must be timed and recorded");
    }
    pthread_mutex_lock(&device->lock);
    follow(device, NULL, 0);
    if (begin->progress->done < begin->number || end->progress->done < end->number) {
        status = PKV_PENDING;
    } else {
        *ns_out = (uint64_t)fmax(end->time_ns - begin->time_ns, 0);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* ---- life ---- */

enum pkv_status pkvi_sim_event_open(struct pkv_device *device, bool timed,
                                    struct pkv_event **event_out)
{
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an event");
    }
    event->base.device = device;
    event->timed = timed;
    event->references = 1;
    *event_out = &event->base;
    return PKV_OK;
}

void pkvi_sim_event_close(struct pkv_event *base)
{
    struct sim_device *device = sim_device(base->device);
    pthread_mutex_lock(&device->lock);
    release_event(sim_event(base));
    pthread_mutex_unlock(&device->lock);
}

enum pkv_status pkvi_sim_stream_open(struct pkv_device *base, enum pkv_stream_kind kind,
                                     void *native, struct pkv_stream **stream_out)
{
    struct sim_device *device = sim_device(base);
    if (native) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the sim device has no streams of another library");
    }
    struct sim_stream *stream = calloc(1, sizeof *stream);
    struct sim_progress *progress = calloc(1, sizeof *progress);
    if (!stream || !progress) {
        free(stream);
        free(progress);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a stream");
    }
    stream->base = (struct pkv_stream){.device = base, .kind = kind};
    stream->progress = progress;
    stream->before = SIM_IDLE;
    pthread_mutex_lock(&device->lock);
    progress->next = device->progresses;
    device->progresses = progress;
    *device->last_stream = stream;
    device->last_stream = &stream->next;
    pthread_mutex_unlock(&device->lock);
    *stream_out = &stream->base;
    return PKV_OK;
}

void pkvi_sim_stream_close(struct pkv_stream *base)
{
    struct sim_stream *stream = sim_stream(base);
    struct sim_device *device = sim_device(base->device);
    pthread_mutex_lock(&device->lock);
    while (stream->head < stream->count) { /* what is left, and what it waits for */
        settle(device);
        const struct load load = load_of(device);
        const double next = next_ns(device, &load);
        if (stream->head == stream->count || isinf(next)) {
            break;
        }
        pass_to(device, next, &load);
    }
    device->host_ns = fmax(device->host_ns, device->now_ns);
    struct sim_stream **link = &device->streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    if (device->last_stream == &stream->next) {
        device->last_stream = link;
    }
    pthread_mutex_unlock(&device->lock);
    free(stream->queue);
    free(stream);
}
