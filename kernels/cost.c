/* cost.c: arithmetic and bytes of one launch, from its arguments. */
#include "kernels/cost.h"

#include "kernels/addr.h"
#include "kernels/kv_view.h"
#include "kernels/recall_plan.h"
#include "kernels/score_plan.h"

/* Operations that an exponential and its kin stand for. */
#define EXP_FLOPS 16.0

static uint64_t act_bytes(const struct pkv_act *act, uint32_t rows)
{
    uint64_t values = (uint64_t)rows * act->cols, bytes = 0;
    bytes += act->f32 ? 4 * values : 0;
    bytes += act->q8 ? values + values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block) : 0;
    return bytes;
}

void pkvi_cost_norm(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_norm *norm = args;
    uint64_t values = (uint64_t)norm->rows * norm->cols;
    uint64_t written = norm->residual ? 8 * values : act_bytes(&norm->out, norm->rows);
    *cost_out = (struct pkv_cost){.flops = 5.0 * (double)values,
                                  .local_bytes = 4 * values + 4 * (uint64_t)norm->cols + written};
}

void pkvi_cost_glu(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_glu *glu = args;
    uint64_t values = (uint64_t)glu->rows * glu->cols;
    *cost_out = (struct pkv_cost){.flops = (EXP_FLOPS + 6.0) * (double)values,
                                  .local_bytes = 8 * values + act_bytes(&glu->out, glu->rows)};
}

void pkvi_cost_rope_table(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_rope_table *table = args;
    uint64_t angles = (uint64_t)table->rows * table->pairs;
    *cost_out = (struct pkv_cost){.flops = 3.0 * EXP_FLOPS * (double)angles,
                                  .local_bytes = 8 * angles + 8 * (uint64_t)table->pairs +
                                                 4 * (uint64_t)table->rows};
}

void pkvi_cost_rope(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_rope *rope = args;
    uint64_t values = (uint64_t)rope->rows * (rope->heads + rope->kv_heads) * rope->head_dim;
    uint64_t table = (uint64_t)rope->rows * rope->pairs * 2;
    *cost_out =
        (struct pkv_cost){.flops = 8.0 * (double)values, .local_bytes = 8 * values + 4 * table};
}

void pkvi_cost_append(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_append *append = args;
    uint64_t entries = (uint64_t)append->rows * append->kv_heads;
    uint64_t entry_bytes = pkvi_kv_entry_bytes(append->kv_type, append->head_dim);
    *cost_out =
        (struct pkv_cost){.flops = 2.0 * (double)(entries * append->head_dim),
                          .local_bytes = entries * (8 * (uint64_t)append->head_dim + entry_bytes)};
}

static uint32_t key_count(const struct pkv_args_attend *args, uint32_t first, uint32_t last)
{
    struct pkvi_keys keys = pkvi_attend_keys(args, first, last);
    return keys.begin < keys.end ? keys.end - keys.begin : 0;
}

/* Keys that the rows of a span see in the launch's range, summed over rows; and the keys that at
 * least one sees. */
static void span_keys(const struct pkv_args_attend *args, const struct pkv_row_span *span,
                      uint64_t *pairs_out, uint64_t *keys_out)
{
    const uint32_t first =
        pkvi_span_key(PKV_AT(const struct pkv_kv_view, args->views) + span->view, span);
    *keys_out = key_count(args, first, first + span->rows - 1);
    *pairs_out = 0;
    for (uint32_t row = 0; row < span->rows; row++) {
        uint32_t position = first + row;
        *pairs_out += key_count(args, position, position);
    }
}

void pkvi_cost_attend(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_attend *attend = args;
    const struct pkv_row_span *spans = PKV_AT(const struct pkv_row_span, attend->spans);
    uint64_t entry_bytes = pkvi_kv_entry_bytes(attend->kv_type, attend->head_dim);
    uint64_t values = (uint64_t)attend->rows * attend->heads * attend->head_dim;
    double per_pair = 4.0 * attend->head_dim + EXP_FLOPS + (attend->softcap > 0 ? EXP_FLOPS : 0);
    uint64_t carry = pkvi_attend_carry_bytes(attend->rows, attend->heads, attend->head_dim);
    uint64_t written = attend->carry_out ? carry : act_bytes(&attend->out, attend->rows);
    *cost_out =
        (struct pkv_cost){.local_bytes = 4 * values + (attend->carry_in ? carry : 0) + written};
    for (uint32_t i = 0; i < attend->span_count; i++) {
        uint64_t pairs, keys;
        span_keys(attend, &spans[i], &pairs, &keys);
        cost_out->flops += per_pair * attend->heads * (double)pairs;
        cost_out->local_bytes += keys * attend->kv_heads * entry_bytes;
    }
}

void pkvi_cost_softcap(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_softcap *softcap = args;
    uint64_t values = (uint64_t)softcap->rows * softcap->cols;
    *cost_out =
        (struct pkv_cost){.flops = (EXP_FLOPS + 2.0) * (double)values, .local_bytes = 8 * values};
}

void pkvi_cost_topk(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_topk *topk = args;
    uint64_t values = (uint64_t)topk->rows * topk->cols;
    *cost_out = (struct pkv_cost){.flops = (EXP_FLOPS + 2.0) * (double)values,
                                  .local_bytes = 4 * values + 8 * (uint64_t)topk->rows * topk->k};
}

void pkvi_cost_score(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_score *score = args;
    const struct pkv_row_span *spans = PKV_AT(const struct pkv_row_span, score->spans);
    const uint64_t half = pkvi_kv_entry_bytes(score->kv_type, score->head_dim) / 2;
    *cost_out =
        (struct pkv_cost){.local_bytes = 4ull * score->rows * score->heads * (score->head_dim + 1)};
    for (uint32_t i = 0; i < score->span_count; i++) {
        const struct pkvi_keys keys = pkvi_score_keys(score, &spans[i]);
        const uint64_t count = keys.begin < keys.end ? keys.end - keys.begin : 0;
        const uint64_t rows =
            spans[i].rows > score->skip_rows ? spans[i].rows - score->skip_rows : 0;
        cost_out->flops +=
            (2.0 * score->head_dim + EXP_FLOPS) * score->heads * (double)(rows * count);
        cost_out->local_bytes += count * score->kv_heads * (half + 8);
    }
}

void pkvi_cost_place(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_place *place = args;
    const uint64_t entry_bytes = pkvi_kv_entry_bytes(place->kv_type, place->head_dim);
    const uint64_t heads = place->kv_heads, slots = heads * place->slots;
    *cost_out = (struct pkv_cost){.flops = (double)(heads * place->end) * (place->pool + 1.0),
                                  .local_bytes =
                                      heads * place->tokens * 12 + slots * (2 * entry_bytes + 8)};
    if (place->from.first_page > 0) { /* all of them may lie on the host */
        cost_out->load_bytes = slots * entry_bytes;
    }
}

void pkvi_cost_compete(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_compete *compete = args;
    const uint64_t entry_bytes = pkvi_kv_entry_bytes(compete->kv_type, compete->head_dim);
    const uint64_t pairs = (uint64_t)compete->kv_heads * compete->leave;
    *cost_out = (struct pkv_cost){.flops = (double)(pairs * compete->slots),
                                  .local_bytes = pairs * (2 * entry_bytes + 4ull * compete->slots)};
}

void pkvi_cost_keep(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_keep *keep = args;
    const uint64_t scores = (uint64_t)keep->kv_heads * keep->count;
    *cost_out = (struct pkv_cost){.flops = (double)scores,
                                  .local_bytes = 4 * scores + 16ull * keep->count +
                                                 12ull * keep->stay + 4ull * keep->window};
}

void pkvi_cost_gather(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_gather *gather = args;
    *cost_out =
        (struct pkv_cost){.flops = 0, .local_bytes = gather->rows * (8ull * gather->cols + 4)};
}

void pkvi_cost_thin(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_thin *thin = args;
    const uint64_t heads = thin->kv_heads, dropped = thin->zone - thin->stay;
    *cost_out = (struct pkv_cost){
        .flops = (double)(heads * thin->zone) * (double)(2 + thin->zone),
        .local_bytes =
            heads * (heads * thin->zone * 8ull +
                     dropped * 2ull * pkvi_kv_entry_bytes(thin->kv_type, thin->head_dim))};
}

void pkvi_cost_index(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_index *index = args;
    const uint64_t pages = (uint64_t)(index->end_block - index->first_block) * index->kv_heads;
    const uint64_t keys =
        PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(index->kv_type, index->head_dim) / 2;
    const uint64_t of_host = index->from.first_page > index->first_block
                                 ? (uint64_t)(index->from.first_page - index->first_block)
                                 : 0;
    *cost_out =
        (struct pkv_cost){.flops = 4.0 * PKV_PAGE_TOKENS * index->index.channels * (double)pages,
                          .local_bytes = pages * (keys + pkvi_index_page_bytes(&index->index)),
                          .load_bytes = of_host * index->kv_heads * keys};
}

void pkvi_cost_predict(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_predict *predict = args;
    const struct pkv_row_span *spans = PKV_AT(const struct pkv_row_span, predict->spans);
    *cost_out = (struct pkv_cost){0};
    for (uint32_t i = 0; i < predict->span_count; i++) {
        const uint64_t tokens = pkvi_indexed_tokens(&spans[i]);
        cost_out->flops +=
            (2.0 * predict->index.channels + EXP_FLOPS) * (double)(tokens * predict->heads);
        cost_out->local_bytes += tokens / PKV_PAGE_TOKENS * predict->kv_heads *
                                 (pkvi_index_page_bytes(&predict->index) + 4ull * PKV_PAGE_TOKENS);
    }
}

void pkvi_cost_recall(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_recall *recall = args;
    const uint64_t entry_bytes = pkvi_kv_entry_bytes(recall->kv_type, recall->head_dim);
    const uint64_t heads = (uint64_t)recall->span_count * recall->kv_heads;
    const uint64_t entries = recall->start ? 0 : heads * recall->state.cap;
    *cost_out = (struct pkv_cost){.flops = 4.0 * (double)(heads * recall->state.slots),
                                  .local_bytes =
                                      heads * recall->state.slots * 16ull + entries * entry_bytes,
                                  .load_bytes = entries * entry_bytes};
}
