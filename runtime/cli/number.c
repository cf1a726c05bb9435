/* number.c: owns the grammar of numbers. Knows no options and words no errors. */
#include "runtime/cli/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits up to a value of `most`; NULL if there is none or it is larger. */
static const char *read_digits(const char *text, uint64_t most, uint64_t *value_out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; is_digit(*at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (most - digit) / 10) {
            return NULL;
        }
        value = value * 10 + digit;
    }
    *value_out = value;
    return at == text ? NULL : at;
}

bool pkvi_number_int(const char *text, int64_t least, int64_t most, int64_t *value_out)
{
    bool negative = *text == '-';
    uint64_t value = 0;
    const char *end = read_digits(text + negative, INT64_MAX, &value);
    if (end == NULL || *end != '\0') {
        return false;
    }
    int64_t result = negative ? -(int64_t)value : (int64_t)value;
    if (result < least || result > most) {
        return false;
    }
    *value_out = result;
    return true;
}

/* The form that strtod() may see: no white space, hexadecimal digits, "inf" or "nan". */
static bool is_decimal(const char *text)
{
    const char *at = text + (*text == '-');
    size_t digits = 0;
    for (; is_digit(*at); at++) {
        digits++;
    }
    if (*at == '.') {
        for (at++; is_digit(*at); at++) {
            digits++;
        }
    }
    if (digits == 0) {
        return false;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '+' || *at == '-';
        if (!is_digit(*at)) {
            return false;
        }
        while (is_digit(*at)) {
            at++;
        }
    }
    return *at == '\0';
}

bool pkvi_number_real(const char *text, double least, double most, bool above, double *value_out)
{
    if (!is_decimal(text)) {
        return false;
    }
    double value = strtod(text, NULL);
    if (!isfinite(value) || value < least || value > most || (above && value <= least)) {
        return false;
    }
    *value_out = value;
    return true;
}

bool pkvi_number_size(const char *text, int64_t most, int64_t *bytes_out)
{
    static const struct {
        const char *name;
        uint32_t shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    uint64_t value = 0;
    const char *end = read_digits(text, INT64_MAX, &value);
    if (end == NULL || value == 0 || most < 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].name) == 0) {
            if (value > (uint64_t)most >> units[i].shift) {
                return false;
            }
            *bytes_out = (int64_t)(value << units[i].shift);
            return true;
        }
    }
    return false;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int pkvi_number_next(const char *data, size_t bytes, size_t *at, int32_t most, int32_t *value_out)
{
    size_t next = *at;
    while (next < bytes && is_space(data[next])) {
        next++;
    }
    *at = next;
    if (next == bytes) {
        return 0;
    }
    int64_t value = 0;
    for (; next < bytes && is_digit(data[next]); next++) {
        value = value * 10 + (data[next] - '0');
        if (value > most) {
            return -1;
        }
    }
    if (next == *at || (next < bytes && !is_space(data[next]))) {
        return -1;
    }
    *at = next;
    *value_out = (int32_t)value;
    return 1;
}
