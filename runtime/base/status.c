/* status.c: names and texts of statuses, and each thread's message. */
#include "check.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_text[512];

const char *pkv_status_name(enum pkv_status status)
{
    switch (status) {
#define PKV_STATUS_NAME(name, value, text)                                                         \
    case name:                                                                                     \
        return #name;
        PKV_STATUS_LIST(PKV_STATUS_NAME)
#undef PKV_STATUS_NAME
    }
    return "PKV_?";
}

const char *pkv_status_text(enum pkv_status status)
{
    switch (status) {
#define PKV_STATUS_TEXT(name, value, text)                                                         \
    case name:                                                                                     \
        return text;
        PKV_STATUS_LIST(PKV_STATUS_TEXT)
#undef PKV_STATUS_TEXT
    }
    return "unknown status";
}

const char *pkv_error_text(void)
{
    return error_text;
}

/* Bytes of the UTF-8 character at `p`, 0 if there is none (or a C1 control, which terminals obey).
 */
static size_t character_bytes(const unsigned char *p)
{
    static const unsigned char least[] = {0, 0, 0xc2, 0xe0, 0xf0};
    size_t bytes = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (bytes == 1) {
        return p[0] >= 0x20 && p[0] != 0x7f;
    }
    if (p[0] < least[bytes] || p[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool c1 = p[0] == 0xc2 && p[1] < 0xa0, overlong = p[0] == 0xe0 && p[1] < 0xa0;
    bool surrogate = p[0] == 0xed && p[1] > 0x9f, overlong4 = p[0] == 0xf0 && p[1] < 0x90;
    bool beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return c1 || overlong || surrogate || overlong4 || beyond ? 0 : bytes;
}

/* The message may quote names from files: what is no printable UTF-8 becomes '?', and it stays one
 * line. */
enum pkv_status pkvi_fail(enum pkv_status status, const char *format, ...)
{
    char text[sizeof error_text];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t i = 0;
    while (text[i] != '\0') {
        size_t bytes = character_bytes((const unsigned char *)text + i);
        if (bytes == 0) {
            error_text[i++] = '?';
            continue;
        }
        memcpy(error_text + i, text + i, bytes);
        i += bytes;
    }
    error_text[i] = '\0';
    return status;
}
