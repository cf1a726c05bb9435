/* hot_random.h: random shapes of models and recipes of policies, and what a plan of them must hold,
 * for tests of hot sets. */
#ifndef PKV_HOT_RANDOM_H
#define PKV_HOT_RANDOM_H

#include "offload/tier.h"
#include "tests/support/hot_model.h"

/* All but the recipe; layer 0 is global. */
void pkvt_hot_random_shape(struct pkvt_rng *rng, struct pkvt_hot_shape *shape_out);
/* One of those there are, or any; now and then one that cannot be. */
void pkvt_hot_random_policy(struct pkvt_rng *rng, struct pkv_policy_ops *policy_out);
/* A tier for both, which the config points to, but for its budget (1 byte). */
void pkvt_hot_random_config(struct pkvt_rng *rng, const struct pkvt_hot_shape *shape,
                            const struct pkv_policy_ops *policy,
                            struct pkvi_tier_config *config_out);
/* Of the global layers: how many, and their KV heads. */
uint32_t pkvt_hot_global_layers(const struct pkvt_hot_shape *shape);
uint32_t pkvt_hot_heads(const struct pkvt_hot_shape *shape);
/* What a budget buys is as much as it can, and not more; what it leaves, of what it may. */
double pkvt_hot_check_plan(const struct pkvt_hot_shape *shape,
                           const struct pkvi_tier_config *config,
                           const struct pkvi_tier_sizes *sizes);
/* A budget between the least one and all; false: a context so short that it is all or nothing. */
bool pkvt_hot_random_budget(struct pkvt_rng *rng, const struct pkvt_hot_shape *shape,
                            struct pkvi_tier_config *config, double *worst_gap);
/* May a recipe be so? */
bool pkvt_hot_is_sound(const struct pkv_recipe *recipe);

#endif
