/* The sim device: virtual times of schedules that were computed by hand, what is copied and what is
 * not, and what it refuses. */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/addr.h"
#include "kernels/kernels.h"
#include "runtime/device/dev_fault.h"
#include "runtime/device/dev_sim.h"

struct job {
    double flops;
    uint64_t bytes;
};

static void job_cost(const void *args, struct pkv_cost *cost_out)
{
    const struct job *job = args;
    *cost_out = (struct pkv_cost){.flops = job->flops, .local_bytes = job->bytes};
}

static const struct pkv_kernel job_kernel = {
    .op = PKV_OP_NORM, .variant = "job", .args_bytes = sizeof(struct job), .cost = job_cost};

/* Calls cost nothing; 10 bytes and 2 operations a nanosecond; copies at 4, of 1 KiB at 1. */
static struct pkvi_profile plain_profile(void)
{
    struct pkvi_profile p = {.machine = "made up",
                             .device = "gpu",
                             .variant = "none",
                             .threads = 3,
                             .read_gbps = 10,
                             .int8_gops = 8,
                             .f32_gops = 2};
    for (uint32_t d = 0; d < PKVI_PROFILE_DIRECTIONS; d++) {
        struct pkvi_profile_curve *curves[] = {&p.link[d].contiguous, &p.link[d].gather};
        for (uint32_t c = 0; c < 2; c++) {
            const double half = c == 0 ? 1 : 0.5, both = d == PKVI_PROFILE_BOTH ? 1.5 : 1;
            curves[c]->count = 2;
            curves[c]->point[0] = (struct pkvi_profile_point){1024, 1 * half * both};
            curves[c]->point[1] = (struct pkvi_profile_point){16384, 4 * half * both};
        }
    }
    return p;
}

struct fixture {
    struct pkv_device *device;
    struct pkv_stream *compute, *load, *store;
    struct pkv_event *begin, *end, *other;
    pkv_addr memory; /* of the device, 1 MiB */
    uint8_t *host;   /* 1 MiB */
};

static void open_with(struct fixture *f, const struct pkvi_profile *profile,
                      const struct pkv_device_config *config)
{
    memset(f, 0, sizeof *f);
    assert_ok(pkvi_sim_open(profile, config, &f->device));
    assert_ok(pkvi_stream_open(f->device, PKV_COMPUTE, NULL, &f->compute));
    assert_ok(pkvi_stream_open(f->device, PKV_LOAD, NULL, &f->load));
    assert_ok(pkvi_stream_open(f->device, PKV_STORE, NULL, &f->store));
    assert_ok(pkvi_event_open(f->device, true, &f->begin));
    assert_ok(pkvi_event_open(f->device, true, &f->end));
    assert_ok(pkvi_event_open(f->device, true, &f->other));
    assert_ok(pkvi_mem_alloc(f->device, PKV_MEM_DEVICE, 1 << 20, &f->memory));
    f->host = calloc(1, 1 << 20);
    assert_non_null(f->host);
}

static void open_plain(struct fixture *f)
{
    const struct pkvi_profile profile = plain_profile();
    const struct pkv_device_config config = pkv_device_config_default();
    open_with(f, &profile, &config);
}

static void close_all(struct fixture *f)
{
    pkvi_stream_close(f->store);
    pkvi_stream_close(f->load);
    pkvi_stream_close(f->compute);
    pkvi_event_close(f->begin);
    pkvi_event_close(f->end);
    pkvi_event_close(f->other);
    pkvi_mem_free(f->device, PKV_MEM_DEVICE, f->memory);
    pkv_device_close(f->device);
    free(f->host);
}

static void launch(struct pkv_stream *stream, double flops, uint64_t bytes)
{
    const struct job job = {flops, bytes};
    assert_ok(pkvi_launch(stream, &job_kernel, &job));
}

static void copy_in(struct fixture *f, struct pkv_stream *stream, uint64_t bytes)
{
    const struct pkv_span span = {f->memory, pkvi_addr(f->host), bytes};
    assert_ok(pkvi_copy_async(stream, &span, 1));
}

static void copy_out(struct fixture *f, struct pkv_stream *stream, uint64_t bytes)
{
    const struct pkv_span span = {pkvi_addr(f->host), f->memory, bytes};
    assert_ok(pkvi_copy_async(stream, &span, 1));
}

/* Nanoseconds from now until the stream has done everything. */
static uint64_t drain(struct fixture *f, struct pkv_stream *stream)
{
    const uint64_t begin_ns = pkv_device_clock_ns(f->device);
    assert_ok(pkvi_stream_sync(stream));
    return pkv_device_clock_ns(f->device) - begin_ns;
}

static void test_sim__kernels__max_of_bytes_and_operations(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    launch(f.compute, 0, 4000);
    assert_int_equal(drain(&f, f.compute), 400);
    launch(f.compute, 4000, 4000);
    assert_int_equal(drain(&f, f.compute), 2000);
    launch(f.compute, 0, 4000);
    launch(f.compute, 200, 0);
    assert_int_equal(drain(&f, f.compute), 500);
    close_all(&f);
}

static void test_sim__copies__follow_the_curve(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    copy_in(&f, f.load, 1024);
    assert_int_equal(drain(&f, f.load), 1024);
    copy_in(&f, f.load, 64); /* below the first point: its speed */
    assert_int_equal(drain(&f, f.load), 64);
    copy_in(&f, f.load, 4096); /* half way in the logarithms */
    assert_int_equal(drain(&f, f.load), 2048);
    copy_out(&f, f.store, 65536);
    assert_int_equal(drain(&f, f.store), 16384);
    const struct pkv_span spans[] = {{f.memory, pkvi_addr(f.host), 1024},
                                     {f.memory + 9000, pkvi_addr(f.host), 1024}};
    assert_ok(pkvi_copy_async(f.load, spans, 2)); /* several pieces: as a gather */
    assert_int_equal(drain(&f, f.load), 4096);
    const struct pkv_span inner = {f.memory, f.memory + 50000, 1000};
    assert_ok(pkvi_copy_async(f.load, &inner, 1)); /* read and written */
    assert_int_equal(drain(&f, f.load), 200);
    close_all(&f);
}

static void test_sim__copy_beside_kernel__overlap(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    copy_in(&f, f.load, 16384); /* 4096 ns */
    launch(f.compute, 0, 30000);
    assert_ok(pkvi_event_record(f.other, f.load));
    assert_int_equal(drain(&f, f.compute), 3000);
    assert_status(pkvi_event_query(f.other), PKV_PENDING);
    const uint64_t polled_ns = pkv_device_clock_ns(f.device);
    assert_int_equal(drain(&f, f.load), 4096 - polled_ns);
    assert_ok(pkvi_event_query(f.other));
    close_all(&f);
}

/* Tiles through two slots, as stream-attend does it: the slower side decides. */
static void test_sim__waits__pipeline(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    struct pkv_event *loaded[2], *attended[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(pkvi_event_open(f.device, false, &loaded[i]));
        assert_ok(pkvi_event_open(f.device, false, &attended[i]));
    }
    for (int tile = 0; tile < 5; tile++) {
        assert_ok(pkvi_event_wait(f.load, attended[tile % 2]));
        copy_in(&f, f.load, 16384); /* 4096 */
        assert_ok(pkvi_event_record(loaded[tile % 2], f.load));
        assert_ok(pkvi_event_wait(f.compute, loaded[tile % 2]));
        launch(f.compute, 0, tile < 3 ? 10000 : 100000); /* 1000, 10000 */
        assert_ok(pkvi_event_record(attended[tile % 2], f.compute));
    }
    /* Loads end at 4096, 8192, 12288, 16384, 20480; attention at 5096, 9192, 13288, 26384, 36384.
     */
    assert_int_equal(drain(&f, f.compute), 36384);
    for (int i = 0; i < 2; i++) {
        pkvi_event_close(loaded[i]);
        pkvi_event_close(attended[i]);
    }
    close_all(&f);
}

static void test_sim__both_directions_and_two_of_one__share(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    copy_in(&f, f.load, 16384); /* the sum of both is 6 of 8: 3 each */
    copy_out(&f, f.store, 16384);
    drain(&f, f.load);
    assert_int_equal(drain(&f, f.store), 0);
    assert_in_range(pkv_device_clock_ns(f.device), 5461, 5462);
    const uint64_t begin_ns = pkv_device_clock_ns(f.device);
    copy_in(&f, f.load, 16384); /* half the speed each, until the shorter has ended at 4096 */
    copy_in(&f, f.compute, 8192);
    drain(&f, f.compute);
    drain(&f, f.load);
    /* 8192 bytes lie 3/4 of the way between the points: 4^0.75 = 2.828 a nanosecond, 2896 ns */
    assert_in_range(pkv_device_clock_ns(f.device) - begin_ns, 4096 + 2896, 4096 + 2898);
    close_all(&f);
}

static void test_sim__calls_and_idle_streams__cost(void **state)
{
    (void)state;
    struct fixture f;
    struct pkvi_profile p = plain_profile();
    const struct pkv_device_config config = pkv_device_config_default();
    p.launch_us = 1;
    p.launch_call_us = 0.25;
    p.launch_latency_us = 4;
    p.copy_call_us = 0.5;
    p.copy_latency_us[0] = 6.024; /* of 1024 bytes: 5 us before them */
    p.copy_latency_us[1] = 6.024;
    open_with(&f, &p, &config);
    launch(f.compute, 0, 0); /* call, then 3 us until it begins, 1 us itself */
    launch(f.compute, 0, 0); /* follows at once */
    drain(&f, f.compute);
    assert_int_equal(pkv_device_clock_ns(f.device), 250 + 3000 + 2 * 1000);
    copy_in(&f, f.load, 1024);
    copy_in(&f, f.load, 1024);
    assert_int_equal(pkv_device_clock_ns(f.device), 250 + 3000 + 2 * 1000 + 1000);
    drain(&f, f.load);
    assert_int_equal(pkv_device_clock_ns(f.device), 5250 + 500 + 5000 + 2 * 1024);
    close_all(&f);
}

static void test_sim__emulated_link__one_after_the_other_on_it(void **state)
{
    (void)state;
    struct fixture f;
    const struct pkvi_profile p = plain_profile();
    struct pkv_device_config config = pkv_device_config_default();
    config.link_gbps = 2;
    config.link_latency_us = 1;
    open_with(&f, &p, &config);
    copy_in(&f, f.load, 16384);
    copy_out(&f, f.store, 16384); /* the other direction is free */
    assert_int_equal(drain(&f, f.load), 8192 + 1000);
    assert_int_equal(drain(&f, f.store), 0);
    copy_in(&f, f.load, 16384);
    copy_in(&f, f.compute, 16384); /* the same one is not; the stream opened first goes first */
    assert_int_equal(drain(&f, f.compute), 8192 + 1000);
    assert_int_equal(drain(&f, f.load), 8192);
    close_all(&f);
}

/* What version 2 of a profile has more: kinds of kernels, waits, what runs beside. */
static void test_sim__measured_kernels__along_their_points(void **state)
{
    (void)state;
    struct fixture f;
    struct pkvi_profile p = plain_profile();
    const struct pkv_device_config config = pkv_device_config_default();
    p.has_kernels = true;
    for (uint32_t kind = 0; kind < PKVI_PROFILE_KINDS; kind++) {
        p.kernel[kind] =
            (struct pkvi_profile_kernel){.launch_us = 1, .count = 1, .point = {{1, 1}}};
    }
    p.kernel[PKVI_PROFILE_ROWS].count = 2;
    p.kernel[PKVI_PROFILE_ROWS].point[0].gbps = 10;
    p.kernel[PKVI_PROFILE_ROWS].point[1].flops_per_byte = 5;
    p.kernel[PKVI_PROFILE_ROWS].point[1].gbps = 2;
    open_with(&f, &p, &config);
    launch(f.compute, 0, 1000); /* before the first point: 10 bytes a nanosecond */
    assert_int_equal(drain(&f, f.compute), 1000 + 100);
    launch(f.compute, 3000, 1000); /* half way: 0.1 and 0.5 ns a byte */
    assert_int_equal(drain(&f, f.compute), 1000 + 300);
    launch(f.compute, 10000, 1000); /* twice the operations of the last point */
    assert_int_equal(drain(&f, f.compute), 1000 + 1000);
    close_all(&f);
}

static void test_sim__waits_and_company__cost(void **state)
{
    (void)state;
    struct fixture f;
    struct pkvi_profile p = plain_profile();
    const struct pkv_device_config config = pkv_device_config_default();
    p.wait_us = 1;
    p.beside_kernel = 0.5;
    p.beside_copy = 0.25;
    open_with(&f, &p, &config);
    copy_in(&f, f.load, 16384); /* 4096 ns alone */
    assert_ok(pkvi_event_record(f.end, f.load));
    assert_ok(pkvi_event_wait(f.compute, f.end));
    launch(f.compute, 0, 10000);
    launch(f.compute, 0, 10000);
    assert_int_equal(drain(&f, f.compute), 4096 + 1000 + 2000);
    const uint64_t begin_ns = pkv_device_clock_ns(f.device);
    copy_in(&f, f.load, 16384);
    launch(f.compute, 0, 5000); /* 500 ns; 1000 beside the copy, which does 250 meanwhile */
    assert_int_equal(drain(&f, f.compute), 1000);
    drain(&f, f.load);
    assert_int_equal(pkv_device_clock_ns(f.device) - begin_ns, 1000 + 4096 - 250);
    close_all(&f);
}

/* On the cpu device the copy is done by a core, however slow the link is. */
static void test_sim__emulated_link_of_a_cpu__slower_of_both(void **state)
{
    (void)state;
    struct fixture f;
    struct pkvi_profile p = plain_profile();
    struct pkv_device_config config = pkv_device_config_default();
    snprintf(p.device, sizeof p.device, "cpu");
    config.link_gbps = 100;
    open_with(&f, &p, &config);
    copy_in(&f, f.load, 16384);
    assert_int_equal(drain(&f, f.load), 4096);
    close_all(&f);
}

static void test_sim__elapsed__virtual(void **state)
{
    (void)state;
    struct fixture f;
    uint64_t ns = 7;
    open_plain(&f);
    assert_status(pkvi_event_elapsed(f.begin, f.end, &ns), PKV_ERR_STATE);
    assert_ok(pkvi_event_record(f.begin, f.compute));
    launch(f.compute, 0, 30000);
    assert_ok(pkvi_event_record(f.end, f.compute));
    assert_status(pkvi_event_elapsed(f.begin, f.end, &ns), PKV_PENDING);
    assert_ok(pkvi_event_sync(f.end));
    assert_ok(pkvi_event_elapsed(f.begin, f.end, &ns));
    assert_int_equal(ns, 3000);
    assert_int_equal(pkv_device_clock_ns(f.device), 3000);
    close_all(&f);
}

static void test_sim__polling__ends(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t polls = 0;
    open_plain(&f);
    launch(f.compute, 0, 30000);
    assert_ok(pkvi_event_record(f.end, f.compute));
    while (pkvi_event_query(f.end) == PKV_PENDING && polls < 1000) {
        polls++;
    }
    assert_in_range(polls, 1, 30);
    close_all(&f);
}

static void test_sim__data__arrives_on_compute_only(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f);
    struct pkv_device_info info;
    assert_ok(pkv_device_query(f.device, &info));
    assert_true(info.caps & PKV_CAP_NO_DATA);
    assert_true(info.caps & PKV_CAP_VIRTUAL_TIME);
    assert_int_equal(info.threads, 3);
    memset(f.host, 0x5a, 4096);
    copy_in(&f, f.load, 64);
    assert_int_equal(*PKV_AT(uint8_t, f.memory), 0);
    copy_in(&f, f.compute, 64);
    assert_int_equal(*PKV_AT(uint8_t, f.memory), 0x5a);
    assert_int_equal(*PKV_AT(uint8_t, f.memory + 64), 0);
    memset(f.host, 0x11, 64);
    copy_out(&f, f.compute, 64);
    assert_int_equal(f.host[0], 0x11);
    close_all(&f);
}

/* The same calls twice: the same clock, to the last bit. */
static void test_sim__twice__same(void **state)
{
    (void)state;
    uint64_t ns[2][64];
    for (int turn = 0; turn < 2; turn++) {
        struct fixture f;
        uint64_t random = 99;
        open_plain(&f);
        struct pkv_stream *streams[] = {f.compute, f.load, f.store};
        struct pkv_event *events[] = {f.begin, f.end, f.other};
        for (int i = 0; i < 64; i++) {
            for (int j = 0; j < 40; j++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                struct pkv_stream *stream = streams[(random >> 40) % 3];
                struct pkv_event *event = events[(random >> 44) % 3];
                switch ((random >> 48) % 5) {
                case 0:
                    launch(stream, (double)(random >> 54), random >> 50);
                    break;
                case 1:
                    copy_in(&f, stream, 1 + (random >> 46) % 100000);
                    break;
                case 2:
                    copy_out(&f, stream, 1 + (random >> 46) % 100000);
                    break;
                case 3:
                    assert_ok(pkvi_event_record(event, stream));
                    break;
                default:
                    assert_ok(pkvi_event_wait(stream, event));
                }
            }
            assert_ok(i % 2 ? pkvi_stream_sync(streams[i % 3]) : pkvi_event_sync(events[i % 3]));
            ns[turn][i] = pkv_device_clock_ns(f.device);
        }
        close_all(&f);
    }
    assert_memory_equal(ns[0], ns[1], sizeof ns[0]);
    assert_true(ns[0][63] > ns[0][0]);
}

/* Events and streams may go while work that names them is still in queues. */
static void test_sim__closed_early__no_harm(void **state)
{
    (void)state;
    struct fixture f;
    struct pkv_stream *stream;
    struct pkv_event *event;
    open_plain(&f);
    assert_ok(pkvi_stream_open(f.device, PKV_LOAD, NULL, &stream));
    assert_ok(pkvi_event_open(f.device, false, &event));
    launch(f.compute, 0, 30000);
    assert_ok(pkvi_event_record(event, f.compute));
    assert_ok(pkvi_event_wait(stream, event));
    copy_in(&f, stream, 16384);
    pkvi_event_close(event);
    pkvi_stream_close(stream); /* waits for what it holds, and so for the kernel */
    assert_int_equal(pkv_device_clock_ns(f.device), 3000 + 4096);
    close_all(&f);
}

/* Every call of a short schedule fails once; nothing is left over and time goes on. */
static void test_sim__below_fault__unwinds(void **state)
{
    (void)state;
    const struct pkvi_profile profile = plain_profile();
    const struct pkv_device_config config = pkv_device_config_default();
    enum pkv_status status = PKV_ERR_DEVICE_LOST;
    for (uint64_t n = 1; status != PKV_OK; n++) {
        struct pkv_device *sim = NULL, *device = NULL;
        struct pkv_stream *streams[2] = {NULL, NULL};
        struct pkv_event *event = NULL;
        pkv_addr memory = 0;
        uint8_t host[64] = {0};
        const struct job job = {0, 1000};
        const struct pkvi_fault_config fault = {.fail_call = n};
        assert_ok(pkvi_sim_open(&profile, &config, &sim));
        assert_ok(pkvi_fault_open(sim, &fault, &device));
        status = pkvi_stream_open(device, PKV_LOAD, NULL, &streams[0]);
        status = status ? status : pkvi_stream_open(device, PKV_COMPUTE, NULL, &streams[1]);
        status = status ? status : pkvi_event_open(device, false, &event);
        status = status ? status : pkvi_mem_alloc(device, PKV_MEM_DEVICE, 64, &memory);
        const struct pkv_span span = {memory, pkvi_addr(host), 64};
        status = status ? status : pkvi_copy_async(streams[0], &span, 1);
        status = status ? status : pkvi_event_record(event, streams[0]);
        status = status ? status : pkvi_event_wait(streams[1], event);
        status = status ? status : pkvi_launch(streams[1], &job_kernel, &job);
        status = status ? status : pkvi_stream_sync(streams[1]);
        assert_true(status == PKV_OK || status == PKV_ERR_DEVICE_LOST);
        assert_int_equal(pkv_device_clock_ns(device), status ? 0 : 64 + 100);
        pkvi_stream_close(streams[1]);
        pkvi_stream_close(streams[0]);
        pkvi_event_close(event);
        pkvi_mem_free(device, PKV_MEM_DEVICE, memory);
        pkv_device_close(device);
        pkv_device_close(sim);
        assert_true(n < 20);
    }
}

static void test_sim__memory__address_space_within_a_limit(void **state)
{
    (void)state;
    struct fixture f;
    const struct pkvi_profile p = plain_profile();
    struct pkv_device_config config = pkv_device_config_default();
    config.memory_bytes = (uint64_t)1 << 40; /* more than any test machine has */
    open_with(&f, &p, &config);
    pkv_addr large = 0, more = 0;
    assert_ok(pkvi_mem_alloc(f.device, PKV_MEM_DEVICE, (uint64_t)600 << 30, &large));
    assert_status(pkvi_mem_alloc(f.device, PKV_MEM_DEVICE, (uint64_t)600 << 30, &more),
                  PKV_ERR_NO_MEMORY);
    assert_non_null(strstr(pkv_error_text(), "device memory: 644245094400 bytes asked"));
    assert_ok(pkvi_mem_alloc(f.device, PKV_MEM_PINNED, (uint64_t)600 << 30, &more));
    pkvi_mem_free(f.device, PKV_MEM_PINNED, more);
    pkvi_mem_free(f.device, PKV_MEM_DEVICE, large);
    assert_ok(pkvi_mem_alloc(f.device, PKV_MEM_DEVICE, (uint64_t)600 << 30, &large));
    close_all(&f); /* what was left goes with the device */
}

static void test_sim__kernel_without_cost__refused(void **state)
{
    (void)state;
    struct fixture f;
    const struct pkv_kernel kernel = {.variant = "silent", .args_bytes = 1};
    open_plain(&f);
    assert_status(pkvi_launch(f.compute, &kernel, "x"), PKV_ERR_UNSUPPORTED);
    for (uint32_t op = 0; op < PKV_OP_COUNT; op++) {
        assert_non_null(pkvi_device_kernel(f.device, op)->cost);
    }
    assert_null(pkvi_device_kernel(f.device, PKV_OP_COUNT));
    close_all(&f);
}

static void test_sim__profiles__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_device_config config = pkv_device_config_default();
    assert_status(pkv_device_open("sim", &config, &device), PKV_ERR_INVALID);
    config.profile = "/nonexistent/profile.json";
    assert_status(pkv_device_open("sim", &config, &device), PKV_ERR_IO);
    char path[] = "/tmp/pkv-sim-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "{}\n", 3), 3);
    close(file);
    config.profile = path;
    assert_status(pkv_device_open("sim", &config, &device), PKV_ERR_CORRUPT);
    struct pkvi_profile p = plain_profile();
    p.cached = true;
    assert_ok(pkvi_profile_write(path, &p));
    assert_status(pkv_device_open("sim", &config, &device), PKV_ERR_UNSUPPORTED);
    p.cached = false;
    assert_ok(pkvi_profile_write(path, &p));
    assert_ok(pkv_device_open("sim", &config, &device));
    struct pkv_device *wrapper = NULL;
    assert_status(pkvi_device_open_ops(&pkvi_sim_device_ops, &config, device, &wrapper),
                  PKV_ERR_INVALID);
    pkv_device_close(device);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim__kernels__max_of_bytes_and_operations),
        cmocka_unit_test(test_sim__copies__follow_the_curve),
        cmocka_unit_test(test_sim__copy_beside_kernel__overlap),
        cmocka_unit_test(test_sim__waits__pipeline),
        cmocka_unit_test(test_sim__both_directions_and_two_of_one__share),
        cmocka_unit_test(test_sim__calls_and_idle_streams__cost),
        cmocka_unit_test(test_sim__emulated_link__one_after_the_other_on_it),
        cmocka_unit_test(test_sim__emulated_link_of_a_cpu__slower_of_both),
        cmocka_unit_test(test_sim__measured_kernels__along_their_points),
        cmocka_unit_test(test_sim__waits_and_company__cost),
        cmocka_unit_test(test_sim__elapsed__virtual),
        cmocka_unit_test(test_sim__polling__ends),
        cmocka_unit_test(test_sim__data__arrives_on_compute_only),
        cmocka_unit_test(test_sim__twice__same),
        cmocka_unit_test(test_sim__closed_early__no_harm),
        cmocka_unit_test(test_sim__below_fault__unwinds),
        cmocka_unit_test(test_sim__memory__address_space_within_a_limit),
        cmocka_unit_test(test_sim__kernel_without_cost__refused),
        cmocka_unit_test(test_sim__profiles__refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
