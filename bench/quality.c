/*
 * quality.c: owns the quality command: how far policies are from full attention, on equal bytes.
 * Every arm (a policy at a budget) is fed the same texts; its logits are compared with those of
 * full attention token by token. In mode free it writes by itself, and full attention reads along.
 */
#include "bench/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODES "forced|free|both"
#define FIELD(name) offsetof(struct quality, name)
#define TEXT_MOST 4096u

static const struct pkvi_option options[] = {
    {"text", 0, PKV_OPTION_TEXTS, FIELD(files), "FILE",
     "a text; may be given again; with --task what is around the facts", 0, 0, false},
    {"task", 0, PKV_OPTION_TEXTS, FIELD(tasks), "NAME",
     "instead of the texts' own tokens: passkey, needles, second (question), list or copy; may be "
     "given again",
     0, 0, false},
    {"instances", 0, PKV_OPTION_INT, FIELD(instances), "N", "of a task, a text (default 4)", 1,
     1000, false},
    {"context", 0, PKV_OPTION_INT, FIELD(context), "N", "tokens of the prompt (default 4096)",
     2 * QUALITY_WINDOW, 1 << 30, false},
    {"tokens", 'n', PKV_OPTION_INT, FIELD(tokens), "T", "tokens scored after it (default 256)", 1,
     1 << 30, false},
    {"policies", 0, PKV_OPTION_TEXT, FIELD(policies), "A,B,...",
     "which policies, or full (default: all there are)", 0, 0, false},
    {"kv-budget", 0, PKV_OPTION_TEXT, FIELD(budgets), "X,Y,...",
     "budgets of a sequence, each as elsewhere: P%, N tokens, bytes (default 10%)", 0, 0, false},
    {"pyramid", 0, PKV_OPTION_TEXT, FIELD(pyramids), "A,B,...",
     "how slots are shared out among layers: flat, cosine, linear, power, reversed (default flat)",
     0, 0, false},
    {"mode", 0, PKV_OPTION_CHOICE, FIELD(mode), MODES,
     "fed the text's tokens, writing by itself, or both (default forced)", 0, 0, false},
    {"seed", 's', PKV_OPTION_INT, FIELD(seed), "N",
     "of the intervals' resampling and of tasks (default 1)", 0, 9007199254740991.0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv quality -m MODEL --text FILE [--policies A,B] [--kv-budget X,Y] [OPTION...]",
    .summary =
        "Compare policies with full attention on equal bytes: KL divergence, agreement on the\n"
        "most likely token, perplexity, the share of attention's mass that is covered. Of each\n"
        "text, N tokens are the prompt and the T after them are scored.",
};

static bool add_arm(struct quality *q, const char *name, const char *budget, const char *pyramid)
{
    if (q->arm_count == QUALITY_ARMS_MOST) {
        pkvi_say_usage("more than %u policies and budgets", QUALITY_ARMS_MOST);
        return false;
    }
    struct quality_arm *arm = &q->arm[q->arm_count++];
    *arm = (struct quality_arm){.policy = pkv_policy_find(name), .budget_text = budget};
    arm->name = arm->policy ? pkv_policy_name(arm->policy) : "full";
    if (!arm->policy && strcmp(name, "full") != 0) {
        pkvi_say_usage("--policies: there is no policy '%.64s'", name);
        return false;
    }
    if (!pkvi_engine_pyramid(pyramid, &arm->pyramid)) {
        pkvi_say_usage("--pyramid: there is no shape '%.64s'", pyramid);
        return false;
    }
    if (!pkvi_budget_parse(budget, INT64_C(1) << 50, &arm->budget)) {
        pkvi_say_usage("--kv-budget: '%.64s' is no budget: expected such as 10%%, 2048, 512MiB",
                       budget);
        return false;
    }
    return true;
}

/* Cuts `list` at its commas, in place. */
static uint32_t split(char *list, const char **word, uint32_t most)
{
    uint32_t count = 0;
    for (char *next = list; next && count < most;) {
        word[count++] = next;
        next = strchr(next, ',');
        if (next) {
            *next++ = '\0';
        }
    }
    return count;
}

struct lists {
    char policies[TEXT_MOST], budgets[TEXT_MOST], pyramids[TEXT_MOST];
};

/* budgets x pyramids x policies, but full has no slots to share out; the lists are kept for their
 * words. */
static bool make_arms(struct quality *q, struct lists *lists)
{
    const char *name[QUALITY_ARMS_MOST], *budget[QUALITY_ARMS_MOST], *pyramid[QUALITY_ARMS_MOST];
    uint32_t names = q->policies ? split(lists->policies, name, QUALITY_ARMS_MOST) : 0;
    for (uint32_t i = 0; !q->policies && pkv_policy_at(i) && i < QUALITY_ARMS_MOST; i++) {
        name[names++] = pkv_policy_name(pkv_policy_at(i));
    }
    const uint32_t budgets = split(lists->budgets, budget, QUALITY_ARMS_MOST);
    const uint32_t pyramids = split(lists->pyramids, pyramid, QUALITY_ARMS_MOST);
    for (uint32_t i = 0; i < budgets * pyramids * names; i++) {
        const char *policy = name[i % names], *shape = pyramid[i / names % pyramids];
        const bool again = i / names % pyramids > 0 && strcmp(policy, "full") == 0;
        if (!again && !add_arm(q, policy, budget[i / names / pyramids], shape)) {
            return false;
        }
    }
    return true;
}

static int parse(struct quality *q, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&q->options), PKV_OPTION_SET(options, q),
        pkvi_engine_compute_options(&q->options), pkvi_engine_output_options(&q->options)};
    q->context = 4096;
    q->tokens = 256;
    q->instances = 4;
    q->seed = 1;
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&q->options)) != PKV_GO_ON) {
        return code;
    }
    const char *const lists[] = {q->policies, q->budgets, q->pyramids};
    for (uint32_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (lists[i] && strlen(lists[i]) >= TEXT_MOST) {
            return pkvi_say_usage("a list of %zu characters: at most %u", strlen(lists[i]),
                                  TEXT_MOST - 1);
        }
    }
    return PKV_GO_ON;
}

/* What no arm can do without. */
static int check_texts(const struct quality *q)
{
    for (uint32_t i = 0; i < q->tasks.count; i++) {
        if (!quality_is_task(q->tasks.text[i])) {
            return pkvi_say_usage("--task: there is no task '%.64s'", q->tasks.text[i]);
        }
    }
    return q->files.count > 0 ? PKV_GO_ON
                              : pkvi_say_usage("--text: a value is missing: name a file");
}

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
static bool make_texts(struct quality *q)
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

static bool runs(const struct quality *q, int mode)
{
    return q->mode == 2 || q->mode == mode;
}

/* Every arm on one text: forced ones first, as free ones overwrite what the text's own tokens give.
 */
static bool run_text(struct quality *q, uint32_t t, uint64_t begin_ns)
{
    const struct quality_text *text = &q->text[t];
    const uint32_t modes = q->mode == 2 ? 2 : 1;
    const uint32_t all = q->text_count * q->arm_count * modes;
    uint32_t done = t * q->arm_count * modes;
    pkvi_say_progress("text %u of %u: full attention", t + 1, q->text_count);
    if (!quality_reference(q, text)) {
        return false;
    }
    for (int mode = 0; mode < QUALITY_MODES; mode++) {
        for (uint32_t a = 0; runs(q, mode) && a < q->arm_count; a++, done++) {
            struct quality_arm *arm = &q->arm[a];
            const double left = pkvi_seconds(pkvi_now_ns() - begin_ns) / (done + 1) * (all - done);
            pkvi_say_progress("%u of %u: %s, %s at %s, about %.0f s left", done + 1, all,
                              text->name, arm->name, arm->budget_text, left);
            if (!quality_run_arm(q, text, arm, mode)) {
                return false;
            }
        }
    }
    return true;
}

/* Policies that run at their own bytes are no rivals on equal ones. */
static bool is_ranked(const struct quality_arm *arm)
{
    return arm->policy != NULL;
}

static int write_record(const struct quality *q, const struct quality_arm *arm, int mode,
                        const char *text, const struct quality_figures *f, uint64_t scored)
{
    const struct quality_run *run = &arm->run[mode];
    struct pkvi_record record;
    pkvi_record_begin(&record, "quality");
    pkvi_engine_record(&q->engine, &q->options, &record);
    pkvi_record_text(&record, "text", text);
    pkvi_record_text(&record, "policy", arm->name);
    pkvi_record_text(&record, "pyramid", pkv_pyramid_name(arm->pyramid));
    pkvi_record_text(&record, "budget", arm->budget_text);
    pkvi_record_int(&record, "budget_bytes", arm->budget_bytes);
    pkvi_record_int(&record, "context", (uint64_t)q->context);
    pkvi_record_text(&record, "mode", mode == QUALITY_FORCED ? "forced" : "free");
    if (arm->refused[0]) {
        pkvi_record_text(&record, "refused", arm->refused);
        return pkvi_record_end(&record, PKV_EXIT_OK);
    }
    pkvi_record_int(&record, "scored", scored);
    pkvi_record_set(&record, "ranked", json_boolean(is_ranked(arm)));
    pkvi_record_real(&record, "coverage", run->coverage);
    pkvi_record_int(&record, "bytes_moved", run->bytes_moved);
    pkvi_record_int(&record, "device_bytes", run->device_bytes);
    pkvi_record_real(&record, "kl_mean", f->kl_mean);
    pkvi_record_real(&record, "kl_mean_low", f->kl_low);
    pkvi_record_real(&record, "kl_mean_high", f->kl_high);
    pkvi_record_real(&record, "kl_p99", f->kl_p99);
    pkvi_record_real(&record, "top1", f->top1);
    pkvi_record_real(&record, "ppl_diff", f->ppl_diff);
    pkvi_record_real(&record, "right", f->right);
    pkvi_record_real(&record, "right_full", f->right_full);
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static void write_row(const struct quality_arm *arm, int mode, const struct quality_figures *f)
{
    const struct quality_run *run = &arm->run[mode];
    const char *word = mode == QUALITY_FORCED ? "forced" : "free";
    if (arm->refused[0]) {
        pkvi_out_printf("%-15s %-8s %8s %-6s %s\n", arm->name, pkv_pyramid_name(arm->pyramid),
                        arm->budget_text, word, arm->refused);
        return;
    }
    pkvi_out_printf(
        "%-15s %-8s %8s %-6s %8.4f [%.4f, %.4f] %8.3f %6.1f %6.1f %+9.3f %8.3f %10s %10s\n",
        arm->name, pkv_pyramid_name(arm->pyramid), arm->budget_text, word, f->kl_mean, f->kl_low,
        f->kl_high, f->kl_p99, 100.0 * f->top1, 100.0 * f->right, f->ppl_diff, run->coverage,
        pkvi_size_text(run->bytes_moved).text, pkvi_size_text(run->device_bytes).text);
}

/* One arm: all texts together, and each by itself: those of one name, which stand together. */
static void report_arm(struct quality *q, const struct quality_arm *arm, int mode)
{
    const struct quality_token *token = arm->token[mode];
    const uint64_t seed = (uint64_t)q->seed;
    struct quality_figures f = quality_figures(token, q->scored, seed, q->samples);
    if (!q->options.json) {
        write_row(arm, mode, &f);
        return;
    }
    write_record(q, arm, mode, "all", &f, q->scored);
    for (uint32_t t = 0; q->text_count > 1 && t < q->text_count; t++) {
        const struct quality_text *text = &q->text[t];
        f = quality_figures(token + text->first, text->tokens - text->skip, seed, q->samples);
        write_record(q, arm, mode, text->name, &f, text->tokens - text->skip);
    }
}

static int report(struct quality *q)
{
    if (!q->options.json) {
        pkvi_out_printf("%-15s %-8s %8s %-6s %8s %-16s %8s %6s %6s %9s %8s %10s %10s\n", "policy",
                        "pyramid", "budget", "mode", "KL mean", " [95 %]", "p99", "top-1", "right",
                        "ppl", "coverage", "moved", "device");
    }
    for (int mode = 0; mode < QUALITY_MODES; mode++) {
        for (uint32_t a = 0; runs(q, mode) && a < q->arm_count; a++) {
            report_arm(q, &q->arm[a], mode);
        }
    }
    return PKV_EXIT_OK;
}

static int run(struct quality *q)
{
    if (!pkvi_engine_open_text(&q->engine, &q->options) ||
        !pkvi_engine_needs_text(&q->engine, "the texts cannot be read without it") ||
        !pkvi_engine_open_model(&q->engine, &q->options, false) || !make_texts(q)) {
        return PKV_EXIT_FAILED;
    }
    const uint64_t wanted = (uint64_t)q->context + q->tokens_most;
    if (wanted > q->engine.model_info.context) {
        return pkvi_say_failure(
            "--context %lld and the %u tokens behind it are more than the %u the "
            "model was made for",
            (long long)q->context, q->tokens_most, q->engine.model_info.context);
    }
    if (!quality_open(q)) {
        return PKV_EXIT_FAILED;
    }
    for (uint32_t a = 0; a < q->arm_count; a++) {
        q->arm[a].budget_bytes = pkvi_engine_budget_bytes(&q->engine, &q->arm[a].budget,
                                                          quality_kv_type(q), (uint32_t)wanted);
    }
    const uint64_t begin_ns = pkvi_now_ns();
    for (uint32_t t = 0; t < q->text_count; t++) {
        if (!run_text(q, t, begin_ns)) {
            return pkvi_signals_exit(PKV_EXIT_FAILED);
        }
    }
    pkvi_say_progress(NULL);
    pkvi_say_note("ran      %u arms on %u texts in %.1f s", q->arm_count, q->text_count,
                  pkvi_seconds(pkvi_now_ns() - begin_ns));
    return report(q);
}

int pkvi_cmd_quality(int argc, char **argv)
{
    struct quality *q = calloc(1, sizeof *q);
    struct lists lists;
    if (!q) {
        return pkvi_say_failure("out of memory");
    }
    int code = parse(q, argc, argv);
    if (code == PKV_GO_ON) {
        snprintf(lists.policies, TEXT_MOST, "%s", q->policies ? q->policies : "");
        snprintf(lists.budgets, TEXT_MOST, "%s", q->budgets ? q->budgets : "10%");
        snprintf(lists.pyramids, TEXT_MOST, "%s", q->pyramids ? q->pyramids : "flat");
        pkvi_signals_catch();
        code = make_arms(q, &lists) ? check_texts(q) : PKV_EXIT_USAGE;
        code = pkvi_out_end(code == PKV_GO_ON ? run(q) : code);
    }
    quality_close(q);
    for (uint32_t t = 0; t < q->text_count; t++) {
        pkv_ids_free(&q->text[t].ids);
    }
    free(q->text);
    pkvi_engine_close(&q->engine);
    free(q);
    return code;
}
