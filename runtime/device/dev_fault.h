/*
 * dev_fault.h: a device around another one that fails or delays calls, for tests. Everything else
 * goes through unchanged.
 */
#ifndef PKV_DEVICE_DEV_FAULT_H
#define PKV_DEVICE_DEV_FAULT_H

#include "pivotkv/impl/device_ops.h"

/* X(enumerator, text) */
#define PKVI_FAULT_LIST(X)                                                                         \
    X(PKVI_FAULT_ALLOC, "mem_alloc")                                                               \
    X(PKVI_FAULT_PIN, "mem_pin")                                                                   \
    X(PKVI_FAULT_STREAM_OPEN, "stream_open")                                                       \
    X(PKVI_FAULT_STREAM_SYNC, "stream_sync")                                                       \
    X(PKVI_FAULT_COPY, "copy_async")                                                               \
    X(PKVI_FAULT_LAUNCH, "launch")                                                                 \
    X(PKVI_FAULT_EVENT_OPEN, "event_open")                                                         \
    X(PKVI_FAULT_EVENT_RECORD, "event_record")                                                     \
    X(PKVI_FAULT_EVENT_WAIT, "event_wait")                                                         \
    X(PKVI_FAULT_EVENT_QUERY, "event_query")                                                       \
    X(PKVI_FAULT_EVENT_SYNC, "event_sync")

enum pkvi_fault_call {
#define PKVI_FAULT_ENUM(name, text) name,
    PKVI_FAULT_LIST(PKVI_FAULT_ENUM)
#undef PKVI_FAULT_ENUM
        PKVI_FAULT_CALLS
};

/* Zeroed: nothing fails, nothing is delayed. Counts start at 1 when the config is set. */
struct pkvi_fault_config {
    uint64_t fail_call;              /* the n-th call of any kind fails, 0 = none */
    uint64_t fail[PKVI_FAULT_CALLS]; /* the n-th call of this kind fails, 0 = none */
    enum pkv_status status;          /* what it returns; 0 = PKV_ERR_DEVICE_LOST */
    bool lasting;                    /* all calls after it fail too */
    bool async;                      /* copy and launch: the call succeeds, the stream fails */
    uint32_t delay_us; /* copies, launches and records wait up to so long, by chance */
    uint64_t seed;
};

/* `below` is borrowed: close it after this one. Closed by pkv_device_close(). */
enum pkv_status pkvi_fault_open(struct pkv_device *below, const struct pkvi_fault_config *config,
                                struct pkv_device **device_out);

/* Change what fails from now on; counts start anew. No call may be running. */
void pkvi_fault_set(struct pkv_device *device, const struct pkvi_fault_config *config);

/* Calls of a kind since the config was set; PKVI_FAULT_CALLS = of all kinds. */
uint64_t pkvi_fault_count(struct pkv_device *device, enum pkvi_fault_call call);

/* Most bytes of this kind of memory that were allocated or pinned at once, of up to 256 pieces,
 * since the last call; those that are in use now are where it begins anew. */
uint64_t pkvi_fault_most_bytes(struct pkv_device *device, enum pkv_mem mem);

#endif
