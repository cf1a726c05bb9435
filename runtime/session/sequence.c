/*
 * sequence.c: sequences of a session: which are open, how many tokens they have, and what of the
 * past their sliding layers still hold. Where K and V are is the tier's to know.
 */
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/session/session.h"

uint32_t pkvi_session_slots(const struct pkv_session *s)
{
    return s->config.sequences + s->config.parked_sequences;
}

enum pkv_status pkvi_session_usable(const struct pkv_session *s)
{
    return s->broken ? PKV_FAIL(PKV_ERR_STATE, "the session's device failed in an earlier step")
                     : PKV_OK;
}

enum pkv_status pkvi_session_rest(struct pkv_session *s)
{
    PKV_TRY(pkvi_session_wait(s));
    return pkvi_session_usable(s);
}

enum pkv_status pkvi_session_check(struct pkv_session *s, enum pkv_status status)
{
    s->broken = s->broken || (status != PKV_OK && status != PKV_ERR_NO_SLOT);
    return status;
}

enum pkv_status pkvi_session_keeps_all(const struct pkv_session *s, const char *what)
{
    return pkvi_session_prunes(s)
               ? PKV_FAIL(PKV_ERR_UNSUPPORTED,
                          "%s: policy %s drops entries for good and keeps nothing in host memory",
                          what, s->policy.name)
               : PKV_OK;
}

static enum pkv_status free_slot(struct pkv_session *s, struct pkv_seq **seq_out)
{
    for (uint32_t i = 0; i < pkvi_session_slots(s); i++) {
        if (!s->seqs[i].open) {
            *seq_out = &s->seqs[i];
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_NO_SLOT, "all %u sequences are in use", pkvi_session_slots(s));
}

enum pkv_status pkv_seq_open(struct pkv_session *session, struct pkv_seq **seq_out)
{
    struct pkv_seq *seq = NULL;
    PKV_TRY(pkvi_session_rest(session)); /* a pass that runs may still upload the views */
    PKV_TRY(free_slot(session, &seq));
    PKV_TRY(pkvi_tier_seq_open(session->tier, seq->index));
    seq->open = true;
    seq->tokens = seq->high = 0;
    *seq_out = seq;
    return PKV_OK;
}

/* Nothing is done to a sequence while a prompt of it is under way. */
enum pkv_status pkvi_seq_rest(struct pkv_seq *seq)
{
    PKV_TRY(pkvi_session_rest(seq->session));
    return seq != seq->session->prompt.seq
               ? PKV_OK
               : PKV_FAIL(PKV_ERR_STATE, "a prompt of the sequence is under way");
}

void pkv_seq_close(struct pkv_seq *seq)
{
    if (seq && seq->open) {
        if (seq == seq->session->prompt.seq) {
            (void)pkv_prompt_cancel(seq->session);
        }
        /* Of a broken session a pass may still be running: its tables must stay as they are. */
        if (pkvi_session_rest(seq->session) == PKV_OK) {
            pkvi_tier_seq_close(seq->session->tier, seq->index);
        }
        seq->open = false;
    }
}

uint32_t pkv_seq_tokens(const struct pkv_seq *seq)
{
    return seq->tokens;
}

bool pkvi_session_rings_hold(const struct pkv_seq *seq, uint32_t tokens)
{
    return pkvi_tier_rings_hold(&seq->session->tier_config, seq->high, tokens);
}

enum pkv_status pkv_seq_truncate(struct pkv_seq *seq, uint32_t tokens)
{
    struct pkv_session *s = seq->session;
    PKV_TRY(pkvi_tier_check_cut(&s->tier_config, seq->tokens, seq->high, tokens));
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(pkvi_session_check(s, pkvi_tier_seq_truncate(s->tier, seq->index, tokens)));
    seq->tokens = tokens;
    if (tokens == 0) {
        seq->high = 0;
    }
    return PKV_OK;
}

static enum pkv_status check_parked(const struct pkv_seq *seq, bool parked)
{
    if (pkv_seq_parked(seq) != parked) {
        return PKV_FAIL(PKV_ERR_STATE, parked ? "the sequence is not parked"
                                              : "the sequence is parked: unpark it first");
    }
    return PKV_OK;
}

enum pkv_status pkv_seq_fork(struct pkv_seq *seq, struct pkv_seq **fork_out)
{
    struct pkv_session *s = seq->session;
    struct pkv_seq *fork = NULL;
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(check_parked(seq, false));
    PKV_TRY(pkvi_session_keeps_all(s, "fork"));
    PKV_TRY(free_slot(s, &fork));
    PKV_TRY(pkvi_session_check(s, pkvi_tier_seq_fork(s->tier, seq->index, fork->index)));
    fork->open = true;
    fork->tokens = seq->tokens;
    fork->high = seq->high;
    *fork_out = fork;
    return PKV_OK;
}

bool pkv_seq_parked(const struct pkv_seq *seq)
{
    return pkvi_tier_seq_parked(seq->session->tier, seq->index);
}

enum pkv_status pkv_seq_park(struct pkv_seq *seq)
{
    struct pkv_session *s = seq->session;
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(check_parked(seq, false));
    PKV_TRY(pkvi_session_keeps_all(s, "park"));
    return pkvi_session_check(s, pkvi_tier_seq_park(s->tier, seq->index));
}

enum pkv_status pkv_seq_unpark(struct pkv_seq *seq)
{
    struct pkv_session *s = seq->session;
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(check_parked(seq, true));
    return pkvi_session_check(s, pkvi_tier_seq_unpark(s->tier, seq->index));
}

enum pkv_status pkv_seq_hot_tokens(struct pkv_seq *seq, uint32_t layer, uint32_t kv_head,
                                   int32_t *tokens_out, uint32_t most, uint32_t *count_out)
{
    struct pkv_session *s = seq->session;
    uint64_t bytes = 0;
    *count_out = 0;
    if (layer >= s->model->info.layers || kv_head >= s->model->layer[layer].info.kv_heads) {
        return PKV_FAIL(PKV_ERR_RANGE, "hot set of layer %u, KV head %u: there is none", layer,
                        kv_head);
    }
    PKV_TRY(pkvi_seq_rest(seq));
    PKV_TRY(pkvi_session_piece(s, &bytes));
    *count_out = pkvi_tier_hot_slots(s->tier, seq->index, layer, kv_head);
    if (*count_out > most || *count_out * sizeof *tokens_out > bytes) {
        return PKV_FAIL(PKV_ERR_RANGE, "hot set of layer %u, KV head %u: %u tokens, room for %u",
                        layer, kv_head, *count_out, most);
    }
    if (*count_out > 0) {
        PKV_TRY(pkvi_session_check(
            s, pkvi_tier_hot_tokens(s->tier, seq->index, layer, kv_head, s->piece)));
        memcpy(tokens_out, pkvi_host(s->piece), *count_out * sizeof *tokens_out);
    }
    return PKV_OK;
}

enum pkv_status pkv_seq_hot_ring(const struct pkv_seq *seq, uint32_t layer, uint32_t *first_out)
{
    const struct pkv_session *s = seq->session;
    *first_out = 0;
    if (layer >= s->model->info.layers) {
        return PKV_FAIL(PKV_ERR_RANGE, "ring of layer %u: there are %u layers", layer,
                        s->model->info.layers);
    }
    *first_out = pkvi_tier_hot_ring(s->tier, seq->index, layer);
    return PKV_OK;
}
