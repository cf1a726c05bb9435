/* policy.h: the policies by which entries are kept on the device. What one is made of, for authors:
 * impl/policy_ops.h. */
#ifndef PIVOTKV_POLICY_H
#define PIVOTKV_POLICY_H

#include <stdbool.h>

#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_policy_ops;

/* How slots are shared out among layers, all with the same sum. */
enum pkv_pyramid {
    PKV_PYRAMID_FLAT,
    PKV_PYRAMID_COSINE,   /* 1.8 of the mean in the first layer, down to 0.2 in the last */
    PKV_PYRAMID_LINEAR,   /* likewise */
    PKV_PYRAMID_POWER,    /* 1.8 in the first, falling as a power of the layer's number */
    PKV_PYRAMID_REVERSED, /* 0.2 up to 1.8: a control */
    PKV_PYRAMID_COUNT
};
/* "flat", "cosine", ...; NULL for an unknown number. */
PKV_API const char *pkv_pyramid_name(enum pkv_pyramid pyramid);

/* "window", "snapkv", ...; NULL: there is none of this name. */
PKV_API const struct pkv_policy_ops *pkv_policy_find(const char *name);
/* The i-th; NULL beyond the last. */
PKV_API const struct pkv_policy_ops *pkv_policy_at(uint32_t i);
PKV_API const char *pkv_policy_name(const struct pkv_policy_ops *policy);
/* Does it bring entries back that were not chosen? Then it asks for a calibration (calibration.h).
 */
PKV_API bool pkv_policy_recalls(const struct pkv_policy_ops *policy);
/* The paper it comes from. */
PKV_API const char *pkv_policy_source(const struct pkv_policy_ops *policy);

#ifdef __cplusplus
}
#endif
#endif
