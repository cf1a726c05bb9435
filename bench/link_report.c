/*
 * link_report.c: owns what the link command says: tables, JSON lines, the profile. Where
 * nvbandwidth has a word for a row, the row has that name.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/link.h"
#include "bench/stats.h"
#include "runtime/base/check.h"
#include "runtime/cli/cli.h"

struct stats {
    double median, p10, p90, p99;
};

struct name {
    char text[64];
};

static bool is_cpu(const struct link *link)
{
    return strcmp(link->info.name, "cpu") == 0;
}

static struct stats stats_of(const double *samples, uint32_t count)
{
    double *sorted = calloc(count + 1, sizeof *sorted);
    struct stats stats = {NAN, NAN, NAN, NAN};
    if (sorted && count > 0) {
        memcpy(sorted, samples, count * sizeof *sorted);
        pkvi_stats_sort(sorted, count);
        stats.median = pkvi_stats_quantile(sorted, count, 0.5);
        stats.p10 = pkvi_stats_quantile(sorted, count, 0.1);
        stats.p90 = pkvi_stats_quantile(sorted, count, 0.9);
        stats.p99 = pkvi_stats_quantile(sorted, count, 0.99);
    }
    free(sorted);
    return stats;
}

double pkvi_link_median(const double *samples, uint32_t count)
{
    return stats_of(samples, count).median;
}

static double median_of(const struct link_cell *cell)
{
    return cell ? stats_of(cell->samples, cell->sample_count).median : NAN;
}

static const char *unit_of(const struct link_cell *cell)
{
    switch (cell->measure) {
    case LINK_COPY:
    case LINK_LOCAL_READ:
        return "gbps";
    case LINK_LOCAL_INT8:
    case LINK_LOCAL_F32:
        return "gops";
    default:
        return "us";
    }
}

/* `direction` tells the two rows of a cell of both directions apart. */
static struct name name_of(const struct link_cell *cell, uint32_t direction)
{
    static const char *const names[] = {
        [LINK_COPY_WAIT] = "copy_wait",     [LINK_COPY_CALL] = "copy_call",
        [LINK_LAUNCH] = "launch",           [LINK_LAUNCH_LATENCY] = "launch_latency",
        [LINK_LAUNCH_CALL] = "launch_call", [LINK_LOCAL_READ] = "device_local_read",
        [LINK_LOCAL_INT8] = "device_int8",  [LINK_LOCAL_F32] = "device_f32"};
    static const char *const patterns[] = {"memcpy", "strided", "gather"};
    const char *way = direction == LINK_LOAD ? "host_to_device" : "device_to_host";
    struct name name;
    if (cell->measure == LINK_COPY) {
        const char *pattern = cell->pattern == LINK_GATHER && direction == LINK_STORE
                                  ? "scatter"
                                  : patterns[cell->pattern];
        snprintf(name.text, sizeof name.text, "%s%s_%s_ce", way,
                 cell->direction == LINK_BOTH ? "_bidirectional" : "", pattern);
    } else if (cell->measure == LINK_KERNEL) {
        const char *kind, *shape;
        pkvi_link_work_name(cell->work, &kind, &shape);
        snprintf(name.text, sizeof name.text, "kernel_%s_%s", kind, shape);
    } else if (cell->measure == LINK_COPY_LATENCY) {
        snprintf(name.text, sizeof name.text, "%s_latency_ce", way);
    } else {
        snprintf(name.text, sizeof name.text, "%s", names[cell->measure]);
    }
    return name;
}

static const double *samples_of(const struct link_cell *cell, uint32_t direction)
{
    if (cell->direction != LINK_BOTH) {
        return cell->samples;
    }
    return direction == LINK_LOAD ? cell->load : cell->store;
}

static uint32_t first_direction(const struct link_cell *cell)
{
    return cell->direction == LINK_STORE ? LINK_STORE : LINK_LOAD;
}

static uint32_t last_direction(const struct link_cell *cell)
{
    return cell->direction == LINK_LOAD ? LINK_LOAD : LINK_STORE;
}

const struct link_cell *pkvi_link_find(const struct link *link, struct link_cell like)
{
    for (uint32_t i = 0; i < link->cell_count; i++) {
        const struct link_cell *cell = &link->cells[i];
        bool main_row = cell->node == 0 && cell->compute == LINK_ALONE && !cell->single &&
                        (cell->measure != LINK_COPY ||
                         cell->streams == (uint32_t)link->options.streams.value[0]);
        if (cell->measure == like.measure && main_row && cell->direction == like.direction &&
            cell->pattern == like.pattern && cell->memory == like.memory &&
            (like.pieces == 0 || cell->pieces == like.pieces) &&
            (like.piece_bytes == 0 || cell->piece_bytes == like.piece_bytes)) {
            return cell;
        }
    }
    return NULL;
}

const struct link_cell *pkvi_link_find_measure(const struct link *link, enum link_measure measure)
{
    for (uint32_t i = 0; i < link->cell_count; i++) {
        if (link->cells[i].measure == measure) {
            return &link->cells[i];
        }
    }
    return NULL;
}

/*
 * GB/s that the cell cannot pass, NAN where unknown. On the cpu device each byte is read by one of
 * the cores that copy: their share of what kernels on all threads read.
 */
static double bound_of(const struct link *link, const struct link_cell *cell, bool sum)
{
    double read = median_of(pkvi_link_find_measure(link, LINK_LOCAL_READ));
    double cores = cell->streams * (sum ? 2.0 : 1.0), threads = link->info.threads;
    double memory = read * (cores < threads ? cores : threads) / threads;
    double emulated = link->options.link_gbps * (sum ? 2 : 1);
    if (!is_cpu(link)) {
        return NAN;
    }
    if (emulated > 0 && (emulated < memory || link->cached)) {
        return emulated;
    }
    return link->cached ? NAN : memory;
}

/* ---- JSON ---- */

static void add_samples(struct pkvi_record *record, const char *what, const char *unit,
                        const double *samples, uint32_t count)
{
    char key[64];
    struct stats stats = stats_of(samples, count);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        record->failed |= json_array_append_new(list, pkvi_json_real(samples[i])) != 0;
    }
    snprintf(key, sizeof key, "samples_%s%s", what, unit);
    pkvi_record_set(record, key, list);
    const struct {
        const char *name;
        double value;
    } figures[] = {
        {"median", stats.median}, {"p10", stats.p10}, {"p90", stats.p90}, {"p99", stats.p99}};
    for (uint32_t i = 0; i < 4; i++) {
        if (i < 3 || strcmp(unit, "us") == 0) {
            snprintf(key, sizeof key, "%s_%s%s", figures[i].name, what, unit);
            pkvi_record_real(record, key, figures[i].value);
        }
    }
}

static void add_copy(const struct link *link, struct pkvi_record *record,
                     const struct link_cell *cell)
{
    pkvi_record_text(record, "direction",
                     pkvi_choice_word(LINK_DIRECTION_WORDS, (int)cell->direction).text);
    pkvi_record_text(record, "pattern",
                     pkvi_choice_word(LINK_PATTERN_WORDS, (int)cell->pattern).text);
    pkvi_record_text(record, "memory", pkvi_choice_word(LINK_MEMORY_WORDS, (int)cell->memory).text);
    pkvi_record_int(record, "node", link->nodes[cell->node]);
    pkvi_record_int(record, "streams", cell->streams);
    pkvi_record_text(record, "compute",
                     pkvi_choice_word(LINK_COMPUTE_WORDS, (int)cell->compute).text);
    pkvi_record_int(record, "piece_bytes", cell->piece_bytes);
    pkvi_record_int(record, "pieces", cell->pieces);
    if (cell->measure == LINK_COPY) {
        pkvi_record_int(record, "calls", cell->calls);
        pkvi_record_set(record, "single", json_boolean(cell->single));
    }
}

static int write_cell(const struct link *link, const struct link_cell *cell, uint32_t direction)
{
    struct pkvi_record record;
    pkvi_record_begin(&record, "link");
    pkvi_record_text(&record, "record", "row");
    pkvi_record_text(&record, "name", name_of(cell, direction).text);
    if (cell->measure <= LINK_COPY_CALL) {
        add_copy(link, &record, cell);
    }
    pkvi_record_set(&record, "cached", json_boolean(link->cached));
    add_samples(&record, "", unit_of(cell), samples_of(cell, direction), cell->sample_count);
    if (cell->measure == LINK_COPY) {
        pkvi_record_real(&record, "bound_gbps", bound_of(link, cell, false));
    }
    if (cell->direction == LINK_BOTH) {
        add_samples(&record, "sum_", "gbps", cell->samples, cell->sample_count);
        pkvi_record_real(&record, "bound_sum_gbps", bound_of(link, cell, true));
    }
    if (cell->measure == LINK_KERNEL) {
        const struct pkv_cost *cost = &link->works[cell->work].kernel.cost;
        pkvi_record_real(&record, "flops", cost->flops);
        pkvi_record_int(&record, "local_bytes", cost->local_bytes);
    }
    if (cell->overlap) {
        add_samples(&record, "", "overlap", cell->overlap, cell->sample_count);
        add_samples(&record, "", "kernel_speed", cell->speeds[0], cell->sample_count);
        add_samples(&record, "", "copy_speed", cell->speeds[1], cell->sample_count);
    }
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static json_t *hosts_json(const struct link *link)
{
    json_t *list = json_array();
    for (int memory = 0; memory < LINK_MEMORIES; memory++) {
        for (uint32_t node = 0; node < link->node_count; node++) {
            const struct link_host *host = &link->host[memory][node];
            if (host->base[0]) {
                json_array_append_new(
                    list,
                    json_pack("{s:s, s:i, s:o, s:o}", "memory",
                              pkvi_choice_word(LINK_MEMORY_WORDS, memory).text, "node",
                              (int)link->nodes[node], "node_share",
                              host->node_share < 0 ? json_null() : json_real(host->node_share),
                              "huge_share",
                              host->huge_share < 0 ? json_null() : json_real(host->huge_share)));
            }
        }
    }
    return list;
}

static int write_run(const struct link *link)
{
    struct pkvi_record record;
    pkvi_record_begin(&record, "link");
    pkvi_record_text(&record, "record", "run");
    pkvi_record_text(&record, "device", link->info.name);
    pkvi_record_text(&record, "cpu_variant", link->info.variant);
    pkvi_record_text(&record, "measures", is_cpu(link) ? "memory" : "link");
    pkvi_record_int(&record, "threads", link->info.threads);
    pkvi_record_real(&record, "link_gbps", link->options.link_gbps);
    pkvi_record_real(&record, "link_latency_us", link->options.link_latency_us);
    pkvi_record_set(&record, "device_node",
                    link->info.numa_node < 0 ? json_null() : json_integer(link->info.numa_node));
    pkvi_record_set(&record, "host_memory", hosts_json(link));
    pkvi_record_text(&record, "order",
                     pkvi_choice_word("random|ascending|descending", link->options.order).text);
    pkvi_record_int(&record, "seed", (uint64_t)link->options.seed);
    pkvi_record_int(&record, "rounds", link->rounds);
    pkvi_record_int(&record, "region_bytes", link->region_bytes);
    pkvi_record_int(&record, "last_level_bytes", link->topo->last_level_bytes);
    pkvi_record_set(&record, "cached", json_boolean(link->cached));
    pkvi_record_int(&record, "host_bytes", link->host_bytes);
    pkvi_record_int(&record, "device_bytes", link->device_bytes);
    pkvi_record_real(&record, "seconds", pkvi_seconds(link->run_ns));
    return pkvi_record_end(&record, PKV_EXIT_OK);
}

static int write_all(const struct link *link)
{
    int code = write_run(link);
    for (uint32_t i = 0; i < link->cell_count && code == PKV_EXIT_OK; i++) {
        const struct link_cell *cell = &link->cells[i];
        uint32_t last = last_direction(cell);
        for (uint32_t d = first_direction(cell); d <= last && code == PKV_EXIT_OK; d++) {
            code = write_cell(link, cell, d);
        }
    }
    return code;
}

/* ---- tables ---- */

static void print_head(const struct link *link)
{
    struct pkvi_size_text cache = pkvi_size_text(link->topo->last_level_bytes);
    pkvi_out_printf("device %s %s, %u threads, node %d\n", link->info.name, link->info.variant,
                    link->info.threads, link->info.numa_node);
    if (is_cpu(link)) {
        pkvi_out_printf("The cpu device has no bus: host and device are both memory of this "
                        "machine (%u NUMA node%s).\nA copy is done by one core a stream.\n",
                        link->topo->node_count, link->topo->node_count == 1 ? "" : "s");
    }
    if (link->options.link_gbps > 0 || link->options.link_latency_us > 0) {
        pkvi_out_printf("Emulated link: %g GB/s, %g us.\n", link->options.link_gbps,
                        link->options.link_latency_us);
    }
    pkvi_out_printf("seed %lld, %s order, %u rounds, %.1f s; regions of %s, last-level cache %s\n",
                    (long long)link->options.seed,
                    pkvi_choice_word("random|ascending|descending", link->options.order).text,
                    link->rounds, pkvi_seconds(link->run_ns),
                    pkvi_size_text(link->region_bytes).text, cache.text);
    for (int memory = 0; memory < LINK_MEMORIES; memory++) {
        for (uint32_t node = 0; node < link->node_count; node++) {
            const struct link_host *host = &link->host[memory][node];
            if (host->base[0]) {
                pkvi_out_printf(
                    "%s memory of node %u: %.0f %% of looked-at pages there, %.0f %% of "
                    "bytes on huge pages\n",
                    pkvi_choice_word(LINK_MEMORY_WORDS, memory).text, link->nodes[node],
                    100 * host->node_share, 100 * host->huge_share);
            }
        }
    }
    pkvi_out_printf("GB/s are 1e9 bytes a second, calls included%s\n",
                    link->cached ? "; * = fits the last-level cache: not a figure of memory" : "");
}

static bool same_table(const struct link_cell *a, const struct link_cell *b)
{
    bool same_way = a->measure == b->measure && a->direction == b->direction &&
                    a->pattern == b->pattern && a->single == b->single &&
                    (a->pattern != LINK_GATHER || a->pieces == b->pieces);
    return same_way && a->memory == b->memory && a->node == b->node && a->streams == b->streams &&
           a->compute == b->compute && a->measure <= LINK_COPY_CALL;
}

static void print_title(const struct link *link, const struct link_cell *cell, uint32_t direction)
{
    pkvi_out_printf("\n%s", name_of(cell, direction).text);
    if (cell->measure > LINK_COPY_CALL) {
        return;
    }
    pkvi_out_printf("  %s, node %u", pkvi_choice_word(LINK_MEMORY_WORDS, (int)cell->memory).text,
                    link->nodes[cell->node]);
    if (cell->measure == LINK_COPY) {
        pkvi_out_printf(", %u stream%s", cell->streams, cell->streams == 1 ? "" : "s");
    }
    if (cell->pattern == LINK_GATHER) {
        pkvi_out_printf(", %u pieces a call", cell->pieces);
    }
    if (cell->single) {
        pkvi_out_printf(", a call a piece");
    }
    if (cell->compute != LINK_ALONE) {
        pkvi_out_printf(", beside %s", cell->compute == LINK_INT8 ? "int8 arithmetic"
                                                                  : "reading of device memory");
    }
}

static void print_columns(const struct link_cell *cell)
{
    const char *unit = unit_of(cell);
    unit = strcmp(unit, "gbps") == 0 ? "GB/s" : strcmp(unit, "gops") == 0 ? "Gop/s" : "us";
    pkvi_out_printf("\n%12s %7s %12s %12s %12s", "piece", "a call", unit, "p10", "p90");
    if (cell->measure == LINK_COPY) {
        pkvi_out_printf(" %9s", "of bound");
    }
    if (cell->direction == LINK_BOTH) {
        pkvi_out_printf(" %12s %9s", "both", "of bound");
    }
    if (cell->overlap) {
        pkvi_out_printf(" %9s", "hidden");
    }
    pkvi_out_write("\n", 1);
}

static void print_share(double value, double bound)
{
    if (isfinite(bound) && isfinite(value)) {
        pkvi_out_printf(" %7.0f %%", 100 * value / bound);
    } else {
        pkvi_out_printf(" %9s", "-");
    }
}

static void print_row(const struct link *link, const struct link_cell *cell, uint32_t direction)
{
    struct stats stats = stats_of(samples_of(cell, direction), cell->sample_count);
    char piece[24] = "", pieces[16] = "";
    if (cell->measure <= LINK_COPY_CALL) {
        snprintf(piece, sizeof piece, "%s", pkvi_size_text(cell->piece_bytes).text);
        snprintf(pieces, sizeof pieces, "%u", cell->pieces);
    }
    pkvi_out_printf("%12s %7s %12.3f %12.3f %12.3f", piece, pieces, stats.median, stats.p10,
                    stats.p90);
    if (cell->measure == LINK_COPY) {
        print_share(stats.median, bound_of(link, cell, false));
    }
    if (cell->direction == LINK_BOTH) {
        double sum = median_of(cell);
        pkvi_out_printf(" %12.3f", sum);
        print_share(sum, bound_of(link, cell, true));
    }
    if (cell->overlap) {
        pkvi_out_printf(" %7.0f %%", 100 * stats_of(cell->overlap, cell->sample_count).median);
    }
    bool data = cell->measure <= LINK_COPY_LATENCY || cell->measure == LINK_LOCAL_READ;
    pkvi_out_printf("%s\n", link->cached && data ? " *" : "");
}

/* One line a direction: the largest pieces in pinned memory, never out of a cache. */
static void print_headline(const struct link *link)
{
    static const char *const words[] = {"host to device", "device to host", "both directions"};
    if (link->cached) {
        pkvi_out_printf("\nNo headline: regions of %s fit the last-level cache; take a larger "
                        "--region.\n",
                        pkvi_size_text(link->region_bytes).text);
        return;
    }
    pkvi_out_printf("\n");
    for (int direction = 0; direction < LINK_DIRECTIONS; direction++) {
        const struct link_cell *cell = pkvi_link_find(
            link, (struct link_cell){.direction = (enum link_direction)direction,
                                     .memory = LINK_PINNED,
                                     .piece_bytes = (uint64_t)link->options.max_bytes});
        if (cell) {
            double median = median_of(cell), bound = bound_of(link, cell, direction == LINK_BOTH);
            pkvi_out_printf("%s, %s, pinned: %.2f GB/s", words[direction],
                            pkvi_size_text(cell->piece_bytes).text, median);
            if (isfinite(bound)) {
                pkvi_out_printf(" = %.0f %% of the bound %.2f", 100 * median / bound, bound);
            }
            pkvi_out_write("\n", 1);
        }
    }
}

static void print_all(const struct link *link)
{
    print_head(link);
    for (uint32_t i = 0, end = 0; i < link->cell_count; i = end) {
        const struct link_cell *first = &link->cells[i];
        uint32_t last = last_direction(first);
        for (end = i + 1; end < link->cell_count && same_table(first, &link->cells[end]); end++) {
        }
        for (uint32_t d = first_direction(first); d <= last; d++) {
            print_title(link, first, d);
            print_columns(first);
            for (uint32_t j = i; j < end; j++) {
                print_row(link, &link->cells[j], d);
            }
        }
    }
    print_headline(link);
}

int pkvi_link_report(struct link *link)
{
    int code = PKV_EXIT_OK;
    if (link->options.json) {
        code = write_all(link);
    } else {
        print_all(link);
    }
    return pkvi_out_flush() ? code : PKV_EXIT_FAILED;
}
