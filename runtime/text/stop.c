/*
 * stop.c: stop strings over a stream of bytes.
 *
 * Owns how far each stop string has matched (Knuth, Morris, Pratt: a state a string, linear time);
 * knows bytes only, no tokens. The text ends where a stop string is complete first; of several that
 * are complete at the same byte the longest counts. So the result does not depend on how the stream
 * is cut.
 *
 * What is held back is always the head of one stop string: it is remembered as that string and a
 * length, not copied.
 */
#include "pivotkv/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/utf8.h"

#define MOST_STRINGS 64u
#define MOST_STRING_BYTES 4096u

struct pattern {
    const char *text;
    uint32_t bytes, matched;
    uint32_t *shorter; /* [bytes] shorter[i]: longest proper border of text[0 .. i] */
};

struct pkv_stop {
    struct pattern *patterns;
    uint32_t count;
    size_t most_bytes;
    const char *held; /* head of a stop string */
    uint32_t held_bytes;
    bool stopped;
    char *text;      /* all strings */
    uint32_t *table; /* all `shorter` */
};

static void fill_borders(struct pattern *p)
{
    p->shorter[0] = 0;
    for (uint32_t i = 1, length = 0; i < p->bytes; i++) {
        while (length > 0 && p->text[i] != p->text[length]) {
            length = p->shorter[length - 1];
        }
        length += p->text[i] == p->text[length];
        p->shorter[i] = length;
    }
}

static bool is_utf8(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        int n = pkvi_utf8_look(text + at, bytes - at);
        if (n <= 0) {
            return false;
        }
        at += (size_t)n;
    }
    return true;
}

static enum pkv_status check_strings(const char *const *strings, uint32_t count, size_t *total_out)
{
    if (count > MOST_STRINGS) {
        return PKV_FAIL(PKV_ERR_RANGE, "stop: %u strings; allowed: 0 .. %u", count, MOST_STRINGS);
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = strnlen(strings[i], MOST_STRING_BYTES + 1);
        if (bytes == 0 || bytes > MOST_STRING_BYTES) {
            return PKV_FAIL(PKV_ERR_RANGE, "stop: string %u has %s bytes; allowed: 1 .. %u", i + 1,
                            bytes == 0 ? "0" : "too many", MOST_STRING_BYTES);
        }
        // A text comes in whole characters; it must not be cut inside one.
        if (!is_utf8(strings[i], bytes)) {
            return PKV_FAIL(PKV_ERR_INVALID, "stop: string %u is not UTF-8", i + 1);
        }
        *total_out += bytes;
    }
    return PKV_OK;
}

enum pkv_status pkv_stop_open(const char *const *strings, uint32_t count,
                              struct pkv_stop **stop_out)
{
    size_t total = 0;
    PKV_TRY(check_strings(strings, count, &total));
    struct pkv_stop *stop = calloc(1, sizeof *stop);
    if (!stop) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "stop: no memory");
    }
    stop->patterns = calloc((size_t)count + 1, sizeof *stop->patterns);
    stop->text = malloc(total + 1);
    stop->table = malloc((total + 1) * sizeof *stop->table);
    if (!stop->patterns || !stop->text || !stop->table) {
        pkv_stop_close(stop);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "stop: no memory for %zu bytes of strings", total);
    }
    stop->count = count;
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = strlen(strings[i]);
        memcpy(stop->text + at, strings[i], bytes);
        stop->patterns[i] = (struct pattern){
            .text = stop->text + at, .bytes = (uint32_t)bytes, .shorter = stop->table + at};
        fill_borders(&stop->patterns[i]);
        stop->most_bytes = bytes > stop->most_bytes ? bytes : stop->most_bytes;
        at += bytes;
    }
    *stop_out = stop;
    return PKV_OK;
}

void pkv_stop_close(struct pkv_stop *stop)
{
    if (stop) {
        free(stop->patterns);
        free(stop->text);
        free(stop->table);
        free(stop);
    }
}

void pkv_stop_reset(struct pkv_stop *stop)
{
    for (uint32_t i = 0; i < stop->count; i++) {
        stop->patterns[i].matched = 0;
    }
    stop->held_bytes = 0;
    stop->stopped = false;
}

size_t pkv_stop_most_bytes(const struct pkv_stop *stop)
{
    return stop->most_bytes;
}

/* One more byte for every pattern; bytes of the longest one that is complete now, 0 = none. */
static uint32_t advance(struct pkv_stop *stop, char byte)
{
    uint32_t complete = 0;
    for (uint32_t i = 0; i < stop->count; i++) {
        struct pattern *p = &stop->patterns[i];
        while (p->matched > 0 && p->text[p->matched] != byte) {
            p->matched = p->shorter[p->matched - 1];
        }
        p->matched += p->text[p->matched] == byte;
        if (p->matched == p->bytes && p->bytes > complete) {
            complete = p->bytes;
        }
    }
    return complete;
}

static void hold(struct pkv_stop *stop)
{
    stop->held_bytes = 0;
    for (uint32_t i = 0; i < stop->count; i++) {
        if (stop->patterns[i].matched > stop->held_bytes) {
            stop->held = stop->patterns[i].text;
            stop->held_bytes = stop->patterns[i].matched;
        }
    }
}

size_t pkv_stop_push(struct pkv_stop *stop, const char *data, size_t bytes, char *out,
                     bool *stopped_out)
{
    *stopped_out = stop->stopped;
    if (stop->stopped) {
        return 0;
    }
    // The stream seen from here: what was held, then the new bytes, less what is held now.
    size_t before = stop->held_bytes, used = 0;
    uint32_t complete = 0;
    if (before > 0) {
        memcpy(out, stop->held, before);
    }
    while (used < bytes && complete == 0) {
        complete = advance(stop, data[used++]);
    }
    if (used > 0) {
        memcpy(out + before, data, used);
    }
    if (complete > 0) {
        stop->held_bytes = 0;
        *stopped_out = stop->stopped = true;
        return before + used - complete;
    }
    hold(stop);
    return before + used - stop->held_bytes;
}

size_t pkv_stop_finish(struct pkv_stop *stop, char *out)
{
    size_t bytes = stop->held_bytes;
    if (bytes > 0) {
        memcpy(out, stop->held, bytes);
    }
    bool stopped = stop->stopped;
    pkv_stop_reset(stop);
    stop->stopped = stopped;
    return bytes;
}
