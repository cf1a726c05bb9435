/*
 * sim_cost.c: what a launch or a copy takes, from the profile. Knows nothing of queues and of what
 * runs beside it.
 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "runtime/device/dev_sim.h"

/* GB/s of pieces of so many bytes: between points along straight lines in the logarithms, beyond
 * the first and the last as there. */
static double curve_gbps(const struct pkvi_profile_curve *curve, double bytes)
{
    const struct pkvi_profile_point *point = curve->point;
    uint32_t above = 0;
    while (above < curve->count && (double)point[above].piece_bytes < bytes) {
        above++;
    }
    if (above == 0 || above == curve->count) {
        return point[above == 0 ? 0 : above - 1].gbps;
    }
    const double low = log((double)point[above - 1].piece_bytes);
    const double part = (log(bytes) - low) / (log((double)point[above].piece_bytes) - low);
    return exp(log(point[above - 1].gbps) * (1 - part) + log(point[above].gbps) * part);
}

/* Nanoseconds a byte at so many operations a byte: along straight lines between points, below the
 * first as there, above the last by its operations. */
static double byte_ns(const struct pkvi_profile_kernel *kernel, double flops_per_byte)
{
    const uint32_t last = kernel->count - 1;
    uint32_t above = 0;
    while (above < kernel->count && kernel->point[above].flops_per_byte < flops_per_byte) {
        above++;
    }
    if (above == 0) {
        return 1 / kernel->point[0].gbps;
    }
    if (above > last) {
        const double most = kernel->point[last].flops_per_byte;
        return 1 / kernel->point[last].gbps * (most > 0 ? flops_per_byte / most : 1);
    }
    const double low = kernel->point[above - 1].flops_per_byte;
    const double part = (flops_per_byte - low) / (kernel->point[above].flops_per_byte - low);
    return (1 - part) / kernel->point[above - 1].gbps + part / kernel->point[above].gbps;
}

static enum pkvi_profile_kind kind_of(const struct pkv_kernel *kernel, const void *args)
{
    if (kernel->op == PKV_OP_ATTEND) {
        return PKVI_PROFILE_ATTEND;
    }
    if (kernel->op != PKV_OP_LINEAR) {
        return PKVI_PROFILE_ROWS;
    }
    const struct pkv_args_linear *linear = args;
    switch (linear->part_count > 0 ? linear->part[0].w.type : PKV_W_F32) {
    case PKV_W_F32:
    case PKV_W_F16:
    case PKV_W_BF16:
        return PKVI_PROFILE_LINEAR_F32;
    case PKV_W_Q8_0:
    case PKV_W_Q6_K:
        return PKVI_PROFILE_LINEAR_Q8;
    default:
        return PKVI_PROFILE_LINEAR_Q4;
    }
}

static bool is_int8(const struct pkv_kernel *kernel, const void *args)
{
    if (kernel->op != PKV_OP_LINEAR) {
        return false;
    }
    const struct pkv_args_linear *linear = args;
    return linear->part_count > 0 && pkvi_weight_is_quantised(linear->part[0].w.type);
}

struct sim_work pkvi_sim_launch_work(const struct sim_device *device,
                                     const struct pkv_kernel *kernel, const void *args)
{
    const struct pkvi_profile *p = &device->profile;
    struct pkv_cost cost = {0};
    kernel->cost(args, &cost);
    const double gops = is_int8(kernel, args) ? p->int8_gops : p->f32_gops;
    const double local_ns = (double)cost.local_bytes / p->read_gbps;
    const double idle_us = p->launch_latency_us - p->launch_us;
    struct sim_work work = {.latency_ns = idle_us > 0 ? 1e3 * idle_us : 0,
                            .busy_ns = 1e3 * p->launch_us + fmax(local_ns, cost.flops / gops),
                            .both_share = 1};
    if (p->has_kernels) {
        const struct pkvi_profile_kernel *measured = &p->kernel[kind_of(kernel, args)];
        const double bytes = cost.local_bytes > 0 ? (double)cost.local_bytes : 1;
        work.busy_ns = 1e3 * measured->launch_us + bytes * byte_ns(measured, cost.flops / bytes);
    }
    return work;
}

/* The device's own link, and beside it where the config asks for one. */
static void add_link(const struct sim_device *device, struct sim_work *work, int direction,
                     uint64_t bytes, uint32_t spans)
{
    const struct pkvi_profile *p = &device->profile;
    const bool emulates = device->config.link_gbps > 0 || device->config.link_latency_us > 0;
    const double piece = (double)bytes / spans;
    const bool many = spans > 1;
    const struct pkvi_profile_curve *curve =
        many ? &p->link[direction].gather : &p->link[direction].contiguous;
    const double gbps = curve_gbps(curve, piece);
    work->copies[direction] = true;
    if (emulates) {
        work->link_bytes[direction] += (double)bytes;
        work->link_ns += 1e3 * device->config.link_latency_us * spans;
    }
    /* A core of the cpu device does the copy whatever link it emulates; elsewhere one link is all
     * there is. */
    if (!emulates || (device->is_cpu && !p->emulated)) {
        work->busy_ns += (double)bytes / gbps;
    }
    const struct pkvi_profile_curve *both =
        many ? &p->link[PKVI_PROFILE_BOTH].gather : &p->link[PKVI_PROFILE_BOTH].contiguous;
    const struct pkvi_profile_curve *other =
        many ? &p->link[!direction].gather : &p->link[!direction].contiguous;
    const double share = curve_gbps(both, piece) / (gbps + curve_gbps(other, piece));
    work->both_share = fmin(work->both_share, fmin(share, 1));
}

struct sim_work pkvi_sim_copy_work(const struct sim_device *device, const struct pkv_span *spans,
                                   uint32_t count)
{
    const struct pkvi_profile *p = &device->profile;
    struct sim_work work = {.both_share = 1};
    uint64_t bytes[2] = {0}, local_bytes = 0;
    uint32_t pieces[2] = {0};
    for (uint32_t i = 0; i < count; i++) {
        const bool from = pkvi_sim_is_device(device, spans[i].src);
        const bool to = pkvi_sim_is_device(device, spans[i].dst);
        if (from == to) {
            local_bytes += 2 * spans[i].bytes;
        } else if (spans[i].bytes > 0) {
            bytes[from] += spans[i].bytes;
            pieces[from]++;
        }
    }
    for (int direction = 0; direction < 2; direction++) {
        if (pieces[direction] > 0) {
            add_link(device, &work, direction, bytes[direction], pieces[direction]);
            const struct pkvi_profile_point *least = p->link[direction].contiguous.point;
            const double least_us = 1e-3 * (double)least->piece_bytes / least->gbps;
            const double idle_us = p->copy_latency_us[direction] - least_us;
            work.latency_ns = fmax(work.latency_ns, 1e3 * idle_us);
        }
    }
    work.busy_ns += (double)local_bytes / p->read_gbps;
    return work;
}
