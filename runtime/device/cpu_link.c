/*
 * cpu_link.c: the emulated link of the cpu device. Both directions have the full speed; the streams
 * share them. Latency is paid by the stream, once a span, and does not occupy the link.
 *
 * Sleeping overshoots, so time is kept by the model, not by the clock: a command that was already
 * waiting begins where the model says that the one before it ended.
 */
#include <errno.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/device/dev_cpu.h"

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void sleep_until(uint64_t end_ns)
{
    struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000u),
                           .tv_nsec = (long)(end_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR) {
    }
}

/* Take the link's direction for so many bytes from start_ns at the earliest; the end of it. */
static uint64_t occupy(struct cpu_device *device, int direction, uint64_t bytes, uint64_t start_ns)
{
    double gbps = device->config.link_gbps; /* 1e9 bytes a second = bytes a nanosecond */
    if (bytes == 0 || gbps <= 0) {
        return start_ns;
    }
    pthread_mutex_lock(&device->link_lock);
    uint64_t end_ns =
        max_u64(start_ns, device->link_free_ns[direction]) + (uint64_t)((double)bytes / gbps);
    device->link_free_ns[direction] = end_ns;
    pthread_mutex_unlock(&device->link_lock);
    return end_ns;
}

void pkvi_cpu_link_charge(struct cpu_stream *stream, const struct cpu_command *command,
                          uint64_t begin_ns, const uint64_t bytes[2], const uint32_t spans[2])
{
    struct cpu_device *device = stream->device;
    uint64_t now_ns = pkvi_clock_ns(), work_ns = now_ns - begin_ns;
    uint64_t start_ns = begin_ns;
    if (stream->link_busy_ns > 0) {
        start_ns = max_u64(stream->link_busy_ns, command->enqueued_ns);
    }
    uint64_t load_ns = occupy(device, 0, bytes[0], start_ns);
    uint64_t store_ns = occupy(device, 1, bytes[1], start_ns);
    double latency_ns = device->config.link_latency_us * 1e3 * (double)(spans[0] + spans[1]);
    uint64_t end_ns = max_u64(load_ns, store_ns) + (uint64_t)latency_ns;
    end_ns = max_u64(end_ns, start_ns + work_ns);
    stream->link_busy_ns = end_ns;
    if (end_ns > now_ns) {
        sleep_until(end_ns);
    }
}
