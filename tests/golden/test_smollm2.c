/* SmolLM2-135M against numpy and llama.cpp (tests/golden/README.md), cases up to 2,048 tokens. */
#include "tests/support/golden_model.h"

static const char *path;

static void test_smollm2__exact__logits_within_2e3(void **state)
{
    (void)state;
    pkvt_check_exact_logits(path, "exact_smollm2.json", 2e-3);
}

static void test_smollm2__fast__no_farther_from_exact_than_peer(void **state)
{
    (void)state;
    pkvt_check_closeness(path, "exact_smollm2.json", "model_smollm2.json", 1.2);
}

static void test_smollm2__fast__perplexity(void **state)
{
    (void)state;
    pkvt_check_nll(path, "model_smollm2.json", 1, 2048);
}

static void test_smollm2__fast__greedy(void **state)
{
    (void)state;
    pkvt_check_greedy(path, "model_smollm2.json", 1, 2048);
}

int main(void)
{
    path = pkvt_model_path("smollm2");
    if (!path) {
        print_message("SKIP: no model: scripts/get-model smollm2\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2__exact__logits_within_2e3),
        cmocka_unit_test(test_smollm2__fast__no_farther_from_exact_than_peer),
        cmocka_unit_test(test_smollm2__fast__perplexity),
        cmocka_unit_test(test_smollm2__fast__greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
