/* link_profile.c: owns what of the link command's medians goes into a profile. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/link.h"
#include "runtime/base/host.h"

#define BESIDE_BYTES ((uint64_t)1 << 20)

static double median_of(const struct link_cell *cell)
{
    return cell ? pkvi_link_median(cell->samples, cell->sample_count) : NAN;
}

static void fill_curve(const struct link *link, struct link_cell like,
                       struct pkvi_profile_curve *curve)
{
    for (uint32_t i = 0; i < link->cell_count && curve->count < PKVI_PROFILE_POINTS; i++) {
        like.piece_bytes = link->cells[i].piece_bytes;
        const struct link_cell *cell = pkvi_link_find(link, like);
        if (cell == &link->cells[i]) {
            curve->point[curve->count++] =
                (struct pkvi_profile_point){cell->piece_bytes, median_of(cell)};
        }
    }
}

/* What each kind of kernel reaches: a launch with next to no work first, then its points. */
static void fill_kernels(const struct link *link, struct pkvi_profile *profile)
{
    profile->has_kernels = true;
    profile->wait_us = median_of(pkvi_link_find_measure(link, LINK_COPY_WAIT));
    for (uint32_t i = 0; i < link->cell_count; i++) {
        const struct link_cell *cell = &link->cells[i];
        if (cell->measure != LINK_KERNEL) {
            continue;
        }
        const struct link_work *work = &link->works[cell->work];
        struct pkvi_profile_kernel *kernel = &profile->kernel[work->kind];
        const double bytes = (double)work->kernel.cost.local_bytes, us = median_of(cell);
        if (strcmp(work->shape, "launch") == 0) {
            kernel->launch_us = us;
            continue;
        }
        const double work_us = us - kernel->launch_us;
        kernel->point[kernel->count].flops_per_byte = work->kernel.cost.flops / bytes;
        kernel->point[kernel->count].gbps = 1e-3 * bytes / (work_us > us / 2 ? work_us : us / 2);
        kernel->count++;
    }
}

/* A copy of about 1 MiB beside a kernel that reads, if that was measured. */
static void fill_beside(const struct link *link, struct pkvi_profile *profile)
{
    const struct link_cell *found = NULL;
    for (uint32_t i = 0; i < link->cell_count; i++) {
        const struct link_cell *cell = &link->cells[i];
        if (cell->measure == LINK_COPY && cell->compute == LINK_READ &&
            cell->direction == LINK_LOAD && cell->pattern == LINK_CONTIGUOUS &&
            cell->memory == LINK_PINNED && cell->piece_bytes <= BESIDE_BYTES) {
            found = cell; /* sizes ascend */
        }
    }
    if (found) {
        profile->beside_kernel = pkvi_link_median(found->speeds[0], found->sample_count);
        profile->beside_copy = pkvi_link_median(found->speeds[1], found->sample_count);
    }
}

enum pkv_status pkvi_link_profile(const struct link *link, const char *path)
{
    const struct pkvi_ints *pieces = &link->options.pieces;
    struct pkvi_host host;
    pkvi_host_query("", &host);
    struct pkvi_profile profile = {
        .threads = link->info.threads,
        .cached = link->cached,
        .emulated = link->options.link_gbps > 0 || link->options.link_latency_us > 0,
        .read_gbps = median_of(pkvi_link_find_measure(link, LINK_LOCAL_READ)),
        .int8_gops = median_of(pkvi_link_find_measure(link, LINK_LOCAL_INT8)),
        .f32_gops = median_of(pkvi_link_find_measure(link, LINK_LOCAL_F32)),
        .launch_us = median_of(pkvi_link_find_measure(link, LINK_LAUNCH)),
        .launch_call_us = median_of(pkvi_link_find_measure(link, LINK_LAUNCH_CALL)),
        .launch_latency_us = median_of(pkvi_link_find_measure(link, LINK_LAUNCH_LATENCY)),
        .copy_call_us = median_of(pkvi_link_find_measure(link, LINK_COPY_CALL))};
    snprintf(profile.machine, sizeof profile.machine, "%s", host.cpu_model);
    snprintf(profile.device, sizeof profile.device, "%s", link->info.name);
    snprintf(profile.variant, sizeof profile.variant, "%s", link->info.variant);
    for (int direction = 0; direction < LINK_DIRECTIONS; direction++) {
        struct link_cell like = {.direction = (enum link_direction)direction,
                                 .memory = LINK_PINNED};
        fill_curve(link, like, &profile.link[direction].contiguous);
        if (direction < LINK_BOTH) {
            like.measure = LINK_COPY_LATENCY;
            profile.copy_latency_us[direction] = median_of(pkvi_link_find(link, like));
        }
        like.measure = LINK_COPY;
        like.pattern = LINK_GATHER;
        like.pieces = (uint32_t)pieces->value[pieces->count - 1];
        fill_curve(link, like, &profile.link[direction].gather);
    }
    fill_kernels(link, &profile);
    fill_beside(link, &profile);
    return pkvi_profile_write(path, &profile);
}
