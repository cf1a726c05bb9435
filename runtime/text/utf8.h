/* utf8.h: what bytes are UTF-8. Source: the Unicode standard, table 3-7 (well-formed sequences). */
#ifndef PKV_TEXT_UTF8_H
#define PKV_TEXT_UTF8_H

#include <stddef.h>

/*
 * Look at the first character of data (bytes >= 1).
 *   > 0  a whole character of so many bytes
 *   = 0  the start of one; more bytes are needed to tell
 *   < 0  minus the length of a maximal part that no further byte can make a character
 */
int pkvi_utf8_look(const char *data, size_t bytes);

#endif
