/* answer.c: owns the decode loop. Knows nothing of prompts, options or records. */
#include "runtime/cli/answer.h"

#include <stdio.h>
#include <stdlib.h>

#define CUT_TOKENS ((size_t)8)     /* more than a character is cut into */
#define LONG_TOKENS ((size_t)1024) /* of a prompt whose progress is shown */

const char *pkvi_finish_name(enum pkvi_finish finish)
{
    static const char *const names[] = {"end",         "stop",   "length", "context",
                                        "interrupted", "output", "failed"};
    return names[finish];
}

static bool open_stop(struct pkvi_answer *answer, const struct pkvi_texts *texts)
{
    return texts->count == 0 || pkv_stop_open(texts->text, texts->count, &answer->stop) == PKV_OK;
}

bool pkvi_answer_open(struct pkvi_answer *answer, struct pkvi_engine *engine,
                      const struct pkvi_answer_config *config)
{
    *answer = (struct pkvi_answer){.config = *config, .engine = engine};
    struct pkv_sampler_config sampler = pkvi_sampling_config(config->sampling);
    if (pkv_sampler_open(&sampler, engine->model_info.vocab, &answer->sampler) != PKV_OK ||
        !open_stop(answer, &config->sampling->stop)) {
        pkvi_say_library_failure();
        return false;
    }
    answer->piece_bytes = engine->text.has_text ? pkv_detok_most_bytes(engine->tokenizer) : 0;
    answer->piece_bytes = answer->piece_bytes < 64 ? 64 : answer->piece_bytes;
    size_t held_bytes = answer->stop != NULL ? pkv_stop_most_bytes(answer->stop) : 0;
    answer->capacity = (size_t)engine->context_tokens + 1;
    answer->piece = malloc(answer->piece_bytes);
    answer->safe = malloc(answer->piece_bytes + held_bytes);
    answer->ids = malloc(answer->capacity * sizeof *answer->ids);
    if (answer->piece == NULL || answer->safe == NULL || answer->ids == NULL) {
        pkvi_say_failure("out of memory");
        return false;
    }
    return true;
}

void pkvi_answer_close(struct pkvi_answer *answer)
{
    if (answer->sampler != NULL) {
        pkv_sampler_close(answer->sampler);
    }
    if (answer->stop != NULL) {
        pkv_stop_close(answer->stop);
    }
    free(answer->piece);
    free(answer->safe);
    free(answer->text.data);
    free(answer->ids);
    *answer = (struct pkvi_answer){0};
}

static void show(struct pkvi_answer *answer, const char *data, size_t bytes)
{
    if (answer->config.keep && !pkvi_bytes_add(&answer->text, data, bytes)) {
        answer->failed = true;
    }
    if (answer->config.print && bytes > 0) {
        pkvi_out_write(data, bytes);
        pkvi_out_flush();
    }
}

/* Bytes of the piece, through the stop strings; true once one was met. */
static bool pass(struct pkvi_answer *answer, size_t bytes)
{
    if (answer->stop == NULL) {
        show(answer, answer->piece, bytes);
        return false;
    }
    bool stopped = false;
    size_t safe = pkv_stop_push(answer->stop, answer->piece, bytes, answer->safe, &stopped);
    show(answer, answer->safe, safe);
    return stopped;
}

static bool push(struct pkvi_answer *answer, int32_t id)
{
    if (!answer->engine->text.has_text) {
        bool first = answer->count == answer->prompt_count + 1;
        int bytes = snprintf(answer->piece, answer->piece_bytes, first ? "%d" : " %d", id);
        show(answer, answer->piece, bytes > 0 ? (size_t)bytes : 0);
        return false;
    }
    return pass(answer, pkv_detok_push(&answer->detok, id, answer->piece, answer->piece_bytes));
}

/*
 * What is held back comes out. The start of a character only if the text ended by itself: cut by a
 * length it may become whole, and the text of n tokens must be a head of the text of n + 1.
 */
static void finish_text(struct pkvi_answer *answer, enum pkvi_finish finish)
{
    if (!answer->engine->text.has_text || finish == PKV_FINISH_STOP) {
        return;
    }
    if (finish == PKV_FINISH_END) {
        size_t bytes = pkv_detok_finish(&answer->detok, answer->piece, answer->piece_bytes);
        if (pass(answer, bytes)) {
            return;
        }
    }
    if (answer->stop != NULL) {
        show(answer, answer->safe, pkv_stop_finish(answer->stop, answer->safe));
    }
}

static bool is_end(const struct pkvi_answer *answer, int32_t id)
{
    return !answer->config.ignore_end &&
           (id == answer->config.end_of_turn || pkv_token_is_end(answer->engine->tokenizer, id));
}

/* From the logits of the prompt's last token on. */
static enum pkvi_finish decode(struct pkvi_answer *answer, struct pkv_seq *seq, const float *logits,
                               int64_t limit)
{
    for (int64_t made = 0;; made++) {
        if (pkvi_signal != 0) {
            return PKV_FINISH_INTERRUPTED;
        }
        if (made == limit) {
            return PKV_FINISH_LENGTH;
        }
        int32_t id = 0;
        if (pkv_sampler_pick(answer->sampler, logits, answer->ids, answer->count, answer->count,
                             &id) != PKV_OK) {
            return PKV_FINISH_FAILED;
        }
        if (made == 0) {
            answer->first_ns = pkvi_now_ns();
        }
        if (is_end(answer, id)) {
            return PKV_FINISH_END;
        }
        answer->ids[answer->count++] = id;
        if (push(answer, id)) {
            return PKV_FINISH_STOP;
        }
        if (!pkvi_out_flush()) {
            return PKV_FINISH_OUTPUT;
        }
        if (answer->count == answer->capacity) {
            return made + 1 == limit ? PKV_FINISH_LENGTH : PKV_FINISH_CONTEXT;
        }
        if (made + 1 == limit) {
            return PKV_FINISH_LENGTH;
        }
        struct pkv_step_part part = {
            .seq = seq, .ids = &answer->ids[answer->count - 1], .count = 1, .logit_rows = 1};
        if (pkv_step_run(answer->engine->session, &part, 1, &logits) != PKV_OK) {
            return PKV_FINISH_FAILED;
        }
        answer->steps++;
    }
}

bool pkvi_seq_cut(struct pkv_seq *seq, size_t *left_out, size_t tokens)
{
    enum pkv_status status = pkv_seq_truncate(seq, (uint32_t)tokens);
    if (status == PKV_ERR_RANGE) {
        status = pkv_seq_truncate(seq, 0);
    }
    if (status != PKV_OK) {
        pkvi_say_library_failure();
    }
    *left_out = pkv_seq_tokens(seq);
    return status == PKV_OK;
}

/* The one token that was chosen and not yet run when a sequence was saved: as it would have gone
 * on, a step, not a prompt, which a policy may look at. */
static enum pkv_status feed_one(struct pkvi_answer *answer, struct pkv_seq *seq, size_t at,
                                const float **logits_out)
{
    const struct pkv_step_part part = {
        .seq = seq, .ids = answer->ids + at, .count = 1, .logit_rows = 1};
    return pkv_step_run(answer->engine->session, &part, 1, logits_out);
}

/* The prompt from `at` on, unit by unit, so that its progress can be seen. */
static enum pkv_status feed(struct pkvi_answer *answer, struct pkv_seq *seq, size_t at,
                            const float **logits_out)
{
    struct pkv_session *session = answer->engine->session;
    const size_t count = answer->prompt_count - at;
    if (count == 0) {
        return PKV_OK;
    }
    if (count == 1 && at > 0) {
        return feed_one(answer, seq, at, logits_out);
    }
    enum pkv_status status = pkv_prompt_begin(session, seq, answer->ids + at, count);
    size_t shown = 0;
    if (status == PKV_OK) {
        status = PKV_PENDING;
    }
    while (status == PKV_PENDING) {
        if (pkvi_signal != 0) {
            status = pkv_prompt_cancel(session);
            status = status == PKV_OK ? PKV_ERR_CANCELED : status;
            break;
        }
        const size_t done = pkv_prompt_progress(session);
        if (count > LONG_TOKENS && (shown == 0 || done - shown >= LONG_TOKENS / 2)) {
            pkvi_say_progress("prompt   %zu of %zu tokens", at + done, answer->prompt_count);
            shown = done > 0 ? done : 1;
        }
        status = pkv_prompt_advance(session, 1, logits_out);
    }
    if (shown > 0) {
        pkvi_say_progress(NULL);
    }
    return status;
}

enum pkvi_finish pkvi_answer_run(struct pkvi_answer *answer, struct pkv_seq *seq, size_t cached,
                                 int64_t limit)
{
    answer->count = answer->prompt_count;
    answer->first_ns = pkvi_now_ns();
    answer->text.bytes = 0;
    answer->read = 0;
    answer->has_first = false;
    answer->prompt_ns = answer->decode_ns = answer->steps = 0;
    if (answer->stop != NULL) {
        pkv_stop_reset(answer->stop);
    }
    pkv_detok_init(&answer->detok, answer->engine->tokenizer, false);
    size_t at = answer->prompt_count > CUT_TOKENS ? answer->prompt_count - CUT_TOKENS : 0;
    for (; answer->config.goes_on && answer->engine->text.has_text && at < answer->prompt_count;
         at++) {
        (void)pkv_detok_push(&answer->detok, answer->ids[at], answer->piece, answer->piece_bytes);
    }
    if (pkvi_signal != 0) {
        return PKV_FINISH_INTERRUPTED;
    }
    const float *logits = NULL;
    uint64_t begin_ns = pkvi_now_ns();
    enum pkv_status status = feed(answer, seq, cached, &logits);
    answer->first_ns = pkvi_now_ns();
    answer->prompt_ns = answer->first_ns - begin_ns;
    const size_t tokens = pkv_seq_tokens(seq);
    answer->read = tokens > cached ? tokens - cached : 0;
    answer->has_first = status == PKV_OK;
    if (status == PKV_ERR_CANCELED) {
        return PKV_FINISH_INTERRUPTED;
    }
    enum pkvi_finish finish = PKV_FINISH_FAILED;
    if (status == PKV_OK) {
        finish = decode(answer, seq, logits, limit);
        answer->decode_ns = pkvi_now_ns() - answer->first_ns;
    }
    if (finish == PKV_FINISH_FAILED) {
        pkvi_say_library_failure();
        return finish;
    }
    finish_text(answer, finish);
    return finish;
}
