/*
 * chat_template.c: conversations as token ids, in the style of the model file or of a family.
 *
 * Owns what becomes a control token: markers of the template, its BOS and EOS, and nothing else.
 * Contents are encoded as ordinary text, together with the template's text around them (where a
 * text is cut decides its ids). A marker that the vocabulary holds as user-defined would be found
 * in ordinary text too: a content that holds one is cut inside it.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/chat.h"
#include "runtime/text/text.h"

const char *pkvi_chat_family(const char *text, size_t bytes, const char **problem_out)
{
    struct pkvi_chat_style style;
    *problem_out = NULL;
    if (pkvi_chat_style_read(text, bytes, &style) == PKV_OK) {
        const char *family = style.family;
        pkvi_chat_style_fini(&style);
        return family;
    }
    *problem_out = text ? "the file's chat template is not one we know; name a family with "
                          "--chat-template"
                        : "the file has no chat template; name a family with --chat-template";
    return NULL;
}

/* The file's own style; also where its family is asked for by name. */
static enum pkv_status open_style(const struct pkv_tokenizer *tokenizer, const char *family,
                                  struct pkvi_chat_style *style_out)
{
    size_t bytes;
    const char *text = pkvi_tokenizer_template(tokenizer, &bytes);
    if (!family || (tokenizer->chat_family && strcmp(family, tokenizer->chat_family) == 0)) {
        return pkvi_chat_style_read(text, bytes, style_out);
    }
    return pkvi_chat_style_of(family, style_out);
}

static enum pkv_status write_text(const struct pkv_tokenizer *tokenizer,
                                  const struct pkvi_chat_style *style,
                                  const struct pkv_chat_message *messages, size_t count,
                                  bool add_generation, struct pkvi_chat_text *text)
{
    *text = (struct pkvi_chat_text){.bos = "", .eos = ""};
    if (tokenizer->bos >= 0) {
        pkv_token_bytes(tokenizer, tokenizer->bos, true, &text->bos, &text->bos_bytes);
    }
    if (tokenizer->eos >= 0) {
        pkv_token_bytes(tokenizer, tokenizer->eos, true, &text->eos, &text->eos_bytes);
    }
    return pkvi_chat_write(style, messages, count, add_generation, text);
}

/* --- ids --- */

struct encoding {
    const struct pkv_tokenizer *tokenizer;
    const struct pkvi_chat_text *text;
    const char *user_marker[PKVI_CHAT_MARKERS + 1]; /* user-defined in this vocabulary */
    size_t done;                                    /* bytes of the text that are encoded */
    bool follows_text;                              /* what is encoded last is text */
    struct pkv_ids *ids;
};

static enum pkv_status encode_up_to(struct encoding *e, size_t at)
{
    if (at <= e->done) {
        return PKV_OK;
    }
    PKV_TRY(pkvi_tokenizer_encode_plain(e->tokenizer, e->text->data + e->done, at - e->done,
                                        e->follows_text, e->ids));
    e->done = at;
    e->follows_text = true;
    return PKV_OK;
}

static enum pkv_status encode_token(struct encoding *e, const struct pkvi_chat_span *span,
                                    int32_t id)
{
    PKV_TRY(encode_up_to(e, span->at));
    PKV_TRY(pkv_ids_append(e->ids, id));
    e->done = span->at + span->bytes;
    e->follows_text = false;
    while (e->done < e->text->bytes && pkvi_tokenizer_strips_after(e->tokenizer, id) &&
           isspace((unsigned char)e->text->data[e->done])) {
        e->done++;
    }
    return PKV_OK;
}

/* Cut a content behind the first byte of each user-defined marker in it. */
static enum pkv_status encode_content(struct encoding *e, const struct pkvi_chat_span *span)
{
    const char *data = e->text->data + span->at;
    for (size_t i = 0; e->user_marker[0] && i < span->bytes; i++) {
        for (size_t m = 0; e->user_marker[m]; m++) {
            size_t n = strlen(e->user_marker[m]);
            if (n > 1 && n <= span->bytes - i && memcmp(data + i, e->user_marker[m], n) == 0) {
                PKV_TRY(encode_up_to(e, span->at + i + 1));
                break;
            }
        }
    }
    return PKV_OK;
}

static enum pkv_status encode_span(struct encoding *e, const struct pkvi_chat_span *span)
{
    int32_t id = -1;
    switch (span->kind) {
    case PKVI_SPAN_BOS:
        id = e->tokenizer->bos;
        break;
    case PKVI_SPAN_EOS:
        id = e->tokenizer->eos;
        break;
    case PKVI_SPAN_MARKER:
        id = pkvi_tokenizer_find(e->tokenizer, e->text->data + span->at, span->bytes);
        id = id >= 0 && pkv_token_is_control(e->tokenizer, id) ? id : -1;
        break;
    case PKVI_SPAN_CONTENT:
        return encode_content(e, span);
    }
    return id >= 0 ? encode_token(e, span, id) : PKV_OK;
}

static enum pkv_status encode_text(const struct pkv_tokenizer *tokenizer,
                                   const struct pkvi_chat_style *style,
                                   const struct pkvi_chat_text *text, struct pkv_ids *ids)
{
    struct encoding e = {.tokenizer = tokenizer, .text = text, .ids = ids};
    for (size_t i = 0, n = 0; i < PKVI_CHAT_MARKERS && style->marker[i]; i++) {
        int32_t id = pkvi_tokenizer_find(tokenizer, style->marker[i], strlen(style->marker[i]));
        if (id >= 0 && !pkv_token_is_control(tokenizer, id)) {
            e.user_marker[n++] = style->marker[i];
        }
    }
    for (size_t i = 0; i < text->span_count; i++) {
        PKV_TRY(encode_span(&e, &text->span[i]));
    }
    return encode_up_to(&e, text->bytes);
}

/* --- public --- */

static enum pkv_status check_vocabulary(const struct pkv_tokenizer *tokenizer)
{
    if (!tokenizer->bpe && !tokenizer->spm) {
        return PKV_FAIL(
            PKV_ERR_UNSUPPORTED,
            "chat: the model file has no vocabulary; only token ids can be used with it");
    }
    return PKV_OK;
}

enum pkv_status pkv_chat_encode(const struct pkv_tokenizer *tokenizer, const char *family,
                                const struct pkv_chat_message *messages, size_t count,
                                bool add_generation, struct pkv_ids *ids)
{
    struct pkvi_chat_style style;
    struct pkvi_chat_text text;
    size_t before = ids->count;
    PKV_TRY(check_vocabulary(tokenizer));
    PKV_TRY(open_style(tokenizer, family, &style));
    enum pkv_status status = write_text(tokenizer, &style, messages, count, add_generation, &text);
    if (status == PKV_OK) {
        status = encode_text(tokenizer, &style, &text, ids);
    }
    pkvi_chat_text_fini(&text);
    pkvi_chat_style_fini(&style);
    if (status != PKV_OK) {
        ids->count = before;
    }
    return status;
}

enum pkv_status pkv_chat_render(const struct pkv_tokenizer *tokenizer, const char *family,
                                const struct pkv_chat_message *messages, size_t count,
                                bool add_generation, char **text_out, size_t *bytes_out)
{
    struct pkvi_chat_style style;
    struct pkvi_chat_text text;
    PKV_TRY(open_style(tokenizer, family, &style));
    enum pkv_status status = write_text(tokenizer, &style, messages, count, add_generation, &text);
    pkvi_chat_style_fini(&style);
    if (status == PKV_OK && !text.data && !(text.data = calloc(1, 1))) {
        status = PKV_FAIL(PKV_ERR_NO_MEMORY, "chat: no memory");
    }
    if (status != PKV_OK) {
        pkvi_chat_text_fini(&text);
        return status;
    }
    *text_out = text.data;
    *bytes_out = text.bytes;
    free(text.span);
    return PKV_OK;
}

int32_t pkv_chat_end_of_turn(const struct pkv_tokenizer *tokenizer, const char *family)
{
    struct pkvi_chat_style style;
    if (open_style(tokenizer, family, &style) != PKV_OK) {
        return -1;
    }
    const char *end = style.end;
    pkvi_chat_style_fini(&style);
    return end ? pkvi_tokenizer_find(tokenizer, end, strlen(end)) : tokenizer->eos;
}
