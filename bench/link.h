/*
 * link.h: what the files of the link command share: link.c (command), link_plan.c (what is
 * measured), link_memory.c (regions), link_copy.c (copies), link_compute.c (kernels, launches),
 * link_kernels.c (kinds of kernels), link_report.c (output), link_profile.c (the profile).
 *
 * A *cell* is one combination that is measured; a *visit* takes one sample of it (a burst of them
 * where single calls are timed). Cells are visited in rounds, so that what drifts on the machine
 * hits all of them. A copy cell moves pieces between a host region and a device region and walks
 * through both: no place is used again before the rest of the region was.
 */
#ifndef PKV_BENCH_LINK_H
#define PKV_BENCH_LINK_H

#include "kernels/kernels.h"
#include "offload/host_arena.h"
#include "runtime/base/topo.h"
#include "runtime/cli/engine.h"
#include "runtime/cli/options.h"
#include "runtime/device/device.h"
#include "runtime/device/profile.h"

#define LINK_STREAMS_MOST 16u /* a direction */
#define LINK_NODES_MOST 16u
#define LINK_SPANS_MOST                                                                            \
    24576u /* a sample and direction: what the cpu device's queue takes at once */
#define LINK_CALLS_MOST 3072u  /* the same */
#define LINK_PIECES_MOST 16384 /* a call */
#define LINK_STRIDE 4u         /* a strided copy takes one piece of so many */
#define LINK_BURST 32u         /* single calls timed a visit */
#define LINK_LIGHT 3u          /* visits a round of what takes little */

enum link_direction { LINK_LOAD, LINK_STORE, LINK_BOTH, LINK_DIRECTIONS };
enum link_pattern { LINK_CONTIGUOUS, LINK_STRIDED, LINK_GATHER, LINK_PATTERNS };
enum link_memory { LINK_PAGEABLE, LINK_HUGE, LINK_PINNED, LINK_MEMORIES };
enum link_compute { LINK_ALONE, LINK_INT8, LINK_READ, LINK_COMPUTES };
#define LINK_DIRECTION_WORDS "host_to_device|device_to_host|both"
#define LINK_PATTERN_WORDS "contiguous|strided|gather"
#define LINK_MEMORY_WORDS "pageable|huge|pinned"
#define LINK_COMPUTE_WORDS "none|int8|read"

enum link_measure {
    LINK_COPY,           /* GB/s of calls in a row */
    LINK_COPY_LATENCY,   /* us from the call to the end of its copy */
    LINK_COPY_WAIT,      /* us from the end of what a stream waits for to its going on */
    LINK_COPY_CALL,      /* us that the call keeps the host */
    LINK_LAUNCH,         /* us a launch takes on its stream, back to back */
    LINK_LAUNCH_LATENCY, /* us from the call to its end */
    LINK_LAUNCH_CALL,    /* us that the call keeps the host */
    LINK_LOCAL_READ,     /* GB/s of device memory read by a kernel */
    LINK_LOCAL_INT8,     /* 1e9 operations a second */
    LINK_LOCAL_F32,
    LINK_KERNEL, /* us a launch of link->works[cell->work] */
};
#define LINK_WORKS 19u

/* What the options say. Choices are 0 = all, else 1 + the word's number. */
struct link_options {
    int device, cpu, direction, pattern, memory, compute, order;
    int64_t threads, min_bytes, max_bytes, region_bytes, memory_bytes, repeats, seed;
    struct pkvi_ints streams, pieces, nodes;
    double link_gbps, link_latency_us;
    const char *profile;
    bool quick, json, quiet;
};

struct link_cell {
    enum link_measure measure;
    enum link_direction direction;
    enum link_pattern pattern;
    enum link_memory memory;
    enum link_compute compute; /* what runs beside it */
    uint32_t node;             /* index in link->nodes */
    uint32_t streams;          /* a direction */
    uint32_t pieces;           /* spans a call */
    bool single;               /* a sweep of a call a piece */
    uint64_t piece_bytes;
    uint32_t calls; /* a sample and direction, all streams; found by the first visit */
    bool light;     /* a sample takes so little that a round takes LINK_LIGHT of them; the same */
    uint32_t launches; /* beside it; the same */
    uint32_t work;     /* LINK_KERNEL: which */
    uint64_t at, key;  /* next place of the walk; of its permutation */
    uint32_t sample_count;
    double *samples;      /* both: of the sum */
    double *load, *store; /* both: of each direction, else NULL */
    double *overlap;      /* with compute: share of the copy's time that it hid, else NULL */
    double *speeds[2];    /* the same: speed of the kernel and of the copy beside the other */
};

/* The memory of a pair: what a copy reads or writes. Pair 1 is for device to host in "both". */
struct link_host {
    uint8_t *base[2];
    pkv_addr addr[2];
    void *map[2]; /* NULL: an arena's */
    uint64_t map_bytes[2];
    struct pkvi_host_arena *arena[2];
    double node_share, huge_share; /* of the first; -1 = unknown */
};

struct link_kernel {
    const struct pkv_kernel *kernel;
    union {
        struct pkv_args_linear linear;
        struct pkv_args_softcap softcap;
        struct pkv_args_norm norm;
        struct pkv_args_attend attend;
    } args;
    struct pkv_cost cost;
};

/* A kernel of a kind as the profile has them, in one shape. */
struct link_work {
    enum pkvi_profile_kind kind;
    const char *shape; /* "launch": next to no work */
    struct link_kernel kernel;
};

/* Streams of one direction, and the event behind the last copy on each. */
struct link_lanes {
    struct pkv_stream *stream[LINK_STREAMS_MOST];
    struct pkv_event *end[LINK_STREAMS_MOST];
    struct pkv_span *spans; /* [LINK_SPANS_MOST] */
};

struct link {
    struct link_options options;
    struct pkvi_topo *topo;
    struct pkv_device *device;
    struct pkv_device_info info;
    struct pkvi_engine_why why_cpu;
    uint32_t nodes[LINK_NODES_MOST], node_count; /* host memory; [0] is the device's, if known */
    uint64_t region_bytes, target_ns;            /* of a region, of a sample */
    uint32_t pairs;                              /* 2 if both directions are measured at once */
    bool cached;                                 /* the regions fit the last-level cache */

    struct link_cell *cells;
    uint32_t cell_count, cell_capacity, rounds;
    double *numbers; /* of all samples */

    uint64_t host_bytes, device_bytes; /* planned */
    struct link_host host[LINK_MEMORIES][LINK_NODES_MOST];
    pkv_addr device_region[2];
    pkv_addr scratch; /* 2 x LINK_SCRATCH_BYTES, pinned */

    pkv_addr kernel_memory;
    pkv_addr zeros; /* pinned; it was filled with */
    struct link_kernel int8, f32, read, nothing;
    pkv_addr works_memory, works_pages; /* of the kinds; pinned, the page table as it was sent */
    struct link_work works[LINK_WORKS];

    struct link_lanes lanes[2]; /* load, store */
    struct pkv_stream *compute;
    struct pkv_event *begin, *compute_begin, *compute_end, *done; /* all timed but `done` */
    uint64_t run_ns;
};
#define LINK_SCRATCH_BYTES 4096u
#define LINK_ZERO_BYTES ((uint64_t)1 << 20) /* of link->zeros */

/* link_place.c: the place in a region of `bytes` of the index-th piece of a walk: its offset. */
uint64_t pkvi_link_place(enum link_pattern pattern, uint64_t bytes, uint64_t piece_bytes,
                         uint64_t key, uint64_t index);
/* Places that a walk has before it begins anew; 0: not even one. */
uint64_t pkvi_link_places(enum link_pattern pattern, uint64_t bytes, uint64_t piece_bytes);

/* link_plan.c: the cells that the options ask for, and room for their samples. Except in gathers
 * and the sweep of a call a piece, pieces up to 4 KiB go 256 a call, larger ones 1 MiB a call. */
enum pkv_status pkvi_link_plan(struct link *link);
/* Samples that one visit takes. */
uint32_t pkvi_link_burst(const struct link_cell *cell);
/* Is region memory of this kind measured on this node? */
bool pkvi_link_uses(const struct link *link, enum link_memory memory, uint32_t node);

/* link_memory.c: PKV_ERR_NO_MEMORY before anything is touched, with the numbers. */
enum pkv_status pkvi_link_memory_open(struct link *link);
void pkvi_link_memory_close(struct link *link);

/* link_copy.c: one visit; the first finds how many calls a sample takes and checks the bytes. */
enum pkv_status pkvi_link_copy_open(struct link *link);
void pkvi_link_copy_close(struct link *link);
enum pkv_status pkvi_link_copy_first(struct link *link, struct link_cell *cell);
enum pkv_status pkvi_link_copy_visit(struct link *link, struct link_cell *cell);

/* link_compute.c: kernels; visits as above. */
uint64_t pkvi_link_compute_bytes(const struct link *link); /* of device memory */
enum pkv_status pkvi_link_compute_open(struct link *link);
void pkvi_link_compute_close(struct link *link);
enum pkv_status pkvi_link_compute_first(struct link *link, struct link_cell *cell);
enum pkv_status pkvi_link_compute_visit(struct link *link, struct link_cell *cell);
const struct link_kernel *pkvi_link_beside(const struct link *link, enum link_compute compute);
enum pkv_status pkvi_link_launch(struct link *link, const struct link_kernel *kernel,
                                 uint32_t launches);
/* So many on an idle stream. */
enum pkv_status pkvi_link_time_launches(struct link *link, const struct link_kernel *kernel,
                                        uint32_t launches, uint64_t *ns_out);

/* link_kernels.c: after pkvi_link_compute_open(); the weights and pages are those of link->read. */
uint64_t pkvi_link_works_bytes(const struct link *link); /* of device memory */
enum pkv_status pkvi_link_works_open(struct link *link);
void pkvi_link_works_close(struct link *link);
/* "linear_q4", "rows_8" of the index-th. */
void pkvi_link_work_name(uint32_t index, const char **kind_out, const char **shape_out);

/* link_report.c: everything to stdout; the exit code. */
int pkvi_link_report(struct link *link);
/* The median of the samples, NAN without any. */
double pkvi_link_median(const double *samples, uint32_t count);
/* The first cell like this, NULL = none; of copies only those that most rows are like: one stream
 * (or the first number of them), nothing beside, the first node. */
const struct link_cell *pkvi_link_find(const struct link *link, struct link_cell like);
const struct link_cell *pkvi_link_find_measure(const struct link *link, enum link_measure measure);

/* link_profile.c */
enum pkv_status pkvi_link_profile(const struct link *link, const char *path);

#endif
