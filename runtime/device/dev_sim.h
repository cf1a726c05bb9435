/*
 * dev_sim.h: the sim device: computes nothing and tells when it would have been done. It is a null
 * device: memory is address space, kernels are their cost() alone, and time is virtual: streams are
 * ordered queues on a clock that a profile (profile.h) drives, the host has a clock of its own that
 * calls and waits move forward. The same calls give the same times, to the last bit.
 *
 * What a host sends on a COMPUTE stream does arrive (spans, views, page tables: cost() reads them);
 * nothing else is written. docs/sim.md says what is charged and what is left out.
 *
 * Shared by dev_sim.c (memory, life), sim_stream.c (queues, time), sim_cost.c (what things take).
 */
#ifndef PKV_DEVICE_DEV_SIM_H
#define PKV_DEVICE_DEV_SIM_H

#include <pthread.h>

#include "runtime/device/device.h"
#include "runtime/device/profile.h"

/*
 * Open it from a profile; pkv_device_open("sim") reads config->profile. Of the config count
 * memory_bytes (0 = no limit), and link_gbps and link_latency_us, which take the place of the
 * profile's link as the cpu device emulates one. PKV_ERR_UNSUPPORTED: a profile measured in caches.
 */
enum pkv_status pkvi_sim_open(const struct pkvi_profile *profile,
                              const struct pkv_device_config *config,
                              struct pkv_device **device_out);

/* What a command takes. Times are nanoseconds of a device that does nothing else. */
struct sim_work {
    double latency_ns;    /* before it, on a stream that was idle */
    double busy_ns;       /* of the device's cores or copy engines */
    double link_bytes[2]; /* load, store: over a link that config asks for */
    double link_ns;       /* and its latency */
    bool copies[2];       /* busy with a copy in this direction; neither: with a kernel */
    double both_share;    /* of the speed that is left while the other direction is busy too */
};

enum sim_kind { SIM_WORK, SIM_RECORD, SIM_WAIT };

/* How far a stream has come; lives until the device closes, as waits may outlast a stream. */
struct sim_progress {
    uint64_t done; /* records passed; a record's number counts from 1 */
    struct sim_progress *next;
};

struct sim_event {
    struct pkv_event base;
    bool timed;
    struct sim_progress *progress; /* of the last record, NULL = never recorded */
    uint64_t number;
    double time_ns;
    uint32_t references; /* the owner, and records that have not passed */
};

struct sim_command {
    enum sim_kind kind;
    double enqueued_ns;
    uint64_t number; /* of the record: made, or waited for */
    union {
        struct sim_work work;
        struct sim_event *event;       /* record */
        struct sim_progress *progress; /* wait */
    } of;
};

struct sim_stream {
    struct pkv_stream base;
    struct sim_progress *progress;
    struct sim_command *queue; /* [head, count) is what it holds */
    uint32_t head, count, capacity;
    uint64_t records;                                /* enqueued */
    enum { SIM_GOING, SIM_IDLE, SIM_WAITED } before; /* the next kernel or copy */
    bool running;                                    /* the head; then: */
    struct sim_work left;
    double link_end_ns;
    struct sim_stream *next;
};

struct sim_block {
    pkv_addr base;
    uint64_t bytes;
    enum pkv_mem mem;
};

struct sim_device {
    struct pkv_device base;
    struct pkv_device_config config;
    struct pkvi_profile profile;
    pthread_mutex_t lock; /* all of it */
    struct sim_block *blocks;
    uint32_t block_count, block_capacity;
    uint64_t used_bytes;
    bool is_cpu; /* the profile is of the cpu device: cores copy, and streams are threads */
    double host_ns, now_ns; /* of the host; how far streams were followed, <= host_ns or waiting */
    double link_free_ns[2];
    struct sim_stream *streams, **last_stream; /* in the order in which they were opened */
    struct sim_progress *progresses;
};

static inline struct sim_device *sim_device(struct pkv_device *device)
{
    return (struct sim_device *)(void *)device;
}

/* dev_sim.c: is it device memory? Lock held. */
bool pkvi_sim_is_device(const struct sim_device *device, pkv_addr addr);

/* sim_cost.c */
struct sim_work pkvi_sim_launch_work(const struct sim_device *device,
                                     const struct pkv_kernel *kernel, const void *args);
/* Lock held. */
struct sim_work pkvi_sim_copy_work(const struct sim_device *device, const struct pkv_span *spans,
                                   uint32_t count);

/* sim_stream.c */
enum pkv_status pkvi_sim_stream_open(struct pkv_device *device, enum pkv_stream_kind kind,
                                     void *native, struct pkv_stream **stream_out);
void pkvi_sim_stream_close(struct pkv_stream *stream);
enum pkv_status pkvi_sim_stream_sync(struct pkv_stream *stream);
enum pkv_status pkvi_sim_copy_async(struct pkv_stream *stream, const struct pkv_span *spans,
                                    uint32_t count);
enum pkv_status pkvi_sim_launch(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                                const void *args);
enum pkv_status pkvi_sim_event_open(struct pkv_device *device, bool timed,
                                    struct pkv_event **event_out);
void pkvi_sim_event_close(struct pkv_event *event);
enum pkv_status pkvi_sim_event_record(struct pkv_event *event, struct pkv_stream *stream);
enum pkv_status pkvi_sim_event_wait(struct pkv_stream *stream, struct pkv_event *event);
enum pkv_status pkvi_sim_event_query(struct pkv_event *event);
enum pkv_status pkvi_sim_event_sync(struct pkv_event *event);
enum pkv_status pkvi_sim_event_elapsed(struct pkv_event *begin, struct pkv_event *end,
                                       uint64_t *ns_out);

#endif
