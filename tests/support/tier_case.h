/*
 * tier_case.h: the public tier driven with a made-up model. Values of q, k and v depend on token
 * id, position, layer and nothing else, so that sequences with the same ids have the same results.
 */
#ifndef PKV_TEST_TIER_CASE_H
#define PKV_TEST_TIER_CASE_H

#include "pivotkv/pivotkv.h"
#include "tests/support/pkv_test.h"

/* Layers: global 4 heads over 2 of 32; sliding (window 40) 4 over 1 of 64; global 6 over 3 of 16.
 */
enum {
    PKVT_TIER_LAYERS = 3,
    PKVT_TIER_COLS = 256, /* of q and out in the widest layer */
    PKVT_TIER_WINDOW = 40,
    PKVT_TIER_CONTEXT = 640,
    PKVT_TIER_STEP_ROWS = 48,
};

struct pkvt_tier {
    struct pkv_device *device;
    struct pkv_tier *tier;
    struct pkv_tier_sizes sizes;
    pkv_addr q, k, v, out; /* room for PKVT_TIER_CONTEXT rows */
};

/* Results of a pass: [layer][row][column]. */
typedef float pkvt_tier_out[PKVT_TIER_LAYERS][PKVT_TIER_CONTEXT][PKVT_TIER_COLS];

struct pkvt_tier_part {
    uint32_t seq, first, rows;
    const uint32_t *ids; /* [first + rows], from the sequence's first token on */
};

/* Policy full, two sequences and one parked, f32, recent 20, the default budget. */
struct pkv_tier_config pkvt_tier_config(void);
/* The same with the least budget, or for everything on the device (three sequences). */
struct pkv_tier_config pkvt_tier_least(struct pkv_device *device);
struct pkv_tier_config pkvt_tier_dense(void);

enum pkv_status pkvt_tier_open(struct pkvt_tier *tier, struct pkv_device *device,
                               const struct pkv_tier_config *config);
void pkvt_tier_close(struct pkvt_tier *tier);

/* One layer's rows [first_row, first_row + rows) of a pass of these parts: write q, k, v, attend,
 * read. `gap`: floats between rows of q, k and v. */
enum pkv_status pkvt_tier_layer(struct pkvt_tier *tier, const struct pkvt_tier_part *parts,
                                uint32_t count, uint32_t layer, uint32_t first_row, uint32_t rows,
                                uint32_t gap, pkvt_tier_out out);

/* A whole pass, its rows in pieces of `piece` (0: all at once). */
enum pkv_status pkvt_tier_pass(struct pkvt_tier *tier, const struct pkvt_tier_part *parts,
                               uint32_t count, uint32_t piece, pkvt_tier_out out);

/* What a layer's out must be of the row at `position`, in double; returns its columns. */
uint32_t pkvt_tier_want(const uint32_t *ids, uint32_t position, uint32_t layer, double *want_out);

#endif
