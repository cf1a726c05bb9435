/* The kept turns of a chat: texts lie within the note; what was written is read back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/note.c"
#include "runtime/cli/number.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* As in file.c, which needs the rest of the program. */
bool pkvi_bytes_add(struct pkvi_bytes *text, const char *data, size_t bytes)
{
    char *larger = realloc(text->data, text->bytes + bytes + 1);
    if (larger == NULL) {
        return false;
    }
    text->data = larger;
    memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    return true;
}

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *note = malloc(bytes + 1);
    struct pkvi_bytes again = {0};
    size_t at = 0, length = 0;
    const char *role = NULL, *text = NULL;
    check(note != NULL && pkvi_note_begin(&again));
    if (bytes > 0) {
        memcpy(note, data, bytes);
    }
    int more = 1;
    while ((more = pkvi_note_next(note, bytes, &at, &role, &text, &length)) > 0) {
        check(text >= note && length <= bytes && text + length < note + bytes);
        check(pkvi_note_add(&again, role, text, length));
    }
    if (more == 0) {
        size_t now = 0, count = 0;
        while ((more = pkvi_note_next(again.data, again.bytes, &now, &role, &text, &length)) > 0) {
            count++;
        }
        check(more == 0 && now == again.bytes);
    }
    free(again.data);
    free(note);
    return 0;
}
