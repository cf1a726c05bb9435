/* hot_random.c: random shapes and recipes. */
#include "tests/support/hot_random.h"

#include <math.h>

static uint32_t below(struct pkvt_rng *rng, uint32_t limit)
{
    return pkvt_rng_below(rng, limit);
}

static bool one_in(struct pkvt_rng *rng, uint32_t times)
{
    return below(rng, times) == 0;
}

void pkvt_hot_random_shape(struct pkvt_rng *rng, struct pkvt_hot_shape *shape)
{
    shape->layers = one_in(rng, 8) ? 1 : 2 + below(rng, PKVT_HOT_LAYERS - 1);
    shape->kv_type = one_in(rng, 2) ? PKV_KV_F16 : PKV_KV_F32;
    shape->softcap = one_in(rng, 4) ? 5.0f : 0.0f;
    shape->scale = 0.3f;
    const bool alike = !one_in(rng, 3);
    for (uint32_t l = 0; l < shape->layers; l++) {
        struct pkv_layer_info *info = &shape->layer[l];
        *info = (struct pkv_layer_info){.kind = PKV_LAYER_GLOBAL};
        do {
            info->kv_heads = 1 + below(rng, PKVT_HOT_HEADS);
            info->head_dim = 8u << below(rng, 3);
            info->heads = info->kv_heads * (1 + below(rng, 4));
        } while (info->heads * info->head_dim > PKVT_HOT_COLS ||
                 info->kv_heads * info->head_dim > PKVT_HOT_KV_COLS);
        if (alike && l > 0) {
            *info = shape->layer[0];
            info->kind = PKV_LAYER_GLOBAL;
        }
        if (l > 0 && one_in(rng, 3)) {
            info->kind = PKV_LAYER_SLIDING;
            info->window = 8 + below(rng, 100);
        }
    }
}

/* One thing that a recipe may not be, mostly. */
static void spoil(struct pkvt_rng *rng, struct pkv_recipe *recipe)
{
    static const float odd[] = {0.0f, -0.1f, 1.01f, 1e30f, NAN, INFINITY};
    switch (below(rng, 11)) {
    case 10:
        recipe->slope = odd[below(rng, 6)];
        break;
    case 0:
        recipe->decay = odd[below(rng, 6)];
        break;
    case 1:
        recipe->ring_share = odd[below(rng, 6)];
        break;
    case 2:
        recipe->window_ramp = odd[below(rng, 6)];
        break;
    case 3:
        recipe->pool = 2 * below(rng, 4);
        break;
    case 4:
        recipe->window_rows = 0;
        break;
    case 5:
        recipe->prompt = (enum pkv_prompt)3;
        break;
    case 6:
        recipe->leave = (enum pkv_leave)3;
        break;
    case 7:
        recipe->pick = (enum pkv_pick)(1 + below(rng, 3));
        break;
    case 8:
        recipe->prompt = PKV_PROMPT_TAIL;
        break;
    default:
        recipe->key = (enum pkv_key)2;
    }
}

void pkvt_hot_random_policy(struct pkvt_rng *rng, struct pkv_policy_ops *policy)
{
    static const char *const names[] = {"window",    "h2o",         "snapkv",
                                        "pyramidkv", "snapkv-keep", "pivot-norecall",
                                        "oracle",    "random"};
    static const float decays[] = {1.0f, 0.9f, 0.5f, 0.99f};
    const struct pkv_policy_ops *known =
        pkv_policy_find(names[below(rng, sizeof names / sizeof *names)]);
    assert_non_null(known);
    *policy = *known;
    if (!one_in(rng, 3)) {
        policy->name = "random";
        policy->recipe = (struct pkv_recipe){
            .prompt = (enum pkv_prompt)below(rng, 3),
            .leave = (enum pkv_leave)below(rng, 3),
            .key = (enum pkv_key)below(rng, 2),
            .sinks = one_in(rng, 8) ? 10 + below(rng, 90) : below(rng, 10),
            .window_rows = 1 + below(rng, one_in(rng, 2) ? 64 : 4),
            .window_ramp = one_in(rng, 2) ? 1.0f : 0.25f * (float)below(rng, 13),
            .pool = 1 + 2 * below(rng, 4),
            .ring_share = one_in(rng, 2) ? 0.0f : 0.125f * (float)(1 + below(rng, 8)),
            .decay = decays[below(rng, 4)]};
        if (one_in(rng, 6)) {
            policy->recipe.pick = (enum pkv_pick)(1 + below(rng, 2));
            policy->recipe.leave = PKV_LEAVE_DROP;
            policy->recipe.prompt = (enum pkv_prompt)(1 + below(rng, 2));
        }
        if (!one_in(rng, 16)) {
            const bool competes = policy->recipe.leave == PKV_LEAVE_COMPETE;
            policy->recipe.key = competes ? PKV_KEY_MASS : PKV_KEY_NONE;
        }
        if (one_in(rng, 16)) {
            spoil(rng, &policy->recipe);
        }
    }
}

bool pkvt_hot_is_sound(const struct pkv_recipe *r)
{
    const bool mass = r->key == PKV_KEY_MASS, window = r->prompt == PKV_PROMPT_WINDOW;
    const bool picks = r->pick != PKV_PICK_NONE;
    return r->slope >= 0 && r->slope < 1 &&
           (!picks || (r->leave == PKV_LEAVE_DROP && r->prompt != PKV_PROMPT_TAIL)) &&
           (uint32_t)r->pick < 3 && mass == (r->leave == PKV_LEAVE_COMPETE) &&
           (!mass || (r->decay > 0 && r->decay <= 1)) && r->ring_share >= 0 && r->ring_share <= 1 &&
           r->pool % 2 == 1 &&
           (!window || (r->window_rows > 0 && r->window_ramp >= 0 && r->window_ramp <= 1000)) &&
           (uint32_t)r->prompt < 3 && (uint32_t)r->leave < 3 && (uint32_t)r->key < 2;
}

void pkvt_hot_random_config(struct pkvt_rng *rng, const struct pkvt_hot_shape *shape,
                            const struct pkv_policy_ops *policy, struct pkvi_tier_config *config)
{
    static const double weights[PKVT_HOT_LAYERS] = {0.0, 3.0, 0.1, 1.0};
    *config = (struct pkvi_tier_config){
        .layer = shape->layer,
        .layers = shape->layers,
        .context_tokens = (one_in(rng, 8) ? 300 : 500) + below(rng, PKVT_HOT_CONTEXT - 500 + 1),
        .sequences = 1 + below(rng, 3),
        .parked = below(rng, 2),
        .step_rows = 48 + below(rng, 100),
        .kv_type = shape->kv_type,
        .host = true,
        .budget_bytes = 1,
        .recent = below(rng, one_in(rng, 3) ? 100 : 33),
        .policy = policy,
        .threads = 1 + below(rng, 2),
        .pyramid =
            one_in(rng, 2) ? PKV_PYRAMID_FLAT : (enum pkv_pyramid)below(rng, PKV_PYRAMID_COUNT),
        .layer_weights = one_in(rng, 6) ? weights : NULL,
        .keep_tokens = one_in(rng, 2) ? 0 : 1 + below(rng, 200),
        .check_steps = one_in(rng, 3) ? 1 + below(rng, 3) : 0,
    };
    config->pass_rows =
        one_in(rng, 2) ? config->context_tokens : config->step_rows + below(rng, 200);
    config->pass_rows =
        config->pass_rows < config->context_tokens ? config->pass_rows : config->context_tokens;
}

uint32_t pkvt_hot_global_layers(const struct pkvt_hot_shape *shape)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < shape->layers; l++) {
        count += shape->layer[l].kind == PKV_LAYER_GLOBAL;
    }
    return count;
}

uint32_t pkvt_hot_heads(const struct pkvt_hot_shape *shape)
{
    uint32_t heads = 0;
    for (uint32_t l = 0; l < shape->layers; l++) {
        heads += shape->layer[l].kind == PKV_LAYER_GLOBAL ? shape->layer[l].kv_heads : 0;
    }
    return heads;
}

/* What a budget buys is as much as it can, and not more. */
double pkvt_hot_check_plan(const struct pkvt_hot_shape *shape,
                           const struct pkvi_tier_config *config,
                           const struct pkvi_tier_sizes *sizes)
{
    const uint32_t heads = pkvt_hot_heads(shape);
    const uint32_t n = config->sequences;
    uint64_t block = 0;
    for (uint32_t l = 0; l < shape->layers; l++) {
        const struct pkv_layer_info *info = &shape->layer[l];
        const uint64_t page = PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(shape->kv_type, info->head_dim);
        block = info->kind == PKV_LAYER_GLOBAL && page > block ? page : block;
    }
    const uint64_t pool = sizes->quota_pages * block; /* a page comes with keys and tokens */
    const uint64_t one_layers = (block + 8 * PKV_PAGE_TOKENS) * heads;
    assert_int_equal(sizes->pool_bytes, pool * n);
    assert_int_equal(sizes->quota_pages, sizes->ring_pages * heads + sizes->hot_pages);
    const uint64_t kept = sizes->keep_pages * one_layers; /* beyond the budget */
    assert_int_equal(sizes->keep_pages > 0, config->policy->recipe.leave == PKV_LEAVE_KEEP);
    const uint64_t used =
        (sizes->pool_bytes + sizes->hot_bytes + sizes->staging_bytes + n - 1) / n - kept;
    const uint64_t budget = config->budget_bytes, slack = budget / 200;
    PKVT_HOT_CHECK(used <= budget, "%llu bytes for a budget of %llu", (unsigned long long)used,
                   (unsigned long long)budget);
    const uint64_t allowed = slack > one_layers ? slack : one_layers;
    const double gap = (double)(budget - used) / (double)allowed;
    PKVT_HOT_CHECK(gap <= 1, "%llu bytes for a budget of %llu, %s of %u pages (%u of a ring)",
                   (unsigned long long)used, (unsigned long long)budget, config->policy->name,
                   sizes->quota_pages, sizes->ring_pages);
    return gap;
}

static void note_gap(double gap, double *worst)
{
    *worst = gap > *worst ? gap : *worst;
}

bool pkvt_hot_random_budget(struct pkvt_rng *rng, const struct pkvt_hot_shape *shape,
                            struct pkvi_tier_config *config, double *worst_gap)
{
    struct pkvi_tier_sizes sizes;
    assert_status(pkvi_tier_plan(config, &sizes), PKV_ERR_RANGE);
    const uint64_t least = sizes.least_bytes, full = sizes.full_bytes;
    assert_true(least > 1 && least <= full);
    config->budget_bytes = least - 1;
    assert_status(pkvi_tier_plan(config, &sizes), PKV_ERR_RANGE);
    assert_int_equal(sizes.least_bytes, least);
    config->budget_bytes = full;
    assert_ok(pkvi_tier_plan(config, &sizes));
    assert_int_equal(sizes.hot_pages, 0);
    if (least == full) {
        return false;
    }
    config->budget_bytes = full - 1;
    assert_ok(pkvi_tier_plan(config, &sizes));
    note_gap(pkvt_hot_check_plan(shape, config, &sizes), worst_gap);
    const uint64_t more = (full - least) / (one_in(rng, 2) ? 1 : 8);
    config->budget_bytes = least + (one_in(rng, 4) ? 0 : pkvt_rng_u64(rng) % more);
    assert_ok(pkvi_tier_plan(config, &sizes));
    note_gap(pkvt_hot_check_plan(shape, config, &sizes), worst_gap);
    return true;
}
