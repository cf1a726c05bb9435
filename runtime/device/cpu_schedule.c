/*
 * cpu_schedule.c: the cpu device without workers. Whoever calls runs the streams' commands, one at
 * a time, in an order that the seed decides; only order within a stream and waits for events hold
 * it. A missing wait then shows as wrong data, not once in a million runs but at most seeds.
 *
 *   LAZY         nothing runs before the host waits; then a stream by chance goes on as far as it
 *                may
 *   RANDOM       after each call some commands run, each of a stream by chance; streams sleep now
 *                and then, and go on meanwhile only when the host waits and no other can: else each
 *                would keep up with the others
 *   ADVERSARIAL  streams of the kind named first run at once as far as they may; the others only
 *                when the host waits and the first cannot go on, and those of the kind named last
 *                when no other can
 */
#include "runtime/device/dev_cpu.h"

#include "runtime/base/check.h"

#define ASLEEP_STEPS 32 /* of all streams, on average, before others are asleep */

static uint32_t chance(struct cpu_device *device, uint32_t limit)
{
    /* xorshift64*; the seed is made odd at open */
    device->rng ^= device->rng >> 12;
    device->rng ^= device->rng << 25;
    device->rng ^= device->rng >> 27;
    return (uint32_t)(((device->rng * 0x2545f4914f6cdd1du >> 32) * limit) >> 32);
}

static struct cpu_command *runnable(struct cpu_stream *stream)
{
    struct cpu_command *command = pkvi_ring_peek(&stream->ring);
    if (command && command->kind == CPU_WAIT &&
        !cpu_has_passed(command->of.progress, command->number)) {
        return NULL;
    }
    return command;
}

enum rank { LAST, BETWEEN, FIRST };

static void put_to_sleep(struct cpu_device *device)
{
    if (device->config.schedule == PKV_SCHEDULE_RANDOM && chance(device, ASLEEP_STEPS) == 0) {
        for (struct cpu_stream *stream = device->streams; stream; stream = stream->next) {
            stream->asleep = chance(device, 2) == 0;
        }
    }
}

static enum rank rank_of(const struct cpu_device *device, const struct cpu_stream *stream)
{
    const struct pkv_device_config *config = &device->config;
    const uint32_t kind = (uint32_t)stream->base.kind;
    if (config->schedule != PKV_SCHEDULE_ADVERSARIAL) {
        return stream->asleep ? LAST : BETWEEN;
    }
    return kind == config->schedule_first      ? FIRST
           : kind + 1 == config->schedule_last ? LAST
                                               : BETWEEN;
}

/* A stream that may go on, by chance among those of the highest rank from `least` on. */
static struct cpu_stream *pick(struct cpu_device *device, enum rank least)
{
    struct cpu_stream *picked = NULL;
    uint32_t count = 0;
    for (struct cpu_stream *stream = device->streams; stream; stream = stream->next) {
        const enum rank rank = rank_of(device, stream);
        if (!runnable(stream) || rank < least) {
            continue;
        }
        if (rank > least) {
            least = rank;
            count = 0;
        }
        if (chance(device, ++count) == 0) {
            picked = stream;
        }
    }
    return picked;
}

static bool step(struct cpu_device *device, enum rank least)
{
    struct cpu_stream *stream = device->current;
    put_to_sleep(device);
    if (device->config.schedule != PKV_SCHEDULE_LAZY || !stream || !runnable(stream)) {
        stream = pick(device, least);
    }
    device->current = stream;
    if (!stream) {
        return false;
    }
    pkvi_cpu_execute(stream, runnable(stream));
    return true;
}

void pkvi_cpu_schedule_enqueued(struct cpu_device *device)
{
    if (device->config.schedule == PKV_SCHEDULE_LAZY) {
        return;
    }
    pthread_mutex_lock(&device->turn);
    if (device->config.schedule == PKV_SCHEDULE_RANDOM) {
        while (chance(device, 2) == 0 && step(device, BETWEEN)) {
        }
    } else {
        while (step(device, FIRST)) {
        }
    }
    pthread_mutex_unlock(&device->turn);
}

bool pkvi_cpu_schedule_step(struct cpu_device *device)
{
    pthread_mutex_lock(&device->turn);
    bool ran = step(device, LAST);
    pthread_mutex_unlock(&device->turn);
    return ran;
}

enum pkv_status pkvi_cpu_schedule_until(struct cpu_device *device, struct cpu_progress *progress,
                                        uint64_t number)
{
    while (!cpu_has_passed(progress, number)) {
        if (!pkvi_cpu_schedule_step(device) && !cpu_has_passed(progress, number)) {
            return PKV_FAIL(PKV_ERR_STATE, "no stream of the device can go on");
        }
    }
    return PKV_OK;
}

void pkvi_cpu_schedule_drain(struct cpu_stream *stream)
{
    struct cpu_device *device = stream->device;
    pthread_mutex_lock(&device->turn);
    while (pkvi_ring_peek(&stream->ring) && step(device, LAST)) {
    }
    for (struct cpu_stream **link = &device->streams; *link; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    if (device->current == stream) {
        device->current = NULL;
    }
    pthread_mutex_unlock(&device->turn);
}
