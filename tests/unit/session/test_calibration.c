/* Calibration: the same whatever the way it is measured, its file, and what is refused. That it
 * measures the right thing is golden.calibration's. */
#include "tests/support/golden_model.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/session/calibration.h"

#define TOKENS 150u

static char path[64], other_path[72];
static int32_t ids[1000];

static struct pkv_model *open_model(const char *name, uint32_t threads, struct pkv_device **device)
{
    struct pkv_device_config config = pkv_device_config_default();
    const struct pkv_model_config model_config = pkv_model_config_default();
    struct pkv_model *model = NULL;
    char file[128];
    config.threads = threads;
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", name);
    assert_ok(pkv_device_open("cpu", &config, device));
    assert_ok(pkv_model_open(*device, pkvt_path(file), &model_config, &model));
    return model;
}

static void close_model(struct pkv_model *model, struct pkv_device *device)
{
    pkv_model_close(model);
    pkv_device_close(device);
}

static void same(const struct pkv_calibration *a, const struct pkv_calibration *b)
{
    assert_int_equal(a->header->file_bytes, b->header->file_bytes);
    assert_memory_equal(a->file, b->file, a->header->file_bytes);
}

static void write_file(const char *data, size_t bytes)
{
    FILE *file = fopen(other_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void test_calibration__any_rows_and_threads__same_bits(void **state)
{
    (void)state;
    static const uint32_t rows[] = {512, 1, 7, 64, 100};
    struct pkv_calibration *first = NULL, *other = NULL;
    for (uint32_t i = 0; i < 5; i++) {
        struct pkv_device *device = NULL;
        struct pkv_model *model = open_model("gemma3", 1 + i % 2, &device);
        assert_ok(pkvi_calibration_measure(model, ids, TOKENS, rows[i], i ? &other : &first));
        if (i > 0) {
            same(first, other);
            pkv_calibration_close(other);
        }
        close_model(model, device);
    }
    pkv_calibration_close(first);
}

static void test_calibration__first_layer__has_no_change(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkv_model *model = open_model("qwen3", 2, &device);
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    for (uint32_t i = 0; i < c->width; i++) {
        assert_true(c->layer[0].delta_ahead[i] == 0.0f && c->layer[0].delta_mid[i] == 0.0f);
        assert_true(c->layer[1].delta_ahead[i] != 0.0f);
    }
    pkv_calibration_close(c);
    close_model(model, device);
}

static void test_calibration__no_ids_no_vocabulary__made_up_ones(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *first = NULL, *again = NULL;
    struct pkv_calibration_info info;
    struct pkv_model_info model_info;
    struct pkv_model *model = open_model("llama_q4_1", 2, &device);
    assert_ok(pkv_calibration_run(model, NULL, 0, &first));
    assert_ok(pkv_calibration_run(model, NULL, 0, &again));
    same(first, again);
    pkv_calibration_query(first, &info);
    pkv_model_query(model, &model_info);
    assert_int_equal(info.source, PKV_CALIBRATION_RANDOM);
    assert_int_equal(info.tokens, model_info.context < 2048 ? model_info.context : 2048);
    assert_int_equal(info.layers, 2);
    assert_int_equal(info.width, 256);
    assert_true(info.identity != 0 && info.identity == model_info.identity);
    assert_true(info.cosine[0] > 0.0f && info.cosine[1] <= 1.0f);
    pkv_calibration_close(first);
    pkv_calibration_close(again);
    close_model(model, device);
}

static void test_calibration__saved_and_loaded__same_bits(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "qwen2", "qwen3", "gemma3", "phi3"};
    for (uint32_t i = 0; i < 5; i++) {
        struct pkv_device *device = NULL;
        struct pkv_calibration *c = NULL, *loaded = NULL;
        struct pkv_model *model = open_model(models[i], 2, &device);
        assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
        assert_ok(pkv_calibration_save(c, path));
        assert_ok(pkv_calibration_load(model, path, &loaded));
        same(c, loaded);
        for (uint32_t l = 0; l < c->layers; l++) {
            const struct pkvi_layer_calibration *a = &c->layer[l], *b = &loaded->layer[l];
            assert_true(a->cosine == b->cosine && a->cosine == c->values[l]);
            assert_true(a->key_sd[3] > 0.0f && a->key_sd[3] == b->key_sd[3]);
            assert_int_equal(a->query_power - c->values, b->query_power - loaded->values);
        }
        size_t bytes = 0;
        char *file = pkvt_read_file(path, &bytes);
        assert_int_equal(bytes, c->header->file_bytes);
        free(file);
        pkv_calibration_close(c);
        pkv_calibration_close(loaded);
        close_model(model, device);
    }
}

/* ---- what is refused ---- */

static void refuse(const struct pkv_model *model, const char *from, enum pkv_status want,
                   const char *mentions)
{
    struct pkv_calibration *c = NULL;
    assert_status(pkv_calibration_load(model, from, &c), want);
    assert_null(c);
    if (!strstr(pkv_error_text(), mentions)) {
        fail_msg("'%s' does not mention '%s'", pkv_error_text(), mentions);
    }
}

static void test_load__any_byte_changed_or_missing__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkvt_rng rng = {.state = 5};
    struct pkv_model *model = open_model("gemma3", 2, &device);
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    const size_t bytes = c->header->file_bytes;
    const uint32_t tries = PKVT_SANITIZED ? 150 : 600;
    for (uint32_t i = 0; i < tries; i++) {
        const size_t at = i < 220 ? i : pkvt_rng_below(&rng, (uint32_t)bytes);
        struct pkv_calibration *other = NULL;
        c->file[at] = (char)(c->file[at] ^ (1 << i % 8));
        write_file(c->file, bytes);
        const enum pkv_status status = pkv_calibration_load(model, other_path, &other);
        if (status != (at >= 8 && at < 12 ? PKV_ERR_UNSUPPORTED : PKV_ERR_CORRUPT)) {
            fail_msg("byte %zu of %zu changed: %s", at, bytes, pkv_status_name(status));
        }
        c->file[at] = (char)(c->file[at] ^ (1 << i % 8));
    }
    for (uint32_t i = 0; i < 60; i++) {
        write_file(c->file, i < 30 ? i * 3 : bytes - 1 - (i - 30) * (i - 30));
        refuse(model, other_path, PKV_ERR_CORRUPT, "calibration.");
    }
    pkv_calibration_close(c);
    close_model(model, device);
}

/* A file whose checksum holds, with one number of it changed. */
static void change(const struct pkv_calibration *c, size_t offset, const void *value, size_t bytes)
{
    const size_t file_bytes = c->header->file_bytes;
    char *copy = malloc(file_bytes);
    assert_non_null(copy);
    memcpy(copy, c->file, file_bytes);
    memcpy(copy + offset, value, bytes);
    const uint64_t checksum = pkvi_calibration_checksum(copy, file_bytes);
    memcpy(copy + file_bytes - sizeof checksum, &checksum, sizeof checksum);
    write_file(copy, file_bytes);
    free(copy);
}

static void test_load__lying_numbers__refused(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        uint32_t value;
        enum pkv_status want;
        const char *mentions;
    } lies[] = {
        {8, 0, PKV_ERR_UNSUPPORTED, "version 0"},
        {8, 2, PKV_ERR_UNSUPPORTED, "version 2"},
        {12, 47, PKV_ERR_CORRUPT, "header's size is 47, expected 48"},
        {16, 1000, PKV_ERR_CORRUPT, "expected 1000"},
        {20, 1, PKV_ERR_CORRUPT, "expected 4"}, /* 4 GiB and more */
        {24, 77, PKV_ERR_INVALID, "another model"},
        {32, 0, PKV_ERR_CORRUPT, "number of layers is 0"},
        {32, 1, PKV_ERR_CORRUPT, "by its parts"},
        {32, 65536, PKV_ERR_CORRUPT, "number of layers is 65536"},
        {32, UINT32_MAX, PKV_ERR_CORRUPT, "number of layers"},
        {36, 0, PKV_ERR_CORRUPT, "the width is 0"},
        {36, 128, PKV_ERR_CORRUPT, "by its parts"},
        {36, UINT32_MAX, PKV_ERR_CORRUPT, "the width"},
        {40, 127, PKV_ERR_CORRUPT, "the number of tokens is 127"},
        {40, UINT32_MAX, PKV_ERR_CORRUPT, "the number of tokens"},
        {44, 3, PKV_ERR_CORRUPT, "the source is 3"},
        {48, 2, PKV_ERR_CORRUPT, "kind 2"},
        {52, 0, PKV_ERR_CORRUPT, "0 heads"},
        {52, 1, PKV_ERR_CORRUPT, "1 heads"}, /* fewer than KV heads */
        {52, 4, PKV_ERR_INVALID, "another model"},
        {56, 0, PKV_ERR_CORRUPT, "0 KV heads"},
        {60, 0, PKV_ERR_CORRUPT, "KV heads of 0"},
        {60, 31, PKV_ERR_CORRUPT, "16 rotary pairs"},
        {60, 65536, PKV_ERR_CORRUPT, "of 65536"},
        {64, 17, PKV_ERR_CORRUPT, "17 rotary pairs"},
        {64, 8, PKV_ERR_INVALID, "another model"},
        {68, 2, PKV_ERR_CORRUPT, "(2)"},
        {68, 1, PKV_ERR_INVALID, "another model"},
    };
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkv_model *model = open_model("llama", 2, &device); /* 8:2 heads of 32, 16 pairs */
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        change(c, lies[i].offset, &lies[i].value, sizeof lies[i].value);
        refuse(model, other_path, lies[i].want, lies[i].mentions);
    }
    pkv_calibration_close(c);
    close_model(model, device);
}

static void test_load__values_out_of_range__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkv_model *model = open_model("llama", 2, &device);
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    const struct pkvi_layer_calibration *last = &c->layer[1];
    const struct {
        const float *at;
        float value;
        const char *mentions;
    } lies[] = {
        {c->values, 1.001f, "the cosine of layer 0 is 1.001"},
        {c->values + 1, NAN, "the cosine of layer 1"},
        {last->delta_ahead + 5, NAN, "residual of layer 1"},
        {last->delta_mid + 255, INFINITY, "residual of layer 1"},
        {last->key_mean, -INFINITY, "a key's mean"},
        {last->key_sd + 63, -0.5f, "a key's deviation of layer 1 is -0.5"},
        {last->query_power + 63, -1.0f, "a query's power of layer 1 is -1"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const size_t offset = (size_t)((const char *)lies[i].at - c->file);
        change(c, offset, &lies[i].value, sizeof lies[i].value);
        refuse(model, other_path, PKV_ERR_CORRUPT, lies[i].mentions);
    }
    change(c, (size_t)((const char *)c->values - c->file), c->values, 4); /* nothing */
    struct pkv_calibration *other = NULL;
    assert_ok(pkv_calibration_load(model, other_path, &other));
    pkv_calibration_close(other);
    pkv_calibration_close(c);
    close_model(model, device);
}

static void test_load__other_models_and_no_file__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkv_model *model = open_model("llama", 2, &device);
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    assert_ok(pkv_calibration_save(c, path));
    pkv_calibration_close(c);
    close_model(model, device);
    static const char *const others[] = {"llama_q4_1", "qwen2"}; /* the first of the same shape */
    for (uint32_t i = 0; i < 2; i++) {
        model = open_model(others[i], 1, &device);
        refuse(model, path, PKV_ERR_INVALID, "another model");
        close_model(model, device);
    }
    model = open_model("llama", 1, &device);
    refuse(model, "/nowhere", PKV_ERR_IO, "/nowhere");
    refuse(model, "/", PKV_ERR_IO, "regular file");
    refuse(model, "", PKV_ERR_INVALID, "no path");
    refuse(model, pkvt_path("golden/tiny/llama.gguf"), PKV_ERR_CORRUPT, "not a file of a calibr");
    close_model(model, device);
    struct pkv_model_config plan_only = pkv_model_config_default();
    plan_only.plan_only = true;
    assert_ok(pkv_device_open("cpu", NULL, &device));
    assert_ok(pkv_model_open(device, pkvt_path("golden/tiny/llama.gguf"), &plan_only, &model));
    refuse(model, path, PKV_ERR_STATE, "weights");
    assert_status(pkv_calibration_run(model, ids, TOKENS, &c), PKV_ERR_STATE);
    close_model(model, device);
}

static void test_run__what_cannot_be__refused(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL;
    struct pkv_model_info info;
    struct pkv_model *model = open_model("llama", 2, &device);
    pkv_model_query(model, &info);
    assert_status(pkv_calibration_run(model, ids, 127, &c), PKV_ERR_RANGE);
    assert_status(pkv_calibration_run(model, ids, (size_t)info.context + 1, &c), PKV_ERR_RANGE);
    int32_t bad[128] = {[127] = 320};
    assert_status(pkv_calibration_run(model, bad, 128, &c), PKV_ERR_RANGE);
    bad[127] = -1;
    assert_status(pkv_calibration_run(model, bad, 128, &c), PKV_ERR_RANGE);
    bad[127] = 319;
    assert_null(c);
    assert_ok(pkv_calibration_run(model, bad, 128, &c));
    pkv_calibration_close(c);
    close_model(model, device);
}

static void test_run__device_that_computes_nothing__refused(void **state)
{
    (void)state;
    struct pkv_device_config config = pkv_device_config_default();
    const struct pkv_model_config model_config = pkv_model_config_default();
    struct pkv_device *device = NULL;
    struct pkv_model *model = NULL;
    struct pkv_calibration *c = NULL;
    char profile[512];
    snprintf(profile, sizeof profile, "%s",
             pkvt_path("../docs/results/2026-11-29-link-zen3.profile.json"));
    config.profile = profile;
    assert_ok(pkv_device_open("sim", &config, &device));
    assert_ok(pkv_model_open(device, pkvt_path("golden/tiny/llama.gguf"), &model_config, &model));
    assert_status(pkv_calibration_run(model, ids, TOKENS, &c), PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "sim"));
    assert_null(c);
    close_model(model, device);
}

static void test_save__disk_is_full__old_file_stays(void **state)
{
    (void)state;
    struct pkv_device *device = NULL;
    struct pkv_calibration *c = NULL, *other = NULL;
    struct pkv_model *model = open_model("llama", 2, &device);
    char left[128];
    assert_ok(pkv_calibration_run(model, ids, TOKENS, &c));
    assert_ok(pkv_calibration_run(model, ids + 1, TOKENS, &other));
    assert_ok(pkv_calibration_save(c, path));
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = c->header->file_bytes - 1;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const enum pkv_status status = pkv_calibration_save(other, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, PKV_ERR_IO);
    pkv_calibration_close(other);
    assert_ok(pkv_calibration_load(model, path, &other));
    same(c, other);
    snprintf(left, sizeof left, "%s.%ld.tmp", path, (long)getpid());
    assert_int_equal(access(left, F_OK), -1);
    assert_status(pkv_calibration_save(c, "/nowhere/at/all"), PKV_ERR_IO);
    assert_status(pkv_calibration_save(c, ""), PKV_ERR_INVALID);
    pkv_calibration_close(c);
    pkv_calibration_close(other);
    close_model(model, device);
}

/* ---- channels ---- */

#define DIM 16u

struct rotary {
    uint32_t pairs, halves;
};

/* The partner of a channel, from how RoPE turns them; channels that stay pair up as they come. */
static uint32_t partner(const struct rotary *r, uint32_t channel)
{
    if (channel < 2 * r->pairs && r->halves) {
        return channel < r->pairs ? channel + r->pairs : channel - r->pairs;
    }
    return channel ^ 1u;
}

/* Every set of r / 2 pairs: the best is the one that was chosen. */
static void check_channels(const struct pkv_calibration *c, const struct rotary *rotary,
                           uint32_t head, uint32_t r)
{
    const struct pkv_layer_info info = {.heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = DIM,
                                        .rope_pairs = rotary->pairs,
                                        .rope_halves = rotary->halves};
    uint16_t got[DIM + 1];
    double weight[DIM], best = -1.0, chosen = 0.0;
    uint32_t pair_first[DIM / 2], pairs = 0, most = 0;
    for (uint32_t i = 0; i < DIM; i++) {
        const double sd = (double)c->layer[0].key_sd[head * DIM + i];
        weight[i] = (double)c->layer[0].query_power[head * DIM + i] * sd * sd;
        if (i < partner(rotary, i)) {
            pair_first[pairs++] = i;
        }
    }
    assert_int_equal(pairs, DIM / 2);
    got[r] = 0xbeef;
    pkvi_calibration_channels(c, &info, 0, head, c->layer[0].key_sd, r, got);
    assert_int_equal(got[r], 0xbeef);
    for (uint32_t set = 0; set < 1u << pairs; set++) {
        double sum = 0.0;
        for (uint32_t p = 0; p < pairs; p++) {
            sum +=
                set >> p & 1 ? weight[pair_first[p]] + weight[partner(rotary, pair_first[p])] : 0;
        }
        most = (uint32_t)__builtin_popcount(set) == r / 2 && sum > best ? set : most;
        best = (uint32_t)__builtin_popcount(set) == r / 2 && sum > best ? sum : best;
    }
    for (uint32_t i = 0; i < r; i += 2) {
        assert_true(i == 0 || got[i] > got[i - 2]);
        assert_int_equal(got[i + 1], partner(rotary, got[i]));
        assert_true(got[i] < got[i + 1]);
        chosen += weight[got[i]] + weight[got[i + 1]];
    }
    assert_true(fabs(chosen - best) <= 1e-9 * fabs(best));
}

static void test_channels__all_pairings__best_of_every_set(void **state)
{
    (void)state;
    static const struct rotary rotary[] = {{8, 0}, {8, 1}, {4, 0}, {4, 1}, {5, 1}, {0, 1}};
    float sd[2 * DIM], power[2 * DIM];
    const struct pkvi_layer_calibration layer = {.key_sd = sd, .query_power = power};
    struct pkv_calibration c = {.layers = 1};
    struct pkvt_rng rng = {.state = 12};
    c.layer = malloc(sizeof layer);
    assert_non_null(c.layer);
    memcpy(c.layer, &layer, sizeof layer);
    for (uint32_t round = 0; round < 8; round++) {
        for (uint32_t i = 0; i < 2 * DIM; i++) {
            sd[i] = pkvt_rng_uniform(&rng, 0.1f, 3.0f);
            power[i] = pkvt_rng_uniform(&rng, 0.0f, 5.0f);
        }
        for (size_t k = 0; k < sizeof rotary / sizeof rotary[0]; k++) {
            for (uint32_t r = 0; r <= DIM; r += 2) {
                check_channels(&c, &rotary[k], round % 2, r);
            }
        }
    }
    /* equal ones: the lower */
    uint16_t got[4];
    const struct pkv_layer_info info = {.head_dim = DIM, .rope_pairs = 8, .rope_halves = 1};
    for (uint32_t i = 0; i < 2 * DIM; i++) {
        sd[i] = power[i] = 1.0f;
    }
    power[6] = 2.0f;
    pkvi_calibration_channels(&c, &info, 0, 0, sd, 4, got);
    const uint16_t want[] = {0, 8, 6, 14};
    assert_memory_equal(got, want, sizeof want);
    free(c.layer);
}

static int prepare(void **state)
{
    (void)state;
    struct pkvt_rng rng = {.state = 31};
    snprintf(path, sizeof path, P_tmpdir "/calibration.%ld.pkvcal", (long)getpid());
    snprintf(other_path, sizeof other_path, "%s.other", path);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, 320);
    }
    return 0;
}

static int clean(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(other_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibration__any_rows_and_threads__same_bits),
        cmocka_unit_test(test_calibration__first_layer__has_no_change),
        cmocka_unit_test(test_calibration__no_ids_no_vocabulary__made_up_ones),
        cmocka_unit_test(test_calibration__saved_and_loaded__same_bits),
        cmocka_unit_test(test_load__any_byte_changed_or_missing__refused),
        cmocka_unit_test(test_load__lying_numbers__refused),
        cmocka_unit_test(test_load__values_out_of_range__refused),
        cmocka_unit_test(test_load__other_models_and_no_file__refused),
        cmocka_unit_test(test_run__what_cannot_be__refused),
        cmocka_unit_test(test_run__device_that_computes_nothing__refused),
        cmocka_unit_test(test_save__disk_is_full__old_file_stays),
        cmocka_unit_test(test_channels__all_pairings__best_of_every_set),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
