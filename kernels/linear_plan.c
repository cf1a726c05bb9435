/* linear_plan.c: units and costs of the operations that touch weight matrices. */
#include "kernels/linear_plan.h"

#include "kernels/pack_layout.h"

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* Pieces of about equal size, none above `most` groups; as many for each thread where that goes. */
static uint32_t cut_groups(uint32_t groups, uint64_t most, uint32_t threads)
{
    const uint32_t cuts = ceil_div(groups, most > 0 ? most : 1);
    const uint32_t fair = ceil_div(cuts, threads) * threads;
    return fair < groups ? fair : groups;
}

void pkvi_linear_plan(const struct pkv_args_linear *args, const struct pkvi_linear_limits *limits,
                      struct pkvi_linear_plan *plan_out)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < args->part_count; p++) {
        const struct pkv_matrix *w = &args->part[p].w;
        bytes += pkvi_pack_bytes(w->type, w->rows, w->cols);
    }
    const uint32_t row_blocks = ceil_div(args->rows, limits->rows);
    const uint64_t share =
        bytes * row_blocks / ((uint64_t)limits->threads * limits->units_per_thread);
    const uint64_t target = share < limits->bytes ? share : limits->bytes;
    plan_out->args = args;
    plan_out->unit_rows = limits->rows;
    plan_out->first_unit[0] = 0;
    for (uint32_t p = 0; p < args->part_count; p++) {
        const struct pkv_matrix *w = &args->part[p].w;
        const uint64_t fit = target / pkvi_group_bytes(w->type, w->cols);
        plan_out->cuts[p] =
            cut_groups(pkvi_matrix_groups(w->rows), fit < limits->groups ? fit : limits->groups,
                       limits->threads);
        plan_out->first_unit[p + 1] = plan_out->first_unit[p] + plan_out->cuts[p] * row_blocks;
    }
}

struct pkvi_linear_unit pkvi_linear_unit(const struct pkvi_linear_plan *plan, uint32_t unit)
{
    const struct pkv_args_linear *args = plan->args;
    const uint32_t row_blocks = ceil_div(args->rows, plan->unit_rows);
    uint32_t p = 0;
    while (unit >= plan->first_unit[p + 1]) {
        p++;
    }
    const uint64_t groups = pkvi_matrix_groups(args->part[p].w.rows);
    const uint32_t cut = (unit - plan->first_unit[p]) / row_blocks;
    const uint32_t row_block = (unit - plan->first_unit[p]) % row_blocks;
    struct pkvi_linear_unit u = {
        .part = &args->part[p],
        .first_group = (uint32_t)(groups * cut / plan->cuts[p]),
        .first_row = row_block * plan->unit_rows,
    };
    const uint32_t rows_left = args->rows - u.first_row;
    u.groups = (uint32_t)(groups * (cut + 1) / plan->cuts[p]) - u.first_group;
    u.rows = rows_left < plan->unit_rows ? rows_left : plan->unit_rows;
    return u;
}

static uint64_t act_bytes(const struct pkv_act *act, uint32_t rows)
{
    const uint64_t values = (uint64_t)rows * act->cols;
    return (act->f32 ? 4 * values : 0) +
           (act->q8 ? values + values / PKV_ACT_BLOCK * sizeof(struct pkv_act_block) : 0);
}

void pkvi_cost_embed(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_embed *embed = args;
    const uint64_t values = (uint64_t)embed->rows * embed->table.cols;
    *cost_out = (struct pkv_cost){
        .flops = 2.0 * (double)values,
        .local_bytes =
            embed->rows * (4 + pkvi_weight_row_bytes(embed->table.type, embed->table.cols)) +
            4 * values,
    };
}

void pkvi_cost_quantize(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_quantize *quantize = args;
    const uint64_t values = (uint64_t)quantize->rows * quantize->cols;
    *cost_out = (struct pkv_cost){
        .flops = 3.0 * (double)values,
        .local_bytes = 4 * values + act_bytes(&quantize->out, quantize->rows),
    };
}

void pkvi_cost_linear(const void *args, struct pkv_cost *cost_out)
{
    const struct pkv_args_linear *linear = args;
    *cost_out = (struct pkv_cost){.local_bytes = act_bytes(&linear->x, linear->rows)};
    for (uint32_t p = 0; p < linear->part_count; p++) {
        const struct pkv_linear_part *part = &linear->part[p];
        const uint64_t outputs = (uint64_t)linear->rows * part->w.rows;
        cost_out->flops += 2.0 * (double)outputs * part->w.cols;
        cost_out->local_bytes += pkvi_pack_bytes(part->w.type, part->w.rows, part->w.cols) +
                                 (part->w.bias ? 4 * (uint64_t)part->w.rows : 0) +
                                 (part->add ? 8 : 4) * outputs;
    }
}
