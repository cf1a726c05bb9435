/*
 * prune_schedule.h: how many entries every layer has under a policy that prunes: a function of the
 * prompt's length and the steps since, so that the host knows it without asking the device.
 * Source: the lengths of the public code of PyramidInfer, arXiv:2405.12532 (offload/policy/
 * pyramidinfer.c says which).
 */
#ifndef PKV_OFFLOAD_PRUNE_SCHEDULE_H
#define PKV_OFFLOAD_PRUNE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "pivotkv/impl/policy_ops.h"

#define PKVI_PRUNE_NEVER UINT32_MAX

/* Rows of a prompt that enter each layer: rows_out[layers]. tokens >= 1. */
void pkvi_prune_rows(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens,
                     uint32_t *rows_out);

/* Recent tokens of so many, less the one that always counts too: the window is one more. */
uint32_t pkvi_prune_recent(const struct pkv_prune *prune, uint32_t tokens);

/* Entries of a zone that stay in a layer. */
uint32_t pkvi_prune_zone_stays(const struct pkv_prune *prune, uint32_t layers, uint32_t layer);

/* A layer after some steps. */
struct pkvi_prune_state {
    uint32_t step, entries, base; /* base: entries that are not looked at again */
};

/* One step more: an entry is appended; true: a zone of entries is thinned out behind it. recent: of
 * the step, pkvi_prune_recent(entries of layer 0 before the step, and one); stays: of a zone. */
bool pkvi_prune_step(const struct pkv_prune *prune, uint32_t recent, uint32_t stays,
                     struct pkvi_prune_state *state);

/* recent_out[t] of the steps t = 1 to `steps` after a prompt of `tokens`; [0] is the prompt's. */
void pkvi_prune_recents(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens,
                        uint32_t steps, uint32_t *recent_out);

/* On to the next step, at most `steps`, behind which a zone is thinned out: its number, or
 * PKVI_PRUNE_NEVER. */
uint32_t pkvi_prune_next(const struct pkv_prune *prune, const uint32_t *recent, uint32_t steps,
                         uint32_t stays, struct pkvi_prune_state *state);

#endif
