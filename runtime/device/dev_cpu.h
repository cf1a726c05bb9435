/*
 * dev_cpu.h: what the files of the cpu device share: dev_cpu.c (memory, life), cpu_stream.c
 * (queues, events), cpu_schedule.c (the test schedules), cpu_link.c (the emulated link). */
#ifndef PKV_DEVICE_DEV_CPU_H
#define PKV_DEVICE_DEV_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/kernels.h"
#include "pivotkv/impl/device_ops.h"
#include "runtime/base/ring.h"

/*
 * How far one stream has come. Lives until the device closes, so that events and waits may outlast
 * their stream.
 */
struct cpu_progress {
    _Alignas(64) _Atomic uint64_t done; /* records passed; a record's number counts from 1 */
    _Atomic uint32_t beat;              /* grows with `done`: the word that waiters sleep on */
    _Atomic uint32_t sleepers;
    _Atomic int error;    /* enum pkv_status; published after the two fields below */
    uint64_t error_after; /* records that had passed when it happened */
    char error_text[512];
    struct cpu_progress *next;
};

enum cpu_command_kind { CPU_LAUNCH, CPU_COPY, CPU_RECORD, CPU_WAIT };

/* A record of a stream's ring; what follows it is a launch's arguments or a copy's spans. */
struct cpu_command {
    enum cpu_command_kind kind;
    uint32_t count;       /* spans */
    uint64_t enqueued_ns; /* with an emulated link only */
    union {
        const struct pkv_kernel *kernel;
        struct cpu_event *event;       /* record: timed event or NULL */
        struct cpu_progress *progress; /* wait */
    } of;
    uint64_t number; /* of the record: the one made, the one waited for */
    _Alignas(16) uint8_t payload[];
};

struct cpu_device;

struct cpu_stream {
    struct pkv_stream base;
    struct cpu_device *device;
    struct cpu_progress *progress;
    struct pkvi_cpu_stream native; /* what kernels get */
    struct pkvi_ring ring;
    uint64_t records;      /* enqueued; the producer's */
    uint64_t full_waits;   /* times the producer found the ring full */
    uint64_t link_busy_ns; /* modelled end of the last command; the consumer's */
    uint32_t spin_us;
    pthread_t thread;
    _Alignas(64) _Atomic uint32_t enqueued; /* the word that the worker sleeps on */
    _Atomic uint32_t sleeping, stop;
    bool asleep; /* of a random schedule */
    struct cpu_stream *next;
};

struct cpu_event {
    struct pkv_event base;
    bool timed;
    struct cpu_progress *progress; /* of the last record, NULL = never recorded */
    uint64_t number;
    _Atomic uint64_t time_ns;
    _Atomic uint32_t references; /* the owner, and timed records not run yet */
};

struct cpu_block {
    uint64_t base, bytes, mapped_bytes; /* mapped_bytes 0: from malloc */
    enum pkv_mem mem;
    bool owned; /* false: pinned memory of the caller */
};

struct cpu_device {
    struct pkv_device base;
    struct pkv_device_config config;
    enum pkv_cpu cpu;
    uint32_t threads;

    pthread_mutex_t lock; /* what follows */
    struct cpu_block *blocks;
    size_t block_count, block_capacity;
    uint64_t used_bytes; /* device memory given out */
    struct cpu_progress *progresses;

    pthread_mutex_t link_lock;
    uint64_t link_free_ns[2]; /* load, store: when the link's direction is free again */

    pthread_mutex_t turn; /* test schedules: held while commands run; also guards `streams` */
    struct cpu_stream *streams, *current;
    uint64_t rng;
};

static inline struct cpu_device *cpu_device(struct pkv_device *device)
{
    return (struct cpu_device *)(void *)device;
}

static inline bool cpu_has_link(const struct cpu_device *device)
{
    return device->config.link_gbps > 0 || device->config.link_latency_us > 0;
}

static inline bool cpu_has_passed(struct cpu_progress *progress, uint64_t number)
{
    return atomic_load_explicit(&progress->done, memory_order_acquire) >= number;
}

/* dev_cpu.c: the kind of memory an address lies in; unknown addresses are host memory. */
enum pkv_mem pkvi_cpu_mem_of(struct cpu_device *device, uint64_t addr);

/* cpu_stream.c */
enum pkv_status pkvi_cpu_stream_open(struct pkv_device *device, enum pkv_stream_kind kind,
                                     void *native, struct pkv_stream **stream_out);
void pkvi_cpu_stream_close(struct pkv_stream *stream);
enum pkv_status pkvi_cpu_stream_sync(struct pkv_stream *stream);
enum pkv_status pkvi_cpu_copy_async(struct pkv_stream *stream, const struct pkv_span *spans,
                                    uint32_t count);
enum pkv_status pkvi_cpu_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                                const void *args);
enum pkv_status pkvi_cpu_event_open(struct pkv_device *device, bool timed,
                                    struct pkv_event **event_out);
void pkvi_cpu_event_close(struct pkv_event *event);
enum pkv_status pkvi_cpu_event_record(struct pkv_event *event, struct pkv_stream *stream);
enum pkv_status pkvi_cpu_event_wait(struct pkv_stream *stream, struct pkv_event *event);
enum pkv_status pkvi_cpu_event_query(struct pkv_event *event);
enum pkv_status pkvi_cpu_event_sync(struct pkv_event *event);
enum pkv_status pkvi_cpu_event_elapsed(struct pkv_event *begin, struct pkv_event *end,
                                       uint64_t *ns_out);
/* Run the oldest command and pop it. A wait must have passed. */
void pkvi_cpu_execute(struct cpu_stream *stream, struct cpu_command *command);

/* cpu_schedule.c: one thread runs everything, in an order that the seed decides. */
void pkvi_cpu_schedule_enqueued(struct cpu_device *device); /* a command was added */
bool pkvi_cpu_schedule_step(struct cpu_device *device);     /* run one; false: none may run */
enum pkv_status pkvi_cpu_schedule_until(struct cpu_device *device, struct cpu_progress *progress,
                                        uint64_t number);
void pkvi_cpu_schedule_drain(struct cpu_stream *stream); /* run this stream to its end */

/*
 * cpu_link.c: sleep until a command that began at begin_ns and moved so many bytes over the link in
 * `spans` pieces would have ended. [0] load (to the device), [1] store.
 */
void pkvi_cpu_link_charge(struct cpu_stream *stream, const struct cpu_command *command,
                          uint64_t begin_ns, const uint64_t bytes[2], const uint32_t spans[2]);

#endif
