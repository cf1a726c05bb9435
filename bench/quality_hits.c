/*
 * quality_hits.c: owns which tokens arms have on the device, and how many of those that the oracle
 * has in its slots at the same step are among them: the hit rate. Sets are bitmaps of positions.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/quality.h"
#include "pivotkv/impl/policy_ops.h"

#define STRIDE 8u /* tokens from a sample to the next */

bool quality_is_oracle(const struct quality_arm *arm)
{
    return arm->policy && arm->policy->recipe.pick == PKV_PICK_TOP;
}

/* Whose sets an arm's hits are counted against; NULL: none, or its own. */
static const struct quality_arm *truth_of(const struct quality *q, const struct quality_arm *arm)
{
    for (uint32_t a = 0; arm->policy && a < q->arm_count; a++) {
        const struct quality_arm *other = &q->arm[a];
        const bool same_shape = other->pyramid == arm->pyramid || quality_own_shape(arm->policy);
        if (other != arm && quality_is_oracle(other) && other->set && same_shape &&
            other->recent_ratio == arm->recent_ratio && other->budget_bytes == arm->budget_bytes) {
            return other;
        }
    }
    return NULL;
}

static uint32_t samples_of(uint32_t tokens)
{
    return (tokens + STRIDE - 1) / STRIDE;
}

/* Words of all KV heads' sets at one step; of one set. */
static uint64_t step_words(const struct quality *q, uint64_t *set_words)
{
    uint32_t heads = 0;
    for (uint32_t l = 0; l < q->engine.model_info.layers; l++) {
        heads += pkv_model_layer(q->engine.model, l)->kv_heads;
    }
    *set_words = ((uint64_t)q->context + q->tokens_most) / 64 + 1;
    return heads * *set_words;
}

bool quality_hits_open(struct quality *q)
{
    uint64_t words, samples = 0;
    const uint64_t step = step_words(q, &words);
    bool ok = true;
    for (uint32_t t = 0; t < q->text_count; t++) {
        q->text[t].sample = (uint32_t)samples;
        samples += samples_of(q->text[t].tokens);
    }
    q->positions = malloc(((size_t)q->context + q->tokens_most) * sizeof *q->positions);
    q->here = malloc(words * sizeof *q->here);
    for (uint32_t a = 0; a < q->arm_count; a++) {
        if (quality_is_oracle(&q->arm[a]) && quality_runs(q, QUALITY_FORCED)) {
            q->arm[a].set = calloc(samples * step, sizeof *q->arm[a].set);
            ok = ok && q->arm[a].set;
        }
    }
    return ok && q->positions && q->here;
}

void quality_hits_close(struct quality *q)
{
    free(q->positions);
    free(q->here);
    for (uint32_t a = 0; a < q->arm_count; a++) {
        free(q->arm[a].set);
    }
}

/* Tokens in the slots of a KV head, as a bitmap; `ring`: those of its ring too. */
static enum pkv_status read_set(const struct quality *q, struct pkv_seq *seq, uint32_t l,
                                uint32_t head, bool ring, uint64_t *set)
{
    const uint32_t most = (uint32_t)q->context + q->tokens_most, tokens = pkv_seq_tokens(seq);
    uint32_t count = 0, first = 0;
    enum pkv_status status = pkv_seq_hot_tokens(seq, l, head, q->positions, most, &count);
    if (status == PKV_OK && ring) {
        status = pkv_seq_hot_ring(seq, l, &first);
    }
    for (uint32_t i = 0; status == PKV_OK && i < count; i++) {
        set[q->positions[i] / 64] |= UINT64_C(1) << (q->positions[i] % 64);
    }
    for (uint32_t i = first; status == PKV_OK && ring && i < tokens; i++) {
        set[i / 64] |= UINT64_C(1) << (i % 64);
    }
    return status;
}

static uint32_t ones(uint64_t word)
{
    uint32_t count = 0;
    for (; word != 0; word &= word - 1) {
        count++;
    }
    return count;
}

bool quality_hits_step(struct quality *q, const struct quality_text *text, struct quality_arm *arm,
                       struct pkv_seq *seq, uint32_t step, struct quality_layer *layer)
{
    const struct quality_arm *truth = truth_of(q, arm);
    uint64_t words;
    const uint64_t all = step_words(q, &words);
    uint64_t at = (text->sample + step / STRIDE) * all;
    if (step % STRIDE != 0 || (!truth && !arm->set)) {
        return true;
    }
    for (uint32_t l = 0; l < q->engine.model_info.layers; l++) {
        for (uint32_t h = 0; h < pkv_model_layer(q->engine.model, l)->kv_heads; h++, at += words) {
            memset(q->here, 0, words * sizeof *q->here);
            if (read_set(q, seq, l, h, !arm->set, arm->set ? arm->set + at : q->here) != PKV_OK) {
                pkvi_say_library_failure();
                return false;
            }
            for (uint64_t w = 0; truth && w < words; w++) {
                const uint64_t wanted = truth->set[at + w];
                layer[l].wanted += ones(wanted);
                layer[l].hits += ones(wanted & q->here[w]);
            }
        }
    }
    return true;
}
