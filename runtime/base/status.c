/* status.c: names and texts of statuses, and each thread's message. */
#include "check.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

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

/* The message may quote names from files: control characters would break "one line". */
enum pkv_status pkvi_fail(enum pkv_status status, const char *format, ...)
{
    char text[sizeof error_text];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t i = 0;
    for (; text[i] != '\0'; i++) {
        unsigned char c = (unsigned char)text[i];
        error_text[i] = (c < 0x20 || c == 0x7f) ? '?' : text[i];
    }
    error_text[i] = '\0';
    return status;
}
