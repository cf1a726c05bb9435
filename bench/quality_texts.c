/* quality_texts.c: owns the texts: read from files, or tasks made of them; where each one's tokens
 * are among those of all. */
#include "bench/quality.h"

#include <stdio.h>
#include <stdlib.h>

/* At least so many tokens of a file. */
static bool read_ids(const struct quality *q, const char *path, size_t wanted, struct pkv_ids *ids)
{
    struct pkvi_bytes text = {0};
    const uint32_t flags = q->engine.text.add_bos ? PKV_ENCODE_BOS : 0;
    bool ok = pkvi_file_read(path, &text);
    if (ok && pkv_encode(q->engine.tokenizer, text.data, text.bytes, flags, ids) != PKV_OK) {
        pkvi_say_library_failure();
        ok = false;
    }
    free(text.data);
    if (ok && ids->count < wanted) {
        pkvi_say_failure("%s: has %zu tokens, %zu are needed: --context, --tokens and one more",
                         pkvi_file_name(path), ids->count, wanted);
        ok = false;
    }
    return ok;
}

static void add_text(struct quality *q, const struct quality_text *text)
{
    struct quality_text *added = &q->text[q->text_count++];
    *added = *text;
    added->first = q->scored;
    added->row = q->fed;
    q->fed += text->tokens;
    q->scored += text->tokens - text->skip;
    q->tokens_most = text->tokens > q->tokens_most ? text->tokens : q->tokens_most;
}

static bool add_tasks(struct quality *q, const char *path)
{
    struct quality_maker maker = {.tokenizer = q->engine.tokenizer,
                                  .context = (size_t)q->context,
                                  .random = (uint64_t)q->seed};
    bool ok = read_ids(q, path, maker.context, &maker.filler);
    for (uint32_t i = 0; ok && i < q->tasks.count * (uint32_t)q->instances; i++) {
        struct quality_text text = {.skip = 0};
        const char *task = q->tasks.text[i % q->tasks.count];
        snprintf(text.name, sizeof text.name, "%s", task);
        ok = quality_make(&maker, task, &text);
        add_text(q, &text);
    }
    pkv_ids_free(&maker.filler);
    return ok;
}

/* All texts before any work. */
bool quality_make_texts(struct quality *q)
{
    const uint32_t each = q->tasks.count > 0 ? q->tasks.count * (uint32_t)q->instances : 1;
    q->text = calloc(q->files.count * each, sizeof *q->text);
    if (!q->text) {
        pkvi_say_failure("out of memory");
        return false;
    }
    for (uint32_t f = 0; f < q->files.count; f++) {
        struct quality_text text = {.tokens = (uint32_t)q->tokens};
        const char *path = q->files.text[f];
        if (q->tasks.count > 0) {
            if (!add_tasks(q, path)) {
                return false;
            }
            continue;
        }
        snprintf(text.name, sizeof text.name, "%s", path);
        const bool ok = read_ids(q, path, (size_t)(q->context + q->tokens + 1), &text.ids);
        add_text(q, &text);
        if (!ok) {
            return false;
        }
    }
    return true;
}
