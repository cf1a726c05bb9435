/* The table of policies, and that the command's words are its names. */
#include "tests/support/pkv_test.h"

#include <string.h>

#include "pivotkv/impl/policy_ops.h"
#include "runtime/cli/engine.h"

static void test_policy__every_one__found_by_its_name(void **state)
{
    (void)state;
    uint32_t count = 0;
    for (const struct pkv_policy_ops *p; (p = pkv_policy_at(count)); count++) {
        assert_ptr_equal(pkv_policy_find(pkv_policy_name(p)), p);
        const char *word = strstr("|" PKV_ENGINE_POLICIES "|", pkv_policy_name(p));
        assert_true(word && word[-1] == '|' && word[strlen(pkv_policy_name(p))] == '|');
        assert_int_equal(p->abi, PKV_POLICY_ABI);
        assert_true(strlen(pkv_policy_source(p)) > 0);
        assert_int_equal(p->recipe.pool % 2, 1);
    }
    assert_true(count >= 4);
    assert_null(pkv_policy_find("pivo"));
    assert_null(pkv_policy_find(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy__every_one__found_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
