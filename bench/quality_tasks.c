/*
 * quality_tasks.c: owns prompts with known answers, made on the fly: facts hidden at random places
 * of a text, a passage to be copied. The prompt is the context alone: the question comes after it,
 * token by token, so that a policy has chosen without knowing it. Only the answer is scored.
 */
#include "bench/quality.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"

#define FACTS_MOST 8u
#define COPY_TOKENS 48u
#define CUE_TOKENS 12u /* of the passage, which tell which one is meant */

static const char *const names[FACTS_MOST] = {"Amber", "Birch", "Cedar",  "Dahlia",
                                              "Ember", "Fjord", "Garnet", "Heron"};

struct fact {
    uint32_t name, number;
};

static uint32_t below(struct quality_maker *maker, uint32_t limit)
{
    return (uint32_t)(pkvi_random_next(&maker->random) % limit);
}

/* Append the tokens of a text. */
static bool add(struct quality_maker *maker, struct pkv_ids *ids, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool add(struct quality_maker *maker, struct pkv_ids *ids, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (pkv_encode(maker->tokenizer, text, strlen(text), 0, ids) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    return true;
}

static bool add_ids(struct pkv_ids *ids, const int32_t *id, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pkv_ids_append(ids, id[i]) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    return true;
}

/* The context: the text, with facts at places of their own, in ascending order. */
static bool add_context(struct quality_maker *maker, const struct fact *fact, uint32_t count,
                        struct pkv_ids *ids)
{
    size_t from = 0;
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++) {
        /* somewhere in the i-th of `count` parts, none right before the end */
        const size_t part = maker->context * 9 / 10 / count;
        const size_t place = part * i + below(maker, (uint32_t)part);
        const size_t until = place > ids->count ? place - ids->count : 0;
        ok = add_ids(ids, maker->filler.id + from, until) &&
             add(maker, ids, "\n\nThe secret number of %s is %u.\n\n", names[fact[i].name],
                 fact[i].number);
        from += until;
    }
    ok = ok && ids->count < maker->context &&
         add_ids(ids, maker->filler.id + from, maker->context - ids->count);
    return ok;
}

/* The question, and where the answer begins. */
static bool add_question(struct quality_maker *maker, const struct fact *fact,
                         struct quality_text *text)
{
    const size_t before = text->ids.count;
    const bool ok = add(maker, &text->ids, "\n\nThe secret number of %s is", names[fact->name]);
    text->skip += (uint32_t)(text->ids.count - before) - 1; /* its last token predicts the answer */
    return ok && add(maker, &text->ids, " %u.", fact->number);
}

static void draw_facts(struct quality_maker *maker, struct fact *fact, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fact[i] = (struct fact){i, 10000 + below(maker, 90000)};
        const uint32_t other = below(maker, i + 1), name = fact[other].name;
        fact[other].name = i;
        fact[i].name = other == i ? i : name;
    }
}

static bool make_facts(struct quality_maker *maker, uint32_t count, uint32_t asked,
                       struct quality_text *text)
{
    struct fact fact[FACTS_MOST];
    draw_facts(maker, fact, count);
    if (!add_context(maker, fact, count, &text->ids)) {
        return false;
    }
    const uint32_t first = below(maker, count);
    if (asked == 2) { /* a question before, of another fact, whose answer is not scored */
        const size_t before = text->ids.count;
        if (!add_question(maker, &fact[(first + 1) % count], text)) {
            return false;
        }
        text->skip = (uint32_t)(text->ids.count - before);
    }
    return add_question(maker, &fact[first], text);
}

static bool make_list(struct quality_maker *maker, struct quality_text *text)
{
    struct fact fact[4];
    draw_facts(maker, fact, 4);
    for (uint32_t i = 0; i < 4; i++) {
        fact[i].name = 0;
    }
    if (!add_context(maker, fact, 4, &text->ids)) {
        return false;
    }
    const size_t before = text->ids.count;
    bool ok =
        add(maker, &text->ids, "\n\nAll secret numbers of %s, in the order of the text:", names[0]);
    text->skip = (uint32_t)(text->ids.count - before) - 1;
    for (uint32_t i = 0; ok && i < 4; i++) {
        ok = add(maker, &text->ids, " %u,", fact[i].number);
    }
    return ok;
}

static bool make_copy(struct quality_maker *maker, struct quality_text *text)
{
    const uint32_t room = (uint32_t)maker->context * 9 / 10;
    const uint32_t at = below(maker, room - COPY_TOKENS - CUE_TOKENS);
    if (!add_ids(&text->ids, maker->filler.id, maker->context)) {
        return false;
    }
    const size_t before = text->ids.count;
    const bool ok = add(maker, &text->ids, "\n\nThe passage once more:\n\n") &&
                    add_ids(&text->ids, maker->filler.id + at, CUE_TOKENS + COPY_TOKENS);
    text->skip = (uint32_t)(text->ids.count - before) - COPY_TOKENS - 1;
    return ok;
}

bool quality_make(struct quality_maker *maker, const char *task, struct quality_text *text)
{
    bool ok;
    if (strcmp(task, "passkey") == 0) {
        ok = make_facts(maker, 1, 1, text);
    } else if (strcmp(task, "needles") == 0) {
        ok = make_facts(maker, FACTS_MOST, 1, text);
    } else if (strcmp(task, "second") == 0) {
        ok = make_facts(maker, 2, 2, text);
    } else if (strcmp(task, "list") == 0) {
        ok = make_list(maker, text);
    } else {
        ok = make_copy(maker, text);
    }
    text->tokens = (uint32_t)(text->ids.count - maker->context) - 1;
    return ok;
}

bool quality_is_task(const char *name)
{
    static const char *const tasks[] = {"passkey", "needles", "second", "list", "copy"};
    for (uint32_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        if (strcmp(tasks[i], name) == 0) {
            return true;
        }
    }
    return false;
}
