/* The host arena: sizes, addresses, order of the calls, NUMA shapes, limits; and one for real. */
#include "tests/support/pkv_test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/addr.h"
#include "runtime/device/device.h"
#include "tests/support/host_fake.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define PAGE ((uint64_t)65536) /* a multiple of every page size that Linux has here */
#define TWO_NODES "pack:2 [numa(memory=1073741824)] core:4 pu:2"

static struct pkv_device *device;

static int set_up(void **state)
{
    (void)state;
    pkvt_host_reset();
    device = pkvt_host_device();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    pkv_device_close(device);
    assert_int_equal(pkvt_host.mapped_bytes, 0);
    assert_int_equal(pkvt_host_pinned(), 0);
    return 0;
}

static struct pkvi_host_arena_config config_of(uint64_t bytes, uint64_t block_bytes)
{
    return (struct pkvi_host_arena_config){.bytes = bytes,
                                           .block_bytes = block_bytes,
                                           .node = -1,
                                           .threads = 2,
                                           .calls_or_null = &pkvt_host_calls};
}

static struct pkvi_host_arena *open_arena(const struct pkvi_host_arena_config *config)
{
    struct pkvi_host_arena *arena = NULL;
    assert_ok(pkvi_host_arena_open(device, config, &arena));
    return arena;
}

static void assert_refused(const struct pkvi_host_arena_config *config, enum pkv_status status,
                           const char *words)
{
    struct pkvi_host_arena *arena = NULL;
    assert_status(pkvi_host_arena_open(device, config, &arena), status);
    assert_null(arena);
    if (!strstr(pkv_error_text(), words)) {
        fail_msg("'%s' is not in: %s", words, pkv_error_text());
    }
}

static void assert_note(const struct pkvi_host_arena *arena, const char *name, const char *words)
{
    const char *text = pkvt_host_note(arena, name);
    if (!text || !strstr(text, words)) {
        fail_msg("note '%s': '%s' is not in: %s", name, words, text ? text : "(none)");
    }
}

/* ---- sizes and addresses ---- */

static void test_plan__blocks_of_whole_pages__exact(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(0, 2 * PAGE);
    static const uint64_t counts[] = {1, 2, 8191, 8192, 8193, 1000000};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t bytes = 0;
        assert_ok(pkvi_host_arena_plan(&config, counts[i], &bytes));
        assert_int_equal(bytes, counts[i] * 2 * PAGE);
    }
}

static void test_plan__odd_blocks__each_piece_begins_at_a_page(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    struct pkvi_host_arena_config config = config_of(0, 3 * PAGE - 100);
    config.piece_bytes = 8 * PAGE; /* holds two blocks: 6 pages less 200 bytes */
    assert_ok(pkvi_host_arena_plan(&config, 5, &bytes));
    assert_int_equal(bytes, (6 + 6 + 3) * PAGE);
}

static void test_plan__impossible__status(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    struct pkvi_host_arena_config config = config_of(0, PAGE);
    assert_status(pkvi_host_arena_plan(&config, 0, &bytes), PKV_ERR_RANGE);
    assert_status(pkvi_host_arena_plan(&config, UINT64_MAX, &bytes), PKV_ERR_NO_MEMORY);
    config.block_bytes = GIB + 1;
    assert_status(pkvi_host_arena_plan(&config, 1, &bytes), PKV_ERR_RANGE);
    config.block_bytes = 0;
    assert_status(pkvi_host_arena_plan(&config, 1, &bytes), PKV_ERR_RANGE);
    config = config_of(0, PAGE);
    config.piece_bytes = PAGE - 1;
    assert_status(pkvi_host_arena_plan(&config, 1, &bytes), PKV_ERR_RANGE);
    config.piece_bytes = 2 * GIB;
    assert_status(pkvi_host_arena_plan(&config, 1, &bytes), PKV_ERR_RANGE);
    assert_status(pkvi_host_arena_plan(NULL, 1, &bytes), PKV_ERR_INVALID);
    assert_int_equal(bytes, 0);
}

/* Every block lies within one pin and has its address; blocks do not overlap. */
static void check_blocks(const struct pkvi_host_arena *arena, uint64_t block_bytes)
{
    const struct pkvi_host_report *report = pkvi_host_arena_report(arena);
    const uint8_t *end = NULL;
    uint64_t pin = 0;
    assert_int_equal(pkvt_host_pinned(), report->pieces);
    for (uint64_t i = 0; i < report->blocks; i++) {
        struct pkvi_host_block block = pkvi_host_arena_block(arena, i);
        const uint8_t *host = block.host;
        assert_true(block.pinned && host >= end);
        end = host + block_bytes;
        while (pin < report->pieces &&
               host >= pkvt_host.pins[pin].base + pkvt_host.pins[pin].bytes) {
            pin++;
        }
        assert_true(pin < report->pieces && host >= pkvt_host.pins[pin].base);
        assert_true(end <= pkvt_host.pins[pin].base + pkvt_host.pins[pin].bytes);
        assert_int_equal(block.addr,
                         pkvt_host.pins[pin].addr + (uint64_t)(host - pkvt_host.pins[pin].base));
    }
    struct pkvi_host_block none = pkvi_host_arena_block(arena, report->blocks);
    assert_true(!none.host && !none.addr && !none.pinned);
}

static void test_arena__random_shapes__blocks_never_straddle(void **state)
{
    (void)state;
    struct pkvt_rng rng = {1};
    for (int i = 0; i < 200; i++) {
        uint64_t pages = 1 + pkvt_rng_below(&rng, 8), planned, granted;
        struct pkvi_host_arena_config config =
            config_of(0, 1 + pkvt_rng_below(&rng, (uint32_t)(pages * PAGE)));
        config.piece_bytes = pages * PAGE;
        uint64_t blocks = 1 + pkvt_rng_below(&rng, 40);
        assert_ok(pkvi_host_arena_plan(&config, blocks, &planned));
        config.bytes = planned;
        pkvt_host_reset();
        struct pkvi_host_arena *arena = open_arena(&config);
        granted = pkvi_host_arena_report(arena)->granted_bytes;
        assert_true(pkvi_host_arena_report(arena)->blocks >= blocks);
        assert_int_equal(granted, planned);
        assert_int_equal(pkvt_host.mapped_bytes, granted);
        assert_int_equal(pkvi_host_arena_report(arena)->pinned_bytes, granted);
        check_blocks(arena, config.block_bytes);
        pkvi_host_arena_close(arena);
        assert_int_equal(pkvt_host.mapped_bytes, 0);
    }
}

static void test_arena__bytes_between_blocks__only_whole_blocks(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(7 * PAGE + PAGE / 2, 2 * PAGE);
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_int_equal(pkvi_host_arena_report(arena)->asked_bytes, config.bytes);
    assert_int_equal(pkvi_host_arena_report(arena)->blocks, 3);
    assert_int_equal(pkvi_host_arena_report(arena)->granted_bytes, 6 * PAGE);
    pkvi_host_arena_close(arena);
}

static void test_arena__3_gib__pieces_of_at_most_1_gib(void **state)
{
    (void)state;
    static const uint64_t block_bytes[] = {2 * PAGE, 3 * PAGE, GIB, 700 * MIB, 100 * MIB + 8};
    for (size_t i = 0; i < sizeof block_bytes / sizeof block_bytes[0]; i++) {
        uint64_t sum = 0;
        struct pkvi_host_arena_config config = config_of(3 * GIB + 5 * PAGE, block_bytes[i]);
        pkvt_host_reset();
        pkvt_host.untouched = true;
        pkvt_host.page_node = 0;
        struct pkvi_host_arena *arena = open_arena(&config);
        check_blocks(arena, config.block_bytes);
        for (uint64_t pin = 0; pin < pkvi_host_arena_report(arena)->pieces; pin++) {
            assert_true(pkvt_host.pins[pin].bytes <= GIB);
            assert_int_equal((uintptr_t)pkvt_host.pins[pin].base % 4096, 0);
            sum += pkvt_host.pins[pin].bytes;
        }
        assert_int_equal(sum, pkvi_host_arena_report(arena)->granted_bytes);
        assert_true(sum <= config.bytes);
        pkvi_host_arena_close(arena);
    }
}

/* ---- order and nodes ---- */

static void test_arena__two_nodes__bound_touched_verified_pinned_in_this_order(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(40 * MIB, 2 * PAGE);
    config.piece_bytes = 16 * MIB;
    pkvt_host.topology = TWO_NODES;
    pkvt_host.device_node = 1;
    pkvt_host.page_node = 1;
    struct pkvi_host_arena *arena = open_arena(&config);
    const struct pkvi_host_report *report = pkvi_host_arena_report(arena);
    assert_string_equal(pkvt_host.trace, "topo mmap munmap huge dontfork bind cpus run pool "
                                         "populate run pages smaps pin ");
    assert_int_equal(pkvt_host.bound_node, 1);
    assert_int_equal(pkvt_host.bound_bytes, 40 * MIB);
    assert_true(pkvt_host.bound_strict);
    assert_int_equal(pkvt_host.ran_on[0].word[0], 0xff00); /* CPUs 8 to 15 */
    assert_int_equal(pkvt_host.ran_on[1].word[0], ~0ul);   /* as before */
    assert_int_equal(report->node, 1);
    assert_true(report->node_share == 1);
    assert_int_equal(report->pinned_pieces, 3);
    assert_int_equal(report->threads, 2);
    assert_null(pkvt_host_note(arena, "node"));
    pkvi_host_arena_close(arena);
}

static void test_arena__named_node__goes_before_the_devices(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    pkvt_host.topology = TWO_NODES;
    pkvt_host.device_node = 1;
    config.node = 0;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_int_equal(pkvt_host.bound_node, 0);
    assert_int_equal(pkvt_host.ran_on[0].word[0], 0xff);
    pkvi_host_arena_close(arena);
}

static void test_arena__node_is_smaller__bound_softly_and_said(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(GIB + PAGE, PAGE);
    pkvt_host.topology = TWO_NODES;
    pkvt_host.device_node = 0;
    pkvt_host.untouched = true;
    pkvt_host.page_node = 1;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_false(pkvt_host.bound_strict);
    assert_note(arena, "bind", "node 0 has 1073741824 bytes available, 1073807360 asked");
    assert_note(arena, "placement", "0.0 % of the looked-at pages lie on node 0");
    assert_true(pkvi_host_arena_report(arena)->node_share == 0);
    pkvi_host_arena_close(arena);
}

static void test_arena__device_without_node__not_bound_and_said(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    pkvt_host.topology = TWO_NODES;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_string_equal(pkvt_host.trace, "topo mmap munmap huge dontfork populate smaps pin ");
    assert_note(arena, "node", "the device names no NUMA node");
    assert_int_equal(pkvi_host_arena_report(arena)->node, -1);
    assert_true(pkvi_host_arena_report(arena)->node_share == -1);
    pkvi_host_arena_close(arena);
}

static void test_arena__devices_node_not_allowed__not_bound_and_said(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    pkvt_host.topology = TWO_NODES;
    pkvt_host.device_node = 5;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_note(arena, "node", "may not use the device's NUMA node");
    assert_int_equal(pkvt_host.bound_bytes, 0);
    pkvi_host_arena_close(arena);
}

static void test_arena__named_node_not_there__invalid(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    config.node = 7;
    assert_refused(&config, PKV_ERR_INVALID, "NUMA node 7: this machine has node 0 only");
    pkvt_host.topology = TWO_NODES;
    assert_refused(&config, PKV_ERR_INVALID, "NUMA node 7: not one of the 2");
    assert_null(strstr(pkvt_host.trace, "mmap"));
}

static void test_arena__one_node_of_several_allowed__that_one(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    pkvt_host.topology = "numa:1 core:2 pu:1";
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_int_equal(pkvi_host_arena_report(arena)->node, 0);
    assert_int_equal(pkvt_host.bound_bytes, MIB);
    pkvi_host_arena_close(arena);
}

static void test_arena__no_cpu_of_the_node__touched_from_others_and_said(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    pkvt_host.topology = TWO_NODES;
    pkvt_host.device_node = 1;
    pkvt_host.last_cpu = 3;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_note(arena, "touch", "no CPU of node 1");
    assert_null(strstr(pkvt_host.trace, "run"));
    assert_int_equal(pkvt_host.bound_node, 1);
    pkvi_host_arena_close(arena);
}

static void test_arena__one_node__nothing_to_bind(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(MIB, PAGE);
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_string_equal(pkvt_host.trace, "mmap munmap huge dontfork populate pages smaps pin ");
    assert_note(arena, "node", "one NUMA node");
    pkvi_host_arena_close(arena);
}

/* ---- limits ---- */

static void test_arena__more_than_available__refused_before_mapping(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(512 * MIB, PAGE);
    pkvt_host.available_bytes = 513 * MIB; /* the page tables' MiB fits */
    pkvt_host.untouched = true;
    pkvt_host.page_node = 0;
    pkvi_host_arena_close(open_arena(&config));
    pkvt_host.trace[0] = '\0';
    pkvt_host.available_bytes--;
    assert_refused(&config, PKV_ERR_NO_MEMORY,
                   "536870912 bytes asked (page tables 1048576 more), 537919487 available");
    assert_string_equal(pkvt_host.trace, "");
    pkvt_host.cgroup_limit_bytes = 600 * MIB;
    pkvt_host.cgroup_used_bytes = 100 * MIB;
    pkvt_host.available_bytes = 500 * MIB;
    assert_refused(&config, PKV_ERR_NO_MEMORY, "the cgroup's limit is 629145600, in use 104857600");
    assert_non_null(strstr(pkv_error_text(), "docker run --memory"));
    assert_string_equal(pkvt_host.trace, "");
    config.bytes = 1ull << 62;
    pkvt_host.available_bytes = UINT64_MAX;
    assert_refused(&config, PKV_ERR_NO_MEMORY, "4611686018427387904 bytes asked");
}

static void test_arena__bad_config__status(void **state)
{
    (void)state;
    struct pkvi_host_arena *arena = NULL;
    struct pkvi_host_arena_config config = config_of(PAGE - 1, PAGE);
    assert_refused(&config, PKV_ERR_RANGE, "no room for one block");
    config = config_of(PAGE, 0);
    assert_refused(&config, PKV_ERR_RANGE, "blocks of 0 bytes");
    config = config_of(PAGE, PAGE);
    assert_status(pkvi_host_arena_open(NULL, &config, &arena), PKV_ERR_INVALID);
    assert_status(pkvi_host_arena_open(device, NULL, &arena), PKV_ERR_INVALID);
    assert_status(pkvi_host_arena_open(device, &config, NULL), PKV_ERR_INVALID);
    pkvi_host_arena_close(NULL);
}

static void test_arena__huge_pages_off__said_with_the_command(void **state)
{
    (void)state;
    struct pkvi_host_arena_config config = config_of(4 * MIB, PAGE);
    pkvt_host.huge_pages = "never";
    pkvt_host.untouched = true; /* so there are none */
    pkvt_host.page_node = 0;
    struct pkvi_host_arena *arena = open_arena(&config);
    assert_note(arena, "huge pages", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    assert_true(pkvi_host_arena_report(arena)->huge_share == 0);
    pkvi_host_arena_close(arena);
    pkvt_host.huge_pages = "madvise";
    arena = open_arena(&config);
    assert_note(arena, "huge pages", "compact_memory");
    pkvi_host_arena_close(arena);
}

/* ---- for real ---- */

static void test_arena__this_machine__filled_and_read_back(void **state)
{
    (void)state;
    struct pkv_device *cpu;
    struct pkvi_host_arena *arena;
    struct pkvi_host_arena_config config = config_of(64 * MIB + 3 * PAGE, 3 * PAGE);
    config.calls_or_null = NULL;
    config.threads = 4;
    config.piece_bytes = 24 * MIB;
    assert_ok(pkv_device_open("cpu", NULL, &cpu));
    assert_ok(pkvi_host_arena_open(cpu, &config, &arena));
    const struct pkvi_host_report *report = pkvi_host_arena_report(arena);
    uint64_t *first = pkvi_host_arena_block(arena, 0).host, words = 3 * PAGE / sizeof *first;
    assert_int_equal((uintptr_t)first % (2 * MIB), 0);
    assert_int_equal(report->blocks, 342);
    assert_int_equal(report->granted_bytes, 342 * 3 * PAGE);
    assert_int_equal(report->pinned_bytes, report->granted_bytes);
    assert_int_equal(report->pieces, 3);
    for (uint64_t i = 0; i < report->blocks; i++) {
        uint64_t *block = pkvi_host_arena_block(arena, i).host;
        assert_int_equal(pkvi_addr(block), pkvi_host_arena_block(arena, i).addr);
        for (uint64_t word = 0; word < words; word++) {
            assert_int_equal(block[word], 0);
            block[word] = i * words + word;
        }
    }
    for (uint64_t i = 0; i < report->blocks; i++) {
        const uint64_t *block = pkvi_host_arena_block(arena, i).host;
        for (uint64_t word = 0; word < words; word++) {
            assert_int_equal(block[word], i * words + word);
        }
    }
    if (report->node >= 0 && report->node_share >= 0) {
        assert_true(report->node_share > 0.99);
    }
    pkvi_host_arena_close(arena);
    pkv_device_close(cpu);
}

static void test_readers__memory_of_this_process__found(void **state)
{
    (void)state;
    uint64_t bytes = 8 * MIB, huge = UINT64_MAX;
    double share = -1;
    void *page;
    int node = -1;
    uint8_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    (void)madvise(map, bytes, MADV_NOHUGEPAGE);
    if (pkvi_host_calls.node_share(map, bytes, 0, &share) == ENOENT) {
        share = -2; /* a kernel without NUMA */
    }
    memset(map, 1, bytes);
    assert_int_equal(pkvi_host_calls.huge_bytes(map, bytes, &huge), 0);
    assert_int_equal(huge, 0);
    page = map + bytes / 2;
    if (share == -1 && pkvi_topo_page_nodes(&page, 1, &node) == 0) {
        assert_true(node >= 0);
        assert_int_equal(pkvi_host_calls.node_share(map, bytes, (uint32_t)node, &share), 0);
        assert_true(share > 0.5);
        assert_int_equal(pkvi_host_calls.node_share(map, bytes, 1000, &share), 0);
        assert_true(share == 0);
    }
    assert_int_equal(munmap(map, bytes), 0);
}

static void test_bind__this_machine__taken_or_refused(void **state)
{
    (void)state;
    struct pkvi_topo_cpus cpus;
    uint32_t node;
    void *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(pkvi_topo_thread_cpus(&cpus), 0);
    assert_int_equal(pkvi_topo_run_on(&cpus), 0);
    if (pkvi_topo_one_node(&node)) {
        int error = pkvi_topo_bind_memory(map, MIB, node, true);
        assert_true(error == 0 || error == EPERM || error == ENOSYS);
        error = pkvi_topo_bind_memory(map, MIB, 1023, true);
        assert_true(error == EINVAL || error == EPERM || error == ENOSYS);
    }
    assert_int_equal(pkvi_topo_bind_memory(map, MIB, 1u << 20, true), EINVAL);
    assert_int_equal(munmap(map, MIB), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_plan__blocks_of_whole_pages__exact),
        TEST(test_plan__odd_blocks__each_piece_begins_at_a_page),
        TEST(test_plan__impossible__status),
        TEST(test_arena__random_shapes__blocks_never_straddle),
        TEST(test_arena__bytes_between_blocks__only_whole_blocks),
        TEST(test_arena__3_gib__pieces_of_at_most_1_gib),
        TEST(test_arena__two_nodes__bound_touched_verified_pinned_in_this_order),
        TEST(test_arena__named_node__goes_before_the_devices),
        TEST(test_arena__node_is_smaller__bound_softly_and_said),
        TEST(test_arena__device_without_node__not_bound_and_said),
        TEST(test_arena__devices_node_not_allowed__not_bound_and_said),
        TEST(test_arena__named_node_not_there__invalid),
        TEST(test_arena__one_node_of_several_allowed__that_one),
        TEST(test_arena__no_cpu_of_the_node__touched_from_others_and_said),
        TEST(test_arena__one_node__nothing_to_bind),
        TEST(test_arena__more_than_available__refused_before_mapping),
        TEST(test_arena__bad_config__status),
        TEST(test_arena__huge_pages_off__said_with_the_command),
        TEST(test_arena__this_machine__filled_and_read_back),
        TEST(test_readers__memory_of_this_process__found),
        TEST(test_bind__this_machine__taken_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
