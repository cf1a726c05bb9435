/* policy_table.c: the policies there are: a line each. */
#include <string.h>

#include "pivotkv/impl/policy_ops.h"

#define POLICIES(X)                                                                                \
    X(window)                                                                                      \
    X(h2o)                                                                                         \
    X(snapkv)                                                                                      \
    X(snapkv_keep)                                                                                 \
    X(pyramidkv)                                                                                   \
    X(squeeze)                                                                                     \
    X(pivot)                                                                                       \
    X(pivot_ahead)                                                                                 \
    X(prevstep)                                                                                    \
    X(pivot_norecall)                                                                              \
    X(oracle)                                                                                      \
    X(random)                                                                                      \
    X(pyramidinfer)                                                                                \
    X(pyramidinfer_paper)

#define DECLARE(name) extern const struct pkv_policy_ops pkvi_policy_##name;
#define ENTRY(name) &pkvi_policy_##name,

POLICIES(DECLARE)

static const struct pkv_policy_ops *const policies[] = {POLICIES(ENTRY)};

const struct pkv_policy_ops *pkv_policy_at(uint32_t i)
{
    return i < sizeof policies / sizeof policies[0] ? policies[i] : NULL;
}

const struct pkv_policy_ops *pkv_policy_find(const char *name)
{
    const struct pkv_policy_ops *policy = NULL;
    for (uint32_t i = 0; name && (policy = pkv_policy_at(i)); i++) {
        if (strcmp(policy->name, name) == 0) {
            break;
        }
    }
    return policy;
}

const char *pkv_policy_name(const struct pkv_policy_ops *policy)
{
    return policy->name;
}

bool pkv_policy_recalls(const struct pkv_policy_ops *policy)
{
    return !policy->prune && policy->recipe.query != PKV_QUERY_NONE;
}

const char *pkv_policy_source(const struct pkv_policy_ops *policy)
{
    return policy->source;
}

const char *pkv_pyramid_name(enum pkv_pyramid pyramid)
{
    static const char *const names[] = {"flat", "cosine", "linear", "power", "reversed"};
    return (uint32_t)pyramid < PKV_PYRAMID_COUNT ? names[pyramid] : NULL;
}
