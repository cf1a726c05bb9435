/*
 * gather.c: how fast kernels read pieces of pinned host memory, as a recall does: a line of JSON a
 * cell of piece x footprint x CTAs x pages x stream priority x idle or beside our GEMV. Large
 * copies of the same memory bound them; what did not fit memory or time has a line too.
 *
 *   gather [--mib 16384,1024,65536,4096] [--pieces 256,512,...] [--moved-kib 65536] [--samples 3]
 *          [--seconds 70] [--gemv-rows 8192] [--gemv-cols 28672]
 *
 * Exit status: 0 = measured, 1 = something failed, 77 = no device.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/limits.h"
#include "runtime/device/device.h"
#include "tests/gpu/card.h"
#include "tests/gpu/rig.h"

#define SCHEMA "{\"schema\":\"pivotkv/gpu-gather/1\",\"what\":"
#define LIST_MOST 16u
#define PAGE_BYTES 4096u
#define SPARE_BYTES ((uint64_t)4 << 30) /* of host memory for everything else */
#define PIN_GBPS 2.0                    /* the least: touching, pinning and giving back */
#define GEMVS_MOST 900u                 /* a launch queue holds 1024 */

struct list {
    uint64_t value[LIST_MOST];
    uint32_t count;
};

struct cell {
    uint32_t piece, ctas;
    bool high, beside;
};

struct bench {
    struct rig rig;
    struct list footprints, pieces;
    uint64_t moved_bytes, seconds, footprint;
    uint32_t samples, gemv_rows, gemv_cols, left_out;
    const char *pages;
    uint8_t *host;
    pkv_addr host_addr, target, first;
    uint64_t *first_host; /* pinned twin of first */
    double copy_gbps, gemv_us, idle_us, huge_share;
    uint64_t random;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Pieces from anywhere. */
static void choose_pieces(struct bench *b, const struct cell *cell, uint32_t pieces)
{
    for (uint32_t i = 0; i < pieces; i++) {
        b->first_host[i] =
            next_random(&b->random) % (b->footprint / cell->piece) * (cell->piece / 16);
    }
    const struct pkv_span span = {b->first, (pkv_addr)(uintptr_t)b->first_host, 8ull * pieces};
    RIG(&b->rig, pkvi_copy_async(b->rig.normal, &span, 1));
    RIG(&b->rig, pkvi_stream_sync(b->rig.normal));
}

/* One sample: its microseconds; of a GEMV beside it too, and whether those outlasted it. */
static double gather_us(struct bench *b, const struct cell *cell, uint32_t gemvs,
                        double *gemv_us_out, bool *covered_out)
{
    struct rig *rig = &b->rig;
    struct pkv_stream *stream = cell->high ? rig->high : rig->normal;
    const uint32_t pieces = (uint32_t)(b->moved_bytes / cell->piece);
    const struct pkvt_gather args = {.source = b->host_addr,
                                     .target = b->target,
                                     .first = b->first,
                                     .words = cell->piece / 16,
                                     .pieces = pieces,
                                     .blocks = cell->ctas};
    choose_pieces(b, cell, pieces);
    if (cell->beside) {
        rig_enqueue_gemvs(rig, gemvs);
    }
    RIG(rig, pkvi_event_record(rig->begin, stream));
    RIG(rig, pkvi_launch(stream, &pkvt_card_gather, &args));
    RIG(rig, pkvi_event_record(rig->end, stream));
    const double us = rig_us(rig, rig->begin, rig->end);
    if (cell->beside) {
        *gemv_us_out = rig_us(rig, rig->beside_begin, rig->beside_end) / gemvs;
        *covered_out = *covered_out && rig_us(rig, rig->end, rig->beside_end) > 0;
    }
    return us + 1e-3;
}

static void run_cell(struct bench *b, const struct cell *cell)
{
    double gbps[RIG_SAMPLES_MOST], gemv_us = 0;
    bool covered = true;
    const double wanted = 2 * b->idle_us / b->gemv_us + 8;
    const uint32_t gemvs = wanted < GEMVS_MOST ? (uint32_t)wanted : GEMVS_MOST;
    for (uint32_t i = 0; i <= b->samples; i++) {
        const double us = gather_us(b, cell, gemvs, &gemv_us, &covered);
        if (i > 0) { /* the first warms up */
            gbps[i - 1] = (double)b->moved_bytes / 1e3 / us;
        }
        b->idle_us = cell->beside ? b->idle_us : us;
    }
    printf(SCHEMA "\"gather\",\"piece_bytes\":%u,\"footprint_bytes\":%" PRIu64
                  ",\"ctas\":%u,\"pages\":\"%s\",\"priority\":\"%s\",\"beside\":\"%s\",",
           cell->piece, b->footprint, cell->ctas, b->pages, cell->high ? "high" : "normal",
           cell->beside ? "gemv" : "idle");
    const double median = rig_print_samples(gbps, b->samples);
    printf(",\"bound_gbps\":%.4f,\"share\":%.4f", b->copy_gbps, median / b->copy_gbps);
    if (cell->beside) {
        printf(",\"gemv_us\":%.4f,\"gemv_alone_us\":%.4f,\"covered\":%s", gemv_us, b->gemv_us,
               covered ? "true" : "false");
    }
    printf("}\n");
    fflush(stdout);
}

static void run_copies(struct bench *b)
{
    struct rig *rig = &b->rig;
    double gbps[RIG_SAMPLES_MOST];
    const struct pkv_span span = {b->target, b->host_addr,
                                  b->moved_bytes < b->footprint ? b->moved_bytes : b->footprint};
    for (uint32_t i = 0; i < b->samples; i++) {
        RIG(rig, pkvi_event_record(rig->begin, rig->normal));
        RIG(rig, pkvi_copy_async(rig->normal, &span, 1));
        RIG(rig, pkvi_event_record(rig->end, rig->normal));
        gbps[i] = (double)span.bytes / 1e3 / (rig_us(rig, rig->begin, rig->end) + 1e-3);
    }
    printf(SCHEMA "\"copy\",\"copy_bytes\":%" PRIu64 ",\"footprint_bytes\":%" PRIu64
                  ",\"pages\":\"%s\",",
           span.bytes, b->footprint, b->pages);
    b->copy_gbps = rig_print_samples(gbps, b->samples);
    if (b->huge_share >= 0) {
        printf(",\"huge_share\":%.4f}\n", b->huge_share);
    } else {
        printf(",\"huge_share\":null}\n");
    }
}

static void leave_out(struct bench *b, uint64_t footprint, const char *pages, const char *why)
{
    printf(SCHEMA "\"left out\",\"footprint_bytes\":%" PRIu64 ",\"pages\":\"%s\",\"why\":\"%s\"}\n",
           footprint, pages, why);
    b->left_out++;
}

/* Idle first: it tells how many GEMVs outlast a sample. What a recall meets comes before the rest.
 */
static void run_cells(struct bench *b)
{
    static const uint32_t ctas[] = {8, 4, 16};
    char why[64];
    uint32_t skipped = 0;
    for (uint32_t way = 0; way < 2; way++) { /* high priority, then normal */
        for (uint32_t c = 0; c < 3; c++) {
            for (uint32_t p = 0; p < b->pieces.count; p++) {
                for (uint32_t beside = 0; beside < 2; beside++) {
                    const struct cell cell = {(uint32_t)b->pieces.value[p], ctas[c], way == 0,
                                              beside == 1};
                    if (rig_seconds(&b->rig) < (double)b->seconds) {
                        run_cell(b, &cell);
                    } else {
                        skipped++;
                    }
                }
            }
        }
    }
    if (skipped > 0) {
        snprintf(why, sizeof why, "time: %u cells", skipped);
        leave_out(b, b->footprint, b->pages, why);
    }
}

struct share {
    pthread_t thread;
    uint8_t *begin;
    uint64_t bytes;
};

static void *touch(void *argument)
{
    const struct share *share = argument;
    for (uint64_t at = 0; at < share->bytes; at += PAGE_BYTES) {
        share->begin[at] = (uint8_t)at;
    }
    return NULL;
}

/* All of it touched, by as many threads as there are CPUs. */
static void touch_all(struct bench *b, uint8_t *memory, uint64_t bytes)
{
    enum { THREADS_MOST = 64 };
    struct share shares[THREADS_MOST];
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t count = cpus < 1 ? 1 : cpus > THREADS_MOST ? THREADS_MOST : (uint32_t)cpus;
    const uint64_t each = bytes / count / PAGE_BYTES * PAGE_BYTES;
    for (uint32_t t = 0; t < count; t++) {
        shares[t].begin = memory + t * each;
        shares[t].bytes = t + 1 == count ? bytes - t * each : each;
        if (pthread_create(&shares[t].thread, NULL, touch, &shares[t]) != 0) {
            fprintf(stderr, "%s: no thread\n", b->rig.program);
            exit(1);
        }
    }
    for (uint32_t t = 0; t < count; t++) {
        pthread_join(shares[t].thread, NULL);
    }
}

/* The share of it that lies on huge pages, as the system tells; -1 where it does not. */
static double huge_share(const uint8_t *memory, uint64_t bytes)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    uintptr_t begin = 0, end = 0;
    uint64_t kib = 0, huge_bytes = 0;
    bool told = false;
    while (file && fgets(line, sizeof line, file)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
            begin = from;
            end = to;
        }
        const bool inside = begin < (uintptr_t)memory + bytes && (uintptr_t)memory < end;
        if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1) {
            huge_bytes += kib << 10;
            told = true;
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return !told ? -1 : huge_bytes < bytes ? (double)huge_bytes / (double)bytes : 1;
}

static void run_footprint(struct bench *b, uint64_t footprint, bool huge)
{
    struct pkvi_limits limits;
    const char *pages = huge ? "2MiB" : "4KiB";
    pkvi_limits_memory("", &limits);
    if (limits.memory_available_bytes < footprint + (footprint > SPARE_BYTES ? SPARE_BYTES : 0)) {
        leave_out(b, footprint, pages, "host memory");
        return;
    }
    if (rig_seconds(&b->rig) + (double)footprint / 1e9 / PIN_GBPS > (double)b->seconds) {
        leave_out(b, footprint, pages, "time");
        return;
    }
    b->host = mmap(NULL, footprint, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->host == MAP_FAILED) {
        leave_out(b, footprint, pages, "mmap");
        return;
    }
    (void)madvise(b->host, footprint, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    touch_all(b, b->host, footprint);
    if (pkvi_mem_pin(b->rig.device, b->host, footprint, &b->host_addr) != PKV_OK) {
        leave_out(b, footprint, pages, "not that much memory can be pinned");
    } else {
        b->footprint = footprint;
        b->pages = pages;
        b->huge_share = huge_share(b->host, footprint);
        run_copies(b);
        run_cells(b);
        pkvi_mem_unpin(b->rig.device, b->host);
    }
    munmap(b->host, footprint);
}

static struct list list_of(const struct rig *rig, const char *option, const char *text,
                           uint64_t least, uint64_t most)
{
    struct list list = {.count = 0};
    char copy[256], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, ",", &rest); at && list.count < LIST_MOST;
         at = strtok_r(NULL, ",", &rest)) {
        list.value[list.count++] = rig_number(rig, option, at, least, most);
    }
    return list;
}

static void parse(struct bench *b, int argc, char **argv)
{
    const struct rig *rig = &b->rig;
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--mib") == 0) {
            b->footprints = list_of(rig, name, value, 1, 1 << 20);
        } else if (strcmp(name, "--pieces") == 0) {
            b->pieces = list_of(rig, name, value, 16, 1 << 20);
        } else if (strcmp(name, "--moved-kib") == 0) {
            b->moved_bytes = rig_number(rig, name, value, 16, 1 << 20) << 10;
        } else if (strcmp(name, "--samples") == 0) {
            b->samples = (uint32_t)rig_number(rig, name, value, 1, RIG_SAMPLES_MOST);
        } else if (strcmp(name, "--seconds") == 0) {
            b->seconds = rig_number(rig, name, value, 1, 3600);
        } else if (strcmp(name, "--gemv-rows") == 0) {
            b->gemv_rows = (uint32_t)rig_number(rig, name, value, 16, 1 << 20);
        } else if (strcmp(name, "--gemv-cols") == 0) {
            b->gemv_cols = (uint32_t)rig_number(rig, name, value, 256, 1 << 20) / 256 * 256;
        } else {
            fprintf(stderr, "gather: %s: no such option\n", name);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.rig = {.program = "gather"},
                      .moved_bytes = (uint64_t)64 << 20,
                      .seconds = 70,
                      .samples = 3,
                      .gemv_rows = 8192,
                      .gemv_cols = 28672,
                      .random = 0x243f6a8885a308d3u};
    b.footprints = list_of(&b.rig, "--mib", "16384,1024,65536,4096", 1, 1 << 20);
    b.pieces = list_of(&b.rig, "--pieces", "256,512,1024,2048,4096,8192,16384", 16, 1 << 20);
    parse(&b, argc, argv);
    rig_open(&b.rig, "gather", b.gemv_rows, b.gemv_cols);
    b.gemv_us = rig_gemv_us(&b.rig, 50);
    b.target = rig_alloc(&b.rig, PKV_MEM_DEVICE, b.moved_bytes);
    b.first = rig_alloc(&b.rig, PKV_MEM_DEVICE, b.moved_bytes / 16 * 8);
    b.first_host = (uint64_t *)(uintptr_t)rig_alloc(&b.rig, PKV_MEM_PINNED, b.moved_bytes / 16 * 8);
    for (uint32_t i = 0; i < b.footprints.count; i++) {
        run_footprint(&b, b.footprints.value[i] << 20, true);
        run_footprint(&b, b.footprints.value[i] << 20, false);
    }
    if (b.left_out > 0) {
        fprintf(stderr, "gather: %u lines say what was left out\n", b.left_out);
    }
    rig_close(&b.rig);
    return 0;
}
