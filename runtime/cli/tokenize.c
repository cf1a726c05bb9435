/* tokenize.c: owns the tokenize command: text to ids and back, byte for byte. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

struct tokenize {
    struct pkvi_engine_options engine;
    const char *prompt, *file;
    bool special, bos, ids;
};
#define FIELD(name) offsetof(struct tokenize, name)

static const struct pkvi_option options[] = {
    {"prompt", 'p', PKV_OPTION_TEXT, FIELD(prompt), "TEXT", "the text", 0, 0, false},
    {"file", 'f', PKV_OPTION_TEXT, FIELD(file), "FILE", "read it from FILE, - = stdin", 0, 0,
     false},
    {"special", 0, PKV_OPTION_FLAG, FIELD(special), NULL,
     "markers in the text become control tokens; with --ids, control tokens are printed", 0, 0,
     false},
    {"bos", 0, PKV_OPTION_FLAG, FIELD(bos), NULL, "put the BOS token first", 0, 0, false},
    {"ids", 0, PKV_OPTION_FLAG, FIELD(ids), NULL,
     "the input is decimal ids, white space between; print their text", 0, 0, false},
    {"json", 0, PKV_OPTION_FLAG, FIELD(engine.json), NULL, "one JSON object on stdout", 0, 0,
     false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv tokenize -m MODEL [-p TEXT | -f FILE] [OPTION...]",
    .summary = "Print the token ids of a text (without -p or -f: stdin), on one line with spaces\n"
               "between. Every byte counts, a last newline too.",
};

static int write_ids(const struct tokenize *t, const struct pkv_ids *ids)
{
    if (t->engine.json) {
        struct pkvi_record record;
        pkvi_record_begin(&record, "tokenize");
        pkvi_record_ids(&record, "ids", ids->id, ids->count);
        return pkvi_record_end(&record, PKV_EXIT_OK);
    }
    for (size_t i = 0; i < ids->count; i++) {
        pkvi_out_printf(i == 0 ? "%d" : " %d", ids->id[i]);
    }
    pkvi_out_write("\n", 1);
    return PKV_EXIT_OK;
}

/*
 * The tokens' own bytes, valid UTF-8 or not. Only the space that SPM puts before a text must be
 * left out, and that the streaming detokeniser knows.
 */
static void write_bytes(const struct tokenize *t, const struct pkv_tokenizer *tokenizer,
                        const struct pkv_ids *ids, char *piece, size_t piece_bytes)
{
    bool first = true;
    for (size_t i = 0; i < ids->count; i++) {
        const char *data = NULL;
        size_t bytes = 0;
        pkv_token_bytes(tokenizer, ids->id[i], t->special, &data, &bytes);
        if (first && bytes > 0 && data[0] == ' ') {
            struct pkv_detok detok;
            pkv_detok_init(&detok, tokenizer, t->special);
            size_t shown = pkv_detok_push(&detok, ids->id[i], piece, piece_bytes);
            bool dropped = shown == 0 || piece[0] != ' ' || shown < bytes;
            data += dropped;
            bytes -= dropped;
        }
        first = first && bytes == 0;
        pkvi_out_write(data, bytes);
    }
}

/* As JSON: valid UTF-8 whatever the ids are. */
static int write_record(const struct tokenize *t, const struct pkv_tokenizer *tokenizer,
                        const struct pkv_ids *ids, char *piece, size_t piece_bytes)
{
    struct pkvi_bytes text = {0};
    struct pkv_detok detok;
    pkv_detok_init(&detok, tokenizer, t->special);
    bool ok = pkvi_bytes_add(&text, "", 0);
    for (size_t i = 0; ok && i < ids->count; i++) {
        ok = pkvi_bytes_add(&text, piece, pkv_detok_push(&detok, ids->id[i], piece, piece_bytes));
    }
    ok = ok && pkvi_bytes_add(&text, piece, pkv_detok_finish(&detok, piece, piece_bytes));
    struct pkvi_record record;
    pkvi_record_begin(&record, "tokenize");
    pkvi_record_set(&record, "text",
                    ok ? json_stringn(text.data != NULL ? text.data : "", text.bytes) : NULL);
    pkvi_record_ids(&record, "ids", ids->id, ids->count);
    free(text.data);
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int write_text(const struct tokenize *t, const struct pkv_tokenizer *tokenizer,
                      const struct pkv_ids *ids)
{
    size_t piece_bytes = pkv_detok_most_bytes(tokenizer) + 16;
    char *piece = malloc(piece_bytes);
    if (piece == NULL) {
        return pkvi_say_failure("out of memory");
    }
    int code = PKV_EXIT_OK;
    if (t->engine.json) {
        code = write_record(t, tokenizer, ids, piece, piece_bytes);
    } else {
        write_bytes(t, tokenizer, ids, piece, piece_bytes);
    }
    free(piece);
    return code;
}

static int run(const struct tokenize *t, struct pkvi_engine *engine, struct pkvi_bytes *input,
               struct pkv_ids *ids)
{
    const char *name = t->prompt != NULL ? "--prompt" : t->file != NULL ? t->file : "-";
    if (!pkvi_engine_open_text(engine, &t->engine)) {
        return PKV_EXIT_FAILED;
    }
    if (!engine->text.has_text) {
        return pkvi_say_failure("%s: has no vocabulary", engine->path);
    }
    if (!pkvi_input_read(t->prompt, t->file, input)) {
        return PKV_EXIT_FAILED;
    }
    if (t->ids) {
        return pkvi_ids_parse(input, pkvi_file_name(name), engine->text.vocab, ids)
                   ? write_text(t, engine->tokenizer, ids)
                   : PKV_EXIT_FAILED;
    }
    uint32_t flags = (t->special ? PKV_ENCODE_SPECIAL : 0) | (t->bos ? PKV_ENCODE_BOS : 0);
    if (pkv_encode(engine->tokenizer, input->data, input->bytes, flags, ids) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    return write_ids(t, ids);
}

int pkvi_cmd_tokenize(int argc, char **argv)
{
    struct tokenize t = {.prompt = NULL};
    const struct pkvi_option_set sets[] = {pkvi_engine_file_options(&t.engine),
                                           PKV_OPTION_SET(options, &t)};
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&t.engine)) != PKV_GO_ON) {
        return code;
    }
    if (t.prompt != NULL && t.file != NULL) {
        return pkvi_say_usage("--prompt, --file: give only one of them");
    }
    if (t.ids && t.bos) {
        return pkvi_say_usage("--bos: not with --ids, which are taken as given");
    }
    struct pkvi_engine engine = {0};
    struct pkvi_bytes input = {0};
    struct pkv_ids ids = {0};
    code = run(&t, &engine, &input, &ids);
    pkv_ids_free(&ids);
    free(input.data);
    pkvi_engine_close_text(&engine);
    return pkvi_out_end(code);
}
