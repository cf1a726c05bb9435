/*
 * The fault device: wraps without a trace, and whatever call of a small job fails, at once or on
 * its stream, the job ends with that failure, nothing leaks, and the device below goes on.
 */
#include "tests/support/device_suite.h"
#include "tests/support/pkv_test.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/device/dev_fault.h"
#include "runtime/device/device.h"

static const struct pkvi_fault_config no_faults;

static enum pkv_status open_wrapped(void *context, const struct pkv_device_config *config,
                                    struct pkv_device **device_out)
{
    struct pkv_device *below;
    PKV_TRY(pkv_device_open("cpu", config, &below));
    return pkvi_fault_open(below, context, device_out);
}

static void close_wrapped(void *context, struct pkv_device *device)
{
    struct pkv_device *below = device->below;
    (void)context;
    pkv_device_close(device);
    pkv_device_close(below);
}

static void test_fault__nothing_fails__conforms(void **state)
{
    (void)state;
    struct pkvi_fault_config config = no_faults;
    struct pkvt_device_factory factory = {"fault", &config, open_wrapped, close_wrapped,
                                          &pkvt_cpu_step};
    pkvt_device_suite(&factory);
}

struct job {
    struct pkv_device *device;
    struct pkv_stream *compute, *store;
    struct pkv_event *event, *last;
    pkv_addr cell, pinned;
    uint64_t host;
};

/* Three steps, each stored to the host by another stream. */
static enum pkv_status work(struct job *job)
{
    struct pkv_span in, out;
    PKV_TRY(pkvi_stream_open(job->device, PKV_COMPUTE, NULL, &job->compute));
    PKV_TRY(pkvi_stream_open(job->device, PKV_STORE, NULL, &job->store));
    PKV_TRY(pkvi_event_open(job->device, false, &job->event));
    PKV_TRY(pkvi_event_open(job->device, true, &job->last));
    PKV_TRY(pkvi_mem_alloc(job->device, PKV_MEM_DEVICE, 8, &job->cell));
    PKV_TRY(pkvi_mem_pin(job->device, &job->host, 8, &job->pinned));
    in = (struct pkv_span){job->cell, job->pinned, 8};
    out = (struct pkv_span){job->pinned, job->cell, 8};
    PKV_TRY(pkvi_copy_async(job->compute, &in, 1));
    for (uint64_t i = 0; i < 3; i++) {
        struct pkvt_step step = {.x = job->cell, .value = i + 1};
        PKV_TRY(pkvi_event_wait(job->compute, job->last));
        PKV_TRY(pkvi_launch(job->compute, &pkvt_cpu_step, &step));
        PKV_TRY(pkvi_event_record(job->event, job->compute));
        PKV_TRY(pkvi_event_wait(job->store, job->event));
        PKV_TRY(pkvi_copy_async(job->store, &out, 1));
        PKV_TRY(pkvi_event_record(job->last, job->store));
    }
    enum pkv_status status;
    while ((status = pkvi_event_query(job->event)) == PKV_PENDING) {
    }
    PKV_TRY(status);
    PKV_TRY(pkvi_stream_sync(job->compute));
    return pkvi_event_sync(job->last);
}

#define JOB_RESULT (((0 * 3 + 1) * 3 + 2) * 3 + 3)

static enum pkv_status run_job(struct pkv_device *device, uint64_t *host_out)
{
    struct job job = {.device = device};
    enum pkv_status status = work(&job);
    pkvi_stream_close(job.compute);
    pkvi_stream_close(job.store);
    pkvi_event_close(job.event);
    pkvi_event_close(job.last);
    pkvi_mem_free(device, PKV_MEM_DEVICE, job.cell);
    if (job.pinned) {
        pkvi_mem_unpin(device, &job.host);
    }
    *host_out = job.host;
    return status;
}

/* The job must end with the fault's status; the next one on the same device must be good. */
static void assert_fails_then_works(struct pkv_device *device,
                                    const struct pkvi_fault_config *config)
{
    enum pkv_status expected = config->status == PKV_OK ? PKV_ERR_DEVICE_LOST : config->status;
    uint64_t host;
    pkvi_fault_set(device, config);
    assert_status(run_job(device, &host), expected);
    assert_non_null(strstr(pkv_error_text(), "fails as asked"));
    pkvi_fault_set(device, &no_faults);
    assert_ok(run_job(device, &host));
    assert_int_equal(host, JOB_RESULT);
}

static void fail_every_call(enum pkv_schedule schedule, bool async, bool lasting)
{
    struct pkv_device_config config = pkv_device_config_default();
    struct pkvi_fault_config faults = {.async = async, .lasting = lasting};
    struct pkv_device *device;
    uint64_t host, calls[PKVI_FAULT_CALLS];
    config.schedule = schedule;
    config.threads = 1;
    assert_ok(pkv_device_open("cpu", &config, &device));
    struct pkv_device *below = device;
    assert_ok(pkvi_fault_open(below, &no_faults, &device));
    assert_ok(run_job(device, &host));
    for (uint32_t kind = 0; kind < PKVI_FAULT_CALLS; kind++) {
        calls[kind] = pkvi_fault_count(device, (enum pkvi_fault_call)kind);
        assert_true(calls[kind] > 0);
    }
    calls[PKVI_FAULT_EVENT_QUERY] = 1; /* how often it polls is chance */
    for (uint32_t kind = 0; kind < PKVI_FAULT_CALLS; kind++) {
        for (uint64_t n = 1; n <= calls[kind]; n++) {
            memset(faults.fail, 0, sizeof faults.fail);
            faults.fail[kind] = n;
            faults.status = n % 2 ? PKV_OK : PKV_ERR_IO;
            assert_fails_then_works(device, &faults);
        }
    }
    close_wrapped(NULL, device);
}

static void test_fault__nth_call_of_each_kind__job_fails_device_goes_on(void **state)
{
    (void)state;
    for (int schedule = PKV_SCHEDULE_WORKERS; schedule <= PKV_SCHEDULE_ADVERSARIAL; schedule++) {
        fail_every_call((enum pkv_schedule)schedule, false, false);
        fail_every_call((enum pkv_schedule)schedule, false, true);
    }
}

static void test_fault__nth_copy_or_launch_fails_on_its_stream__job_fails(void **state)
{
    (void)state;
    for (int schedule = PKV_SCHEDULE_WORKERS; schedule <= PKV_SCHEDULE_ADVERSARIAL; schedule++) {
        fail_every_call((enum pkv_schedule)schedule, true, false);
    }
}

static void test_fault__any_nth_call__job_fails(void **state)
{
    (void)state;
    struct pkvi_fault_config faults = no_faults;
    struct pkv_device *device;
    assert_ok(open_wrapped(&faults, NULL, &device));
    for (uint64_t n = 1; n <= 26; n++) { /* 26: the first poll */
        faults.fail_call = n;
        assert_fails_then_works(device, &faults);
    }
    close_wrapped(NULL, device);
}

static void test_fault__seeded_delays__right_result(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct pkvi_fault_config faults = {.delay_us = 200, .seed = seed};
        struct pkv_device *device;
        uint64_t host;
        assert_ok(open_wrapped(&faults, NULL, &device));
        assert_ok(run_job(device, &host));
        assert_int_equal(host, JOB_RESULT);
        close_wrapped(NULL, device);
    }
}

static void test_fault_open__nothing_below__invalid(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    assert_status(pkvi_fault_open(NULL, &no_faults, &device), PKV_ERR_INVALID);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault__nothing_fails__conforms),
        cmocka_unit_test(test_fault__nth_call_of_each_kind__job_fails_device_goes_on),
        cmocka_unit_test(test_fault__nth_copy_or_launch_fails_on_its_stream__job_fails),
        cmocka_unit_test(test_fault__any_nth_call__job_fails),
        cmocka_unit_test(test_fault__seeded_delays__right_result),
        cmocka_unit_test(test_fault_open__nothing_below__invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
