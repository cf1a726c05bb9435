/*
 * bench.c: owns the bench command: speed of prompts and of decoding at context depths.
 * A row is either a prompt of n_prompt tokens behind n_depth others, or n_gen tokens of each of
 * n_parallel sequences of that depth. Token ids are random, from a fixed seed; logits are read back
 * and nothing is sampled. Fields are called as in llama-bench.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

#define STEP_ROWS 512u
#define REPEATS_MOST 1000
#define PARALLEL_MOST 1024

struct bench {
    struct pkvi_engine_options options;
    int64_t prompt, gen, repeats, seed;
    struct pkvi_ints depths, parallels;
    struct pkvi_engine engine;
    struct pkv_seq *seqs[PARALLEL_MOST];
    uint32_t seq_count;
    size_t context_tokens; /* of the longest row */
    int32_t *ids;          /* random, so many */
    double *samples;       /* tokens a second */
    struct pkv_step_part *parts;
};
#define FIELD(name) offsetof(struct bench, name)

static const struct pkvi_option options[] = {
    {"n-prompt", 'p', PKV_OPTION_INT, FIELD(prompt), "N",
     "tokens of a prompt, 0 = no such rows "
     "(default 512)",
     0, 1 << 24, false},
    {"n-gen", 'n', PKV_OPTION_INT, FIELD(gen), "N",
     "tokens decoded a sequence, 0 = no such rows (default 64)", 0, 1 << 24, false},
    {"n-depth", 'd', PKV_OPTION_INTS, FIELD(depths), "N,N,...",
     "tokens already in the context (default 0)", 0, 1 << 24, false},
    {"npl", 0, PKV_OPTION_INTS, FIELD(parallels), "N,N,...",
     "sequences decoded in parallel (default 1)", 1, PARALLEL_MOST, false},
    {"repetitions", 'r', PKV_OPTION_INT, FIELD(repeats), "N", "samples a row (default 5)", 1,
     REPEATS_MOST, false},
    {"seed", 's', PKV_OPTION_INT, FIELD(seed), "N", "seed of the token ids (default 1)", 0,
     9007199254740991.0, false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv bench -m MODEL [-p 512] [-n 64] [-d 0,4096] [-npl 1,8] [OPTION...]",
    .summary = "Measure tokens per second: prompts of -p tokens, and decoding -n tokens with -npl\n"
               "sequences at once, each at every depth of -d. Median, p10 and p90 of -r samples.",
};

static int64_t largest(const struct pkvi_ints *ints)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < ints->count; i++) {
        most = ints->value[i] > most ? ints->value[i] : most;
    }
    return most;
}

static bool run_prompt(struct bench *b, struct pkv_seq *seq, size_t from, size_t count,
                       const float **logits_out)
{
    if (count > 0 &&
        pkv_prompt_run(b->engine.session, seq, b->ids + from, count, NULL, logits_out) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    return true;
}

/* Bring a sequence to `depth` tokens, from wherever it is. */
static bool seek(struct bench *b, struct pkv_seq *seq, size_t depth)
{
    size_t have = pkv_seq_tokens(seq);
    if (have > depth) {
        have = depth;
        if (pkv_seq_truncate(seq, (uint32_t)depth) != PKV_OK) {
            have = 0; /* a sliding layer lost its window: fill it anew */
        }
        if (have == 0 && pkv_seq_truncate(seq, 0) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    const float *logits = NULL;
    return run_prompt(b, seq, have, depth - have, &logits);
}

static bool decode(struct bench *b, uint32_t parallel, size_t depth, size_t count,
                   const float **logits_out)
{
    for (size_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < parallel; s++) {
            b->parts[s] =
                (struct pkv_step_part){.seq = b->seqs[s],
                                       .ids = &b->ids[(depth + i + s) % b->context_tokens],
                                       .count = 1,
                                       .logit_rows = 1};
        }
        if (pkv_step_run(b->engine.session, b->parts, parallel, logits_out) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    return true;
}

struct row {
    size_t prompt, gen, depth;
    uint32_t parallel;
};

/* One sample, or the warm-up, whose time nobody looks at. What computed no numbers is no sample:
 * the last logits are looked at, after the time was taken. */
static bool measure(struct bench *b, const struct row *row, double *rate_out)
{
    for (uint32_t s = 0; s < row->parallel; s++) {
        if (!seek(b, b->seqs[s], row->depth)) {
            return false;
        }
    }
    const float *logits = NULL;
    uint64_t begin_ns = pkv_device_clock_ns(b->engine.device);
    bool ok = row->gen > 0 ? decode(b, row->parallel, row->depth, row->gen, &logits)
                           : run_prompt(b, b->seqs[0], row->depth, row->prompt, &logits);
    *rate_out = pkvi_rate((row->gen > 0 ? row->gen : row->prompt) * row->parallel,
                          pkv_device_clock_ns(b->engine.device) - begin_ns);
    return ok && pkvi_engine_logits_ok(&b->engine, logits, row->parallel,
                                       row->depth + row->prompt + row->gen - 1);
}

static int write_record(const struct bench *b, const struct row *row, const double *sorted)
{
    size_t count = (size_t)b->repeats;
    struct pkvi_record record;
    pkvi_record_begin(&record, "bench");
    pkvi_engine_record(&b->engine, &b->options, &record);
    pkvi_record_int(&record, "n_prompt", row->prompt);
    pkvi_record_int(&record, "n_gen", row->gen);
    pkvi_record_int(&record, "n_depth", row->depth);
    pkvi_record_int(&record, "n_parallel", row->parallel);
    json_t *samples = json_array();
    for (size_t i = 0; i < count; i++) {
        record.failed |= json_array_append_new(samples, pkvi_json_real(b->samples[i])) != 0;
    }
    pkvi_record_set(&record, "samples_ts", samples);
    pkvi_record_real(&record, "median_ts", pkvi_stats_quantile(sorted, count, 0.5));
    pkvi_record_real(&record, "p10_ts", pkvi_stats_quantile(sorted, count, 0.1));
    pkvi_record_real(&record, "p90_ts", pkvi_stats_quantile(sorted, count, 0.9));
    pkvi_record_int(&record, "peak_rss_bytes", pkvi_peak_rss_bytes());
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int write_row(const struct bench *b, const struct row *row)
{
    size_t count = (size_t)b->repeats;
    double *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL) {
        return pkvi_say_failure("out of memory");
    }
    memcpy(sorted, b->samples, count * sizeof *sorted);
    pkvi_stats_sort(sorted, count);
    int code = PKV_EXIT_OK;
    if (b->options.json) {
        code = write_record(b, row, sorted);
    } else {
        pkvi_out_printf("%8zu %8zu %8zu %10u %12.2f %12.2f %12.2f\n", row->prompt, row->gen,
                        row->depth, row->parallel, pkvi_stats_quantile(sorted, count, 0.5),
                        pkvi_stats_quantile(sorted, count, 0.1),
                        pkvi_stats_quantile(sorted, count, 0.9));
    }
    free(sorted);
    return pkvi_out_flush() ? code : PKV_EXIT_FAILED;
}

static int run_row(struct bench *b, struct row row)
{
    struct row warm = row;
    warm.gen = row.gen < 4 ? row.gen : 4;
    double rate = 0.0;
    if (!measure(b, &warm, &rate)) {
        return PKV_EXIT_FAILED;
    }
    for (int64_t i = 0; i < b->repeats; i++) {
        if (!measure(b, &row, &b->samples[i])) {
            return PKV_EXIT_FAILED;
        }
    }
    return write_row(b, &row);
}

static int run_rows(struct bench *b)
{
    if (!b->options.json) {
        if (b->options.sim != NULL) {
            pkvi_out_printf("simulated, nothing was run; profile %s\n", b->options.sim);
        }
        pkvi_out_printf("%8s %8s %8s %10s %12s %12s %12s\n", "n_prompt", "n_gen", "n_depth",
                        "n_parallel", "median_ts", "p10_ts", "p90_ts");
        pkvi_out_flush();
    }
    for (uint32_t d = 0; d < b->depths.count; d++) {
        struct row row = {.depth = (size_t)b->depths.value[d], .parallel = 1};
        row.prompt = (size_t)b->prompt;
        int code = b->prompt > 0 ? run_row(b, row) : PKV_EXIT_OK;
        row.prompt = 0;
        row.gen = (size_t)b->gen;
        for (uint32_t i = 0; code == PKV_EXIT_OK && b->gen > 0 && i < b->parallels.count; i++) {
            row.parallel = (uint32_t)b->parallels.value[i];
            code = run_row(b, row);
        }
        if (code != PKV_EXIT_OK) {
            return code;
        }
    }
    return PKV_EXIT_OK;
}

static bool open_all(struct bench *b)
{
    struct pkvi_engine *engine = &b->engine;
    if (!pkvi_engine_open_path(engine, &b->options) ||
        !pkvi_engine_open_model(engine, &b->options, false)) {
        return false;
    }
    int64_t longest = largest(&b->depths) + (b->prompt > b->gen ? b->prompt : b->gen);
    if (longest > engine->model_info.context) {
        pkvi_say_failure("the deepest row has %lld tokens, more than the %u the model was made "
                         "for: lower --n-depth, --n-prompt or --n-gen",
                         (long long)longest, engine->model_info.context);
        return false;
    }
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = (uint32_t)longest;
    config.sequences = b->gen > 0 ? (uint32_t)largest(&b->parallels) : 1;
    config.logit_rows = config.sequences;
    config.step_rows = config.sequences > STEP_ROWS ? config.sequences : STEP_ROWS;
    const struct pkvi_engine_room room = {
        .less = config.sequences > 1 ? "a smaller --n-depth, --n-prompt, --n-gen or --npl"
                                     : "a smaller --n-depth, --n-prompt or --n-gen",
        .least_tokens = 1,
        .one_sequence = true};
    if (!pkvi_engine_open_session(engine, &b->options, &room, &config)) {
        return false;
    }
    b->context_tokens = (size_t)longest;
    b->ids = malloc((size_t)longest * sizeof *b->ids);
    b->samples = malloc((size_t)b->repeats * sizeof *b->samples);
    b->parts = malloc(config.sequences * sizeof *b->parts);
    if (b->ids == NULL || b->samples == NULL || b->parts == NULL) {
        pkvi_say_failure("out of memory");
        return false;
    }
    uint64_t state = (uint64_t)b->seed;
    for (int64_t i = 0; i < longest; i++) {
        b->ids[i] = (int32_t)(pkvi_random_next(&state) % engine->model_info.vocab);
    }
    for (; b->seq_count < config.sequences; b->seq_count++) {
        if (pkv_seq_open(engine->session, &b->seqs[b->seq_count]) != PKV_OK) {
            pkvi_say_library_failure();
            return false;
        }
    }
    return true;
}

static int parse(struct bench *b, int argc, char **argv)
{
    const struct pkvi_option_set sets[] = {
        pkvi_engine_file_options(&b->options), PKV_OPTION_SET(options, b),
        pkvi_engine_device_options(&b->options), pkvi_engine_sim_options(&b->options),
        pkvi_engine_output_options(&b->options)};
    int code = pkvi_options_parse(&usage, sets, sizeof sets / sizeof sets[0], argc, argv, NULL);
    if (code != PKV_GO_ON || (code = pkvi_engine_check(&b->options)) != PKV_GO_ON) {
        return code;
    }
    if (b->prompt == 0 && b->gen == 0) {
        return pkvi_say_usage("--n-prompt, --n-gen: both are 0: nothing to measure");
    }
    return PKV_GO_ON;
}

int pkvi_cmd_bench(int argc, char **argv)
{
    static struct bench b = {.prompt = 512, .gen = 64, .repeats = 5, .seed = 1};
    b.depths = (struct pkvi_ints){.count = 1};
    b.parallels = (struct pkvi_ints){.value = {1}, .count = 1};
    int code = parse(&b, argc, argv);
    if (code != PKV_GO_ON) {
        return code;
    }
    code = open_all(&b) ? run_rows(&b) : PKV_EXIT_FAILED;
    for (uint32_t i = 0; i < b.seq_count; i++) {
        pkv_seq_close(b.seqs[i]);
    }
    free(b.ids);
    free(b.samples);
    free(b.parts);
    pkvi_engine_close(&b.engine);
    return pkvi_out_end(code);
}
