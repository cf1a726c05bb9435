/* The cuda device over the fake runtime: the conformance suite in all orders, and what is its own:
 * accounting, refusals, errors that stay, nothing left behind. */
#include "tests/support/device_suite.h"
#include "tests/support/pkv_test.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "runtime/device/dev_cuda.h"
#include "runtime/device/device.h"
#include "tests/simt/cuda_device.h"

struct setting {
    enum simt_streams way;
    uint64_t seed;
    int32_t first;
};

static void use(struct setting setting)
{
    simt_set_streams(setting.way, setting.seed, setting.first, SIMT_STREAM_NONE);
}

static enum pkv_status open_cuda(void *context, const struct pkv_device_config *config,
                                 struct pkv_device **device_out)
{
    (void)context;
    struct pkv_device_config small = config ? *config : pkv_device_config_default();
    if (small.memory_bytes == 0) { /* small workspaces: each open fills them */
        small.memory_bytes = (uint64_t)64 << 20;
    }
    return pkv_device_open("cuda", &small, device_out);
}

static void close_cuda(void *context, struct pkv_device *device)
{
    (void)context;
    pkv_device_close(device);
}

static void assert_nothing_lives(void)
{
    const struct simt_live live = simt_count_live();
    assert_int_equal(live.device_blocks, 0);
    assert_int_equal(live.pinned_blocks, 0);
    assert_int_equal(live.streams, 0);
    assert_int_equal(live.events, 0);
}

static void run_suite(const char *name, struct setting setting)
{
    const struct pkvt_device_factory factory = {name, NULL, open_cuda, close_cuda, &pkvt_cuda_step};
    use(setting);
    pkvt_device_suite(&factory);
    assert_nothing_lives();
}

static void test_cuda__lazy__conforms(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_suite("cuda, lazy", (struct setting){SIMT_STREAMS_LAZY, seed, SIMT_STREAM_NONE});
    }
}

static void test_cuda__random_and_eager__conforms(void **state)
{
    (void)state;
    run_suite("cuda, random", (struct setting){SIMT_STREAMS_RANDOM, 1, SIMT_STREAM_NONE});
    run_suite("cuda, random", (struct setting){SIMT_STREAMS_RANDOM, 2, SIMT_STREAM_NONE});
    run_suite("cuda, eager", (struct setting){SIMT_STREAMS_EAGER, 0, SIMT_STREAM_NONE});
}

static void test_cuda__adversarial__conforms(void **state)
{
    (void)state;
    for (int32_t first = 0; first < 2; first++) {
        run_suite("cuda, adversarial", (struct setting){SIMT_STREAMS_ADVERSARIAL, 5, first});
    }
}

static void test_cuda__threads__conforms(void **state)
{
    (void)state;
    run_suite("cuda, threads", (struct setting){SIMT_STREAMS_THREADS, 0, SIMT_STREAM_NONE});
}

static void test_cuda__no_device__one_line(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    simt_set_no_device(cudaErrorInsufficientDriver);
    assert_status(pkv_device_open("cuda", NULL, &device), PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "no NVIDIA driver"));
    simt_set_no_device(cudaErrorNoDevice);
    assert_status(pkv_device_open("cuda", NULL, &device), PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "shows no GPU"));
    simt_set_no_device(0);
    assert_null(device);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* nothing is left for others to find */
}

static void test_cuda__memory__is_accounted(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_device_info before, after;
    struct pkv_stream *stream;
    pkv_addr addr, none = 7;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_ok(pkv_device_query(device, &before));
    assert_string_equal(before.name, "cuda");
    assert_true(before.caps & PKV_CAP_READS_HOST);
    assert_true(before.host_free_bytes > 0);
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &stream));
    assert_ok(pkv_device_query(device, &after)); /* its workspaces were thought of */
    assert_int_equal(after.memory_free_bytes, before.memory_free_bytes);
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 1000000, &addr));
    assert_int_equal(addr % 256, 0);
    assert_ok(pkv_device_query(device, &after));
    assert_in_range(before.memory_free_bytes - after.memory_free_bytes, 1000000, 1100000);
    assert_status(pkvi_mem_alloc(device, PKV_MEM_DEVICE, after.memory_free_bytes + 1, &none),
                  PKV_ERR_NO_MEMORY);
    char asked[32];
    (void)snprintf(asked, sizeof asked, "%llu", (unsigned long long)after.memory_free_bytes + 1);
    assert_non_null(strstr(pkv_error_text(), asked));
    assert_non_null(strstr(pkv_error_text(), "available"));
    assert_int_equal(none, 7);
    pkvi_stream_close(stream);
    pkv_device_close(device); /* frees what was left */
    assert_nothing_lives();
}

static void test_cuda__pin_twice__refused(void **state)
{
    (void)state;
    static uint64_t memory[512];
    struct pkv_device *device;
    pkv_addr addr = 0, none = 7;
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_ok(pkvi_mem_pin(device, memory, sizeof memory, &addr));
    assert_status(pkvi_mem_pin(device, memory, sizeof memory, &none), PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "pinned already"));
    pkvi_mem_unpin(device, memory);
    simt_fail_allocation(1);
    assert_status(pkvi_mem_pin(device, memory, sizeof memory, &none), PKV_ERR_NO_MEMORY);
    assert_non_null(strstr(pkv_error_text(), "4096 bytes"));
    assert_int_equal(none, 7);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    pkv_device_close(device);
    assert_nothing_lives();
}

/* Whichever allocation fails: what was made is taken back, and the text names the size. */
static void test_cuda__failing_allocations__are_told_and_undone(void **state)
{
    (void)state;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    bool passed = false;
    for (uint64_t n = 1; !passed; n++) {
        struct pkv_device *device;
        struct pkv_stream *stream = NULL;
        pkv_addr device_addr = 0, pinned_addr = 0;
        assert_in_range(n, 1, 20);
        assert_ok(pkv_device_open("cuda", NULL, &device));
        simt_fail_allocation(n);
        enum pkv_status status = pkvi_stream_open(device, PKV_COMPUTE, NULL, &stream);
        status =
            status != PKV_OK ? status : pkvi_mem_alloc(device, PKV_MEM_DEVICE, 5000, &device_addr);
        status =
            status != PKV_OK ? status : pkvi_mem_alloc(device, PKV_MEM_PINNED, 5000, &pinned_addr);
        passed = status == PKV_OK && n > 3;
        if (status != PKV_OK) {
            assert_int_equal(status, PKV_ERR_NO_MEMORY);
            assert_non_null(strstr(pkv_error_text(), "bytes"));
        }
        simt_fail_allocation(0);
        pkvi_mem_free(device, PKV_MEM_DEVICE, device_addr);
        pkvi_mem_free(device, PKV_MEM_PINNED, pinned_addr);
        pkvi_stream_close(stream);
        pkv_device_close(device);
        assert_nothing_lives();
    }
}

/* A kernel that goes astray ends the device; the first text stays. */
static void test_cuda__asynchronous_error__first_one_is_kept(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *stream, *other;
    struct pkv_event *event;
    pkv_addr x;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_ok(pkvi_stream_open(device, PKV_LOAD, NULL, &stream));
    assert_ok(pkvi_stream_open(device, PKV_STORE, NULL, &other));
    assert_ok(pkvi_event_open(device, false, &event));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &x));
    const struct pkvt_step step = {.x = x, .value = 1};
    simt_fail_command(1, cudaErrorIllegalAddress);
    assert_ok(pkvi_launch(stream, &pkvt_cuda_step, &step));
    assert_ok(pkvi_event_record(event, stream));
    assert_status(pkvi_event_sync(event), PKV_ERR_DEVICE_LOST);
    char first[512];
    (void)snprintf(first, sizeof first, "%s", pkv_error_text());
    assert_non_null(strstr(first, "illegal memory access"));
    assert_non_null(strstr(first, "cudaEventSynchronize"));
    assert_status(pkvi_stream_sync(other), PKV_ERR_DEVICE_LOST);
    assert_string_equal(pkv_error_text(), first);
    assert_status(pkvi_event_query(event), PKV_ERR_DEVICE_LOST);
    assert_status(pkvi_launch(other, &pkvt_cuda_step, &step), PKV_ERR_DEVICE_LOST);
    assert_status(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &x), PKV_ERR_DEVICE_LOST);
    assert_string_equal(pkv_error_text(), first);
    simt_fail_command(0, 0);
    pkvi_event_close(event);
    pkvi_stream_close(stream);
    pkvi_stream_close(other);
    pkv_device_close(device);
    assert_nothing_lives();
}

static void test_cuda__stream_of_the_caller__is_used_and_left(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *stream;
    cudaStream_t native;
    pkv_addr x, host;
    static uint64_t value;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_int_equal(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), cudaSuccess);
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, native, &stream));
    assert_ptr_equal(((struct cuda_stream *)(void *)stream)->native.stream, native);
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &x));
    assert_ok(pkvi_mem_pin(device, &value, sizeof value, &host));
    value = 5;
    const struct pkv_span up = {x, host, 8}, down = {host, x, 8};
    const struct pkvt_step step = {.x = x, .value = 1};
    assert_ok(pkvi_copy_async(stream, &up, 1));
    assert_ok(pkvi_launch(stream, &pkvt_cuda_step, &step));
    assert_ok(pkvi_copy_async(stream, &down, 1));
    assert_int_equal(cudaStreamSynchronize(native), cudaSuccess);
    assert_int_equal(value, 16);
    pkvi_stream_close(stream);
    assert_int_equal(simt_count_live().streams, 1);
    assert_int_equal(cudaStreamDestroy(native), cudaSuccess);
    pkvi_mem_unpin(device, &value);
    pkv_device_close(device);
    assert_nothing_lives();
}

/* What is enqueued never waits: only the calls that are there for it. */
static void test_cuda__enqueuing__waits_for_nothing(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *stream;
    struct pkv_event *event;
    pkv_addr x, host;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &stream));
    assert_ok(pkvi_event_open(device, false, &event));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 1 << 16, &x));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_PINNED, 1 << 16, &host));
    struct pkv_span spans[1500];
    for (uint32_t i = 0; i < 1500; i++) {
        spans[i] = (struct pkv_span){x + i * 16, host + i * 16, i % 17};
    }
    memset((void *)(uintptr_t)host, 1, 1 << 16);
    const uint64_t waits = pkvt_cuda_waits(), allocations = pkvt_cuda_allocations();
    const struct pkvt_step step = {.x = x, .value = 1};
    assert_ok(pkvi_copy_async(stream, spans, 1500));
    assert_ok(pkvi_launch(stream, &pkvt_cuda_step, &step));
    assert_ok(pkvi_event_record(event, stream));
    assert_ok(pkvi_event_wait(stream, event));
    assert_true(pkvi_event_query(event) >= 0);
    assert_int_equal(pkvt_cuda_waits(), waits);
    assert_int_equal(pkvt_cuda_allocations(), allocations);
    assert_ok(pkvi_event_sync(event));
    assert_int_equal(pkvt_cuda_waits(), waits + 1);
    pkvi_event_close(event);
    pkvi_stream_close(stream);
    pkv_device_close(device);
    assert_nothing_lives();
}

static void test_cuda__compute_stream__has_cublas_and_workspace(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *compute, *load;
    use((struct setting){SIMT_STREAMS_LAZY, 1, SIMT_STREAM_NONE});
    assert_ok(pkv_device_open("cuda", NULL, &device));
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &compute));
    assert_ok(pkvi_stream_open(device, PKV_LOAD, NULL, &load));
    const struct pkvi_cuda_stream *native = &((struct cuda_stream *)(void *)compute)->native;
    assert_non_null(native->blas);
    assert_non_null(native->blas->handle);
    assert_int_equal(native->workspace_bytes, 64 << 20);
    assert_true(native->multiprocessors > 0);
    native = &((struct cuda_stream *)(void *)load)->native;
    assert_null(native->blas);
    assert_int_equal(native->workspace_bytes, 0);
    pkvi_stream_close(compute);
    pkvi_stream_close(load);
    pkv_device_close(device);
    assert_nothing_lives();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda__lazy__conforms),
        cmocka_unit_test(test_cuda__random_and_eager__conforms),
        cmocka_unit_test(test_cuda__adversarial__conforms),
        cmocka_unit_test(test_cuda__threads__conforms),
        cmocka_unit_test(test_cuda__no_device__one_line),
        cmocka_unit_test(test_cuda__memory__is_accounted),
        cmocka_unit_test(test_cuda__pin_twice__refused),
        cmocka_unit_test(test_cuda__failing_allocations__are_told_and_undone),
        cmocka_unit_test(test_cuda__asynchronous_error__first_one_is_kept),
        cmocka_unit_test(test_cuda__stream_of_the_caller__is_used_and_left),
        cmocka_unit_test(test_cuda__enqueuing__waits_for_nothing),
        cmocka_unit_test(test_cuda__compute_stream__has_cublas_and_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
