/*
 * link_copy.c: owns timing copies. The time of a sample runs on the device, from an event before
 * the first copy to one behind the last, with the host enqueuing meanwhile: what a call costs is in
 * it. Single calls are timed by the host's clock.
 */
#include "bench/link.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

#define WAITS 16u
#define WARM_SHARE 8u /* of a sample's calls, before it */

struct times {
    uint64_t ns[2], compute_ns; /* load, store */
};

static bool has(const struct link_cell *cell, uint32_t direction)
{
    return cell->direction == LINK_BOTH || (uint32_t)cell->direction == direction;
}

/* What the next `calls` calls of the cell copy, in each of its directions. */
static void lay_spans(struct link *link, struct link_cell *cell, uint32_t calls)
{
    const struct link_host *host = &link->host[cell->memory][cell->node];
    uint64_t bytes = cell->piece_bytes, count = (uint64_t)calls * cell->pieces;
    for (uint32_t d = 0; d < 2; d++) {
        uint32_t pair = cell->direction == LINK_BOTH ? d : 0;
        for (uint64_t i = 0; i < count && has(cell, d); i++) {
            uint64_t index = cell->at + i;
            pkv_addr near = link->device_region[pair] +
                            pkvi_link_place(LINK_CONTIGUOUS, link->region_bytes, bytes, 0, index);
            pkv_addr far = host->addr[pair] + pkvi_link_place(cell->pattern, link->region_bytes,
                                                              bytes, cell->key, index);
            link->lanes[d].spans[i] = (struct pkv_span){.dst = d == LINK_LOAD ? near : far,
                                                        .src = d == LINK_LOAD ? far : near,
                                                        .bytes = bytes};
        }
    }
    cell->at += count;
}

/* All lanes begin when the first one does. */
static enum pkv_status enqueue_begin(struct link *link, const struct link_cell *cell)
{
    struct pkv_stream *first = link->lanes[has(cell, LINK_LOAD) ? LINK_LOAD : LINK_STORE].stream[0];
    PKV_TRY(pkvi_event_record(link->begin, first));
    for (uint32_t d = 0; d < 2; d++) {
        for (uint32_t s = 0; s < cell->streams && has(cell, d); s++) {
            if (link->lanes[d].stream[s] != first) {
                PKV_TRY(pkvi_event_wait(link->lanes[d].stream[s], link->begin));
            }
        }
    }
    return PKV_OK;
}

static enum pkv_status enqueue_copies(struct link *link, const struct link_cell *cell,
                                      uint32_t calls)
{
    for (uint32_t i = 0; i < calls; i++) {
        for (uint32_t d = 0; d < 2; d++) {
            if (has(cell, d)) {
                PKV_TRY(pkvi_copy_async(link->lanes[d].stream[i % cell->streams],
                                        link->lanes[d].spans + (uint64_t)i * cell->pieces,
                                        cell->pieces));
            }
        }
    }
    for (uint32_t d = 0; d < 2; d++) {
        for (uint32_t s = 0; s < cell->streams && has(cell, d); s++) {
            PKV_TRY(pkvi_event_record(link->lanes[d].end[s], link->lanes[d].stream[s]));
        }
    }
    return PKV_OK;
}

static enum pkv_status wait_for_copies(struct link *link, const struct link_cell *cell,
                                       struct times *times)
{
    for (uint32_t d = 0; d < 2; d++) {
        for (uint32_t s = 0; s < cell->streams && has(cell, d); s++) {
            uint64_t ns = 0;
            PKV_TRY(pkvi_event_sync(link->lanes[d].end[s]));
            PKV_TRY(pkvi_event_elapsed(link->begin, link->lanes[d].end[s], &ns));
            times->ns[d] = ns > times->ns[d] ? ns : times->ns[d];
        }
    }
    return PKV_OK;
}

/* Run what lay_spans() laid, with so many launches beside it. */
static enum pkv_status run(struct link *link, const struct link_cell *cell, uint32_t calls,
                           uint32_t launches, struct times *times_out)
{
    *times_out = (struct times){.compute_ns = 0};
    PKV_TRY(enqueue_begin(link, cell));
    if (launches > 0) {
        PKV_TRY(pkvi_event_wait(link->compute, link->begin));
        PKV_TRY(pkvi_link_launch(link, pkvi_link_beside(link, cell->compute), launches));
        PKV_TRY(pkvi_event_record(link->compute_end, link->compute));
    }
    PKV_TRY(enqueue_copies(link, cell, calls));
    PKV_TRY(wait_for_copies(link, cell, times_out));
    if (launches > 0) {
        PKV_TRY(pkvi_event_sync(link->compute_end));
        PKV_TRY(pkvi_event_elapsed(link->begin, link->compute_end, &times_out->compute_ns));
    }
    return PKV_OK;
}

static uint64_t longest(const struct times *times)
{
    uint64_t ns = times->ns[0] > times->ns[1] ? times->ns[0] : times->ns[1];
    return ns > 0 ? ns : 1;
}

/* ---- the first visit ---- */

static uint8_t stamp_byte(const struct link_cell *cell, uint32_t direction, uint32_t i, uint64_t j)
{
    return (uint8_t)((cell->key >> 8 * (j % 8)) + j / 8 + 101u * i + 53u * direction);
}

/* Put a pattern where the first and last piece come from. Host memory is written here, device
 * memory by a copy. */
static enum pkv_status stamp(struct link *link, const struct link_cell *cell, uint32_t direction,
                             uint32_t i, const struct pkv_span *span, uint64_t bytes)
{
    const struct link_host *host = &link->host[cell->memory][cell->node];
    uint32_t pair = cell->direction == LINK_BOTH ? direction : 0;
    uint8_t *to = direction == LINK_LOAD ? host->base[pair] + (span->src - host->addr[pair])
                                         : PKV_AT(uint8_t, link->scratch);
    for (uint64_t j = 0; j < bytes; j++) {
        to[j] = stamp_byte(cell, direction, i, j);
    }
    if (direction == LINK_STORE) {
        const struct pkv_span up = {.dst = span->src, .src = pkvi_addr(to), .bytes = bytes};
        PKV_TRY(pkvi_copy_async(link->lanes[0].stream[0], &up, 1));
        PKV_TRY(pkvi_stream_sync(link->lanes[0].stream[0]));
    }
    return PKV_OK;
}

static enum pkv_status compare(struct link *link, const struct link_cell *cell, uint32_t direction,
                               uint32_t i, const struct pkv_span *span, uint64_t bytes)
{
    const struct link_host *host = &link->host[cell->memory][cell->node];
    uint32_t pair = cell->direction == LINK_BOTH ? direction : 0;
    const uint8_t *got = PKV_AT(uint8_t, link->scratch + LINK_SCRATCH_BYTES);
    if (direction == LINK_LOAD) {
        const struct pkv_span down = {.dst = pkvi_addr(got), .src = span->dst, .bytes = bytes};
        PKV_TRY(pkvi_copy_async(link->lanes[1].stream[0], &down, 1));
        PKV_TRY(pkvi_stream_sync(link->lanes[1].stream[0]));
    } else {
        got = host->base[pair] + (span->dst - host->addr[pair]);
    }
    for (uint64_t j = 0; j < bytes; j++) {
        if (got[j] != stamp_byte(cell, direction, i, j)) {
            return PKV_FAIL(PKV_ERR_CORRUPT,
                            "a copy of %u pieces of %" PRIu64 " bytes: byte %" PRIu64
                            " of piece %u is not what was sent",
                            cell->pieces, cell->piece_bytes, j, i);
        }
    }
    return PKV_OK;
}

/* One call whose first and last piece must arrive. */
static enum pkv_status verify(struct link *link, struct link_cell *cell)
{
    uint64_t bytes = cell->piece_bytes;
    bytes = bytes < LINK_SCRATCH_BYTES ? bytes : LINK_SCRATCH_BYTES;
    struct times times;
    lay_spans(link, cell, 1);
    for (int after = 0; after < 2; after++) {
        for (uint32_t d = 0; d < 2; d++) {
            for (uint32_t end = 0; end < 2 && has(cell, d); end++) {
                uint32_t i = end == 0 ? 0 : cell->pieces - 1;
                const struct pkv_span *span = &link->lanes[d].spans[i];
                PKV_TRY(after ? compare(link, cell, d, i, span, bytes)
                              : stamp(link, cell, d, i, span, bytes));
            }
        }
        if (!after) {
            PKV_TRY(run(link, cell, 1, 0, &times));
        }
    }
    return PKV_OK;
}

/* Calls until a sample takes its time. */
static enum pkv_status find_calls(struct link *link, struct link_cell *cell)
{
    uint32_t most = LINK_SPANS_MOST / cell->pieces, calls = cell->streams;
    most = most < LINK_CALLS_MOST ? most : LINK_CALLS_MOST;
    most -= most % cell->streams; /* at least one a stream: the plan has no other cells */
    struct times times;
    for (;;) {
        lay_spans(link, cell, calls);
        PKV_TRY(run(link, cell, calls, 0, &times));
        if (2 * longest(&times) >= link->target_ns || calls >= most) {
            break;
        }
        calls = 2 * calls < most ? 2 * calls : most;
    }
    uint64_t wanted = (uint64_t)((double)calls * (double)link->target_ns / (double)longest(&times));
    wanted = wanted < most ? wanted - wanted % cell->streams : most;
    cell->calls = wanted > cell->streams ? (uint32_t)wanted : cell->streams;
    double sample_ns = (double)longest(&times) / (double)calls * (double)cell->calls;
    cell->light = cell->compute == LINK_ALONE && sample_ns < 3.0 * (double)link->target_ns;
    return PKV_OK;
}

/* Compute that lasts half as long again as the copy. */
static enum pkv_status find_launches(struct link *link, struct link_cell *cell)
{
    const struct link_kernel *kernel = pkvi_link_beside(link, cell->compute);
    struct times times;
    uint64_t one_ns = 0;
    lay_spans(link, cell, cell->calls);
    PKV_TRY(run(link, cell, cell->calls, 0, &times));
    PKV_TRY(pkvi_link_time_launches(link, kernel, 1, &one_ns));
    PKV_TRY(pkvi_link_time_launches(link, kernel, 1, &one_ns));
    uint64_t launches = (3 * longest(&times) / 2 + one_ns) / (one_ns > 0 ? one_ns : 1);
    cell->launches = launches < 4096 ? (uint32_t)launches : 4096;
    return PKV_OK;
}

enum pkv_status pkvi_link_copy_first(struct link *link, struct link_cell *cell)
{
    PKV_TRY(verify(link, cell));
    if (cell->measure != LINK_COPY) {
        return PKV_OK;
    }
    PKV_TRY(find_calls(link, cell));
    return cell->compute != LINK_ALONE ? find_launches(link, cell) : PKV_OK;
}

/* ---- the others ---- */

static enum pkv_status warm_up(struct link *link, struct link_cell *cell)
{
    struct times times;
    uint32_t calls = cell->calls / WARM_SHARE;
    if (cell->calls == cell->streams) {
        return PKV_OK; /* large: warm after its first per cent */
    }
    calls = calls > cell->streams ? calls : cell->streams;
    lay_spans(link, cell, calls);
    return run(link, cell, calls, 0, &times);
}

static double part_of_one(double speed)
{
    return speed > 1 ? 1 : speed > 0.01 ? speed : 0.01;
}

/* Each loses what it takes longer while both run: until the end of the shorter. */
static void set_speeds(const struct link_cell *cell, uint32_t i, const struct times *alone,
                       const struct times *both, double compute_ns)
{
    const double copy_ns = (double)longest(both), kernel_ns = (double)both->compute_ns;
    const double together_ns = copy_ns < kernel_ns ? copy_ns : kernel_ns;
    cell->speeds[0][i] = part_of_one(1 - (kernel_ns - compute_ns) / together_ns);
    cell->speeds[1][i] = part_of_one(1 - (copy_ns - (double)longest(alone)) / together_ns);
}

static enum pkv_status take_sample(struct link *link, struct link_cell *cell)
{
    struct times alone = {.compute_ns = 0}, times;
    uint64_t compute_ns = 0;
    PKV_TRY(warm_up(link, cell));
    if (cell->compute != LINK_ALONE) {
        lay_spans(link, cell, cell->calls);
        PKV_TRY(run(link, cell, cell->calls, 0, &alone));
        PKV_TRY(pkvi_link_time_launches(link, pkvi_link_beside(link, cell->compute), cell->launches,
                                        &compute_ns));
    }
    lay_spans(link, cell, cell->calls);
    PKV_TRY(run(link, cell, cell->calls, cell->launches, &times));
    double bytes = (double)cell->calls * (double)cell->pieces * (double)cell->piece_bytes;
    uint32_t i = cell->sample_count++;
    if (cell->direction == LINK_BOTH) {
        cell->load[i] = bytes / (double)(times.ns[0] > 0 ? times.ns[0] : 1);
        cell->store[i] = bytes / (double)(times.ns[1] > 0 ? times.ns[1] : 1);
        bytes *= 2;
    }
    cell->samples[i] = bytes / (double)longest(&times);
    if (cell->overlap) {
        double copy = (double)longest(&alone), compute = (double)compute_ns;
        double both =
            (double)(times.compute_ns > longest(&times) ? times.compute_ns : longest(&times));
        cell->overlap[i] = (copy + compute - both) / (copy < compute ? copy : compute);
        set_speeds(cell, i, &alone, &times, compute);
    }
    return PKV_OK;
}

static enum pkv_status time_calls(struct link *link, struct link_cell *cell)
{
    uint32_t d = (uint32_t)cell->direction;
    struct pkv_stream *stream = link->lanes[d].stream[0];
    for (uint32_t i = 0; i < LINK_BURST; i++) {
        lay_spans(link, cell, 1);
        uint64_t begin_ns = pkvi_clock_ns();
        PKV_TRY(pkvi_copy_async(stream, link->lanes[d].spans, cell->pieces));
        uint64_t called_ns = pkvi_clock_ns();
        PKV_TRY(pkvi_event_record(link->done, stream));
        PKV_TRY(pkvi_event_sync(link->done));
        uint64_t end_ns = cell->measure == LINK_COPY_CALL ? called_ns : pkvi_clock_ns();
        cell->samples[cell->sample_count++] = (double)(end_ns - begin_ns) * 1e-3;
    }
    return PKV_OK;
}

/* Copies and kernels that wait for each other, and the same without any waits: a hop is half of
 * what a pair takes longer. */
static enum pkv_status time_waits(struct link *link, struct link_cell *cell)
{
    struct pkv_stream *copies = link->lanes[0].stream[0];
    uint64_t ns[2] = {0}, launch_ns = 0;
    PKV_TRY(pkvi_link_time_launches(link, &link->nothing, WAITS, &launch_ns));
    for (int waits = 0; waits < 2; waits++) {
        lay_spans(link, cell, WAITS);
        PKV_TRY(pkvi_event_record(link->begin, copies));
        for (uint32_t i = 0; i < WAITS; i++) {
            PKV_TRY(pkvi_copy_async(copies, &link->lanes[0].spans[i], 1));
            if (waits) {
                PKV_TRY(pkvi_event_record(link->done, copies));
                PKV_TRY(pkvi_event_wait(link->compute, link->done));
                PKV_TRY(pkvi_link_launch(link, &link->nothing, 1));
                PKV_TRY(pkvi_event_record(link->compute_end, link->compute));
                PKV_TRY(pkvi_event_wait(copies, link->compute_end));
            }
        }
        PKV_TRY(pkvi_event_record(link->lanes[0].end[0], copies));
        PKV_TRY(pkvi_event_sync(link->lanes[0].end[0]));
        PKV_TRY(pkvi_event_elapsed(link->begin, link->lanes[0].end[0], &ns[waits]));
    }
    const double hops_ns = (double)ns[1] - (double)ns[0] - (double)launch_ns;
    cell->samples[cell->sample_count++] = hops_ns > 0 ? hops_ns * 1e-3 / (2 * WAITS) : 0;
    return PKV_OK;
}

enum pkv_status pkvi_link_copy_visit(struct link *link, struct link_cell *cell)
{
    if (cell->measure == LINK_COPY_WAIT) {
        return time_waits(link, cell);
    }
    return cell->measure == LINK_COPY ? take_sample(link, cell) : time_calls(link, cell);
}

/* ---- life ---- */

enum pkv_status pkvi_link_copy_open(struct link *link)
{
    static const enum pkv_stream_kind kinds[] = {PKV_LOAD, PKV_STORE};
    uint32_t most = 1;
    for (uint32_t i = 0; i < link->options.streams.count; i++) {
        uint32_t streams = (uint32_t)link->options.streams.value[i];
        most = streams > most ? streams : most;
    }
    PKV_TRY(pkvi_event_open(link->device, true, &link->begin));
    PKV_TRY(pkvi_event_open(link->device, false, &link->done));
    for (uint32_t d = 0; d < 2; d++) {
        struct link_lanes *lanes = &link->lanes[d];
        lanes->spans = calloc(LINK_SPANS_MOST, sizeof *lanes->spans);
        if (!lanes->spans) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for %u spans", LINK_SPANS_MOST);
        }
        for (uint32_t s = 0; s < most; s++) {
            PKV_TRY(pkvi_stream_open(link->device, kinds[d], NULL, &lanes->stream[s]));
            PKV_TRY(pkvi_event_open(link->device, true, &lanes->end[s]));
        }
    }
    return PKV_OK;
}

void pkvi_link_copy_close(struct link *link)
{
    for (uint32_t d = 0; d < 2; d++) {
        for (uint32_t s = 0; s < LINK_STREAMS_MOST; s++) {
            pkvi_stream_close(link->lanes[d].stream[s]);
            pkvi_event_close(link->lanes[d].end[s]);
        }
        free(link->lanes[d].spans);
    }
    pkvi_event_close(link->begin);
    pkvi_event_close(link->done);
}
