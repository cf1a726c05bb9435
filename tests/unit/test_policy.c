/* The table of policies, and that the command's words are its names. */
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/tier_impl.h"

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

/* Three groups of layers: the one that attention changes least gets half of the mean, and the sum
 * stays. */
static void test_squeeze__three_groups__highest_gets_half(void **state)
{
    (void)state;
    const double cosines[] = {0.31, 0.95, 0.62, 0.93, 0.30, 0.60, 0.96, 0.28};
    const uint32_t kv_heads[] = {1, 2, 1, 1, 3, 1, 2, 1};
    const struct pkv_policy_ops *squeeze = pkv_policy_find("squeeze");
    struct pkv_budget_shape shape = {.layers = 8, .kv_heads = kv_heads, .given = cosines};
    double weights[12], sum = 0.0;
    assert_ok(squeeze->budget(&squeeze->recipe, &shape, weights));
    for (uint32_t l = 0, i = 0; l < 8; l++) {
        const double want = cosines[l] > 0.9 ? 0.5 : (8 - 3 * 0.5) / 5;
        for (uint32_t h = 0; h < kv_heads[l]; h++) {
            assert_float_equal(weights[i++], want, 1e-12);
        }
        sum += want;
    }
    assert_float_equal(sum, 8.0, 1e-12);
    const double same[] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    shape.given = same;
    assert_ok(squeeze->budget(&squeeze->recipe, &shape, weights));
    assert_float_equal(weights[0], 1.0, 1e-12);
    assert_float_equal(weights[11], 1.0, 1e-12);
    shape.given = NULL;
    assert_status(squeeze->budget(&squeeze->recipe, &shape, weights), PKV_ERR_INVALID);
}

/* A policy from outside the table, in a session: its pages are what its budget says. */
static enum pkv_status first_layer_alone(const struct pkv_recipe *recipe,
                                         const struct pkv_budget_shape *shape, double *weights)
{
    for (uint32_t l = 0, i = 0; l < shape->layers; l++) {
        for (uint32_t h = 0; h < shape->kv_heads[l]; h++) {
            weights[i++] = recipe->sinks == 7 ? NAN : l == 0;
        }
    }
    return PKV_OK;
}

static void test_budget__policy_of_ones_own__slots_lie_so(void **state)
{
    (void)state;
    struct pkv_policy_ops policy = *pkv_policy_find("snapkv");
    const struct pkv_layer_info layer = {
        .kind = PKV_LAYER_GLOBAL, .heads = 4, .kv_heads = 2, .head_dim = 32};
    const struct pkv_layer_info layers[] = {layer, layer, layer};
    struct pkvi_tier_config config = {.layer = layers,
                                      .layers = 3,
                                      .context_tokens = 4096,
                                      .sequences = 1,
                                      .step_rows = 64,
                                      .pass_rows = 64,
                                      .host = true,
                                      .budget_bytes = 600 * 1024,
                                      .policy = &policy,
                                      .threads = 1};
    struct pkv_device_config device_config = pkv_device_config_default();
    struct pkv_device *device = NULL;
    struct pkv_stream *compute = NULL;
    struct pkvi_tier *tier = NULL;
    policy.budget = first_layer_alone;
    assert_ok(pkv_device_open("cpu", &device_config, &device));
    assert_ok(pkvi_stream_open(device, PKV_COMPUTE, NULL, &compute));
    assert_ok(pkvi_tier_open(device, &config, compute, &tier));
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 6; i++) { /* sinks of the others: a page each */
        assert_true(i < 2 ? tier->hot_pages[i] > 10 : tier->hot_pages[i] == 1);
        sum += tier->hot_pages[i];
    }
    assert_int_equal(sum, tier->sizes.hot_pages);
    pkvi_tier_close(tier);
    pkvi_stream_close(compute);
    pkv_device_close(device);
    struct pkvi_tier_sizes sizes;
    policy.recipe.sinks = 7;
    assert_status(pkvi_tier_plan(&config, &sizes), PKV_ERR_INVALID);
    policy = *pkv_policy_find("squeeze");
    assert_status(pkvi_tier_plan(&config, &sizes), PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "file:PATH"));
    config.layer_weights = (const double[]){-0.5, 0.9, 0.2};
    assert_ok(pkvi_tier_plan(&config, &sizes));
}

/* The guide shows the whole file, which is as short as it says. */
static void test_squeeze__guide__shows_the_file(void **state)
{
    (void)state;
    size_t bytes = 0;
    char *guide = pkvt_read_file(pkvt_path("../docs/adding-a-policy.md"), &bytes);
    char *file = pkvt_read_file(pkvt_path("../offload/policy/squeeze.c"), &bytes);
    uint32_t lines = 0;
    for (size_t i = 0; i < bytes; i++) {
        lines += file[i] == '\n';
    }
    assert_true(lines < 60);
    assert_non_null(strstr(guide, strstr(file, "#include")));
    free(guide);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy__every_one__found_by_its_name),
        cmocka_unit_test(test_squeeze__three_groups__highest_gets_half),
        cmocka_unit_test(test_squeeze__guide__shows_the_file),
        cmocka_unit_test(test_budget__policy_of_ones_own__slots_lie_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
