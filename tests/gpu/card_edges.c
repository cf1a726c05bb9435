/*
 * card_edges.c: edges between streams on a real GPU (edge_device.h). It runs what it likes when it
 * likes: a schedule here is where kernels that only wait are put before copies and launches. In the
 * adversarial one every stream is slow but the one that shall run ahead. A GPU may hide that an
 * edge is missing, so nothing is claimed of that.
 */
#include <stdlib.h>

#include "runtime/device/device.h"
#include "tests/gpu/card.h"
#include "tests/support/edge_device.h"
#include "tests/support/pkv_test.h"

#define SLOW_US 30u

static struct pkv_device_ops ops; /* the cuda device's, with delays */
static struct {
    enum pkv_schedule schedule;
    uint32_t first;
    struct pkvt_rng rng;
} how;

static uint32_t delay_us(const struct pkv_stream *stream)
{
    switch (how.schedule) {
    case PKV_SCHEDULE_LAZY:
        return pkvt_rng_below(&how.rng, SLOW_US / 3);
    case PKV_SCHEDULE_RANDOM:
        return pkvt_rng_below(&how.rng, 4) == 0 ? pkvt_rng_below(&how.rng, 2 * SLOW_US) : 0;
    case PKV_SCHEDULE_ADVERSARIAL:
        return (uint32_t)stream->kind == how.first ? 0 : SLOW_US;
    default:
        return 0;
    }
}

static enum pkv_status hold(struct pkv_stream *stream)
{
    const struct pkvt_delay delay = {delay_us(stream)};
    return delay.us > 0 ? pkvi_cuda_device_ops.launch(stream, &pkvt_card_delay, &delay) : PKV_OK;
}

static enum pkv_status copy_late(struct pkv_stream *stream, const struct pkv_span *spans,
                                 uint32_t count)
{
    const enum pkv_status status = hold(stream);
    return status != PKV_OK ? status : pkvi_cuda_device_ops.copy_async(stream, spans, count);
}

static enum pkv_status launch_late(struct pkv_stream *stream, const struct pkv_kernel *kernel,
                                   const void *args)
{
    const enum pkv_status status = hold(stream);
    return status != PKV_OK ? status : pkvi_cuda_device_ops.launch(stream, kernel, args);
}

enum pkv_status pkvt_edge_device_open(const struct pkv_device_config *config,
                                      struct pkv_device **device_out)
{
    struct pkv_device_config small = *config;
    small.memory_bytes = (uint64_t)64 << 20;
    const enum pkv_status status = pkv_device_open("cuda", &small, device_out);
    if (status == PKV_ERR_UNSUPPORTED) {
        print_message("SKIP: %s\n", pkv_error_text());
        exit(77);
    }
    if (status != PKV_OK) {
        return status;
    }
    ops = pkvi_cuda_device_ops;
    ops.copy_async = copy_late;
    ops.launch = launch_late;
    how.schedule = config->schedule;
    how.first = config->schedule_first;
    how.rng.state = config->schedule_seed * 2654435761u + 1;
    (*device_out)->ops = &ops;
    return PKV_OK;
}

const struct pkv_kernel *pkvt_edge_step(void)
{
    return &pkvt_card_step;
}

/* PIVOTKV_TEST_SEEDS: fewer, to try the program itself. */
uint32_t pkvt_edge_seeds(uint32_t seeds)
{
    const char *wanted = getenv("PIVOTKV_TEST_SEEDS");
    const uint32_t most = wanted ? (uint32_t)strtoul(wanted, NULL, 10) : (seeds + 7) / 8;
    return most < seeds ? most : seeds;
}

bool pkvt_edge_must_show(void)
{
    return false;
}
