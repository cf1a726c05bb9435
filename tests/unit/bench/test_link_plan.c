/* What the link command measures: the sweeps, on machines of one and of three nodes. */
#include "tests/support/pkv_test.h"

#include <stdlib.h>
#include <string.h>

#include "bench/link_place.c"
#include "bench/link_plan.c"
#include "bench/stats.c"

#define GIB ((int64_t)1 << 30)

static struct link plan(struct link_options options, uint32_t nodes)
{
    struct link link = {.node_count = nodes};
    const struct link_options all = {.min_bytes = 64,
                                     .max_bytes = GIB,
                                     .region_bytes = GIB,
                                     .repeats = 2,
                                     .seed = 1,
                                     .streams = {{1, 2, 4}, 3},
                                     .pieces = {{16, 256, 4096}, 3}};
    link.options = all;
    link.options.direction = options.direction;
    link.options.pattern = options.pattern;
    link.options.memory = options.memory;
    link.options.compute = options.compute;
    if (options.region_bytes > 0) {
        link.options.region_bytes = options.region_bytes;
        link.options.max_bytes = options.max_bytes;
        link.options.min_bytes = options.min_bytes;
    }
    if (options.streams.count > 0) {
        link.options.streams = options.streams;
        link.options.pieces = options.pieces;
    }
    link.region_bytes = (uint64_t)link.options.region_bytes;
    assert_ok(pkvi_link_plan(&link));
    return link;
}

static void end(struct link *link)
{
    free(link->cells);
    free(link->numbers);
}

/* What link_copy.c relies on. */
static void check(const struct link *link)
{
    for (uint32_t i = 0; i < link->cell_count; i++) {
        const struct link_cell *cell = &link->cells[i];
        assert_true(cell->samples && (cell->direction != LINK_BOTH || (cell->load && cell->store)));
        assert_true(cell->measure != LINK_COPY || cell->compute == LINK_ALONE || cell->overlap);
        if (cell->measure > LINK_COPY_CALL) {
            continue;
        }
        uint64_t pieces = (uint64_t)cell->pieces * cell->streams;
        assert_true(pieces >= 1 && pieces <= LINK_SPANS_MOST && cell->streams <= LINK_STREAMS_MOST);
        assert_true(pkvi_link_places(cell->pattern, link->region_bytes, cell->piece_bytes) >=
                    pieces);
        assert_true(cell->direction != LINK_BOTH || link->pairs == 2);
        assert_true(pkvi_link_uses(link, cell->memory, cell->node));
        for (uint32_t j = 0; j < i; j++) { /* none twice */
            struct link_cell one = *cell, two = link->cells[j];
            assert_true(one.measure != two.measure || one.direction != two.direction ||
                        one.pattern != two.pattern || one.memory != two.memory ||
                        one.compute != two.compute || one.node != two.node ||
                        one.streams != two.streams || one.pieces != two.pieces ||
                        one.single != two.single || one.piece_bytes != two.piece_bytes);
        }
    }
}

static uint32_t count(const struct link *link, int memory, uint32_t node, int pattern)
{
    uint32_t cells = 0;
    for (uint32_t i = 0; i < link->cell_count; i++) {
        const struct link_cell *cell = &link->cells[i];
        cells += cell->measure == LINK_COPY && (int)cell->memory == memory && cell->node == node &&
                 (int)cell->pattern == pattern && cell->compute == LINK_ALONE && !cell->single &&
                 cell->streams == (uint32_t)link->options.streams.value[0];
    }
    return cells;
}

static void test_plan__all__sweeps(void **state)
{
    (void)state;
    struct link link = plan((struct link_options){0}, 1);
    check(&link);
    /* 13 sizes to 1 GiB, 8 to 1 MiB, three directions */
    assert_int_equal(count(&link, LINK_PINNED, 0, LINK_CONTIGUOUS), 3 * 13);
    assert_int_equal(count(&link, LINK_PINNED, 0, LINK_STRIDED), 3 * 8);
    assert_int_equal(count(&link, LINK_PINNED, 0, LINK_GATHER), 3 * (8 + 8 + 7));
    assert_int_equal(count(&link, LINK_HUGE, 0, LINK_CONTIGUOUS), 3 * 13);
    assert_int_equal(count(&link, LINK_PAGEABLE, 0, LINK_GATHER), 3 * 7);
    assert_int_equal(count(&link, LINK_PAGEABLE, 0, LINK_STRIDED), 0);
    assert_int_equal(link.cells[link.cell_count - 1].measure, LINK_KERNEL);
    end(&link);
}

static void test_plan__three_nodes__pinned_memory_of_each(void **state)
{
    (void)state;
    struct link link = plan((struct link_options){0}, 3);
    check(&link);
    for (uint32_t node = 1; node < 3; node++) {
        assert_int_equal(count(&link, LINK_PINNED, node, LINK_CONTIGUOUS), 3 * 13);
        assert_int_equal(count(&link, LINK_PINNED, node, LINK_GATHER), 3 * 7);
        assert_int_equal(count(&link, LINK_PAGEABLE, node, LINK_CONTIGUOUS), 0);
        assert_int_equal(count(&link, LINK_HUGE, node, LINK_CONTIGUOUS), 0);
    }
    end(&link);
    link = plan((struct link_options){.memory = 1 + LINK_HUGE, .direction = 1}, 3);
    check(&link);
    assert_int_equal(link.pairs, 1);
    assert_int_equal(count(&link, LINK_HUGE, 2, LINK_CONTIGUOUS), 13);
    assert_int_equal(count(&link, LINK_PINNED, 0, LINK_CONTIGUOUS), 0);
    end(&link);
}

static void test_plan__any_options__cells_that_can_run(void **state)
{
    (void)state;
    struct pkvt_rng rng = {3};
    for (int i = 0; i < 60; i++) {
        struct link_options o = {.direction = (int)pkvt_rng_below(&rng, 4),
                                 .pattern = (int)pkvt_rng_below(&rng, 4),
                                 .memory = (int)pkvt_rng_below(&rng, 4),
                                 .compute = (int)pkvt_rng_below(&rng, 4)};
        o.region_bytes = 1 + (int64_t)pkvt_rng_below(&rng, 1u << (1 + pkvt_rng_below(&rng, 28)));
        o.max_bytes = 1 + (int64_t)pkvt_rng_below(&rng, (uint32_t)o.region_bytes);
        o.min_bytes = 1 + (int64_t)pkvt_rng_below(&rng, (uint32_t)o.max_bytes);
        o.streams = (struct pkvi_ints){{1 + pkvt_rng_below(&rng, 16), 17}, 1};
        o.pieces = (struct pkvi_ints){{1 + pkvt_rng_below(&rng, LINK_PIECES_MOST)}, 1};
        struct link link = plan(o, 1 + pkvt_rng_below(&rng, 3));
        check(&link);
        end(&link);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan__all__sweeps),
        cmocka_unit_test(test_plan__three_nodes__pinned_memory_of_each),
        cmocka_unit_test(test_plan__any_options__cells_that_can_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
