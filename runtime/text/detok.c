/* detok.c: ids to bytes, and to a stream that never holds half a character. */
#include <string.h>

#include "runtime/text/text.h"
#include "runtime/text/utf8.h"

void pkv_token_bytes(const struct pkv_tokenizer *tokenizer, int32_t id, bool special,
                     const char **data_out, size_t *bytes_out)
{
    const struct pkvi_vocab *vocab = &tokenizer->vocab;
    *data_out = "";
    *bytes_out = 0;
    if (!vocab->blob || id < 0 || (uint32_t)id >= vocab->count ||
        (!special && pkvi_vocab_is_control(vocab, id))) {
        return;
    }
    *data_out = vocab->blob + vocab->piece[id].out_at;
    *bytes_out = vocab->piece[id].out_bytes;
}

size_t pkv_detok_most_bytes(const struct pkv_tokenizer *tokenizer)
{
    return (size_t)tokenizer->vocab.most_text_bytes * 3 + 16; // decoded bytes are never more
}

void pkv_detok_init(struct pkv_detok *detok, const struct pkv_tokenizer *tokenizer, bool special)
{
    *detok = (struct pkv_detok){.tokenizer = tokenizer, .special = special, .first = true};
}

struct output {
    char *data;
    size_t bytes, capacity;
};

static void emit(struct output *output, const void *data, size_t bytes)
{
    if (bytes <= output->capacity - output->bytes) {
        memcpy(output->data + output->bytes, data, bytes);
        output->bytes += bytes;
    }
}

static void emit_replacement(struct output *output)
{
    emit(output, "\xef\xbf\xbd", 3);
}

/* Let out what is certain of the held bytes: after it they are the start of a character, or none.
 */
static void settle(struct pkv_detok *detok, struct output *output)
{
    while (detok->held_bytes > 0) {
        int length = pkvi_utf8_look((const char *)detok->held, detok->held_bytes);
        if (length == 0) {
            return;
        }
        uint32_t gone = (uint32_t)(length > 0 ? length : -length);
        if (length > 0) {
            emit(output, detok->held, gone);
        } else {
            emit_replacement(output);
        }
        detok->held_bytes -= gone;
        memmove(detok->held, detok->held + gone, detok->held_bytes);
    }
}

size_t pkv_detok_push(struct pkv_detok *detok, int32_t id, char *out, size_t out_bytes)
{
    struct output output = {out, 0, out_bytes};
    const struct pkvi_spm *spm = detok->tokenizer->spm;
    const char *data;
    size_t bytes;
    pkv_token_bytes(detok->tokenizer, id, detok->special, &data, &bytes);
    if (detok->first && bytes > 0) {
        if (spm && pkvi_spm_adds_space(spm) && data[0] == ' ') {
            data++;
            bytes--;
        }
        detok->first = false;
    }
    for (size_t i = 0; i < bytes; i++) {
        detok->held[detok->held_bytes++] = (unsigned char)data[i];
        settle(detok, &output);
    }
    return output.bytes;
}

size_t pkv_detok_finish(struct pkv_detok *detok, char *out, size_t out_bytes)
{
    struct output output = {out, 0, out_bytes};
    if (detok->held_bytes > 0) { // one maximal part: settle() left no more
        emit_replacement(&output);
        detok->held_bytes = 0;
    }
    return output.bytes;
}
