/* file.c: owns reading whole files and the ids in them. */
#include "runtime/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/text.h"
#include "runtime/cli/number.h"

#define MOST_BYTES ((size_t)1 << 30)

const char *pkvi_file_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "stdin" : path;
}

bool pkvi_bytes_add(struct pkvi_bytes *text, const char *data, size_t bytes)
{
    if (bytes > text->capacity - text->bytes) {
        size_t capacity = (text->bytes + bytes) * 2 + 4096;
        char *larger = realloc(text->data, capacity);
        if (larger == NULL) {
            return false;
        }
        text->data = larger;
        text->capacity = capacity;
    }
    if (bytes > 0) {
        memcpy(text->data + text->bytes, data, bytes);
        text->bytes += bytes;
    }
    return true;
}

static bool read_all(int descriptor, const char *path, struct pkvi_bytes *file)
{
    for (;;) {
        char part[65536];
        ssize_t got = read(descriptor, part, sizeof part);
        if (got == 0) {
            return true;
        }
        if (got < 0 && errno == EINTR && pkvi_signal == 0) {
            continue;
        }
        if (got < 0) {
            pkvi_say_failure("%s: cannot read: %s", pkvi_file_name(path), strerror(errno));
            return false;
        }
        if (file->bytes + (size_t)got > MOST_BYTES) {
            pkvi_say_failure("%s: larger than 1 GiB, the most that is read", pkvi_file_name(path));
            return false;
        }
        if (!pkvi_bytes_add(file, part, (size_t)got)) {
            pkvi_say_failure("%s: out of memory", pkvi_file_name(path));
            return false;
        }
    }
}

bool pkvi_file_read(const char *path, struct pkvi_bytes *bytes_out)
{
    *bytes_out = (struct pkvi_bytes){0};
    bool is_stdin = strcmp(path, "-") == 0;
    int descriptor = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        pkvi_say_failure("%s: cannot open: %s", path, strerror(errno));
        return false;
    }
    bool ok = read_all(descriptor, path, bytes_out);
    if (!is_stdin) {
        close(descriptor);
    }
    if (!ok) {
        free(bytes_out->data);
        *bytes_out = (struct pkvi_bytes){0};
    }
    return ok;
}

bool pkvi_input_read(const char *text, const char *path, struct pkvi_bytes *bytes_out)
{
    if (text == NULL) {
        return pkvi_file_read(path != NULL ? path : "-", bytes_out);
    }
    *bytes_out = (struct pkvi_bytes){0};
    bool ok = pkvi_bytes_add(bytes_out, text, strlen(text));
    if (!ok) {
        pkvi_say_failure("out of memory");
    }
    return ok;
}

/* The word at `at` is not an id. A NUL would end the message, so it is named. */
static void refuse_id(const struct pkvi_bytes *text, size_t at, const char *name, size_t number,
                      int32_t most)
{
    const char *word = text->data + at;
    size_t bytes = 0;
    while (at + bytes < text->bytes && bytes < 16 && strchr(" \t\n\v\f\r", word[bytes]) == NULL) {
        bytes++;
    }
    if (at + bytes < text->bytes && word[bytes] == '\0') {
        pkvi_say_failure("%s: number %zu, '%.*s', then a NUL byte: not an id from 0 to %d", name,
                         number, (int)bytes, word, most);
    } else {
        pkvi_say_failure("%s: number %zu, '%.*s': not an id from 0 to %d", name, number, (int)bytes,
                         word, most);
    }
}

bool pkvi_ids_parse(const struct pkvi_bytes *text, const char *name, uint32_t vocab,
                    struct pkv_ids *ids)
{
    int32_t most = vocab > 0 && vocab - 1 < INT32_MAX ? (int32_t)(vocab - 1) : INT32_MAX;
    size_t at = 0;
    int32_t id = 0;
    int got = 0;
    while ((got = pkvi_number_next(text->data, text->bytes, &at, most, &id)) > 0) {
        if (pkv_ids_append(ids, id) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    if (got < 0) {
        refuse_id(text, at, name, ids->count + 1, most);
    }
    return got == 0;
}
