/*
 * The sampler: what it chooses is checked against a plain model of the documented stages (all
 * sorted, in double), its frequencies against exact probabilities, and every bad field against its
 * message.
 */
#include "tests/support/pkv_test.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/sampler.h"
#include "runtime/text/philox.h"

/* --- a plain model --- */

struct model_token {
    int32_t id;
    double logit, weight;
};

static int by_logit(const void *a, const void *b)
{
    const struct model_token *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit < y->logit ? 1 : -1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static double penalised(const struct pkv_sampler_config *config, double logit, const int32_t *past,
                        size_t past_count, int32_t id)
{
    size_t from = past_count > config->penalty_last ? past_count - config->penalty_last : 0;
    double times = 0.0;
    for (size_t i = from; i < past_count; i++) {
        times += past[i] == id;
    }
    if (times > 0.0) {
        double repeat = (double)config->repeat_penalty;
        logit = logit > 0.0 ? logit / repeat : logit * repeat;
        logit -= times * (double)config->frequency_penalty + (double)config->presence_penalty;
    }
    return (double)(float)logit;
}

/* The surviving tokens with their weights at the temperature; returns how many. */
static size_t model(const struct pkv_sampler_config *config, uint32_t vocab, const float *logits,
                    const int32_t *past, size_t past_count, struct model_token *tokens)
{
    size_t count = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i])) {
            continue;
        }
        float logit = logits[i];
        for (uint32_t b = 0; b < config->bias_count; b++) {
            logit += config->bias[b].id == (int32_t)i ? config->bias[b].bias : 0.0f;
        }
        tokens[count++] = (struct model_token){
            (int32_t)i, penalised(config, (double)logit, past, past_count, (int32_t)i), 0.0};
    }
    bool filtered = (config->top_k > 0 && config->top_k < vocab) || config->top_p < 1.0f ||
                    config->min_p > 0.0f;
    qsort(tokens, count, sizeof *tokens, by_logit);
    double most = tokens[0].logit, total = 0.0, sum = 0.0;
    if (config->top_k > 0 && config->top_k < count) {
        count = config->top_k;
    }
    for (size_t i = 0; i < count; i++) {
        total += exp(tokens[i].logit - most);
    }
    size_t kept = 0;
    while (kept < count && (config->top_p == 1.0f || sum < (double)config->top_p * total) &&
           exp(tokens[kept].logit - most) >= (double)config->min_p) {
        sum += exp(tokens[kept++].logit - most);
    }
    for (size_t i = 0; i < kept; i++) {
        tokens[i].weight = exp((tokens[i].logit - most) / (double)config->temperature);
    }
    if (!filtered) { // the walk is then by id
        for (size_t i = 1; i < kept; i++) {
            struct model_token t = tokens[i];
            size_t j = i;
            for (; j > 0 && tokens[j - 1].id > t.id; j--) {
                tokens[j] = tokens[j - 1];
            }
            tokens[j] = t;
        }
    }
    return kept;
}

static double uniform(uint64_t seed, uint64_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    pkvi_philox4x32(key, counter, words);
    return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

/* Is `id` what the model draws, or a neighbour where u is at a border within rounding? */
static bool model_agrees(const struct model_token *tokens, size_t count, double u, int32_t id)
{
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        total += tokens[i].weight;
    }
    for (size_t i = 0; i < count; i++) {
        double before = sum / total;
        sum += tokens[i].weight;
        if (tokens[i].id == id) {
            return u >= before - 2e-6 && u <= sum / total + 2e-6;
        }
    }
    return false;
}

static int32_t pick(const struct pkv_sampler_config *config, uint32_t vocab, const float *logits,
                    const int32_t *past, size_t past_count, uint64_t position)
{
    struct pkv_sampler *sampler;
    int32_t id = -1;
    assert_ok(pkv_sampler_open(config, vocab, &sampler));
    assert_ok(pkv_sampler_pick(sampler, logits, past, past_count, position, &id));
    pkv_sampler_close(sampler);
    return id;
}

/* --- tests --- */

static void test_philox__published_vectors__equal(void **state)
{
    (void)state;
    // Random123 1.14.0, tests/kat_vectors, philox4x32 10: counter, key, words.
    static const uint32_t rows[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t r = 0; r < 3; r++) {
        uint32_t words[4];
        pkvi_philox4x32(&rows[r][4], &rows[r][0], words);
        assert_memory_equal(words, &rows[r][6], sizeof words);
    }
}

static void test_pick__greedy__greatest_finite_smallest_id(void **state)
{
    (void)state;
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.temperature = 0.0f;
    float logits[40];
    for (size_t i = 0; i < 40; i++) {
        logits[i] = -1.0f - (float)i;
    }
    logits[3] = NAN;
    logits[5] = INFINITY;
    logits[7] = 4.0f;
    logits[21] = 4.0f;
    logits[9] = -INFINITY;
    assert_int_equal(pick(&config, 40, logits, NULL, 0, 0), 7);
    logits[7] = -0.0f;
    logits[21] = 0.0f;
    assert_int_equal(pick(&config, 40, logits, NULL, 0, 0), 7);
    config.temperature = 1.0f;
    config.top_k = 1;
    assert_int_equal(pick(&config, 40, logits, NULL, 0, 9), 7);
}

static void test_pick__no_finite_logit__corrupt(void **state)
{
    (void)state;
    struct pkv_sampler_config config = pkv_sampler_config_default();
    struct pkv_sampler *sampler;
    float logits[20];
    for (size_t i = 0; i < 20; i++) {
        logits[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
    }
    int32_t id = -5;
    assert_ok(pkv_sampler_open(&config, 20, &sampler));
    assert_status(pkv_sampler_pick(sampler, logits, NULL, 0, 3, &id), PKV_ERR_CORRUPT);
    assert_int_equal(id, -5);
    logits[11] = -3e38f;
    assert_ok(pkv_sampler_pick(sampler, logits, NULL, 0, 3, &id));
    assert_int_equal(id, 11);
    pkv_sampler_close(sampler);
}

static void test_pick__bias_and_penalties__as_documented(void **state)
{
    (void)state;
    const struct pkv_logit_bias bias[] = {{4, -100.0f}, {2, 0.5f}, {2, 0.25f}};
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.temperature = 0.0f;
    config.bias = bias;
    config.bias_count = 3;
    float logits[6] = {1.0f, 2.0f, 2.5f, 3.0f, 9.0f, -1.0f};
    assert_int_equal(pick(&config, 6, logits, NULL, 0, 0), 2); // 4 is banned, 2.5 + 0.75 > 3
    const int32_t past[] = {3, 2, 2};
    config.presence_penalty = 1.0f; // 2: 2.25, 3: 2, 1: 2
    assert_int_equal(pick(&config, 6, logits, past, 3, 0), 2);
    config.frequency_penalty = 0.5f; // 2: 1.25, 3: 1.5, 1: 2
    assert_int_equal(pick(&config, 6, logits, past, 3, 0), 1);
    config.penalty_last = 1; // only the last 2 counts: 2: 1.75, 3: 3
    assert_int_equal(pick(&config, 6, logits, past, 3, 0), 3);
    config.penalty_last = 0;
    assert_int_equal(pick(&config, 6, logits, past, 3, 0), 2);
    // The repeat penalty divides positive and multiplies negative logits.
    config = pkv_sampler_config_default();
    config.temperature = 0.0f;
    config.repeat_penalty = 2.0f;
    const float two[2] = {-1.0f, -1.5f};
    const int32_t zero[] = {0};
    assert_int_equal(pick(&config, 2, two, zero, 1, 0), 1);
    const float positive[2] = {3.0f, 1.6f};
    assert_int_equal(pick(&config, 2, positive, zero, 1, 0), 1);
}

static void test_pick__past_outside_vocabulary__refused_and_still_usable(void **state)
{
    (void)state;
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.presence_penalty = 2.0f;
    config.temperature = 0.0f;
    struct pkv_sampler *sampler;
    const float logits[3] = {1.0f, 0.5f, 0.0f};
    int32_t id;
    assert_ok(pkv_sampler_open(&config, 3, &sampler));
    const int32_t bad[] = {0, 3}, negative[] = {-1};
    assert_status(pkv_sampler_pick(sampler, logits, bad, 2, 0, &id), PKV_ERR_RANGE);
    assert_status(pkv_sampler_pick(sampler, logits, negative, 1, 0, &id), PKV_ERR_RANGE);
    assert_ok(pkv_sampler_pick(sampler, logits, NULL, 0, 0, &id));
    assert_int_equal(id, 0); // token 0 was not left counted
    pkv_sampler_close(sampler);
}

static void random_config(struct pkvt_rng *rng, struct pkv_sampler_config *config)
{
    static const float temperatures[] = {0.1f, 0.8f, 1.0f, 2.0f, 100.0f, 1e-20f};
    static const uint32_t top_ks[] = {0, 2, 3, 40, 300, 1000000};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.05f, 0.9999f, 1e-6f};
    static const float min_ps[] = {0.0f, 0.05f, 0.5f, 1.0f, 1e-5f};
    *config = pkv_sampler_config_default();
    config->seed = pkvt_rng_u64(rng);
    config->temperature = temperatures[pkvt_rng_below(rng, 6)];
    config->top_k = top_ks[pkvt_rng_below(rng, 6)];
    config->top_p = top_ps[pkvt_rng_below(rng, 6)];
    config->min_p = min_ps[pkvt_rng_below(rng, 5)];
    config->repeat_penalty = pkvt_rng_below(rng, 2) ? 1.3f : 1.0f;
    config->presence_penalty = pkvt_rng_below(rng, 2) ? 0.7f : 0.0f;
    config->frequency_penalty = pkvt_rng_below(rng, 2) ? -0.4f : 0.0f;
    config->penalty_last = pkvt_rng_below(rng, 40);
}

static void random_logits(struct pkvt_rng *rng, uint32_t vocab, float *logits)
{
    uint32_t kind = pkvt_rng_below(rng, 4);
    float scale = pkvt_rng_uniform(rng, 0.1f, 8.0f);
    for (uint32_t i = 0; i < vocab; i++) {
        float x = pkvt_rng_normal(rng) * scale;
        logits[i] = kind == 0 ? x : kind == 1 ? roundf(x) : kind == 2 ? (float)i * 0.01f : 1.0f;
        if (kind == 1 && pkvt_rng_below(rng, 10) == 0) {
            logits[i] = pkvt_rng_below(rng, 2) ? NAN : -INFINITY;
        }
    }
    logits[pkvt_rng_below(rng, vocab)] = 2.0f;
}

static void test_pick__random_configs__as_the_model(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 15, 16, 17, 255, 256, 257, 700, 3000};
    struct pkvt_rng rng = {20241};
    float *logits = malloc(3000 * sizeof *logits);
    struct model_token *tokens = malloc(3000 * sizeof *tokens);
    for (int round = 0; round < 3000; round++) {
        uint32_t vocab = vocabs[pkvt_rng_below(&rng, round % 10 == 0 ? 10 : 8)];
        struct pkv_sampler_config config;
        random_config(&rng, &config);
        random_logits(&rng, vocab, logits);
        int32_t past[50];
        size_t past_count = pkvt_rng_below(&rng, 50);
        for (size_t i = 0; i < past_count; i++) {
            past[i] = (int32_t)pkvt_rng_below(&rng, vocab < 20 ? vocab : 20);
        }
        uint64_t position = pkvt_rng_u64(&rng);
        size_t count = model(&config, vocab, logits, past, past_count, tokens);
        int32_t id = pick(&config, vocab, logits, past, past_count, position);
        if (!model_agrees(tokens, count, uniform(config.seed, position), id)) {
            fail_msg("round %d: vocab %u temperature %g top_k %u top_p %g min_p %g: token %d",
                     round, vocab, (double)config.temperature, config.top_k, (double)config.top_p,
                     (double)config.min_p, id);
        }
    }
    free(logits);
    free(tokens);
}

/* Frequencies over positions against exact probabilities: chi-square under its 1e-4 quantile. */
static void check_distribution(struct pkv_sampler_config config)
{
    enum { vocab = 64, draws = 20000 };
    float logits[vocab];
    struct pkvt_rng rng = {7};
    for (size_t i = 0; i < vocab; i++) {
        logits[i] = pkvt_rng_normal(&rng) * 1.5f;
    }
    struct model_token tokens[vocab];
    size_t count = model(&config, vocab, logits, NULL, 0, tokens);
    double seen[vocab] = {0}, total = 0.0, chi = 0.0, cells = -1.0;
    struct pkv_sampler *sampler;
    assert_ok(pkv_sampler_open(&config, vocab, &sampler));
    for (uint64_t position = 0; position < draws; position++) {
        int32_t id;
        assert_ok(pkv_sampler_pick(sampler, logits, NULL, 0, position, &id));
        assert_in_range(id, 0, vocab - 1);
        seen[id] += 1.0;
    }
    pkv_sampler_close(sampler);
    for (size_t i = 0; i < count; i++) {
        total += tokens[i].weight;
    }
    double rest_expected = 0.0, rest_seen = draws;
    for (size_t i = 0; i < count; i++) {
        double expected = draws * tokens[i].weight / total;
        if (expected < 5.0) {
            rest_expected += expected;
            continue;
        }
        double got = seen[tokens[i].id];
        rest_seen -= got;
        chi += (got - expected) * (got - expected) / expected;
        cells += 1.0;
    }
    if (rest_expected >= 5.0) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        cells += 1.0;
    } else {
        assert_true(rest_seen <= rest_expected + 15.0);
    }
    // Wilson and Hilferty: the quantile of chi-square for 3.72 standard deviations.
    double q = cells * pow(1.0 - 2.0 / (9.0 * cells) + 3.72 * sqrt(2.0 / (9.0 * cells)), 3.0);
    if (chi > q) {
        fail_msg("top_k %u top_p %g min_p %g: chi-square %.1f over %.1f", config.top_k,
                 (double)config.top_p, (double)config.min_p, chi, q);
    }
}

static void test_pick__many_positions__exact_distribution(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct pkv_sampler_config config = pkv_sampler_config_default();
        config.seed = seed * UINT64_C(0x123456789abcdef);
        config.temperature = 1.0f;
        check_distribution(config);
        config.top_k = 0;
        config.top_p = 1.0f;
        config.min_p = 0.0f;
        check_distribution(config);
        config.top_p = 0.8f;
        config.temperature = 1.7f;
        check_distribution(config);
        config.min_p = 0.1f;
        config.top_p = 1.0f;
        check_distribution(config);
        config.top_k = 7;
        config.min_p = 0.0f;
        config.temperature = 0.5f;
        check_distribution(config);
    }
}

static void test_pick__whatever_came_before__equal_inputs_equal_tokens(void **state)
{
    (void)state;
    enum { vocab = 5000 };
    struct pkvt_rng rng = {99};
    float *logits = malloc(2 * vocab * sizeof *logits), *copy = malloc(vocab * sizeof *copy);
    for (size_t i = 0; i < 2 * vocab; i++) {
        logits[i] = pkvt_rng_normal(&rng) * 2.0f;
    }
    memcpy(copy, logits, vocab * sizeof *copy);
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.seed = 5;
    config.repeat_penalty = 1.2f;
    const int32_t past[] = {1, 2, 3, 3};
    struct pkv_sampler *sampler;
    int32_t first[32], id;
    assert_ok(pkv_sampler_open(&config, vocab, &sampler));
    for (uint64_t p = 0; p < 32; p++) {
        assert_ok(pkv_sampler_pick(sampler, logits, past, 4, p, &first[p]));
    }
    for (uint64_t p = 32; p-- > 0;) { // backwards, with other work between
        assert_ok(pkv_sampler_pick(sampler, logits + vocab, past, p % 5, p * 3, &id));
        assert_ok(pkv_sampler_pick(sampler, logits, past, 4, p, &id));
        assert_int_equal(id, first[p]);
        assert_int_equal(pick(&config, vocab, logits, past, 4, p), first[p]);
    }
    assert_memory_equal(copy, logits, vocab * sizeof *copy);
    pkv_sampler_close(sampler);
    free(logits);
    free(copy);
}

/* --- bad fields --- */

static void expect_refused(const struct pkv_sampler_config *config, const char *field,
                           const char *allowed)
{
    struct pkv_sampler *sampler = NULL;
    enum pkv_status status = pkv_sampler_config_check(config, 100);
    if (status != PKV_ERR_INVALID && status != PKV_ERR_RANGE) {
        fail_msg("%s was let through", field);
    }
    if (!strstr(pkv_error_text(), field) || !strstr(pkv_error_text(), allowed)) {
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", pkv_error_text(), field, allowed);
    }
    assert_int_equal(pkv_sampler_open(config, 100, &sampler), status);
    assert_null(sampler);
}

static void test_config_check__each_bad_field__named_with_allowed_values(void **state)
{
    (void)state;
    static const struct {
        const char *field, *allowed;
        size_t offset;
        float bad[8]; // up to the first 0.0 after the first one
    } rows[] = {
#define ROW(field, allowed, ...)                                                                   \
    {                                                                                              \
#field, allowed, offsetof(struct pkv_sampler_config, field),                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
        ROW(temperature, ">= 0 and <= 100", NAN, INFINITY, -INFINITY, -1.0f, 100.1f, -1e-30f),
        ROW(top_p, "> 0 and <= 1", NAN, INFINITY, -INFINITY, -1.0f, 7.0f, 1.0001f),
        ROW(top_p, "> 0 and <= 1", 0.0f, -0.5f),
        ROW(min_p, ">= 0 and <= 1", NAN, INFINITY, -INFINITY, -1.0f, 7.0f),
        ROW(repeat_penalty, "> 0 and <= 10", NAN, INFINITY, -INFINITY, -1.0f, 10.5f),
        ROW(repeat_penalty, "> 0 and <= 10", 0.0f, -1.0f),
        ROW(presence_penalty, ">= -2 and <= 2", NAN, INFINITY, -INFINITY, 7.0f, -2.1f),
        ROW(frequency_penalty, ">= -2 and <= 2", NAN, INFINITY, -INFINITY, 7.0f, -2.1f),
#undef ROW
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (size_t i = 0; i < 8 && (i == 0 || rows[r].bad[i] != 0.0f); i++) {
            struct pkv_sampler_config config = pkv_sampler_config_default();
            memcpy((char *)&config + rows[r].offset, &rows[r].bad[i], sizeof(float));
            expect_refused(&config, rows[r].field, rows[r].allowed);
        }
    }
}

static void test_config_check__bad_bias_or_size__refused(void **state)
{
    (void)state;
    static const struct pkv_logit_bias bad[] = {{-1, 0.0f},    {100, 0.0f},     {3, NAN},
                                                {3, INFINITY}, {3, -INFINITY},  {3, 100.5f},
                                                {3, -1000.0f}, {INT32_MAX, 1.f}};
    for (size_t i = 0; i < 8; i++) {
        struct pkv_sampler_config config = pkv_sampler_config_default();
        config.bias = &bad[i];
        config.bias_count = 1;
        expect_refused(&config, "logit_bias", bad[i].id == 3 ? ">= -100 and <= 100" : "0 .. 99");
    }
    struct pkv_sampler_config config = pkv_sampler_config_default();
    config.bias_count = 1;
    expect_refused(&config, "logit_bias", "null");
    config = pkv_sampler_config_default();
    config.struct_bytes = 3;
    expect_refused(&config, "struct_bytes", "allowed");
    struct pkv_sampler *sampler = NULL;
    config = pkv_sampler_config_default();
    assert_status(pkv_sampler_open(&config, 0, &sampler), PKV_ERR_RANGE);
    assert_null(sampler);
    pkv_sampler_close(NULL);
}

static void test_config_check__borders__allowed(void **state)
{
    (void)state;
    struct pkv_sampler_config config = pkv_sampler_config_default();
    assert_ok(pkv_sampler_config_check(&config, 1));
    config.temperature = 100.0f;
    config.top_k = UINT32_MAX;
    config.top_p = FLT_TRUE_MIN;
    config.min_p = 1.0f;
    config.repeat_penalty = 10.0f;
    config.presence_penalty = -2.0f;
    config.frequency_penalty = 2.0f;
    config.penalty_last = UINT32_MAX;
    const struct pkv_logit_bias bias[] = {{0, 100.0f}, {0, -100.0f}};
    config.bias = bias;
    config.bias_count = 2;
    assert_ok(pkv_sampler_config_check(&config, 1));
    const float logit = 3.0f;
    assert_int_equal(pick(&config, 1, &logit, NULL, 0, UINT64_MAX), 0);
    config.temperature = FLT_TRUE_MIN; // smallest number above 0
    config.repeat_penalty = FLT_TRUE_MIN;
    config.top_p = 1.0f;
    config.min_p = 0.0f;
    config.bias_count = 0;
    const float logits[3] = {3e38f, 1.0f, -3e38f};
    const int32_t past[] = {0, 1};
    assert_in_range(pick(&config, 3, logits, past, 2, 0), 0, 1); // both grow to the largest float
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox__published_vectors__equal),
        cmocka_unit_test(test_pick__greedy__greatest_finite_smallest_id),
        cmocka_unit_test(test_pick__no_finite_logit__corrupt),
        cmocka_unit_test(test_pick__bias_and_penalties__as_documented),
        cmocka_unit_test(test_pick__past_outside_vocabulary__refused_and_still_usable),
        cmocka_unit_test(test_pick__random_configs__as_the_model),
        cmocka_unit_test(test_pick__many_positions__exact_distribution),
        cmocka_unit_test(test_pick__whatever_came_before__equal_inputs_equal_tokens),
        cmocka_unit_test(test_config_check__each_bad_field__named_with_allowed_values),
        cmocka_unit_test(test_config_check__bad_bias_or_size__refused),
        cmocka_unit_test(test_config_check__borders__allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
