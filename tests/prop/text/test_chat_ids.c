/*
 * Whatever contents hold, only the template's own markers, BOS and EOS become their tokens: on
 * random contents made of pieces of markers, in every family, with markers of either type.
 */
#include "tests/support/pkv_test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/chat.h"
#include "tests/support/tiny_vocab.h"

static const char *const families[] = {"chatml",  "llama2", "llama3", "gemma",
                                       "mistral", "phi3",   "zephyr"};
#define MOST_BYTES 200u

/* Contents of the style's markers, whole and in parts, and of the texts that end turns. */
static size_t random_content(struct pkvt_rng *rng, const struct pkvi_chat_style *style, char *out)
{
    size_t n = 0;
    for (uint32_t parts = pkvt_rng_below(rng, 8); parts > 0; parts--) {
        static const char *const others[] = {"<s>", "</s>", "hi", " ",       "\n",
                                             "<",   "|",    ">",  "\303\251"};
        uint32_t m = pkvt_rng_below(rng, PKVI_CHAT_MARKERS);
        const char *part = pkvt_rng_below(rng, 2) && style->marker[m]
                               ? style->marker[m]
                               : others[pkvt_rng_below(rng, 9)];
        size_t bytes = strlen(part);
        size_t from = pkvt_rng_below(rng, 3) == 0 ? pkvt_rng_below(rng, (uint32_t)bytes) : 0;
        size_t to = pkvt_rng_below(rng, 3) == 0 ? bytes - pkvt_rng_below(rng, 2) : bytes;
        if (to > from && n + to - from <= MOST_BYTES) {
            memcpy(out + n, part + from, to - from);
            n += to - from;
        }
    }
    return n;
}

static size_t count_own(const struct pkvi_chat_text *text)
{
    size_t own = 0;
    for (size_t i = 0; i < text->span_count; i++) {
        own += text->span[i].kind != PKVI_SPAN_CONTENT;
    }
    return own;
}

static void check(const struct pkv_tokenizer *tokenizer, const struct pkvi_chat_style *style,
                  const struct pkv_chat_message *messages, size_t count, int round)
{
    struct pkvi_chat_text text = {.bos = "<s>", .eos = "</s>", .bos_bytes = 3, .eos_bytes = 4};
    struct pkv_ids ids = {0};
    size_t at = 0, special = 0;
    assert_ok(pkvi_chat_write(style, messages, count, true, &text));
    assert_ok(pkv_chat_encode(tokenizer, style->family, messages, count, true, &ids));
    for (size_t i = 0; i < ids.count; i++) {
        const char *data;
        size_t bytes;
        pkv_token_bytes(tokenizer, ids.id[i], true, &data, &bytes);
        if (bytes > text.bytes - at || memcmp(text.data + at, data, bytes) != 0) {
            fail_msg("%s, round %d: the ids are not the text at byte %zu", style->family, round,
                     at);
        }
        at += bytes;
        special += ids.id[i] >= PKVT_TINY_MARKER || ids.id[i] == PKVT_TINY_BOS ||
                   ids.id[i] == PKVT_TINY_EOS;
    }
    assert_int_equal(at, text.bytes);
    if (special != count_own(&text)) {
        fail_msg("%s, round %d: %zu special ids, want %zu: %s", style->family, round, special,
                 count_own(&text), text.data);
    }
    pkv_ids_free(&ids);
    pkvi_chat_text_fini(&text);
}

static void test_chat_encode__hostile_contents__only_own_markers(void **state)
{
    (void)state;
    struct pkvt_rng rng = {4711};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        for (int32_t type = PKVT_CONTROL; type <= PKVT_USER; type++) {
            struct pkvi_chat_style style;
            const char *markers[PKVI_CHAT_MARKERS + 1] = {NULL};
            assert_ok(pkvi_chat_style_of(families[f], &style));
            memcpy(markers, style.marker, sizeof style.marker);
            struct pkv_tokenizer *tokenizer = pkvt_tiny_vocab(NULL, "tiny", markers, type);
            for (int round = 0; round < 400; round++) {
                char content[3][MOST_BYTES];
                static const char *const roles[] = {"user", "assistant", "user"};
                struct pkv_chat_message messages[3];
                for (size_t i = 0; i < 3; i++) {
                    messages[i] = (struct pkv_chat_message){
                        roles[i], content[i], random_content(&rng, &style, content[i])};
                }
                check(tokenizer, &style, messages, 3, round);
            }
            pkv_tokenizer_close(tokenizer);
            pkvi_chat_style_fini(&style);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_encode__hostile_contents__only_own_markers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
