/*
 * chat_write.c: a conversation in a style, as text with the places of its tokens.
 *
 * Owns the order of things. Contents stay apart from the template's own text: only the latter is
 * searched for markers.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/chat.h"

/* --- the growing text --- */

static enum pkv_status reserve(struct pkvi_chat_text *text, size_t bytes)
{
    if (bytes < text->capacity - text->bytes) {
        return PKV_OK;
    }
    size_t capacity = 2 * text->capacity + 256;
    if (bytes > SIZE_MAX / 4 || capacity > SIZE_MAX / 2) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "chat: a conversation of more than %zu bytes", bytes);
    }
    if (capacity - text->bytes <= bytes) {
        capacity = text->bytes + bytes + 1;
    }
    char *data = realloc(text->data, capacity);
    if (!data) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "chat: no memory for %zu bytes", capacity);
    }
    text->data = data;
    text->capacity = capacity;
    return PKV_OK;
}

static enum pkv_status put(struct pkvi_chat_text *text, const char *data, size_t bytes)
{
    PKV_TRY(reserve(text, bytes));
    if (bytes > 0) {
        memcpy(text->data + text->bytes, data, bytes);
    }
    text->bytes += bytes;
    text->data[text->bytes] = '\0';
    return PKV_OK;
}

static enum pkv_status put_span(struct pkvi_chat_text *text, enum pkvi_chat_span_kind kind,
                                const char *data, size_t bytes)
{
    if (text->span_count == text->span_capacity) {
        size_t capacity = 2 * text->span_capacity + 32;
        struct pkvi_chat_span *span = capacity > SIZE_MAX / 2 / sizeof *span
                                          ? NULL
                                          : realloc(text->span, capacity * sizeof *span);
        if (!span) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "chat: no memory for %zu spans", capacity);
        }
        text->span = span;
        text->span_capacity = capacity;
    }
    size_t at = text->bytes;
    PKV_TRY(put(text, data, bytes));
    text->span[text->span_count++] = (struct pkvi_chat_span){kind, at, bytes};
    return PKV_OK;
}

void pkvi_chat_text_fini(struct pkvi_chat_text *text)
{
    free(text->data);
    free(text->span);
    *text = (struct pkvi_chat_text){0};
}

/* The template's own text: markers and the bytes that stand for tokens are found in it. */
static enum pkv_status put_own(struct pkvi_chat_text *text, const struct pkvi_chat_style *style,
                               const char *own)
{
    while (*own != '\0') {
        size_t bytes = 0;
        for (size_t i = 0; i < PKVI_CHAT_MARKERS && style->marker[i] && bytes == 0; i++) {
            size_t n = strlen(style->marker[i]);
            bytes = strncmp(own, style->marker[i], n) == 0 ? n : 0;
        }
        if (bytes > 0) {
            PKV_TRY(put_span(text, PKVI_SPAN_MARKER, own, bytes));
        } else if (*own == PKVI_CHAT_BOS) {
            PKV_TRY(put_span(text, PKVI_SPAN_BOS, text->bos, text->bos_bytes));
        } else if (*own == PKVI_CHAT_EOS) {
            PKV_TRY(put_span(text, PKVI_SPAN_EOS, text->eos, text->eos_bytes));
        } else if (*own == PKVI_CHAT_DATE) {
            PKV_TRY(
                put(text, style->date ? style->date : "", style->date ? strlen(style->date) : 0));
        } else {
            PKV_TRY(put(text, own, 1));
        }
        own += bytes > 0 ? bytes : 1;
    }
    return PKV_OK;
}

/* --- contents --- */

struct piece {
    const char *data;
    size_t bytes;
};

/* Bytes of the white-space character that data begins with, 0 = none (Python's str.isspace). */
static size_t space_at(const char *data, size_t bytes)
{
    static const char *const wide[] = {
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    unsigned char c = (unsigned char)data[0];
    if (c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f)) {
        return 1;
    }
    for (size_t i = 0; c >= 0xc2 && i < sizeof wide / sizeof wide[0]; i++) {
        size_t n = strlen(wide[i]);
        if (bytes >= n && memcmp(data, wide[i], n) == 0) {
            return n;
        }
    }
    return 0;
}

static struct piece trim_front(struct piece p)
{
    size_t n;
    while (p.bytes > 0 && (n = space_at(p.data, p.bytes)) > 0) {
        p.data += n;
        p.bytes -= n;
    }
    return p;
}

static struct piece trim_back(struct piece p)
{
    while (p.bytes > 0) {
        size_t n = 1;
        while (n < 3 && n < p.bytes && ((unsigned char)p.data[p.bytes - n] & 0xc0) == 0x80) {
            n++;
        }
        if (space_at(p.data + p.bytes - n, n) != n) {
            break;
        }
        p.bytes -= n;
    }
    return p;
}

static struct piece strip_newlines(struct piece p, bool back)
{
    while (p.bytes > 0 && p.data[0] == '\n') {
        p.data++;
        p.bytes--;
    }
    while (back && p.bytes > 0 && p.data[p.bytes - 1] == '\n') {
        p.bytes--;
    }
    return p;
}

static enum pkv_status put_content(struct pkvi_chat_text *text, struct piece content)
{
    return content.bytes > 0 ? put_span(text, PKVI_SPAN_CONTENT, content.data, content.bytes)
                             : PKV_OK;
}

/* --- turns --- */

struct conversation {
    const struct pkvi_chat_style *style;
    const struct pkv_chat_message *messages;
    size_t count;
    size_t last_query;   /* index of the last question, for `thinks` */
    struct piece system; /* goes into a user's turn; data NULL = none */
    struct pkvi_chat_text *text;
};

static struct piece content_of(const struct pkv_chat_message *message)
{
    return (struct piece){message->content_bytes > 0 ? message->content : "",
                          message->content_bytes};
}

static enum pkv_status role_of(const struct pkv_chat_message *message,
                               enum pkvi_chat_role *role_out)
{
    static const char *const names[] = {"system", "user", "assistant"};
    for (int i = 0; i < PKVI_ROLE_COUNT; i++) {
        if (strcmp(message->role, names[i]) == 0) {
            *role_out = (enum pkvi_chat_role)i;
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_UNSUPPORTED, "chat: role '%.64s'; allowed: system, user, assistant",
                    message->role);
}

/* The first place behind the last `what`, or the last place of all. */
static struct piece behind_last(struct piece p, const char *what)
{
    size_t n = strlen(what);
    char *at;
    while ((at = memmem(p.data, p.bytes, what, n)) != NULL) {
        p.bytes -= (size_t)(at - p.data) + n;
        p.data = at + n;
    }
    return p;
}

/* Qwen3: reasoning is kept only in answers after the last question. */
static enum pkv_status put_thinking(const struct conversation *c, size_t index)
{
    struct piece all = content_of(&c->messages[index]);
    struct piece answer = all, thought = {all.data, 0};
    char *end = memmem(all.data, all.bytes, "</think>", 8);
    if (end != NULL) {
        answer = strip_newlines(behind_last(all, "</think>"), false);
        thought.bytes = (size_t)(end - all.data);
        thought = strip_newlines(behind_last(thought, "<think>"), true);
    }
    if (index > c->last_query && (index + 1 == c->count || thought.bytes > 0)) {
        PKV_TRY(put_own(c->text, c->style, "<think>\n"));
        PKV_TRY(put_content(c->text, thought));
        PKV_TRY(put_own(c->text, c->style, "\n</think>\n\n"));
        answer = strip_newlines(answer, false);
    }
    return put_content(c->text, answer);
}

/* Does the system text go into this turn? */
static bool takes_system(const struct conversation *c, size_t index, size_t first)
{
    return c->system.data &&
           (c->style->system == PKVI_SYSTEM_FIRST_USER ? index == first : index + 1 == c->count);
}

static enum pkv_status put_turn(const struct conversation *c, size_t index, size_t first)
{
    const struct pkvi_chat_style *style = c->style;
    struct piece content = content_of(&c->messages[index]);
    enum pkvi_chat_role role = PKVI_ROLE_USER;
    PKV_TRY(role_of(&c->messages[index], &role));
    bool with_system = role == PKVI_ROLE_USER && takes_system(c, index, first);
    if (role == PKVI_ROLE_SYSTEM && style->skips_empty_system && content.bytes == 0) {
        return PKV_OK;
    }
    bool dated = role == PKVI_ROLE_SYSTEM && index == 0 && style->before_first_system;
    PKV_TRY(put_own(c->text, style, dated ? style->before_first_system : style->before[role]));
    if (style->trim[role]) {
        content = trim_back(content);
        content = with_system && style->trim_whole ? content : trim_front(content);
    }
    if (with_system) {
        PKV_TRY(put_own(c->text, style, style->system_before));
        PKV_TRY(put_content(c->text, c->system));
        bool empty = style->trim_whole && content.bytes == 0; // white space before it goes too
        PKV_TRY(put_own(c->text, style, empty ? "\n<</SYS>>" : style->system_after));
    }
    PKV_TRY(style->thinks && role == PKVI_ROLE_ASSISTANT ? put_thinking(c, index)
                                                         : put_content(c->text, content));
    return put_own(c->text, style, style->after[role]);
}

/* --- rules --- */

static enum pkv_status check_roles(const struct conversation *c, bool system_first)
{
    const struct pkvi_chat_style *style = c->style;
    for (size_t i = 0, turn = 0; i < c->count; i++) {
        enum pkvi_chat_role role = PKVI_ROLE_USER;
        PKV_TRY(role_of(&c->messages[i], &role));
        if (role == PKVI_ROLE_SYSTEM && style->system == PKVI_SYSTEM_NONE) {
            return PKV_FAIL(PKV_ERR_UNSUPPORTED, "chat: this %s template has no system role",
                            style->family);
        }
        if (i == 0 && system_first) {
            continue;
        }
        if (role == PKVI_ROLE_SYSTEM && !style->later_system) {
            return PKV_FAIL(PKV_ERR_INVALID,
                            "chat: message %zu is a system message; in this %s template only the "
                            "first may be one",
                            i + 1, style->family);
        }
        if (style->alternates && (role == PKVI_ROLE_USER) != (turn++ % 2 == 0)) {
            return PKV_FAIL(PKV_ERR_INVALID,
                            "chat: message %zu is of role %s; in this %s template user and "
                            "assistant take turns, the user first",
                            i + 1, c->messages[i].role, style->family);
        }
    }
    return PKV_OK;
}

static bool is_tool_answer(const struct pkv_chat_message *message)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = message->content_bytes;
    return n >= sizeof close - 1 && memcmp(message->content, open, sizeof open - 1) == 0 &&
           memcmp(message->content + n - (sizeof close - 1), close, sizeof close - 1) == 0;
}

static void find_last_query(struct conversation *c)
{
    c->last_query = c->count - 1;
    for (size_t i = c->count; i-- > 0;) {
        if (strcmp(c->messages[i].role, "user") == 0 && !is_tool_answer(&c->messages[i])) {
            c->last_query = i;
            return;
        }
    }
}

/* A default system text where none is given: in the user's turn, or as a turn of its own. */
static enum pkv_status put_default(struct conversation *c)
{
    const struct pkvi_chat_style *style = c->style;
    struct piece first = content_of(&c->messages[0]);
    struct piece text = {style->default_system, strlen(style->default_system)};
    if (style->default_unless &&
        memmem(first.data, first.bytes, style->default_unless, strlen(style->default_unless))) {
        return PKV_OK;
    }
    if (style->system != PKVI_SYSTEM_TURN) {
        c->system = text;
        return PKV_OK;
    }
    PKV_TRY(put_own(c->text, style,
                    style->before_first_system ? style->before_first_system
                                               : style->before[PKVI_ROLE_SYSTEM]));
    PKV_TRY(put(c->text, text.data, text.bytes));
    return put_own(c->text, style, style->after[PKVI_ROLE_SYSTEM]);
}

enum pkv_status pkvi_chat_write(const struct pkvi_chat_style *style,
                                const struct pkv_chat_message *messages, size_t count,
                                bool add_generation, struct pkvi_chat_text *text)
{
    struct conversation c = {.style = style, .messages = messages, .count = count, .text = text};
    if (count == 0) {
        return PKV_FAIL(PKV_ERR_INVALID, "chat: no messages");
    }
    bool system_first = strcmp(messages[0].role, "system") == 0;
    PKV_TRY(check_roles(&c, system_first));
    bool inside = system_first && style->system != PKVI_SYSTEM_TURN;
    if (inside && count == 1) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "chat: a system message alone; in this %s template it is part of a user's "
                        "message",
                        style->family);
    }
    find_last_query(&c);
    PKV_TRY(put_own(text, style, style->start));
    if (inside) {
        c.system = content_of(&messages[0]);
    } else if (!system_first && style->default_system) {
        PKV_TRY(put_default(&c));
    }
    size_t first = inside ? 1 : 0;
    for (size_t i = first; i < count; i++) {
        PKV_TRY(put_turn(&c, i, first));
    }
    if (add_generation) {
        return put_own(text, style, style->generation);
    }
    return put_own(text, style, style->no_generation ? style->no_generation : "");
}
