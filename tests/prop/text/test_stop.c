/*
 * Stop strings: on random texts over a tiny alphabet (so that strings overlap themselves and each
 * other) and random cuts, what comes out equals a naive search over the whole text.
 */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/sampler.h"

#define TEXT 60u
#define STRINGS 4u

/* Where the text ends: before the string complete at the first byte where one is, the longest of
 * those. */
static size_t naive_end(const char *text, size_t bytes, const char *const *strings, uint32_t count,
                        bool *stopped_out)
{
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (uint32_t s = 0; s < count; s++) {
            size_t n = strlen(strings[s]);
            if (n <= end && memcmp(text + end - n, strings[s], n) == 0 && n > longest) {
                longest = n;
            }
        }
        if (longest > 0) {
            *stopped_out = true;
            return end - longest;
        }
    }
    *stopped_out = false;
    return bytes;
}

/* The longest end of the text that is a head of a string: it must be held back, and no more. */
static size_t naive_held(const char *text, size_t bytes, const char *const *strings, uint32_t count)
{
    size_t most = 0;
    for (uint32_t s = 0; s < count; s++) {
        for (size_t n = strlen(strings[s]) - 1; n > most; n--) {
            if (n <= bytes && memcmp(text + bytes - n, strings[s], n) == 0) {
                most = n;
            }
        }
    }
    return most;
}

static void check_cut(struct pkv_stop *stop, const char *text, const size_t *cuts, size_t cut_count,
                      const char *const *strings, uint32_t count, const char *label)
{
    char out[4 * TEXT];
    size_t done = 0, fed = 0;
    bool stopped = false, want_stopped;
    size_t want = naive_end(text, TEXT, strings, count, &want_stopped);
    pkv_stop_reset(stop);
    for (size_t i = 0; i <= cut_count; i++) {
        size_t to = i < cut_count ? cuts[i] : TEXT;
        char piece[2 * TEXT]; // exactly what the contract asks for, for the sanitizers
        size_t n = pkv_stop_push(stop, text + fed, to - fed, piece, &stopped);
        memcpy(out + done, piece, n);
        done += n;
        fed = to;
        bool stopped_now;
        size_t end = naive_end(text, fed, strings, count, &stopped_now);
        size_t certain = stopped_now ? end : fed - naive_held(text, fed, strings, count);
        if (stopped != stopped_now || done != certain) {
            fail_msg("%s: after %zu bytes: %zu out, want %zu", label, fed, done, certain);
        }
    }
    done += pkv_stop_finish(stop, out + done);
    done += pkv_stop_finish(stop, out + done);
    if (stopped != want_stopped || done != want || memcmp(out, text, done) != 0) {
        fail_msg("%s: %zu bytes, want %zu", label, done, want);
    }
}

static void test_stop__random_strings_and_cuts__as_naive_search(void **state)
{
    (void)state;
    struct pkvt_rng rng = {31};
    for (int round = 0; round < 3000; round++) {
        char text[TEXT + 1] = {0}, strings[STRINGS][12];
        const char *list[STRINGS];
        uint32_t count = pkvt_rng_below(&rng, STRINGS + 1), letters = 1 + pkvt_rng_below(&rng, 3);
        for (size_t i = 0; i < TEXT; i++) {
            text[i] = (char)('a' + (char)pkvt_rng_below(&rng, letters + 1));
        }
        for (uint32_t s = 0; s < count; s++) {
            uint32_t n = 1 + pkvt_rng_below(&rng, 11);
            for (uint32_t i = 0; i < n; i++) {
                strings[s][i] = (char)('a' + (char)pkvt_rng_below(&rng, letters));
            }
            strings[s][n] = '\0';
            list[s] = strings[s];
        }
        struct pkv_stop *stop;
        char label[32];
        snprintf(label, sizeof label, "round %d", round);
        assert_ok(pkv_stop_open(list, count, &stop));
        size_t cuts[TEXT];
        for (size_t i = 0; i < TEXT; i++) {
            cuts[i] = i; // every byte alone (and an empty piece first)
        }
        check_cut(stop, text, cuts, TEXT, list, count, label);
        check_cut(stop, text, cuts, 0, list, count, label); // all at once
        for (size_t i = 0; i < TEXT; i++) {
            check_cut(stop, text, &cuts[i], 1, list, count, label); // one cut, everywhere
        }
        size_t many = 0;
        for (size_t at = 0; at < TEXT; at += pkvt_rng_below(&rng, 9)) {
            cuts[many++] = at;
            if (many == TEXT) {
                break;
            }
        }
        check_cut(stop, text, cuts, many, list, count, label);
        pkv_stop_close(stop);
    }
}

static void test_stop__nothing_after_a_stop__until_reset(void **state)
{
    (void)state;
    const char *strings[] = {"END"};
    struct pkv_stop *stop;
    char out[64];
    bool stopped;
    assert_ok(pkv_stop_open(strings, 1, &stop));
    assert_int_equal(pkv_stop_most_bytes(stop), 3);
    assert_int_equal(pkv_stop_push(stop, "abEN", 4, out, &stopped), 2);
    assert_false(stopped);
    assert_int_equal(pkv_stop_push(stop, "Dxyz", 4, out, &stopped), 0);
    assert_true(stopped);
    assert_int_equal(pkv_stop_push(stop, "more", 4, out, &stopped), 0);
    assert_true(stopped);
    assert_int_equal(pkv_stop_finish(stop, out), 0);
    pkv_stop_reset(stop);
    assert_int_equal(pkv_stop_push(stop, "more", 4, out, &stopped), 4);
    assert_false(stopped);
    pkv_stop_close(stop);
    pkv_stop_close(NULL);
}

static void test_stop_open__bad_lists__refused(void **state)
{
    (void)state;
    struct pkv_stop *stop = NULL;
    char *longest = malloc(4098);
    memset(longest, 'x', 4097);
    longest[4097] = '\0';
    const char *empty[] = {"a", ""}, *over[] = {longest}, *many[65];
    for (size_t i = 0; i < 65; i++) {
        many[i] = "x";
    }
    assert_status(pkv_stop_open(empty, 2, &stop), PKV_ERR_RANGE);
    assert_string_equal(pkv_error_text(), "stop: string 2 has 0 bytes; allowed: 1 .. 4096");
    assert_status(pkv_stop_open(over, 1, &stop), PKV_ERR_RANGE);
    assert_status(pkv_stop_open(many, 65, &stop), PKV_ERR_RANGE);
    const char *bad[] = {"\xc3\xa9", "a\xa9"}, *cut[] = {"\xe2\x80"};
    assert_status(pkv_stop_open(bad, 2, &stop), PKV_ERR_INVALID);
    assert_string_equal(pkv_error_text(), "stop: string 2 is not UTF-8");
    assert_status(pkv_stop_open(cut, 1, &stop), PKV_ERR_INVALID);
    assert_null(stop);
    assert_ok(pkv_stop_open(many, 64, &stop));
    pkv_stop_close(stop);
    longest[4096] = '\0';
    assert_ok(pkv_stop_open(over, 1, &stop));
    pkv_stop_close(stop);
    free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop__random_strings_and_cuts__as_naive_search),
        cmocka_unit_test(test_stop__nothing_after_a_stop__until_reset),
        cmocka_unit_test(test_stop_open__bad_lists__refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
