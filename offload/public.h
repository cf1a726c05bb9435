/* public.h: what the public tier (include/pivotkv/tier.h) is: public.c makes it, public_pass.c runs
 * it. */
#ifndef PKV_OFFLOAD_PUBLIC_H
#define PKV_OFFLOAD_PUBLIC_H

#include "offload/tier.h"
#include "pivotkv/tier.h"
#include "runtime/base/arena.h"

struct pkvi_public_seq {
    bool open;
    uint32_t tokens, high; /* high: most tokens since it was empty */
    uint64_t pass;         /* number of the last pass it was asked to stand in */
};

struct pkv_tier {
    struct pkv_device *device;
    struct pkvi_tier_config config; /* layer points to `layer` once it is open */
    struct pkvi_tier_sizes sizes;
    float scale, softcap;
    uint64_t scratch_bytes, span_bytes;
    struct pkvi_tier *tier;
    struct pkv_stream *compute;
    struct pkv_event *done; /* behind the last attention of a pass that has ended */
    pkv_addr scratch;       /* device: of attention */
    pkv_addr spans;         /* device: struct pkv_row_span [sequences], or [row tiles] */
    pkv_addr staging;       /* pinned: the same, for the host to write */
    struct pkvi_arena host; /* the arrays below */
    struct pkv_layer_info *layer;
    struct pkvi_public_seq *seq; /* [sequences + parked] */
    struct pkvi_tier_part *part; /* [sequences]: of the pass */
    uint64_t pass;               /* its number */
    uint32_t part_count, rows;   /* of it */
    uint32_t next_layer, next_row;
    bool in_pass;
    bool in_flight; /* `done` was recorded and not yet waited for */
    bool broken;    /* a device call failed */
};

static inline uint32_t pkvi_public_slots(const struct pkv_tier *t)
{
    return t->config.sequences + t->config.parked;
}

#endif
