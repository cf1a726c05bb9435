/*
 * squeeze: snapkv, its slots shared out by the mean cosine between the residual before and after a
 * layer's attention, given by the caller (--pyramid file:PATH). Of three groups of layers that of
 * the highest gets SHARE of the mean. Source: SqueezeAttention, arXiv:2404.04793. Departures: best
 * split, no random k-means; the model's cosines, not each prompt's; one SHARE (there 0.38, 0.63).
 */
#include "pivotkv/impl/policy_ops.h"
#define SHARE 0.5

/* Sum of squares between three groups of numbers, cut at `low` and `high`; -1: one is empty. */
static double separation(const double *x, uint32_t count, double low, double high)
{
    double n[3] = {0}, sum[3] = {0}, squares = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        n[(x[i] >= low) + (x[i] >= high)] += 1.0;
        sum[(x[i] >= low) + (x[i] >= high)] += x[i];
    }
    for (uint32_t g = 0; g < 3; g++) {
        squares += n[g] > 0.0 ? sum[g] * sum[g] / n[g] : 0.0;
    }
    return n[0] > 0.0 && n[1] > 0.0 ? squares : -1.0;
}

static enum pkv_status budget(const struct pkv_recipe *recipe, const struct pkv_budget_shape *shape,
                              double *weights)
{
    const uint32_t layers = shape->layers;
    const double *cosine = shape->given;
    (void)recipe;
    double best = -1.0, least = 2.0, squeezed = 0.0; /* no groups: all alike */
    if (!cosine || layers > 256) {
        return PKV_ERR_INVALID;
    }
    for (uint32_t i = 0; i < layers * layers; i++) {
        const double low = cosine[i / layers], high = cosine[i % layers];
        const double found = low < high ? separation(cosine, layers, low, high) : -1.0;
        least = found > best ? high : least;
        best = found > best ? found : best;
    }
    for (uint32_t l = 0; l < layers; l++) {
        squeezed += cosine[l] >= least;
    }
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t h = 0; h < shape->kv_heads[l]; h++) {
            *weights++ =
                cosine[l] >= least ? SHARE : (layers - squeezed * SHARE) / (layers - squeezed);
        }
    }
    return PKV_OK;
}

PKV_POLICY(squeeze) = {
    .abi = PKV_POLICY_ABI,
    .name = "squeeze",
    .source = "SqueezeAttention, arXiv:2404.04793",
    .recipe =
        {.prompt = PKV_PROMPT_WINDOW, .sinks = 4, .window_rows = 64, .pool = 7, .window_ramp = 1},
    .budget = budget,
};
