/*
 * The host arena with every call failing in turn, on one node and on two: the right status or note,
 * memory that works, nothing left behind; then pins, then allocations.
 */
#include "tests/support/pkv_test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pivotkv/log.h"
#include "runtime/device/device.h"
#include "tests/support/host_fake.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FAILS_ALLOCATIONS 0
#endif
#endif
#ifndef FAILS_ALLOCATIONS
#define FAILS_ALLOCATIONS 1
#endif

#define MIB ((uint64_t)1 << 20)
#define BLOCK_BYTES ((uint64_t)192 << 10)
#define TWO_NODES "pack:2 [numa] core:2 pu:1"

static uint32_t warnings, errors;

static void count_line(void *context, enum pkv_log_level level, const char *line)
{
    (void)context;
    (void)line;
    warnings += level == PKV_LOG_WARN;
    errors += level == PKV_LOG_ERROR;
}

static struct pkvi_host_arena_config config_of(void)
{
    return (struct pkvi_host_arena_config){.bytes = 18 * MIB,
                                           .block_bytes = BLOCK_BYTES,
                                           .piece_bytes = 6 * MIB,
                                           .node = -1,
                                           .threads = 2,
                                           .calls_or_null = &pkvt_host_calls};
}

static void reset(const char *topology)
{
    pkvt_host_reset();
    pkvt_host.topology = topology;
    pkvt_host.device_node = topology ? 1 : -1;
    pkvt_host.page_node = topology ? 1 : -1;
    warnings = errors = 0;
}

/* Write to both ends of all blocks: what was opened must work. */
static void use(const struct pkvi_host_arena *arena)
{
    for (uint64_t i = 0; i < pkvi_host_arena_report(arena)->blocks; i++) {
        uint8_t *block = pkvi_host_arena_block(arena, i).host;
        block[0] = block[BLOCK_BYTES - 1] = (uint8_t)i;
    }
}

/* What a failed call has to lead to. */
static void judge(const struct pkvi_host_arena *arena, enum pkv_status status)
{
    static const struct {
        const char *call, *note;
    } notes[] = {{"huge", "huge pages"}, {"smaps", "huge pages"}, {"dontfork", "fork"},
                 {"bind", "bind"},       {"cpus", "touch"},       {"run", "touch"},
                 {"pool", "touch"},      {"populate", "touch"},   {"pages", "placement"},
                 {"topo", "node"}};
    const char *call = pkvt_host.failed;
    bool fatal = strcmp(call, "mmap") == 0 ||
                 (strcmp(call, "populate") == 0 && pkvt_host.fail_errno == ENOMEM);
    if (fatal) {
        assert_status(status, PKV_ERR_NO_MEMORY);
        assert_null(arena);
        assert_non_null(strstr(pkv_error_text(), "host memory"));
        return;
    }
    assert_int_equal(status, PKV_OK);
    use(arena);
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
        if (strcmp(notes[i].call, call) == 0) {
            const char *text = pkvt_host_note(arena, notes[i].note);
            if (!text || text[0] == '\0' || strchr(text, '\n')) {
                fail_msg("%s failed: no note '%s' of one line", call, notes[i].note);
            }
            return;
        }
    }
    assert_true(strcmp(call, "munmap") == 0 || strcmp(call, "pin") == 0);
}

/* Fail the n-th call, open, judge, close, look for leaks; false: there is no n-th call. */
static bool fail_one(struct pkv_device *device, const char *topology, int error, uint64_t n)
{
    struct pkvi_host_arena_config config = config_of();
    struct pkvi_host_arena *arena = NULL;
    reset(topology);
    pkvt_host.fail_call = n;
    pkvt_host.fail_errno = error;
    enum pkv_status status = pkvi_host_arena_open(device, &config, &arena);
    bool failed_in_open = pkvt_host.failed != NULL;
    if (failed_in_open) {
        judge(arena, status);
    } else {
        assert_int_equal(status, PKV_OK);
        use(arena);
    }
    pkvi_host_arena_close(arena);
    assert_int_equal(pkvt_host_pinned(), 0);
    if (pkvt_host.failed && !failed_in_open) { /* the last munmap: no way left but to say it */
        assert_int_equal(errors, 1);
        assert_int_equal(munmap(pkvt_host.kept_map, pkvt_host.kept_bytes), 0);
        pkvt_host.mapped_bytes -= pkvt_host.kept_bytes;
    } else {
        assert_int_equal(errors, 0);
    }
    assert_int_equal(pkvt_host.mapped_bytes, 0);
    return pkvt_host.failed != NULL;
}

static void fail_every_call(const char *topology, uint64_t least)
{
    static const int error_list[] = {EPERM, EINVAL, ENOMEM, ENOSYS};
    struct pkv_device *device = pkvt_host_device();
    pkv_log_set(PKV_LOG_WARN, false, count_line, NULL);
    for (size_t i = 0; i < sizeof error_list / sizeof error_list[0]; i++) {
        uint64_t n = 1;
        while (fail_one(device, topology, error_list[i], n)) {
            n++;
        }
        assert_true(n > least);
        assert_int_equal(pkvt_host.call_count, n - 1);
    }
    pkv_log_set(PKV_LOG_WARN, false, NULL, NULL);
    pkv_device_close(device);
}

static void test_fault__nth_call_on_one_node__works_or_says_why(void **state)
{
    (void)state;
    fail_every_call(NULL, 12);
}

static void test_fault__nth_call_on_two_nodes__works_or_says_why(void **state)
{
    (void)state;
    fail_every_call(TWO_NODES, 17);
}

/* A container without CAP_SYS_NICE: both calls refused, placement read from numa_maps, or not. */
static void test_fault__bind_and_pages_refused__said_with_the_command(void **state)
{
    (void)state;
    static const char *const names[] = {"bind", "pages"};
    struct pkv_device *device = pkvt_host_device();
    for (size_t i = 0; i < 2; i++) {
        struct pkvi_host_arena_config config = config_of();
        struct pkvi_host_arena *arena;
        reset(TWO_NODES);
        pkvt_host.fail_name = names[i];
        assert_ok(pkvi_host_arena_open(device, &config, &arena));
        if (i == 0) {
            assert_non_null(strstr(pkvt_host_note(arena, "bind"), "--cap-add SYS_NICE"));
            assert_non_null(strstr(pkvt_host.trace, "run pool populate run"));
        } else if (pkvi_host_arena_report(arena)->node_share >= 0) {
            assert_non_null(strstr(pkvt_host_note(arena, "placement"), "numa_maps"));
        }
        pkvi_host_arena_close(arena);
    }
    pkv_device_close(device);
}

static int no_share(const void *base, uint64_t bytes, uint32_t node, double *share_out)
{
    (void)base;
    (void)bytes;
    (void)node;
    (void)share_out;
    return EACCES;
}

static void test_fault__placement_cannot_be_seen__unknown(void **state)
{
    (void)state;
    struct pkvi_host_calls calls = pkvt_host_calls;
    struct pkvi_host_arena_config config = config_of();
    struct pkv_device *device = pkvt_host_device();
    struct pkvi_host_arena *arena;
    reset(TWO_NODES);
    pkvt_host.fail_name = "pages";
    calls.node_share = no_share;
    config.calls_or_null = &calls;
    assert_ok(pkvi_host_arena_open(device, &config, &arena));
    assert_true(pkvi_host_arena_report(arena)->node_share == -1);
    assert_non_null(strstr(pkvt_host_note(arena, "placement"), "--security-opt seccomp"));
    pkvi_host_arena_close(arena);
    pkv_device_close(device);
}

static void test_fault__nth_pin_refused__no_memory_with_limit_and_command(void **state)
{
    (void)state;
    struct pkv_device *device = pkvt_host_device();
    for (uint64_t n = 1; n <= 3; n++) {
        struct pkvi_host_arena_config config = config_of();
        struct pkvi_host_arena *arena = NULL;
        reset(NULL);
        pkvt_host.fail_pin = n;
        pkvt_host.memlock_bytes = 8 * MIB;
        assert_status(pkvi_host_arena_open(device, &config, &arena), PKV_ERR_NO_MEMORY);
        assert_null(arena);
        assert_non_null(strstr(pkv_error_text(), "driver: no more"));
        assert_non_null(strstr(pkv_error_text(), "memlock is 8388608 bytes: ulimit -l unlimited"));
        assert_int_equal(pkvt_host_pinned(), 0);
        assert_int_equal(pkvt_host.mapped_bytes, 0);
        pkvt_host.may_lock = true;
        pkvt_host.pin_count = 0;
        assert_status(pkvi_host_arena_open(device, &config, &arena), PKV_ERR_NO_MEMORY);
        assert_non_null(strstr(pkv_error_text(), "memlock is not the limit"));
    }
    pkv_device_close(device);
}

static void test_fault__nth_pin_refused_and_allowed__the_rest_unpinned(void **state)
{
    (void)state;
    struct pkv_device *device = pkvt_host_device();
    for (uint64_t n = 1; n <= 3; n++) {
        struct pkvi_host_arena_config config = config_of();
        struct pkvi_host_arena *arena;
        reset(NULL);
        config.allow_unpinned = true;
        pkvt_host.fail_pin = n;
        pkvt_host.memlock_bytes = 8 * MIB;
        assert_ok(pkvi_host_arena_open(device, &config, &arena));
        const struct pkvi_host_report *report = pkvi_host_arena_report(arena);
        assert_int_equal(report->pinned_bytes, (n - 1) * 6 * MIB);
        assert_int_equal(pkvt_host_pinned(), n - 1);
        assert_non_null(strstr(pkvt_host_note(arena, "pin"), "docker run --ulimit memlock=-1"));
        for (uint64_t i = 0; i < report->blocks; i++) {
            struct pkvi_host_block block = pkvi_host_arena_block(arena, i);
            assert_int_equal(block.pinned, i < (n - 1) * 32);
            assert_int_equal(block.addr == (uintptr_t)block.host, !block.pinned);
        }
        use(arena);
        pkvi_host_arena_close(arena);
        assert_int_equal(pkvt_host_pinned(), 0);
        assert_int_equal(pkvt_host.mapped_bytes, 0);
    }
    pkv_device_close(device);
}

static void test_fault__device_lost_at_a_pin__passed_on(void **state)
{
    (void)state;
    struct pkv_device *device = pkvt_host_device();
    struct pkvi_host_arena_config config = config_of();
    struct pkvi_host_arena *arena = NULL;
    reset(NULL);
    config.allow_unpinned = true;
    pkvt_host.fail_pin = 2;
    pkvt_host.pin_status = PKV_ERR_DEVICE_LOST;
    assert_status(pkvi_host_arena_open(device, &config, &arena), PKV_ERR_DEVICE_LOST);
    assert_int_equal(pkvt_host_pinned(), 0);
    assert_int_equal(pkvt_host.mapped_bytes, 0);
    pkv_device_close(device);
}

#if FAILS_ALLOCATIONS
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void __libc_free(void *old);

#define EXPORTED __attribute__((visibility("default"))) /* for the allocations of libc too */

static volatile long until_failure = -1; /* -1 = never */
static volatile long live;

static bool fails(void)
{
    return until_failure >= 0 && until_failure-- == 0;
}

EXPORTED void *malloc(size_t bytes)
{
    void *data = fails() ? NULL : __libc_malloc(bytes);
    live += data != NULL;
    return data;
}

EXPORTED void *calloc(size_t count, size_t bytes)
{
    void *data = fails() ? NULL : __libc_calloc(count, bytes);
    live += data != NULL;
    return data;
}

EXPORTED void free(void *old)
{
    live -= old != NULL;
    __libc_free(old);
}

static void test_fault__nth_allocation_fails__no_memory_or_a_note(void **state)
{
    (void)state;
    struct pkv_device *device = pkvt_host_device();
    uint32_t refused = 0;
    long n = 0;
    for (bool failed = true; failed; n++) {
        struct pkvi_host_arena_config config = config_of();
        struct pkvi_host_arena *arena = NULL;
        reset(NULL);
        config.threads = 1; /* libc keeps what belongs to a thread for the next one */
        long before = live;
        until_failure = n;
        enum pkv_status status = pkvi_host_arena_open(device, &config, &arena);
        failed = until_failure < 0;
        until_failure = -1;
        assert_true(status == PKV_OK || status == PKV_ERR_NO_MEMORY);
        refused += status != PKV_OK;
        pkvi_host_arena_close(arena);
        assert_int_equal(live, before);
        assert_int_equal(pkvt_host.mapped_bytes, 0);
        assert_int_equal(pkvt_host_pinned(), 0);
    }
    assert_true(n >= 3); /* the arena; the stream of smaps and its buffer */
    assert_int_equal(refused, 1);
    pkv_device_close(device);
}
#else
static void test_fault__nth_allocation_fails__no_memory_or_a_note(void **state)
{
    (void)state;
    skip(); /* the sanitizer owns malloc */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault__nth_call_on_one_node__works_or_says_why),
        cmocka_unit_test(test_fault__nth_call_on_two_nodes__works_or_says_why),
        cmocka_unit_test(test_fault__bind_and_pages_refused__said_with_the_command),
        cmocka_unit_test(test_fault__placement_cannot_be_seen__unknown),
        cmocka_unit_test(test_fault__nth_pin_refused__no_memory_with_limit_and_command),
        cmocka_unit_test(test_fault__nth_pin_refused_and_allowed__the_rest_unpinned),
        cmocka_unit_test(test_fault__device_lost_at_a_pin__passed_on),
        cmocka_unit_test(test_fault__nth_allocation_fails__no_memory_or_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
