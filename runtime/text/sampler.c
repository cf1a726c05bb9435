/*
 * sampler.c: from logits to a token id.
 *
 * Owns the rules of choosing and nothing else: no text, no tokenizer, no state between calls. The
 * stages, in this order (llama.cpp's default chain, with its meanings):
 *
 *   1 bias        l += bias[id]; several biases of one id add up
 *   2 penalties   over the last `penalty_last` tokens of the past, for each id that occurs n > 0
 * times: l = l > 0 ? l / repeat : l * repeat, then l -= n * frequency + presence 3 greedy
 * temperature 0 (or top_k 1): the greatest l, done 4 top_k       the k greatest l 5 top_p
 * probabilities = softmax(l) of what is left, at temperature 1; the shortest list of the greatest
 * that reaches top_p 6 min_p       drop what has less than min_p times the greatest probability 7
 * temperature softmax(l / temperature) of what is left 8 draw        u in [0, 1) = Philox4x32-10,
 * key = seed, counter = position; the first candidate whose running sum of weights exceeds u *
 * total. Candidates stand in descending order, equal ones by ascending id; if stages 4 to 6 are all
 * off, by ascending id.
 *
 * A logit that is not finite is never a candidate. Stages 4 to 6 all keep the head of one
 * descending order, so only as much of it is sorted as survives: a heap gives the order lazily,
 * over candidates picked by passes that the compiler vectorises. 262,144 logits on one Zen 3 core:
 * greedy 0.14 ms, defaults 0.26 ms, top_p alone 0.75 ms.
 *
 * Source: repeat penalty: Keskar et al., "CTRL", 2019; top_p: Holtzman et al., "The curious case of
 * neural text degeneration", 2020; min_p: Nguyen et al., "Turning up the heat", 2024.
 */
#include "pivotkv/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/philox.h"

#define LANES 16u  /* independent running values, so that loops vectorise */
#define BLOCK 256u /* logits looked at together */

struct pkv_sampler {
    struct pkv_sampler_config config;
    uint32_t vocab, kept; /* kept: top_k, clipped to the vocabulary; 0 = all */
    float *work;          /* [vocab] adjusted logits, -inf = no candidate; later weights */
    uint32_t *seen;       /* [vocab] occurrences in the past; all 0 between calls */
    uint64_t *order;      /* [capacity] candidates */
    size_t capacity;
};

struct pkv_sampler_config pkv_sampler_config_default(void)
{
    return (struct pkv_sampler_config){
        .struct_bytes = sizeof(struct pkv_sampler_config),
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1.0f,
        .penalty_last = 64,
    };
}

/* The range is [low, high], or (low, high] if `open`. */
static enum pkv_status check_field(const char *name, float value, float low, float high, bool open)
{
    bool inside = (open ? value > low : value >= low) && value <= high;
    if (inside) {
        return PKV_OK;
    }
    enum pkv_status status = isnan(value) ? PKV_ERR_INVALID : PKV_ERR_RANGE;
    return PKV_FAIL(status, "%s is %g; allowed: %s %g and <= %g", name, (double)value,
                    open ? ">" : ">=", (double)low, (double)high);
}

enum pkv_status pkv_sampler_config_check(const struct pkv_sampler_config *config, uint32_t vocab)
{
    if (config->struct_bytes != sizeof *config) {
        return PKV_FAIL(PKV_ERR_INVALID, "sampler config: struct_bytes is %u; allowed: %zu",
                        config->struct_bytes, sizeof *config);
    }
    PKV_TRY(check_field("temperature", config->temperature, 0.0f, 100.0f, false));
    PKV_TRY(check_field("top_p", config->top_p, 0.0f, 1.0f, true));
    PKV_TRY(check_field("min_p", config->min_p, 0.0f, 1.0f, false));
    PKV_TRY(check_field("repeat_penalty", config->repeat_penalty, 0.0f, 10.0f, true));
    PKV_TRY(check_field("presence_penalty", config->presence_penalty, -2.0f, 2.0f, false));
    PKV_TRY(check_field("frequency_penalty", config->frequency_penalty, -2.0f, 2.0f, false));
    if (config->bias_count > 0 && !config->bias) {
        return PKV_FAIL(PKV_ERR_INVALID, "logit_bias: %u entries at a null pointer",
                        config->bias_count);
    }
    for (uint32_t i = 0; i < config->bias_count; i++) {
        int32_t id = config->bias[i].id;
        if (id < 0 || (uint32_t)id >= vocab) {
            return PKV_FAIL(PKV_ERR_RANGE, "logit_bias: token %d; allowed: 0 .. %u", id, vocab - 1);
        }
        PKV_TRY(check_field("logit_bias", config->bias[i].bias, -100.0f, 100.0f, false));
    }
    return PKV_OK;
}

enum pkv_status pkv_sampler_open(const struct pkv_sampler_config *config, uint32_t vocab,
                                 struct pkv_sampler **sampler_out)
{
    if (vocab == 0 || vocab > INT32_MAX) {
        return PKV_FAIL(PKV_ERR_RANGE, "sampler: vocabulary of %u tokens; allowed: 1 .. %d", vocab,
                        INT32_MAX);
    }
    PKV_TRY(pkv_sampler_config_check(config, vocab));
    struct pkv_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "sampler: no memory");
    }
    sampler->config = *config;
    sampler->vocab = vocab;
    sampler->kept = config->top_k < vocab ? config->top_k : 0;
    // Twice the candidates to keep: a full list is cut in half, so each cut is paid by its
    // additions.
    sampler->capacity = sampler->kept > 0 ? 2 * (size_t)sampler->kept + BLOCK : vocab;
    sampler->work = malloc(vocab * sizeof *sampler->work);
    sampler->seen = calloc(vocab, sizeof *sampler->seen);
    sampler->order = malloc(sampler->capacity * sizeof *sampler->order);
    if (!sampler->work || !sampler->seen || !sampler->order) {
        pkv_sampler_close(sampler);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "sampler: no memory for a vocabulary of %u tokens",
                        vocab);
    }
    *sampler_out = sampler;
    return PKV_OK;
}

void pkv_sampler_close(struct pkv_sampler *sampler)
{
    if (sampler) {
        free(sampler->work);
        free(sampler->seen);
        free(sampler->order);
        free(sampler);
    }
}

/* --- stages 1 and 2 --- */

static void adjust(float *logit, double value)
{
    *logit = (float)fmin(fmax(value, (double)-FLT_MAX), (double)FLT_MAX);
}

static void apply_penalties(struct pkv_sampler *sampler, const int32_t *past, size_t count)
{
    const struct pkv_sampler_config *config = &sampler->config;
    for (size_t i = 0; i < count; i++) {
        sampler->seen[past[i]]++;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t times = sampler->seen[past[i]];
        float *logit = &sampler->work[past[i]];
        sampler->seen[past[i]] = 0; // the next occurrence finds nothing to do
        if (times > 0 && *logit > -INFINITY) {
            double value = (double)*logit, repeat = (double)config->repeat_penalty;
            value = value > 0.0 ? value / repeat : value * repeat;
            value -= (double)times * (double)config->frequency_penalty +
                     (double)config->presence_penalty;
            adjust(logit, value);
        }
    }
}

static enum pkv_status adjust_logits(struct pkv_sampler *sampler, const float *logits,
                                     const int32_t *past, size_t past_count)
{
    const struct pkv_sampler_config *config = &sampler->config;
    if (config->repeat_penalty == 1.0f && config->presence_penalty == 0.0f &&
        config->frequency_penalty == 0.0f) {
        past_count = 0;
    }
    if (past_count > config->penalty_last) {
        past += past_count - config->penalty_last;
        past_count = config->penalty_last;
    }
    for (size_t i = 0; i < past_count; i++) {
        if (past[i] < 0 || (uint32_t)past[i] >= sampler->vocab) {
            return PKV_FAIL(PKV_ERR_RANGE, "sampler: token %d in the past; allowed: 0 .. %u",
                            past[i], sampler->vocab - 1);
        }
    }
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sampler->work[i] = fabsf(logits[i]) <= FLT_MAX ? logits[i] : -INFINITY;
    }
    for (uint32_t i = 0; i < config->bias_count; i++) {
        float *logit = &sampler->work[config->bias[i].id];
        if (*logit > -INFINITY) {
            adjust(logit, (double)*logit + (double)config->bias[i].bias);
        }
    }
    apply_penalties(sampler, past, past_count);
    return PKV_OK;
}

/* Integers that order like the floats they are made of, so that the search vectorises. */
static float greatest(const float *x, uint32_t count)
{
    int32_t most = INT32_MIN;
    for (uint32_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits ^= (bits >> 31) & INT32_MAX;
        most = bits > most ? bits : most;
    }
    most ^= (most >> 31) & INT32_MAX;
    float value;
    memcpy(&value, &most, sizeof value);
    return value;
}

/* --- candidates: a logit and its id in one number; greater = chosen before --- */

static uint64_t candidate(float logit, uint32_t id)
{
    float canonical = logit + 0.0f; // -0 and +0 are equal
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    bits ^= (bits >> 31) ? UINT32_MAX : (uint32_t)1 << 31;
    return (uint64_t)bits << 32 | (UINT32_MAX - id);
}

static uint32_t candidate_id(uint64_t c)
{
    return UINT32_MAX - (uint32_t)c;
}

static float candidate_logit(uint64_t c)
{
    uint32_t bits = (uint32_t)(c >> 32);
    bits ^= (bits >> 31) ? (uint32_t)1 << 31 : UINT32_MAX;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

/* Move the `keep` greatest to the front; the least of them stands at keep - 1. No two are equal. */
static void select_greatest(uint64_t *x, size_t count, size_t keep)
{
    size_t low = 0, high = count - 1, target = keep - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (x[middle] > x[low]) {
            swap(&x[middle], &x[low]);
        }
        if (x[high] > x[low]) {
            swap(&x[high], &x[low]);
        }
        if (x[high] > x[middle]) {
            swap(&x[high], &x[middle]);
        }
        uint64_t pivot = x[middle];
        size_t i = low, j = high;
        for (;;) {
            while (x[i] > pivot) {
                i++;
            }
            while (x[j] < pivot) {
                j--;
            }
            if (i >= j) {
                break;
            }
            swap(&x[i++], &x[j--]);
        }
        // Now [low, j] >= pivot >= [j + 1, high].
        if (target <= j) {
            high = j;
        } else {
            low = j + 1;
        }
    }
}

static void sift_down(uint64_t *heap, size_t count, size_t i)
{
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        child += child + 1 < count && heap[child + 1] > heap[child];
        if (heap[child] < x) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Is there something above the limit among the next `count` <= BLOCK? */
static bool any_above(const float *x, uint32_t count, float limit)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        found |= (uint32_t)(x[i] > limit);
    }
    return found != 0;
}

/*
 * Collect candidates with logits above `limit`, at most the `keep` greatest (0 = all): once the
 * list is full the least kept one is the new limit. Ids ascend, so a later equal logit comes after
 * it anyway.
 */
static size_t collect(struct pkv_sampler *sampler, float limit, size_t keep)
{
    size_t count = 0;
    for (uint32_t first = 0; first < sampler->vocab; first += BLOCK) {
        uint32_t rest = sampler->vocab - first;
        uint32_t block = rest < BLOCK ? rest : BLOCK;
        if (!any_above(sampler->work + first, block, limit)) {
            continue;
        }
        if (keep > 0 && count + block > sampler->capacity) {
            select_greatest(sampler->order, count, keep);
            count = keep;
            limit = candidate_logit(sampler->order[keep - 1]);
        }
        for (uint32_t i = first; i < first + block; i++) {
            if (sampler->work[i] > limit) {
                sampler->order[count++] = candidate(sampler->work[i], i);
            }
        }
    }
    if (keep > 0 && count > keep) {
        select_greatest(sampler->order, count, keep);
        count = keep;
    }
    return count;
}

/* --- sums of exponentials --- */

/*
 * exp(-x) for x >= 0 in plain arithmetic without a branch, so that the loop around it vectorises:
 * 2^n * e^r with |r| <= ln(2) / 2 and the series of e^r. Error below 3e-7 of the value; 0 from 87
 * on.
 */
static inline float exp_minus(float x)
{
    const int32_t end = 0x42ae0000; // the bits of 87.0f; bits of positive floats order like them
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t inside = bits < end ? -1 : 0;
    bits = bits < end ? bits : end;
    float y;
    memcpy(&y, &bits, sizeof y);
    const float shift = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    float n = (y * -1.44269504f + shift) - shift;
    float r = (-y - n * 0.693359375f) + n * 2.12194440e-4f;
    float e = 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    bits = (((int32_t)n + 127) * (1 << 23)) & inside;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return e * scale;
}

/* weights[i] = exp((x[i] - most) * factor), in place if wished; returns their sum. */
static float weigh_block(const float *x, uint32_t count, float most, float factor, float *weights)
{
    float lane[LANES] = {0};
    for (uint32_t i = 0; i < count; i++) {
        weights[i] = exp_minus((most - x[i]) * factor);
    }
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            lane[j] += weights[i + j];
        }
    }
    float sum = 0.0f;
    for (; i < count; i++) {
        sum += weights[i];
    }
    for (uint32_t j = 0; j < LANES; j++) {
        sum += lane[j];
    }
    return sum;
}

/* Sum of exp(x - most) over the whole vocabulary. */
static double sum_all(const struct pkv_sampler *sampler, float most)
{
    double sum = 0.0;
    float weights[BLOCK];
    for (uint32_t first = 0; first < sampler->vocab; first += BLOCK) {
        uint32_t rest = sampler->vocab - first;
        sum += (double)weigh_block(sampler->work + first, rest < BLOCK ? rest : BLOCK, most, 1.0f,
                                   weights);
    }
    return sum;
}

/* --- stages 4 to 8 --- */

static double uniform(uint64_t seed, uint64_t position)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t words[4];
    pkvi_philox4x32(key, counter, words);
    return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

/* Nothing is filtered: draw over the whole vocabulary, by ascending id. */
static uint32_t draw_all(struct pkv_sampler *sampler, float most, double u)
{
    float *work = sampler->work;
    float factor = fminf(1.0f / sampler->config.temperature, FLT_MAX);
    double total = 0.0;
    for (uint32_t first = 0; first < sampler->vocab; first += BLOCK) {
        uint32_t rest = sampler->vocab - first;
        total += (double)weigh_block(work + first, rest < BLOCK ? rest : BLOCK, most, factor,
                                     work + first);
    }
    double target = u * total, sum = 0.0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        if (work[i] > 0.0f) {
            last = i; // the answer too if rounding leaves the running sum short of the target
            sum += (double)work[i];
            if (sum > target) {
                break;
            }
        }
    }
    return last;
}

/* Candidates in any order -> how many survive, in descending order, at the end of the list. */
static size_t filter(struct pkv_sampler *sampler, size_t count, double total)
{
    const struct pkv_sampler_config *config = &sampler->config;
    uint64_t *heap = sampler->order;
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(heap, count, i);
    }
    double most = (double)candidate_logit(heap[0]);
    double least = most + (config->min_p > 0.0f ? log((double)config->min_p) : -INFINITY);
    double enough = config->top_p < 1.0f ? (double)config->top_p * total : INFINITY, sum = 0.0;
    size_t kept = 0;
    while (kept < count && sum < enough && (double)candidate_logit(heap[0]) >= least) {
        sum += exp((double)candidate_logit(heap[0]) - most);
        kept++;
        swap(&heap[0], &heap[count - kept]);
        sift_down(heap, count - kept, 0);
    }
    return kept;
}

static uint32_t draw_filtered(struct pkv_sampler *sampler, size_t count, size_t kept, double u)
{
    const uint64_t *end = sampler->order + count; // the i-th best stands at end[-1 - i]
    double most = (double)candidate_logit(end[-1]);
    double temperature = (double)sampler->config.temperature, total = 0.0;
    float *weights = sampler->work;
    for (size_t i = 0; i < kept; i++) {
        double logit = (double)candidate_logit(*(end - 1 - i));
        weights[i] = (float)exp((logit - most) / temperature);
        total += (double)weights[i];
    }
    double target = u * total, sum = 0.0;
    size_t i = 0;
    for (; i + 1 < kept; i++) {
        sum += (double)weights[i];
        if (sum > target) {
            break;
        }
    }
    return candidate_id(*(end - 1 - i));
}

static uint32_t draw(struct pkv_sampler *sampler, float most, double u)
{
    const struct pkv_sampler_config *config = &sampler->config;
    if (sampler->kept == 0 && config->top_p == 1.0f && config->min_p == 0.0f) {
        return draw_all(sampler, most, u);
    }
    double total = 0.0;
    float limit = -INFINITY;
    if (sampler->kept == 0) {
        // What can survive: all that lies under (1 - top_p) / vocab weighs less than 1 - top_p
        // together.
        double share = (double)config->min_p;
        if (config->top_p < 1.0f) {
            total = sum_all(sampler, most);
            share = fmax(share, (1.0 - (double)config->top_p) * total / (double)sampler->vocab);
        }
        // A little lower, against rounding: filter() applies the exact rules.
        limit = (float)fmax((double)most + log(share) - 0.01, (double)-FLT_MAX);
        limit = nextafterf(limit, -INFINITY);
    }
    size_t count = collect(sampler, limit, sampler->kept);
    if (sampler->kept > 0 && config->top_p < 1.0f) {
        for (size_t i = 0; i < count; i++) {
            total += exp((double)candidate_logit(sampler->order[i]) - (double)most);
        }
    }
    return draw_filtered(sampler, count, filter(sampler, count, total), u);
}

enum pkv_status pkv_sampler_pick(struct pkv_sampler *sampler, const float *logits,
                                 const int32_t *past, size_t past_count, uint64_t position,
                                 int32_t *id_out)
{
    const struct pkv_sampler_config *config = &sampler->config;
    PKV_TRY(adjust_logits(sampler, logits, past, past_count));
    float most = greatest(sampler->work, sampler->vocab);
    if (!(most > -INFINITY)) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "sampler: none of %u logits at position %llu is finite",
                        sampler->vocab, (unsigned long long)position);
    }
    uint32_t id = 0;
    if (config->temperature == 0.0f || sampler->kept == 1) {
        while (sampler->work[id] != most) {
            id++;
        }
    } else {
        id = draw(sampler, most, uniform(config->seed, position));
    }
    *id_out = (int32_t)id;
    return PKV_OK;
}
