/* quality_figures.c: owns the arithmetic of how far a policy is from full attention. */
#include "bench/quality.h"

#include <math.h>

#include "bench/stats.h"

#define RESAMPLES 1000u

uint32_t quality_log_softmax(const float *logits, uint32_t vocab, float *out)
{
    uint32_t best = 0;
    double sum = 0.0;
    for (uint32_t i = 1; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    const float most = logits[best];
    for (uint32_t i = 0; i < vocab; i++) {
        sum += (double)expf(logits[i] - most);
    }
    const float lse = most + (float)log(sum);
    for (uint32_t i = 0; i < vocab; i++) {
        out[i] = logits[i] - lse;
    }
    return best;
}

struct quality_token quality_compare(const float *full, const float *policy, uint32_t vocab,
                                     int32_t next)
{
    uint32_t best = 0, other = 0;
    double kl = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        best = full[i] > full[best] ? i : best;
        other = policy[i] > policy[other] ? i : other;
        kl += (double)expf(full[i]) * (double)(full[i] - policy[i]);
    }
    return (struct quality_token){.kl = (float)(kl > 0.0 ? kl : 0.0),
                                  .nll_full = -full[next],
                                  .nll = -policy[next],
                                  .top1 = best == other,
                                  .right_full = best == (uint32_t)next,
                                  .right = other == (uint32_t)next};
}

static double mean_of(const double *samples, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        sum += samples[i];
    }
    return sum / count;
}

/* The middle 95 % of means of samples drawn anew. */
static void resample(const double *samples, uint32_t count, uint64_t seed, double *low,
                     double *high)
{
    double means[RESAMPLES];
    for (uint32_t r = 0; r < RESAMPLES; r++) {
        means[r] = 0.0;
        for (uint32_t i = 0; i < count; i++) {
            means[r] += samples[pkvi_random_next(&seed) % count] / count;
        }
    }
    pkvi_stats_sort(means, RESAMPLES);
    *low = pkvi_stats_quantile(means, RESAMPLES, 0.025);
    *high = pkvi_stats_quantile(means, RESAMPLES, 0.975);
}

struct quality_figures quality_figures(const struct quality_token *token, uint32_t count,
                                       uint64_t seed, double *samples)
{
    struct quality_figures figures = {0};
    double nll = 0.0, nll_full = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        figures.top1 += token[i].top1;
        figures.right_full += token[i].right_full;
        figures.right += token[i].right;
        nll += (double)token[i].nll;
        nll_full += (double)token[i].nll_full;
        samples[i] = (double)token[i].kl;
    }
    figures.top1 /= count;
    figures.right_full /= count;
    figures.right /= count;
    figures.ppl_diff = exp(nll / count) - exp(nll_full / count);
    figures.kl_mean = mean_of(samples, count);
    resample(samples, count, seed, &figures.kl_low, &figures.kl_high);
    pkvi_stats_sort(samples, count);
    figures.kl_p99 = pkvi_stats_quantile(samples, count, 0.99);
    return figures;
}

struct quality_paired quality_paired(const struct quality_token *token,
                                     const struct quality_token *rival, uint32_t count,
                                     uint64_t seed, double *samples)
{
    struct quality_paired paired = {0};
    double mean = 0.0, other = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        mean += (double)token[i].kl / count;
        other += (double)rival[i].kl / count;
        samples[i] = (double)token[i].kl - (double)rival[i].kl;
    }
    paired.diff = mean_of(samples, count);
    paired.ratio = other > 0.0 ? mean / other : NAN;
    resample(samples, count, seed, &paired.low, &paired.high);
    return paired;
}

double quality_layer_coverage(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                              uint32_t l)
{
    double sum = 0.0;
    uint64_t checks = 0;
    for (uint32_t t = 0; t < texts; t++) {
        sum += layer[(uint64_t)t * layers + l].coverage;
        checks += layer[(uint64_t)t * layers + l].checks;
    }
    return checks > 0 ? sum / (double)checks : NAN;
}

double quality_coverage(const struct quality_layer *layer, uint32_t texts, uint32_t layers)
{
    double sum = 0.0;
    uint32_t checked = 0;
    for (uint32_t l = 0; l < layers; l++) {
        const double coverage = quality_layer_coverage(layer, texts, layers, l);
        sum += isnan(coverage) ? 0.0 : coverage;
        checked += isnan(coverage) ? 0u : 1u;
    }
    return checked > 0 ? sum / checked : NAN;
}

double quality_hit_rate(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                        uint32_t first, uint32_t end)
{
    uint64_t hits = 0, wanted = 0;
    for (uint32_t t = 0; t < texts; t++) {
        for (uint32_t l = first; l < end; l++) {
            hits += layer[(uint64_t)t * layers + l].hits;
            wanted += layer[(uint64_t)t * layers + l].wanted;
        }
    }
    return wanted > 0 ? (double)hits / (double)wanted : NAN;
}

double quality_layer_recall(const struct quality_layer *layer, uint32_t texts, uint32_t layers,
                            uint32_t l)
{
    double came = 0.0, missing = 0.0;
    for (uint32_t t = 0; t < texts; t++) {
        came += layer[(uint64_t)t * layers + l].recalled_mass;
        missing += layer[(uint64_t)t * layers + l].missing_mass;
    }
    return missing > 0.0 ? came / missing : NAN;
}

double quality_recall(const struct quality_layer *layer, uint32_t texts, uint32_t layers)
{
    double sum = 0.0;
    uint32_t count = 0;
    for (uint32_t l = 1; l < layers; l++) {
        const double recall = quality_layer_recall(layer, texts, layers, l);
        sum += isnan(recall) ? 0.0 : recall;
        count += isnan(recall) ? 0u : 1u;
    }
    return count > 0 ? sum / count : NAN;
}

double quality_overfetch(const struct quality_layer *layer, uint32_t texts, uint32_t layers)
{
    uint64_t recalled = 0, idle = 0;
    for (uint64_t i = 0; i < (uint64_t)texts * layers; i++) {
        recalled += layer[i].recalled;
        idle += layer[i].recalled_idle;
    }
    return recalled > 0 ? (double)idle / (double)recalled : NAN;
}
