/*
 * link_plan.c: owns the list of what is measured: one sweep over directions, kinds of memory,
 * nodes, patterns and sizes, and beside it sweeps over streams and compute, which differ from the
 * first in one thing each.
 */
#include "bench/link.h"

#include <stdlib.h>

#include "bench/stats.h"
#include "runtime/base/check.h"

#define SIZES_MOST 32u
#define MANY 256u
#define CALL_BYTES ((uint64_t)1 << 20)
#define SINGLE_MOST ((uint64_t)256 << 10)
#define SCATTERED_MOST ((uint64_t)1 << 20)
#define WAIT_BYTES ((uint64_t)1 << 20) /* longer than a stream spins */
#define LATENCY_MOST ((uint64_t)1 << 20)
#define BESIDE_LEAST ((uint64_t)64 << 10)
#define BESIDE_MOST ((uint64_t)64 << 20)

struct sizes {
    uint64_t bytes[SIZES_MOST];
    uint32_t count;
};

/* From the least to the most, by factors of 4, or 16 where it is to be quick. */
static struct sizes sizes_of(const struct link_options *options)
{
    struct sizes sizes = {.count = 0};
    uint64_t most = (uint64_t)options->max_bytes, factor = options->quick ? 16 : 4;
    for (uint64_t bytes = (uint64_t)options->min_bytes; bytes < most; bytes *= factor) {
        sizes.bytes[sizes.count++] = bytes;
    }
    sizes.bytes[sizes.count++] = most;
    return sizes;
}

static enum pkv_status add(struct link *link, struct link_cell cell)
{
    if (link->cell_count == link->cell_capacity) {
        uint32_t capacity = link->cell_capacity ? 2 * link->cell_capacity : 256;
        struct link_cell *cells = realloc(link->cells, capacity * sizeof *cells);
        if (!cells) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the list of %u cells", capacity);
        }
        link->cells = cells;
        link->cell_capacity = capacity;
    }
    link->cells[link->cell_count++] = cell;
    return PKV_OK;
}

/* What a choice with 0 = all selects. */
static bool selects(int choice, int word)
{
    return choice == 0 || choice == word + 1;
}

bool pkvi_link_uses(const struct link *link, enum link_memory memory, uint32_t node)
{
    return selects(link->options.memory, (int)memory) &&
           (node == 0 || memory == LINK_PINNED || link->options.memory != 0);
}

/* The kind of memory in which streams, compute and single calls are looked at. */
static enum link_memory main_memory(const struct link *link)
{
    return link->options.memory == 0 ? LINK_PINNED : (enum link_memory)(link->options.memory - 1);
}

static bool fits(const struct link *link, const struct link_cell *cell)
{
    uint64_t pieces = (uint64_t)cell->pieces * cell->streams;
    return pieces <= LINK_SPANS_MOST &&
           pkvi_link_places(cell->pattern, link->region_bytes, cell->piece_bytes) >= pieces;
}

/* Pieces of a call where their number is not what is looked at. */
static uint32_t pieces_of(const struct link_cell *cell)
{
    uint64_t pieces = CALL_BYTES / cell->piece_bytes;
    return cell->single || pieces < 1 ? 1 : pieces < MANY ? (uint32_t)pieces : MANY;
}

/* One cell for each size of the pattern that fits, with cell's other properties. */
static enum pkv_status add_sizes(struct link *link, const struct sizes *sizes,
                                 struct link_cell cell, uint64_t least, uint64_t most)
{
    for (uint32_t i = 0; i < sizes->count; i++) {
        cell.piece_bytes = sizes->bytes[i];
        if (cell.measure == LINK_COPY && cell.pattern != LINK_GATHER) {
            cell.pieces = pieces_of(&cell);
        }
        if (cell.piece_bytes >= least && cell.piece_bytes <= most && fits(link, &cell)) {
            PKV_TRY(add(link, cell));
        }
    }
    return PKV_OK;
}

/* All patterns; `few`: of gathers only the one with most pieces, and no strided ones. */
static enum pkv_status add_patterns(struct link *link, const struct sizes *sizes,
                                    struct link_cell cell, bool few, uint64_t least, uint64_t most)
{
    const struct pkvi_ints *pieces = &link->options.pieces;
    uint64_t scattered = most < SCATTERED_MOST ? most : SCATTERED_MOST;
    if (selects(link->options.pattern, LINK_CONTIGUOUS)) {
        cell.pattern = LINK_CONTIGUOUS;
        PKV_TRY(add_sizes(link, sizes, cell, least, most));
    }
    if (selects(link->options.pattern, LINK_STRIDED) && !few) {
        cell.pattern = LINK_STRIDED;
        PKV_TRY(add_sizes(link, sizes, cell, 0, scattered));
    }
    for (uint32_t i = 0; i < pieces->count && selects(link->options.pattern, LINK_GATHER); i++) {
        cell.pattern = LINK_GATHER;
        cell.pieces = (uint32_t)pieces->value[i];
        if (!few || i + 1 == pieces->count) {
            PKV_TRY(add_sizes(link, sizes, cell, 0, scattered));
        }
    }
    return PKV_OK;
}

static enum pkv_status add_copies(struct link *link, const struct sizes *sizes,
                                  enum link_direction direction)
{
    const struct pkvi_ints *streams = &link->options.streams;
    struct link_cell cell = {
        .measure = LINK_COPY, .direction = direction, .streams = (uint32_t)streams->value[0]};
    for (uint32_t node = 0; node < link->node_count; node++) {
        for (int memory = 0; memory < LINK_MEMORIES; memory++) {
            cell.node = node;
            cell.memory = (enum link_memory)memory;
            bool few = node > 0 || cell.memory != main_memory(link);
            if (pkvi_link_uses(link, cell.memory, node)) {
                PKV_TRY(add_patterns(link, sizes, cell, few, 0, UINT64_MAX));
            }
        }
    }
    cell.node = 0;
    cell.memory = main_memory(link);
    if (selects(link->options.pattern, LINK_CONTIGUOUS)) {
        cell.single = true;
        PKV_TRY(add_sizes(link, sizes, cell, 0, SINGLE_MOST));
        cell.single = false;
    }
    for (uint32_t i = 1; i < streams->count; i++) {
        cell.streams = (uint32_t)streams->value[i];
        PKV_TRY(add_patterns(link, sizes, cell, true, 4096, UINT64_MAX));
    }
    cell.streams = (uint32_t)streams->value[0];
    for (int compute = LINK_INT8; compute < LINK_COMPUTES; compute++) {
        cell.compute = (enum link_compute)compute;
        if (selects(link->options.compute, compute)) {
            PKV_TRY(add_patterns(link, sizes, cell, true, BESIDE_LEAST, BESIDE_MOST));
        }
    }
    return PKV_OK;
}

static enum pkv_status add_calls(struct link *link, const struct sizes *sizes)
{
    struct link_cell cell = {.measure = LINK_COPY_LATENCY,
                             .pattern = LINK_CONTIGUOUS,
                             .memory = main_memory(link),
                             .streams = 1,
                             .pieces = 1};
    for (int direction = LINK_LOAD; direction <= LINK_STORE; direction++) {
        cell.direction = (enum link_direction)direction;
        PKV_TRY(add_sizes(link, sizes, cell, 0, LATENCY_MOST));
    }
    cell.direction = LINK_LOAD;
    cell.measure = LINK_COPY_WAIT;
    cell.piece_bytes = sizes->bytes[sizes->count - 1];
    cell.piece_bytes = cell.piece_bytes < WAIT_BYTES ? cell.piece_bytes : WAIT_BYTES;
    PKV_TRY(add(link, cell));
    cell.measure = LINK_COPY_CALL;
    cell.piece_bytes = sizes->bytes[0];
    for (cell.pieces = 1; cell.pieces <= MANY; cell.pieces *= 16) {
        if (fits(link, &cell)) {
            PKV_TRY(add(link, cell));
        }
    }
    return PKV_OK;
}

static enum pkv_status add_kernels(struct link *link)
{
    for (int measure = LINK_LAUNCH; measure <= LINK_LOCAL_F32; measure++) {
        PKV_TRY(add(link, (struct link_cell){.measure = (enum link_measure)measure}));
    }
    for (uint32_t work = 0; work < LINK_WORKS; work++) {
        PKV_TRY(add(link, (struct link_cell){.measure = LINK_KERNEL, .work = work}));
    }
    return PKV_OK;
}

uint32_t pkvi_link_burst(const struct link_cell *cell)
{
    return cell->measure == LINK_COPY_LATENCY || cell->measure == LINK_COPY_CALL ||
                   cell->measure == LINK_LAUNCH_LATENCY || cell->measure == LINK_LAUNCH_CALL
               ? LINK_BURST
               : 1;
}

/* Up to six numbers a sample: both directions, the sum; the overlap and two speeds. */
static enum pkv_status make_room(struct link *link)
{
    uint64_t total = 0, repeats = LINK_LIGHT * (uint64_t)link->options.repeats;
    for (uint32_t i = 0; i < link->cell_count; i++) {
        total += 6 * repeats * pkvi_link_burst(&link->cells[i]);
    }
    double *at = link->numbers = calloc(total, sizeof *at);
    if (!at) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the samples of %u cells",
                        link->cell_count);
    }
    uint64_t state = (uint64_t)link->options.seed;
    for (uint32_t i = 0; i < link->cell_count; i++) {
        struct link_cell *cell = &link->cells[i];
        uint64_t count = repeats * pkvi_link_burst(cell);
        cell->samples = at;
        cell->load = cell->direction == LINK_BOTH ? at + count : NULL;
        cell->store = cell->direction == LINK_BOTH ? at + 2 * count : NULL;
        cell->overlap = cell->compute != LINK_ALONE ? at + 3 * count : NULL;
        cell->speeds[0] = cell->overlap ? at + 4 * count : NULL;
        cell->speeds[1] = cell->overlap ? at + 5 * count : NULL;
        at += 6 * count;
        cell->key = pkvi_random_next(&state);
        cell->at = cell->measure <= LINK_COPY_CALL && cell->piece_bytes > 0
                       ? pkvi_random_next(&state) % (link->region_bytes / cell->piece_bytes)
                       : 0;
    }
    return PKV_OK;
}

enum pkv_status pkvi_link_plan(struct link *link)
{
    const struct sizes sizes = sizes_of(&link->options);
    link->pairs = selects(link->options.direction, LINK_BOTH) ? 2 : 1;
    for (int direction = 0; direction < LINK_DIRECTIONS; direction++) {
        if (selects(link->options.direction, direction)) {
            PKV_TRY(add_copies(link, &sizes, (enum link_direction)direction));
        }
    }
    PKV_TRY(add_calls(link, &sizes));
    PKV_TRY(add_kernels(link));
    return make_room(link);
}
