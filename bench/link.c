/*
 * link.c: owns the link command: what moves between host and device memory, how fast, and what a
 * call costs. Everything goes through the device's table, so any device can be measured. The cpu
 * device has no bus: there it is memory that is measured, and the output says so.
 */
#include "bench/link.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/cli/cli.h"

#define REGION_MOST PKVI_HOST_PIECE_BYTES /* one pin, so that no piece straddles two */
#define SAMPLE_NS 3000000u
#define SAMPLE_QUICK_NS 200000u
#define FIELD(name) offsetof(struct link_options, name)
#define DEVICES "auto|cpu|cuda"
#define CPUS "auto|scalar|avx2|avx512|neon"
#define ORDERS "random|ascending|descending"

static const struct pkvi_option options[] = {
    {"direction", 0, PKV_OPTION_CHOICE, FIELD(direction), "all|" LINK_DIRECTION_WORDS,
     "which way (default all)", 0, 0, false},
    {"pattern", 0, PKV_OPTION_CHOICE, FIELD(pattern), "all|" LINK_PATTERN_WORDS,
     "where the pieces of a copy lie in host memory (default all)", 0, 0, false},
    {"memory", 0, PKV_OPTION_CHOICE, FIELD(memory), "all|" LINK_MEMORY_WORDS,
     "kind of host memory: 4 KiB pages, huge pages, the pinned arena (default all)", 0, 0, false},
    {"compute", 0, PKV_OPTION_CHOICE, FIELD(compute), "all|" LINK_COMPUTE_WORDS,
     "what computes beside it: arithmetic, or reading device memory (default all, and nothing)", 0,
     0, false},
    {"min-size", 0, PKV_OPTION_SIZE, FIELD(min_bytes), "SIZE", "smallest piece (default 64)", 1,
     1073741824.0, false},
    {"max-size", 0, PKV_OPTION_SIZE, FIELD(max_bytes), "SIZE",
     "largest piece (default 1GiB, at most --region)", 1, 1073741824.0, false},
    {"region", 0, PKV_OPTION_SIZE, FIELD(region_bytes), "SIZE",
     "memory over which pieces are spread, a side and direction (default 1GiB)", 1, 1073741824.0,
     false},
    {"memory-bytes", 0, PKV_OPTION_SIZE, FIELD(memory_bytes), "SIZE",
     "most memory to take (default: what is available)", 1, 1125899906842624.0, false},
    {"pieces", 0, PKV_OPTION_INTS, FIELD(pieces), "N,N,...",
     "pieces of a gather (default 16,256,4096)", 1, LINK_PIECES_MOST, false},
    {"streams", 0, PKV_OPTION_INTS, FIELD(streams), "N,N,...",
     "streams a direction; the first is the one of most rows (default 1,2,4)", 1, LINK_STREAMS_MOST,
     false},
    {"nodes", 0, PKV_OPTION_INTS, FIELD(nodes), "N,N,...",
     "NUMA nodes of the host memory (default: all)", 0, 1023, false},
    {"repetitions", 'r', PKV_OPTION_INT, FIELD(repeats), "N",
     "rounds: samples of a row, small ones three times as many (default 11)", 1, 1000, false},
    {"order", 0, PKV_OPTION_CHOICE, FIELD(order), ORDERS,
     "of the sizes within a round (default random)", 0, 0, false},
    {"seed", 's', PKV_OPTION_INT, FIELD(seed), "N", "seed of that order and of gathers (default 1)",
     0, 9007199254740991.0, false},
    {"quick", 0, PKV_OPTION_FLAG, FIELD(quick), NULL,
     "a few sizes and samples in small regions: seconds, and no figures to keep", 0, 0, false},
    {"profile", 0, PKV_OPTION_TEXT, FIELD(profile), "FILE",
     "also write what predictions of time need, as JSON", 0, 0, false},
    {"device", 0, PKV_OPTION_CHOICE, FIELD(device), DEVICES,
     "which device (default auto: cuda if there is one, else cpu)", 0, 0, false},
    {"threads", 't', PKV_OPTION_INT, FIELD(threads), "N",
     "compute threads (default: the cores this process may use)", 1, 1024, false},
    {"cpu", 0, PKV_OPTION_CHOICE, FIELD(cpu), CPUS,
     "instruction set of the CPU kernels (default: the best there is)", 0, 0, false},
    {"link-gbps", 0, PKV_OPTION_REAL_0, FIELD(link_gbps), "X",
     "emulate a host link of X GB/s on the cpu device (default 0: none)", 0.001, 1e4, false},
    {"link-latency-us", 0, PKV_OPTION_REAL, FIELD(link_latency_us), "X",
     "and its latency in microseconds (default 0)", 0, 1e6, false},
    {"json", 0, PKV_OPTION_FLAG, FIELD(json), NULL, "one JSON object a line on stdout, no text", 0,
     0, false},
    {"quiet", 0, PKV_OPTION_FLAG, FIELD(quiet), NULL, "no plan and no progress on stderr", 0, 0,
     false},
};

static const struct pkvi_usage usage = {
    .line = "pivotkv link [--quick] [--profile FILE] [OPTION...]",
    .summary = "Measure what moves between host and device memory, and what a call costs: by size\n"
               "of the pieces, pattern, kind of memory, NUMA node, number of streams, with and\n"
               "without compute beside it. Median, p10 and p90 of the samples of -r rounds.\n"
               "Ctrl-C reports what was measured so far and exits with 130, SIGTERM with 143.",
};

/* ---- options ---- */

static void set_ints(struct pkvi_ints *ints, const int64_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count && (ints->count == i || ints->count == 0); i++) {
        ints->value[i] = values[i];
    }
    ints->count = ints->count == 0 ? count : ints->count;
}

/* Fill in what was not given. */
static void set_defaults(struct link_options *o)
{
    static const int64_t pieces[] = {16, 256, 4096}, streams[] = {1, 2, 4};
    int64_t region = o->quick ? (int64_t)4 << 20 : (int64_t)REGION_MOST;
    int64_t most = o->quick ? (int64_t)1 << 20 : (int64_t)REGION_MOST;
    if (o->region_bytes == 0) {
        o->region_bytes = o->max_bytes > region ? o->max_bytes : region;
    }
    if (o->max_bytes == 0) {
        o->max_bytes = o->region_bytes < most ? o->region_bytes : most;
    }
    if (o->min_bytes == 0) {
        o->min_bytes = o->max_bytes < 64 ? o->max_bytes : 64;
    }
    if (o->repeats == 0) {
        o->repeats = o->quick ? 3 : 11;
    }
    set_ints(&o->pieces, o->quick ? pieces + 1 : pieces, o->quick ? 1 : 3);
    set_ints(&o->streams, streams, o->quick ? 2 : 3);
}

static int check(const struct link_options *o)
{
    if (o->min_bytes > o->max_bytes) {
        return pkvi_say_usage("--min-size: %" PRId64 " is more than --max-size, %" PRId64,
                              o->min_bytes, o->max_bytes);
    }
    if (o->max_bytes > o->region_bytes) {
        return pkvi_say_usage("--max-size: %" PRId64 " is more than --region, %" PRId64,
                              o->max_bytes, o->region_bytes);
    }
    for (uint32_t i = 0; i < o->nodes.count; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (o->nodes.value[i] == o->nodes.value[j]) {
                return pkvi_say_usage("--nodes: %" PRId64 " is there twice", o->nodes.value[i]);
            }
        }
    }
    if (o->profile && (o->direction != 0 || o->pattern != 0 ||
                       (o->memory != 0 && o->memory != 1 + (int)LINK_PINNED))) {
        return pkvi_say_usage("--profile: needs all directions and patterns, in pinned memory: "
                              "leave --direction, --pattern and --memory out");
    }
    if (o->profile && pkvi_profile_probe(o->profile) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    return PKV_GO_ON;
}

/* ---- opening ---- */

static enum pkv_status open_device(struct link *link)
{
    static const enum pkv_cpu cpus[] = {PKV_CPU_AUTO, PKV_CPU_SCALAR, PKV_CPU_AVX2, PKV_CPU_AVX512,
                                        PKV_CPU_NEON};
    const struct link_options *o = &link->options;
    struct pkv_device_config config = pkv_device_config_default();
    config.threads = (uint32_t)o->threads;
    config.cpu = cpus[o->cpu];
    config.link_gbps = o->link_gbps;
    config.link_latency_us = o->link_latency_us;
    struct pkvi_word name = pkvi_choice_word(DEVICES, o->device);
    enum pkv_status status =
        pkvi_engine_open_device(name.text, &config, &link->device, &link->why_cpu);
    return status == PKV_OK ? pkv_device_query(link->device, &link->info) : status;
}

/*
 * The memory of the cpu device lies where its workers touch it, and they run where this thread may:
 * on the first node, so that "local" and "remote" mean something.
 */
static void settle(struct link *link)
{
    const struct pkvi_topo *topo = link->topo;
    for (uint32_t i = 0; topo->node_count > 1 && i < topo->node_count; i++) {
        if (topo->nodes[i].cpus > 0 && pkvi_topo_run_on(&topo->nodes[i].cpu_set) == 0) {
            link->info.numa_node = (int32_t)topo->nodes[i].number;
            return;
        }
    }
    link->info.numa_node = topo->node_count == 1 ? (int32_t)topo->nodes[0].number : -1;
}

static enum pkv_status choose_nodes(struct link *link)
{
    const struct pkvi_topo *topo = link->topo;
    const struct pkvi_ints *wanted = &link->options.nodes;
    for (uint32_t i = 0; i < topo->node_count && wanted->count == 0; i++) {
        if (link->node_count < LINK_NODES_MOST) {
            uint32_t at = link->node_count++;
            link->nodes[at] = topo->nodes[i].number;
            if ((int32_t)link->nodes[at] == link->info.numa_node) { /* the device's own first */
                link->nodes[at] = link->nodes[0];
                link->nodes[0] = (uint32_t)link->info.numa_node;
            }
        }
    }
    for (uint32_t i = 0; i < wanted->count; i++) {
        bool found = false;
        for (uint32_t n = 0; n < topo->node_count; n++) {
            found |= topo->nodes[n].number == (uint32_t)wanted->value[i];
        }
        if (!found) {
            return PKV_FAIL(PKV_ERR_INVALID,
                            "--nodes: %lld is not one of the %u NUMA nodes that this process may "
                            "use",
                            (long long)wanted->value[i], topo->node_count);
        }
        link->nodes[link->node_count++] = (uint32_t)wanted->value[i];
    }
    return PKV_OK;
}

static enum pkv_status open_all(struct link *link)
{
    link->region_bytes = (uint64_t)link->options.region_bytes;
    link->target_ns = link->options.quick ? SAMPLE_QUICK_NS : SAMPLE_NS;
    PKV_TRY(pkvi_topo_open(NULL, &link->topo));
    PKV_TRY(open_device(link));
    if (strcmp(link->info.name, "cpu") == 0) {
        settle(link);
    }
    PKV_TRY(choose_nodes(link));
    /* Host and device side of a region together; half of it in the cache is already too much. */
    link->cached = link->region_bytes <= link->topo->last_level_bytes;
    PKV_TRY(pkvi_link_plan(link));
    PKV_TRY(pkvi_link_memory_open(link));
    return pkvi_link_copy_open(link);
}

static void close_all(struct link *link)
{
    if (link->device) {
        pkvi_link_copy_close(link);
        pkvi_link_memory_close(link);
    }
    pkv_device_close(link->device);
    pkvi_topo_close(link->topo);
    free(link->cells);
    free(link->numbers);
}

/* ---- rounds ---- */

static bool smaller(const struct link_cell *a, const struct link_cell *b)
{
    return a->piece_bytes < b->piece_bytes;
}

/* An order of the cells: by chance, or stable by size. */
static void set_order(const struct link *link, uint64_t *state, uint32_t *order)
{
    for (uint32_t i = 0; i < link->cell_count; i++) {
        uint32_t at = i;
        if (link->options.order == 0) {
            at = (uint32_t)(pkvi_random_next(state) % (i + 1));
            order[i] = order[at];
        } else {
            bool up = link->options.order == 1;
            while (at > 0 && (up ? smaller(&link->cells[i], &link->cells[order[at - 1]])
                                 : smaller(&link->cells[order[at - 1]], &link->cells[i]))) {
                order[at] = order[at - 1];
                at--;
            }
        }
        order[at] = i;
    }
}

static enum pkv_status visit(struct link *link, struct link_cell *cell, bool first)
{
    if (cell->measure <= LINK_COPY_CALL) {
        return first ? pkvi_link_copy_first(link, cell) : pkvi_link_copy_visit(link, cell);
    }
    return first ? pkvi_link_compute_first(link, cell) : pkvi_link_compute_visit(link, cell);
}

/* Each cell once; all, or only those that take little. */
static enum pkv_status visit_all(struct link *link, uint64_t *state, uint32_t *order, bool first,
                                 bool light)
{
    enum pkv_status status = PKV_OK;
    set_order(link, state, order);
    for (uint32_t i = 0; i < link->cell_count && status == PKV_OK && pkvi_signal == 0; i++) {
        struct link_cell *cell = &link->cells[order[i]];
        if (!light || cell->light) {
            status = visit(link, cell, first);
        }
    }
    return status;
}

static enum pkv_status run_round(struct link *link, uint64_t *state, uint32_t *order)
{
    PKV_TRY(visit_all(link, state, order, false, false));
    for (uint32_t i = 1; i < LINK_LIGHT; i++) {
        PKV_TRY(visit_all(link, state, order, false, true));
    }
    return PKV_OK;
}

static enum pkv_status run_rounds(struct link *link)
{
    uint64_t state = (uint64_t)link->options.seed, begin_ns = pkvi_clock_ns();
    uint32_t repeats = (uint32_t)link->options.repeats;
    uint32_t *order = calloc(link->cell_count, sizeof *order);
    if (!order) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for an order of %u cells", link->cell_count);
    }
    pkvi_say_progress("%u cells: how many calls each takes", link->cell_count);
    enum pkv_status status = visit_all(link, &state, order, true, false);
    uint64_t rounds_ns = pkvi_clock_ns();
    while (link->rounds < repeats && status == PKV_OK && pkvi_signal == 0) {
        status = run_round(link, &state, order);
        link->rounds += status == PKV_OK && pkvi_signal == 0;
        double spent = pkvi_seconds(pkvi_clock_ns() - rounds_ns);
        if (link->rounds > 0) {
            pkvi_say_progress("round %u of %u, about %.0f s left", link->rounds, repeats,
                              spent / link->rounds * (repeats - link->rounds));
        }
    }
    pkvi_say_progress(NULL);
    free(order);
    link->run_ns = pkvi_clock_ns() - begin_ns;
    return status;
}

static int run(struct link *link)
{
    if (open_all(link) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    pkvi_engine_say_why(&link->why_cpu);
    pkvi_say_note("memory   %s on the host, %s on the device; %u cells, %lld rounds, seed %lld",
                  pkvi_size_text(link->host_bytes).text, pkvi_size_text(link->device_bytes).text,
                  link->cell_count, (long long)link->options.repeats,
                  (long long)link->options.seed);
    if (run_rounds(link) != PKV_OK) {
        return pkvi_say_library_failure();
    }
    int code = link->rounds > 0 ? pkvi_link_report(link) : PKV_EXIT_OK;
    if (code == PKV_EXIT_OK && pkvi_signal == 0 && link->options.profile &&
        pkvi_link_profile(link, link->options.profile) != PKV_OK) {
        code = pkvi_say_library_failure();
    }
    return code;
}

int pkvi_cmd_link(int argc, char **argv)
{
    static struct link link = {.options = {.seed = 1}};
    const struct pkvi_option_set set = PKV_OPTION_SET(options, &link.options);
    int code = pkvi_options_parse(&usage, &set, 1, argc, argv, NULL);
    if (code != PKV_GO_ON) {
        return code;
    }
    set_defaults(&link.options);
    code = check(&link.options);
    if (code != PKV_GO_ON) {
        return code;
    }
    pkvi_say_quiet(link.options.quiet);
    pkvi_signals_catch();
    code = run(&link);
    close_all(&link);
    return pkvi_signals_exit(pkvi_out_end(code));
}
