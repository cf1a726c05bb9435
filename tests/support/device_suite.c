/* device_suite.c: see device_suite.h. Host memory is reached through mem_pin only, so that the
 * suite also fits devices whose memory the host cannot see. */
#include "tests/support/device_suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/check.h"
#include "runtime/device/device.h"
#include "tests/support/pkv_test.h"

static enum pkv_status launch_step(void *native_stream, const void *raw)
{
    const struct pkvt_step *args = raw;
    uint64_t *x = (uint64_t *)(uintptr_t)args->x;
    (void)native_stream;
    if (args->delay_us > 0) {
        usleep(args->delay_us);
    }
    if (args->fail) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "step refused");
    }
    *x = *x * 3 + args->value;
    return PKV_OK;
}

const struct pkv_kernel pkvt_cpu_step = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_step), .launch = launch_step};

/* One device with a few cells of its memory, reached through a pinned twin. */
struct bench {
    const struct pkvt_device_factory *factory;
    struct pkv_device *device;
    struct pkv_stream *compute, *load;
    uint64_t *host; /* [CELLS], pinned */
    pkv_addr pinned, cells;
};
#define CELLS 65536u
#define CELL_BYTES (CELLS * sizeof(uint64_t))

static void set_up(struct bench *b, const struct pkvt_device_factory *factory)
{
    *b = (struct bench){.factory = factory};
    assert_ok(factory->open(factory->context, NULL, &b->device));
    assert_ok(pkvi_stream_open(b->device, PKV_COMPUTE, NULL, &b->compute));
    assert_ok(pkvi_stream_open(b->device, PKV_LOAD, NULL, &b->load));
    b->host = calloc(CELLS, sizeof *b->host);
    assert_non_null(b->host);
    assert_ok(pkvi_mem_pin(b->device, b->host, CELL_BYTES, &b->pinned));
    assert_ok(pkvi_mem_alloc(b->device, PKV_MEM_DEVICE, CELL_BYTES, &b->cells));
}

static void tear_down(struct bench *b)
{
    pkvi_stream_close(b->compute);
    pkvi_stream_close(b->load);
    pkvi_mem_unpin(b->device, b->host);
    pkvi_mem_free(b->device, PKV_MEM_DEVICE, b->cells);
    b->factory->close(b->factory->context, b->device);
    free(b->host);
}

static enum pkv_status step(struct bench *b, struct pkv_stream *stream, uint32_t cell,
                            uint64_t value, uint32_t delay_us, uint32_t fail)
{
    struct pkvt_step args = {b->cells + cell * 8u, value, delay_us, fail};
    enum pkv_status status = pkvi_launch(stream, b->factory->step, &args);
    memset(&args, 0xee, sizeof args); /* they were copied at the call */
    return status;
}

/* All cells to the device, or back; waits. */
static void move_cells(struct bench *b, bool to_device)
{
    struct pkv_span span = {to_device ? b->cells : b->pinned, to_device ? b->pinned : b->cells,
                            CELL_BYTES};
    assert_ok(pkvi_copy_async(b->compute, &span, 1));
    assert_ok(pkvi_stream_sync(b->compute));
}

static void check_memory(const struct pkvt_device_factory *factory)
{
    struct bench b;
    pkv_addr addr[64], none = 7;
    set_up(&b, factory);
    for (uint32_t i = 0; i < 64; i++) {
        enum pkv_mem mem = (enum pkv_mem)(i % 3);
        assert_ok(pkvi_mem_alloc(b.device, mem, i < 60 ? 1 + i * i * 37 : 3000000 + i, &addr[i]));
        assert_int_equal(addr[i] % 64, 0);
    }
    for (uint32_t i = 0; i < 64; i++) {
        pkvi_mem_free(b.device, (enum pkv_mem)(i % 3), addr[i]);
    }
    assert_status(pkvi_mem_alloc(b.device, PKV_MEM_DEVICE, 0, &none), PKV_ERR_INVALID);
    for (uint64_t bytes = (uint64_t)1 << 50; bytes != 0; bytes <<= 6) {
        assert_status(pkvi_mem_alloc(b.device, PKV_MEM_DEVICE, bytes, &none), PKV_ERR_NO_MEMORY);
    }
    assert_status(pkvi_mem_alloc(b.device, PKV_MEM_HOST, UINT64_MAX, &none), PKV_ERR_NO_MEMORY);
    assert_int_equal(none, 7);
    struct pkv_device_info info;
    assert_ok(pkv_device_query(b.device, &info));
    assert_true(info.threads >= 1 && info.memory_free_bytes <= info.memory_total_bytes);
    tear_down(&b);
}

static void check_memory_limit(const struct pkvt_device_factory *factory)
{
    struct pkv_device_config config = pkv_device_config_default();
    struct pkv_device *device;
    pkv_addr first, second = 7;
    config.memory_bytes = 1 << 20;
    assert_ok(factory->open(factory->context, &config, &device));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 700000, &first));
    assert_status(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 400000, &second), PKV_ERR_NO_MEMORY);
    assert_non_null(strstr(pkv_error_text(), "400000"));
    assert_int_equal(second, 7);
    pkvi_mem_free(device, PKV_MEM_DEVICE, first);
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 400000, &second));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_PINNED, 4000000, &first)); /* not device memory */
    pkvi_mem_free(device, PKV_MEM_PINNED, first);
    pkvi_mem_free(device, PKV_MEM_DEVICE, second);
    factory->close(factory->context, device);
}

/* Random spans host-device, device-device, device-host against plain copies. Those of one call may
 * run in any order: each writes a place of its own. */
static void check_copies(const struct pkvt_device_factory *factory)
{
    enum { SPANS = 2500, PLACE_BYTES = CELL_BYTES / 2 / SPANS };
    struct bench b;
    struct pkvt_rng rng = {11};
    uint8_t *expected = malloc(CELL_BYTES);
    struct pkv_span *spans = malloc(SPANS * sizeof *spans);
    assert_true(expected && spans);
    set_up(&b, factory);
    for (uint32_t i = 0; i < CELLS; i++) {
        b.host[i] = pkvt_rng_u64(&rng);
    }
    memcpy(expected, b.host, CELL_BYTES);
    move_cells(&b, true);
    for (uint32_t i = 0; i < SPANS; i++) { /* from the first half to the second, on the device */
        uint32_t bytes = pkvt_rng_below(&rng, 90);
        uint32_t from = pkvt_rng_below(&rng, CELL_BYTES / 2 - 90);
        uint32_t to =
            (uint32_t)CELL_BYTES / 2 + i * PLACE_BYTES + pkvt_rng_below(&rng, PLACE_BYTES - 90);
        spans[i] = (struct pkv_span){b.cells + to, b.cells + from, bytes};
        memcpy(expected + to, expected + from, bytes);
    }
    assert_ok(pkvi_copy_async(b.compute, spans, SPANS));
    memset(spans, 0, SPANS * sizeof *spans); /* copied at the call */
    assert_ok(pkvi_copy_async(b.compute, spans, 0));
    assert_ok(pkvi_copy_async(b.compute, spans, 1)); /* no bytes, no address */
    assert_ok(pkvi_stream_sync(b.compute));
    memset(b.host, 0, CELL_BYTES);
    move_cells(&b, false);
    assert_memory_equal(b.host, expected, CELL_BYTES);
    spans[0].bytes = 8;
    assert_status(pkvi_copy_async(b.compute, spans, 1), PKV_ERR_INVALID);
    assert_status(pkvi_copy_async(b.compute, NULL, 1), PKV_ERR_INVALID);
    tear_down(&b);
    free(expected);
    free(spans);
}

/* More launches than any queue holds, in order. */
static void check_order(const struct pkvt_device_factory *factory)
{
    struct bench b;
    uint64_t expected = 0;
    set_up(&b, factory);
    move_cells(&b, true);
    for (uint32_t i = 0; i < 20000; i++) {
        assert_ok(step(&b, b.compute, 5, i, 0, 0));
        expected = expected * 3 + i;
    }
    assert_ok(pkvi_stream_sync(b.compute));
    move_cells(&b, false);
    assert_int_equal(b.host[5], expected);
    tear_down(&b);
}

/* Two streams take turns, held only by events. */
static void check_waits(const struct pkvt_device_factory *factory)
{
    struct bench b;
    struct pkv_event *event[2];
    uint64_t expected = 0;
    set_up(&b, factory);
    move_cells(&b, true);
    struct pkv_stream *streams[2] = {b.compute, b.load};
    assert_ok(pkvi_event_open(b.device, false, &event[0]));
    assert_ok(pkvi_event_open(b.device, false, &event[1]));
    assert_ok(pkvi_event_query(event[0])); /* never recorded: nothing to wait for */
    assert_ok(pkvi_event_sync(event[0]));
    assert_ok(pkvi_event_wait(b.compute, event[0]));
    for (uint32_t i = 0; i < 400; i++) {
        struct pkv_stream *stream = streams[i % 2];
        assert_ok(pkvi_event_wait(stream, event[(i + 1) % 2]));
        assert_ok(step(&b, stream, 0, i, i % 50 == 0 ? 300 : 0, 0));
        assert_ok(pkvi_event_record(event[i % 2], stream)); /* again and again, at once */
        expected = expected * 3 + i;
    }
    assert_ok(pkvi_event_sync(event[1]));
    assert_ok(pkvi_event_query(event[1]));
    assert_ok(pkvi_event_query(event[0]));
    move_cells(&b, false);
    assert_int_equal(b.host[0], expected);
    pkvi_event_close(event[0]);
    pkvi_event_close(event[1]);
    tear_down(&b);
}

static void check_event_life(const struct pkvt_device_factory *factory)
{
    struct bench b;
    struct pkv_event *early, *late, *timed[2];
    struct pkv_stream *store;
    enum pkv_status status;
    uint64_t ns = 0;
    set_up(&b, factory);
    assert_ok(pkvi_stream_open(b.device, PKV_STORE, NULL, &store));
    assert_ok(pkvi_event_open(b.device, true, &early));
    assert_ok(pkvi_event_open(b.device, false, &late));
    assert_ok(pkvi_event_open(b.device, true, &timed[0]));
    assert_ok(pkvi_event_open(b.device, true, &timed[1]));
    assert_status(pkvi_event_elapsed(timed[0], timed[1], &ns), PKV_ERR_STATE);
    assert_ok(pkvi_event_record(timed[0], store));
    assert_ok(step(&b, store, 0, 1, 5000, 0));
    assert_ok(pkvi_event_record(early, store));
    assert_ok(pkvi_event_record(timed[1], store));
    assert_ok(pkvi_event_record(late, store));
    pkvi_event_close(early); /* before it has passed */
    while ((status = pkvi_event_query(late)) == PKV_PENDING) {
        usleep(100);
    }
    assert_ok(status);
    assert_ok(pkvi_event_elapsed(timed[0], timed[1], &ns));
    assert_in_range(ns, 4500000, 60000000000);
    assert_status(pkvi_event_elapsed(timed[0], late, &ns), PKV_ERR_STATE);
    pkvi_stream_close(store); /* before its events */
    assert_ok(pkvi_event_query(late));
    assert_ok(pkvi_event_wait(b.compute, late));
    assert_ok(pkvi_stream_sync(b.compute));
    pkvi_event_close(late);
    pkvi_event_close(timed[0]);
    pkvi_event_close(timed[1]);
    tear_down(&b);
}

/* A stream that is closed runs to its end first. */
static void check_close(const struct pkvt_device_factory *factory)
{
    struct bench b;
    struct pkv_stream *store;
    set_up(&b, factory);
    move_cells(&b, true);
    for (uint32_t i = 0; i < 20; i++) {
        assert_ok(pkvi_stream_open(b.device, (enum pkv_stream_kind)(i % 4), NULL, &store));
        assert_ok(step(&b, store, i, 7, 100, 0));
        pkvi_stream_close(store);
    }
    move_cells(&b, false);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(b.host[i], 7);
    }
    tear_down(&b);
}

/* A failure stays with its stream and what is behind it; nothing else. */
static void check_failure(const struct pkvt_device_factory *factory)
{
    struct bench b;
    struct pkv_event *before, *after;
    struct pkv_stream *other;
    struct pkv_span span;
    set_up(&b, factory);
    move_cells(&b, true);
    span = (struct pkv_span){b.cells, b.pinned, 64};
    assert_ok(pkvi_stream_open(b.device, PKV_STORE, NULL, &other));
    assert_ok(pkvi_event_open(b.device, false, &before));
    assert_ok(pkvi_event_open(b.device, false, &after));
    assert_ok(step(&b, b.load, 0, 1, 0, 0));
    assert_ok(pkvi_event_record(before, b.load));
    /* A device may know of it at once, or when it comes to it */
    bool early = step(&b, b.load, 0, 1, 2000, 1) != PKV_OK;
    early = step(&b, b.load, 1, 1, 0, 0) != PKV_OK || early; /* skipped, or refused */
    if (!early && pkvi_event_record(after, b.load) == PKV_OK) {
        assert_ok(pkvi_event_wait(b.compute, after));
        assert_status(pkvi_event_sync(after), PKV_ERR_CORRUPT);
        assert_string_equal(pkv_error_text(), "step refused");
        assert_status(pkvi_event_query(after), PKV_ERR_CORRUPT);
        assert_status(pkvi_stream_sync(b.compute), PKV_ERR_CORRUPT); /* it waited for it */
    }
    assert_ok(pkvi_event_sync(before));
    assert_ok(pkvi_event_query(before));
    (void)pkvi_stream_sync(b.load);
    assert_status(step(&b, b.load, 1, 1, 0, 0), PKV_ERR_CORRUPT);
    assert_status(pkvi_copy_async(b.load, &span, 1), PKV_ERR_CORRUPT);
    assert_status(pkvi_event_record(before, b.load), PKV_ERR_CORRUPT);
    assert_status(pkvi_event_wait(b.load, before), PKV_ERR_CORRUPT);
    assert_status(pkvi_stream_sync(b.load), PKV_ERR_CORRUPT);
    assert_string_equal(pkv_error_text(), "step refused");
    span = (struct pkv_span){b.pinned, b.cells, 64};
    assert_ok(pkvi_copy_async(other, &span, 1));
    assert_ok(pkvi_stream_sync(other));
    assert_int_equal(b.host[0], 1);
    assert_int_equal(b.host[1], 0);
    pkvi_event_close(before);
    pkvi_event_close(after);
    pkvi_stream_close(other);
    tear_down(&b);
}

struct caller {
    struct bench *bench;
    pthread_t thread;
    uint32_t cell;
    enum pkv_status status;
};

static void *call_from_thread(void *argument)
{
    struct caller *caller = argument;
    struct bench *b = caller->bench;
    struct pkv_stream *stream = NULL;
    pkv_addr addr = 0;
    enum pkv_status status = pkvi_stream_open(b->device, PKV_STORE, NULL, &stream);
    for (uint32_t i = 0; i < 500 && status == PKV_OK; i++) {
        status = pkvi_mem_alloc(b->device, PKV_MEM_PINNED, 100 + i, &addr);
        pkvi_mem_free(b->device, PKV_MEM_PINNED, addr);
        if (status == PKV_OK) {
            status = step(b, stream, caller->cell, i, 0, 0);
        }
    }
    caller->status = status == PKV_OK ? pkvi_stream_sync(stream) : status;
    pkvi_stream_close(stream);
    return NULL;
}

static void check_threads(const struct pkvt_device_factory *factory)
{
    struct bench b;
    struct caller callers[3];
    uint64_t expected = 0;
    set_up(&b, factory);
    move_cells(&b, true);
    for (uint32_t i = 0; i < 3; i++) {
        callers[i] = (struct caller){.bench = &b, .cell = i * 8};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_from_thread, &callers[i]),
                         0);
    }
    for (uint32_t i = 0; i < 500; i++) {
        expected = expected * 3 + i;
    }
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].status, PKV_OK);
    }
    move_cells(&b, false);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(b.host[i * 8], expected);
    }
    tear_down(&b);
}

static void check_arguments(const struct pkvt_device_factory *factory)
{
    struct bench b, other;
    struct pkv_stream *stream = NULL;
    struct pkv_event *event;
    set_up(&b, factory);
    set_up(&other, factory);
    assert_status(pkvi_stream_open(b.device, (enum pkv_stream_kind)9, NULL, &stream),
                  PKV_ERR_INVALID);
    assert_status(pkvi_launch(b.compute, NULL, &b), PKV_ERR_INVALID);
    assert_status(pkvi_launch(b.compute, factory->step, NULL), PKV_ERR_INVALID);
    assert_ok(pkvi_event_open(other.device, false, &event));
    assert_status(pkvi_event_record(event, b.compute), PKV_ERR_INVALID);
    assert_status(pkvi_event_wait(b.compute, event), PKV_ERR_INVALID);
    assert_null(pkvi_device_kernel(b.device, 100000));
    pkvi_event_close(event);
    tear_down(&other);
    tear_down(&b);
}

void pkvt_device_suite(const struct pkvt_device_factory *factory)
{
    static const struct {
        const char *name;
        void (*run)(const struct pkvt_device_factory *factory);
    } checks[] = {
        {"memory", check_memory},   {"memory limit", check_memory_limit},
        {"copies", check_copies},   {"order", check_order},
        {"waits", check_waits},     {"event life", check_event_life},
        {"close", check_close},     {"failure", check_failure},
        {"threads", check_threads}, {"arguments", check_arguments},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        print_message("%s: %s\n", factory->name, checks[i].name);
        checks[i].run(factory);
    }
}
