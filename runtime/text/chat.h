/*
 * chat.h: how a chat template of a model file becomes a style, and a style becomes text.
 *
 * A style is a few strings around each role's content. chat_normal.c brings a template into a form
 * that can be compared, chat_style.c reads the style out of it, chat_write.c writes conversations
 * with it; none of them knows tokenizers. chat_template.c makes token ids.
 */
#ifndef PKV_TEXT_CHAT_H
#define PKV_TEXT_CHAT_H

#include "pivotkv/text.h"

enum pkvi_chat_role { PKVI_ROLE_SYSTEM, PKVI_ROLE_USER, PKVI_ROLE_ASSISTANT, PKVI_ROLE_COUNT };

/* What becomes of a system message that stands first. */
enum pkvi_chat_system {
    PKVI_SYSTEM_TURN,       /* a turn like the others */
    PKVI_SYSTEM_FIRST_USER, /* in front of the first user message */
    PKVI_SYSTEM_LAST_USER,  /* in front of the last message if that is a user's */
    PKVI_SYSTEM_NONE,       /* refused */
};

/* In strings of a style these bytes stand for the BOS token, the EOS token and the style's date. */
#define PKVI_CHAT_BOS '\001'
#define PKVI_CHAT_EOS '\002'
#define PKVI_CHAT_DATE '\003'

#define PKVI_CHAT_MARKERS 4u

struct pkvi_chat_style {
    const char *family;
    const char *marker[PKVI_CHAT_MARKERS]; /* texts that are tokens if the vocabulary has them */
    const char *end;                       /* end of turn; NULL = EOS */
    const char *start;                     /* before everything */
    const char *before[PKVI_ROLE_COUNT], *after[PKVI_ROLE_COUNT];
    const char *before_first_system; /* NULL = before[SYSTEM] */
    const char *generation;          /* opens the assistant's turn */
    const char *no_generation;       /* instead of it, if not wanted */
    enum pkvi_chat_system system;
    const char *system_before, *system_after; /* inside the user's turn */
    bool later_system;                        /* a system message may stand anywhere */
    bool skips_empty_system;
    bool alternates;            /* user, assistant, user, ... */
    bool trim[PKVI_ROLE_COUNT]; /* contents lose white space at both ends */
    bool trim_whole;            /* ... system text and user text together */
    bool thinks;                /* Qwen3: reasoning of old answers is dropped */
    char *default_system;       /* if none is given; owned, NULL = none */
    const char *default_unless; /* ... and the first message does not contain this; NULL = always */
    char *date;                 /* owned, NULL = none */
    char *own_generation;       /* owned: what `generation` points to if the template differs */
};

/*
 * Jinja with all that does not matter taken out, so that equal templates are equal texts. Spaces,
 * comments and white-space control are gone (text between tags becomes an output of a literal),
 * literals stand in single quotes with the escapes \\ \' \n, joined where they were added; x['y']
 * is x.y; outputs in a row are joined by +; branches for tools are gone, which this engine never
 * gives a template. NULL: no memory. Cost: linear.
 */
char *pkvi_chat_normal(const char *text, size_t bytes);

/*
 * The style that a template asks for. NULL template: none in the file. PKV_ERR_UNSUPPORTED: of no
 * known family, or it prints something that we do not know; the text is one line and names
 * --chat-template. PKV_ERR_NO_MEMORY. Cost: linear in bytes (at most PKVI_CHAT_MOST_BYTES).
 */
#define PKVI_CHAT_MOST_BYTES ((size_t)1 << 20)
enum pkv_status pkvi_chat_style_read(const char *text, size_t bytes,
                                     struct pkvi_chat_style *style_out);
/* The usual style of a family. PKV_ERR_INVALID names the families. */
enum pkv_status pkvi_chat_style_of(const char *family, struct pkvi_chat_style *style_out);
void pkvi_chat_style_fini(struct pkvi_chat_style *style);

/* A stretch of a rendered conversation that is not plain template text. */
enum pkvi_chat_span_kind { PKVI_SPAN_BOS, PKVI_SPAN_EOS, PKVI_SPAN_MARKER, PKVI_SPAN_CONTENT };
struct pkvi_chat_span {
    enum pkvi_chat_span_kind kind;
    size_t at, bytes;
};
struct pkvi_chat_text {
    char *data; /* a 0 behind it */
    size_t bytes, capacity;
    struct pkvi_chat_span *span;
    size_t span_count, span_capacity;
    const char *bos, *eos; /* their texts, borrowed */
    size_t bos_bytes, eos_bytes;
};

/*
 * Write a conversation; *text: init with its bos and eos, all else 0. PKV_ERR_INVALID: no messages,
 * or roles in an order that the template forbids; PKV_ERR_UNSUPPORTED: a role it does not have.
 * Free with pkvi_chat_text_fini() whatever comes back.
 */
enum pkv_status pkvi_chat_write(const struct pkvi_chat_style *style,
                                const struct pkv_chat_message *messages, size_t count,
                                bool add_generation, struct pkvi_chat_text *text);
void pkvi_chat_text_fini(struct pkvi_chat_text *text);

#endif
