/* linear_plan.c: units and costs of the operations that touch weight matrices. */
#include "kernels/linear_plan.h"

#include "kernels/pack_layout.h"

/* Units a thread should find at least, so that the last one does not keep the others waiting. */
enum { UNITS_PER_THREAD = 4 };

static uint32_t ceil_div(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

void pkvi_linear_plan(const struct pkv_args_linear *args, uint64_t unit_bytes, uint32_t unit_rows,
                      uint32_t unit_groups, uint32_t threads, struct pkvi_linear_plan *plan_out)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < args->part_count; p++) {
        const struct pkv_matrix *w = &args->part[p].w;
        bytes += pkvi_pack_bytes(w->type, w->rows, w->cols);
    }
    const uint32_t row_blocks = ceil_div(args->rows, unit_rows);
    const uint64_t share = bytes * row_blocks / ((uint64_t)threads * UNITS_PER_THREAD);
    const uint64_t target = share < unit_bytes ? share : unit_bytes;
    plan_out->args = args;
    plan_out->unit_rows = unit_rows;
    plan_out->first_unit[0] = 0;
    for (uint32_t p = 0; p < args->part_count; p++) {
        const struct pkv_matrix *w = &args->part[p].w;
        const uint32_t groups = pkvi_matrix_groups(w->rows);
        uint64_t fit = target / pkvi_group_bytes(w->type, w->cols);
        fit = fit < 1 ? 1 : fit < unit_groups ? fit : unit_groups;
        const uint32_t cuts = ceil_div(groups, fit);
        plan_out->unit_groups[p] = ceil_div(groups, cuts); /* all about equal */
        plan_out->first_unit[p + 1] =
            plan_out->first_unit[p] + ceil_div(groups, plan_out->unit_groups[p]) * row_blocks;
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
    const uint32_t inside = unit - plan->first_unit[p];
    const uint32_t all_groups = pkvi_matrix_groups(args->part[p].w.rows);
    struct pkvi_linear_unit u = {
        .part = &args->part[p],
        .first_group = inside / row_blocks * plan->unit_groups[p],
        .first_row = inside % row_blocks * plan->unit_rows,
    };
    const uint32_t groups_left = all_groups - u.first_group, rows_left = args->rows - u.first_row;
    u.groups = groups_left < plan->unit_groups[p] ? groups_left : plan->unit_groups[p];
    u.rows = rows_left < plan->unit_rows ? rows_left : plan->unit_rows;
    return u;
}

static uint64_t act_bytes(const struct pkv_act *act, uint32_t rows)
{
    const uint64_t values = (uint64_t)rows * act->cols;
    return (act->f32 ? 4 * values : 0) +
           (act->q8 ? values + values / PKV_ACT_BLOCK * 4 + values / 16 * 2 : 0);
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
