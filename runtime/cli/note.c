/* note.c: owns the form in which a chat's turns are kept. */
#include <stdio.h>
#include <string.h>

#include "runtime/cli/kept.h"
#include "runtime/cli/number.h"

#define HEAD "pivotkv chat 1\n"

static const char *const roles[] = {"system", "user", "assistant"};

bool pkvi_note_begin(struct pkvi_bytes *note)
{
    note->bytes = 0;
    return pkvi_bytes_add(note, HEAD, strlen(HEAD));
}

bool pkvi_note_add(struct pkvi_bytes *note, const char *role, const char *text, size_t bytes)
{
    char line[64];
    const int length = snprintf(line, sizeof line, "%s %zu\n", role, bytes);
    return length > 0 && pkvi_bytes_add(note, line, (size_t)length) &&
           pkvi_bytes_add(note, text, bytes) && pkvi_bytes_add(note, "\n", 1);
}

/* "ROLE BYTES\n" at *at: its role and number. */
static bool read_line(const char *note, size_t note_bytes, size_t *at, const char **role_out,
                      size_t *bytes_out)
{
    char line[64];
    const char *end = memchr(note + *at, '\n', note_bytes - *at);
    const size_t length = end != NULL ? (size_t)(end - note) - *at : sizeof line;
    int64_t number = 0;
    if (length >= sizeof line) {
        return false;
    }
    memcpy(line, note + *at, length);
    line[length] = '\0';
    char *space = strchr(line, ' ');
    if (space == NULL || strlen(line) != length) {
        return false;
    }
    *space = '\0';
    *role_out = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        *role_out = strcmp(line, roles[i]) == 0 ? roles[i] : *role_out;
    }
    if (*role_out == NULL || !pkvi_number_int(space + 1, 0, INT64_MAX, &number)) {
        return false;
    }
    *bytes_out = (size_t)number;
    *at += length + 1;
    return true;
}

int pkvi_note_next(const char *note, size_t note_bytes, size_t *at, const char **role_out,
                   const char **text_out, size_t *bytes_out)
{
    if (*at == 0) {
        if (note_bytes < strlen(HEAD) || memcmp(note, HEAD, strlen(HEAD)) != 0) {
            return -1;
        }
        *at = strlen(HEAD);
    }
    if (*at == note_bytes) {
        return 0;
    }
    if (!read_line(note, note_bytes, at, role_out, bytes_out) || *bytes_out >= note_bytes - *at ||
        note[*at + *bytes_out] != '\n') {
        return -1;
    }
    *text_out = note + *at;
    *at += *bytes_out + 1;
    return 1;
}
