/*
 * host_fake.h: a host and a device for tests of the host arena: made-up NUMA shapes and limits, any
 * call made to fail, everything counted. One at a time.
 */
#ifndef PKV_TEST_HOST_FAKE_H
#define PKV_TEST_HOST_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/host_arena.h"

#define PKVT_HOST_PINS 64u

struct pkvt_host_pin {
    const uint8_t *base; /* NULL = unpinned again */
    uint64_t bytes;
    pkv_addr addr;
};

struct pkvt_host {
    /* What the host is like. */
    const char *topology; /* hwloc(7); NULL = one node, number 0 */
    int32_t device_node;
    int first_cpu, last_cpu;  /* that this thread may use */
    uint64_t available_bytes; /* UINT64_MAX = unknown */
    uint64_t cgroup_limit_bytes, cgroup_used_bytes, memlock_bytes;
    bool may_lock, untouched; /* untouched: populating does nothing */
    const char *huge_pages;
    int page_node; /* where every page is found; -1 = ask the kernel */

    /* What fails. */
    uint64_t fail_call;    /* the n-th call, 0 = none */
    const char *fail_name; /* every call of this name ("bind", ...) */
    int fail_errno;
    uint64_t fail_pin; /* the n-th pin, 0 = none */
    enum pkv_status pin_status;

    /* What was seen. */
    uint64_t call_count, mapped_bytes, pin_count;
    const char *failed; /* name of the last failed call; NULL = none */
    char trace[2048];   /* names in order, one blank behind each; of a run of equals the first */
    struct pkvt_host_pin pins[PKVT_HOST_PINS];
    uint64_t bound_bytes;
    uint32_t bound_node;
    bool bound_strict;
    struct pkvi_topo_cpus ran_on[2]; /* first and last */
    void *kept_map;                  /* of the last refused munmap */
    uint64_t kept_bytes;
};

extern struct pkvt_host pkvt_host;
extern const struct pkvi_host_calls pkvt_host_calls;

/* One node, plenty of everything, nothing fails, nothing seen. */
void pkvt_host_reset(void);

/* The cpu device with pins of pkvt_host; device addresses differ from host addresses. */
struct pkv_device *pkvt_host_device(void);

/* Pins that are not undone. */
uint64_t pkvt_host_pinned(void);

/* NULL = no such note. */
const char *pkvt_host_note(const struct pkvi_host_arena *arena, const char *name);

#endif
