/* Gemma-3-270M against llama.cpp (tests/golden/README.md), cases up to 1,000 tokens. */
#include "tests/support/golden_model.h"

static const char *path;

static void test_gemma3__fast__logits_near_peer(void **state)
{
    (void)state;
    pkvt_check_logits_near(path, "model_gemma3.json", 1, 1000);
}

static void test_gemma3__fast__perplexity(void **state)
{
    (void)state;
    pkvt_check_nll(path, "model_gemma3.json", 1, 512);
}

static void test_gemma3__fast__greedy(void **state)
{
    (void)state;
    pkvt_check_greedy(path, "model_gemma3.json", 1, 64);
}

int main(void)
{
    path = pkvt_model_path("gemma3");
    if (!path) {
        print_message("SKIP: no model: scripts/get-model gemma3\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma3__fast__logits_near_peer),
        cmocka_unit_test(test_gemma3__fast__perplexity),
        cmocka_unit_test(test_gemma3__fast__greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
