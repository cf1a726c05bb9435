/*
 * tolerance.h: how far a result may be from the reference; the one rule of all kernel tests.
 *
 * A sum of n terms, rounded to a type whose spacing at 1 is eps, may differ by
 * c * eps * sqrt(n) * max|x|, c = PKVT_TOLERANCE. max|x| is the largest magnitude of the tensor
 * that is compared: a small value among large ones has lost its last places, and may.
 */
#ifndef PKV_TOLERANCE_H
#define PKV_TOLERANCE_H

#include <math.h>
#include <stdint.h>

#include "tests/support/pkv_test.h"

#define PKVT_TOLERANCE 4.0
#define PKVT_EPS_F32 0x1p-23
#define PKVT_EPS_F16 0x1p-10
#define PKVT_EPS_BF16 0x1p-7

static inline double pkvt_tolerance(double eps, uint64_t terms, double largest)
{
    return PKVT_TOLERANCE * eps * sqrt((double)terms) * largest;
}

/* Every value of `got` within the tolerance of `want`; `what` names the case in the message. */
static inline void pkvt_assert_close(const char *what, const float *got, const double *want,
                                     uint64_t count, double eps, uint64_t terms)
{
    double largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(want[i]));
    }
    double allowed = pkvt_tolerance(eps, terms, largest);
    for (uint64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= allowed)) {
            fail_msg("%s: value %lu is %.9g, want %.9g within %.3g", what, (unsigned long)i,
                     (double)got[i], want[i], allowed);
        }
    }
}

#endif
