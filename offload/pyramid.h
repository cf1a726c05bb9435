/* pyramid.h: how a budget is shared out among layers: shapes, and whole pages of exactly equal sum.
 */
#ifndef PKV_OFFLOAD_PYRAMID_H
#define PKV_OFFLOAD_PYRAMID_H

#include "pivotkv/policy.h"

/*
 * Weights of `layers` layers, first to last, mean 1. `slope` a: layer 0 gets 1 + a, the last 1 - a,
 * 0 <= a < 1 (POWER: the last what is left). Source: PyramidKV, arXiv:2406.02069 (linear);
 * PyramidInfer, arXiv:2405.12532 (cosine).
 */
void pkvi_pyramid_weights(enum pkv_pyramid shape, double slope, uint32_t layers,
                          double *weight_out);

/*
 * `total` pages to `count` takers, in proportion to their weights (>= 0, not all 0), each at least
 * `least` and at most `most`; pages_out adds up to `total` to the page. Asks for count * least <=
 * total <= count * most. scratch: [count]. Cost: O(count^2) at worst.
 */
void pkvi_pyramid_share(const double *weight, uint32_t count, uint32_t least, uint32_t most,
                        uint64_t total, double *scratch, uint32_t *pages_out);

#endif
