/* What `doctor` says of made-up machines: the finding, and the command beside it. */
#include "tests/support/fake_root.h"
#include "tests/support/pkv_test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/doctor.h"

static int open_root(void **state)
{
    *state = (void *)(uintptr_t)pkvt_root_open();
    return 0;
}

static int close_root(void **state)
{
    (void)state;
    pkvt_root_close();
    return 0;
}

static json_t *finding(json_t *report, const char *name)
{
    size_t i;
    json_t *at, *found = NULL;
    json_array_foreach(json_object_get(report, "findings"), i, at)
    {
        if (strcmp(json_string_value(json_object_get(at, "name")), name) == 0) {
            found = at;
        }
    }
    assert_non_null(found);
    return found;
}

static void assert_finding(json_t *report, const char *name, const char *state, const char *fix)
{
    json_t *at = finding(report, name);
    assert_string_equal(json_string_value(json_object_get(at, "state")), state);
    assert_non_null(strstr(json_string_value(json_object_get(at, "fix")), fix));
}

static void test_doctor__machine_with_troubles__each_with_its_command(void **state)
{
    char *text;
    pkvt_root_file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    pkvt_root_file("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
    pkvt_root_file("/proc/self/cgroup", "0::/\n");
    pkvt_root_file("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    pkvt_root_file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    pkvt_root_file("/sys/fs/cgroup/memory.max", "1000000000\n");
    pkvt_root_file("/sys/fs/cgroup/memory.current", "900000000\n");
    pkvt_root_file("/proc/driver/nvidia/version", "NVRM version: Kernel Module  550.54.15  x\n");
    assert_ok(pkvi_doctor_text(*state, "numa:2 core:4 pu:1", true, true, &text));
    json_t *report = json_loads(text, 0, NULL);
    assert_non_null(report);
    assert_finding(report, "huge pages", "change", "transparent_hugepage");
    assert_finding(report, "memory", "change", "--memory");
    assert_finding(report, "threads", "note", "--cpus");
    assert_finding(report, "numa", "note", "numactl");
    assert_finding(report, "gpu", "change", "--gpus");
    assert_int_equal(json_array_size(json_object_get(report, "nodes")), 2);
    json_t *memory = json_object_get(report, "memory");
    assert_int_equal(json_integer_value(json_object_get(memory, "cgroup_limit_bytes")), 1000000000);
    json_decref(report);
    free(text);

    assert_ok(pkvi_doctor_text(*state, "numa:2 core:4 pu:1", true, false, &text));
    assert_non_null(strstr(text, "\n  huge pages as root: echo madvise"));
    assert_non_null(strstr(text, "node 1: CPUs 4-7"));
    free(text);
}

static void test_doctor__healthy_machine__nothing_to_change(void **state)
{
    char *text;
    pkvt_root_file("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    pkvt_root_file("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
    pkvt_root_file("/proc/self/status", "CapEff:\t0000000000004000\n");
    assert_ok(pkvi_doctor_text(*state, "numa:1 core:4 pu:1", true, true, &text));
    json_t *report = json_loads(text, 0, NULL);
    assert_finding(report, "huge pages", "ok", "");
    assert_finding(report, "memory", "ok", "");
    assert_finding(report, "memlock", "ok", "");
    assert_finding(report, "numa", "ok", "");
    assert_finding(report, "gpu", "note", "");
    json_decref(report);
    free(text);
}

static void judge_gpu(const char *root, bool has_cuda, const char *state, const char *words,
                      const char *fix)
{
    char *text;
    assert_ok(pkvi_doctor_text(root, "numa:1 core:4 pu:1", has_cuda, true, &text));
    json_t *report = json_loads(text, 0, NULL);
    assert_finding(report, "gpu", state, fix);
    const char *said = json_string_value(json_object_get(finding(report, "gpu"), "text"));
    if (!strstr(said, words)) {
        fail_msg("'%s' does not say '%s'", said, words);
    }
    json_t *built = json_object_get(json_object_get(report, "gpu"), "cuda");
    assert_int_equal(json_is_true(built), has_cuda);
    json_decref(report);
    free(text);
}

/* A driver and a build with CUDA need each other. */
static void test_doctor__gpu_and_build__what_lacks_is_said(void **state)
{
    judge_gpu(*state, false, "note", "no NVIDIA driver: the cpu device", "");
    judge_gpu(*state, true, "note", "no NVIDIA driver, though this build has CUDA", "");
    pkvt_root_file("/proc/driver/nvidia/version", "NVRM version: Kernel Module  550.54.15  x\n");
    judge_gpu(*state, true, "change", "/dev/nvidiactl is not here", "--gpus all");
    pkvt_root_file("/dev/nvidiactl", "");
    pkvt_root_file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: x\n");
    judge_gpu(*state, true, "ok", "driver 550.54.15, 1 GPUs", "");
    judge_gpu(*state, false, "change", "1 GPUs, but this build has no CUDA", "CUDA toolkit");
}

static void test_doctor__this_machine__text_and_json(void **state)
{
    (void)state;
    char *text = NULL;
    assert_ok(pkv_doctor(false, &text));
    assert_non_null(strstr(text, "cpu "));
    free(text);
    assert_ok(pkv_doctor(true, &text));
    json_t *report = json_loads(text, 0, NULL);
    assert_true(json_is_object(report));
    json_decref(report);
    free(text);
    assert_status(pkv_doctor(true, NULL), PKV_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_doctor__machine_with_troubles__each_with_its_command,
                                        open_root, close_root),
        cmocka_unit_test_setup_teardown(test_doctor__healthy_machine__nothing_to_change, open_root,
                                        close_root),
        cmocka_unit_test_setup_teardown(test_doctor__gpu_and_build__what_lacks_is_said, open_root,
                                        close_root),
        cmocka_unit_test(test_doctor__this_machine__text_and_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
