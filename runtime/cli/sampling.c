/* sampling.c: owns the sampling options; their defaults are the library's. */
#include <stddef.h>
#include <sys/random.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/options.h"

#define FIELD(name) offsetof(struct pkvi_sampling, name)

static const struct pkvi_option options[] = {
    {"temp", 0, PKV_OPTION_REAL, FIELD(temp), "T", "temperature, 0 = greedy (default 0.8)", 0, 100,
     false},
    {"top-k", 0, PKV_OPTION_INT, FIELD(top_k), "N",
     "only the N most likely tokens, 0 = all (default 40)", 0, INT32_MAX, false},
    {"top-p", 0, PKV_OPTION_REAL, FIELD(top_p), "P",
     "only the most likely tokens with this sum of probability (default 0.95)", 0, 1, true},
    {"min-p", 0, PKV_OPTION_REAL, FIELD(min_p), "P",
     "no token less likely than P times the likeliest (default 0.05)", 0, 1, false},
    {"repeat-penalty", 0, PKV_OPTION_REAL, FIELD(repeat), "X",
     "divide the logits of recent tokens (default 1: none)", 0, 10, true},
    {"presence-penalty", 0, PKV_OPTION_REAL, FIELD(presence), "X",
     "subtract X if a token is among the recent ones (default 0)", -2, 2, false},
    {"frequency-penalty", 0, PKV_OPTION_REAL, FIELD(frequency), "X",
     "subtract X each time it is (default 0)", -2, 2, false},
    {"repeat-last-n", 0, PKV_OPTION_INT, FIELD(penalty_last), "N",
     "how many tokens are recent, for the penalties (default 64)", 0, INT32_MAX, false},
    {"logit-bias", 0, PKV_OPTION_BIAS, FIELD(biases), "ID=BIAS",
     "add BIAS to the logit of token ID; may be given again", -100, 100, false},
    {"seed", 's', PKV_OPTION_INT, FIELD(seed), "N",
     "seed of the choice of tokens (default: by chance, and printed)", 0, 9007199254740991.0,
     false},
    {"stop", 0, PKV_OPTION_TEXTS, FIELD(stop), "STRING",
     "end before STRING would be printed; may be given again", 0, 0, false},
};

struct pkvi_sampling pkvi_sampling_default(void)
{
    struct pkv_sampler_config config = pkv_sampler_config_default();
    return (struct pkvi_sampling){
        .temp = (double)config.temperature,
        .top_p = (double)config.top_p,
        .min_p = (double)config.min_p,
        .repeat = (double)config.repeat_penalty,
        .presence = (double)config.presence_penalty,
        .frequency = (double)config.frequency_penalty,
        .top_k = config.top_k,
        .penalty_last = config.penalty_last,
        .seed = -1,
    };
}

struct pkvi_option_set pkvi_sampling_options(struct pkvi_sampling *sampling)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(options, sampling);
}

struct pkv_sampler_config pkvi_sampling_config(struct pkvi_sampling *sampling)
{
    if (sampling->seed < 0) {
        uint32_t chance = 0;
        if (getrandom(&chance, sizeof chance, 0) != (ssize_t)sizeof chance) {
            chance = (uint32_t)pkvi_now_ns();
        }
        sampling->seed = chance;
    }
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.seed = (uint64_t)sampling->seed;
    config.temperature = (float)sampling->temp;
    config.top_k = (uint32_t)sampling->top_k;
    config.top_p = (float)sampling->top_p;
    config.min_p = (float)sampling->min_p;
    config.repeat_penalty = (float)sampling->repeat;
    config.presence_penalty = (float)sampling->presence;
    config.frequency_penalty = (float)sampling->frequency;
    config.penalty_last = (uint32_t)sampling->penalty_last;
    config.bias = sampling->biases.bias;
    config.bias_count = sampling->biases.count;
    return config;
}
