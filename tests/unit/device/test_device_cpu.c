/* The cpu device: the conformance suite in all its schedules, and what is its own. */
#include "tests/support/device_suite.h"
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pivotkv/log.h"
#include "runtime/base/clock.h"
#include "runtime/base/thread.h"
#include "runtime/device/device.h"

struct setting {
    enum pkv_schedule schedule;
    uint32_t first;
    uint64_t seed;
};

static enum pkv_status open_cpu(void *context, const struct pkv_device_config *config,
                                struct pkv_device **device_out)
{
    const struct setting *setting = context;
    struct pkv_device_config used = config ? *config : pkv_device_config_default();
    used.schedule = setting->schedule;
    used.schedule_first = setting->first;
    used.schedule_seed = setting->seed;
    return pkv_device_open("cpu", &used, device_out);
}

static void close_cpu(void *context, struct pkv_device *device)
{
    (void)context;
    pkv_device_close(device);
}

static void run_suite(const char *name, struct setting setting)
{
    struct pkvt_device_factory factory = {name, &setting, open_cpu, close_cpu, &pkvt_cpu_step};
    pkvt_device_suite(&factory);
}

static void test_cpu__workers__conforms(void **state)
{
    (void)state;
    run_suite("cpu", (struct setting){PKV_SCHEDULE_WORKERS, 0, 0});
}

static void test_cpu__lazy_and_random__conforms(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_suite("cpu, lazy", (struct setting){PKV_SCHEDULE_LAZY, 0, seed});
        run_suite("cpu, random", (struct setting){PKV_SCHEDULE_RANDOM, 0, seed});
    }
}

static void test_cpu__adversarial__conforms(void **state)
{
    (void)state;
    for (uint32_t first = PKV_COMPUTE; first <= PKV_STORE; first++) {
        run_suite("cpu, adversarial", (struct setting){PKV_SCHEDULE_ADVERSARIAL, first, 5});
    }
}

/* Bytes over the emulated link take their time; no upper bound: the machine may be busy. */
static void test_cpu__link_throttle__charges_bytes_and_spans(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    struct pkv_device *device;
    struct pkv_stream *stream;
    pkv_addr a, b, host;
    config.link_gbps = 1;
    config.link_latency_us = 200;
    assert_ok(pkv_device_open("cpu", &config, &device));
    assert_ok(pkvi_stream_open(device, PKV_LOAD, NULL, &stream));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 1 << 20, &a));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 1 << 20, &b));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_PINNED, 1 << 20, &host));
    memset((void *)(uintptr_t)host, 1, 1 << 20);
    memset((void *)(uintptr_t)a, 1, 1 << 20);
    memset((void *)(uintptr_t)b, 1, 1 << 20);

    struct pkv_span spans[40], inside = {b, a, 1 << 20};
    for (uint32_t i = 0; i < 40; i++) { /* 40 x 10 us of bytes, 40 x 200 us of latency: 8.4 ms */
        spans[i] = (struct pkv_span){a + i * 10000, host + i * 10000, 10000};
    }
    uint64_t begin_ns = pkvi_clock_ns();
    for (uint32_t i = 0; i < 40; i++) {
        assert_ok(pkvi_copy_async(stream, &spans[i], 1));
    }
    assert_ok(pkvi_stream_sync(stream));
    assert_in_range(pkvi_clock_ns() - begin_ns, 8390000, 60000000000);

    begin_ns = pkvi_clock_ns();
    assert_ok(pkvi_copy_async(stream, &inside, 1)); /* 1 ms, were it on the link */
    assert_ok(pkvi_stream_sync(stream));
    uint64_t inside_ns = pkvi_clock_ns() - begin_ns;
    struct pkv_span out = {host, a, 1 << 20};
    begin_ns = pkvi_clock_ns();
    assert_ok(pkvi_copy_async(stream, &out, 1));
    assert_ok(pkvi_stream_sync(stream));
    assert_in_range(pkvi_clock_ns() - begin_ns, 1248000, 60000000000);
    print_message("1 MiB within the device: %llu us\n", (unsigned long long)inside_ns / 1000);

    pkvi_stream_close(stream);
    pkvi_mem_free(device, PKV_MEM_DEVICE, a);
    pkvi_mem_free(device, PKV_MEM_DEVICE, b);
    pkvi_mem_free(device, PKV_MEM_PINNED, host);
    pkv_device_close(device);
}

static void cost_of_reading(const void *args, struct pkv_cost *cost_out)
{
    (void)args;
    *cost_out = (struct pkv_cost){.load_bytes = 2000000, .store_bytes = 1000000};
}

/* A launch that reads host memory pays one latency and the bytes of the busier direction. */
static void test_cpu__link_throttle__charges_a_launch_by_its_cost(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    struct pkv_kernel kernel = pkvt_cpu_step;
    struct pkv_device *device;
    struct pkv_stream *stream;
    pkv_addr cell;
    kernel.cost = cost_of_reading;
    config.link_gbps = 1;
    config.link_latency_us = 1000;
    assert_ok(pkv_device_open("cpu", &config, &device));
    assert_ok(pkvi_stream_open(device, PKV_RECALL, NULL, &stream));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &cell));
    memset((void *)(uintptr_t)cell, 0, 8);
    struct pkvt_step step = {.x = cell, .value = 1};
    uint64_t begin_ns = pkvi_clock_ns();
    assert_ok(pkvi_launch(stream, &kernel, &step));
    assert_ok(pkvi_launch(stream, &kernel, &step));
    assert_ok(pkvi_stream_sync(stream));
    assert_in_range(pkvi_clock_ns() - begin_ns, 5990000, 60000000000);
    pkvi_stream_close(stream);
    pkvi_mem_free(device, PKV_MEM_DEVICE, cell);
    pkv_device_close(device);
}

static void test_cpu__large_allocation__starts_on_a_huge_page_and_is_zero(void **state)
{
    (void)state;
    struct pkv_device *device;
    pkv_addr addr;
    const uint64_t bytes = (uint64_t)5 << 20;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, bytes, &addr));
    assert_int_equal(addr % ((uint64_t)2 << 20), 0);
    const uint8_t *memory = (const uint8_t *)(uintptr_t)addr;
    assert_int_equal(memory[0] | memory[bytes / 2] | memory[bytes - 1], 0);
    pkvi_mem_free(device, PKV_MEM_DEVICE, addr);
    pkv_device_close(device);
}

static void test_cpu__nothing_to_do__uses_no_cpu(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *streams[4];
    struct timespec before, after;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    for (uint32_t kind = 0; kind < 4; kind++) {
        assert_ok(pkvi_stream_open(device, (enum pkv_stream_kind)kind, NULL, &streams[kind]));
        assert_ok(pkvi_stream_sync(streams[kind]));
    }
    usleep(20000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    assert_in_range(used_ns, 0, 5000000);
    for (uint32_t kind = 0; kind < 4; kind++) {
        pkvi_stream_close(streams[kind]);
    }
    pkv_device_close(device);
}

static void test_cpu__more_threads_than_cpus__reduced(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    struct pkv_device_info info;
    struct pkv_device *device;
    config.threads = 1;
    assert_ok(pkv_device_open("cpu", &config, &device));
    assert_ok(pkv_device_query(device, &info));
    assert_int_equal(info.threads, 1);
    assert_string_equal(info.name, "cpu");
    pkv_device_close(device);
    config.threads = 1024;
    assert_ok(pkv_device_open("cpu", &config, &device));
    assert_ok(pkv_device_query(device, &info));
    assert_int_equal(info.threads, pkvi_threads_available());
    pkv_device_close(device);
}

static void hear(void *context, enum pkv_log_level level, const char *line)
{
    (void)level;
    snprintf(context, 256, "%s", line);
}

static void test_cpu__queue_full__host_waits_and_it_is_logged(void **state)
{
    (void)state;
    struct pkv_device *device;
    struct pkv_stream *stream;
    pkv_addr cell;
    char heard[256] = "";
    uint64_t expected = 0;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    assert_ok(pkvi_stream_open(device, PKV_STORE, NULL, &stream));
    assert_ok(pkvi_mem_alloc(device, PKV_MEM_DEVICE, 8, &cell));
    memset((void *)(uintptr_t)cell, 0, 8);
    for (uint32_t i = 0; i < 20000; i++) {
        struct pkvt_step step = {cell, i, i == 0 ? 400000 : 0, 0};
        assert_ok(pkvi_launch(stream, &pkvt_cpu_step, &step));
        expected = expected * 3 + i;
    }
    pkv_log_set(PKV_LOG_INFO, false, hear, heard);
    pkvi_stream_close(stream);
    pkv_log_set(PKV_LOG_WARN, false, NULL, NULL);
    assert_non_null(strstr(heard, "device: a full queue"));
    assert_int_equal(*(uint64_t *)(uintptr_t)cell, expected);
    pkvi_mem_free(device, PKV_MEM_DEVICE, cell);
    pkv_device_close(device);
}

static void test_open__bad_config__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_device_config config = pkv_device_config_default();
    assert_status(pkv_device_open("warp", NULL, &device), PKV_ERR_UNSUPPORTED);
    assert_status(pkv_device_open(NULL, NULL, &device), PKV_ERR_INVALID);
    config.threads = 100000;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_RANGE);
    config = pkv_device_config_default();
    config.link_gbps = (double)NAN;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_RANGE);
    config = pkv_device_config_default();
    config.link_latency_us = -1;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_RANGE);
    config = pkv_device_config_default();
    config.struct_bytes = 0;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_INVALID);
    config = pkv_device_config_default();
    config.cpu = (enum pkv_cpu)99;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_INVALID);
    config = pkv_device_config_default();
    config.schedule = (enum pkv_schedule)9;
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_INVALID);
    assert_null(device);
}

static void test_open__foreign_instruction_set__unsupported(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_device_config config = pkv_device_config_default();
#if defined(__x86_64__)
    config.cpu = PKV_CPU_NEON;
#else
    config.cpu = PKV_CPU_AVX2;
#endif
    assert_status(pkv_device_open("cpu", &config, &device), PKV_ERR_UNSUPPORTED);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu__workers__conforms),
        cmocka_unit_test(test_cpu__lazy_and_random__conforms),
        cmocka_unit_test(test_cpu__adversarial__conforms),
        cmocka_unit_test(test_cpu__link_throttle__charges_bytes_and_spans),
        cmocka_unit_test(test_cpu__link_throttle__charges_a_launch_by_its_cost),
        cmocka_unit_test(test_cpu__large_allocation__starts_on_a_huge_page_and_is_zero),
        cmocka_unit_test(test_cpu__nothing_to_do__uses_no_cpu),
        cmocka_unit_test(test_cpu__more_threads_than_cpus__reduced),
        cmocka_unit_test(test_cpu__queue_full__host_waits_and_it_is_logged),
        cmocka_unit_test(test_open__bad_config__refused),
        cmocka_unit_test(test_open__foreign_instruction_set__unsupported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
