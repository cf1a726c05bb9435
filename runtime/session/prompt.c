/*
 * prompt.c: a prompt, pass by pass and unit by unit, with steps of other sequences in between. What
 * a unit launches is pipeline.c's.
 */
#include "runtime/base/check.h"
#include "runtime/device/device.h"
#include "runtime/session/session.h"

static enum pkv_status check_idle(const struct pkv_session *s)
{
    return s->prompt.seq == NULL
               ? PKV_OK
               : PKV_FAIL(PKV_ERR_STATE, "another prompt is under way: %zu of %zu tokens",
                          s->prompt.done, s->prompt.count);
}

/* A prompt that is pruned goes through the layers in one pass. */
static enum pkv_status check_whole(struct pkv_session *s, uint32_t count)
{
    const uint32_t most = s->lane[PKVI_LANE_PROMPT]->rows;
    if (count > most) {
        return PKV_FAIL(
            PKV_ERR_RANGE,
            "prompt of %u tokens: policy %s prunes it in one pass of at most %u rows: a "
            "larger prompt_rows",
            count, s->policy.name, most);
    }
    return pkvi_tier_check_prompt(s->tier, count);
}

enum pkv_status pkv_prompt_begin(struct pkv_session *session, struct pkv_seq *seq,
                                 const int32_t *ids, size_t count)
{
    if (!seq || seq->session != session || count == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "prompt of %zu tokens: expected at least 1", count);
    }
    PKV_TRY(check_idle(session));
    const uint32_t room = session->config.context_tokens - seq->tokens;
    if (count > room) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "prompt of %zu tokens after %u: room for %u in a context of %u", count,
                        seq->tokens, room, session->config.context_tokens);
    }
    const struct pkv_step_part part = {.seq = seq, .ids = ids, .count = (uint32_t)count};
    PKV_TRY(pkvi_check_parts(session, &part, 1, UINT32_MAX));
    if (pkvi_session_prunes(session) && seq->tokens == 0) {
        PKV_TRY(check_whole(session, (uint32_t)count));
    }
    session->prompt = (struct pkvi_prompt){.seq = seq, .ids = ids, .count = count};
    return PKV_OK;
}

/* Rows of the next pass: of long passes all about the same, so that the last rows of a prompt,
 * which a policy may look at, are not few in a pass of their own. */
static size_t next_rows(const struct pkv_session *s, size_t left, size_t most)
{
    const size_t step = s->config.step_rows, passes = (left + most - 1) / most;
    const size_t even = ((left + passes - 1) / passes + step - 1) / step * step;
    const size_t rows = even < most ? even : most;
    return rows < left ? rows : left;
}

static enum pkv_status begin_pass(struct pkv_session *s)
{
    struct pkvi_prompt *prompt = &s->prompt;
    /* what follows a pruned prompt is like what is generated: token by token */
    const bool single = pkvi_session_prunes(s) && prompt->seq->tokens > 0;
    const size_t left = prompt->count - prompt->done,
                 most = single ? 1 : s->lane[PKVI_LANE_PROMPT]->rows;
    const size_t rows = next_rows(s, left, most);
    prompt->part = (struct pkv_step_part){.seq = prompt->seq,
                                          .ids = prompt->ids + prompt->done,
                                          .count = (uint32_t)rows,
                                          .logit_rows = rows == left ? 1 : 0};
    prompt->in_pass = true;
    return pkvi_pass_begin(s, PKVI_LANE_PROMPT, &prompt->part, 1, &prompt->pass);
}

static enum pkv_status end_pass(struct pkv_session *s, const float **logits_out)
{
    struct pkvi_prompt *prompt = &s->prompt;
    PKV_TRY(pkvi_pass_end(&prompt->pass, &prompt->part, 1, logits_out));
    prompt->in_pass = false;
    prompt->done += prompt->part.count;
    return PKV_OK;
}

/* One unit, and what begins or ends a pass around it. */
static enum pkv_status advance(struct pkv_session *s, const float **logits_out)
{
    if (!s->prompt.in_pass) {
        PKV_TRY(begin_pass(s));
    }
    PKV_TRY(pkvi_pass_unit(&s->prompt.pass));
    return pkvi_pass_has_unit(&s->prompt.pass) ? PKV_OK : end_pass(s, logits_out);
}

enum pkv_status pkv_prompt_advance(struct pkv_session *session, uint32_t units,
                                   const float **logits_out)
{
    struct pkvi_prompt *prompt = &session->prompt;
    if (!prompt->seq) {
        return PKV_FAIL(PKV_ERR_STATE, "no prompt is under way");
    }
    PKV_TRY(pkvi_session_usable(session));
    for (uint32_t i = 0; i < units && prompt->done < prompt->count; i++) {
        const enum pkv_status status = advance(session, logits_out);
        if (status != PKV_OK) {
            session->broken = true;
            prompt->seq = NULL;
            return status;
        }
    }
    if (prompt->done < prompt->count) {
        return PKV_PENDING;
    }
    prompt->seq = NULL;
    return PKV_OK;
}

size_t pkv_prompt_progress(const struct pkv_session *session)
{
    const struct pkvi_prompt *prompt = &session->prompt;
    const uint64_t layers = session->model->info.layers, tiles = prompt->pass.row_tiles;
    if (!prompt->seq || !prompt->in_pass || tiles == 0) {
        return prompt->seq ? prompt->done : 0;
    }
    const uint64_t units = prompt->pass.layer * tiles + prompt->pass.row_tile;
    return prompt->done + (size_t)(units * prompt->part.count / (layers * tiles));
}

/* What is pruned cannot be undone: the token at hand is done. */
static enum pkv_status finish_pass(struct pkv_session *s)
{
    while (pkvi_pass_has_unit(&s->prompt.pass)) {
        PKV_TRY(pkvi_pass_unit(&s->prompt.pass));
    }
    return end_pass(s, NULL);
}

/*
 * The pass at hand is forgotten; where it has overwritten what a sliding layer's ring still needed,
 * the sequence is emptied.
 */
static enum pkv_status undo_pass(struct pkv_session *s)
{
    struct pkv_seq *seq = s->prompt.seq;
    const uint32_t end = seq->tokens + s->prompt.part.count;
    pkvi_tier_select(s->tier, PKVI_LANE_PROMPT);
    PKV_TRY(pkvi_stream_sync(s->compute));
    PKV_TRY(pkvi_tier_abort(s->tier));
    seq->high = end > seq->high ? end : seq->high;
    if (seq->tokens > 0 && !pkvi_session_rings_hold(seq, seq->tokens)) {
        PKV_TRY(pkvi_tier_seq_truncate(s->tier, seq->index, 0));
        seq->tokens = seq->high = 0;
    }
    return PKV_OK;
}

enum pkv_status pkv_prompt_cancel(struct pkv_session *session)
{
    enum pkv_status status = PKV_OK;
    if (session->prompt.seq && session->prompt.in_pass && !session->broken) {
        const bool single = pkvi_session_prunes(session) && session->prompt.seq->tokens > 0;
        status = single ? finish_pass(session) : undo_pass(session);
        session->broken = status != PKV_OK;
    }
    session->prompt.seq = NULL;
    return status;
}

enum pkv_status pkv_prompt_run(struct pkv_session *session, struct pkv_seq *seq, const int32_t *ids,
                               size_t count, const volatile int *cancel, const float **logits_out)
{
    enum pkv_status status = PKV_PENDING;
    PKV_TRY(pkv_prompt_begin(session, seq, ids, count));
    while (status == PKV_PENDING) {
        if (cancel && *cancel != 0) {
            const struct pkvi_prompt *prompt = &session->prompt;
            const size_t done = prompt->done;
            const bool within = prompt->in_pass;
            PKV_TRY(pkv_prompt_cancel(session));
            return PKV_FAIL(PKV_ERR_CANCELED, "canceled after %zu of %zu prompt tokens%s", done,
                            count, within ? ", within a pass" : "");
        }
        status = pkv_prompt_advance(session, 1, logits_out);
    }
    return status;
}
