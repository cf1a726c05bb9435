/* log.c: makes lines and hands them to the one sink. Knows no file and no stream. */
#include "runtime/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

#define LINE_BYTES 1024u

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const unsigned level_count = sizeof level_names / sizeof level_names[0];

static struct {
    pthread_mutex_t lock; /* held while the sink runs */
    pkv_log_fn sink;
    void *context;
    bool json;
} out = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic int loudest = -1; /* levels above it are not wanted */

const char *pkv_log_level_name(enum pkv_log_level level)
{
    return (unsigned)level < level_count ? level_names[level] : NULL;
}

enum pkv_status pkv_log_level_parse(const char *name, enum pkv_log_level *level_out)
{
    for (unsigned i = 0; name && i < level_count; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level_out = (enum pkv_log_level)i;
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_INVALID, "log level '%.64s': expected error, warn, info or debug",
                    name ? name : "");
}

void pkv_log_set(enum pkv_log_level level, bool json, pkv_log_fn sink, void *context)
{
    pthread_mutex_lock(&out.lock);
    out.sink = sink;
    out.context = context;
    out.json = json;
    atomic_store_explicit(&loudest, sink ? (int)level : -1, memory_order_relaxed);
    pthread_mutex_unlock(&out.lock);
}

/* Bytes of the UTF-8 character at s, 0 if it is none. */
static unsigned utf8_bytes(const unsigned char *s)
{
    static const unsigned char least[] = {0, 0, 0x80, 0xa0, 0x90};
    unsigned bytes = s[0] < 0x80                   ? 1
                     : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                     : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                     : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                   : 0;
    for (unsigned i = 1; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (s[0] == 0xe0 || s[0] == 0xf0) && s[1] < least[bytes];
    bool beyond = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f);
    return overlong || beyond ? 0 : bytes;
}

/* Append text to line as the inside of a JSON string; what does not fit is left out whole. */
static size_t append_escaped(char *line, size_t at, size_t limit, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        unsigned bytes = utf8_bytes(s);
        char piece[8];
        if (bytes == 0) {
            bytes = 1;
            piece[0] = '?';
            piece[1] = '\0';
        } else if (*s < 0x20 || *s == 0x7f) {
            snprintf(piece, sizeof piece, "\\u%04x", *s);
        } else if (*s == '"' || *s == '\\') {
            snprintf(piece, sizeof piece, "\\%c", *s);
        } else {
            memcpy(piece, s, bytes);
            piece[bytes] = '\0';
        }
        size_t length = strlen(piece);
        if (at + length >= limit) {
            break;
        }
        memcpy(line + at, piece, length);
        at += length;
        s += bytes;
    }
    line[at] = '\0';
    return at;
}

static void make_json(char line[LINE_BYTES], enum pkv_log_level level, const char *area,
                      const char *text)
{
    int head = snprintf(line, LINE_BYTES,
                        "{\"time_ns\": %llu, \"level\": \"%s\", \"area\": \"%.32s\", \"text\": \"",
                        (unsigned long long)pkvi_clock_ns(), level_names[level], area);
    size_t at = append_escaped(line, (size_t)head, LINE_BYTES - 2, text);
    memcpy(line + at, "\"}", 3);
}

/* "area: text" on one line, whatever the text holds. */
static void make_text(char line[LINE_BYTES], const char *area, const char *text)
{
    snprintf(line, LINE_BYTES, "%.32s: %.900s", area, text);
    for (char *at = line; *at; at++) {
        unsigned char c = (unsigned char)*at;
        *at = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
}

void pkvi_log(enum pkv_log_level level, const char *area, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&loudest, memory_order_relaxed)) {
        return;
    }
    char text[LINE_BYTES], line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&out.lock);
    if (out.sink && (int)level <= atomic_load_explicit(&loudest, memory_order_relaxed)) {
        if (out.json) {
            make_json(line, level, area, text);
        } else {
            make_text(line, area, text);
        }
        out.sink(out.context, level, line);
    }
    pthread_mutex_unlock(&out.lock);
}
