/* lines.c: owns stdin as lines; the only file that knows libedit. */
#include "runtime/cli/lines.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "runtime/cli/cli.h"

struct pkvi_lines {
    EditLine *editor; /* NULL: not interactive */
    History *history;
    char *line; /* of getline() */
    size_t capacity;
};

static char *prompt(EditLine *editor)
{
    static char text[] = "> ";
    (void)editor;
    return text;
}

/* One character for the editor. libedit's own reader would go on after a signal. */
static int read_character(EditLine *editor, wchar_t *character_out)
{
    (void)editor;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        char byte = 0;
        if (!pkvi_signals_wait_input(STDIN_FILENO)) {
            return -1;
        }
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got == 0) {
            return 0;
        }
        if (got < 0) {
            if (errno == EINTR && pkvi_signal == 0) {
                continue;
            }
            return -1;
        }
        size_t bytes = mbrtowc(character_out, &byte, 1, &state);
        if (bytes == (size_t)-1) {
            memset(&state, 0, sizeof state); /* not a character: leave it out */
        } else if (bytes != (size_t)-2) {
            return 1;
        }
    }
}

static bool open_editor(struct pkvi_lines *lines)
{
    HistEvent event;
    lines->editor = el_init("pivotkv", stdin, stdout, stderr);
    lines->history = history_init();
    if (lines->editor == NULL || lines->history == NULL) {
        return false;
    }
    history(lines->history, &event, H_SETSIZE, 1000);
    el_set(lines->editor, EL_PROMPT, prompt);
    el_set(lines->editor, EL_EDITOR, "emacs");
    el_set(lines->editor, EL_HIST, history, lines->history);
    el_set(lines->editor, EL_GETCFN, read_character);
    el_set(lines->editor, EL_SIGNAL, 0);
    return true;
}

struct pkvi_lines *pkvi_lines_open(void)
{
    struct pkvi_lines *lines = calloc(1, sizeof *lines);
    if (lines == NULL) {
        return NULL;
    }
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !open_editor(lines)) {
        pkvi_lines_close(lines);
        return NULL;
    }
    return lines;
}

void pkvi_lines_close(struct pkvi_lines *lines)
{
    if (lines == NULL) {
        return;
    }
    if (lines->history != NULL) {
        history_end(lines->history);
    }
    if (lines->editor != NULL) {
        el_end(lines->editor);
    }
    free(lines->line);
    free(lines);
}

bool pkvi_lines_interactive(const struct pkvi_lines *lines)
{
    return lines->editor != NULL;
}

static enum pkvi_line next_edited(struct pkvi_lines *lines, const char **text_out, int *bytes_out)
{
    *text_out = el_gets(lines->editor, bytes_out);
    if (pkvi_signal != 0) {
        fputc('\n', stdout);
        fflush(stdout);
        return PKV_LINE_INTERRUPTED;
    }
    if (*text_out == NULL || *bytes_out <= 0) {
        fputc('\n', stdout);
        fflush(stdout);
        return *bytes_out < 0 ? PKV_LINE_FAILED : PKV_LINE_END;
    }
    if (*bytes_out > 1) {
        HistEvent event;
        history(lines->history, &event, H_ENTER, *text_out);
    }
    return PKV_LINE_OK;
}

static enum pkvi_line next_plain(struct pkvi_lines *lines, const char **text_out,
                                 ssize_t *bytes_out)
{
    errno = 0;
    *bytes_out = getline(&lines->line, &lines->capacity, stdin);
    *text_out = lines->line;
    if (*bytes_out > 0) {
        return PKV_LINE_OK;
    }
    if (errno == EINTR || pkvi_signal != 0) {
        clearerr(stdin);
        return PKV_LINE_INTERRUPTED;
    }
    return errno != 0 ? PKV_LINE_FAILED : PKV_LINE_END;
}

enum pkvi_line pkvi_lines_next(struct pkvi_lines *lines, const char **text_out, size_t *bytes_out)
{
    int edited_bytes = 0;
    ssize_t plain_bytes = 0;
    enum pkvi_line result = lines->editor != NULL ? next_edited(lines, text_out, &edited_bytes)
                                                  : next_plain(lines, text_out, &plain_bytes);
    if (result != PKV_LINE_OK) {
        return result;
    }
    *bytes_out = lines->editor != NULL ? (size_t)edited_bytes : (size_t)plain_bytes;
    *bytes_out -= (*text_out)[*bytes_out - 1] == '\n';
    *bytes_out -= *bytes_out > 0 && (*text_out)[*bytes_out - 1] == '\r';
    return PKV_LINE_OK;
}
