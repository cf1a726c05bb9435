/*
 * split.c: the pre-tokenizers of byte-level BPE: regular expressions that cut text into words.
 *
 * Owns: the table of pre-tokenizers and their compiled patterns. Refuses to know: tokens.
 *
 * A pre-tokenizer is a list of patterns. The first cuts the text into its matches and what lies
 * between them; each of these parts is cut by the next pattern, as if nothing stood before or
 * behind it; what the last one leaves are the words.
 * Source: the rules that llama.cpp applies for each tokenizer.ggml.pre (llama-vocab.cpp); the GPT-2
 * rule is from Radford et al., "Language models are unsupervised multitask learners", 2019.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"

/* White space is Unicode's White_Space (PCRE2's \s has U+180E besides). */
#define WS                                                                                         \
    "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"          \
    "\\x{205f}\\x{3000}"
#define SPACES_BUT_LAST "[" WS "]+(?![^" WS "])"
#define SPACES "[" WS "]+"

#define GPT2                                                                                       \
    "'(?:[stmd]|re|ve|ll)"                                                                         \
    "| ?\\p{L}+| ?\\p{N}+| ?[^\\p{L}\\p{N}" WS "]+|" SPACES_BUT_LAST "|" SPACES
/* Llama 3 and Qwen 2 differ in how many digits stay together. */
#define LLAMA3(digits)                                                                             \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"                                                   \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^\\p{L}\\p{N}" WS "]+[\\r\\n]*|[" WS       \
    "]*[\\r\\n]+|" SPACES_BUT_LAST "|" SPACES

#define MOST_PATTERNS 4

struct rule {
    const char *names; /* of tokenizer.ggml.pre, each with a space before and behind */
    bool ignores_merges, adds_bos;
    const char *pattern[MOST_PATTERNS];
};

static const struct rule rules[] = {
    {" default ", false, false, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" gpt-2 phi-2 ", false, false, {GPT2}},
    {" smollm starcoder refact ", false, false, {"\\p{N}", GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 pixtral ", true, true, {LLAMA3("{1,3}")}},
    {" dbrx smaug-bpe ", false, false, {LLAMA3("{1,3}")}},
    {" qwen2 deepseek-r1-qwen megrez ", false, false, {LLAMA3("")}},
};

struct pkvi_split {
    const struct rule *rule;
    pcre2_code *code[MOST_PATTERNS];
    uint32_t count;
};

struct pkvi_split_match {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

/* The rule for a name; NULL if there is none. */
static const struct rule *rule_of(const char *pre)
{
    char name[64];
    size_t bytes = strlen(pre);
    if (bytes == 0 || bytes + 3 > sizeof name || strchr(pre, ' ')) {
        return NULL;
    }
    name[0] = ' ';
    memcpy(name + 1, pre, bytes);
    memcpy(name + 1 + bytes, " ", 2);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strstr(rules[i].names, name)) {
            return &rules[i];
        }
    }
    return NULL;
}

static enum pkv_status fail_unknown(const char *pre)
{
    char known[256] = "";
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        strncat(known, rules[i].names + (i == 0), sizeof known - strlen(known) - 1);
        known[strlen(known) - 1] = '\0';
    }
    return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                    "tokenizer.ggml.pre: '%.64s' is a pre-tokenizer we do not have (we have: %s)",
                    pre, known);
}

enum pkv_status pkvi_split_open(const char *pre, struct pkvi_split **split_out)
{
    const struct rule *rule = rule_of(pre);
    if (!rule) {
        return fail_unknown(pre);
    }
    struct pkvi_split *split = calloc(1, sizeof *split);
    if (!split) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: pre-tokenizer %s", pre);
    }
    split->rule = rule;
    for (; split->count < MOST_PATTERNS && rule->pattern[split->count]; split->count++) {
        const char *pattern = rule->pattern[split->count];
        int code;
        PCRE2_SIZE at;
        pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                             PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!compiled) {
            pkvi_split_close(split);
            return PKV_FAIL(
                code == PCRE2_ERROR_HEAP_FAILED ? PKV_ERR_NO_MEMORY : PKV_ERR_UNSUPPORTED,
                "pre-tokenizer %s: PCRE2 error %d at offset %zu of its pattern", pre, code, at);
        }
        (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // without it we are only slower
        split->code[split->count] = compiled;
    }
    *split_out = split;
    return PKV_OK;
}

void pkvi_split_close(struct pkvi_split *split)
{
    if (!split) {
        return;
    }
    for (uint32_t i = 0; i < split->count; i++) {
        pcre2_code_free(split->code[i]);
    }
    free(split);
}

bool pkvi_split_ignores_merges(const struct pkvi_split *split)
{
    return split->rule->ignores_merges;
}

bool pkvi_split_adds_bos(const struct pkvi_split *split)
{
    return split->rule->adds_bos;
}

/* The limits of PCRE2 guard against patterns of strangers; ours are linear in the text. */
enum pkv_status pkvi_split_match_open(struct pkvi_split_match **match_out)
{
    struct pkvi_split_match *match = calloc(1, sizeof *match);
    if (match) {
        match->data = pcre2_match_data_create(1, NULL);
        match->context = pcre2_match_context_create(NULL);
    }
    if (!match || !match->data || !match->context) {
        pkvi_split_match_close(match);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: state of the regular expressions");
    }
    pcre2_set_match_limit(match->context, UINT32_MAX);
    pcre2_set_heap_limit(match->context, UINT32_MAX);
    *match_out = match;
    return PKV_OK;
}

void pkvi_split_match_close(struct pkvi_split_match *match)
{
    if (match) {
        pcre2_match_data_free(match->data);
        pcre2_match_context_free(match->context);
        free(match);
    }
}

/* One text on its way through the patterns. */
struct run {
    const struct pkvi_split *split;
    struct pkvi_split_match *match;
    pkvi_word_fn word;
    void *context;
};

/* The next match at or behind `from`; *start_out == bytes if there is none. */
static enum pkv_status next_match(const struct run *run, uint32_t level, const char *text,
                                  size_t bytes, size_t from, size_t *start_out, size_t *end_out)
{
    const pcre2_code *code = run->split->code[level];
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int count;
    do {
        count = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, options, run->match->data,
                            run->match->context);
        options |= PCRE2_NO_JIT; // JIT has a stack of fixed size
    } while (count == PCRE2_ERROR_JIT_STACKLIMIT);
    *start_out = *end_out = bytes;
    if (count == PCRE2_ERROR_NOMATCH) {
        return PKV_OK;
    }
    if (count < 0) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: PCRE2 error %d in a text of %zu bytes",
                        count, bytes);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->match->data);
    *start_out = range[0];
    *end_out = range[1];
    return PKV_OK;
}

static enum pkv_status split_level(const struct run *run, uint32_t level, const char *text,
                                   size_t bytes)
{
    if (level >= run->split->count || level >= MOST_PATTERNS) {
        return run->word(run->context, text, bytes);
    }
    for (size_t at = 0, start, end; at < bytes; at = end) {
        PKV_TRY(next_match(run, level, text, bytes, at, &start, &end));
        if (start > at) {
            PKV_TRY(split_level(run, level + 1, text + at, start - at));
        }
        if (end > start) {
            PKV_TRY(split_level(run, level + 1, text + start, end - start));
        }
    }
    return PKV_OK;
}

enum pkv_status pkvi_split_run(const struct pkvi_split *split, struct pkvi_split_match *match,
                               const char *text, size_t bytes, pkvi_word_fn word, void *context)
{
    struct run run = {split, match, word, context};
    return split_level(&run, 0, text, bytes);
}
