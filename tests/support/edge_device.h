/*
 * edge_device.h: the device that tests of edges between streams run on: here the cpu device, in
 * programs linked with tests/simt the cuda device over the fake runtime (tests/simt/cuda_device.c),
 * in those for a card the cuda device (tests/gpu/card_edges.c).
 */
#ifndef PKV_TEST_EDGE_DEVICE_H
#define PKV_TEST_EDGE_DEVICE_H

#include "pivotkv/impl/device_ops.h"

/* The config's schedule and seed hold. Its first and last are kinds of streams; of each there is
 * one, opened in the order COMPUTE, STORE, LOAD. */
enum pkv_status pkvt_edge_device_open(const struct pkv_device_config *config,
                                      struct pkv_device **device_out);

/* A kernel on struct pkvt_step (device_suite.h) for that device. */
const struct pkv_kernel *pkvt_edge_step(void);

/* Of so many seeds, those that are worth their time on this device. */
uint32_t pkvt_edge_seeds(uint32_t seeds);

/* Does the device obey the schedule, so that an edge that is missing must show? */
bool pkvt_edge_must_show(void);

#endif
