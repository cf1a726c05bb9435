/* LONG: both real models at the bars' full sizes: 4,000 to 8,000 tokens, and perplexity to our
 * exact. */
#include "tests/support/golden_model.h"

static const char *smollm2, *gemma3;

static void test_smollm2__long_texts__near_peer(void **state)
{
    (void)state;
    pkvt_check_logits_near(smollm2, "model_smollm2.json", 1, 4000);
    pkvt_check_nll(smollm2, "model_smollm2.json", 2049, 8000);
    pkvt_check_greedy(smollm2, "model_smollm2.json", 2049, 6000);
}

static void test_smollm2__fast__perplexity_near_exact(void **state)
{
    (void)state;
    pkvt_check_nll_to_exact(smollm2, "model_smollm2.json", 2048);
}

static void test_gemma3__long_texts__near_peer(void **state)
{
    (void)state;
    pkvt_check_logits_near(gemma3, "model_gemma3.json", 1001, 4000);
    pkvt_check_nll(gemma3, "model_gemma3.json", 513, 8000);
    pkvt_check_greedy(gemma3, "model_gemma3.json", 65, 6000);
}

static void test_gemma3__fast__perplexity_near_exact(void **state)
{
    (void)state;
    pkvt_check_nll_to_exact(gemma3, "model_gemma3.json", 2048);
}

int main(void)
{
    smollm2 = pkvt_model_path("smollm2");
    gemma3 = pkvt_model_path("gemma3");
    if (!smollm2 || !gemma3) {
        print_message("SKIP: no models: scripts/get-model smollm2, scripts/get-model gemma3\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2__long_texts__near_peer),
        cmocka_unit_test(test_smollm2__fast__perplexity_near_exact),
        cmocka_unit_test(test_gemma3__long_texts__near_peer),
        cmocka_unit_test(test_gemma3__fast__perplexity_near_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
