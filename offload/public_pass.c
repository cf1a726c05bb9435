/*
 * public_pass.c: the public tier's sequences and passes. It checks every call against what came
 * before, so that the tier below is only ever driven in the one right order.
 */
#include "offload/public.h"

#include <math.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/device/device.h"

/* ---- states ---- */

static enum pkv_status usable(const struct pkv_tier *t, const char *what)
{
    if (!t) {
        return PKV_FAIL(PKV_ERR_INVALID, "%s: no tier (NULL)", what);
    }
    return t->broken
               ? PKV_FAIL(PKV_ERR_STATE,
                          "%s: the tier's device failed in an earlier call: close the tier", what)
               : PKV_OK;
}

/* What the device or the tier below said: a failure other than a missing slot is the end. */
static enum pkv_status noted(struct pkv_tier *t, enum pkv_status status)
{
    t->broken = t->broken || (status != PKV_OK && status != PKV_ERR_NO_SLOT);
    return status;
}

static enum pkv_status check_out(const void *out, const char *what)
{
    return out ? PKV_OK : PKV_FAIL(PKV_ERR_INVALID, "%s: nowhere to put the number (NULL)", what);
}

/* Between passes, none of which runs any more. */
static enum pkv_status rest(struct pkv_tier *t, const char *what)
{
    PKV_TRY(usable(t, what));
    if (t->in_pass) {
        return PKV_FAIL(PKV_ERR_STATE, "%s: within a pass: end or abort it first", what);
    }
    if (t->in_flight) {
        PKV_TRY(noted(t, pkvi_event_sync(t->done)));
        t->in_flight = false;
    }
    return PKV_OK;
}

static enum pkv_status within(const struct pkv_tier *t, const char *what)
{
    PKV_TRY(usable(t, what));
    return t->in_pass ? PKV_OK : PKV_FAIL(PKV_ERR_STATE, "%s: no pass has begun", what);
}

/* ---- sequences ---- */

static struct pkvi_public_seq *find(const struct pkv_tier *t, uint32_t seq)
{
    return t && seq < pkvi_public_slots(t) && t->seq[seq].open ? &t->seq[seq] : NULL;
}

static enum pkv_status check_open(const struct pkv_tier *t, const char *what, uint32_t seq)
{
    return find(t, seq) ? PKV_OK
                        : PKV_FAIL(PKV_ERR_INVALID, "%s: sequence %u is not open", what, seq);
}

static enum pkv_status check_parked(const struct pkv_tier *t, const char *what, uint32_t seq,
                                    bool parked)
{
    if (pkvi_tier_seq_parked(t->tier, seq) == parked) {
        return PKV_OK;
    }
    return PKV_FAIL(PKV_ERR_STATE,
                    parked ? "%s: sequence %u is not parked"
                           : "%s: sequence %u is parked: unpark it first",
                    what, seq);
}

static enum pkv_status free_number(const struct pkv_tier *t, uint32_t *seq_out)
{
    for (uint32_t s = 0; s < pkvi_public_slots(t); s++) {
        if (!t->seq[s].open) {
            *seq_out = s;
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_NO_SLOT, "all %u sequences are in use", pkvi_public_slots(t));
}

enum pkv_status pkv_tier_seq_open(struct pkv_tier *t, uint32_t *seq_out)
{
    uint32_t seq = 0;
    PKV_TRY(check_out(seq_out, "open a sequence"));
    PKV_TRY(rest(t, "open a sequence"));
    PKV_TRY(free_number(t, &seq));
    PKV_TRY(noted(t, pkvi_tier_seq_open(t->tier, seq)));
    t->seq[seq] = (struct pkvi_public_seq){.open = true};
    *seq_out = seq;
    return PKV_OK;
}

enum pkv_status pkv_tier_seq_close(struct pkv_tier *t, uint32_t seq)
{
    PKV_TRY(rest(t, "close a sequence"));
    PKV_TRY(check_open(t, "close a sequence", seq));
    pkvi_tier_seq_close(t->tier, seq);
    t->seq[seq].open = false;
    return PKV_OK;
}

uint32_t pkv_tier_seq_tokens(const struct pkv_tier *t, uint32_t seq)
{
    const struct pkvi_public_seq *found = find(t, seq);
    return found ? found->tokens : 0;
}

enum pkv_status pkv_tier_seq_truncate(struct pkv_tier *t, uint32_t seq, uint32_t tokens)
{
    PKV_TRY(rest(t, "truncate"));
    PKV_TRY(check_open(t, "truncate", seq));
    struct pkvi_public_seq *s = &t->seq[seq];
    PKV_TRY(pkvi_tier_check_cut(&t->config, s->tokens, s->high, tokens));
    PKV_TRY(noted(t, pkvi_tier_seq_truncate(t->tier, seq, tokens)));
    s->tokens = tokens;
    s->high = tokens == 0 ? 0 : s->high;
    return PKV_OK;
}

enum pkv_status pkv_tier_seq_fork(struct pkv_tier *t, uint32_t seq, uint32_t *fork_out)
{
    uint32_t fork = 0;
    PKV_TRY(check_out(fork_out, "fork"));
    PKV_TRY(rest(t, "fork"));
    PKV_TRY(check_open(t, "fork", seq));
    PKV_TRY(check_parked(t, "fork", seq, false));
    PKV_TRY(free_number(t, &fork));
    PKV_TRY(noted(t, pkvi_tier_seq_fork(t->tier, seq, fork)));
    t->seq[fork] = t->seq[seq];
    *fork_out = fork;
    return PKV_OK;
}

enum pkv_status pkv_tier_seq_park(struct pkv_tier *t, uint32_t seq)
{
    PKV_TRY(rest(t, "park"));
    PKV_TRY(check_open(t, "park", seq));
    PKV_TRY(check_parked(t, "park", seq, false));
    return noted(t, pkvi_tier_seq_park(t->tier, seq));
}

enum pkv_status pkv_tier_seq_unpark(struct pkv_tier *t, uint32_t seq)
{
    PKV_TRY(rest(t, "unpark"));
    PKV_TRY(check_open(t, "unpark", seq));
    PKV_TRY(check_parked(t, "unpark", seq, true));
    return noted(t, pkvi_tier_seq_unpark(t->tier, seq));
}

bool pkv_tier_seq_parked(const struct pkv_tier *t, uint32_t seq)
{
    return find(t, seq) && pkvi_tier_seq_parked(t->tier, seq);
}

/* ---- a pass ---- */

static enum pkv_status check_part(struct pkv_tier *t, const struct pkv_tier_part *part)
{
    PKV_TRY(check_open(t, "begin", part->seq));
    PKV_TRY(check_parked(t, "begin", part->seq, false));
    struct pkvi_public_seq *seq = &t->seq[part->seq];
    if (seq->pass == t->pass) {
        return PKV_FAIL(PKV_ERR_INVALID, "begin: sequence %u stands in the pass twice", part->seq);
    }
    seq->pass = t->pass;
    if (part->rows == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "begin: 0 rows of sequence %u", part->seq);
    }
    if (part->rows > t->config.context_tokens - seq->tokens) {
        return PKV_FAIL(PKV_ERR_RANGE, "begin: context is full: %u tokens and %u more, room for %u",
                        seq->tokens, part->rows, t->config.context_tokens);
    }
    return PKV_OK;
}

static enum pkv_status check_parts(struct pkv_tier *t, const struct pkv_tier_part *parts,
                                   uint32_t count)
{
    const uint32_t most = count == 1 ? t->config.pass_rows : t->config.step_rows;
    uint64_t rows = 0;
    if (!parts || count == 0 || count > t->config.sequences) {
        return PKV_FAIL(PKV_ERR_RANGE, "begin: %u sequences: expected 1 to %u", parts ? count : 0,
                        t->config.sequences);
    }
    t->pass++;
    for (uint32_t p = 0; p < count; p++) {
        PKV_TRY(check_part(t, &parts[p]));
        rows += parts[p].rows;
    }
    return rows <= most ? PKV_OK
                        : PKV_FAIL(PKV_ERR_RANGE, "begin: %llu rows of %u sequences: at most %u",
                                   (unsigned long long)rows, count, most);
}

/* Spans: of one sequence, one for each row tile, with rows counted within the tile. */
static enum pkv_status stage(struct pkv_tier *t, const struct pkv_tier_part *parts, uint32_t count)
{
    struct pkv_row_span *span = PKV_AT(struct pkv_row_span, t->staging);
    t->rows = 0;
    t->part_count = count;
    for (uint32_t p = 0; p < count; p++) {
        const uint32_t tokens = t->seq[parts[p].seq].tokens, rows = parts[p].rows;
        t->part[p] = (struct pkvi_tier_part){.seq = parts[p].seq, .tokens = tokens, .rows = rows};
        for (uint32_t at = 0; at < rows; at += t->config.step_rows) {
            const uint32_t left = rows - at;
            *span++ = (struct pkv_row_span){
                .view = parts[p].seq,
                .first_row = t->rows,
                .rows = left < t->config.step_rows ? left : t->config.step_rows,
                .first_position = tokens + at};
        }
        t->rows += rows;
    }
    const struct pkv_span copy = {t->spans, t->staging, pkvi_addr(span) - t->staging};
    return pkvi_copy_async(t->compute, &copy, 1);
}

enum pkv_status pkv_tier_begin(struct pkv_tier *t, const struct pkv_tier_part *parts,
                               uint32_t count)
{
    PKV_TRY(rest(t, "begin"));
    PKV_TRY(check_parts(t, parts, count));
    PKV_TRY(noted(t, stage(t, parts, count)));
    PKV_TRY(noted(t, pkvi_tier_begin(t->tier, t->part, count)));
    t->next_layer = t->next_row = 0;
    t->in_pass = true;
    return PKV_OK;
}

/* One operand: [rows][cols] floats, stride apart. */
struct operand {
    const char *name;
    pkv_addr addr;
    uint64_t stride, cols;
};

static uint64_t end_of(const struct operand *x, uint32_t rows)
{
    return x->addr + ((rows - 1) * x->stride + x->cols) * sizeof(float);
}

static enum pkv_status check_operands(const struct operand *x, uint32_t count, uint32_t rows)
{
    const struct operand *out = &x[count - 1];
    for (uint32_t i = 0; i < count; i++) {
        if (x[i].addr == 0 || x[i].addr % sizeof(float) != 0) {
            return PKV_FAIL(PKV_ERR_INVALID, "attend: %s at address %#llx: expected floats",
                            x[i].name, (unsigned long long)x[i].addr);
        }
        if (x[i].stride < x[i].cols) {
            return PKV_FAIL(PKV_ERR_INVALID, "attend: %s_stride %llu: expected %llu or more",
                            x[i].name, (unsigned long long)x[i].stride,
                            (unsigned long long)x[i].cols);
        }
        if (&x[i] != out && x[i].addr < end_of(out, rows) && out->addr < end_of(&x[i], rows)) {
            return PKV_FAIL(PKV_ERR_INVALID, "attend: out and %s overlap", x[i].name);
        }
    }
    return PKV_OK;
}

static enum pkv_status check_place(const struct pkv_tier *t, const struct pkv_tier_rows *rows)
{
    if (t->next_layer == t->config.layers) {
        return PKV_FAIL(PKV_ERR_STATE, "attend: the pass has been in all %u layers: end it",
                        t->config.layers);
    }
    if (rows->layer != t->next_layer || rows->first_row != t->next_row) {
        return PKV_FAIL(PKV_ERR_STATE, "attend: layer %u from row %u: layer %u from row %u is next",
                        rows->layer, rows->first_row, t->next_layer, t->next_row);
    }
    const uint32_t left = t->rows - t->next_row;
    if (rows->rows == 0 || rows->rows > left ||
        (rows->rows < left && rows->rows % t->config.step_rows != 0)) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "attend: %u rows: expected the %u that are left, or a multiple of %u",
                        rows->rows, left, t->config.step_rows);
    }
    return PKV_OK;
}

static float scale_of(const struct pkv_tier *t, const struct pkv_layer_info *info)
{
    return t->scale > 0.0f ? t->scale : (float)(1.0 / sqrt((double)info->head_dim));
}

/* What the two kernels are told of a layer; addresses are those of a piece's first row. */
static struct pkvi_tier_rows describe(const struct pkv_tier *t, const struct pkv_tier_rows *rows)
{
    const struct pkv_layer_info *info = &t->layer[rows->layer];
    const uint32_t q_cols = info->heads * info->head_dim, kv_cols = info->kv_heads * info->head_dim;
    struct pkvi_tier_rows r = {.layer = rows->layer};
    r.append = (struct pkv_args_append){.k = rows->k,
                                        .v = rows->v,
                                        .kv_type = t->config.kv_type,
                                        .kv_heads = info->kv_heads,
                                        .head_dim = info->head_dim,
                                        .k_stride = rows->k_stride ? rows->k_stride : kv_cols,
                                        .v_stride = rows->v_stride ? rows->v_stride : kv_cols};
    r.attend = (struct pkv_args_attend){.q = rows->q,
                                        .out = {.cols = q_cols, .f32 = rows->out},
                                        .scratch = t->scratch,
                                        .scratch_bytes = t->scratch_bytes,
                                        .kv_type = t->config.kv_type,
                                        .scale = scale_of(t, info),
                                        .softcap = t->softcap,
                                        .heads = info->heads,
                                        .kv_heads = info->kv_heads,
                                        .head_dim = info->head_dim,
                                        .window = info->window,
                                        .q_stride = rows->q_stride ? rows->q_stride : q_cols};
    return r;
}

/* The next row tile of the pass, which begins `at` rows into the piece. */
static enum pkv_status run_tile(struct pkv_tier *t, struct pkvi_tier_rows r, uint32_t at,
                                uint32_t rows)
{
    const uint32_t tile = t->part_count == 1 ? t->next_row / t->config.step_rows : 0;
    r.row_tile = tile;
    r.last_tile = t->next_row + rows == t->rows;
    r.host_spans = PKV_AT(const struct pkv_row_span, t->staging) + tile;
    r.append.rows = r.attend.rows = rows;
    r.append.span_count = r.attend.span_count = t->part_count;
    r.append.spans = r.attend.spans = t->spans + tile * sizeof(struct pkv_row_span);
    r.append.k += (uint64_t)at * r.append.k_stride * sizeof(float);
    r.append.v += (uint64_t)at * r.append.v_stride * sizeof(float);
    r.attend.q += (uint64_t)at * r.attend.q_stride * sizeof(float);
    r.attend.out.f32 += (uint64_t)at * r.attend.out.cols * sizeof(float);
    return pkvi_tier_attend(t->tier, &r);
}

enum pkv_status pkv_tier_attend(struct pkv_tier *t, const struct pkv_tier_rows *rows)
{
    PKV_TRY(within(t, "attend"));
    if (!rows) {
        return PKV_FAIL(PKV_ERR_INVALID, "attend: no rows (NULL)");
    }
    PKV_TRY(check_place(t, rows));
    const struct pkvi_tier_rows r = describe(t, rows);
    const uint64_t q_cols = r.attend.out.cols,
                   kv_cols = (uint64_t)r.append.kv_heads * r.append.head_dim;
    const struct operand operands[] = {{"q", rows->q, r.attend.q_stride, q_cols},
                                       {"k", rows->k, r.append.k_stride, kv_cols},
                                       {"v", rows->v, r.append.v_stride, kv_cols},
                                       {"out", rows->out, q_cols, q_cols}};
    PKV_TRY(check_operands(operands, 4, rows->rows));
    for (uint32_t at = 0; at < rows->rows;) {
        const uint32_t left = rows->rows - at;
        const uint32_t count = left < t->config.step_rows ? left : t->config.step_rows;
        PKV_TRY(noted(t, run_tile(t, r, at, count)));
        t->next_row += count;
        at += count;
    }
    if (t->next_row == t->rows) {
        t->next_row = 0;
        t->next_layer++;
    }
    return PKV_OK;
}

enum pkv_status pkv_tier_end(struct pkv_tier *t)
{
    PKV_TRY(within(t, "end"));
    if (t->next_layer < t->config.layers) {
        return PKV_FAIL(PKV_ERR_STATE,
                        "end: layer %u of %u from row %u of %u has not been attended",
                        t->next_layer, t->config.layers, t->next_row, t->rows);
    }
    PKV_TRY(noted(t, pkvi_tier_end(t->tier)));
    PKV_TRY(noted(t, pkvi_event_record(t->done, t->compute)));
    t->in_pass = false;
    t->in_flight = true;
    for (uint32_t p = 0; p < t->part_count; p++) {
        struct pkvi_public_seq *seq = &t->seq[t->part[p].seq];
        seq->tokens += t->part[p].rows;
        seq->high = seq->tokens > seq->high ? seq->tokens : seq->high;
    }
    return PKV_OK;
}

enum pkv_status pkv_tier_abort(struct pkv_tier *t)
{
    PKV_TRY(within(t, "abort"));
    PKV_TRY(noted(t, pkvi_stream_sync(t->compute)));
    PKV_TRY(noted(t, pkvi_tier_abort(t->tier)));
    t->in_pass = false;
    for (uint32_t p = 0; p < t->part_count; p++) {
        const struct pkvi_tier_part *part = &t->part[p];
        struct pkvi_public_seq *seq = &t->seq[part->seq];
        const uint32_t end = part->tokens + part->rows;
        seq->high = end > seq->high ? end : seq->high;
        if (seq->tokens == 0 || !pkvi_tier_rings_hold(&t->config, seq->high, seq->tokens)) {
            PKV_TRY(pkv_tier_seq_truncate(t, part->seq, 0));
        }
    }
    return PKV_OK;
}

/* ---- waiting and copying ---- */

enum pkv_status pkv_tier_wait(struct pkv_tier *t)
{
    PKV_TRY(usable(t, "wait"));
    PKV_TRY(noted(t, pkvi_stream_sync(t->compute)));
    t->in_flight = false;
    return PKV_OK;
}

static enum pkv_status copy(struct pkv_tier *t, const char *what, struct pkv_span span)
{
    PKV_TRY(usable(t, what));
    if (span.dst == 0 || span.src == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "%s: address 0", what);
    }
    if (span.bytes > UINT64_MAX - span.dst || span.bytes > UINT64_MAX - span.src) {
        return PKV_FAIL(PKV_ERR_RANGE, "%s: %llu bytes pass the last address", what,
                        (unsigned long long)span.bytes);
    }
    if (span.bytes > 0) {
        PKV_TRY(noted(t, pkvi_copy_async(t->compute, &span, 1)));
    }
    return pkv_tier_wait(t);
}

enum pkv_status pkv_tier_write(struct pkv_tier *t, pkv_addr to, const void *from, size_t bytes)
{
    return copy(t, "write", (struct pkv_span){.dst = to, .src = pkvi_addr(from), .bytes = bytes});
}

enum pkv_status pkv_tier_read(struct pkv_tier *t, void *to, pkv_addr from, size_t bytes)
{
    return copy(t, "read", (struct pkv_span){.dst = pkvi_addr(to), .src = from, .bytes = bytes});
}
