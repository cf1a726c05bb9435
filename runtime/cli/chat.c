/* chat.c: owns the chat command: turns, their history, and what of it is still in the cache. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/answer.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/kept.h"
#include "runtime/cli/lines.h"

#define CONTEXT_DEFAULT 8192u

struct chat {
    struct pkvi_engine_options options;
    struct pkvi_sampling sampling;
    struct pkvi_kept kept;
    const char *system;
    const char *family; /* NULL = the file's own */
    int family_index;
    struct pkvi_word family_word;
    int64_t predict;
    struct pkvi_engine engine;
    struct pkvi_answer answer;
    struct pkv_seq *seq;
    struct pkvi_lines *lines;
    struct pkv_chat_message *messages; /* contents are owned */
    size_t message_count, message_capacity;
    bool has_system;
    size_t cached; /* ids of `answer` whose K and V are in the cache */
};
#define FIELD(name) offsetof(struct chat, name)

static const struct pkvi_option options[] = {
    {"system", 0, PKV_OPTION_TEXT, FIELD(system), "TEXT", "system message", 0, 0, false},
    {"chat-template", 0, PKV_OPTION_CHOICE, FIELD(family_index), PKV_ENGINE_FAMILIES,
     "form of the chat (default: the file's own)", 0, 0, false},
    {"n-predict", 'n', PKV_OPTION_INT, FIELD(predict), "N",
     "most tokens of an answer, -1 = no limit (default)", -1, 1 << 30, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv chat -m MODEL [OPTION...]",
    .summary = "Talk with a model. Each line is a turn; /exit ends, /clear forgets the turns,\n"
               "/system TEXT sets the system message. The context is the model's, at most 8192\n"
               "tokens, unless -c is given. On a terminal Ctrl-C stops an answer after the\n"
               "token in work, or the reading of a prompt after the piece of up to 512 tokens.\n"
               "Exit status: 0, 1 = failed, or of lines on stdin one was refused, 2 = wrong\n"
               "usage, 130 = ended by Ctrl-C where stdin is no terminal, 143 = by SIGTERM.",
};

static int parse(struct chat *c, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&c->options),
        PKV_OPTION_SET(options, c),
        pkvi_engine_context_options(&c->options),
        pkvi_sampling_options(&c->sampling),
        pkvi_kept_options(&c->kept),
        pkvi_engine_device_options(&c->options),
        pkvi_engine_quiet_option(&c->options),
    };
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&c->options)) != PKV_GO_ON) {
        return code;
    }
    if (c->kept.load != NULL && c->system != NULL) {
        return pkvi_say_usage("--system: not with --kv-load: the kept chat has its own");
    }
    if (c->family_index >= 0) {
        c->family_word = pkvi_choice_word(PKV_ENGINE_FAMILIES, c->family_index);
        c->family = c->family_word.text;
    }
    return PKV_GO_ON;
}

/* A message with a copy of its text; false: no memory, said. */
static bool add_message(struct chat *c, const char *role, const char *text, size_t bytes)
{
    if (c->message_count == c->message_capacity) {
        size_t capacity = c->message_capacity * 2 + 16;
        struct pkv_chat_message *larger = realloc(c->messages, capacity * sizeof *larger);
        if (larger == NULL) {
            pkvi_say_failure("out of memory");
            return false;
        }
        c->messages = larger;
        c->message_capacity = capacity;
    }
    char *content = malloc(bytes + 1);
    if (content == NULL) {
        pkvi_say_failure("out of memory");
        return false;
    }
    if (bytes > 0) {
        memcpy(content, text, bytes);
    }
    content[bytes] = '\0';
    c->messages[c->message_count++] = (struct pkv_chat_message){role, content, bytes};
    return true;
}

static void drop_messages(struct chat *c, size_t count)
{
    while (c->message_count > count) {
        free((void *)(uintptr_t)c->messages[--c->message_count].content);
    }
}

/* Forget the turns, set the system message; NULL = none. */
static bool restart(struct chat *c, const char *system, size_t bytes)
{
    drop_messages(c, 0);
    c->has_system = false;
    if (system == NULL || bytes == 0) {
        return true;
    }
    c->has_system = add_message(c, "system", system, bytes);
    return c->has_system;
}

/* The end of a message about a full context: what else helps, where the model allows it. */
static const char *larger_context(const struct chat *c)
{
    return c->engine.context_tokens < c->engine.model_info.context
               ? ", a larger --ctx-size makes room"
               : "";
}

/*
 * The ids of the whole conversation into the answer's list, and how many of them the cache holds
 * already: an answer as text may be cut into other tokens than it was made of.
 */
static bool encode_turns(struct chat *c, size_t *cached_out)
{
    struct pkv_ids ids = {0};
    bool ok = pkv_chat_encode(c->engine.tokenizer, c->family, c->messages, c->message_count, true,
                              &ids) == PKV_OK;
    if (!ok) {
        pkvi_say_library_failure();
    } else if (ids.count > c->engine.context_tokens) {
        pkvi_say_failure("the conversation has %zu tokens, more than the context of %u: /clear "
                         "forgets it%s",
                         ids.count, c->engine.context_tokens, larger_context(c));
        ok = false;
    }
    size_t same = 0;
    if (ok) {
        size_t most = c->cached < ids.count - 1 ? c->cached : ids.count - 1;
        while (same < most && ids.id[same] == c->answer.ids[same]) {
            same++;
        }
        memcpy(c->answer.ids, ids.id, ids.count * sizeof *ids.id);
        c->answer.prompt_count = ids.count;
    }
    pkv_ids_free(&ids);
    *cached_out = same;
    return ok;
}

static void say_figures(const struct chat *c, size_t reused, enum pkvi_finish finish)
{
    const struct pkvi_answer *answer = &c->answer;
    size_t fed = answer->read;
    pkvi_say_note("[%s; %zu tokens kept, %zu read at %.0f/s, %zu made at %.1f/s; %zu of %u]",
                  pkvi_finish_name(finish), reused, fed, pkvi_rate(fed, answer->prompt_ns),
                  answer->count - answer->prompt_count, pkvi_rate(answer->steps, answer->decode_ns),
                  c->cached, c->engine.context_tokens);
}

/* One turn; false: the chat cannot go on. *said_out: the turn was refused, with a line. */
static bool take_turn(struct chat *c, const char *text, size_t bytes, bool *said_out)
{
    size_t before = c->message_count, reused = 0;
    if (!add_message(c, "user", text, bytes)) {
        return false;
    }
    if (!encode_turns(c, &reused)) {
        drop_messages(c, before);
        *said_out = true;
        return true;
    }
    if (!pkvi_seq_cut(c->seq, &reused, reused)) {
        return false;
    }
    enum pkvi_finish finish = pkvi_answer_run(&c->answer, c->seq, reused, c->predict);
    c->cached = pkv_seq_tokens(c->seq);
    pkvi_out_write("\n", 1);
    if (!pkvi_out_flush() || finish == PKV_FINISH_FAILED) {
        return false;
    }
    say_figures(c, reused, finish);
    if (finish == PKV_FINISH_CONTEXT) {
        pkvi_say_note("the context of %u tokens is full: /clear forgets the turns%s",
                      c->engine.context_tokens, larger_context(c));
    }
    const struct pkvi_bytes *answer = &c->answer.text;
    return add_message(c, "assistant", answer->data != NULL ? answer->data : "", answer->bytes);
}

static bool is_command(const char *text, size_t bytes, const char *name)
{
    size_t length = strlen(name);
    return bytes >= length && memcmp(text, name, length) == 0 &&
           (bytes == length || text[length] == ' ');
}

/* What was said is forgotten in the cache too, and in a file that is kept: but its first token,
 * which begins every conversation. */
static bool forget(struct chat *c)
{
    return pkv_seq_tokens(c->seq) <= 1 || pkvi_seq_cut(c->seq, &c->cached, 1);
}

/* A line that begins with '/': 1 = done, 0 = /exit, -1 = failed. */
static int take_command(struct chat *c, const char *text, size_t bytes, bool *said_out)
{
    if (is_command(text, bytes, "/exit")) {
        return 0;
    }
    if (is_command(text, bytes, "/clear")) {
        drop_messages(c, c->has_system ? 1 : 0);
        return forget(c) ? 1 : -1;
    }
    if (is_command(text, bytes, "/system")) {
        size_t skip = bytes > strlen("/system ") ? strlen("/system ") : bytes;
        return restart(c, text + skip, bytes - skip) && forget(c) ? 1 : -1;
    }
    pkvi_say_failure("'%.*s' is not a command: /exit, /clear, /system TEXT",
                     (int)(bytes < 60 ? bytes : 60), text);
    *said_out = true;
    return 1;
}

/* The turns that were kept, and the ids whose K and V came with them. */
static bool take_kept(struct chat *c)
{
    const struct pkv_saved_info *info = &c->kept.info;
    size_t at = 0, bytes = 0;
    const char *role = NULL, *text = NULL;
    int more = 1;
    if (c->kept.saved == NULL) {
        return true;
    }
    while (more > 0) {
        more = pkvi_note_next(info->note, info->note_bytes, &at, &role, &text, &bytes);
        if (more < 0) {
            pkvi_say_failure("%s: holds no chat: the command generate goes on with it",
                             c->kept.load);
            return false;
        }
        if (more > 0 && !add_message(c, role, text, bytes)) {
            return false;
        }
    }
    c->has_system = c->message_count > 0 && strcmp(c->messages[0].role, "system") == 0;
    return true;
}

/* All turns, with what of them is in the cache. */
static bool keep(struct chat *c)
{
    struct pkvi_bytes note = {0};
    if (c->kept.save == NULL) {
        return true;
    }
    size_t count = c->answer.count;
    if (c->cached <= 1 && count > 1) { /* it was forgotten; where rings had to go, all of it */
        const float *logits = NULL;
        count = 1;
        if (pkv_seq_tokens(c->seq) == 0 &&
            pkv_prompt_run(c->engine.session, c->seq, c->answer.ids, 1, NULL, &logits) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    bool ok = pkvi_note_begin(&note);
    for (size_t i = 0; ok && i < c->message_count; i++) {
        const struct pkv_chat_message *message = &c->messages[i];
        ok = pkvi_note_add(&note, message->role, message->content, message->content_bytes);
    }
    if (!ok) {
        pkvi_say_failure("out of memory");
    }
    ok = ok && pkvi_kept_save(&c->kept, c->seq, c->answer.ids, count, &note);
    free(note.data);
    return ok;
}

/* Ctrl-C ends an answer or a line being typed; only without a person there, or by SIGTERM, all. */
static bool must_end(const struct chat *c)
{
    if (pkvi_signal == SIGINT && pkvi_lines_interactive(c->lines)) {
        pkvi_signal = 0;
    }
    return pkvi_signal != 0;
}

/* Until the input ends. A file of lines fails as a whole if one of them did. */
static int talk(struct chat *c)
{
    bool refused = false;
    for (;;) {
        if (must_end(c)) {
            return pkvi_signals_exit(PKV_EXIT_OK);
        }
        const char *text = NULL;
        size_t bytes = 0;
        enum pkvi_line line = pkvi_lines_next(c->lines, &text, &bytes);
        if (line == PKV_LINE_FAILED) {
            return pkvi_say_failure("cannot read stdin: %s", strerror(errno));
        }
        if (line == PKV_LINE_END) {
            return refused && !pkvi_lines_interactive(c->lines) ? PKV_EXIT_FAILED : PKV_EXIT_OK;
        }
        if (line == PKV_LINE_INTERRUPTED || bytes == 0) {
            continue;
        }
        if (text[0] == '/') {
            int done = take_command(c, text, bytes, &refused);
            if (done <= 0) {
                return done == 0 ? PKV_EXIT_OK : PKV_EXIT_FAILED;
            }
            continue;
        }
        if (!take_turn(c, text, bytes, &refused)) {
            return PKV_EXIT_FAILED;
        }
    }
}

/* Before the weights are loaded: is there a template, and does it take the system message? */
static bool can_write_turns(struct chat *c)
{
    struct pkv_ids ids = {0};
    if (!restart(c, c->system, c->system != NULL ? strlen(c->system) : 0) ||
        !add_message(c, "user", "", 0)) {
        return false;
    }
    bool ok = pkv_chat_encode(c->engine.tokenizer, c->family, c->messages, c->message_count, true,
                              &ids) == PKV_OK;
    if (!ok) {
        pkvi_say_library_failure();
    }
    pkv_ids_free(&ids);
    drop_messages(c, c->has_system ? 1 : 0);
    return ok && take_kept(c);
}

static bool open_all(struct chat *c)
{
    struct pkvi_engine *engine = &c->engine;
    if (!pkvi_engine_open_text(engine, &c->options) ||
        !pkvi_engine_needs_text(engine, "chat needs one")) {
        return false;
    }
    if (!pkvi_kept_open(&c->kept) || !can_write_turns(c)) {
        return false;
    }
    if (!pkvi_engine_open_model(engine, &c->options, false)) {
        return false;
    }
    struct pkv_session_config config = pkv_session_config_default();
    uint32_t model_tokens = engine->model_info.context;
    config.context_tokens = c->options.context_tokens > 0
                                ? (uint32_t)c->options.context_tokens
                                : (model_tokens < CONTEXT_DEFAULT ? model_tokens : CONTEXT_DEFAULT);
    struct pkvi_answer_config answer = {
        .sampling = &c->sampling,
        .end_of_turn = pkv_chat_end_of_turn(engine->tokenizer, c->family),
        .print = true,
        .keep = true,
    };
    const struct pkvi_engine_room room = {.less = "a smaller --ctx-size", .least_tokens = 1};
    if (!pkvi_engine_open_session(engine, &c->options, &room, &config) ||
        !pkvi_answer_open(&c->answer, engine, &answer)) {
        return false;
    }
    if (!pkvi_kept_seq(&c->kept, engine, &c->seq)) {
        return false;
    }
    c->cached = pkv_seq_tokens(c->seq);
    c->answer.count = c->cached;
    for (size_t i = 0; i < c->cached; i++) {
        c->answer.ids[i] = c->kept.info.ids[i];
    }
    c->lines = pkvi_lines_open();
    if (c->lines == NULL) {
        pkvi_say_failure("out of memory");
    }
    return c->lines != NULL;
}

static int run(struct chat *c)
{
    if (!open_all(c)) {
        return PKV_EXIT_FAILED;
    }
    if (pkvi_lines_interactive(c->lines)) {
        pkvi_say_note("Each line is a turn. /exit, /clear, /system TEXT; Ctrl-C stops an answer.");
    }
    const int code = talk(c);
    return keep(c) ? code : PKV_EXIT_FAILED;
}

int pkvi_cmd_chat(int argc, char **argv)
{
    struct chat c = {.predict = -1, .family_index = -1, .sampling = pkvi_sampling_default()};
    int code = parse(&c, argc, argv);
    if (code != PKV_GO_ON) {
        return code;
    }
    pkvi_signals_catch();
    code = run(&c);
    drop_messages(&c, 0);
    free(c.messages);
    pkvi_lines_close(c.lines);
    if (c.seq != NULL) {
        pkv_seq_close(c.seq);
    }
    pkvi_answer_close(&c.answer);
    pkvi_kept_close(&c.kept);
    pkvi_engine_close(&c.engine);
    return pkvi_out_end(code);
}
