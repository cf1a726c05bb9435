/* quality_report.c: owns what is told of the arms: a row each, or a record for all texts and one
 * for each. */
#include "bench/quality.h"

#include <math.h>
#include <stdio.h>

#include "pivotkv/impl/policy_ops.h"

/* An arm in a mode on one text, or on all: what its row or record is made of. */
struct part {
    const struct quality_arm *arm, *rival; /* rival: NULL = none */
    int mode;
    const char *text;
    uint32_t scored;
    struct quality_figures figures;
    struct quality_paired paired;
    const struct quality_layer *layer; /* [texts][layers] */
    uint32_t texts, layers;
    double coverage, hit_rate, recall, overfetch;
    uint64_t bytes_moved;
};

/* `t` = text_count: all of them. */
static struct part part_of(const struct quality *q, const struct quality_arm *arm, int mode,
                           uint32_t t)
{
    const bool all = t == q->text_count;
    const uint32_t from = all ? 0 : t, layers = q->engine.model_info.layers;
    const uint32_t first = q->text[from].first;
    const uint64_t seed = (uint64_t)q->seed;
    const struct quality_arm *rival = quality_rival(q, arm);
    struct part part = {.arm = arm,
                        .rival = rival && !rival->refused[0] ? rival : NULL,
                        .mode = mode,
                        .text = all ? "all" : q->text[t].name,
                        .scored = all ? q->scored : q->text[t].tokens - q->text[t].skip,
                        .paired = {NAN, NAN, NAN, NAN},
                        .layer = arm->layer[mode] + (uint64_t)from * layers,
                        .texts = all ? q->text_count : 1,
                        .layers = layers};
    part.figures = quality_figures(arm->token[mode] + first, part.scored, seed, q->samples);
    if (part.rival) {
        part.paired = quality_paired(arm->token[mode] + first, rival->token[mode] + first,
                                     part.scored, seed, q->samples);
    }
    part.coverage = quality_coverage(part.layer, part.texts, layers);
    part.hit_rate = quality_hit_rate(part.layer, part.texts, layers, 0, layers);
    part.recall = quality_recall(part.layer, part.texts, layers);
    part.overfetch = quality_overfetch(part.layer, part.texts, layers);
    for (uint32_t i = from; i < from + part.texts; i++) {
        part.bytes_moved += arm->bytes_moved[mode][i];
    }
    return part;
}

/* A policy with a shape of its own takes no other. */
static const char *shape_of(const struct quality_arm *arm)
{
    const bool own = arm->policy && quality_own_shape(arm->policy);
    return own ? "own" : arm->pyramid_text;
}

/* What was found in every layer; null where nothing was. */
static void record_layers(struct pkvi_record *record, const struct part *part)
{
    json_t *coverage = json_array(), *hits = json_array(), *recall = json_array();
    for (uint32_t l = 0; l < part->layers; l++) {
        json_array_append_new(coverage, pkvi_json_real(quality_layer_coverage(
                                            part->layer, part->texts, part->layers, l)));
        json_array_append_new(hits, pkvi_json_real(quality_hit_rate(part->layer, part->texts,
                                                                    part->layers, l, l + 1)));
        json_array_append_new(recall, pkvi_json_real(quality_layer_recall(part->layer, part->texts,
                                                                          part->layers, l)));
    }
    pkvi_record_set(record, "miss_mass_recall_layers", recall);
    pkvi_record_set(record, "coverage_layers", coverage);
    pkvi_record_set(record, "hit_rate_layers", hits);
}

/* Policies that run at their own bytes are no rivals on equal ones. */
static bool is_ranked(const struct quality_arm *arm)
{
    return arm->policy && !quality_prunes(arm) && arm->policy->recipe.leave != PKV_LEAVE_KEEP;
}

static void record_figures(struct pkvi_record *record, const struct part *part)
{
    const struct quality_figures *f = &part->figures;
    pkvi_record_int(record, "scored", part->scored);
    pkvi_record_set(record, "ranked", json_boolean(is_ranked(part->arm)));
    pkvi_record_real(record, "coverage", part->coverage);
    pkvi_record_real(record, "hit_rate", part->hit_rate);
    pkvi_record_real(record, "miss_mass_recall", part->recall);
    pkvi_record_real(record, "overfetch", part->overfetch);
    record_layers(record, part);
    pkvi_record_int(record, "bytes_moved", part->bytes_moved);
    pkvi_record_int(record, "device_bytes", part->arm->device_bytes);
    pkvi_record_real(record, "kl_mean", f->kl_mean);
    pkvi_record_real(record, "kl_mean_low", f->kl_low);
    pkvi_record_real(record, "kl_mean_high", f->kl_high);
    pkvi_record_real(record, "kl_p99", f->kl_p99);
    pkvi_record_real(record, "top1", f->top1);
    pkvi_record_real(record, "ppl_diff", f->ppl_diff);
    pkvi_record_real(record, "right", f->right);
    pkvi_record_real(record, "right_full", f->right_full);
    if (part->rival) {
        pkvi_record_text(record, "against", part->rival->name);
        pkvi_record_text(record, "against_pyramid", shape_of(part->rival));
        pkvi_record_real(record, "kl_diff", part->paired.diff);
        pkvi_record_real(record, "kl_diff_low", part->paired.low);
        pkvi_record_real(record, "kl_diff_high", part->paired.high);
        pkvi_record_real(record, "kl_ratio", part->paired.ratio);
    }
}

static void write_record(const struct quality *q, const struct part *part)
{
    const struct quality_arm *arm = part->arm;
    struct pkvi_record record;
    pkvi_record_begin(&record, "quality");
    pkvi_engine_record(&q->engine, &q->options, &record);
    pkvi_record_text(&record, "text", part->text);
    pkvi_record_text(&record, "policy", arm->name);
    pkvi_record_text(&record, "pyramid", shape_of(arm));
    pkvi_record_text(&record, "budget", arm->budget_text);
    pkvi_record_int(&record, "budget_bytes", arm->budget_bytes);
    pkvi_record_real(&record, "recent_ratio", arm->recent_ratio > 0.0 ? arm->recent_ratio : NAN);
    if (q->slots_of && arm->policy && arm->policy->recipe.pick != PKV_PICK_NONE) {
        pkvi_record_text(&record, "slots_of", pkv_policy_name(q->slots_of));
    }
    pkvi_record_int(&record, "context", (uint64_t)q->context);
    pkvi_record_text(&record, "mode", part->mode == QUALITY_FORCED ? "forced" : "free");
    if (arm->refused[0]) {
        pkvi_record_text(&record, "refused", arm->refused);
    } else {
        record_figures(&record, part);
    }
    pkvi_record_end(&record, PKV_EXIT_OK);
}

static void write_head(const struct quality *q)
{
    pkvi_out_printf("%-15s %-8s %6s %8s %-6s %8s %-16s %8s %6s %6s %9s %8s %6s %6s %10s %10s",
                    "policy", "pyramid", "recent", "budget", "mode", "KL mean", " [95 %]", "p99",
                    "top-1", "right", "ppl", "coverage", "hits", "recall", "moved", "device");
    if (q->against) {
        pkvi_out_printf("  KL less that of %.64s, ratio", q->against);
    }
    pkvi_out_printf("\n");
}

static void write_row(const struct part *part)
{
    const struct quality_arm *arm = part->arm;
    const struct quality_figures *f = &part->figures;
    char recent[16] = "own", hits[16] = "-", recall[16] = "-";
    if (!isnan(part->recall)) {
        snprintf(recall, sizeof recall, "%.3f", part->recall);
    }
    if (!isnan(part->hit_rate)) {
        snprintf(hits, sizeof hits, "%.1f", 100.0 * part->hit_rate);
    }
    if (arm->recent_ratio > 0.0) {
        snprintf(recent, sizeof recent, "%g", arm->recent_ratio);
    }
    pkvi_out_printf("%-15s %-8s %6s %8s %-6s ", arm->name, shape_of(arm), recent, arm->budget_text,
                    part->mode == QUALITY_FORCED ? "forced" : "free");
    if (arm->refused[0]) {
        pkvi_out_printf("%s\n", arm->refused);
        return;
    }
    pkvi_out_printf("%8.4f [%.4f, %.4f] %8.3f %6.1f %6.1f %+9.3f %8.3f %6s %6s %10s %10s",
                    f->kl_mean, f->kl_low, f->kl_high, f->kl_p99, 100.0 * f->top1, 100.0 * f->right,
                    f->ppl_diff, part->coverage, hits, recall,
                    pkvi_size_text(part->bytes_moved).text, pkvi_size_text(arm->device_bytes).text);
    if (part->rival) {
        pkvi_out_printf("  %+.4f [%+.4f, %+.4f] %.3f", part->paired.diff, part->paired.low,
                        part->paired.high, part->paired.ratio);
    }
    pkvi_out_printf("\n");
}

static void report_arm(struct quality *q, const struct quality_arm *arm, int mode)
{
    struct part part = part_of(q, arm, mode, q->text_count);
    if (!q->options.json) {
        write_row(&part);
        return;
    }
    write_record(q, &part);
    for (uint32_t t = 0; q->text_count > 1 && t < q->text_count; t++) {
        part = part_of(q, arm, mode, t);
        write_record(q, &part);
    }
}

int quality_report(struct quality *q)
{
    if (!q->options.json) {
        write_head(q);
    }
    for (int mode = 0; mode < QUALITY_MODES; mode++) {
        for (uint32_t a = 0; quality_runs(q, mode) && a < q->arm_count; a++) {
            report_arm(q, &q->arm[a], mode);
        }
    }
    return PKV_EXIT_OK;
}
