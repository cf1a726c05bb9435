/*
 * pipeline.c: a pass: what is launched for the rows of all sequences, layer by layer.
 *
 * The host checks the request, writes ids, positions and spans to the staging buffer, enqueues one
 * copy and all launches, and waits once, for the logits. It learns nothing from the device in
 * between.
 */
#include "runtime/session/session.h"

#include "kernels/pack.h"
#include "runtime/base/check.h"
#include "runtime/device/device.h"

static enum pkv_status run(const struct pkvi_pass *pass, uint32_t op, const void *args)
{
    return pkvi_launch(pass->session->compute, pass->session->kernel[op], args);
}

/* The forms of an activation buffer that these matrices read. */
static struct pkv_act act_for(struct pkv_act act, const struct pkv_matrix *const *matrices,
                              uint32_t count, uint32_t cols)
{
    bool f32 = false, q8 = false;
    for (uint32_t i = 0; i < count; i++) {
        bool quantised = pkvi_weight_is_quantised(matrices[i]->type);
        q8 = q8 || quantised;
        f32 = f32 || !quantised;
    }
    act.cols = cols;
    act.f32 = f32 ? act.f32 : 0;
    act.q8 = q8 ? act.q8 : 0;
    return act;
}

/* Of the row tile. */
static pkv_addr residual(const struct pkvi_pass *pass)
{
    const struct pkv_session *s = pass->session;
    return pass->lane->x + (uint64_t)pass->first_row * s->model->info.width * sizeof(float);
}

static enum pkv_status norm(const struct pkvi_pass *pass, pkv_addr weight, struct pkv_act out)
{
    const struct pkv_session *s = pass->session;
    struct pkv_args_norm args = {.x = residual(pass),
                                 .weight = weight,
                                 .out = out,
                                 .eps = s->model->norm_eps,
                                 .rows = pass->rows,
                                 .cols = s->model->info.width};
    return run(pass, PKV_OP_NORM, &args);
}

/* x += w act, or with a post norm x += norm(w act). */
static enum pkv_status add_to_residual(const struct pkvi_pass *pass, const struct pkv_matrix *w,
                                       struct pkv_act act, pkv_addr post_norm)
{
    const struct pkv_session *s = pass->session;
    struct pkv_args_linear linear = {.x = act, .rows = pass->rows, .part_count = 1};
    linear.part[0] = (struct pkv_linear_part){.w = *w,
                                              .y = post_norm ? s->buffers.y : residual(pass),
                                              .y_stride = s->model->info.width,
                                              .add = post_norm ? 0 : 1};
    PKV_TRY(run(pass, PKV_OP_LINEAR, &linear));
    if (!post_norm) {
        return PKV_OK;
    }
    struct pkv_args_norm args = {.x = s->buffers.y,
                                 .weight = post_norm,
                                 .residual = residual(pass),
                                 .eps = s->model->norm_eps,
                                 .rows = pass->rows,
                                 .cols = s->model->info.width};
    return run(pass, PKV_OP_NORM, &args);
}

static enum pkv_status project_qkv(const struct pkvi_pass *pass,
                                   const struct pkvi_model_layer *layer)
{
    const struct pkvi_buffers *b = &pass->session->buffers;
    const struct pkv_matrix *matrices[] = {&layer->q, &layer->k, &layer->v};
    struct pkv_act in = act_for(b->in, matrices, 3, pass->session->model->info.width);
    PKV_TRY(norm(pass, layer->attn_norm, in));
    struct pkv_args_linear args = {.x = in, .rows = pass->rows, .part_count = 3};
    const pkv_addr out[] = {b->q, b->k, b->v};
    for (uint32_t i = 0; i < 3; i++) {
        args.part[i] =
            (struct pkv_linear_part){.w = *matrices[i], .y = out[i], .y_stride = matrices[i]->rows};
    }
    return run(pass, PKV_OP_LINEAR, &args);
}

static enum pkv_status rotate(const struct pkvi_pass *pass, const struct pkvi_model_layer *layer)
{
    const struct pkv_session *s = pass->session;
    const struct pkvi_buffers *b = &s->buffers;
    struct pkv_args_rope rope = {.q = b->q,
                                 .k = b->k,
                                 .table = pass->lane->rope[layer->rope] +
                                          (uint64_t)pass->first_row * layer->info.rope_pairs * 2 *
                                              sizeof(float),
                                 .q_norm = layer->q_norm,
                                 .q_gain = b->q_gain,
                                 .k_norm = layer->k_norm,
                                 .eps = s->model->norm_eps,
                                 .rows = pass->rows,
                                 .heads = layer->info.heads,
                                 .kv_heads = layer->info.kv_heads,
                                 .head_dim = layer->info.head_dim,
                                 .pairs = layer->info.rope_pairs,
                                 .halves = layer->info.rope_halves,
                                 .q_stride = layer->q.rows,
                                 .k_stride = layer->k.rows};
    return run(pass, PKV_OP_ROPE, &rope);
}

/* Spans of the row tile: one after another, for one sequence; all of them otherwise. */
static uint32_t first_span(const struct pkvi_pass *pass)
{
    return pass->layer * pass->layer_spans + (pass->row_tiles > 1 ? pass->row_tile : 0);
}

static struct pkv_args_append append_args(const struct pkvi_pass *pass,
                                          const struct pkvi_model_layer *layer)
{
    const struct pkv_session *s = pass->session;
    const struct pkvi_buffers *b = &s->buffers;
    return (struct pkv_args_append){.k = b->k,
                                    .v = b->v,
                                    .spans = pass->lane->spans + (uint64_t)first_span(pass) *
                                                                     sizeof(struct pkv_row_span),
                                    .kv_type = s->config.kv_type,
                                    .span_count = pass->row_tiles > 1 ? 1 : pass->span_count,
                                    .rows = pass->rows,
                                    .kv_heads = layer->info.kv_heads,
                                    .head_dim = layer->info.head_dim,
                                    .k_stride = layer->k.rows,
                                    .v_stride = layer->v.rows};
}

/* Staging mirrors the upload buffer of the device. */
static void *staged(const struct pkvi_lane *lane, pkv_addr device_addr)
{
    return pkvi_host(lane->staging + (device_addr - lane->upload));
}

static enum pkv_status attention(const struct pkvi_pass *pass, uint32_t index)
{
    const struct pkv_session *s = pass->session;
    const struct pkvi_buffers *b = &s->buffers;
    const struct pkvi_model_layer *layer = &s->model->layer[index];
    PKV_TRY(project_qkv(pass, layer));
    PKV_TRY(rotate(pass, layer));
    const struct pkv_matrix *matrices[] = {&layer->out};
    struct pkv_act act = act_for(b->attn, matrices, 1, layer->out.cols);
    // Heads that are no whole blocks of 32 channels are rounded to 8 bits afterwards, a row at a
    // time.
    bool later = act.q8 && layer->info.head_dim % PKV_ACT_BLOCK != 0;
    struct pkv_act direct = act;
    if (later) {
        direct = (struct pkv_act){.cols = act.cols, .f32 = b->attn.f32};
    }
    struct pkvi_tier_rows rows = {.layer = index,
                                  .row_tile = pass->row_tile,
                                  .last_tile = pass->row_tile + 1 == pass->row_tiles,
                                  .append = append_args(pass, layer)};
    rows.host_spans =
        (const struct pkv_row_span *)staged(pass->lane, pass->lane->spans) + first_span(pass);
    rows.attend = (struct pkv_args_attend){.q = b->q,
                                           .spans = rows.append.spans,
                                           .out = direct,
                                           .scratch = b->scratch,
                                           .scratch_bytes = b->scratch_bytes,
                                           .kv_type = s->config.kv_type,
                                           .scale = s->model->attention_scale,
                                           .softcap = s->model->attention_softcap,
                                           .span_count = rows.append.span_count,
                                           .rows = pass->rows,
                                           .heads = layer->info.heads,
                                           .kv_heads = layer->info.kv_heads,
                                           .head_dim = layer->info.head_dim,
                                           .window = layer->info.window,
                                           .q_stride = layer->q.rows};
    rows.q_gain = layer->q_norm ? b->q_gain : 0;
    PKV_TRY(pkvi_tier_attend(s->tier, &rows));
    if (later) {
        struct pkv_args_quantize quantize = {
            .x = b->attn.f32, .out = act, .rows = pass->rows, .cols = act.cols};
        PKV_TRY(run(pass, PKV_OP_QUANTIZE, &quantize));
    }
    return add_to_residual(pass, &layer->out, act, layer->post_attn_norm);
}

/*
 * A layer's missing entries are asked for, before its own query is there: by some rows of its Wq
 * and the residual as it is now (the mean step from here to the layer added), or by its query of
 * the step before.
 */
static enum pkv_status rehearse(const struct pkvi_pass *pass, uint32_t index)
{
    const struct pkv_session *s = pass->session;
    if (index >= s->model->info.layers || !pkvi_tier_recalls(s->tier, index)) {
        return PKV_OK;
    }
    const struct pkvi_model_layer *layer = &s->model->layer[index];
    const struct pkvi_rehearsal *rehearsal = &s->rehearsal[index];
    struct pkv_args_predict query = {.table = pass->lane->rope[layer->rope],
                                     .q_norm = layer->q_norm,
                                     .scale = s->model->attention_scale,
                                     .q_stride = rehearsal->q.rows};
    if (rehearsal->q.rows > 0) {
        const struct pkv_matrix *matrices[] = {&rehearsal->q};
        struct pkv_act in = act_for(s->buffers.in, matrices, 1, s->model->info.width);
        struct pkv_args_norm args = {.x = residual(pass),
                                     .shift = rehearsal->shift,
                                     .weight = layer->attn_norm,
                                     .out = in,
                                     .eps = s->model->norm_eps,
                                     .rows = pass->rows,
                                     .cols = s->model->info.width};
        PKV_TRY(run(pass, PKV_OP_NORM, &args));
        struct pkv_args_linear linear = {.x = in, .rows = pass->rows, .part_count = 1};
        query.q = s->buffers.sketch[index % 2];
        linear.part[0] = (struct pkv_linear_part){
            .w = rehearsal->q, .y = query.q, .y_stride = rehearsal->q.rows};
        PKV_TRY(run(pass, PKV_OP_LINEAR, &linear));
    }
    return pkvi_tier_recall(s->tier, index,
                            (const struct pkv_row_span *)staged(pass->lane, pass->lane->spans),
                            pass->span_count, pass->lane->spans, &query);
}

static enum pkv_status feed_forward(const struct pkvi_pass *pass,
                                    const struct pkvi_model_layer *layer)
{
    const struct pkv_session *s = pass->session;
    const struct pkvi_buffers *b = &s->buffers;
    const struct pkv_matrix *inputs[] = {&layer->gate, &layer->up}, *output[] = {&layer->down};
    struct pkv_act in = act_for(b->in, inputs, 2, s->model->info.width);
    struct pkv_act act = act_for(b->ffn, output, 1, layer->down.cols);
    PKV_TRY(norm(pass, layer->ffn_norm, in));
    struct pkv_args_linear linear = {.x = in, .rows = pass->rows, .part_count = 2};
    linear.part[0] =
        (struct pkv_linear_part){.w = layer->gate, .y = b->gate, .y_stride = layer->gate.rows};
    linear.part[1] =
        (struct pkv_linear_part){.w = layer->up, .y = b->up, .y_stride = layer->up.rows};
    PKV_TRY(run(pass, PKV_OP_LINEAR, &linear));
    struct pkv_args_glu glu = {.gate = b->gate,
                               .up = b->up,
                               .out = act,
                               .kind = s->model->glu,
                               .rows = pass->rows,
                               .cols = layer->down.cols};
    PKV_TRY(run(pass, PKV_OP_GLU, &glu));
    return add_to_residual(pass, &layer->down, act, layer->post_ffn_norm);
}

bool pkvi_session_long_rope(const struct pkv_session *s, uint32_t set)
{
    const struct pkvi_model_rope *rope = &s->model->rope[set];
    return rope->freq_long && s->config.context_tokens > rope->short_context;
}

static enum pkv_status embed_rows(const struct pkvi_pass *pass)
{
    const struct pkv_session *s = pass->session;
    const struct pkv_model *model = s->model;
    struct pkv_args_embed embed = {.table = model->token_embd,
                                   .ids = pass->lane->ids,
                                   .x = pass->lane->x,
                                   .scale = model->embedding_scale,
                                   .rows = pass->all_rows};
    PKV_TRY(run(pass, PKV_OP_EMBED, &embed));
    for (uint32_t i = 0; i < model->rope_count; i++) {
        const struct pkvi_model_rope *rope = &model->rope[i];
        const bool use_long = pkvi_session_long_rope(s, i);
        struct pkv_args_rope_table table = {.positions = pass->lane->positions,
                                            .freq = use_long ? rope->freq_long : rope->freq,
                                            .table = pass->lane->rope[i],
                                            .gain = rope->gain,
                                            .rows = pass->all_rows,
                                            .pairs = rope->pairs};
        PKV_TRY(run(pass, PKV_OP_ROPE_TABLE, &table));
    }
    return PKV_OK;
}

static enum pkv_status output_logits(const struct pkvi_pass *pass)
{
    const struct pkv_session *s = pass->session;
    const struct pkv_model *model = s->model;
    const struct pkv_matrix *matrices[] = {&model->output};
    struct pkv_act act = act_for(s->buffers.in, matrices, 1, model->info.width);
    struct pkv_args_norm args = {.x = pass->lane->x,
                                 .row_index = pass->lane->row_index,
                                 .weight = model->output_norm,
                                 .out = act,
                                 .eps = model->norm_eps,
                                 .rows = pass->logit_rows,
                                 .cols = model->info.width};
    PKV_TRY(run(pass, PKV_OP_NORM, &args));
    // Straight into pinned memory: the read-back needs no copy.
    struct pkv_args_linear linear = {.x = act, .rows = pass->logit_rows, .part_count = 1};
    linear.part[0] = (struct pkv_linear_part){
        .w = model->output, .y = s->buffers.logits, .y_stride = model->info.vocab};
    PKV_TRY(run(pass, PKV_OP_LINEAR, &linear));
    if (model->final_softcap > 0.0f) {
        struct pkv_args_softcap cap = {.x = s->buffers.logits,
                                       .cap = model->final_softcap,
                                       .rows = pass->logit_rows,
                                       .cols = model->info.vocab};
        PKV_TRY(run(pass, PKV_OP_SOFTCAP, &cap));
    }
    return PKV_OK;
}

static enum pkv_status check_part(const struct pkv_session *s, const struct pkv_step_part *part)
{
    const struct pkv_seq *seq = part->seq;
    if (!seq || seq->session != s || !seq->open) {
        return PKV_FAIL(PKV_ERR_INVALID, "step: a sequence that is not open in this session");
    }
    if (pkv_seq_parked(seq)) {
        return PKV_FAIL(PKV_ERR_STATE, "step: the sequence is parked: unpark it first");
    }
    if (part->count == 0 || part->logit_rows > part->count) {
        return PKV_FAIL(PKV_ERR_INVALID, "step: %u tokens with logits of %u rows", part->count,
                        part->logit_rows);
    }
    if (part->count > s->config.context_tokens - seq->tokens) {
        return PKV_FAIL(PKV_ERR_RANGE, "context is full: %u tokens and %u more, room for %u",
                        seq->tokens, part->count, s->config.context_tokens);
    }
    for (uint32_t i = 0; i < part->count; i++) {
        if (part->ids[i] < 0 || (uint32_t)part->ids[i] >= s->model->info.vocab) {
            return PKV_FAIL(PKV_ERR_RANGE, "token id %d at place %u: expected 0 to %u",
                            part->ids[i], i, s->model->info.vocab - 1);
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_check_parts(const struct pkv_session *s, const struct pkv_step_part *parts,
                                 uint32_t count, uint32_t most_rows)
{
    uint64_t rows = 0, logit_rows = 0;
    PKV_TRY(pkvi_session_usable(s));
    if (count == 0 || count > s->config.sequences) {
        return PKV_FAIL(PKV_ERR_RANGE, "step of %u sequences: expected 1 to %u", count,
                        s->config.sequences);
    }
    for (uint32_t p = 0; p < count; p++) {
        PKV_TRY(check_part(s, &parts[p]));
        for (uint32_t other = 0; other < p; other++) {
            if (parts[other].seq == parts[p].seq) {
                return PKV_FAIL(PKV_ERR_INVALID, "step: a sequence stands in it twice");
            }
        }
        rows += parts[p].count;
        logit_rows += parts[p].logit_rows;
    }
    if (rows > most_rows || logit_rows > s->config.logit_rows) {
        return PKV_FAIL(PKV_ERR_RANGE, "step of %llu rows, logits of %llu: room for %u and %u",
                        (unsigned long long)rows, (unsigned long long)logit_rows, most_rows,
                        s->config.logit_rows);
    }
    return PKV_OK;
}

/* What is pruned: a prompt as a whole, then a token after the other. */
static enum pkv_status check_one_row(const struct pkv_session *s, const struct pkv_step_part *parts,
                                     uint32_t count)
{
    for (uint32_t p = 0; pkvi_session_prunes(s) && p < count; p++) {
        if (parts[p].count > 1) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                            "step of %u rows of a sequence: policy %s takes one; a prompt is for "
                            "pkv_prompt_run()",
                            parts[p].count, s->policy.name);
        }
    }
    return PKV_OK;
}

/* While a prompt is under way the buffer of streamed layers is its own. */
static enum pkv_status check_beside_prompt(const struct pkv_session *s,
                                           const struct pkv_step_part *parts, uint32_t count)
{
    for (uint32_t p = 0; s->prompt.seq && p < count; p++) {
        if (parts[p].seq == s->prompt.seq) {
            return PKV_FAIL(PKV_ERR_STATE, "step: a prompt of the sequence is under way");
        }
        if (parts[p].count > PKV_PAGE_TOKENS && s->tier_sizes.tile_tokens > 0) {
            return PKV_FAIL(PKV_ERR_STATE,
                            "step of %u rows of a sequence: at most %u while a prompt is under way",
                            parts[p].count, PKV_PAGE_TOKENS);
        }
    }
    return PKV_OK;
}

static uint32_t tiles_of(const struct pkvi_pass *pass, uint32_t rows)
{
    const uint32_t most = pass->session->config.step_rows;
    return (rows + most - 1) / most;
}

/* Spans: of one sequence, one for each row tile, with rows counted within the tile. */
static void stage_tiles(const struct pkvi_pass *pass, struct pkv_row_span whole,
                        struct pkv_row_span *spans)
{
    const uint32_t most = pass->session->config.step_rows, tiles = tiles_of(pass, whole.rows);
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t first = i * most, left = whole.rows - first;
        spans[i] = (struct pkv_row_span){.view = whole.view,
                                         .rows = left < most ? left : most,
                                         .first_position = whole.first_position + first};
    }
}

/* A prompt that is pruned: each layer has rows, and spans, of its own; logits are of the last row
 * that is left. */
static void stage_pruned(struct pkvi_pass *pass, struct pkv_row_span *spans, int32_t *row_index)
{
    const struct pkv_session *s = pass->session;
    const uint32_t layers = s->model->info.layers;
    struct pkv_row_span whole = spans[0];
    pkvi_tier_prompt_rows(&s->tier_config, pass->all_rows, s->prune_rows);
    pass->layer_spans = pass->row_tiles;
    for (uint32_t l = 0; l < layers; l++) {
        whole.rows = s->prune_rows[l];
        stage_tiles(pass, whole, spans + (size_t)l * pass->layer_spans);
    }
    for (uint32_t i = 0; i < pass->logit_rows; i++) {
        row_index[i] -= (int32_t)(pass->all_rows - s->prune_rows[layers - 1]);
    }
}

static struct pkvi_pass stage(struct pkv_session *s, uint32_t lane_number,
                              const struct pkv_step_part *parts, uint32_t count)
{
    const struct pkvi_lane *lane = s->lane[lane_number];
    struct pkvi_pass pass = {
        .session = s, .lane_number = lane_number, .lane = lane, .span_count = count};
    int32_t *ids = staged(lane, lane->ids), *positions = staged(lane, lane->positions);
    int32_t *row_index = staged(lane, lane->row_index);
    struct pkv_row_span *spans = staged(lane, lane->spans);
    for (uint32_t p = 0; p < count; p++) {
        const struct pkv_step_part *part = &parts[p];
        uint32_t first = part->seq->tokens;
        spans[p] = (struct pkv_row_span){.view = part->seq->index,
                                         .first_row = pass.all_rows,
                                         .rows = part->count,
                                         .first_position = first};
        for (uint32_t i = 0; i < part->count; i++) {
            ids[pass.all_rows + i] = part->ids[i];
            positions[pass.all_rows + i] = (int32_t)(first + i);
        }
        pass.all_rows += part->count;
        for (uint32_t i = part->logit_rows; i > 0; i--) {
            row_index[pass.logit_rows++] = (int32_t)(pass.all_rows - i);
        }
    }
    pass.row_tiles = count == 1 ? tiles_of(&pass, pass.all_rows) : 1;
    if (pkvi_session_prunes(s) && pass.all_rows > count) {
        stage_pruned(&pass, spans, row_index);
    } else if (pass.row_tiles > 1) {
        stage_tiles(&pass, spans[0], spans);
    }
    return pass;
}

static enum pkv_status begin_pass(struct pkv_session *s, uint32_t lane_number,
                                  const struct pkv_step_part *parts, uint32_t count)
{
    const bool prompt = lane_number == PKVI_LANE_PROMPT;
    for (uint32_t p = 0; p < count; p++) {
        s->tier_parts[p] = (struct pkvi_tier_part){
            .seq = parts[p].seq->index,
            .tokens = parts[p].seq->tokens,
            .rows = parts[p].count,
            .exact = prompt,
            .goes_on = prompt && s->prompt.done + parts[p].count < s->prompt.count};
    }
    return pkvi_tier_begin(s->tier, s->tier_parts, count);
}

enum pkv_status pkvi_session_wait(struct pkv_session *s)
{
    if (!s->in_flight) {
        return PKV_OK;
    }
    s->in_flight = false;
    enum pkv_status status = pkvi_event_sync(s->done);
    s->broken = status != PKV_OK;
    return status;
}

enum pkv_status pkvi_pass_begin(struct pkv_session *s, uint32_t lane_number,
                                const struct pkv_step_part *parts, uint32_t count,
                                struct pkvi_pass *pass_out)
{
    PKV_TRY(pkvi_session_wait(s)); // the staging buffer is free again
    *pass_out = stage(s, lane_number, parts, count);
    pkvi_tier_select(s->tier, lane_number);
    PKV_TRY(begin_pass(s, lane_number, parts, count));
    const struct pkvi_lane *lane = pass_out->lane;
    struct pkv_span span = {.dst = lane->upload, .src = lane->staging, .bytes = lane->upload_bytes};
    PKV_TRY(pkvi_copy_async(s->compute, &span, 1));
    return embed_rows(pass_out);
}

/* Behind a layer: rows that it drops are not seen again. */
static enum pkv_status prune_rows(struct pkvi_pass *pass)
{
    const struct pkv_session *s = pass->session;
    const struct pkv_model *model = s->model;
    const uint32_t rows = s->prune_rows[pass->layer];
    if (rows == pass->all_rows) {
        return PKV_OK;
    }
    struct pkv_args_gather args = {.x = pass->lane->x,
                                   .index = pkvi_tier_prompt_index(s->tier),
                                   .rows = rows,
                                   .cols = model->info.width};
    PKV_TRY(run(pass, PKV_OP_GATHER, &args));
    for (uint32_t i = 0; i < model->rope_count; i++) {
        args.x = pass->lane->rope[i];
        args.cols = 2 * model->rope[i].pairs;
        PKV_TRY(run(pass, PKV_OP_GATHER, &args));
    }
    pass->all_rows = rows;
    pass->row_tiles = tiles_of(pass, rows);
    return PKV_OK;
}

bool pkvi_pass_has_unit(const struct pkvi_pass *pass)
{
    return pass->layer < pass->session->model->info.layers;
}

enum pkv_status pkvi_pass_attention(struct pkvi_pass *pass)
{
    struct pkv_session *s = pass->session;
    const uint32_t most = s->config.step_rows;
    pass->first_row = pass->row_tile * most;
    const uint32_t left = pass->all_rows - pass->first_row;
    pass->rows = pass->row_tiles == 1 ? pass->all_rows : left < most ? left : most;
    const bool mid = s->policy.recipe.query == PKV_QUERY_MID;
    pkvi_tier_select(s->tier, pass->lane_number);
    PKV_TRY(pass->layer == 0 ? rehearse(pass, 0) : PKV_OK);
    PKV_TRY(!mid ? rehearse(pass, pass->layer + 1) : PKV_OK);
    PKV_TRY(attention(pass, pass->layer));
    return mid ? rehearse(pass, pass->layer + 1) : PKV_OK;
}

/* All row tiles of a layer come before the next layer, so that its weights and its K and V are
 * needed once. */
enum pkv_status pkvi_pass_feed_forward(struct pkvi_pass *pass)
{
    PKV_TRY(feed_forward(pass, &pass->session->model->layer[pass->layer]));
    if (++pass->row_tile == pass->row_tiles) {
        pass->row_tile = 0;
        pass->layer++;
        return pass->layer_spans > 0 && pkvi_pass_has_unit(pass) ? prune_rows(pass) : PKV_OK;
    }
    return PKV_OK;
}

enum pkv_status pkvi_pass_unit(struct pkvi_pass *pass)
{
    PKV_TRY(pkvi_pass_attention(pass));
    return pkvi_pass_feed_forward(pass);
}

enum pkv_status pkvi_pass_end(struct pkvi_pass *pass, const struct pkv_step_part *parts,
                              uint32_t count, const float **logits_out)
{
    struct pkv_session *s = pass->session;
    pkvi_tier_select(s->tier, pass->lane_number);
    PKV_TRY(pkvi_tier_end(s->tier));
    if (pass->logit_rows > 0) {
        PKV_TRY(output_logits(pass));
    }
    PKV_TRY(pkvi_event_record(s->done, s->compute));
    s->in_flight = true;
    if (pass->logit_rows > 0) {
        PKV_TRY(pkvi_session_wait(s));
    }
    for (uint32_t p = 0; p < count; p++) {
        struct pkv_seq *seq = parts[p].seq;
        seq->tokens += parts[p].count;
        seq->high = seq->tokens > seq->high ? seq->tokens : seq->high;
    }
    if (logits_out) {
        *logits_out = pass->logit_rows > 0 ? pkvi_host(s->buffers.logits) : NULL;
    }
    return PKV_OK;
}

static enum pkv_status run_step(struct pkv_session *s, const struct pkv_step_part *parts,
                                uint32_t count, const float **logits_out)
{
    struct pkvi_pass pass;
    PKV_TRY(pkvi_pass_begin(s, PKVI_LANE_STEP, parts, count, &pass));
    while (pkvi_pass_has_unit(&pass)) {
        PKV_TRY(pkvi_pass_unit(&pass));
    }
    return pkvi_pass_end(&pass, parts, count, logits_out);
}

enum pkv_status pkv_step_run(struct pkv_session *session, const struct pkv_step_part *parts,
                             uint32_t count, const float **logits_out)
{
    PKV_TRY(pkvi_check_parts(session, parts, count, session->config.step_rows));
    PKV_TRY(check_one_row(session, parts, count));
    PKV_TRY(check_beside_prompt(session, parts, count));
    const enum pkv_status status = run_step(session, parts, count, logits_out);
    session->broken = session->broken || status != PKV_OK;
    return status;
}
