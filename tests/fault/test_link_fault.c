/*
 * The link command on a device whose n-th call fails, at once or on its stream: the failure comes
 * back, nothing leaks, everything closes.
 */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "bench/stats.c"
#include "runtime/cli/say.c"
#include "runtime/device/dev_fault.h"

#include "bench/link_copy.c"
#include "bench/link_memory.c"
#include "bench/link_place.c"
#include "bench/link_plan.c"
#define time_calls time_launch_calls
#include "bench/link_compute.c"
#undef time_calls
#undef COLS
#define take take_work
#define lay_out lay_out_works
#define layout works_layout
#include "bench/link_kernels.c"
#undef take
#undef lay_out
#undef layout

static const struct link_options small = {.min_bytes = 64,
                                          .max_bytes = 4096,
                                          .region_bytes = 65536,
                                          .repeats = 1,
                                          .seed = 1,
                                          .quick = true,
                                          .memory = 1 + LINK_PINNED,
                                          .compute = 1 + LINK_READ,
                                          .direction = 1 + LINK_BOTH,
                                          .streams = {{1, 2}, 2},
                                          .pieces = {{4}, 1}};

/* All that link.c does between opening and reporting. */
static enum pkv_status work(struct link *link)
{
    PKV_TRY(pkvi_topo_open(NULL, &link->topo));
    link->nodes[0] = link->topo->nodes[0].number;
    link->node_count = 1;
    PKV_TRY(pkv_device_query(link->device, &link->info));
    PKV_TRY(pkvi_link_plan(link));
    PKV_TRY(pkvi_link_memory_open(link));
    PKV_TRY(pkvi_link_copy_open(link));
    for (uint32_t i = 0; i < link->cell_count; i++) {
        struct link_cell *cell = &link->cells[i];
        if (cell->measure <= LINK_COPY_CALL) {
            PKV_TRY(pkvi_link_copy_first(link, cell));
            PKV_TRY(pkvi_link_copy_visit(link, cell));
        } else {
            PKV_TRY(pkvi_link_compute_first(link, cell));
            PKV_TRY(pkvi_link_compute_visit(link, cell));
        }
    }
    return PKV_OK;
}

/* Run it once; the number of calls that the device saw. */
static uint64_t run_link(const struct pkvi_fault_config *faults, enum pkv_status *status_out)
{
    struct pkv_device *below;
    struct link link = {.options = small, .region_bytes = 65536, .target_ns = 1};
    assert_ok(pkv_device_open("cpu", NULL, &below));
    assert_ok(pkvi_fault_open(below, faults, &link.device));
    *status_out = work(&link);
    uint64_t calls = pkvi_fault_count(link.device, PKVI_FAULT_CALLS);
    pkvi_link_copy_close(&link);
    pkvi_link_memory_close(&link);
    pkvi_topo_close(link.topo);
    pkv_device_close(link.device);
    pkv_device_close(below);
    free(link.cells);
    free(link.numbers);
    return calls;
}

static void test_link__any_call_fails__status(void **state)
{
    (void)state;
    enum pkv_status status;
    struct pkvi_fault_config faults = {.fail_call = 0};
    uint64_t calls = run_link(&faults, &status);
    assert_int_equal(status, PKV_OK);
    assert_true(calls > 200);
    uint64_t failed = 0, step = calls / (PKVT_SANITIZED ? 40 : 120);
    for (uint64_t n = 1; n <= calls; n += n < 40 ? 1 : step) {
        faults =
            (struct pkvi_fault_config){.fail_call = n, .async = n % 2 == 0, .lasting = n % 3 == 0};
        uint64_t seen = run_link(&faults, &status);
        if (seen >= n) {
            assert_int_equal(status, PKV_ERR_DEVICE_LOST);
            failed++;
        } else {
            assert_int_equal(status, PKV_OK); /* it needed fewer calls this time */
        }
    }
    assert_true(failed > (PKVT_SANITIZED ? 40 : 100));
}

static void test_link__copy_that_brings_other_bytes__found(void **state)
{
    (void)state;
    struct link link = {.options = small, .region_bytes = 65536, .target_ns = 1};
    struct pkv_device *device;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    link.device = device;
    assert_ok(work(&link));
    for (uint32_t i = 0; i < link.cell_count; i++) {
        struct link_cell *cell = &link.cells[i];
        if (cell->measure == LINK_COPY && cell->direction == LINK_BOTH) {
            /* The last piece goes elsewhere than the check believes. */
            struct times times;
            uint64_t bytes = cell->piece_bytes;
            lay_spans(&link, cell, 1);
            struct pkv_span *last = &link.lanes[LINK_LOAD].spans[cell->pieces - 1];
            assert_ok(stamp(&link, cell, LINK_LOAD, cell->pieces - 1, last, bytes));
            last->bytes -= 1;
            assert_ok(run(&link, cell, 1, 0, &times));
            assert_status(compare(&link, cell, LINK_LOAD, cell->pieces - 1, last, bytes),
                          PKV_ERR_CORRUPT);
            last->bytes += 1;
            assert_ok(run(&link, cell, 1, 0, &times));
            assert_ok(compare(&link, cell, LINK_LOAD, cell->pieces - 1, last, bytes));
        }
    }
    pkvi_link_copy_close(&link);
    pkvi_link_memory_close(&link);
    pkvi_topo_close(link.topo);
    pkv_device_close(device);
    free(link.cells);
    free(link.numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__any_call_fails__status),
        cmocka_unit_test(test_link__copy_that_brings_other_bytes__found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
