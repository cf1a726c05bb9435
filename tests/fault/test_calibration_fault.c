/*
 * A calibration with the n-th device call failing, for every n there is, and with the n-th
 * allocation of the calling thread failing: the failure is told, no memory of the device or the
 * host is lost, no file is left; afterwards it gives the same bits.
 */
#include "tests/support/pkv_test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/pivotkv.h"
#include "runtime/device/dev_fault.h"
#include "runtime/session/calibration.h"

#define TOKENS 140u
#define STEP_ROWS 64u
#define MODEL "golden/tiny/llama_q4_1.gguf"

static struct pkv_device *below, *device;
static struct pkv_model *model;
static struct pkv_calibration *want;
static int32_t ids[TOKENS];
static char path[64];

static enum pkv_status run(struct pkv_calibration **out)
{
    *out = NULL;
    return pkvi_calibration_measure(model, ids, TOKENS, STEP_ROWS, out);
}

static void check_same(struct pkv_calibration *got)
{
    assert_non_null(got);
    assert_int_equal(got->header->file_bytes, want->header->file_bytes);
    assert_memory_equal(got->file, want->file, want->header->file_bytes);
    pkv_calibration_close(got);
}

/* ---- device calls ---- */

/* In use now. */
static uint64_t bytes_of(enum pkv_mem mem)
{
    (void)pkvi_fault_most_bytes(device, mem);
    return pkvi_fault_most_bytes(device, mem);
}

static bool check_fault(struct pkvi_fault_config fault)
{
    struct pkv_calibration *got = NULL;
    const uint64_t device_bytes = bytes_of(PKV_MEM_DEVICE), pinned_bytes = bytes_of(PKV_MEM_PINNED);
    const struct pkvi_fault_config none = {0};
    fault.status = PKV_ERR_DEVICE_LOST;
    pkvi_fault_set(device, &fault);
    const enum pkv_status status = run(&got);
    if (status == PKV_OK) { /* an event that is only asked for, or a stream at its end */
        check_same(got);
    } else {
        assert_true(status == PKV_ERR_DEVICE_LOST || status == PKV_ERR_NO_MEMORY);
        assert_true(strlen(pkv_error_text()) > 0);
        assert_null(got);
    }
    pkvi_fault_set(device, &none);
    assert_int_equal(bytes_of(PKV_MEM_DEVICE), device_bytes);
    assert_int_equal(bytes_of(PKV_MEM_PINNED), pinned_bytes);
    return status != PKV_OK;
}

static void test_calibration__any_call_fails__told_and_nothing_lost(void **state)
{
    (void)state;
    const struct pkvi_fault_config none = {0};
    struct pkv_calibration *got = NULL;
    uint32_t failed = 0, tries = 0;
    pkvi_fault_set(device, &none);
    assert_ok(run(&got));
    const uint64_t calls = pkvi_fault_count(device, PKVI_FAULT_CALLS);
    check_same(got);
    for (uint64_t n = 1; n <= calls; n += PKVT_SANITIZED ? 3 : 1) {
        failed += check_fault((struct pkvi_fault_config){.fail_call = n});
        failed += check_fault((struct pkvi_fault_config){.fail_call = n, .async = true});
        failed += check_fault((struct pkvi_fault_config){.fail_call = n, .lasting = true});
        tries += 3;
    }
    assert_true(failed > tries / 2);
    print_message("%llu device calls; %u of %u runs failed\n", (unsigned long long)calls, failed,
                  tries);
    assert_ok(run(&got));
    check_same(got);
}

static void test_calibration__any_call_late__same_bits(void **state)
{
    (void)state;
    const struct pkvi_fault_config none = {0};
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct pkv_calibration *got = NULL;
        const struct pkvi_fault_config late = {.delay_us = 60, .seed = seed};
        pkvi_fault_set(device, &late);
        assert_ok(run(&got));
        check_same(got);
    }
    pkvi_fault_set(device, &none);
}

/* ---- allocations of this thread; not where a sanitizer has allocators of its own ---- */

#if !PKVT_SANITIZED
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);
extern void __libc_free(void *old);

#define EXPORTED __attribute__((visibility("default"))) /* for the allocations of libraries too */

static _Thread_local long until_failure = -1; /* -1 = never */
static atomic_long live;

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

EXPORTED void *realloc(void *old, size_t bytes)
{
    void *data = fails() ? NULL : __libc_realloc(old, bytes);
    live += data != NULL && old == NULL;
    return data;
}

EXPORTED void *aligned_alloc(size_t align, size_t bytes)
{
    void *data = fails() ? NULL : __libc_memalign(align, bytes);
    live += data != NULL;
    return data;
}

EXPORTED void free(void *old)
{
    live -= old != NULL;
    __libc_free(old);
}

/* Measured, saved, loaded on a device of its own, which keeps some memory as long as it is open;
 * true: no allocation was left to fail. */
static bool try_allocation(long n)
{
    struct pkv_device_config config = pkv_device_config_default();
    const struct pkv_model_config model_config = pkv_model_config_default();
    struct pkv_device *own = NULL;
    struct pkv_model *own_model = NULL;
    struct pkv_calibration *first = NULL, *got = NULL;
    const long before = live;
    config.threads = 1;
    assert_ok(pkv_device_open("cpu", &config, &own));
    assert_ok(pkv_model_open(own, pkvt_path(MODEL), &model_config, &own_model));
    until_failure = n;
    enum pkv_status status = pkvi_calibration_measure(own_model, ids, TOKENS, STEP_ROWS, &first);
    status = status == PKV_OK ? pkv_calibration_save(first, path) : status;
    status = status == PKV_OK ? pkv_calibration_load(own_model, path, &got) : status;
    const bool all_went_well = until_failure >= 0;
    until_failure = -1;
    assert_int_equal(got != NULL, status == PKV_OK);
    if (status == PKV_OK) {
        check_same(got);
    } else {
        assert_int_equal(status, PKV_ERR_NO_MEMORY);
    }
    pkv_calibration_close(first);
    pkv_model_close(own_model);
    pkv_device_close(own);
    if (live != before) {
        fail_msg("allocation %ld failed (%s): %ld lost", n, pkv_error_text(), live - before);
    }
    return all_went_well;
}

static void test_calibration__any_allocation_fails__told_and_nothing_lost(void **state)
{
    (void)state;
    char left[96];
    long n = 0;
    snprintf(left, sizeof left, "%s.%ld.tmp", path, (long)getpid());
    (void)try_allocation(100000); /* what libraries keep for good */
    while (!try_allocation(n)) {
        assert_int_equal(access(left, F_OK), -1);
        (void)unlink(path);
        n++;
    }
    (void)unlink(path);
    assert_true(n > 12);
    print_message("%ld allocations\n", n);
}
#endif

static int open_all(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    const struct pkvi_fault_config none = {0};
    const struct pkv_model_config model_config = pkv_model_config_default();
    struct pkvt_rng rng = {.state = 9};
    config.threads = 2;
    snprintf(path, sizeof path, P_tmpdir "/calibration_fault.%ld.pkvcal", (long)getpid());
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, 320);
    }
    return pkv_device_open("cpu", &config, &below) == PKV_OK &&
                   pkvi_fault_open(below, &none, &device) == PKV_OK &&
                   pkv_model_open(device, pkvt_path(MODEL), &model_config, &model) == PKV_OK &&
                   run(&want) == PKV_OK
               ? 0
               : -1;
}

static int close_all(void **state)
{
    (void)state;
    pkv_calibration_close(want);
    pkv_model_close(model);
    pkv_device_close(device);
    pkv_device_close(below);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibration__any_call_fails__told_and_nothing_lost),
        cmocka_unit_test(test_calibration__any_call_late__same_bits),
#if !PKVT_SANITIZED
        cmocka_unit_test(test_calibration__any_allocation_fails__told_and_nothing_lost),
#endif
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
