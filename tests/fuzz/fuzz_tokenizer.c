/*
 * The tokenizer: an input that begins with "GGUF" is a file to open and use; any other one chooses
 * a vocabulary and flags with its first byte and is a text for the rest. Checked: ids are in range,
 * ordinary text makes no control tokens, decoded bytes are the text, the stream is UTF-8 at every
 * cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/text.h"
#include "runtime/text/text.h"
#include "runtime/text/utf8.h"
#include "tests/support/pkv_test.h"
#include "tests/support/vocab_builder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(bool right)
{
    if (!right) {
        abort();
    }
}

/* Ids pushed one by one: whole characters only. */
static void check_stream(const struct pkv_tokenizer *tokenizer, const struct pkv_ids *ids)
{
    struct pkv_detok detok;
    size_t most = pkv_detok_most_bytes(tokenizer);
    char *piece = malloc(most);
    check(piece != NULL);
    pkv_detok_init(&detok, tokenizer, true);
    for (size_t i = 0; i <= ids->count; i++) {
        size_t count = i < ids->count ? pkv_detok_push(&detok, ids->id[i], piece, most)
                                      : pkv_detok_finish(&detok, piece, most);
        check(count <= most && detok.held_bytes < 4);
        for (size_t at = 0; at < count;) {
            int length = pkvi_utf8_look(piece + at, count - at);
            check(length > 0);
            at += (size_t)length;
        }
    }
    free(piece);
}

/* All bytes of ids in order, U+2581 as a space in both where the vocabulary is SPM. */
static void check_bytes(const struct pkv_tokenizer *tokenizer, const struct pkv_ids *ids,
                        const char *text, size_t bytes)
{
    size_t at = 0;
    bool added = tokenizer->spm != NULL; // the space before the text
    for (size_t i = 0; i < ids->count; i++) {
        const char *data;
        size_t count;
        pkv_token_bytes(tokenizer, ids->id[i], true, &data, &count);
        for (size_t j = 0; j < count; j++) {
            bool is_space = tokenizer->spm && bytes - at >= 3 &&
                            memcmp(text + at, "\xe2\x96\x81", 3) == 0 && data[j] == ' ';
            if (added) {
                check(data[j] == ' ');
                added = false;
                continue;
            }
            check(at < bytes && (is_space || data[j] == text[at]));
            at += is_space ? 3 : 1;
        }
    }
    check(at == bytes);
}

static void use(const struct pkv_tokenizer *tokenizer, const char *text, size_t bytes,
                uint32_t flags, bool has_all_bytes)
{
    struct pkv_ids ids = {0};
    struct pkv_tokenizer_info info;
    pkv_tokenizer_query(tokenizer, &info);
    if (pkv_encode(tokenizer, text, bytes, flags, &ids) == PKV_OK) {
        bool has_marker = false;
        for (size_t i = 0; i < ids.count; i++) {
            check(ids.id[i] >= 0 && (uint32_t)ids.id[i] < info.vocab);
            bool control = pkv_token_is_control(tokenizer, ids.id[i]);
            check(!control || ids.id[i] == info.unk || (flags & PKV_ENCODE_SPECIAL));
            has_marker |= control || tokenizer->vocab.kind[ids.id[i]] == PKVI_TOKEN_USER;
        }
        check_stream(tokenizer, &ids);
        if (has_all_bytes && bytes > 0 && (tokenizer->bpe || !has_marker)) {
            check_bytes(tokenizer, &ids, text, bytes);
        }
    } else {
        check(ids.count == 0);
    }
    pkv_ids_free(&ids);
}

static void use_file(const uint8_t *data, size_t bytes)
{
    static const char text[] = "Hello  ab\xc3\xa9\xff<tool></s>1234\n\xe2\x96\x81";
    struct pkv_tokenizer *tokenizer;
    if (pkv_tokenizer_open(pkvt_memory_file(data, bytes), &tokenizer) == PKV_OK) {
        use(tokenizer, text, sizeof text, 0, false);
        use(tokenizer, text, sizeof text, PKV_ENCODE_SPECIAL, false);
        pkv_tokenizer_close(tokenizer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct pkv_tokenizer *small[2], *real;
    if (!real) {
        small[0] = pkvt_open_tokenizer(pkvt_small_bpe());
        small[1] = pkvt_open_tokenizer(pkvt_small_spm());
        check(pkv_tokenizer_open(pkvt_path("golden/tokens/vocab_smollm2.gguf"), &real) == PKV_OK);
    }
    if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0) {
        use_file(data, bytes);
    } else if (bytes > 0) {
        uint32_t flags = data[0] & 4 ? PKV_ENCODE_SPECIAL : 0;
        const struct pkv_tokenizer *tokenizer = data[0] & 2 ? real : small[data[0] & 1];
        use(tokenizer, (const char *)data + 1, bytes - 1, flags, tokenizer != real);
    }
    return 0;
}
