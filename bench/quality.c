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
     "which policies, or full (default: all there are); last-row, last-rows: pivotal tokens as "
     "PyramidInfer has them",
     0, 0, false},
    {"kv-budget", 0, PKV_OPTION_TEXT, FIELD(budgets), "X,Y,...",
     "budgets of a sequence, each as elsewhere: P%, N tokens, bytes (default 10%)", 0, 0, false},
    {"pyramid", 0, PKV_OPTION_TEXT, FIELD(pyramids), "A,B,...",
     "how slots are shared out among layers: flat, cosine, linear, power, reversed, file:PATH "
     "(default flat)",
     0, 0, false},
    {"recent-ratio", 0, PKV_OPTION_TEXT, FIELD(ratios), "A,B,...",
     "shares of a budget for recent tokens, above 0, up to 1 (default: each policy's own)", 0, 0,
     false},
    {"sinks", 0, PKV_OPTION_INT, FIELD(sinks), "N",
     "first tokens that are kept (default: each policy's own)", 0, PKV_ENGINE_SINKS_MOST, false},
    {"slots-of", 0, PKV_OPTION_TEXT, FIELD(slots_of_name), "POLICY",
     "oracle and random get the ring and the slots that POLICY has (default: their own)", 0, 0,
     false},
    {"against", 0, PKV_OPTION_TEXT, FIELD(against), "POLICY|SHAPE",
     "compare every arm with POLICY, or with itself in SHAPE, token by token", 0, 0, false},
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

static int parse(struct quality *q, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&q->options), PKV_OPTION_SET(options, q),
        pkvi_engine_compute_options(&q->options), pkvi_engine_output_options(&q->options)};
    q->context = 4096;
    q->tokens = 256;
    q->instances = 4;
    q->seed = 1;
    q->sinks = -1;
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&q->options)) != PKV_GO_ON) {
        return code;
    }
    const char *const lists[] = {q->policies, q->budgets, q->pyramids, q->ratios};
    for (uint32_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (lists[i] && strlen(lists[i]) >= QUALITY_LIST_MOST) {
            return pkvi_say_usage("a list of %zu characters: at most %u", strlen(lists[i]),
                                  QUALITY_LIST_MOST - 1);
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

struct progress {
    uint32_t done, all; /* arms on texts in modes */
    uint64_t begin_ns;
};

static void say_progress(const struct progress *progress, const char *text,
                         const struct quality_arm *arm)
{
    const double spent = pkvi_seconds(pkvi_now_ns() - progress->begin_ns);
    const double left = spent / (progress->done + 1) * (progress->all - progress->done);
    pkvi_say_progress("%u of %u: %s, %s at %s, about %.0f s left", progress->done + 1,
                      progress->all, text, arm->name, arm->budget_text, left);
}

/* Texts under full attention first, then every arm: one session for all texts. */
static bool run_arm(struct quality *q, struct quality_arm *arm, struct progress *progress)
{
    struct pkv_session *session = NULL;
    if (!quality_open_arm(q, arm, &session)) {
        return false;
    }
    bool ok = true;
    for (int mode = 0; mode < QUALITY_MODES; mode++) {
        for (uint32_t t = 0; ok && quality_runs(q, mode) && t < q->text_count; t++) {
            say_progress(progress, q->text[t].name, arm);
            ok = !session || quality_run_arm(q, t, arm, session, mode);
            progress->done++;
        }
    }
    pkv_session_close(session);
    return ok;
}

static bool run_all(struct quality *q, struct progress *progress)
{
    for (uint32_t t = 0; t < q->text_count; t++) {
        pkvi_say_progress("text %u of %u: full attention", t + 1, q->text_count);
        if (!quality_reference(q, &q->text[t])) {
            return false;
        }
    }
    progress->begin_ns = pkvi_now_ns();
    bool ok = true;
    for (uint32_t i = 0; ok && i < 2 * q->arm_count; i++) { /* the sets of oracles come first */
        struct quality_arm *arm = &q->arm[i % q->arm_count];
        ok = quality_is_oracle(arm) != (i < q->arm_count) || run_arm(q, arm, progress);
    }
    return ok;
}

static int run(struct quality *q)
{
    if (!pkvi_engine_open_text(&q->engine, &q->options) ||
        !pkvi_engine_needs_text(&q->engine, "the texts cannot be read without it") ||
        !pkvi_engine_open_model(&q->engine, &q->options, false) || !quality_make_texts(q)) {
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
    uint32_t refused = 0;
    for (uint32_t a = 0; a < q->arm_count; a++) {
        if (!quality_plan_arm(q, &q->arm[a])) {
            return PKV_EXIT_FAILED;
        }
        refused += q->arm[a].refused[0] != '\0';
    }
    if (refused == q->arm_count) {
        return pkvi_say_failure("no arm can run; %s at %s: %s", q->arm[0].name,
                                q->arm[0].budget_text, q->arm[0].refused);
    }
    const uint32_t modes = q->mode == QUALITY_MODES ? 2 : 1;
    struct progress progress = {.all = q->arm_count * q->text_count * modes};
    const uint64_t begin_ns = pkvi_now_ns();
    if (!run_all(q, &progress)) {
        return pkvi_signals_exit(PKV_EXIT_FAILED);
    }
    pkvi_say_progress(NULL);
    pkvi_say_note("ran      %u arms on %u texts in %.1f s, %u refused", q->arm_count - refused,
                  q->text_count, pkvi_seconds(pkvi_now_ns() - begin_ns), refused);
    return quality_report(q);
}

int pkvi_cmd_quality(int argc, char **argv)
{
    struct quality *q = calloc(1, sizeof *q);
    struct quality_lists lists;
    if (!q) {
        return pkvi_say_failure("out of memory");
    }
    int code = parse(q, argc, argv);
    if (code == PKV_GO_ON) {
        snprintf(lists.policies, QUALITY_LIST_MOST, "%s", q->policies ? q->policies : "");
        snprintf(lists.budgets, QUALITY_LIST_MOST, "%s", q->budgets ? q->budgets : "10%");
        snprintf(lists.pyramids, QUALITY_LIST_MOST, "%s", q->pyramids ? q->pyramids : "flat");
        snprintf(lists.ratios, QUALITY_LIST_MOST, "%s", q->ratios ? q->ratios : "");
        pkvi_signals_catch();
        code = quality_make_arms(q, &lists) ? check_texts(q) : PKV_EXIT_USAGE;
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
