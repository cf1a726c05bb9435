/* utf8.c: what bytes are UTF-8. */
#include "runtime/text/utf8.h"

/* Length of the sequence that a first byte announces and the range of its second byte. */
static int sequence_shape(unsigned char first, unsigned char *low_out, unsigned char *high_out)
{
    *low_out = 0x80;
    *high_out = 0xbf;
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xc2 && first <= 0xdf) {
        return 2;
    }
    if (first >= 0xe0 && first <= 0xef) {
        *low_out = first == 0xe0 ? 0xa0 : 0x80;  // no overlong forms
        *high_out = first == 0xed ? 0x9f : 0xbf; // no surrogates
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        *low_out = first == 0xf0 ? 0x90 : 0x80;
        *high_out = first == 0xf4 ? 0x8f : 0xbf; // nothing beyond U+10FFFF
        return 4;
    }
    return 0;
}

int pkvi_utf8_look(const char *data, size_t bytes)
{
    unsigned char low, high;
    int length = sequence_shape((unsigned char)data[0], &low, &high);
    if (length == 0) {
        return -1;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= bytes) {
            return 0;
        }
        unsigned char c = (unsigned char)data[i];
        if (c < low || c > high) {
            return -i;
        }
        low = 0x80;
        high = 0xbf;
    }
    return length;
}
