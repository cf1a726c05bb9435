/*
 * Chat templates: any bytes as a template (up to the first 0 byte), then any conversation. Whatever
 * is recognised must render, and its spans must lie in order inside the text.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const struct pkvi_chat_text *text)
{
    size_t at = 0;
    for (size_t i = 0; i < text->span_count; i++) {
        if (text->span[i].at < at || text->span[i].bytes > text->bytes - text->span[i].at) {
            abort();
        }
        at = text->span[i].at + text->span[i].bytes;
    }
    if (text->bytes > 0 && (text->bytes >= text->capacity || text->data[text->bytes] != '\0')) {
        abort();
    }
}

/* The rest as messages: one a line, its first byte chooses the role. */
static size_t read_messages(const char *data, size_t bytes, struct pkv_chat_message *messages,
                            size_t most)
{
    static const char *const roles[] = {"user", "assistant", "system", "user", "assistant", "tool"};
    size_t count = 0;
    while (bytes > 0 && count < most) {
        const char *end = memchr(data, '\f', bytes);
        size_t n = end ? (size_t)(end - data) : bytes;
        if (n > 0) {
            messages[count++] =
                (struct pkv_chat_message){roles[(unsigned char)data[0] % 6], data + 1, n - 1};
        }
        n += end != NULL;
        data += n;
        bytes -= n;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = memchr(data, '\0', bytes);
    size_t template_bytes = end ? (size_t)(end - data) : bytes;
    char *template = malloc(template_bytes + 1); // exact, so that reading past it is seen
    if (template == NULL) {
        return 0;
    }
    memcpy(template, data, template_bytes);
    struct pkv_chat_message messages[8] = {{"user", "Hi", 2}};
    size_t count = 1;
    if (end && template_bytes + 1 < bytes) {
        count = read_messages((const char *)end + 1, bytes - template_bytes - 1, messages, 8);
    }
    struct pkvi_chat_style style;
    if (pkvi_chat_style_read(template, template_bytes, &style) == PKV_OK) {
        for (int generation = 0; generation < 2; generation++) {
            struct pkvi_chat_text text = {
                .bos = "<s>", .eos = "</s>", .bos_bytes = 3, .eos_bytes = 4};
            (void)pkvi_chat_write(&style, messages, count, generation, &text);
            check(&text);
            pkvi_chat_text_fini(&text);
        }
        pkvi_chat_style_fini(&style);
    }
    free(template);
    return 0;
}
