/*
 * The tokenizer against naive models, on random texts and vocabularies:
 *   - decode(encode(text)) is the text (byte-level BPE), cut at every token or not
 *   - merges: a list of strings, the best pair found by looking at all, as BPE is defined
 *   - SPM with markers: the longest marker first by searching, then the best pair by looking at all
 * and the cost of long texts of one character: a quadratic step would need minutes.
 */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/text.h"
#include "runtime/model/gguf.h"
#include "runtime/text/utf8.h"
#include "tests/support/vocab_builder.h"

static const uint64_t SEED = 20261129;

static struct pkv_tokenizer *open_smollm2(void)
{
    struct pkv_tokenizer *tokenizer;
    assert_ok(pkv_tokenizer_open(pkvt_path("golden/tokens/vocab_smollm2.gguf"), &tokenizer));
    return tokenizer;
}

/* Random characters of which smollm2's vocabulary has every byte. */
static size_t random_text(struct pkvt_rng *rng, char *text, size_t most)
{
    static const char *const common[] = {
        " ",          "  ",  "\n",           "\t",       "'s",           "'ll",
        "e",          "th",  "42",           "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x99\x82",
        "<|im_end|>", "...", "\xe2\x80\xa8", "\r\n"};
    size_t bytes = 0;
    while (bytes + 12 < most && pkvt_rng_below(rng, 40) > 0) {
        if (pkvt_rng_below(rng, 2)) {
            const char *part = common[pkvt_rng_below(rng, 16)];
            memcpy(text + bytes, part, strlen(part));
            bytes += strlen(part);
            continue;
        }
        uint32_t code = 0x20 + pkvt_rng_below(rng, pkvt_rng_below(rng, 2) ? 0x5f : 0xd000);
        if (code < 0x80) {
            text[bytes++] = (char)code;
        } else if (code < 0x800) {
            text[bytes++] = (char)(0xc0 | code >> 6);
            text[bytes++] = (char)(0x80 | (code & 63));
        } else {
            text[bytes++] = (char)(0xe0 | code >> 12);
            text[bytes++] = (char)(0x80 | (code >> 6 & 63));
            text[bytes++] = (char)(0x80 | (code & 63));
        }
    }
    return bytes;
}

static bool is_utf8(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        int length = pkvi_utf8_look(text + at, bytes - at);
        if (length <= 0) {
            return false;
        }
        at += (size_t)length;
    }
    return true;
}

static void test_bpe__random_text__comes_back(void **state)
{
    (void)state;
    struct pkvt_rng rng = {SEED};
    struct pkv_tokenizer *tokenizer = open_smollm2();
    for (int round = 0; round < 3000; round++) {
        char text[600], back[2400];
        struct pkv_ids ids = {0};
        struct pkv_detok detok;
        size_t bytes = random_text(&rng, text, sizeof text), count = 0;
        uint32_t flags = round % 2 ? PKV_ENCODE_SPECIAL : 0;
        assert_ok(pkv_encode(tokenizer, text, bytes, flags, &ids));
        pkv_detok_init(&detok, tokenizer, true);
        for (size_t i = 0; i < ids.count; i++) {
            if (flags == 0) {
                assert_false(pkv_token_is_control(tokenizer, ids.id[i]));
            }
            count += pkv_detok_push(&detok, ids.id[i], back + count, sizeof back - count);
            assert_true(count <= bytes && memcmp(text, back, count) == 0);
            assert_true(is_utf8(back, count));
        }
        assert_int_equal(pkv_detok_finish(&detok, back, sizeof back), 0);
        assert_int_equal(count, bytes);
        pkv_ids_free(&ids);
    }
    pkv_tokenizer_close(tokenizer);
}

/* ---- naive BPE --------------------------------------------------------------------------------
 */

struct merge {
    char *text; /* "left right" */
    uint64_t rank;
};

static int compare_merges(const void *left, const void *right)
{
    return strcmp(((const struct merge *)left)->text, ((const struct merge *)right)->text);
}

static uint64_t rank_of(const struct merge *merge, uint64_t count, const char *left,
                        const char *right)
{
    char text[512];
    struct merge key = {text, 0};
    snprintf(text, sizeof text, "%.200s %.200s", left, right);
    const struct merge *found = bsearch(&key, merge, count, sizeof *merge, compare_merges);
    return found ? found->rank : UINT64_MAX;
}

/* The pieces of a word by the definition; the word is printable ASCII. */
static size_t naive_bpe(const struct merge *merge, uint64_t merges, const char *word,
                        char piece[64][72])
{
    size_t count = strlen(word);
    for (size_t i = 0; i < count; i++) {
        piece[i][0] = word[i];
        piece[i][1] = '\0';
    }
    for (;;) {
        uint64_t best = UINT64_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            uint64_t rank = rank_of(merge, merges, piece[i], piece[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == UINT64_MAX) {
            return count;
        }
        memcpy(piece[at] + strlen(piece[at]), piece[at + 1], strlen(piece[at + 1]) + 1);
        memmove(piece[at + 1], piece[at + 2], (count - at - 2) * sizeof piece[0]);
        count--;
    }
}

static struct merge *read_merges(uint64_t *count_out)
{
    struct pkvi_gguf *gguf;
    assert_ok(pkvi_gguf_open(pkvt_path("golden/tokens/vocab_smollm2.gguf"), &gguf));
    const struct pkvi_gguf_key *key = pkvi_gguf_find_key(gguf, "tokenizer.ggml.merges");
    struct merge *merge = calloc(key->count, sizeof *merge);
    for (uint64_t i = 0; i < key->count; i++) {
        struct pkvi_str text;
        assert_ok(pkvi_gguf_array_str(gguf, key, i, &text));
        merge[i] = (struct merge){strndup(text.data, text.bytes), i};
    }
    *count_out = key->count;
    qsort(merge, key->count, sizeof *merge, compare_merges);
    pkvi_gguf_close(gguf);
    return merge;
}

static void test_bpe__random_words__as_defined(void **state)
{
    (void)state;
    static const char *const syllables[] = {"an", "ti",  "dis", "e", "s",  "tab", "lish", "ment",
                                            "th", "ing", "o",   "u", "er", "q",   "zz",   "ation"};
    struct pkvt_rng rng = {SEED + 1};
    struct pkv_tokenizer *tokenizer = open_smollm2();
    uint64_t merges;
    struct merge *merge = read_merges(&merges);
    for (int round = 0; round < 2000; round++) {
        char word[64] = "", piece[64][72];
        while (strlen(word) < 40 && pkvt_rng_below(&rng, 12) > 0) {
            char one[2] = {(char)('a' + pkvt_rng_below(&rng, 26)), 0};
            strcat(word, pkvt_rng_below(&rng, 3) ? syllables[pkvt_rng_below(&rng, 16)] : one);
        }
        struct pkv_ids ids = {0};
        assert_ok(pkv_encode(tokenizer, word, strlen(word), 0, &ids));
        assert_int_equal(ids.count, naive_bpe(merge, merges, word, piece));
        for (size_t i = 0; i < ids.count; i++) {
            const char *data;
            size_t bytes;
            pkv_token_bytes(tokenizer, ids.id[i], false, &data, &bytes);
            assert_int_equal(bytes, strlen(piece[i]));
            assert_memory_equal(data, piece[i], bytes);
        }
        pkv_ids_free(&ids);
    }
    for (uint64_t i = 0; i < merges; i++) {
        free(merge[i].text);
    }
    free(merge);
    pkv_tokenizer_close(tokenizer);
}

/* ---- naive SPM with markers -------------------------------------------------------------------
 */

#define SP "\xe2\x96\x81"

static int32_t find(const struct pkvt_vocab *vocab, const char *text, size_t bytes, bool control)
{
    for (uint32_t i = 0; i < vocab->count; i++) {
        if (strlen(vocab->text[i]) == bytes && memcmp(vocab->text[i], text, bytes) == 0 &&
            (control || vocab->kind[i] == 1 || vocab->kind[i] == 4)) {
            return (int32_t)i;
        }
    }
    return -1;
}

/* Ids of text without markers, by looking at all pairs again and again. */
static void naive_spm(const struct pkvt_vocab *vocab, const char *text, size_t bytes,
                      bool add_space, struct pkv_ids *ids)
{
    char escaped[512] = "";
    size_t start[512], count = 0, end = 0;
    for (size_t i = 0; i < bytes + add_space; i++) {
        char c = add_space ? (i ? text[i - 1] : ' ') : text[i];
        if ((c & 0xc0) != 0x80) { // these texts are UTF-8
            start[count++] = end;
        }
        if (c == ' ') {
            memcpy(escaped + end, SP, 3);
            end += 3;
        } else {
            escaped[end++] = c;
        }
    }
    start[count] = end;
    for (;;) {
        int32_t best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            int32_t id = find(vocab, escaped + start[i], start[i + 2] - start[i], false);
            if (id >= 0 && (best < 0 || vocab->score[id] > vocab->score[best])) {
                best = id;
                at = i;
            }
        }
        if (best < 0) {
            break;
        }
        memmove(start + at + 1, start + at + 2, (count - at - 1) * sizeof start[0]);
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        int32_t id = find(vocab, escaped + start[i], start[i + 1] - start[i], false);
        if (id >= 0) {
            assert_ok(pkv_ids_append(ids, id));
        }
        for (size_t j = start[i]; id < 0 && j < start[i + 1]; j++) {
            assert_ok(pkv_ids_append(ids, 3 + (unsigned char)escaped[j]));
        }
    }
}

/* The longest marker of all (then the least id) that occurs cuts the text; so do its two sides. */
static void naive_encode(const struct pkvt_vocab *vocab, const char *text, size_t bytes,
                         bool special, bool add_space, struct pkv_ids *ids)
{
    int32_t best = -1;
    const char *at = NULL;
    for (uint32_t i = 0; i < vocab->count; i++) {
        size_t length = strlen(vocab->text[i]);
        bool marker = vocab->kind[i] == 4 || (special && (vocab->kind[i] & ~1) == 2);
        const char *found = marker ? memmem(text, bytes, vocab->text[i], length) : NULL;
        if (found && (best < 0 || length > strlen(vocab->text[best]))) {
            best = (int32_t)i;
            at = found;
        }
    }
    if (best < 0) {
        if (bytes > 0) {
            naive_spm(vocab, text, bytes, add_space, ids);
        }
        return;
    }
    size_t left = (size_t)(at - text), taken = left + strlen(vocab->text[best]);
    naive_encode(vocab, text, left, special, add_space, ids);
    assert_ok(pkv_ids_append(ids, best));
    naive_encode(vocab, text + taken, bytes - taken, special, add_space, ids);
}

static void random_piece(struct pkvt_rng *rng, char *text, const char *const *letter,
                         uint32_t letters, uint32_t most)
{
    text[0] = '\0';
    for (uint32_t n = 1 + pkvt_rng_below(rng, most); n > 0; n--) {
        strcat(text, letter[pkvt_rng_below(rng, letters)]);
    }
}

static struct pkvt_vocab *random_vocab(struct pkvt_rng *rng, const char *const *letter)
{
    struct pkvt_vocab *vocab = calloc(1, sizeof *vocab);
    char text[64];
    pkvt_vocab_add(vocab, "<unk>", 2, 0);
    pkvt_vocab_add(vocab, "<s>", 3, 0);
    pkvt_vocab_add(vocab, "</s>", 3, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "<0x%02X>", byte);
        pkvt_vocab_add(vocab, text, 6, 0);
    }
    for (int i = 0; i < 60; i++) {
        random_piece(rng, text, letter, 5, 1 + pkvt_rng_below(rng, 5));
        if (find(vocab, text, strlen(text), true) < 0) {
            pkvt_vocab_add(vocab, text, 1, -(float)pkvt_rng_below(rng, 8));
        }
    }
    for (int i = 0; i < 8; i++) { // markers of ordinary letters, so that they overlap
        random_piece(rng, text, letter + 1, 5, 4);
        if (find(vocab, text, strlen(text), true) < 0) {
            pkvt_vocab_add(vocab, text, pkvt_rng_below(rng, 2) ? 3 : 4, 0);
        }
    }
    return vocab;
}

static void check_spm(struct pkvt_rng *rng, const char *const *letter, bool prefix)
{
    struct pkvt_vocab *vocab = random_vocab(rng, letter);
    struct pkvt_gguf *gguf = pkvt_vocab_gguf(vocab, "llama");
    pkvt_gguf_set_bool(gguf, "tokenizer.ggml.add_space_prefix", prefix);
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    for (int round = 0; round < 60; round++) {
        char text[128] = "";
        struct pkv_ids got = {0}, want = {0};
        bool special = round % 2;
        random_piece(rng, text, letter, 7, 24);
        assert_ok(
            pkv_encode(tokenizer, text, strlen(text), special ? PKV_ENCODE_SPECIAL : 0, &got));
        naive_encode(vocab, text, strlen(text), special, prefix, &want);
        if (got.count != want.count || memcmp(got.id, want.id, got.count * sizeof got.id[0]) != 0) {
            fail_msg("'%s': %zu ids, want %zu", text, got.count, want.count);
        }
        pkv_ids_free(&got);
        pkv_ids_free(&want);
    }
    pkv_tokenizer_close(tokenizer);
    pkvt_vocab_fini(vocab);
    free(vocab);
}

static void test_spm__random_vocabularies__as_defined(void **state)
{
    (void)state;
    static const char *const letter[] = {SP, "a", "b", "\xc3\xa9", "c", " ", "x"};
    struct pkvt_rng rng = {SEED + 2};
    for (int round = 0; round < 100; round++) {
        check_spm(&rng, letter, false);
    }
    static const char *const plain[] = {SP, "a", "b", "\xc3\xa9", "c", "y", "x"};
    for (int round = 0; round < 100; round++) {
        check_spm(&rng, plain, true);
    }
}

/* ---- long texts -------------------------------------------------------------------------------
 */

static void check_long(const struct pkv_tokenizer *tokenizer, const char *unit)
{
    size_t bytes = 0, length = strlen(unit);
    char *text = malloc(400000);
    struct pkv_ids ids = {0};
    for (; bytes + length <= 400000; bytes += length) {
        memcpy(text + bytes, unit, length);
    }
    assert_ok(pkv_encode(tokenizer, text, bytes, PKV_ENCODE_SPECIAL, &ids));
    assert_true(ids.count > 0);
    size_t out = 0;
    for (size_t i = 0; i < ids.count; i++) {
        const char *data;
        size_t token_bytes;
        pkv_token_bytes(tokenizer, ids.id[i], true, &data, &token_bytes);
        out += token_bytes;
    }
    assert_in_range(out, bytes, bytes + 1); // SPM: one space more
    pkv_ids_free(&ids);
    free(text);
}

static void test_encode__400k_of_one_kind__soon_done(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "1", "ab", " a", "\n ", "<|im_end|>"};
    struct pkv_tokenizer *bpe = open_smollm2();
    struct pkv_tokenizer *spm = pkvt_open_tokenizer(pkvt_small_spm());
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        check_long(bpe, units[i]);
        check_long(spm, units[i]);
    }
    pkv_tokenizer_close(bpe);
    pkv_tokenizer_close(spm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe__random_text__comes_back),
        cmocka_unit_test(test_bpe__random_words__as_defined),
        cmocka_unit_test(test_spm__random_vocabularies__as_defined),
        cmocka_unit_test(test_encode__400k_of_one_kind__soon_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
