/*
 * linear.c: y = W x over packed weights, in the order of kernels/ref/linear.c and equal to it.
 *
 * A unit takes some groups of 16 outputs and some rows. Few rows: weights go from memory through
 * registers into the sums (`direct`). Many rows: a piece of one group is unpacked once into a
 * panel in L1, and all rows of the unit, a tile of PKV_TILE_ROWS at a time, are multiplied by it.
 * Sums wait in the unit's stack between pieces, so neither way changes the order.
 */
#include <string.h>

#include "kernels/addr.h"
#include "kernels/cpu/lanes.h"
#include "kernels/linear_plan.h"
#include "kernels/pack_layout.h"
#include "runtime/base/thread.h"

enum {
    UNIT_ROWS = 128,    /* rows for which a panel is unpacked once */
    PANEL_VALUES = 512, /* columns of a piece of quantised weights: 8 KiB of codes */
    PANEL_FLOATS = 128, /* columns of a piece of float weights: 8 KiB */
    DIRECT_VALUES = 8192,
    DIRECT_ROWS = 1,
    PREFETCH_BYTES = 2048,
    UNIT_SUMS = 1024, /* sums of 16 outputs a unit keeps: 64 KiB of stack */
    UNIT_BYTES = 32768,
    LANES = PKV_PACK_ROWS,
    MAX_BLOCKS = DIRECT_VALUES / 32,
};

/* A format as the code below wants it: all members are constants after inlining. */
struct format {
    enum pkv_weight_type type;
    struct pkvi_codes codes;
    int scales; /* per 32 values */
    bool has_m;
};

#define FORMAT(type_, low_, high_, width_, scales_, has_m_)                                        \
    ((struct format){(type_), {(low_), (high_), (width_)}, (scales_), (has_m_)})

#define FORMATS(X)                                                                                 \
    X(Q4_0, q4_0, FORMAT(PKV_W_Q4_0, 4, 0, 4, 1, true))                                            \
    X(Q4_1, q4_1, FORMAT(PKV_W_Q4_1, 4, 0, 4, 1, true))                                            \
    X(Q5_0, q5_0, FORMAT(PKV_W_Q5_0, 4, 1, 5, 1, true))                                            \
    X(Q5_1, q5_1, FORMAT(PKV_W_Q5_1, 4, 1, 5, 1, true))                                            \
    X(Q8_0, q8_0, FORMAT(PKV_W_Q8_0, 8, 0, 8, 1, false))                                           \
    X(Q2_K, q2_k, FORMAT(PKV_W_Q2_K, 2, 0, 2, 2, true))                                            \
    X(Q3_K, q3_k, FORMAT(PKV_W_Q3_K, 2, 1, 3, 2, true))                                            \
    X(Q4_K, q4_k, FORMAT(PKV_W_Q4_K, 4, 0, 4, 1, true))                                            \
    X(Q5_K, q5_k, FORMAT(PKV_W_Q5_K, 4, 1, 5, 1, true))                                            \
    X(Q6_K, q6_k, FORMAT(PKV_W_Q6_K, 4, 2, 6, 2, true))

/* A piece of a group, unpacked: codes a byte each in quads, scales in float32. */
struct panel {
    _Alignas(64) uint8_t codes[PANEL_VALUES / 32][512];
    float s[PANEL_VALUES / 16][LANES], m[PANEL_VALUES / 16][LANES];
};

/* Rows of activations for a piece: x of row i is q8 + i * cols, its scales scale + i * cols / 32,
 * its integer sums q8_sum + i * cols / 16; scale * sum in `sum` [row][blocks][scales]. */
struct act_piece {
    const int8_t *q8;
    const float *scale;
    const int16_t *q8_sum;
    float *sum;
    uint32_t cols, blocks;
};

/* s and m of 16 rows, values 32 sub + 16 half on of a record. */
PKV_INLINE void load_scales(const enum pkv_weight_type type, const uint8_t *scales, uint32_t sub,
                            uint32_t half, struct pkvi_f16x *s, struct pkvi_f16x *m)
{
    const uint8_t *sixteenth = scales + LANES * (2 * sub + half);
    const struct pkvi_f16x minus = pkvi_f16x_set1(-1.0f);
    switch (type) {
    case PKV_W_Q4_1:
    case PKV_W_Q5_1:
        *s = pkvi_f16x_from_f16(scales);
        *m = pkvi_f16x_from_f16(scales + 32);
        break;
    case PKV_W_Q4_K:
    case PKV_W_Q5_K:
        *s = pkvi_f16x_mul(pkvi_f16x_from_f16(scales + 256),
                           pkvi_f16x_from_u8(scales + LANES * sub, 0, 255));
        *m = pkvi_f16x_mul(pkvi_f16x_from_f16(scales + 288),
                           pkvi_f16x_from_u8(scales + 128 + LANES * sub, 0, 255));
        *m = pkvi_f16x_mul(*m, minus);
        break;
    case PKV_W_Q2_K:
        *s = pkvi_f16x_mul(pkvi_f16x_from_f16(scales + 256), pkvi_f16x_from_u8(sixteenth, 0, 15));
        *m = pkvi_f16x_mul(pkvi_f16x_from_f16(scales + 288), pkvi_f16x_from_u8(sixteenth, 4, 15));
        *m = pkvi_f16x_mul(*m, minus);
        break;
    case PKV_W_Q3_K:
    case PKV_W_Q6_K:
        *s = pkvi_f16x_mul(pkvi_f16x_from_f16(scales + 256), pkvi_f16x_from_i8(sixteenth));
        *m = pkvi_f16x_mul(*s, pkvi_f16x_set1(-(float)pkvi_layouts[type].offset));
        break;
    default:
        *s = pkvi_f16x_from_f16(scales);
        *m = pkvi_f16x_mul(*s, pkvi_f16x_set1(-(float)pkvi_layouts[type].offset));
    }
}

/* One row, block by block straight from the records of a group. */
PKV_INLINE void direct(const struct format f, const uint8_t *record, const struct act_piece *x,
                       float *acc)
{
    const struct pkvi_layout *layout = &pkvi_layouts[f.type];
    const uint32_t subs = layout->values / 32, planes = pkvi_layout_planes_bytes(layout);
    struct pkvi_f16x a = pkvi_f16x_load(acc);
    for (uint32_t b = 0; b < x->blocks; b += subs, record += layout->record_bytes) {
        const uint8_t *scales = record + layout->record_bytes - layout->scale_bytes;
        for (uint32_t sub = 0; sub < subs; sub++) {
            const int8_t *q8 = x->q8 + 32 * (uint64_t)(b + sub);
            const uint8_t *codes = record + sub * planes;
            for (uint32_t line = 0; line < planes + layout->scale_bytes / subs; line += 64) {
                __builtin_prefetch(codes + PREFETCH_BYTES + line);
            }
            const struct pkvi_f16x scale = pkvi_f16x_set1(x->scale[b + sub]);
#pragma GCC unroll 2
            for (int half = 0; half < f.scales; half++) {
                const int32_t q8_sum = x->q8_sum[2 * (b + sub)] + x->q8_sum[2 * (b + sub) + 1];
                struct pkvi_i16x dot;
                struct pkvi_f16x s, m;
                pkvi_dot_quads(f.codes, codes, 8 / f.scales * half, 8 / f.scales * (half + 1), 1,
                               &q8, &q8_sum, &dot);
                load_scales(f.type, scales, sub, (uint32_t)half, &s, &m);
                a = pkvi_f16x_fma(pkvi_f16x_from_i16x(dot), pkvi_f16x_mul(s, scale), a);
                if (f.has_m) {
                    const float sum = x->sum[(b + sub) * (uint32_t)f.scales + (uint32_t)half];
                    a = pkvi_f16x_fma(m, pkvi_f16x_set1(sum), a);
                }
            }
        }
    }
    pkvi_f16x_store(acc, a);
}

PKV_INLINE void unpack(const struct format f, const uint8_t *record, uint32_t blocks,
                       struct panel *panel)
{
    const struct pkvi_layout *layout = &pkvi_layouts[f.type];
    const uint32_t subs = layout->values / 32, planes = pkvi_layout_planes_bytes(layout);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *from = record + (uint64_t)(b / subs) * layout->record_bytes;
        const uint8_t *scales = from + layout->record_bytes - layout->scale_bytes;
        const uint8_t *codes = from + b % subs * planes;
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            pkvi_quad_unpack(f.codes, codes, j, panel->codes[b] + 64 * j);
        }
#pragma GCC unroll 2
        for (int half = 0; half < f.scales; half++) {
            struct pkvi_f16x s, m;
            load_scales(f.type, scales, b % subs, (uint32_t)half, &s, &m);
            pkvi_f16x_store(panel->s[b * (uint32_t)f.scales + (uint32_t)half], s);
            pkvi_f16x_store(panel->m[b * (uint32_t)f.scales + (uint32_t)half], m);
        }
    }
}

/* `rows` <= PKV_TILE_ROWS rows times a panel; acc [rows][16]. */
PKV_INLINE void tile(const struct format f, const int rows, const struct panel *panel,
                     const struct act_piece *x, uint32_t first_row, float *acc)
{
    const struct pkvi_codes bytes = {8, 0, f.codes.width};
    const int8_t *q8[PKV_TILE_ROWS];
    const float *scale[PKV_TILE_ROWS], *sum[PKV_TILE_ROWS];
    const int16_t *q8_sum[PKV_TILE_ROWS];
    struct pkvi_f16x a[PKV_TILE_ROWS];
    for (int i = 0; i < rows; i++) {
        const uint64_t row = first_row + (uint32_t)i;
        q8[i] = x->q8 + row * x->cols;
        scale[i] = x->scale + row * (x->cols / 32);
        q8_sum[i] = x->q8_sum + row * (x->cols / 16);
        sum[i] = x->sum + row * x->blocks * (uint32_t)f.scales;
        a[i] = pkvi_f16x_load(acc + LANES * i);
    }
    for (uint32_t b = 0; b < x->blocks; b++) {
#pragma GCC unroll 2
        for (int half = 0; half < f.scales; half++) {
            const uint32_t at = b * (uint32_t)f.scales + (uint32_t)half;
            struct pkvi_i16x dot[PKV_TILE_ROWS];
            int32_t block_sum[PKV_TILE_ROWS]; /* of signed codes, which have one scale */
            for (int i = 0; i < rows; i++) {
                block_sum[i] = q8_sum[i][2 * b] + q8_sum[i][2 * b + 1];
            }
            pkvi_dot_quads(bytes, panel->codes[b], 8 / f.scales * half, 8 / f.scales * (half + 1),
                           rows, q8, block_sum, dot);
            const struct pkvi_f16x s = pkvi_f16x_load(panel->s[at]);
            const struct pkvi_f16x m = pkvi_f16x_load(panel->m[at]);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                a[i] = pkvi_f16x_fma(pkvi_f16x_from_i16x(dot[i]),
                                     pkvi_f16x_mul(s, pkvi_f16x_set1(scale[i][b])), a[i]);
                if (f.has_m) {
                    a[i] = pkvi_f16x_fma(m, pkvi_f16x_set1(sum[i][at]), a[i]);
                }
            }
        }
        for (int i = 0; i < rows; i++) {
            q8[i] += 32;
        }
    }
    for (int i = 0; i < rows; i++) {
        pkvi_f16x_store(acc + LANES * i, a[i]);
    }
}

/* All rows of a piece times a panel. */
PKV_INLINE void tiles(const struct format f, const struct panel *panel, const struct act_piece *x,
                      uint32_t rows, float *acc)
{
    uint32_t row = 0;
    for (; row + PKV_TILE_ROWS <= rows; row += PKV_TILE_ROWS) {
        tile(f, PKV_TILE_ROWS, panel, x, row, acc + LANES * row);
    }
    if (PKV_TILE_ROWS > 4 && row + 4 <= rows) {
        tile(f, 4, panel, x, row, acc + LANES * row);
        row += 4;
    }
    if (row + 2 <= rows) {
        tile(f, 2, panel, x, row, acc + LANES * row);
        row += 2;
    }
    if (row < rows) {
        tile(f, 1, panel, x, row, acc + LANES * row);
    }
}

/* A piece of a group times some rows. */
typedef void piece_fn(const uint8_t *record, const struct act_piece *x, uint32_t rows,
                      struct panel *panel, float *acc);

#define DEFINE_PIECE(TYPE, name, format)                                                           \
    static void piece_##name(const uint8_t *record, const struct act_piece *x, uint32_t rows,      \
                             struct panel *panel, float *acc)                                      \
    {                                                                                              \
        if (rows <= DIRECT_ROWS) {                                                                 \
            direct(format, record, x, acc);                                                        \
        } else {                                                                                   \
            unpack(format, record, x->blocks, panel);                                              \
            tiles(format, panel, x, rows, acc);                                                    \
        }                                                                                          \
    }
FORMATS(DEFINE_PIECE)

#define PIECE_ENTRY(TYPE, name, format) [PKV_W_##TYPE] = piece_##name,
static piece_fn *const pieces[PKV_W_COUNT] = {FORMATS(PIECE_ENTRY)};

/* scale * sum of the codes, per block or half block, of a piece that begins at block b0. */
static void prepare_sums(const struct pkv_act *act, const struct pkvi_linear_unit *unit,
                         uint32_t b0, uint32_t scales, const struct act_piece *x)
{
    for (uint32_t i = 0; i < unit->rows; i++) {
        const uint64_t first = (uint64_t)(unit->first_row + i) * (act->cols / 32) + b0;
        const float *scale = PKV_AT(const float, act->scale) + first;
        const int16_t *sum = PKV_AT(const int16_t, act->sum) + 2 * first;
        float *to = x->sum + (uint64_t)i * x->blocks * scales;
        for (uint32_t b = 0; b < x->blocks; b++) {
            if (scales == 1) {
                to[b] = scale[b] * (float)(sum[2 * b] + sum[2 * b + 1]);
            } else {
                to[2 * b] = scale[b] * (float)sum[2 * b];
                to[2 * b + 1] = scale[b] * (float)sum[2 * b + 1];
            }
        }
    }
}

static void unit_quantised(const struct pkv_act *act, const struct pkvi_linear_unit *unit,
                           float *acc)
{
    const struct pkv_matrix *w = &unit->part->w;
    const struct pkvi_layout *layout = &pkvi_layouts[w->type];
    const uint64_t group_bytes = pkvi_group_bytes(w->type, w->cols);
    const uint8_t *group = PKV_AT(const uint8_t, w->data) + unit->first_group * group_bytes;
    const uint32_t step = unit->rows <= DIRECT_ROWS ? DIRECT_VALUES : PANEL_VALUES;
    float sums[UNIT_ROWS * PANEL_VALUES / 16];
    struct panel panel;
    _Static_assert(UNIT_ROWS * PANEL_VALUES >= DIRECT_ROWS * DIRECT_VALUES, "sums fit");
    for (uint32_t k = 0; k < w->cols; k += step) {
        const uint32_t left = w->cols - k, b0 = k / 32;
        const uint64_t first = (uint64_t)unit->first_row * act->cols + k;
        const struct act_piece x = {
            .q8 = PKV_AT(const int8_t, act->q8) + first,
            .scale = PKV_AT(const float, act->scale) + first / 32,
            .q8_sum = PKV_AT(const int16_t, act->sum) + first / 16,
            .sum = sums,
            .cols = act->cols,
            .blocks = (left < step ? left : step) / 32,
        };
        prepare_sums(act, unit, b0, 32 / layout->scale_values, &x);
        for (uint32_t g = 0; g < unit->groups; g++) {
            const uint8_t *record =
                group + g * group_bytes + (uint64_t)(k / layout->values) * layout->record_bytes;
            pieces[w->type](record, &x, unit->rows, &panel, acc + (uint64_t)g * unit->rows * LANES);
        }
    }
}

PKV_INLINE struct pkvi_f16x load_floats(const enum pkv_weight_type type, const uint8_t *record)
{
    if (type == PKV_W_F32) {
        return pkvi_f16x_load((const float *)(const void *)record);
    }
    return type == PKV_W_F16 ? pkvi_f16x_from_f16(record) : pkvi_f16x_from_bf16(record);
}

/* `rows` <= PKV_TILE_ROWS rows, x[i] = x + i * cols, times `count` records. */
PKV_INLINE void tile_floats(const enum pkv_weight_type type, const int rows, const uint8_t *record,
                            const float *x, uint32_t cols, uint32_t count, float *acc)
{
    const uint32_t record_bytes = pkvi_layouts[type].record_bytes;
    struct pkvi_f16x a[PKV_TILE_ROWS];
    for (int i = 0; i < rows; i++) {
        a[i] = pkvi_f16x_load(acc + LANES * i);
    }
    for (uint32_t k = 0; k < count; k++) {
        const struct pkvi_f16x w = load_floats(type, record + (uint64_t)k * record_bytes);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            a[i] = pkvi_f16x_fma(w, pkvi_f16x_set1(x[(uint64_t)(uint32_t)i * cols + k]), a[i]);
        }
    }
    for (int i = 0; i < rows; i++) {
        pkvi_f16x_store(acc + LANES * i, a[i]);
    }
}

PKV_INLINE void tiles_floats(const enum pkv_weight_type type, const uint8_t *record, const float *x,
                             uint32_t cols, uint32_t count, uint32_t rows, float *acc)
{
    uint32_t row = 0;
    for (; row + PKV_TILE_ROWS <= rows; row += PKV_TILE_ROWS) {
        tile_floats(type, PKV_TILE_ROWS, record, x + (uint64_t)row * cols, cols, count,
                    acc + LANES * row);
    }
    for (; row < rows; row++) {
        tile_floats(type, 1, record, x + (uint64_t)row * cols, cols, count, acc + LANES * row);
    }
}

static void piece_floats(enum pkv_weight_type type, const uint8_t *record, const float *x,
                         uint32_t cols, uint32_t count, uint32_t rows, float *acc)
{
    switch (type) {
    case PKV_W_F16:
        tiles_floats(PKV_W_F16, record, x, cols, count, rows, acc);
        break;
    case PKV_W_BF16:
        tiles_floats(PKV_W_BF16, record, x, cols, count, rows, acc);
        break;
    default:
        tiles_floats(PKV_W_F32, record, x, cols, count, rows, acc);
    }
}

static void unit_floats(const struct pkv_act *act, const struct pkvi_linear_unit *unit, float *acc)
{
    const struct pkv_matrix *w = &unit->part->w;
    const uint64_t group_bytes = pkvi_group_bytes(w->type, w->cols);
    const uint8_t *group = PKV_AT(const uint8_t, w->data) + unit->first_group * group_bytes;
    const float *x = PKV_AT(const float, act->f32) + (uint64_t)unit->first_row * act->cols;
    const uint32_t step = unit->rows < PKV_TILE_ROWS ? w->cols : PANEL_FLOATS;
    for (uint32_t k = 0; k < w->cols; k += step) {
        const uint32_t left = w->cols - k, count = left < step ? left : step;
        for (uint32_t g = 0; g < unit->groups; g++) {
            const uint8_t *record =
                group + g * group_bytes + (uint64_t)k * pkvi_layouts[w->type].record_bytes;
            piece_floats(w->type, record, x + k, act->cols, count, unit->rows,
                         acc + (uint64_t)g * unit->rows * LANES);
        }
    }
}

/* Sums of one group and row to y: whole, or `outputs` < 16 of them. */
static void store_sums(const struct pkv_linear_part *part, uint32_t first_output, uint32_t outputs,
                       const float *acc, float *y)
{
    const float *bias = part->w.bias ? PKV_AT(const float, part->w.bias) + first_output : NULL;
    if (outputs == LANES) {
        struct pkvi_f16x value = pkvi_f16x_load(acc);
        value = bias ? pkvi_f16x_add(value, pkvi_f16x_load(bias)) : value;
        pkvi_f16x_store(y, part->add ? pkvi_f16x_add(pkvi_f16x_load(y), value) : value);
        return;
    }
    for (uint32_t o = 0; o < outputs; o++) {
        const float value = bias ? acc[o] + bias[o] : acc[o];
        y[o] = part->add ? y[o] + value : value;
    }
}

static void run_unit(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkvi_linear_plan *plan = context;
    const struct pkvi_linear_unit unit = pkvi_linear_unit(plan, number);
    const struct pkv_linear_part *part = unit.part;
    _Alignas(64) float acc[UNIT_SUMS * LANES];
    memset(acc, 0, (uint64_t)unit.groups * unit.rows * LANES * sizeof *acc);
    if (pkvi_weight_is_quantised(part->w.type)) {
        unit_quantised(&plan->args->x, &unit, acc);
    } else {
        unit_floats(&plan->args->x, &unit, acc);
    }
    for (uint32_t g = 0; g < unit.groups; g++) {
        const uint32_t first = (unit.first_group + g) * LANES, left = part->w.rows - first;
        for (uint32_t i = 0; i < unit.rows; i++) {
            store_sums(part, first, left < LANES ? left : LANES,
                       acc + ((uint64_t)g * unit.rows + i) * LANES,
                       PKV_AT(float, part->y) + (uint64_t)(unit.first_row + i) * part->y_stride +
                           first);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkvi_pool *pool = ((const struct pkvi_cpu_stream *)native_stream)->pool;
    const struct pkv_args_linear *linear = args;
    struct pkvi_linear_plan plan;
    const uint32_t rows = linear->rows < UNIT_ROWS ? linear->rows : UNIT_ROWS;
    pkvi_linear_plan(linear, UNIT_BYTES, UNIT_ROWS, UNIT_SUMS / rows, pkvi_pool_threads(pool),
                     &plan);
    pkvi_pool_run(pool, run_unit, &plan, plan.first_unit[linear->part_count]);
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_linear) = {
    .op = PKV_OP_LINEAR,
    .variant = PKV_ISA_TEXT,
    .args_bytes = sizeof(struct pkv_args_linear),
    .launch = launch,
    .cost = pkvi_cost_linear,
};
