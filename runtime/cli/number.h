/* number.h: the one strict reader of numbers that people type. */
#ifndef PKV_CLI_NUMBER_H
#define PKV_CLI_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * All of these read the whole text or nothing: false, and *_out as before, if it is empty, has
 * anything before or behind the number (white space too), is out of range or is no number (nan,
 * inf, 0x10). They do not depend on the locale.
 */

/* An optional '-' and decimal digits, least .. most. */
bool pkvi_number_int(const char *text, int64_t least, int64_t most, int64_t *value_out);

/* Decimal with optional fraction and exponent; least .. most, `above`: least itself is not allowed.
 */
bool pkvi_number_real(const char *text, double least, double most, bool above, double *value_out);

/* Whole bytes with an optional KiB, MiB or GiB directly behind; 1 .. most. */
bool pkvi_number_size(const char *text, int64_t most, int64_t *bytes_out);

/*
 * The next of the decimal numbers separated by white space in data[*at .. bytes); moves *at behind
 * it. 1: read; 0: none left; -1: what stands at *at is no number from 0 to `most`.
 */
int pkvi_number_next(const char *data, size_t bytes, size_t *at, int32_t most, int32_t *value_out);

#endif
