/* generate.c: owns the generate command: one prompt, its continuation on stdout. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/answer.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/kept.h"

struct generate {
    struct pkvi_engine_options engine;
    struct pkvi_sampling sampling;
    struct pkvi_kept kept;
    const char *prompt, *file, *ids, *system;
    const char *family; /* NULL = the file's own */
    int family_index;
    struct pkvi_word family_word;
    int64_t predict;
    bool special, chat, ignore_end;
    uint64_t begin_ns;
};
#define FIELD(name) offsetof(struct generate, name)

static const struct pkvi_option options[] = {
    {"prompt", 'p', PKV_OPTION_TEXT, FIELD(prompt), "TEXT", "the prompt", 0, 0, false},
    {"file", 'f', PKV_OPTION_TEXT, FIELD(file), "FILE", "read it from FILE, - = stdin", 0, 0,
     false},
    {"ids", 0, PKV_OPTION_TEXT, FIELD(ids), "FILE",
     "read it as token ids, decimal, white space between; no BOS is added", 0, 0, false},
    {"n-predict", 'n', PKV_OPTION_INT, FIELD(predict), "N",
     "most tokens to generate, -1 = until the end or until the context is full (default 128)", -1,
     1 << 30, false},
    {"special", 0, PKV_OPTION_FLAG, FIELD(special), NULL,
     "markers in the prompt become control tokens", 0, 0, false},
    {"chat", 0, PKV_OPTION_FLAG, FIELD(chat), NULL, "the prompt is one user's turn of a chat", 0, 0,
     false},
    {"system", 0, PKV_OPTION_TEXT, FIELD(system), "TEXT", "system message, with --chat", 0, 0,
     false},
    {"chat-template", 0, PKV_OPTION_CHOICE, FIELD(family_index), PKV_ENGINE_FAMILIES,
     "form of the chat, with --chat (default: the file's own)", 0, 0, false},
    {"ignore-eos", 0, PKV_OPTION_FLAG, FIELD(ignore_end), NULL, "go on after the model's end token",
     0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv generate -m MODEL [-p TEXT | -f FILE | --ids FILE] [OPTION...]",
    .summary = "Continue one prompt: without -p, -f or --ids what is on stdin, unless that is a\n"
               "terminal (-f - reads one until Ctrl-D). The prompt is raw text, with a BOS\n"
               "token where the model's file says so. stdout gets the generated text alone; the\n"
               "memory plan and the figures go to stderr. The context is as large as prompt and\n"
               "-n need, at most the model's, unless -c is given. The first Ctrl-C or SIGTERM\n"
               "stops after the token in work, or of the prompt the piece of up to 512 tokens;\n"
               "the second at once. Exit status: 0, 1 = failed, 2 = wrong usage, 130 = stopped\n"
               "by Ctrl-C, 143 = by SIGTERM. With --kv-load the prompt is added to what was\n"
               "kept, without a BOS token, and may be missing; then the text goes on as if it\n"
               "had never ended.",
};

static bool has_prompt(const struct generate *g)
{
    return g->prompt != NULL || g->file != NULL || g->ids != NULL || !isatty(STDIN_FILENO);
}

static int parse(struct generate *g, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&g->engine),
        PKV_OPTION_SET(options, g),
        pkvi_engine_context_options(&g->engine),
        pkvi_sampling_options(&g->sampling),
        pkvi_kept_options(&g->kept),
        pkvi_engine_device_options(&g->engine),
        pkvi_engine_output_options(&g->engine),
    };
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&g->engine)) != PKV_GO_ON) {
        return code;
    }
    if ((g->prompt != NULL) + (g->file != NULL) + (g->ids != NULL) > 1) {
        return pkvi_say_usage("--prompt, --file, --ids: give only one of them");
    }
    if (g->ids != NULL && (g->chat || g->special)) {
        return pkvi_say_usage("--ids: ids are taken as given: not with --chat or --special");
    }
    if (g->chat && g->special) {
        return pkvi_say_usage("--special: not with --chat, whose text never makes control tokens");
    }
    if (g->family_index >= 0) {
        g->family_word = pkvi_choice_word(PKV_ENGINE_FAMILIES, g->family_index);
        g->family = g->family_word.text;
    }
    if (!g->chat && (g->system != NULL || g->family != NULL)) {
        return pkvi_say_usage("--%s: only with --chat",
                              g->system != NULL ? "system" : "chat-template");
    }
    if (g->chat && g->kept.load != NULL) {
        return pkvi_say_usage(
            "--kv-load: not with --chat: a kept chat goes on in the command chat");
    }
    if (!has_prompt(g) && g->kept.load == NULL) {
        return pkvi_say_usage(
            "--prompt: a prompt is missing: -p TEXT, -f FILE, --ids FILE, or text on "
            "stdin that is no terminal");
    }
    return PKV_GO_ON;
}

static enum pkv_status encode(const struct generate *g, const struct pkvi_engine *engine,
                              const struct pkvi_bytes *text, struct pkv_ids *ids)
{
    if (!g->chat) {
        uint32_t flags = g->special ? PKV_ENCODE_SPECIAL : 0;
        flags |= engine->text.add_bos && g->kept.saved == NULL ? PKV_ENCODE_BOS : 0;
        return pkv_encode(engine->tokenizer, text->data, text->bytes, flags, ids);
    }
    struct pkv_chat_message messages[2];
    size_t count = 0;
    if (g->system != NULL) {
        messages[count++] = (struct pkv_chat_message){"system", g->system, strlen(g->system)};
    }
    messages[count++] = (struct pkv_chat_message){"user", text->data, text->bytes};
    return pkv_chat_encode(engine->tokenizer, g->family, messages, count, true, ids);
}

/* What was kept, and the ids of the prompt behind it, wherever that comes from. */
static bool read_prompt(const struct generate *g, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    const char *path = g->ids != NULL ? g->ids : g->file != NULL ? g->file : "-";
    struct pkvi_bytes text = {0};
    enum pkv_status status = PKV_OK;
    for (uint32_t i = 0; status == PKV_OK && i < g->kept.info.id_count; i++) {
        status = pkv_ids_append(ids, g->kept.info.ids[i]);
    }
    bool ok = !has_prompt(g) ||
              ((g->ids != NULL || pkvi_engine_needs_text(engine, "give token ids with --ids")) &&
               pkvi_input_read(g->prompt, path, &text));
    if (ok && g->ids != NULL) {
        ok = pkvi_ids_parse(&text, pkvi_file_name(path), engine->text.vocab, ids);
    } else if (ok && status == PKV_OK && has_prompt(g)) {
        status = encode(g, engine, &text, ids);
    }
    free(text.data);
    if (status != PKV_OK) {
        pkvi_say_library_failure();
    } else if (ok && ids->count == 0) {
        pkvi_say_failure("the prompt is empty, and this model has no BOS token to begin with");
    }
    return ok && status == PKV_OK && ids->count > 0;
}

static bool open_session(const struct generate *g, struct pkvi_engine *engine, size_t prompt_tokens)
{
    struct pkv_session_config config = pkv_session_config_default();
    uint64_t most = engine->model_info.context;
    if (g->engine.context_tokens > 0) {
        config.context_tokens = (uint32_t)g->engine.context_tokens;
    } else if (g->predict >= 0 && prompt_tokens + (uint64_t)g->predict < most) {
        config.context_tokens = (uint32_t)(prompt_tokens + (uint64_t)g->predict);
        config.kv_keep_tokens = (uint32_t)g->predict;
    } else {
        config.context_tokens = (uint32_t)most;
    }
    if (prompt_tokens > most) {
        pkvi_say_failure("the prompt has %zu tokens, more than the %llu the model was made for: "
                         "shorten it",
                         prompt_tokens, (unsigned long long)most);
        return false;
    }
    if (prompt_tokens > config.context_tokens) {
        pkvi_say_failure("the prompt has %zu tokens%s, more than the context of %u: shorten it or "
                         "give a larger --ctx-size (the model was made for %llu)",
                         prompt_tokens, g->kept.saved ? " with what was kept" : "",
                         config.context_tokens, (unsigned long long)most);
        return false;
    }
    if (prompt_tokens < config.step_rows) {
        config.step_rows = (uint32_t)prompt_tokens;
    }
    struct pkvi_engine_room room = {.less = "a smaller --ctx-size",
                                    .least_tokens = (uint32_t)prompt_tokens};
    return pkvi_engine_open_session(engine, &g->engine, &room, &config);
}

static void say_figures(const struct generate *g, const struct pkvi_answer *answer)
{
    size_t made = answer->count - answer->prompt_count;
    if (answer->has_first) {
        pkvi_say_note("prompt   %zu tokens, %.1f tokens/s", answer->read,
                      pkvi_rate(answer->read, answer->prompt_ns));
    } else {
        pkvi_say_note("prompt   %zu of %zu tokens", answer->read, answer->prompt_count);
    }
    if (answer->steps > 0) {
        pkvi_say_note("answer   %zu tokens, %.1f tokens/s", made,
                      pkvi_rate(answer->steps, answer->decode_ns));
    } else if (g->predict != 0) { /* no step: the prompt's gave the only token */
        pkvi_say_note("answer   %zu tokens", made);
    }
    if (g->predict != 0 && answer->has_first) {
        pkvi_say_note("first    token after %.3f s, of which loading %.3f s",
                      pkvi_seconds(answer->first_ns - g->begin_ns),
                      pkvi_seconds(answer->engine->load_ns));
    }
    bool is_host = strcmp(answer->engine->device_info.name, "cpu") == 0;
    pkvi_say_note("memory   peak resident %s; K and V: %s, device%s; %s, pinned",
                  pkvi_size_text(pkvi_peak_rss_bytes()).text,
                  pkvi_size_text(pkvi_engine_kv_bytes(answer->engine, "device")).text,
                  is_host ? " (cpu: host memory)" : "",
                  pkvi_size_text(pkvi_engine_kv_bytes(answer->engine, "pinned")).text);
    pkvi_engine_say_kv(answer->engine);
    pkvi_say_note("seed     %lld", (long long)g->sampling.seed);
}

static int write_record(const struct generate *g, const struct pkvi_answer *answer,
                        enum pkvi_finish finish, int code)
{
    size_t made = answer->count - answer->prompt_count;
    struct pkvi_record record;
    pkvi_record_begin(&record, "generate");
    pkvi_engine_record(answer->engine, &g->engine, &record);
    pkvi_record_set(
        &record, "text",
        answer->engine->text.has_text
            ? json_stringn(answer->text.data != NULL ? answer->text.data : "", answer->text.bytes)
            : json_null());
    pkvi_record_ids(&record, "ids", answer->ids + answer->prompt_count, made);
    pkvi_record_text(&record, "finish", pkvi_finish_name(finish));
    pkvi_record_int(&record, "n_prompt", answer->prompt_count);
    pkvi_record_int(&record, "n_gen", made);
    pkvi_record_int(&record, "n_ctx", answer->engine->context_tokens);
    pkvi_record_int(&record, "seed", (uint64_t)g->sampling.seed);
    pkvi_record_real(&record, "prompt_ts", pkvi_rate(answer->read, answer->prompt_ns));
    pkvi_record_int(&record, "n_prompt_read", answer->read);
    pkvi_record_int(&record, "n_loaded", g->kept.info.tokens);
    pkvi_record_real(&record, "gen_ts", pkvi_rate(answer->steps, answer->decode_ns));
    pkvi_record_int(&record, "load_ns", answer->engine->load_ns);
    pkvi_record_int(&record, "prompt_ns", answer->prompt_ns);
    pkvi_record_int(&record, "gen_ns", answer->decode_ns);
    if (answer->has_first) {
        pkvi_record_int(&record, "first_token_ns", answer->first_ns - g->begin_ns);
    }
    pkvi_record_int(&record, "peak_rss_bytes", pkvi_peak_rss_bytes());
    pkvi_record_int(&record, "kv_device_bytes", pkvi_engine_kv_bytes(answer->engine, "device"));
    pkvi_record_int(&record, "kv_pinned_bytes", pkvi_engine_kv_bytes(answer->engine, "pinned"));
    record.failed |= answer->failed;
    return pkvi_record_end(&record, code);
}

/* The text stands alone in a pipe or a file; the figures begin on a line of their own wherever the
 * two may meet, such as behind `| cat`. */
static void end_line(void)
{
    if (pkvi_out_last() == '\n') {
        return;
    }
    if (isatty(STDOUT_FILENO)) {
        pkvi_out_write("\n", 1);
        pkvi_out_flush();
    } else {
        pkvi_say_note("%s", "");
    }
}

/* Everything is open. */
static int answer_prompt(struct generate *g, struct pkvi_answer *answer, struct pkv_ids *ids)
{
    memcpy(answer->ids, ids->id, ids->count * sizeof *ids->id);
    answer->prompt_count = ids->count;
    struct pkv_seq *seq = NULL;
    if (!pkvi_kept_seq(&g->kept, answer->engine, &seq)) {
        return PKV_EXIT_FAILED;
    }
    size_t cached = pkv_seq_tokens(seq);
    if (cached == ids->count && !pkvi_seq_cut(seq, &cached, cached - 1)) { /* its logits are gone */
        return PKV_EXIT_FAILED;
    }
    enum pkvi_finish finish = pkvi_answer_run(answer, seq, cached, g->predict);
    bool kept = finish != PKV_FINISH_FAILED &&
                pkvi_kept_save(&g->kept, seq, answer->ids, answer->count, NULL);
    pkv_seq_close(seq);
    if (!kept || finish == PKV_FINISH_OUTPUT) {
        return PKV_EXIT_FAILED;
    }
    int code = finish == PKV_FINISH_INTERRUPTED ? pkvi_signals_exit(PKV_EXIT_OK) : PKV_EXIT_OK;
    if (g->engine.json) {
        code = write_record(g, answer, finish, code);
    } else {
        end_line();
    }
    say_figures(g, answer);
    return code;
}

static int run(struct generate *g, struct pkvi_engine *engine, struct pkvi_answer *answer,
               struct pkv_ids *ids)
{
    if (!pkvi_engine_open_text(engine, &g->engine) || !pkvi_kept_open(&g->kept) ||
        !read_prompt(g, engine, ids)) {
        return PKV_EXIT_FAILED;
    }
    if (g->sampling.stop.count > 0 && !engine->text.has_text) {
        return pkvi_say_usage("--stop: this model has no vocabulary, so no text");
    }
    struct pkv_sampler_config sampler = pkvi_sampling_config(&g->sampling);
    if (pkv_sampler_config_check(&sampler, engine->text.vocab) != PKV_OK) {
        return pkvi_say_usage("%s", pkv_error_text());
    }
    struct pkvi_answer_config config = {
        .sampling = &g->sampling,
        .end_of_turn = g->chat ? pkv_chat_end_of_turn(engine->tokenizer, g->family) : -1,
        .ignore_end = g->ignore_end,
        .print = !g->engine.json,
        .keep = g->engine.json,
        .goes_on = g->kept.saved != NULL && ids->count == g->kept.info.id_count,
    };
    if (!pkvi_engine_open_model(engine, &g->engine, false) ||
        !open_session(g, engine, ids->count) || !pkvi_answer_open(answer, engine, &config)) {
        return PKV_EXIT_FAILED;
    }
    return answer_prompt(g, answer, ids);
}

int pkvi_cmd_generate(int argc, char **argv)
{
    struct generate g = {.predict = 128, .family_index = -1, .begin_ns = pkvi_now_ns()};
    g.sampling = pkvi_sampling_default();
    int code = parse(&g, argc, argv);
    if (code != PKV_GO_ON) {
        return code;
    }
    pkvi_signals_catch();
    struct pkvi_engine engine = {0};
    struct pkvi_answer answer = {0};
    struct pkv_ids ids = {0};
    code = run(&g, &engine, &answer, &ids);
    pkvi_answer_close(&answer);
    pkv_ids_free(&ids);
    pkvi_kept_close(&g.kept);
    pkvi_engine_close(&engine);
    /* A signal may have ended the reading of stdin. */
    return pkvi_out_end(code == PKV_EXIT_FAILED ? pkvi_signals_exit(code) : code);
}
