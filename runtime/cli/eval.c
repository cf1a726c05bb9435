/* eval.c: owns the eval command: what a model says about given tokens. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

#define LOGIT_BYTES_MOST ((uint64_t)64 << 20) /* logits read back in one step */
#define STEP_ROWS 512u

struct eval {
    struct pkvi_engine_options engine;
    const char *text, *ids;
    int64_t top, tokens, score_from;
    bool special, perplexity, exact;
    /* Results. */
    double lse, nll_sum;
    uint64_t scored, run_ns;
    int32_t *best; /* ids by logit, the `top` largest first */
    float *best_logit;
};
#define FIELD(name) offsetof(struct eval, name)

static const struct pkvi_option options[] = {
    {"text", 0, PKV_OPTION_TEXT, FIELD(text), "FILE",
     "raw text, - = stdin, with a BOS token where the model's file says so", 0, 0, false},
    {"ids", 0, PKV_OPTION_TEXT, FIELD(ids), "FILE",
     "token ids as given, - = stdin: decimal, white space between", 0, 0, false},
    {"special", 0, PKV_OPTION_FLAG, FIELD(special), NULL,
     "markers in the text become control tokens", 0, 0, false},
    {"tokens", 'n', PKV_OPTION_INT, FIELD(tokens), "N", "only the first N tokens", 1, 1 << 30,
     false},
    {"top", 0, PKV_OPTION_INT, FIELD(top), "K",
     "the K largest logits after the last token (default 10; 0 with --perplexity)", 0, 1 << 30,
     false},
    {"perplexity", 0, PKV_OPTION_FLAG, FIELD(perplexity), NULL,
     "mean negative log-likelihood of the tokens, each after those before it", 0, 0, false},
    {"score-from", 0, PKV_OPTION_INT, FIELD(score_from), "N",
     "with --perplexity: of token N (counted from 0) and those behind it (default 1)", 1, 1 << 30,
     false},
    {"exact", 0, PKV_OPTION_FLAG, FIELD(exact), NULL,
     "float32 weights, kernels, K and V: slow, the reference", 0, 0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv eval -m MODEL --text FILE | --ids FILE [OPTION...]",
    .summary = "Feed tokens to a model; print logits, the logarithm of the sum of their "
               "exponentials\n(lse), and with --perplexity how well the tokens were predicted.",
};

static int parse(struct eval *e, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&e->engine), PKV_OPTION_SET(options, e),
        pkvi_engine_device_options(&e->engine), pkvi_engine_output_options(&e->engine)};
    e->top = e->score_from = e->engine.kv_type = -1;
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&e->engine)) != PKV_GO_ON) {
        return code;
    }
    if ((e->text != NULL) == (e->ids != NULL)) {
        return pkvi_say_usage("--text, --ids: give one of them");
    }
    if (e->ids != NULL && e->special) {
        return pkvi_say_usage("--special: not with --ids, which are taken as given");
    }
    if (!e->perplexity && e->score_from >= 0) {
        return pkvi_say_usage("--score-from: only with --perplexity");
    }
    int f32 = PKV_KV_F32;
    if (e->exact && e->engine.kv_type >= 0 && e->engine.kv_type != f32) {
        return pkvi_say_usage("--kv-cache-dtype: only f32 with --exact");
    }
    if (e->engine.kv_type < 0) {
        e->engine.kv_type = e->exact ? f32 : PKV_KV_F16;
    }
    e->top = e->top >= 0 ? e->top : e->perplexity ? 0 : 10;
    e->score_from = e->score_from >= 0 ? e->score_from : 1;
    return PKV_GO_ON;
}

static bool read_tokens(const struct eval *e, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    const char *path = e->ids != NULL ? e->ids : e->text;
    struct pkvi_bytes text = {0};
    bool ok = (e->ids != NULL || pkvi_engine_needs_text(engine, "give token ids with --ids")) &&
              pkvi_file_read(path, &text);
    if (ok && e->ids != NULL) {
        ok = pkvi_ids_parse(&text, pkvi_file_name(path), engine->text.vocab, ids);
    } else if (ok) {
        uint32_t flags = e->special ? PKV_ENCODE_SPECIAL : 0;
        flags |= engine->text.add_bos ? PKV_ENCODE_BOS : 0;
        ok = pkv_encode(engine->tokenizer, text.data, text.bytes, flags, ids) == PKV_OK;
        if (!ok) {
            pkvi_say_library_failure();
        }
    }
    free(text.data);
    if (!ok) {
        return false;
    }
    if (e->tokens > 0 && (uint64_t)e->tokens < ids->count) {
        ids->count = (size_t)e->tokens;
    }
    if (ids->count == 0) {
        pkvi_say_failure("%s: holds no token", pkvi_file_name(path));
        return false;
    }
    if (e->perplexity && (uint64_t)e->score_from >= ids->count) {
        pkvi_say_failure("%s: has %zu tokens: --score-from %lld leaves none to score",
                         pkvi_file_name(path), ids->count, (long long)e->score_from);
        return false;
    }
    return true;
}

static double log_sum_exp(const float *logits, uint32_t vocab)
{
    float most = -FLT_MAX;
    for (uint32_t i = 0; i < vocab; i++) {
        most = logits[i] > most ? logits[i] : most;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - (double)most);
    }
    return (double)most + log(sum);
}

struct ranked {
    float logit;
    int32_t id;
};

/* Largest logit first, of equal ones the smaller id. */
static int compare_ranked(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;
    if (a->logit != b->logit) {
        return a->logit > b->logit ? -1 : 1;
    }
    return (a->id > b->id) - (a->id < b->id);
}

static bool rank(struct eval *e, const float *logits, uint32_t vocab)
{
    struct ranked *all = malloc(vocab * sizeof *all);
    e->best = malloc((size_t)e->top * sizeof *e->best + 1);
    e->best_logit = malloc((size_t)e->top * sizeof *e->best_logit + 1);
    if (all == NULL || e->best == NULL || e->best_logit == NULL) {
        free(all);
        pkvi_say_failure("out of memory");
        return false;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        all[i] = (struct ranked){logits[i], (int32_t)i};
    }
    qsort(all, vocab, sizeof *all, compare_ranked);
    for (int64_t i = 0; i < e->top; i++) {
        e->best[i] = all[i].id;
        e->best_logit[i] = all[i].logit;
    }
    free(all);
    return true;
}

/* One step of ids[at..at+count), the last `rows` of them with logits. */
static bool step(struct pkvi_engine *engine, struct pkv_seq *seq, const struct pkv_ids *ids,
                 size_t at, size_t count, size_t rows, const float **logits_out)
{
    struct pkv_step_part part = {
        .seq = seq, .ids = ids->id + at, .count = (uint32_t)count, .logit_rows = (uint32_t)rows};
    if (pkv_step_run(engine->session, &part, 1, logits_out) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    return true;
}

/*
 * All tokens; rows from `first` on give logits, of which row i predicts token i + 1 and the last
 * one what comes next.
 */
static bool run_tokens(struct eval *e, struct pkvi_engine *engine, struct pkv_seq *seq,
                       const struct pkv_ids *ids, uint32_t rows_most)
{
    uint32_t vocab = engine->model_info.vocab;
    size_t first = e->perplexity ? (size_t)e->score_from - 1 : ids->count - 1;
    const float *logits = NULL;
    for (size_t at = 0, count = 0; at < ids->count; at += count) {
        bool wanted = at >= first;
        size_t left = wanted ? ids->count - at : first - at;
        size_t most = wanted ? rows_most : STEP_ROWS;
        count = left < most ? left : most;
        if (!step(engine, seq, ids, at, count, wanted ? count : 0, &logits)) {
            return false;
        }
        if (wanted && !pkvi_engine_logits_ok(engine, logits, count, at)) {
            return false;
        }
        for (size_t row = 0; wanted && row < count; row++) {
            const float *row_logits = logits + row * vocab;
            double lse = log_sum_exp(row_logits, vocab);
            if (at + row + 1 < ids->count) {
                e->nll_sum += lse - (double)row_logits[ids->id[at + row + 1]];
                e->scored++;
            } else {
                e->lse = lse;
                return rank(e, row_logits, vocab);
            }
        }
    }
    return true;
}

static int write_record(const struct eval *e, const struct pkvi_engine *engine, size_t tokens)
{
    struct pkvi_record record;
    pkvi_record_begin(&record, "eval");
    pkvi_engine_record(engine, &e->engine, &record);
    pkvi_record_set(&record, "exact", json_boolean(e->exact));
    pkvi_record_int(&record, "tokens", tokens);
    pkvi_record_real(&record, "lse", e->lse);
    json_t *top = json_array();
    for (int64_t i = 0; i < e->top; i++) {
        json_t *pair = json_array();
        record.failed |= json_array_append_new(pair, json_integer(e->best[i])) != 0;
        record.failed |= json_array_append_new(pair, pkvi_json_real((double)e->best_logit[i])) != 0;
        record.failed |= json_array_append_new(top, pair) != 0;
    }
    pkvi_record_set(&record, "top", top);
    if (e->perplexity) {
        double mean = e->nll_sum / (double)e->scored;
        pkvi_record_int(&record, "score_from", (uint64_t)e->score_from);
        pkvi_record_int(&record, "scored", e->scored);
        pkvi_record_real(&record, "mean_nll", mean);
        pkvi_record_real(&record, "ppl", exp(mean));
    }
    pkvi_record_int(&record, "run_ns", e->run_ns);
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int write_text(const struct eval *e, const struct pkvi_engine *engine, size_t tokens)
{
    pkvi_out_printf("tokens %zu\nlse %.6f\n", tokens, e->lse);
    for (int64_t i = 0; i < e->top; i++) {
        const char *data = "";
        size_t bytes = 0;
        if (engine->text.has_text) {
            pkv_token_bytes(engine->tokenizer, e->best[i], true, &data, &bytes);
        }
        pkvi_out_printf("top %d %.6f ", e->best[i], (double)e->best_logit[i]);
        for (size_t at = 0; at < bytes; at++) {
            bool control = (unsigned char)data[at] < 0x20 || data[at] == 0x7f;
            pkvi_out_write(control ? "?" : data + at, 1);
        }
        pkvi_out_write("\n", 1);
    }
    if (e->perplexity) {
        double mean = e->nll_sum / (double)e->scored;
        pkvi_out_printf("scored %llu\nmean_nll %.6f\nppl %.6f\n", (unsigned long long)e->scored,
                        mean, exp(mean));
    }
    return PKV_EXIT_OK;
}

static int run(struct eval *e, struct pkvi_engine *engine, struct pkv_ids *ids)
{
    if (!pkvi_engine_open_text(engine, &e->engine) || !read_tokens(e, engine, ids)) {
        return PKV_EXIT_FAILED;
    }
    if (e->top > engine->text.vocab) {
        return pkvi_say_usage("--top: %lld is more than the vocabulary of %u", (long long)e->top,
                              engine->text.vocab);
    }
    if (!pkvi_engine_open_model(engine, &e->engine, e->exact)) {
        return PKV_EXIT_FAILED;
    }
    if (ids->count > engine->model_info.context) {
        return pkvi_say_failure("%zu tokens are more than the %u the model was made for: cut them "
                                "with --tokens",
                                ids->count, engine->model_info.context);
    }
    uint64_t rows = LOGIT_BYTES_MOST / ((uint64_t)engine->model_info.vocab * sizeof(float));
    rows = !e->perplexity || rows < 1 ? 1 : rows;
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = (uint32_t)ids->count;
    config.step_rows = ids->count < STEP_ROWS ? (uint32_t)ids->count : STEP_ROWS;
    config.logit_rows = rows < config.step_rows ? (uint32_t)rows : config.step_rows;
    struct pkv_seq *seq = NULL;
    const struct pkvi_engine_room room = {
        .less = "a smaller --tokens", .least_tokens = 1, .fixed_kv_type = e->exact};
    if (!pkvi_engine_open_session(engine, &e->engine, &room, &config)) {
        return PKV_EXIT_FAILED;
    }
    if (pkv_seq_open(engine->session, &seq) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    uint64_t begin_ns = pkvi_now_ns();
    bool ok = run_tokens(e, engine, seq, ids, config.logit_rows);
    e->run_ns = pkvi_now_ns() - begin_ns;
    pkv_seq_close(seq);
    if (!ok) {
        return PKV_EXIT_FAILED;
    }
    if (e->perplexity && !isfinite(exp(e->nll_sum / (double)e->scored))) {
        return pkvi_say_failure("mean negative log-likelihood %.6g: the perplexity, its "
                                "exponential, is too large for a number",
                                e->nll_sum / (double)e->scored);
    }
    pkvi_engine_say_kv(engine);
    pkvi_say_note("ran      %zu tokens, %.1f tokens/s", ids->count,
                  pkvi_rate(ids->count, e->run_ns));
    return e->engine.json ? write_record(e, engine, ids->count) : write_text(e, engine, ids->count);
}

int pkvi_cmd_eval(int argc, char **argv)
{
    struct eval e = {.text = NULL};
    int code = parse(&e, argc, argv);
    if (code != PKV_GO_ON) {
        return code;
    }
    struct pkvi_engine engine = {0};
    struct pkv_ids ids = {0};
    code = run(&e, &engine, &ids);
    free(e.best);
    free(e.best_logit);
    pkv_ids_free(&ids);
    pkvi_engine_close(&engine);
    return pkvi_out_end(code);
}
