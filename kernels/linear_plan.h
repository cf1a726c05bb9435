/*
 * linear_plan.h: what the variants of LINEAR, EMBED and QUANTIZE share: costs, and how LINEAR is
 * cut into units.
 *
 * A unit is some groups of 16 outputs of one part, for some rows. Where the cuts are has no
 * influence on the results.
 */
#ifndef PKV_LINEAR_PLAN_H
#define PKV_LINEAR_PLAN_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a unit may take at most, but for a group that it takes at least. */
struct pkvi_linear_limits {
    uint64_t bytes; /* of packed weights */
    uint32_t rows, groups;
    uint32_t threads, units_per_thread; /* at least so many units, and a multiple of the threads */
};

struct pkvi_linear_plan {
    const struct pkv_args_linear *args;
    uint32_t unit_rows;
    uint32_t cuts[PKV_LINEAR_PARTS];           /* pieces that a part's groups are cut into */
    uint32_t first_unit[PKV_LINEAR_PARTS + 1]; /* of each part; last: number of units */
};

struct pkvi_linear_unit {
    const struct pkv_linear_part *part;
    uint32_t first_group, groups, first_row, rows;
};

void pkvi_linear_plan(const struct pkv_args_linear *args, const struct pkvi_linear_limits *limits,
                      struct pkvi_linear_plan *plan_out);
struct pkvi_linear_unit pkvi_linear_unit(const struct pkvi_linear_plan *plan, uint32_t unit);

void pkvi_cost_embed(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_quantize(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_linear(const void *args, struct pkv_cost *cost_out);

#ifdef __cplusplus
}
#endif

#endif
