/*
 * device_ops.h: what a device is, for authors of devices.
 *
 * A device is one const table, chosen once at open. `sim` and `fault` wrap another device
 * ("below"). Optional entries say so. Argument checks and defaults live in runtime/device/device.c,
 * not in devices.
 */
#ifndef PIVOTKV_IMPL_DEVICE_OPS_H
#define PIVOTKV_IMPL_DEVICE_OPS_H

#include "pivotkv/device.h"
#include "pivotkv/types.h"

#define PKV_DEVICE_ABI 2u

enum pkv_cap {
    PKV_CAP_READS_HOST = 1,   /* kernels may read pinned host memory */
    PKV_CAP_GRAPHS = 2,       /* graph_* are there */
    PKV_CAP_NO_DATA = 4,      /* nothing is computed: time only; what the host sends on a COMPUTE
                                 stream arrives, nothing else is ever written */
    PKV_CAP_VIRTUAL_TIME = 8, /* event_elapsed is the time of a model */
    PKV_CAP_SHARES_CORES = 16 /* streams take their time from each other: nothing overlaps */
};

struct pkv_span {
    pkv_addr dst, src;
    uint64_t bytes;
};

/* Upper bounds of what one launch does: for sim, plan and the link throttle. */
struct pkv_cost {
    double flops;
    uint64_t local_bytes; /* device memory read and written */
    uint64_t load_bytes;  /* read from pinned host memory over the link */
    uint64_t store_bytes; /* written to it */
};

/* One variant of one operation. Arguments are copied at launch; they may point to device memory. */
struct pkv_kernel {
    uint32_t op;         /* enum pkv_op */
    const char *variant; /* "scalar", "avx2", ... */
    uint32_t caps, args_bytes;
    enum pkv_status (*launch)(void *native_stream, const void *args);
    /* Runs on the host and reads args; of attend also the spans that they point to, which must be
     * host memory: the cpu and sim devices' is, who asks for another device's kernel hands in args
     * with a copy (bench/link_kernels.c). scripts/check-layers knows all callers. */
    void (*cost)(const void *args, struct pkv_cost *cost_out);
};

/*
 * The table. Threads: a device's calls may come from any thread; one stream, one event from one
 * thread at a time. Nothing but stream_sync blocks. An asynchronous failure is kept by its stream:
 * every later call on it and every event behind it returns that error.
 */
struct pkv_device_ops {
    uint32_t abi;
    const char *name;
    enum pkv_status (*open)(const struct pkv_device_config *config, struct pkv_device *below,
                            struct pkv_device **device_out);
    void (*close)(struct pkv_device *device); /* streams and events must be closed before */
    enum pkv_status (*query)(struct pkv_device *device, struct pkv_device_info *info_out);

    enum pkv_status (*mem_alloc)(struct pkv_device *device, enum pkv_mem mem, uint64_t bytes,
                                 pkv_addr *addr_out);
    void (*mem_free)(struct pkv_device *device, enum pkv_mem mem, pkv_addr addr);
    /* Optional: make allocated memory resident now, where the system would do so at first use. */
    void (*mem_touch)(struct pkv_device *device, pkv_addr addr, uint64_t bytes);
    enum pkv_status (*mem_pin)(struct pkv_device *device, void *base, uint64_t bytes,
                               pkv_addr *addr_out);
    void (*mem_unpin)(struct pkv_device *device, void *base);

    enum pkv_status (*stream_open)(struct pkv_device *device, enum pkv_stream_kind kind,
                                   void *native_or_null, struct pkv_stream **stream_out);
    void (*stream_close)(struct pkv_stream *stream);
    enum pkv_status (*stream_sync)(struct pkv_stream *stream);

    /*
     * Spans are copied at the call; a span may go host-device, device-host or device-device. Those
     * of one call may run in any order: none may write what another reads or writes. Host memory
     * that is not pinned may make the call wait.
     */
    enum pkv_status (*copy_async)(struct pkv_stream *stream, const struct pkv_span *spans,
                                  uint32_t count);
    const struct pkv_kernel *(*kernel)(struct pkv_device *device, uint32_t op);
    enum pkv_status (*launch)(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                              const void *args);

    enum pkv_status (*event_open)(struct pkv_device *device, bool timed,
                                  struct pkv_event **event_out);
    void (*event_close)(struct pkv_event *event);
    enum pkv_status (*event_record)(struct pkv_event *event, struct pkv_stream *stream);
    enum pkv_status (*event_wait)(struct pkv_stream *stream, struct pkv_event *event);
    /* OK, PENDING, or the asynchronous error. */
    enum pkv_status (*event_query)(struct pkv_event *event);
    /* Blocks the host until the event has passed: the token read-back, nothing else. */
    enum pkv_status (*event_sync)(struct pkv_event *event);
    enum pkv_status (*event_elapsed)(struct pkv_event *begin, struct pkv_event *end,
                                     uint64_t *ns_out);
    /* The time as the host of this device has it; NULL: that of the machine. */
    uint64_t (*clock_ns)(struct pkv_device *device);
};

/* Every object of a device starts with this, so that device.c finds its table. */
struct pkv_device {
    const struct pkv_device_ops *ops;
    struct pkv_device *below; /* of a wrapper, else NULL */
};
struct pkv_stream {
    struct pkv_device *device;
    enum pkv_stream_kind kind;
};
struct pkv_event {
    struct pkv_device *device;
};

#endif
