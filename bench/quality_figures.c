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

struct quality_figures quality_figures(const struct quality_token *token, uint32_t count,
                                       uint64_t seed, double *samples)
{
    struct quality_figures figures = {0};
    double means[RESAMPLES], nll = 0.0, nll_full = 0.0;
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
    for (uint32_t r = 0; r < RESAMPLES; r++) {
        means[r] = 0.0;
        for (uint32_t i = 0; i < count; i++) {
            means[r] += samples[pkvi_random_next(&seed) % count] / count;
        }
    }
    pkvi_stats_sort(means, RESAMPLES);
    pkvi_stats_sort(samples, count);
    figures.kl_p99 = pkvi_stats_quantile(samples, count, 0.99);
    figures.kl_low = pkvi_stats_quantile(means, RESAMPLES, 0.025);
    figures.kl_high = pkvi_stats_quantile(means, RESAMPLES, 0.975);
    return figures;
}
