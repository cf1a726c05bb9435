/* UTF-8: every sequence of table 3-7 and its neighbours, against a decoder written from the bits.
 */
#include "tests/support/pkv_test.h"

#include <stdbool.h>
#include <string.h>

#include "runtime/text/utf8.h"

/* Straight from the definition: decode the bits, then forbid overlong forms and surrogates. */
static bool is_character(const unsigned char *c, int length)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code = length == 2 ? c[0] & 0x1f : length == 3 ? c[0] & 0x0f : c[0] & 0x07;
    if (length == 1) {
        return c[0] < 0x80;
    }
    if ((length == 2 && c[0] >> 5 != 6) || (length == 3 && c[0] >> 4 != 14) ||
        (length == 4 && c[0] >> 3 != 30)) {
        return false;
    }
    for (int i = 1; i < length; i++) {
        if (c[i] >> 6 != 2) {
            return false;
        }
        code = code << 6 | (c[i] & 0x3f);
    }
    return code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

/* Some bytes can follow that make c[0 .. bytes - 1] the start of a character. */
static bool can_become(const unsigned char *c, int bytes)
{
    for (uint32_t rest = 0; rest < 64 * 64; rest++) {
        unsigned char whole[4] = {0};
        memcpy(whole, c, (size_t)bytes);
        uint32_t bits = rest;
        for (int i = bytes; i < 4; i++, bits >>= 6) {
            whole[i] = (unsigned char)(0x80 | (bits & 63));
        }
        for (int length = bytes + 1; length <= 4; length++) {
            if (is_character(whole, length)) {
                return true;
            }
        }
        if (bytes >= 2 && rest >= 64) {
            return false; // one unknown byte, or a second one that does not matter
        }
    }
    return false;
}

static int expected(const unsigned char *c, int bytes)
{
    for (int length = 1; length <= bytes; length++) {
        if (is_character(c, length)) {
            return length;
        }
    }
    if (can_become(c, bytes)) {
        return 0;
    }
    int part = 1;
    while (part + 1 < bytes && can_become(c, part + 1)) {
        part++;
    }
    return -part;
}

static void test_utf8__two_bytes_all__as_defined(void **state)
{
    (void)state;
    for (int a = 0; a < 256; a++) {
        unsigned char one = (unsigned char)a;
        assert_int_equal(pkvi_utf8_look((const char *)&one, 1), expected(&one, 1));
        for (int b = 0; b < 256; b++) {
            unsigned char two[2] = {(unsigned char)a, (unsigned char)b};
            assert_int_equal(pkvi_utf8_look((const char *)two, 2), expected(two, 2));
        }
    }
}

static void test_utf8__edges_of_three_and_four_bytes__as_defined(void **state)
{
    static const unsigned char edge[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                         0xbf, 0xc0, 0xc2, 0xe0, 0xed, 0xf0, 0xf4, 0xff};
    (void)state;
    for (int a = 0xc0; a < 256; a++) {
        for (unsigned i = 0; i < 16 * 16 * 16; i++) {
            unsigned char c[4] = {(unsigned char)a, edge[i / 256], edge[i / 16 % 16], edge[i % 16]};
            assert_int_equal(pkvi_utf8_look((const char *)c, 3), expected(c, 3));
            assert_int_equal(pkvi_utf8_look((const char *)c, 4), expected(c, 4));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8__two_bytes_all__as_defined),
        cmocka_unit_test(test_utf8__edges_of_three_and_four_bytes__as_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
