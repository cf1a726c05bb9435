/*
 * policy_ops.h: what a policy is made of: a recipe, which is data. It says what a hot set takes
 * from a prompt and what becomes of tokens that leave the ring of recent ones; the tier does it, on
 * the device (offload/hot_set.c). docs/adding-a-policy.md is a guide.
 */
#ifndef PIVOTKV_IMPL_POLICY_OPS_H
#define PIVOTKV_IMPL_POLICY_OPS_H

#include "pivotkv/policy.h"
#include "pivotkv/status.h"

#define PKV_POLICY_ABI 3u

/* What the slots take when a sequence turns HOT, and with every prompt after that. */
enum pkv_prompt {
    PKV_PROMPT_TAIL,    /* the sinks alone */
    PKV_PROMPT_WINDOW,  /* what the last rows attend to */
    PKV_PROMPT_ALL_ROWS /* what all rows do */
};

/* What becomes of a token that leaves the ring. */
enum pkv_leave {
    PKV_LEAVE_DROP,    /* it stays in host memory */
    PKV_LEAVE_COMPETE, /* it takes the slot with the least key if its own is larger */
    PKV_LEAVE_KEEP     /* it takes a slot of its own, beyond the budget: kv_keep_tokens of them */
};

/* What a slot's key is after the prompt: key = decay * key + p, each step. COMPETE and a query ask
 * for keys, and nothing else does. */
enum pkv_key {
    PKV_KEY_NONE,
    PKV_KEY_MASS,     /* p = mean over query heads of its probability, as attention had it */
    PKV_KEY_PREDICTED /* p = what rehearsal predicted: with a query, and only there */
};

/* By which query missing entries are recalled at every decode step, through an index. A layer that
 * no other comes before has that of the step before. */
enum pkv_query {
    PKV_QUERY_NONE,  /* nothing is recalled */
    PKV_QUERY_PREV,  /* the layer's own, of the step before */
    PKV_QUERY_AHEAD, /* of the residual that enters the layer before */
    PKV_QUERY_MID    /* of the residual behind the attention of the layer before */
};

/* What the slots take at every decode step anew, all of the sequence looked at: controls, which
 * read everything they do without. Not with TAIL or COMPETE. */
enum pkv_pick {
    PKV_PICK_NONE,
    PKV_PICK_TOP,   /* what the step's own queries attend to most */
    PKV_PICK_RANDOM /* any */
};

/* A tier refuses what a comment here does not allow (PKV_ERR_INVALID). */
struct pkv_recipe {
    enum pkv_prompt prompt;
    enum pkv_leave leave;
    enum pkv_key key;
    enum pkv_pick pick;
    enum pkv_query query; /* with COMPETE and PREDICTED, without a pick */
    uint32_t sinks;       /* first tokens, always kept: a KV head has as many slots at least */
    uint32_t window_rows; /* WINDOW: at most so many last rows of a prompt; at least 1 */
    float window_ramp;    /* weight of the last of them, 0 to 1000; of the first, 1 */
    uint32_t pool;        /* odd: a token counts as its best neighbour does */
    float ring_share;     /* of a sequence's pages for the ring, at most 1; 0 = what is recent */
    float slope; /* of a linear shape of its own, below 1; 0 = the shape that is asked for */
    float decay; /* of keys: above 0, at most 1 */
    /* With a query: */
    uint32_t no_shift;     /* 1: the residual as it is, without the mean step to the layer's own */
    float index_share;     /* channels of a key in the index, of all: above 0, at most 1 */
    uint32_t index_bits;   /* of each: 4 or 8 */
    float recall_share;    /* entries that a KV head brings in a step, at most, of the context */
    uint32_t recall_least; /* and at least */
    float hysteresis;      /* an entry comes if p > hysteresis * key of the slot; 0 to 1000 */
};

/* What slots are shared out over: the layers that have hot sets, first to last. */
struct pkv_budget_shape {
    uint32_t layers;
    const uint32_t *kv_heads; /* [layers] */
    const double *given;      /* [layers] numbers that the caller has for layers (kv_layer_weights,
                                 --pyramid file:PATH); NULL = none */
};

/* How many rows of a prompt go on behind layer l of L, before its window of last rows. */
enum pkv_prune_shape {
    /* decay + (1 - decay) (1 + cos(pi l / L)) / 2 of those that entered it; all of them where not
     * more than `least` would be left */
    PKV_PRUNE_COSINE,
    PKV_PRUNE_DECAY /* ratio * decay^l of the prompt's, and at least `least` */
};

/*
 * A policy that prunes what goes through the layers instead of keeping a hot set: rows of a prompt
 * that a layer drops are never computed in deeper ones, and of what is generated a part is dropped
 * once it is older than the recent tokens. For good: nothing is kept in host memory. It takes as
 * many bytes as that leaves: there is no budget. offload/prune.c does it, and counts as
 * offload/prune_schedule.h says.
 */
struct pkv_prune {
    enum pkv_prune_shape shape;
    uint32_t interval; /* layers that choose: l % interval == 0; at least 1 */
    uint32_t least, sinks;
    double recent_ratio; /* recent tokens: this of all, rounded down, and one; 0 to 1 */
    double ratio, decay; /* 0 to 1 */
    float ramp;          /* weight of the last recent row in a score, 0 to 1000; of the first, 1 */
    uint32_t zone;       /* entries that leave the recent ones together, 1 to 1024 */
    /* of which zone_ratio * (zone_decay + (1 - zone_decay) (1 + cos(pi l / L)) / 2) stay, rounded
     * down, and at least one; 0 to 1 */
    double zone_ratio, zone_decay;
};

struct pkv_policy_ops {
    uint32_t abi; /* PKV_POLICY_ABI */
    const char *name, *source;
    struct pkv_recipe recipe;
    /* How slots are shared out, instead of by a shape: weights of the KV heads of all layers in
     * turn, 0 to 1e9, not all 0; slots are in proportion, to whole pages. NULL: by the shape that
     * is asked for. Pure; called whenever a session is planned. A failure is the plan's. */
    enum pkv_status (*budget)(const struct pkv_recipe *recipe, const struct pkv_budget_shape *shape,
                              double *weights_out);
    const struct pkv_prune *prune; /* NULL: it keeps a hot set; else the recipe is not read */
};

/* PKV_POLICY(mine) = {...}; in a file of its own, and X(mine) in offload/policy_table.c. */
#define PKV_POLICY(name)                                                                           \
    extern const struct pkv_policy_ops pkvi_policy_##name;                                         \
    const struct pkv_policy_ops pkvi_policy_##name

#endif
