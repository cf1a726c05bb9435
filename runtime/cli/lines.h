/* lines.h: lines that a person types, or that come from a file. */
#ifndef PKV_CLI_LINES_H
#define PKV_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct pkvi_lines;

enum pkvi_line { PKV_LINE_OK, PKV_LINE_END, PKV_LINE_INTERRUPTED, PKV_LINE_FAILED };

/* With editing and history if stdin and stdout are terminals. NULL: no memory. */
struct pkvi_lines *pkvi_lines_open(void);
void pkvi_lines_close(struct pkvi_lines *lines);
bool pkvi_lines_interactive(const struct pkvi_lines *lines);
/*
 * The next line without its newline; borrowed until the next call. INTERRUPTED: a signal came
 * (pkvi_signal), and what was typed is gone. FAILED: stdin cannot be read, errno says why.
 */
enum pkvi_line pkvi_lines_next(struct pkvi_lines *lines, const char **text_out, size_t *bytes_out);

#endif
