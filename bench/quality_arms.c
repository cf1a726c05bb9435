/*
 * quality_arms.c: owns the arms: every policy at every budget, shape and ratio of the lists; and
 * which of them are compared with one another.
 */
#include "bench/quality.h"

#include <string.h>

#include "pivotkv/impl/policy_ops.h"
#include "runtime/cli/number.h"

/* Cuts `list` at its commas, in place. */
static uint32_t split(char *list, const char **word, uint32_t most)
{
    uint32_t count = 0;
    for (char *next = list; next && count < most;) {
        word[count++] = next;
        next = strchr(next, ',');
        if (next) {
            *next++ = '\0';
        }
    }
    return count;
}

/* What tells an arm from the others. */
struct words {
    const char *policy, *budget, *pyramid, *ratio;
    bool first_budget, first_pyramid, first_ratio, any_file;
};

/* What PyramidInfer asks of pivotal tokens: how many of those that one row attends to most, or the
 * last rows together, are among the best of later steps. They are for this command alone. */
static const struct pkv_policy_ops own[] = {
    {.abi = PKV_POLICY_ABI,
     .name = "last-row",
     .source = "PyramidInfer, arXiv:2405.12532",
     .recipe = {.prompt = PKV_PROMPT_WINDOW, .window_rows = 1, .window_ramp = 1.0f, .pool = 1}},
    {.abi = PKV_POLICY_ABI,
     .name = "last-rows",
     .source = "PyramidInfer, arXiv:2405.12532",
     .recipe = {.prompt = PKV_PROMPT_WINDOW,
                .window_rows = QUALITY_WINDOW,
                .window_ramp = 1.2f,
                .pool = 1}},
};

static const struct pkv_policy_ops *find_policy(const char *name)
{
    const struct pkv_policy_ops *policy = pkv_policy_find(name);
    for (uint32_t i = 0; !policy && i < sizeof own / sizeof own[0]; i++) {
        policy = strcmp(own[i].name, name) == 0 ? &own[i] : NULL;
    }
    return policy;
}

bool quality_is_file(const char *pyramid)
{
    return strncmp(pyramid, "file:", 5) == 0;
}

bool quality_own_shape(const struct pkv_policy_ops *policy)
{
    return policy->recipe.slope > 0.0f || policy->budget || policy->prune;
}

static bool add_arm(struct quality *q, const struct words *words)
{
    if (q->arm_count == QUALITY_ARMS_MOST) {
        pkvi_say_usage("more than %u arms: policies, budgets, shapes and ratios",
                       QUALITY_ARMS_MOST);
        return false;
    }
    struct quality_arm *arm = &q->arm[q->arm_count];
    *arm = (struct quality_arm){.policy = find_policy(words->policy), .budget_text = words->budget};
    arm->name = arm->policy ? pkv_policy_name(arm->policy) : "full";
    if (!arm->policy && strcmp(words->policy, "full") != 0) {
        pkvi_say_usage("--policies: there is no policy '%.64s'", words->policy);
        return false;
    }
    arm->pyramid_text = words->pyramid;
    if (!quality_is_file(words->pyramid) && !pkvi_engine_pyramid(words->pyramid, &arm->pyramid)) {
        pkvi_say_usage("--pyramid: there is no shape '%.64s'", words->pyramid);
        return false;
    }
    if (!pkvi_budget_parse(words->budget, INT64_C(1) << 50, &arm->budget)) {
        pkvi_say_usage("--kv-budget: '%.64s' is no budget: expected such as 10%%, 2048, 512MiB",
                       words->budget);
        return false;
    }
    if (words->ratio && (!pkvi_number_real(words->ratio, 0.0, 1.0, true, &arm->recent_ratio))) {
        pkvi_say_usage("--recent-ratio: '%.64s' is not allowed: a number above 0, at most 1",
                       words->ratio);
        return false;
    }
    arm->recent_ratio = arm->policy ? arm->recent_ratio : 0.0;
    /* `full` has no slots to share out and no ring; a policy with a shape of its own has no other
     */
    const bool shaped = arm->policy && !quality_own_shape(arm->policy);
    const bool prunes = quality_prunes(arm);
    if (prunes) {
        arm->budget_text = "own";
        arm->pyramid = PKV_PYRAMID_FLAT;
        arm->pyramid_text = "flat";
    }
    /* a budget of its own is made of the numbers of a file, if there is one */
    const bool own_file = arm->policy && arm->policy->budget && words->any_file;
    if (own_file && quality_is_file(words->pyramid)) {
        q->arm_count++;
        return true;
    }
    if (!own_file && (!prunes || words->first_budget) && (arm->policy || words->first_ratio) &&
        (shaped || words->first_pyramid)) {
        q->arm_count++;
    }
    return true;
}

bool quality_prunes(const struct quality_arm *arm)
{
    return arm->policy && arm->policy->prune;
}

static bool find_slots_of(struct quality *q)
{
    q->slots_of = q->slots_of_name ? pkv_policy_find(q->slots_of_name) : NULL;
    if (q->slots_of_name && (!q->slots_of || q->slots_of->recipe.pick != PKV_PICK_NONE)) {
        pkvi_say_usage("--slots-of: '%.64s' is no policy that has slots of its own",
                       q->slots_of_name);
        return false;
    }
    return true;
}

static bool has_rival(const struct quality *q)
{
    for (uint32_t a = 0; q->against && a < q->arm_count; a++) {
        if (quality_rival(q, &q->arm[a])) {
            return true;
        }
    }
    return !q->against;
}

bool quality_make_arms(struct quality *q, struct quality_lists *lists)
{
    const char *name[QUALITY_ARMS_MOST], *budget[QUALITY_ARMS_MOST], *pyramid[QUALITY_ARMS_MOST],
        *ratio[QUALITY_ARMS_MOST] = {NULL};
    uint32_t names = q->policies ? split(lists->policies, name, QUALITY_ARMS_MOST) : 0;
    for (uint32_t i = 0; !q->policies && pkv_policy_at(i) && i < QUALITY_ARMS_MOST; i++) {
        if (!pkv_policy_at(i)->budget) { /* which may ask for numbers of layers */
            name[names++] = pkv_policy_name(pkv_policy_at(i));
        }
    }
    const uint32_t budgets = split(lists->budgets, budget, QUALITY_ARMS_MOST);
    const uint32_t pyramids = split(lists->pyramids, pyramid, QUALITY_ARMS_MOST);
    const uint32_t ratios = q->ratios ? split(lists->ratios, ratio, QUALITY_ARMS_MOST) : 1;
    const uint64_t each = (uint64_t)names * ratios * pyramids;
    bool any_file = false;
    for (uint32_t p = 0; p < pyramids; p++) {
        any_file = any_file || quality_is_file(pyramid[p]);
    }
    for (uint64_t i = 0; i < each * budgets; i++) {
        const uint64_t r = i / names % ratios, p = i / names / ratios % pyramids;
        const struct words words = {.policy = name[i % names],
                                    .budget = budget[i / each],
                                    .pyramid = pyramid[p],
                                    .ratio = ratio[r],
                                    .first_budget = i < each,
                                    .first_pyramid = p == 0,
                                    .first_ratio = r == 0,
                                    .any_file = any_file};
        if (!add_arm(q, &words)) {
            return false;
        }
    }
    if (!has_rival(q)) {
        pkvi_say_usage("--against: '%.64s' is no policy or shape of which two arms can be compared",
                       q->against);
        return false;
    }
    return find_slots_of(q);
}

const struct quality_arm *quality_rival(const struct quality *q, const struct quality_arm *arm)
{
    enum pkv_pyramid shape = PKV_PYRAMID_COUNT;
    const bool shapes = q->against && pkvi_engine_pyramid(q->against, &shape);
    for (uint32_t a = 0; q->against && a < q->arm_count; a++) {
        const struct quality_arm *other = &q->arm[a];
        const bool same_policy = other->policy == arm->policy;
        const bool same_shape = strcmp(other->pyramid_text, arm->pyramid_text) == 0;
        const bool wanted = shapes ? same_policy && strcmp(other->pyramid_text, q->against) == 0
                                   : same_shape && strcmp(other->name, q->against) == 0;
        if (wanted && other != arm && other->recent_ratio == arm->recent_ratio &&
            strcmp(other->budget_text, arm->budget_text) == 0) {
            return other;
        }
    }
    return NULL;
}
