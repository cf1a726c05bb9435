/*
 * chat_normal.c: a chat template in a form that can be compared (see chat.h).
 *
 * Owns just so much of Jinja as that needs: tags, literals, white-space control, nesting of if and
 * for. It evaluates nothing but a short list of conditions about tools that are known to be false
 * here, and believes nothing: any bytes are a template. Facts about white space: Jinja 3.1, with
 * trim_blocks and lstrip_blocks as transformers sets them.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/chat.h"

#define MOST_DEPTH 64
#define NAME_BYTES 40u

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_name(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* --- first pass: tags and literals --- */

struct reader {
    const char *text;
    size_t at, bytes;
    char *out;
    size_t length;
    size_t literal, literal_end; /* in out: the last literal's opening quote; one behind it */
    bool after_block, line_start, strip; /* of the tag before */
};

static void put(struct reader *r, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(r->out + r->length, text, bytes);
    r->length += bytes;
}

static void put_byte(struct reader *r, char c)
{
    r->out[r->length++] = c;
}

/* A byte of a literal that stands for itself. At most two bytes come out. */
static void put_literal_byte(struct reader *r, char c)
{
    if (c == '\n') {
        put(r, "\\n");
    } else if (c == '\'' || c == '\\') {
        put_byte(r, '\\');
        put_byte(r, c);
    } else {
        put_byte(r, c);
    }
}

/* 'a'+'b' becomes 'ab'. */
static void begin_literal(struct reader *r)
{
    if (r->length > 0 && r->literal_end == r->length - 1 && r->out[r->length - 1] == '+') {
        r->length -= 2;
        return;
    }
    r->literal = r->length;
    put_byte(r, '\'');
}

static void end_literal(struct reader *r)
{
    put_byte(r, '\'');
    r->literal_end = r->length;
}

/* ['name'] becomes .name; called at ']'. */
static void end_subscript(struct reader *r)
{
    size_t from = r->literal + 1, to = r->literal_end - 1;
    bool plain = r->literal_end == r->length && r->length > 0 && r->literal > 0 &&
                 r->out[r->literal - 1] == '[' && to > from && to - from <= NAME_BYTES;
    for (size_t i = from; plain && i < to; i++) {
        plain = is_name(r->out[i]);
    }
    if (!plain) {
        put_byte(r, ']');
        return;
    }
    r->out[r->literal - 1] = '.';
    memmove(r->out + r->literal, r->out + from, to - from);
    r->length -= 2;
}

/* The text between two tags, as an output: what white-space control leaves of it. */
static void put_text(struct reader *r, size_t from, size_t to, bool strip, bool before_block)
{
    const char *text = r->text;
    if (r->strip) {
        while (from < to && is_space(text[from])) {
            from++;
        }
    }
    if (strip) {
        while (to > from && is_space(text[to - 1])) {
            to--;
        }
    } else if (before_block) { // lstrip_blocks: blanks between the start of the line and the tag
        size_t line = to;
        while (line > from && is_space(text[line - 1]) && text[line - 1] != '\n') {
            line--;
        }
        if (line > from ? text[line - 1] == '\n' : r->line_start) {
            to = line;
        }
    }
    if (from == to) {
        return;
    }
    put(r, "{{");
    begin_literal(r);
    for (size_t i = from; i < to; i++) {
        put_literal_byte(r, text[i]);
    }
    end_literal(r);
    put(r, "}}");
}

static void read_literal(struct reader *r)
{
    char quote = r->text[r->at++];
    begin_literal(r);
    while (r->at < r->bytes && r->text[r->at] != quote) {
        char c = r->text[r->at++];
        if (c != '\\' || r->at == r->bytes) {
            put_literal_byte(r, c);
            continue;
        }
        c = r->text[r->at++];
        if (c == '\'' || c == '"' || c == '\\') {
            put_literal_byte(r, c);
        } else {
            put_byte(r, '\\');
            put_byte(r, c == '\n' ? 'n' : c);
        }
    }
    r->at += r->at < r->bytes;
    end_literal(r);
}

/* Where the tag closes with `close`: the bytes of it (with a sign before), 0 = not here. */
static size_t closes(const struct reader *r, const char *close)
{
    const char *text = r->text + r->at;
    size_t rest = r->bytes - r->at;
    size_t sign = rest > 0 && (text[0] == '-' || text[0] == '+');
    if (rest >= sign + 2 && memcmp(text + sign, close, 2) == 0) {
        return sign + 2;
    }
    return 0;
}

/* Behind a tag: what the next text has to know of it. `-` eats white space, trim_blocks a newline.
 */
static void after_tag(struct reader *r, size_t bytes, bool block)
{
    r->strip = bytes == 3 && r->text[r->at] == '-';
    bool keep = bytes == 3 && r->text[r->at] == '+';
    r->at += bytes;
    r->line_start = false;
    if (block && !keep && !r->strip && r->at < r->bytes && r->text[r->at] == '\n') {
        r->at++;
        r->line_start = true;
    }
}

/* One tag, at its "{{" or "{%". */
static void read_tag(struct reader *r)
{
    bool block = r->text[r->at + 1] == '%';
    const char *close = block ? "%}" : "}}";
    put(r, block ? "{%" : "{{");
    r->at += 2;
    r->at += r->at < r->bytes && (r->text[r->at] == '-' || r->text[r->at] == '+');
    while (r->at < r->bytes) {
        char c = r->text[r->at];
        size_t bytes = closes(r, close);
        if (bytes > 0) {
            put(r, close);
            after_tag(r, bytes, block);
            return;
        }
        if (c == '\'' || c == '"') {
            read_literal(r);
            continue;
        }
        r->at++;
        if (c == ']') {
            end_subscript(r);
        } else if (!is_space(c)) {
            put_byte(r, c);
        }
    }
}

static void read_comment(struct reader *r)
{
    while (r->at < r->bytes && closes(r, "#}") == 0) {
        r->at++;
    }
    if (r->at < r->bytes) {
        after_tag(r, closes(r, "#}"), true);
    }
}

static void read_template(struct reader *r)
{
    size_t from = 0;
    while (r->at < r->bytes) {
        const char *here = r->text + r->at;
        size_t rest = r->bytes - r->at;
        char kind = here[0] == '{' && rest > 1 ? here[1] : '\0';
        if (kind != '{' && kind != '%' && kind != '#') {
            r->at++;
            continue;
        }
        char sign = rest > 2 ? here[2] : '\0';
        put_text(r, from, r->at, sign == '-', kind != '{' && sign != '+');
        if (kind == '#') {
            read_comment(r);
        } else {
            read_tag(r);
        }
        from = r->at;
    }
    size_t to = r->bytes;
    to -= to > from && r->text[to - 1] == '\n'; // Jinja drops one newline at the end
    put_text(r, from, to, false, false);
}

/* --- second pass: dead branches, outputs in a row --- */

/* What tools, images and switches ask for: never given here. */
static const char *const never[] = {
    "tools",
    "toolsisnotnone",
    "toolsisdefinedandtools",
    "toolsanddocuments",
    "custom_toolsisdefined",
    "builtin_toolsisdefined",
    "builtin_toolsisdefinedortoolsisnotnone",
    "toolsisnotnoneandnottools_in_user_message",
    "tools_in_user_messageandnottoolsisnone",
    "toolsisnotnoneand(message==user_messages[-1])",
    "message.role=='tool'",
    "message.role=='tool'ormessage.role=='ipython'",
    "message.role=='tool_results'ormessage.role=='tool'",
    "message.tool_calls",
    "'tool_calls'inmessage",
    "message.tool_callsisdefinedandmessage.tool_callsisnotnone",
    "(message.tool_callsisdefinedandmessage.tool_callsisnotnone)",
    "message.reasoning_contentisdefinedandmessage.reasoning_contentisnotnone",
    "message.reasoning_contentisstring",
    "enable_thinkingisdefinedandenable_thinkingisfalse",
    "strftime_nowisdefined", /* the date must not change the text: what stands for it is used */
    "false==true",
};
static const char *const always[] = {
    "message.contentisstring",
    "messages[0].contentisstring",
};

struct level {
    bool emitted;  /* its `if` or `for` is in the output */
    bool skipping; /* the present branch is dead */
    bool decided;  /* a branch is known to be taken: the others are dead */
    bool answers;  /* a branch took all answers without tool calls: the next one for them is dead */
};

struct pruner {
    const char *in;
    char *out;
    size_t length;
    int depth;
    struct level level[MOST_DEPTH];
};

static bool listed(const char *const *list, size_t count, const char *text, size_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        if (strlen(list[i]) == bytes && memcmp(list[i], text, bytes) == 0) {
            return true;
        }
    }
    return false;
}

static bool starts(const char *text, size_t bytes, const char *word)
{
    size_t n = strlen(word);
    return bytes >= n && memcmp(text, word, n) == 0;
}

static void copy(struct pruner *p, const char *text, size_t bytes)
{
    memmove(p->out + p->length, text, bytes);
    p->length += bytes;
}

/* An output behind an output: {{a}}{{b}} becomes {{a+b}}, {{'a'}}{{'b'}} becomes {{'ab'}}. */
static void copy_output(struct pruner *p, const char *tag, size_t bytes)
{
    if (p->length < 4 || memcmp(p->out + p->length - 2, "}}", 2) != 0) {
        copy(p, tag, bytes);
        return;
    }
    p->length -= 2;
    if (p->out[p->length - 1] == '\'' && tag[2] == '\'') {
        p->length--;
        copy(p, tag + 3, bytes - 3);
    } else {
        copy(p, "+", 1);
        copy(p, tag + 2, bytes - 2);
    }
}

/* One branch begins: its tag is printed unless it is known to be taken or not. */
static void branch(struct pruner *p, struct level *l, const char *condition, size_t bytes)
{
    static const char answer[] = "message.role=='assistant'";
    static const char plain_answer[] = "message.role=='assistant'andnotmessage.tool_calls";
    bool dead = listed(never, sizeof never / sizeof never[0], condition, bytes) ||
                (l->answers && starts(condition, bytes, answer) && bytes == sizeof answer - 1);
    bool sure = listed(always, sizeof always / sizeof always[0], condition, bytes);
    l->answers = l->answers || memmem(condition, bytes, plain_answer, sizeof plain_answer - 1);
    l->skipping = dead || l->decided;
    if (l->skipping) {
        return;
    }
    l->decided = sure;
    if (sure && !l->emitted) {
        return;
    }
    copy(p, l->emitted ? "{%elif" : "{%if", l->emitted ? 6 : 4);
    copy(p, condition, bytes);
    copy(p, "%}", 2);
    l->emitted = true;
}

static bool open_level(struct pruner *p, const char *tag, size_t bytes, bool is_if)
{
    if (p->depth == MOST_DEPTH) {
        return false;
    }
    bool outside = p->depth > 0 && p->level[p->depth - 1].skipping;
    struct level *l = &p->level[p->depth++];
    *l = (struct level){.skipping = outside, .decided = outside};
    if (outside) {
        return true;
    }
    if (is_if) {
        branch(p, l, tag + 4, bytes - 6);
    } else {
        copy(p, tag, bytes);
        l->emitted = true;
    }
    return true;
}

/* A {%...%} tag; false: the nesting is broken or too deep. */
static bool prune_block(struct pruner *p, const char *tag, size_t bytes)
{
    const char *word = tag + 2;
    size_t n = bytes - 4;
    struct level *l = p->depth > 0 ? &p->level[p->depth - 1] : NULL;
    bool outside = p->depth > 1 && p->level[p->depth - 2].skipping;
    if (starts(word, n, "if") || starts(word, n, "for")) {
        return open_level(p, tag, bytes, word[0] == 'i');
    }
    if (starts(word, n, "elif") || starts(word, n, "else")) {
        if (l != NULL && !outside && word[2] == 'i') {
            branch(p, l, word + 4, n - 4);
        } else if (l != NULL && !outside) {
            l->skipping = l->decided;
            if (!l->skipping && l->emitted) {
                copy(p, tag, bytes);
            }
        }
        return l != NULL;
    }
    if (starts(word, n, "endif") || starts(word, n, "endfor")) {
        if (l != NULL && l->emitted) {
            copy(p, tag, bytes);
        }
        p->depth -= l != NULL;
        return l != NULL;
    }
    if (l == NULL || !l->skipping) {
        copy(p, tag, bytes);
    }
    return true;
}

/* Bytes of the tag at `in`, whose literals may hold anything; to the end if it does not close. */
static size_t tag_bytes(const char *in)
{
    char second = in[1] == '%' ? '%' : '}';
    size_t i = in[1] == '\0' ? 1 : 2;
    while (in[i] != '\0' && !(in[i] == second && in[i + 1] == '}')) {
        if (in[i++] != '\'') {
            continue;
        }
        while (in[i] != '\0' && in[i] != '\'') {
            i += in[i] == '\\' && in[i + 1] != '\0' ? 2 : 1;
        }
        i += in[i] != '\0';
    }
    return in[i] == '\0' ? i : i + 2;
}

/* In place. The first pass wrote only tags. */
static bool prune(char *text)
{
    struct pruner p = {.in = text, .out = text};
    while (*p.in != '\0') {
        const char *tag = p.in;
        size_t bytes = tag_bytes(tag);
        p.in += bytes;
        if (bytes < 4) {
            return false;
        }
        if (tag[1] == '%') {
            if (!prune_block(&p, tag, bytes)) {
                return false;
            }
        } else if (p.depth == 0 || !p.level[p.depth - 1].skipping) {
            copy_output(&p, tag, bytes);
        }
    }
    p.out[p.length] = '\0';
    return p.depth == 0;
}

char *pkvi_chat_normal(const char *text, size_t bytes)
{
    // A byte becomes at most two; a text between tags gets 6 more, an open tag its end.
    size_t tags = 2;
    for (size_t i = 0; i + 1 < bytes; i++) {
        tags += text[i] == '{';
    }
    struct reader r = {.text = text, .bytes = bytes, .line_start = true};
    r.out = malloc(2 * bytes + 8 * tags);
    if (r.out == NULL) {
        return NULL;
    }
    read_template(&r);
    // A 0 byte would end the text here and hide the rest.
    if (memchr(r.out, '\0', r.length) != NULL) {
        r.length = 0;
    }
    r.out[r.length] = '\0';
    if (!prune(r.out)) {
        r.out[0] = '\0';
    }
    return r.out;
}
