/* The profile file: what is read, what is refused and in which words, and that a write is whole. */
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/device/profile.h"

static struct pkvi_profile sample(void)
{
    struct pkvi_profile p = {.machine = "a machine",
                             .device = "cpu",
                             .variant = "avx2",
                             .threads = 2,
                             .emulated = true,
                             .read_gbps = 28.5,
                             .int8_gops = 170,
                             .f32_gops = 110,
                             .launch_us = 0,
                             .launch_call_us = 0.25,
                             .launch_latency_us = 1.5,
                             .copy_call_us = 0.125,
                             .copy_latency_us = {7.5, 8.5},
                             .has_kernels = true,
                             .wait_us = 4.5,
                             .beside_kernel = 0.75,
                             .beside_copy = 0.5};
    for (uint32_t kind = 0; kind < PKVI_PROFILE_KINDS; kind++) {
        p.kernel[kind] = (struct pkvi_profile_kernel){
            .launch_us = kind, .count = 2, .point = {{0, 25}, {10.5 + kind, 5}}};
    }
    for (uint32_t d = 0; d < PKVI_PROFILE_DIRECTIONS; d++) {
        struct pkvi_profile_curve *curves[] = {&p.link[d].contiguous, &p.link[d].gather};
        for (uint32_t c = 0; c < 2; c++) {
            curves[c]->count = 2 + c;
            for (uint32_t i = 0; i < curves[c]->count; i++) {
                curves[c]->point[i].piece_bytes = (uint64_t)64 << (4 * i);
                curves[c]->point[i].gbps = 1.5 + d + c + i;
            }
        }
    }
    return p;
}

static char *text_of(const struct pkvi_profile *profile)
{
    char *text = NULL;
    assert_ok(pkvi_profile_format(profile, &text));
    return text;
}

/* The text with its first `from` replaced. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    size_t bytes = strlen(text) + strlen(to) + 1;
    char *result = malloc(bytes);
    assert_non_null(result);
    snprintf(result, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return result;
}

static void assert_refused(const char *text, enum pkv_status status, const char *words)
{
    struct pkvi_profile p;
    memset(&p, 0x55, sizeof p);
    struct pkvi_profile before = p;
    assert_status(pkvi_profile_parse(text, strlen(text), "FILE", &p), status);
    assert_memory_equal(&p, &before, sizeof p);
    if (!strstr(pkv_error_text(), words) || strncmp(pkv_error_text(), "FILE: ", 6) != 0 ||
        strchr(pkv_error_text(), '\n')) {
        fail_msg("'%s' is not in: %s", words, pkv_error_text());
    }
}

static void test_profile__format_and_parse__same(void **state)
{
    (void)state;
    struct pkvi_profile p = sample(), q;
    memset(&q, 0x55, sizeof q);
    char *text = text_of(&p);
    assert_ok(pkvi_profile_parse(text, strlen(text), "FILE", &q));
    assert_string_equal(q.machine, p.machine);
    assert_string_equal(q.device, p.device);
    assert_string_equal(q.variant, p.variant);
    assert_true(q.threads == 2 && !q.cached && q.emulated);
    assert_true(q.read_gbps == p.read_gbps && q.int8_gops == p.int8_gops);
    assert_true(q.f32_gops == p.f32_gops && q.launch_us == p.launch_us);
    assert_true(q.launch_call_us == p.launch_call_us);
    assert_true(q.launch_latency_us == p.launch_latency_us);
    assert_true(q.copy_call_us == p.copy_call_us);
    assert_true(q.has_kernels && q.wait_us == p.wait_us);
    assert_true(q.beside_kernel == p.beside_kernel && q.beside_copy == p.beside_copy);
    for (uint32_t kind = 0; kind < PKVI_PROFILE_KINDS; kind++) {
        assert_true(q.kernel[kind].launch_us == kind && q.kernel[kind].count == 2);
        assert_true(q.kernel[kind].point[1].flops_per_byte == 10.5 + kind);
        assert_true(q.kernel[kind].point[1].gbps == 5);
    }
    for (uint32_t d = 0; d < 3; d++) {
        assert_true(d == 2 || q.copy_latency_us[d] == p.copy_latency_us[d]);
        assert_int_equal(q.link[d].contiguous.count, 2);
        assert_int_equal(q.link[d].gather.count, 3);
        assert_memory_equal(q.link[d].gather.point, p.link[d].gather.point,
                            3 * sizeof p.link[d].gather.point[0]);
        assert_memory_equal(q.link[d].contiguous.point, p.link[d].contiguous.point,
                            2 * sizeof p.link[d].contiguous.point[0]);
    }
    free(text);
}

/* Files of the first version stay readable; they say nothing of kernels. */
static void test_profile__version_1__read(void **state)
{
    (void)state;
    struct pkvi_profile p = sample(), q;
    p.has_kernels = false;
    memset(&q, 0x55, sizeof q);
    char *text = text_of(&p);
    assert_non_null(strstr(text, "pivotkv/profile/1"));
    assert_null(strstr(text, "wait_us"));
    assert_ok(pkvi_profile_parse(text, strlen(text), "FILE", &q));
    assert_true(!q.has_kernels && q.wait_us == 0 && q.beside_kernel == 0 && q.beside_copy == 0);
    free(text);
    p = sample();
    p.beside_kernel = 0;
    text = text_of(&p);
    assert_null(strstr(text, "beside"));
    assert_ok(pkvi_profile_parse(text, strlen(text), "FILE", &q));
    assert_true(q.has_kernels && q.beside_kernel == 0);
    free(text);
}

static void test_profile__bad_text__refused_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        {"\"read_gbps\": 28.5", "\"read_gbps\": 0",
         "local.read_gbps: expected a number of at least 1e-06"},
        {"\"read_gbps\": 28.5", "\"read_gbps\": -1", "local.read_gbps: expected"},
        {"\"read_gbps\": 28.5", "\"read_gbps\": 1e7", "at most 1e+06"},
        {"\"read_gbps\": 28.5", "\"read_gbps\": \"28.5\"", "local.read_gbps: expected a number"},
        {"\"read_gbps\": 28.5,", "", "local.read_gbps: expected"},
        {"\"read_gbps\"", "\"read_gps\"", "local.read_gps: expected no such member"},
        {"\"local\"", "\"lokal\"", "lokal: expected no such member"},
        {"\"cost_us\": 0.0", "\"cost_us\": -0.5", "launch.cost_us: expected a number from 0"},
        {"\"threads\": 2", "\"threads\": 2.5", "threads: expected a whole number"},
        {"\"threads\": 2", "\"threads\": 1000000", "threads: expected"},
        {"\"cached\": false", "\"cached\": 0", "cached: expected true or false"},
        {"\"device\": \"cpu\"", "\"device\": \"a name of 16 bytes\"", "device: expected a text"},
        {"\"device\": \"cpu\"", "\"device\": null", "device: expected a text"},
        {"\"piece_bytes\": 1024", "\"piece_bytes\": 64",
         "link.host_to_device.contiguous[1].piece_bytes: expected a whole number above"},
        {"\"piece_bytes\": 64", "\"piece_bytes\": 0", "contiguous[0].piece_bytes"},
        {"\"piece_bytes\": 64", "\"piece_bytes\": 64.5", "contiguous[0].piece_bytes"},
        {"\"piece_bytes\": 64", "\"piece_bytes\": 64, \"more\": 1", "contiguous[0]: expected"},
        {"\"gather\": [", "\"gather\": 5, \"note\": [", "link.host_to_device.note"},
        {"\"both\"", "\"all\"", "link.all: expected no such member"},
        {"\"link\": {", "\"link\": {}, \"note\": {", "link.host_to_device: expected an object"},
        {"\"attend\"", "\"attention\"", "kernels.attention: expected no such member"},
        {"\"attend\": {", "\"rows\": {}, \"x\": {", "duplicate"},
        {"\"launch_us\": 1.0", "\"launch_us\": -1", "kernels.linear_q8.launch_us: expected"},
        {"\"flops_per_byte\": 0.0", "\"flops_per_byte\": 10.5",
         "kernels.linear_q4.points[1].flops_per_byte: expected a number above the one before"},
        {"\"points\": [", "\"points\": [], \"more\": [", "kernels.linear_q4.more"},
        {"\"kernels\": {", "\"kernels\": {}, \"note\": {", "kernels.linear_q4: expected an object"},
        {"\"kernel\": 0.75", "\"kernel\": 1.5", "beside.kernel: expected"},
        {"\"kernel\": 0.75", "\"kernel\": 0", "beside.kernel: expected"},
        {"\"wait_us\": 4.5", "\"wait_us\": null", "copy.wait_us: expected"},
        {"{", "{ \"schema\": 1,", "duplicate"},
        {"{", "[{", ""},
        {"}", "", ""},
    };
    struct pkvi_profile p = sample();
    char *text = text_of(&p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *bad = changed(text, cases[i].from, cases[i].to);
        assert_refused(bad, PKV_ERR_CORRUPT, cases[i].words);
        free(bad);
    }
    char *other = changed(text, "pivotkv/profile/2", "pivotkv/profile/3");
    assert_refused(other, PKV_ERR_UNSUPPORTED, "profile/3");
    free(other);
    assert_refused("", PKV_ERR_CORRUPT, "");
    assert_refused("[]", PKV_ERR_CORRUPT, "one JSON object");
    assert_refused("{}", PKV_ERR_CORRUPT, "schema");
    free(text);
}

static void test_profile__curve_of_too_many_points__refused(void **state)
{
    (void)state;
    struct pkvi_profile p = sample();
    char *text = text_of(&p), *end = strstr(text, "\"gbps\""), *list = malloc(8192);
    assert_true(end && list);
    size_t at = (size_t)snprintf(list, 8192, "\"gather\": [");
    for (int i = 1; i <= 65; i++) {
        at += (size_t)snprintf(list + at, 8192 - at, "%s{\"piece_bytes\": %d, \"gbps\": 1}",
                               i > 1 ? "," : "", i);
    }
    snprintf(list + at, 8192 - at, "], \"x\": [");
    char *bad = changed(text, "\"gather\": [", list);
    assert_refused(bad, PKV_ERR_CORRUPT, "link.host_to_device");
    free(bad);
    free(list);
    free(text);
}

static void test_profile__numbers_that_no_file_holds__not_written(void **state)
{
    (void)state;
    char path[] = "/tmp/pkv_profile_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, "old", 3) == 3 && close(file) == 0);
    struct pkvi_profile p = sample();
    p.read_gbps = NAN;
    assert_status(pkvi_profile_write(path, &p), PKV_ERR_NO_MEMORY);
    p = sample();
    p.link[1].gather.count = 0;
    assert_status(pkvi_profile_write(path, &p), PKV_ERR_CORRUPT);
    p = sample();
    p.int8_gops = 0;
    assert_status(pkvi_profile_write(path, &p), PKV_ERR_CORRUPT);
    size_t bytes = 0;
    char *text = pkvt_read_file(path, &bytes);
    assert_string_equal(text, "old");
    free(text);
    p = sample();
    assert_ok(pkvi_profile_probe(path));
    assert_ok(pkvi_profile_write(path, &p));
    struct pkvi_profile q;
    assert_ok(pkvi_profile_read(path, &q));
    assert_true(q.read_gbps == p.read_gbps);
    unlink(path);
}

static void test_profile__no_such_place__status(void **state)
{
    (void)state;
    struct pkvi_profile p = sample();
    assert_status(pkvi_profile_read("/nowhere/profile", &p), PKV_ERR_IO);
    assert_status(pkvi_profile_read("/tmp", &p), PKV_ERR_IO);
    assert_status(pkvi_profile_read("/dev/zero", &p), PKV_ERR_IO);
    assert_status(pkvi_profile_read(NULL, &p), PKV_ERR_INVALID);
    assert_status(pkvi_profile_write("/nowhere/profile", &p), PKV_ERR_IO);
    assert_status(pkvi_profile_write("/dev/null", &p), PKV_ERR_IO);
    assert_status(pkvi_profile_probe("/dev/null"), PKV_ERR_IO);
    assert_status(pkvi_profile_probe(""), PKV_ERR_INVALID);
    char path[] = "/tmp/pkv_profile_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && ftruncate(file, 1 << 21) == 0 && close(file) == 0);
    assert_status(pkvi_profile_read(path, &p), PKV_ERR_IO);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile__format_and_parse__same),
        cmocka_unit_test(test_profile__version_1__read),
        cmocka_unit_test(test_profile__bad_text__refused_in_words),
        cmocka_unit_test(test_profile__curve_of_too_many_points__refused),
        cmocka_unit_test(test_profile__numbers_that_no_file_holds__not_written),
        cmocka_unit_test(test_profile__no_such_place__status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
