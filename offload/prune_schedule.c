/* prune_schedule.c: the counts of a policy that prunes. Pure arithmetic of the host. */
#include "offload/prune_schedule.h"

#include <math.h>
#include <stddef.h>

#define PI 3.14159265358979323846

/* From 1 in the first layer towards `least` behind the last. */
static double cosine(double least, uint32_t layer, uint32_t layers)
{
    return least + (1.0 - least) * (1.0 + cos(PI * layer / layers)) / 2.0;
}

uint32_t pkvi_prune_recent(const struct pkv_prune *prune, uint32_t tokens)
{
    return (uint32_t)(prune->recent_ratio * tokens);
}

/* Of `context` entries before the window those that go on. */
static uint32_t goes_on(const struct pkv_prune *prune, uint32_t layers, uint32_t layer,
                        uint32_t prompt_context, uint32_t context)
{
    if (layer % prune->interval != 0) {
        return context;
    }
    if (prune->shape == PKV_PRUNE_DECAY) {
        const double share = prune->ratio * pow(prune->decay, layer);
        uint32_t stay = (uint32_t)(prompt_context * share);
        stay = stay > prune->least ? stay : prune->least;
        return stay < context ? stay : context;
    }
    const double share = cosine(prune->decay, layer, layers);
    const uint32_t least = prune->least < prompt_context ? prune->least : prompt_context;
    const uint32_t stay = (uint32_t)(context * share);
    return share < 1.0 && context > least && stay > least ? stay : context;
}

void pkvi_prune_rows(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens,
                     uint32_t *rows_out)
{
    const uint32_t recent = pkvi_prune_recent(prune, tokens);
    const uint32_t window = recent < tokens ? recent + 1 : tokens;
    uint32_t context = tokens - window;
    for (uint32_t l = 0; l < layers; l++) {
        rows_out[l] = context + window;
        context = goes_on(prune, layers, l, tokens - window, context);
    }
}

uint32_t pkvi_prune_zone_stays(const struct pkv_prune *prune, uint32_t layers, uint32_t layer)
{
    const double share = prune->zone_ratio * cosine(prune->zone_decay, layer, layers);
    const uint32_t stays = (uint32_t)(prune->zone * share);
    return stays > 0 ? stays : 1;
}

bool pkvi_prune_step(const struct pkv_prune *prune, uint32_t recent, uint32_t stays,
                     struct pkvi_prune_state *state)
{
    state->step++;
    state->entries++;
    if ((uint64_t)state->entries < (uint64_t)recent + state->base + prune->zone) {
        return false;
    }
    state->entries -= prune->zone - stays;
    state->base = state->entries - recent;
    return true;
}

void pkvi_prune_recents(const struct pkv_prune *prune, uint32_t layers, uint32_t tokens,
                        uint32_t steps, uint32_t *recent_out)
{
    const uint32_t stays = pkvi_prune_zone_stays(prune, layers, 0);
    struct pkvi_prune_state first = {.entries = tokens, .base = tokens}; /* layer 0 has all */
    recent_out[0] = pkvi_prune_recent(prune, tokens);
    for (uint32_t t = 1; t <= steps; t++) {
        recent_out[t] = pkvi_prune_recent(prune, first.entries + 1);
        (void)pkvi_prune_step(prune, recent_out[t], stays, &first);
    }
}

uint32_t pkvi_prune_next(const struct pkv_prune *prune, const uint32_t *recent, uint32_t steps,
                         uint32_t stays, struct pkvi_prune_state *state)
{
    while (state->step < steps) {
        if (pkvi_prune_step(prune, recent[state->step + 1], stays, state)) {
            return state->step;
        }
    }
    return PKVI_PRUNE_NEVER;
}
