/* Limits of containers: cgroup v1, v2, nested groups, odd mounts; and facts of /proc and /sys. */
#include "tests/support/fake_root.h"
#include "tests/support/pkv_test.h"

#include <math.h>

#include "runtime/base/cgroup.h"
#include "runtime/base/host.h"
#include "runtime/base/limits.h"

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"

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

static void test_cgroup__nothing_readable__no_limits(void **state)
{
    struct pkvi_cgroup cgroup;
    pkvi_cgroup_query(*state, PKVI_CGROUP_CPU | PKVI_CGROUP_MEMORY, &cgroup);
    assert_true(cgroup.cpus == 0);
    assert_int_equal(cgroup.memory_bytes, 0);
}

static void test_cgroup__v2_nested__least_limit_holds(void **state)
{
    struct pkvi_cgroup cgroup;
    pkvt_root_file("/proc/self/cgroup", "0::/user/app\n");
    pkvt_root_file("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
    pkvt_root_file("/sys/fs/cgroup/user/app/cpu.max", "max 100000\n");
    pkvt_root_file("/sys/fs/cgroup/user/cpu.max", "250000 100000\n");
    pkvt_root_file("/sys/fs/cgroup/user/app/memory.max", "4000000000\n");
    pkvt_root_file("/sys/fs/cgroup/user/app/memory.current", "1000000000\n");
    pkvt_root_file("/sys/fs/cgroup/user/app/memory.stat",
                   "anon 5\nactive_file 100000000\ninactive_file 200000000\n");
    pkvt_root_file("/sys/fs/cgroup/user/memory.max", "max\n");
    pkvt_root_file("/sys/fs/cgroup/user/memory.current", "9000000000\n");
    pkvi_cgroup_query(*state, PKVI_CGROUP_CPU | PKVI_CGROUP_MEMORY, &cgroup);
    assert_true(fabs(cgroup.cpus - 2.5) < 1e-9);
    assert_int_equal(cgroup.memory_bytes, 4000000000);
    assert_int_equal(cgroup.memory_used_bytes, 700000000);
}

static void test_cgroup__v1_path_of_the_host__mount_root_is_taken_off(void **state)
{
    struct pkvi_cgroup cgroup;
    pkvt_root_file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n");
    pkvt_root_file("/proc/self/mountinfo",
                   "40 30 0:31 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup "
                   "rw,cpu,cpuacct\n"
                   "41 30 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    pkvt_root_file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
    pkvt_root_file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    /* the named path is not below this mount; its own files are the container's */
    pkvt_root_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    pkvt_root_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "73741824\n");
    pkvi_cgroup_query(*state, PKVI_CGROUP_CPU | PKVI_CGROUP_MEMORY, &cgroup);
    assert_true(fabs(cgroup.cpus - 1.5) < 1e-9);
    assert_int_equal(cgroup.memory_bytes, 1073741824);
    assert_int_equal(cgroup.memory_used_bytes, 73741824);
}

static void test_cgroup__v1_unlimited_and_garbage__no_limits(void **state)
{
    struct pkvi_cgroup cgroup;
    pkvt_root_file("/proc/self/cgroup", "no colons\n4:memory\n3:cpu:/a\n2:memory:/a\n\n");
    pkvt_root_file("/proc/self/mountinfo",
                   "x\n - cgroup\n40 30 0:31 / /cpu ro - cgroup cgroup rw,cpu\n"
                   "41 30 0:31 / /memory ro - cgroup cgroup rw,memory\n");
    pkvt_root_file("/cpu/a/cpu.cfs_quota_us", "-1\n");
    pkvt_root_file("/cpu/a/cpu.cfs_period_us", "100000\n");
    pkvt_root_file("/cpu/cpu.cfs_quota_us", "abc\n");
    pkvt_root_file("/cpu/cpu.cfs_period_us", "0\n");
    pkvt_root_file("/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    pkvt_root_file("/memory/a/memory.usage_in_bytes", "1\n");
    pkvt_root_file("/memory/memory.limit_in_bytes", "");
    pkvi_cgroup_query(*state, PKVI_CGROUP_CPU | PKVI_CGROUP_MEMORY, &cgroup);
    assert_true(cgroup.cpus == 0);
    assert_int_equal(cgroup.memory_bytes, 0);
}

static void test_limits__cgroup_below_machine__cgroup_counts(void **state)
{
    struct pkvi_limits limits;
    pkvt_root_file("/proc/meminfo",
                   "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 6000000 kB\n");
    pkvi_limits_memory(*state, &limits);
    assert_int_equal(limits.memory_total_bytes, 8000000ull * 1024);
    assert_int_equal(limits.memory_available_bytes, 6000000ull * 1024);
    assert_int_equal(limits.cgroup_limit_bytes, 0);
    pkvt_root_file("/proc/self/cgroup", "0::/\n");
    pkvt_root_file("/proc/self/mountinfo", V2_MOUNT);
    pkvt_root_file("/sys/fs/cgroup/memory.max", "1000000\n");
    pkvt_root_file("/sys/fs/cgroup/memory.current", "1200000\n");
    pkvi_limits_memory(*state, &limits);
    assert_int_equal(limits.memory_total_bytes, 1000000);
    assert_int_equal(limits.memory_available_bytes, 0);
}

static void test_host__made_up_machine__read(void **state)
{
    struct pkvi_host host;
    pkvt_root_file("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU @ 2: GHz\n"
                                    "flags\t\t: sse avx2 fma xavx512f f16c\n\nflags : avx512f\n");
    pkvt_root_file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    pkvt_root_file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    pkvt_root_file("/proc/driver/nvidia/version",
                   "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n");
    pkvt_root_file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "x\n");
    pkvi_host_query(*state, &host);
    assert_string_equal(host.cpu_model, "Test CPU @ 2: GHz");
    assert_string_equal(host.cpu_features, "avx2 fma f16c");
    assert_string_equal(host.huge_pages, "never");
    assert_true(host.may_lock);
    assert_string_equal(host.driver, "550.54.15");
    assert_int_equal(host.gpus, 1);
    assert_false(host.gpu_node);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, open_root, close_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(test_cgroup__nothing_readable__no_limits),
        WITH_ROOT(test_cgroup__v2_nested__least_limit_holds),
        WITH_ROOT(test_cgroup__v1_path_of_the_host__mount_root_is_taken_off),
        WITH_ROOT(test_cgroup__v1_unlimited_and_garbage__no_limits),
        WITH_ROOT(test_limits__cgroup_below_machine__cgroup_counts),
        WITH_ROOT(test_host__made_up_machine__read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
