/* pyramid.c: shapes of budgets over layers. Pure arithmetic: weights, water-filling, whole pages.
 */
#include "offload/pyramid.h"

#include <math.h>

#define PI 3.14159265358979323846

/* p such that (l + 1)^-p, brought to mean 1, gives layer 0 so much. */
static double fit_power(double first, uint32_t layers)
{
    double low = 0.0, high = 64.0;
    for (uint32_t i = 0; i < 100; i++) {
        const double p = (low + high) / 2;
        double sum = 0.0;
        for (uint32_t l = 0; l < layers; l++) {
            sum += pow(l + 1.0, -p);
        }
        *(layers / sum < first ? &low : &high) = p;
    }
    return low;
}

void pkvi_pyramid_weights(enum pkv_pyramid shape, double slope, uint32_t layers, double *weight)
{
    const double p = shape == PKV_PYRAMID_POWER ? fit_power(1.0 + slope, layers) : 0.0;
    double sum = 0.0;
    for (uint32_t l = 0; l < layers; l++) {
        const double at = layers > 1 ? (double)l / (layers - 1) : 0.5;
        switch (shape) {
        case PKV_PYRAMID_COSINE:
            weight[l] = 1.0 + slope * cos(PI * at);
            break;
        case PKV_PYRAMID_REVERSED:
            weight[l] = 1.0 - slope * cos(PI * at);
            break;
        case PKV_PYRAMID_LINEAR:
            weight[l] = 1.0 + slope * (1.0 - 2.0 * at);
            break;
        case PKV_PYRAMID_POWER:
            weight[l] = pow(l + 1.0, -p);
            break;
        case PKV_PYRAMID_FLAT:
        case PKV_PYRAMID_COUNT:
            weight[l] = 1.0;
            break;
        }
        sum += weight[l];
    }
    for (uint32_t l = 0; l < layers; l++) {
        weight[l] *= layers / sum;
    }
}

/* Shares in proportion among those that are not held at a bound; false once all bounds hold. The
 * side that is further out is held first: holding the other might not be needed then. */
static bool fill(const double *weight, uint32_t count, double least, double most, double total,
                 double *share, uint32_t *held)
{
    double left = total, sum = 0.0, below = 0.0, above = 0.0;
    uint32_t free_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        left -= held[i] ? share[i] : 0.0;
        sum += held[i] ? 0.0 : weight[i];
        free_count += !held[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!held[i]) {
            share[i] = sum > 0.0 ? left * weight[i] / sum : left / free_count;
            below += share[i] < least ? least - share[i] : 0.0;
            above += share[i] > most ? share[i] - most : 0.0;
        }
    }
    for (uint32_t i = 0; i < count && below + above > 0.0; i++) {
        const bool under = share[i]<least, over = share[i]> most;
        if (!held[i] && ((below >= above && under) || (above >= below && over))) {
            share[i] = under ? least : most;
            held[i] = 1;
        }
    }
    return below + above > 0.0;
}

void pkvi_pyramid_share(const double *weight, uint32_t count, uint32_t least, uint32_t most,
                        uint64_t total, double *share, uint32_t *pages)
{
    uint64_t given = 0;
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = 0; /* held? */
    }
    while (fill(weight, count, least, most, (double)total, share, pages)) {
    }
    for (uint32_t i = 0; i < count; i++) {
        double whole = floor(share[i] + 1e-9);
        whole = whole < least ? least : whole > most ? most : whole;
        pages[i] = (uint32_t)whole;
        share[i] -= whole;
        given += pages[i];
    }
    while (given != total) { /* the largest part of a page first, of equal ones the first */
        uint32_t best = count;
        for (uint32_t i = 0; i < count; i++) {
            const bool may = given < total ? pages[i] < most : pages[i] > least;
            const double sign = given < total ? 1.0 : -1.0;
            if (may && (best == count || sign * share[i] > sign * share[best])) {
                best = i;
            }
        }
        pages[best] += given < total ? 1 : (uint32_t)-1;
        share[best] -= given < total ? 1.0 : -1.0;
        given += given < total ? 1 : (uint64_t)-1;
    }
}
