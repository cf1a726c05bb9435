/* rows.h: how operations that treat rows one by one share them out over the pool. */
#ifndef PKV_ROWS_H
#define PKV_ROWS_H

#include "kernels/kernels.h"
#include "runtime/base/thread.h"

/* Floats that make a unit worth handing to another thread: some microseconds. */
#define PKV_UNIT_FLOATS 8192u

/* Arguments as a unit's context: units only read them. */
static inline void *pkvi_args_context(const void *args)
{
    union {
        const void *in;
        void *out;
    } context = {args};
    return context.out;
}

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

/* Runs fn for all rows; a unit's rows are pkvi_rows_of_unit() of the same floats_per_row. */
static inline enum pkv_status pkvi_rows_run(void *native_stream, pkvi_unit_fn fn, const void *args,
                                            uint32_t rows, uint32_t floats_per_row)
{
    const struct pkvi_cpu_stream *stream = native_stream;
    uint32_t per_unit = pkvi_rows_per_unit(floats_per_row);
    pkvi_pool_run(stream->pool, fn, pkvi_args_context(args), (rows + per_unit - 1) / per_unit);
    return PKV_OK;
}

#endif
