/*
 * The cuda device on a GPU: the conformance suite, accounting, a stream of the caller, waits, and
 * last an error that ends it. What needs a fake runtime is in tests/simt/test_device.c.
 */
#include "tests/support/device_suite.h"
#include "tests/support/pkv_test.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/dev_cuda.h"
#include "runtime/device/device.h"
#include "tests/gpu/card.h"

static enum pkv_status open_cuda(void *context, const struct pkv_device_config *config,
                                 struct pkv_device **device_out)
{
    (void)context;
    struct pkv_device_config small = config ? *config : pkv_device_config_default();
    if (small.memory_bytes == 0) { /* small workspaces */
        small.memory_bytes = (uint64_t)64 << 20;
    }
    return pkv_device_open("cuda", &small, device_out);
}

static void close_cuda(void *context, struct pkv_device *device)
{
    (void)context;
    pkv_device_close(device);
}

static struct pkv_device *open_whole(void)
{
    struct pkv_device *device = NULL;
    assert_ok(pkv_device_open("cuda", NULL, &device));
    return device;
}

static void test_card__suite__conforms(void **state)
{
    (void)state;
    const struct pkvt_device_factory factory = {"cuda", NULL, open_cuda, close_cuda,
                                                &pkvt_card_step};
    pkvt_device_suite(&factory);
}

static void test_card__memory__is_accounted_and_given_back(void **state)
{
    (void)state;
    struct pkv_device *device = open_whole();
    struct pkv_device_info before, after;
    pkv_addr addr, none = 7;
    assert_ok(pkv_device_query(device, &before));
    assert_string_equal(before.name, "cuda");
    assert_true(before.caps & PKV_CAP_READS_HOST);
    assert_true(before.memory_total_bytes >= before.memory_free_bytes);
    assert_true(before.host_free_bytes > 0 && before.threads > 0);
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, (uint64_t)64 << 20, &addr));
    assert_int_equal(addr % 256, 0);
    assert_ok(pkv_device_query(device, &after));
    assert_true(before.memory_free_bytes - after.memory_free_bytes >= (uint64_t)64 << 20);
    assert_status(
        pkvi_mem_alloc(device, PKV_MEM_DEVICE, before.memory_total_bytes + (1 << 30), &none),
        PKV_ERR_NO_MEMORY);
    assert_int_equal(none, 7);
    pkvi_mem_free(device, PKV_MEM_DEVICE, addr);
    assert_ok(pkv_device_query(device, &after));
    assert_true(after.memory_free_bytes + ((uint64_t)8 << 20) >= before.memory_free_bytes);
    pkv_device_close(device);
}

/* Pages may be pinned once; kernels write them at the host's own address. */
static void test_card__pinned_memory__is_the_kernels_too(void **state)
{
    (void)state;
    static _Alignas(4096) uint64_t memory[512];
    struct pkv_device *device = open_whole();
    struct pkv_stream *stream;
    pkv_addr addr = 0, none = 7;
    assert_ok(pkvi_stream_open(device, PKV_RECALL, NULL, &stream));
    assert_ok(pkvi_mem_pin(device, memory, sizeof memory, &addr));
    assert_int_equal(addr, (uintptr_t)memory);
    assert_status(pkvi_mem_pin(device, memory, sizeof memory, &none), PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "pinned already"));
    memory[3] = 5;
    const struct pkvt_step step = {.x = addr + 24, .value = 1};
    assert_ok(pkvi_launch(stream, &pkvt_card_step, &step));
    assert_ok(pkvi_stream_sync(stream));
    assert_int_equal(memory[3], 16);
    pkvi_stream_close(stream);
    pkvi_mem_unpin(device, memory);
    pkv_device_close(device);
}

static void test_card__stream_of_the_caller__is_used_and_left(void **state)
{
    (void)state;
    struct pkv_device *device = open_whole();
    struct pkv_stream *stream;
    cudaStream_t native;
    pkv_addr x, host;
    assert_int_equal(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), cudaSuccess);
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, native, &stream));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &x));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_PINNED, 8, &host));
    uint64_t *value = (uint64_t *)(uintptr_t)host;
    *value = 5;
    const struct pkv_span up = {x, host, 8}, down = {host, x, 8};
    const struct pkvt_step step = {.x = x, .value = 1};
    assert_ok(pkvi_copy_async(stream, &up, 1));
    assert_ok(pkvi_launch(stream, &pkvt_card_step, &step));
    assert_ok(pkvi_copy_async(stream, &down, 1));
    assert_int_equal(cudaStreamSynchronize(native), cudaSuccess);
    assert_int_equal(*value, 16);
    pkvi_stream_close(stream);
    assert_int_equal(cudaStreamQuery(native), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(native), cudaSuccess);
    pkv_device_close(device);
}

/* A batch of many spans and all that is enqueued behind a slow kernel returns before it ends. */
static void test_card__enqueuing__waits_for_nothing(void **state)
{
    (void)state;
    enum { SPANS = 1500 };
    struct pkv_device *device = open_whole();
    struct pkv_stream *stream;
    struct pkv_event *event;
    pkv_addr x, host;
    static struct pkv_span spans[SPANS];
    assert_ok(pkvi_stream_open(device, PKV_LOAD, NULL, &stream));
    assert_ok(pkvi_event_open(device, false, &event));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 1 << 16, &x));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_PINNED, 1 << 16, &host));
    for (uint32_t i = 0; i < SPANS; i++) {
        spans[i] = (struct pkv_span){x + i * 16, host + i * 16, i % 17};
    }
    memset((void *)(uintptr_t)host, 1, 1 << 16);
    const struct pkvt_delay delay = {200000};
    assert_ok(pkvi_launch(stream, &pkvt_card_delay, &delay));
    assert_ok(pkvi_copy_async(stream, spans, SPANS));
    assert_ok(pkvi_event_record(event, stream));
    assert_ok(pkvi_event_wait(stream, event));
    assert_int_equal(pkvi_event_query(event), PKV_PENDING);
    assert_ok(pkvi_event_sync(event));
    pkvi_event_close(event);
    pkvi_stream_close(stream);
    pkv_device_close(device);
}

static void test_card__compute_stream__has_a_workspace(void **state)
{
    (void)state;
    struct pkv_device *device = open_whole();
    struct pkv_stream *compute;
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &compute));
    const struct pkvi_cuda_stream *native = &cuda_stream(compute)->native;
    assert_int_equal(native->workspace_bytes, 64 << 20);
    assert_true(native->multiprocessors > 0);
    print_message("cuBLAS: %s\n", native->blas ? "yes" : "no: prompts are slow");
    pkvi_stream_close(compute);
    pkv_device_close(device);
}

#ifdef PKV_TEST_CARD
/* The context is gone after this: it comes last. */
static void test_card__wild_address__first_error_is_kept(void **state)
{
    (void)state;
    struct pkv_device *device = open_whole();
    struct pkv_stream *stream, *other;
    pkv_addr x;
    char first[CUDA_ERROR_TEXT_BYTES];
    assert_ok(pkvi_stream_open(device, PKV_LOAD, NULL, &stream));
    assert_ok(pkvi_stream_open(device, PKV_STORE, NULL, &other));
    const struct pkvt_step step = {.x = 8, .value = 1};
    assert_ok(pkvi_launch(stream, &pkvt_card_step, &step));
    assert_status(pkvi_stream_sync(stream), PKV_ERR_DEVICE_LOST);
    snprintf(first, sizeof first, "%s", pkv_error_text());
    assert_non_null(strstr(first, "illegal memory access"));
    assert_status(pkvi_stream_sync(other), PKV_ERR_DEVICE_LOST);
    assert_status(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &x), PKV_ERR_DEVICE_LOST);
    assert_string_equal(pkv_error_text(), first);
    pkvi_stream_close(stream);
    pkvi_stream_close(other);
    pkv_device_close(device);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card__suite__conforms),
        cmocka_unit_test(test_card__memory__is_accounted_and_given_back),
        cmocka_unit_test(test_card__pinned_memory__is_the_kernels_too),
        cmocka_unit_test(test_card__stream_of_the_caller__is_used_and_left),
        cmocka_unit_test(test_card__enqueuing__waits_for_nothing),
        cmocka_unit_test(test_card__compute_stream__has_a_workspace),
#ifdef PKV_TEST_CARD
        cmocka_unit_test(test_card__wild_address__first_error_is_kept),
#endif
    };
    struct pkv_device *device = NULL;
    if (pkv_device_open("cuda", NULL, &device) == PKV_ERR_UNSUPPORTED) {
        print_message("SKIP: %s\n", pkv_error_text());
        return 77;
    }
    pkv_device_close(device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
