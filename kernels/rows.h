/* rows.h: how operations that treat rows one by one share them out over the pool. */
#ifndef PKV_ROWS_H
#define PKV_ROWS_H

#include "kernels/kernels.h"
#include "runtime/base/thread.h"

/* Floats that make a unit worth handing to another thread: some microseconds. */
#define PKV_UNIT_FLOATS 8192u

struct pkvi_rows {
    uint32_t begin, end;
};

static inline uint32_t pkvi_rows_per_unit(uint32_t floats_per_row)
{
    return floats_per_row >= PKV_UNIT_FLOATS ? 1 : PKV_UNIT_FLOATS / (floats_per_row + 1);
}

static inline struct pkvi_rows pkvi_rows_of_unit(uint32_t unit, uint32_t floats_per_row,
                                                 uint32_t rows)
{
    uint32_t per_unit = pkvi_rows_per_unit(floats_per_row), begin = unit * per_unit;
    return (struct pkvi_rows){begin, rows - begin < per_unit ? rows : begin + per_unit};
}

/* One row of an operation: its argument struct, and the row's number. */
typedef void (*pkvi_row_fn)(const void *args, uint32_t row);

struct pkvi_row_walk {
    pkvi_row_fn fn;
    const void *args;
    uint32_t rows, floats_per_row;
};

static inline void pkvi_row_walk_unit(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkvi_row_walk *walk = context;
    const struct pkvi_rows rows = pkvi_rows_of_unit(unit, walk->floats_per_row, walk->rows);
    for (uint32_t row = rows.begin; row < rows.end; row++) {
        walk->fn(walk->args, row);
    }
}

/* Runs fn once for each row; floats_per_row tells how many rows are worth a unit. */
static inline enum pkv_status pkvi_rows_run(void *native_stream, pkvi_row_fn fn, const void *args,
                                            uint32_t rows, uint32_t floats_per_row)
{
    struct pkvi_row_walk walk = {fn, args, rows, floats_per_row};
    uint32_t per_unit = pkvi_rows_per_unit(floats_per_row);
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, pkvi_row_walk_unit, &walk,
                  (rows + per_unit - 1) / per_unit);
    return PKV_OK;
}

/* Floats of a row of ROPE. */
static inline uint32_t pkvi_rope_floats(const struct pkv_args_rope *args)
{
    return (args->heads + args->kv_heads) * args->head_dim;
}

#endif
