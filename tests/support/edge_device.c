/* edge_device.c: edges on the cpu device. */
#include "tests/support/edge_device.h"

#include "tests/support/device_suite.h"

enum pkv_status pkvt_edge_device_open(const struct pkv_device_config *config,
                                      struct pkv_device **device_out)
{
    return pkv_device_open("cpu", config, device_out);
}

const struct pkv_kernel *pkvt_edge_step(void)
{
    return &pkvt_cpu_step;
}

uint32_t pkvt_edge_seeds(uint32_t seeds)
{
    return seeds;
}

bool pkvt_edge_must_show(void)
{
    return true;
}
