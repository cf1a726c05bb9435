/*
 * linear.c: y = W x over packed weights, in the order of kernels/ref/linear.c and equal to it.
 *
 * A unit takes some groups of 16 outputs and some rows. One row: weights go from memory through
 * registers into the sums (`direct`). More: a piece of one group is unpacked once into a
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
    LANES = PKV_PACK_ROWS,
    UNIT_ROWS = 64,      /* rows for which a piece of weights is unpacked once */
    UNIT_SUMS = 1024,    /* sums of 16 outputs that a unit keeps: 64 KiB */
    UNIT_BYTES = 131072, /* of weights in a unit of one row, at most */
    PANEL_BLOCKS = 24,   /* of 32 columns, in a piece: 12 KiB of codes */
    PANEL_FLOATS = 128,  /* columns in a piece of float weights: 8 KiB */
    DIRECT_BLOCKS = 256, /* of 32 columns, in a piece for a single row */
    PREFETCH_BYTES = 2048,
    WRITE_AHEAD_ROWS = 4,
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

/* 32 values of a group, unpacked: codes a byte each in quads, scales in float32. */
struct panel_block {
    _Alignas(64) uint8_t codes[512];
    float s[2][LANES], m[2][LANES];
};

/* 32 values of the rows of a tile: all that is read for them stands together. */
struct act_block {
    _Alignas(32) int8_t q8[PKV_TILE_ROWS][32];
    float scale[PKV_TILE_ROWS];
    float sum[2][PKV_TILE_ROWS]; /* scale * sum of x8, of the block or of its halves */
    int32_t spill[PKV_TILE_ROWS];
    uint32_t channel[PKV_TILE_ROWS];
    int32_t q8_sum[PKV_TILE_ROWS]; /* of the block, without spill */
};

/* Some blocks of a unit's activations: a single row as it is, several gathered in tiles. */
struct act_piece {
    uint32_t rows, blocks;
    const int8_t *q8;                  /* of a single row */
    const struct pkv_act_block *block; /* of a single row */
    const float *sum;                  /* of a single row: [blocks][f.scales] */
    const struct act_block *act;       /* [tile][blocks] */
};

/* What is made of a piece of weights and of a piece of activations. */
struct scratch {
    struct panel_block panel[PANEL_BLOCKS];
    struct act_block act[UNIT_ROWS / PKV_TILE_ROWS * PANEL_BLOCKS];
    float sum[2 * DIRECT_BLOCKS];
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

/* 32 values of the activations of some rows: where their parts stand. */
struct act_view {
    const int8_t *q8; /* [rows][32] */
    const float *scale, *sum;
    const int32_t *spill, *q8_sum;
    const uint32_t *channel;
};

/* acc += 32 values (or 16, a half of them) of one row or tile */
PKV_INLINE void add_block(const struct format f, const struct pkvi_codes codes,
                          const uint8_t *planes, const int half, const int rows,
                          const struct act_view x, struct pkvi_f16x s, struct pkvi_f16x m,
                          struct pkvi_f16x *acc)
{
    const int quads = 8 / f.scales;
    struct pkvi_i16x dot[PKV_TILE_ROWS];
    pkvi_dot_quads(codes, planes, quads * half, quads * (half + 1), rows, x.q8, x.q8_sum, dot);
    PKV_UNROLL
    for (int i = 0; i < rows; i++) {
        const bool here = f.scales == 1 || x.channel[i] / 16 == (uint32_t)half;
        pkvi_add_spill(codes, planes, x.channel[i], here ? x.spill[i] : 0, &dot[i]);
        acc[i] = pkvi_f16x_fma(pkvi_f16x_from_i16x(dot[i]),
                               pkvi_f16x_mul(s, pkvi_f16x_set1(x.scale[i])), acc[i]);
        if (f.has_m) {
            acc[i] = pkvi_f16x_fma(m, pkvi_f16x_set1(x.sum[i]), acc[i]);
        }
    }
}

PKV_INLINE void prefetch(const uint8_t *from, uint32_t bytes)
{
    for (uint32_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(from + line);
    }
}

/* One row, straight from the records of a group. */
PKV_INLINE void direct(const struct format f, const uint8_t *record, const struct act_piece *x,
                       float *acc)
{
    const struct pkvi_layout *layout = &pkvi_layouts[f.type];
    const uint32_t subs = layout->values / 32, planes = pkvi_layout_planes_bytes(layout);
    struct pkvi_f16x a = pkvi_f16x_load(acc);
    for (uint32_t b = 0; b < x->blocks; record += layout->record_bytes) {
        const uint8_t *scales = record + layout->record_bytes - layout->scale_bytes;
        for (uint32_t sub = 0; sub < subs; sub++, b++) {
            const uint8_t *codes = record + sub * planes;
            prefetch(codes + PREFETCH_BYTES, planes + layout->scale_bytes / subs);
            const struct pkv_act_block *block = x->block + b;
            const int32_t spill = block->spill, q8_sum = block->sum[0] + block->sum[1] - spill;
            const uint32_t channel = block->channel;
            struct act_view act = {
                x->q8 + 32 * (uint64_t)b, &block->scale, NULL, &spill, &q8_sum, &channel};
            PKV_UNROLL
            for (int half = 0; half < f.scales; half++) {
                struct pkvi_f16x s, m;
                load_scales(f.type, scales, sub, (uint32_t)half, &s, &m);
                act.sum = x->sum + b * (uint32_t)f.scales + half;
                add_block(f, f.codes, codes, half, 1, act, s, m, &a);
            }
        }
    }
    pkvi_f16x_store(acc, a);
}

PKV_INLINE void unpack(const struct format f, const uint8_t *record, uint32_t blocks,
                       struct panel_block *panel)
{
    const struct pkvi_layout *layout = &pkvi_layouts[f.type];
    const uint32_t subs = layout->values / 32, planes = pkvi_layout_planes_bytes(layout);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *from = record + (uint64_t)(b / subs) * layout->record_bytes;
        const uint8_t *scales = from + layout->record_bytes - layout->scale_bytes;
        const uint8_t *codes = from + b % subs * planes;
        PKV_UNROLL
        for (int j = 0; j < 8; j++) {
            pkvi_quad_unpack(f.codes, codes, j, panel[b].codes + 64 * j);
        }
        PKV_UNROLL
        for (int half = 0; half < f.scales; half++) {
            struct pkvi_f16x s, m;
            load_scales(f.type, scales, b % subs, (uint32_t)half, &s, &m);
            pkvi_f16x_store(panel[b].s[half], s);
            pkvi_f16x_store(panel[b].m[half], m);
        }
    }
}

/* `rows` <= PKV_TILE_ROWS rows times a panel; acc [rows][16]. */
PKV_INLINE void tile(const struct format f, const int rows, const struct panel_block *panel,
                     const struct act_block *x, uint32_t blocks, float *acc)
{
    const struct pkvi_codes bytes = {8, 0, f.codes.width};
    struct pkvi_f16x a[PKV_TILE_ROWS];
    for (int i = 0; i < rows; i++) {
        a[i] = pkvi_f16x_load(acc + LANES * i);
    }
    for (uint32_t b = 0; b < blocks; b++, panel++, x++) {
        PKV_UNROLL
        for (int half = 0; half < f.scales; half++) {
            const struct act_view act = {x->q8[0], x->scale,  x->sum[half],
                                         x->spill, x->q8_sum, x->channel};
            add_block(f, bytes, panel->codes, half, rows, act, pkvi_f16x_load(panel->s[half]),
                      pkvi_f16x_load(panel->m[half]), a);
        }
    }
    for (int i = 0; i < rows; i++) {
        pkvi_f16x_store(acc + LANES * i, a[i]);
    }
}

/*
 * All rows of a piece times a panel; the last tile is padded to 1, 2, 4 or 8 rows. Meanwhile what
 * will be unpacked next comes closer.
 */
PKV_INLINE void tiles(const struct format f, const struct panel_block *panel,
                      const struct act_piece *x, const uint8_t *next, float *acc)
{
    const struct pkvi_layout *layout = &pkvi_layouts[f.type];
    const uint32_t bytes = x->blocks / (layout->values / 32) * layout->record_bytes;
    const uint32_t share = bytes / (x->rows / PKV_TILE_ROWS + 1);
    const struct act_block *act = x->act;
    uint32_t rows = x->rows;
    for (; rows > PKV_TILE_ROWS / 2; rows -= rows < PKV_TILE_ROWS ? rows : PKV_TILE_ROWS) {
        prefetch(next, share);
        tile(f, PKV_TILE_ROWS, panel, act, x->blocks, acc);
        next += share;
        act += x->blocks;
        acc += LANES * PKV_TILE_ROWS;
    }
    if (PKV_TILE_ROWS > 4 && rows > 2) {
        tile(f, 4, panel, act, x->blocks, acc);
    } else if (rows == 2) {
        tile(f, 2, panel, act, x->blocks, acc);
    } else if (rows == 1) {
        tile(f, 1, panel, act, x->blocks, acc);
    }
}

/* A piece of a group times some rows. */
typedef void piece_fn(const uint8_t *record, const struct act_piece *x, const uint8_t *next,
                      struct panel_block *panel, float *acc);

#define DEFINE_PIECE(TYPE, name, format)                                                           \
    static void piece_##name(const uint8_t *record, const struct act_piece *x,                     \
                             const uint8_t *next, struct panel_block *panel, float *acc)           \
    {                                                                                              \
        if (x->rows == 1) {                                                                        \
            direct(format, record, x, acc);                                                        \
        } else {                                                                                   \
            unpack(format, record, x->blocks, panel);                                              \
            tiles(format, panel, x, next, acc);                                                    \
        }                                                                                          \
    }
FORMATS(DEFINE_PIECE)

#define PIECE_ENTRY(TYPE, name, format) [PKV_W_##TYPE] = piece_##name,
static piece_fn *const pieces[PKV_W_COUNT] = {FORMATS(PIECE_ENTRY)};

/* Rows of sums a group has: full tiles. */
static uint32_t acc_rows(const struct pkvi_linear_unit *unit)
{
    return (unit->rows + PKV_TILE_ROWS - 1) / PKV_TILE_ROWS * PKV_TILE_ROWS;
}

/* scale * sum of each block, or of its halves side by side. */
static void scale_sums(const struct pkv_act_block *block, bool halves, float out[2])
{
    const int32_t low = block->sum[0], high = block->sum[1];
    out[0] = block->scale * (float)(halves ? low : low + high);
    if (halves) {
        out[1] = block->scale * (float)high;
    }
}

/* Row `row` of a tile: to[block]. */
static void gather_row(const int8_t *q8, const struct pkv_act_block *block, uint32_t blocks,
                       bool halves, uint32_t row, struct act_block *to)
{
    for (uint32_t b = 0; b < blocks; b++, block++, to++) {
        float sums[2] = {0};
        scale_sums(block, halves, sums);
        memcpy(to->q8[row], q8 + 32 * (uint64_t)b, 32);
        to->scale[row] = block->scale;
        to->sum[0][row] = sums[0];
        to->sum[1][row] = sums[1];
        to->spill[row] = block->spill;
        to->channel[row] = block->channel;
        if (PKV_SIGNED_NEEDS_SUM) {
            to->q8_sum[row] = block->sum[0] + block->sum[1] - block->spill;
        }
    }
}

/* Blocks b0 .. b0 + blocks - 1 of the unit's rows. */
static struct act_piece gather(const struct pkv_act *act, const struct pkvi_linear_unit *unit,
                               uint32_t b0, uint32_t blocks, bool halves, struct scratch *scratch)
{
    const uint64_t stride = act->cols / 32, first = unit->first_row * stride + b0;
    const int8_t *q8 = PKV_AT(const int8_t, act->q8) + 32 * first;
    const struct pkv_act_block *block = PKV_AT(const struct pkv_act_block, act->block) + first;
    if (unit->rows == 1) {
        for (uint32_t b = 0; b < blocks; b++) {
            scale_sums(block + b, halves, scratch->sum + (halves ? 2 * b : b));
        }
    } else if (unit->rows % PKV_TILE_ROWS != 0) { /* rows that fill up the last tile are zero */
        memset(scratch->act + (uint64_t)(unit->rows / PKV_TILE_ROWS) * blocks, 0,
               blocks * sizeof *scratch->act);
    }
    for (uint64_t i = 0; unit->rows > 1 && i < unit->rows; i++) {
        gather_row(q8 + 32 * stride * i, block + stride * i, blocks, halves, i % PKV_TILE_ROWS,
                   scratch->act + i / PKV_TILE_ROWS * blocks);
    }
    return (struct act_piece){unit->rows, blocks, q8, block, scratch->sum, scratch->act};
}

static void unit_quantised(const struct pkv_act *act, const struct pkvi_linear_unit *unit,
                           struct scratch *scratch, float *acc)
{
    const struct pkv_matrix *w = &unit->part->w;
    const struct pkvi_layout *layout = &pkvi_layouts[w->type];
    const uint64_t group_bytes = pkvi_group_bytes(w->type, w->cols);
    const uint8_t *group = PKV_AT(const uint8_t, w->data) + unit->first_group * group_bytes;
    const uint32_t step = unit->rows == 1 ? DIRECT_BLOCKS : PANEL_BLOCKS;
    for (uint32_t b0 = 0; b0 < w->cols / 32; b0 += step) {
        const uint32_t left = w->cols / 32 - b0, blocks = left < step ? left : step;
        const struct act_piece x =
            gather(act, unit, b0, blocks, layout->scale_values == 16, scratch);
        for (uint32_t g = 0; g < unit->groups; g++) {
            const uint8_t *record = group + g * group_bytes +
                                    (uint64_t)(b0 / (layout->values / 32)) * layout->record_bytes;
            pieces[w->type](record, &x, record + group_bytes, scratch->panel,
                            acc + (uint64_t)g * acc_rows(unit) * LANES);
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
        if (rows == 1) {
            __builtin_prefetch(record + (uint64_t)k * record_bytes + PREFETCH_BYTES);
        }
        PKV_UNROLL
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
                         acc + (uint64_t)g * acc_rows(unit) * LANES);
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

/* 64 bytes for each group: lines that will be written. */
static void prefetch_write(const float *y, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++) {
        __builtin_prefetch(y + LANES * g, 1);
    }
}

static void run_unit(void *context, uint32_t number, uint32_t worker)
{
    (void)worker;
    const struct pkvi_linear_plan *plan = context;
    const struct pkvi_linear_unit unit = pkvi_linear_unit(plan, number);
    const struct pkv_linear_part *part = unit.part;
    const uint32_t rows = acc_rows(&unit);
    struct scratch scratch;
    _Alignas(64) float acc[UNIT_SUMS * LANES];
    memset(acc, 0, (uint64_t)unit.groups * rows * LANES * sizeof *acc);
    if (pkvi_weight_is_quantised(part->w.type)) {
        unit_quantised(&plan->args->x, &unit, &scratch, acc);
    } else {
        unit_floats(&plan->args->x, &unit, acc);
    }
    for (uint32_t i = 0; i < unit.rows; i++) { /* row by row: y is written in long runs */
        float *y = PKV_AT(float, part->y) + (uint64_t)(unit.first_row + i) * part->y_stride;
        prefetch_write(y + (uint64_t)WRITE_AHEAD_ROWS * part->y_stride + unit.first_group * LANES,
                       unit.groups);
        for (uint32_t g = 0; g < unit.groups; g++) {
            const uint32_t first = (unit.first_group + g) * LANES, left = part->w.rows - first;
            store_sums(part, first, left < LANES ? left : LANES,
                       acc + ((uint64_t)g * rows + i) * LANES, y + first);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkvi_pool *pool = ((const struct pkvi_cpu_stream *)native_stream)->pool;
    const struct pkv_args_linear *linear = args;
    const uint32_t rows = linear->rows < UNIT_ROWS ? linear->rows : UNIT_ROWS;
    const struct pkvi_linear_limits limits = {
        .bytes = UNIT_BYTES * (uint64_t)rows,
        .rows = UNIT_ROWS,
        .groups = UNIT_SUMS / (rows + PKV_TILE_ROWS - 1),
        .threads = pkvi_pool_threads(pool),
        /* A thread may come late, so many; several rows are gathered anew in every unit, so few. */
        .units_per_thread = rows == 1 ? 8 : 4,
    };
    struct pkvi_linear_plan plan;
    pkvi_linear_plan(linear, &limits, &plan);
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
