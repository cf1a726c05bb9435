/* policy.h: the policies by which entries are kept on the device. What one is made of, for authors:
 * impl/policy_ops.h. */
#ifndef PIVOTKV_POLICY_H
#define PIVOTKV_POLICY_H

#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_policy_ops;

/* "window", "snapkv", ...; NULL: there is none of this name. */
PKV_API const struct pkv_policy_ops *pkv_policy_find(const char *name);
/* The i-th; NULL beyond the last. */
PKV_API const struct pkv_policy_ops *pkv_policy_at(uint32_t i);
PKV_API const char *pkv_policy_name(const struct pkv_policy_ops *policy);
/* The paper it comes from. */
PKV_API const char *pkv_policy_source(const struct pkv_policy_ops *policy);

#ifdef __cplusplus
}
#endif
#endif
