/* device.c: defaults, argument checks and the choice of a table. Knows no device's inside. */
#include "runtime/device/device.h"

#include <math.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

#define MAX_THREADS 1024u
#define MAX_LATENCY_US 1e6

#ifdef PKV_HAVE_CUDA
#define DEVICES "cpu, cuda, sim"
#else
#define DEVICES "cpu, sim; cuda is in builds that found a CUDA toolkit"
#endif

static const struct pkv_device_ops *const devices[] = {
    &pkvi_cpu_device_ops,
#ifdef PKV_HAVE_CUDA
    &pkvi_cuda_device_ops,
#endif
    &pkvi_sim_device_ops,
};

struct pkv_device_config pkv_device_config_default(void)
{
    return (struct pkv_device_config){.struct_bytes = sizeof(struct pkv_device_config)};
}

static enum pkv_status check_config(const struct pkv_device_config *config)
{
    if (config->threads > MAX_THREADS) {
        return PKV_FAIL(PKV_ERR_RANGE, "threads %u: expected 0 to %u", config->threads,
                        MAX_THREADS);
    }
    if ((int)config->cpu < PKV_CPU_AUTO || config->cpu > PKV_CPU_NEON) {
        return PKV_FAIL(PKV_ERR_INVALID, "cpu %d: no such instruction set", (int)config->cpu);
    }
    if (!isfinite(config->link_gbps) || config->link_gbps < 0) {
        return PKV_FAIL(PKV_ERR_RANGE, "link speed %g GB/s: expected a number from 0",
                        config->link_gbps);
    }
    if (!isfinite(config->link_latency_us) || config->link_latency_us < 0 ||
        config->link_latency_us > MAX_LATENCY_US) {
        return PKV_FAIL(PKV_ERR_RANGE, "link latency %g us: expected 0 to %g",
                        config->link_latency_us, MAX_LATENCY_US);
    }
    if ((int)config->schedule < 0 || config->schedule > PKV_SCHEDULE_ADVERSARIAL) {
        return PKV_FAIL(PKV_ERR_INVALID, "schedule %d: no such schedule", (int)config->schedule);
    }
    if (config->schedule_first > PKV_STORE) {
        return PKV_FAIL(PKV_ERR_INVALID, "schedule_first %u: no such kind of stream",
                        config->schedule_first);
    }
    if (config->schedule_last > PKV_STORE + 1u) {
        return PKV_FAIL(PKV_ERR_INVALID, "schedule_last %u: expected 0, or 1 + a kind of stream",
                        config->schedule_last);
    }
    return PKV_OK;
}

enum pkv_status pkvi_device_open_ops(const struct pkv_device_ops *ops,
                                     const struct pkv_device_config *config,
                                     struct pkv_device *below, struct pkv_device **device_out)
{
    if (!ops || !device_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a device: NULL argument");
    }
    if (ops->abi != PKV_DEVICE_ABI) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "device %s has interface %u, this build wants %u",
                        ops->name, ops->abi, PKV_DEVICE_ABI);
    }
    struct pkv_device_config whole = pkv_device_config_default();
    if (config) {
        if (config->struct_bytes == 0 || config->struct_bytes > sizeof whole) {
            return PKV_FAIL(PKV_ERR_INVALID,
                            "device config of %u bytes: begin with pkv_device_config_default()",
                            config->struct_bytes);
        }
        memcpy(&whole, config, config->struct_bytes); /* fields an older caller lacks: defaults */
        whole.struct_bytes = sizeof whole;
    }
    PKV_TRY(check_config(&whole));
    return ops->open(&whole, below, device_out);
}

enum pkv_status pkv_device_open(const char *name, const struct pkv_device_config *config,
                                struct pkv_device **device_out)
{
    if (!name || !device_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a device: NULL argument");
    }
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        if (strcmp(devices[i]->name, name) == 0) {
            return pkvi_device_open_ops(devices[i], config, NULL, device_out);
        }
    }
    return PKV_FAIL(PKV_ERR_UNSUPPORTED, "device '%.64s' is not in this build; it has: " DEVICES,
                    name);
}

void pkv_device_close(struct pkv_device *device)
{
    if (device) {
        device->ops->close(device);
    }
}

enum pkv_status pkv_device_query(struct pkv_device *device, struct pkv_device_info *info_out)
{
    if (!device || !info_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "query a device: NULL argument");
    }
    return device->ops->query(device, info_out);
}

uint64_t pkv_device_clock_ns(struct pkv_device *device)
{
    while (device && !device->ops->clock_ns && device->below) {
        device = device->below;
    }
    return device && device->ops->clock_ns ? device->ops->clock_ns(device) : pkvi_clock_ns();
}

enum pkv_status pkvi_mem_alloc(struct pkv_device *device, enum pkv_mem mem, uint64_t bytes,
                               pkv_addr *addr_out)
{
    if (!device || !addr_out || bytes == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "allocate %llu bytes: NULL argument or no bytes",
                        (unsigned long long)bytes);
    }
    return device->ops->mem_alloc(device, mem, bytes, addr_out);
}

void pkvi_mem_free(struct pkv_device *device, enum pkv_mem mem, pkv_addr addr)
{
    if (device && addr) {
        device->ops->mem_free(device, mem, addr);
    }
}

void pkvi_mem_touch(struct pkv_device *device, pkv_addr addr, uint64_t bytes)
{
    if (addr && bytes > 0 && device->ops->mem_touch) {
        device->ops->mem_touch(device, addr, bytes);
    }
}

enum pkv_status pkvi_mem_pin(struct pkv_device *device, void *base, uint64_t bytes,
                             pkv_addr *addr_out)
{
    if (!device || !base || !addr_out || bytes == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "pin %llu bytes: NULL argument or no bytes",
                        (unsigned long long)bytes);
    }
    return device->ops->mem_pin(device, base, bytes, addr_out);
}

void pkvi_mem_unpin(struct pkv_device *device, void *base)
{
    if (device && base) {
        device->ops->mem_unpin(device, base);
    }
}

enum pkv_status pkvi_stream_open(struct pkv_device *device, enum pkv_stream_kind kind,
                                 void *native_or_null, struct pkv_stream **stream_out)
{
    if (!device || !stream_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a stream: NULL argument");
    }
    if ((int)kind < PKV_COMPUTE || kind > PKV_STORE) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a stream: no such kind as %d", (int)kind);
    }
    return device->ops->stream_open(device, kind, native_or_null, stream_out);
}

void pkvi_stream_close(struct pkv_stream *stream)
{
    if (stream) {
        stream->device->ops->stream_close(stream);
    }
}

enum pkv_status pkvi_stream_sync(struct pkv_stream *stream)
{
    if (!stream) {
        return PKV_FAIL(PKV_ERR_INVALID, "wait for a stream: NULL argument");
    }
    return stream->device->ops->stream_sync(stream);
}

enum pkv_status pkvi_copy_async(struct pkv_stream *stream, const struct pkv_span *spans,
                                uint32_t count)
{
    if (!stream || (!spans && count > 0)) {
        return PKV_FAIL(PKV_ERR_INVALID, "copy %u spans: NULL argument", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct pkv_span *span = &spans[i];
        if (span->bytes > 0 && (span->dst == 0 || span->src == 0)) {
            return PKV_FAIL(PKV_ERR_INVALID, "copy span %u of %u: address 0", i, count);
        }
        if (span->bytes > UINT64_MAX - span->dst || span->bytes > UINT64_MAX - span->src) {
            return PKV_FAIL(PKV_ERR_RANGE, "copy span %u of %u: %llu bytes pass the last address",
                            i, count, (unsigned long long)span->bytes);
        }
    }
    return count == 0 ? PKV_OK : stream->device->ops->copy_async(stream, spans, count);
}

const struct pkv_kernel *pkvi_device_kernel(struct pkv_device *device, uint32_t op)
{
    return device ? device->ops->kernel(device, op) : NULL;
}

enum pkv_status pkvi_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                            const void *args)
{
    if (!stream || !kernel || !args) {
        return PKV_FAIL(PKV_ERR_INVALID, "launch: NULL argument");
    }
    return stream->device->ops->launch(stream, kernel, args);
}

enum pkv_status pkvi_event_open(struct pkv_device *device, bool timed, struct pkv_event **event_out)
{
    if (!device || !event_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open an event: NULL argument");
    }
    return device->ops->event_open(device, timed, event_out);
}

void pkvi_event_close(struct pkv_event *event)
{
    if (event) {
        event->device->ops->event_close(event);
    }
}

enum pkv_status pkvi_event_record(struct pkv_event *event, struct pkv_stream *stream)
{
    if (!event || !stream || event->device != stream->device) {
        return PKV_FAIL(PKV_ERR_INVALID, "record an event: NULL or another device's");
    }
    return event->device->ops->event_record(event, stream);
}

enum pkv_status pkvi_event_wait(struct pkv_stream *stream, struct pkv_event *event)
{
    if (!event || !stream || event->device != stream->device) {
        return PKV_FAIL(PKV_ERR_INVALID, "wait for an event: NULL or another device's");
    }
    return event->device->ops->event_wait(stream, event);
}

enum pkv_status pkvi_event_query(struct pkv_event *event)
{
    if (!event) {
        return PKV_FAIL(PKV_ERR_INVALID, "query an event: NULL argument");
    }
    return event->device->ops->event_query(event);
}

enum pkv_status pkvi_event_sync(struct pkv_event *event)
{
    if (!event) {
        return PKV_FAIL(PKV_ERR_INVALID, "wait for an event: NULL argument");
    }
    return event->device->ops->event_sync(event);
}

enum pkv_status pkvi_event_elapsed(struct pkv_event *begin, struct pkv_event *end, uint64_t *ns_out)
{
    if (!begin || !end || !ns_out || begin->device != end->device) {
        return PKV_FAIL(PKV_ERR_INVALID, "time between events: NULL or of two devices");
    }
    return begin->device->ops->event_elapsed(begin, end, ns_out);
}
