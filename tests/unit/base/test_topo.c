/* Topologies: made-up machines, and the one at hand. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "runtime/base/topo.h"

static void test_topo__two_nodes__described(void **state)
{
    (void)state;
    struct pkvi_topo *topo;
    assert_ok(
        pkvi_topo_open("pack:2 [numa(memory=1073741824)] l3:1(size=16777216) core:4 pu:2", &topo));
    assert_int_equal(topo->sockets, 2);
    assert_int_equal(topo->cores, 8);
    assert_int_equal(topo->cpus, 16);
    assert_int_equal(topo->node_count, 2);
    assert_int_equal(topo->last_level_bytes, 16777216);
    assert_int_equal(topo->last_level_cpus, 8);
    assert_int_equal(topo->nodes[1].number, 1);
    assert_int_equal(topo->nodes[1].cpus, 8);
    assert_int_equal(topo->nodes[1].memory_bytes, 1073741824);
    assert_string_equal(topo->nodes[1].cpu_list, "8-15");
    assert_int_equal(topo->nodes[1].cpu_set.word[0], 0xff00);
    assert_int_equal(topo->nodes[1].available_bytes, 0);
    pkvi_topo_close(topo);
}

static void test_topo__more_cpus_than_a_word__whole_set(void **state)
{
    (void)state;
    struct pkvi_topo *topo;
    struct pkvi_topo_cpus want = {{0}};
    assert_ok(pkvi_topo_open("numa:2 core:96 pu:1", &topo));
    want.word[0] = ~0ul;
    want.word[1] = 0xffffffff;
    assert_memory_equal(&topo->nodes[0].cpu_set, &want, sizeof want);
    pkvi_topo_close(topo);
}

static void test_topo__nonsense__invalid(void **state)
{
    (void)state;
    struct pkvi_topo *topo = NULL;
    assert_status(pkvi_topo_open("one big thing", &topo), PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "one big thing"));
    assert_null(topo);
    pkvi_topo_close(NULL);
}

static void test_topo__this_machine__has_cpus_and_a_node(void **state)
{
    (void)state;
    struct pkvi_topo *topo;
    assert_ok(pkvi_topo_open(NULL, &topo));
    assert_true(topo->cpus >= 1 && topo->node_count >= 1);
    uint32_t number = UINT32_MAX;
    if (pkvi_topo_one_node(&number)) {
        assert_int_equal(topo->node_count, 1);
        assert_int_equal(topo->nodes[0].number, number);
    }
    pkvi_topo_close(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topo__two_nodes__described),
        cmocka_unit_test(test_topo__more_cpus_than_a_word__whole_set),
        cmocka_unit_test(test_topo__nonsense__invalid),
        cmocka_unit_test(test_topo__this_machine__has_cpus_and_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
