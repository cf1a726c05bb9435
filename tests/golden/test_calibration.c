/*
 * What a calibration measures, against an independent pass in double precision
 * (make_calibration.py), of four families: rotary pairs side by side and in halves, biases, norms
 * of q and k, sliding layers, post norms.
 */
#include "tests/support/golden_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/session/calibration.h"

/* Of the largest value of its array. Observed: 1.4e-4, where a K or V falls to the other side of a
 * rounding edge of f16; one row more or less is 1e-2. */
#define TOLERANCE 4e-4

static const char *const models[] = {"llama", "qwen2", "qwen3", "gemma3"};

struct array {
    const char *name;
    const float *got;
    size_t count;
};

static double worst_of(const json_t *layer, const struct array *array)
{
    const json_t *want = json_object_get(layer, array->name);
    double worst = 0.0, largest = 1e-30;
    assert_int_equal(json_array_size(want), array->count);
    for (size_t i = 0; i < array->count; i++) {
        const double value = json_number_value(json_array_get(want, i));
        const double off = fabs(value - (double)array->got[i]);
        worst = isnan(off) ? INFINITY : fmax(worst, off);
        largest = fmax(largest, fabs(value));
    }
    return worst / largest;
}

static double check_layer(const struct pkv_calibration *c, uint32_t l, const json_t *want,
                          const char *model)
{
    const struct pkvi_layer_calibration *layer = &c->layer[l];
    const size_t channels = (size_t)c->shape[l].kv_heads * c->shape[l].head_dim;
    const struct array arrays[] = {{"delta_ahead", layer->delta_ahead, c->width},
                                   {"delta_mid", layer->delta_mid, c->width},
                                   {"key_mean", layer->key_mean, channels},
                                   {"key_sd", layer->key_sd, channels},
                                   {"key_pair", layer->key_pair, channels / 2},
                                   {"query_power", layer->query_power, channels}};
    double worst = fabs((double)layer->cosine - json_number_value(json_object_get(want, "cosine")));
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        const double off = worst_of(want, &arrays[i]);
        if (!(off <= TOLERANCE)) {
            fail_msg("%s, layer %u, %s: %.3g of its largest value off", model, l, arrays[i].name,
                     off);
        }
        worst = fmax(worst, off);
    }
    assert_true(worst <= TOLERANCE);
    return worst;
}

static void check(const json_t *root, const char *name)
{
    const struct pkvt_engine_options options = {.exact = true, .threads = 2, .context = 128};
    struct pkvt_engine engine;
    struct pkv_ids ids = {0};
    struct pkv_calibration *c = NULL;
    char file[128];
    double worst = 0.0;
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", name);
    pkvt_engine_open(&engine, pkvt_path(file), &options);
    const json_t *model = json_object_get(root, name);
    const json_t *list = json_object_get(model, "ids"), *layers = json_object_get(model, "layers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_ok(pkv_ids_append(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    }
    assert_ok(pkv_calibration_run(engine.model, ids.id, ids.count, &c));
    assert_int_equal(json_array_size(layers), c->layers);
    assert_int_equal(c->layers, engine.info.layers);
    for (uint32_t l = 0; l < c->layers; l++) {
        worst = fmax(worst, check_layer(c, l, json_array_get(layers, l), name));
    }
    print_message("%s: %.2g off\n", name, worst);
    pkv_calibration_close(c);
    pkv_ids_free(&ids);
    pkvt_engine_close(&engine);
}

static void test_calibration__four_families__equal_float64(void **state)
{
    (void)state;
    json_t *root = pkvt_golden_json("calibration.json");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        check(root, models[i]);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibration__four_families__equal_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
