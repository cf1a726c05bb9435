/*
 * host_arena.h: the memory of the host tier: one mapping on the device's NUMA node, pinned in
 * pieces and cut into blocks of one size. Knows where memory lies and which limits hold; refuses to
 * know what is in it. docs/memory.md is for those who run into the limits.
 */
#ifndef PKV_OFFLOAD_HOST_ARENA_H
#define PKV_OFFLOAD_HOST_ARENA_H

#include "offload/host_calls.h"
#include "pivotkv/device.h"

#define PKVI_HOST_PIECE_BYTES ((uint64_t)1 << 30)
#define PKVI_HOST_NOTES 16u

struct pkvi_host_arena;

struct pkvi_host_arena_config {
    uint64_t bytes;       /* most to take: as many whole blocks as fit, at least one */
    uint64_t block_bytes; /* a block never straddles two pieces */
    uint64_t piece_bytes; /* most that one pin takes: whole pages; 0 = 1 GiB, also the most */
    int32_t node;         /* NUMA node; -1 = the device's */
    uint32_t threads;     /* that touch; 0 = the node's CPUs, at most 16 */
    bool allow_unpinned;  /* go on where a pin is refused */
    const struct pkvi_host_calls *calls_or_null; /* NULL = the real ones */
};

/* Something that is not as wished: what, which limit, the command that raises it. */
struct pkvi_host_note {
    const char *name; /* "node", "bind", "huge pages", "pin", ... */
    char text[480];   /* one line */
};

struct pkvi_host_report {
    uint64_t asked_bytes;
    uint64_t available_bytes; /* of machine and cgroup, before; UINT64_MAX = unknown */
    uint64_t granted_bytes;   /* mapped and touched: what the blocks need, in whole pages */
    uint64_t pinned_bytes;
    uint64_t blocks, pieces, pinned_pieces;
    int32_t node;      /* that it should lie on; -1 = none in particular */
    double node_share; /* of the looked-at pages that do; -1 = unknown */
    double huge_share; /* of the bytes on huge pages; -1 = unknown */
    uint32_t threads;  /* that touched */
    uint64_t touch_ns, pin_ns;
    uint32_t note_count;
    struct pkvi_host_note notes[PKVI_HOST_NOTES];
};

struct pkvi_host_block {
    void *host;
    pkv_addr addr; /* for spans and kernels; of a block that is not pinned: for spans only */
    bool pinned;
};

/* Bytes to ask for `blocks` blocks (config->bytes is not read). Allocates nothing. */
enum pkv_status pkvi_host_arena_plan(const struct pkvi_host_arena_config *config, uint64_t blocks,
                                     uint64_t *bytes_out);

/*
 * Map, bind, touch, verify, pin. Pages of 2 MiB where the machine has them; the start lies at
 * 2 MiB. What is short of the wish but works is a note, logged as a warning. Children made by
 * fork() do not have the memory: the kernel would copy pinned pages for them. PKV_ERR_INVALID,
 * PKV_ERR_RANGE: the config; a node that this machine or cpuset does not have. PKV_ERR_NO_MEMORY:
 * more than machine and cgroup have available (found before anything is touched), the mapping, a
 * page or a pin refused; the text has numbers, limit and command. PKV_ERR_DEVICE_LOST: from the
 * device. Nothing is left then. Cost: seconds for large arenas: the kernel zeroes and the driver
 * pins some GB/s. The calling thread runs on the node's CPUs meanwhile. Device and config's tables
 * outlive the arena.
 */
enum pkv_status pkvi_host_arena_open(struct pkv_device *device,
                                     const struct pkvi_host_arena_config *config,
                                     struct pkvi_host_arena **arena_out);
void pkvi_host_arena_close(
    struct pkvi_host_arena *arena); /* no copy may be running; NULL allowed */

/* Threads: any; nothing in it changes after the open. index < report->blocks. */
struct pkvi_host_block pkvi_host_arena_block(const struct pkvi_host_arena *arena, uint64_t index);
const struct pkvi_host_report *pkvi_host_arena_report(const struct pkvi_host_arena *arena);

#endif
