/*
 * device.h: how the runtime calls devices. Arguments are checked here, once, then the table of
 * impl/device_ops.h is called; what a call means, its errors and threads stand there.
 */
#ifndef PKV_DEVICE_DEVICE_H
#define PKV_DEVICE_DEVICE_H

#include "pivotkv/impl/device_ops.h"

/*
 * Open a device from its table. `below` is what a wrapper wraps, else NULL; the wrapper does not
 * own it. pkv_device_open() does this by name.
 */
enum pkv_status pkvi_device_open_ops(const struct pkv_device_ops *ops,
                                     const struct pkv_device_config *config,
                                     struct pkv_device *below, struct pkv_device **device_out);

/* 64-byte aligned, at least; 2 MiB and more lie on huge pages where the machine has them. */
enum pkv_status pkvi_mem_alloc(struct pkv_device *device, enum pkv_mem mem, uint64_t bytes,
                               pkv_addr *addr_out);
void pkvi_mem_free(struct pkv_device *device, enum pkv_mem mem, pkv_addr addr); /* 0 allowed */
/* Fault it in now instead of while it is used. Cost: the system zeroes some GB/s. */
void pkvi_mem_touch(struct pkv_device *device, pkv_addr addr, uint64_t bytes);
enum pkv_status pkvi_mem_pin(struct pkv_device *device, void *base, uint64_t bytes,
                             pkv_addr *addr_out);
void pkvi_mem_unpin(struct pkv_device *device, void *base);

enum pkv_status pkvi_stream_open(struct pkv_device *device, enum pkv_stream_kind kind,
                                 void *native_or_null, struct pkv_stream **stream_out);
void pkvi_stream_close(struct pkv_stream *stream); /* waits for what it holds; NULL allowed */
enum pkv_status pkvi_stream_sync(struct pkv_stream *stream);

/* NULL if the device has no such operation. */
const struct pkv_kernel *pkvi_device_kernel(struct pkv_device *device, uint32_t op);

/*
 * Enqueuing does not block, with one exception that is counted and logged: the cpu device's queue
 * is full (1 MiB: about 3000 launches of 256 bytes of arguments, 40000 spans); it then waits for
 * room. Cost on the cpu device: 50-200 ns a call.
 */
enum pkv_status pkvi_copy_async(struct pkv_stream *stream, const struct pkv_span *spans,
                                uint32_t count);
enum pkv_status pkvi_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                            const void *args);

enum pkv_status pkvi_event_open(struct pkv_device *device, bool timed,
                                struct pkv_event **event_out);
void pkvi_event_close(struct pkv_event *event); /* NULL allowed */
enum pkv_status pkvi_event_record(struct pkv_event *event, struct pkv_stream *stream);

/* What the stream gets from now on runs after the event's last record; none: at once. */
enum pkv_status pkvi_event_wait(struct pkv_stream *stream, struct pkv_event *event);
enum pkv_status pkvi_event_query(struct pkv_event *event);
enum pkv_status pkvi_event_sync(struct pkv_event *event);
enum pkv_status pkvi_event_elapsed(struct pkv_event *begin, struct pkv_event *end,
                                   uint64_t *ns_out);

/* Tables. */
extern const struct pkv_device_ops pkvi_cpu_device_ops;
extern const struct pkv_device_ops pkvi_sim_device_ops;
#ifdef PKV_HAVE_CUDA
extern const struct pkv_device_ops pkvi_cuda_device_ops;
#endif

#endif
