/* device_suite.h: what every device must do, whatever it is made of. */
#ifndef PKV_TEST_DEVICE_SUITE_H
#define PKV_TEST_DEVICE_SUITE_H

#include "pivotkv/impl/device_ops.h"

/* A way to make devices of one sort, and a kernel that they can run. */
struct pkvt_device_factory {
    const char *name;
    void *context;
    /* NULL config: defaults. */
    enum pkv_status (*open)(void *context, const struct pkv_device_config *config,
                            struct pkv_device **device_out);
    void (*close)(void *context, struct pkv_device *device);
    const struct pkv_kernel *step; /* struct pkvt_step */
};

/* x = x * 3 + value, after delay_us; fails with PKV_ERR_CORRUPT, "step refused", where fail is set.
 */
struct pkvt_step {
    pkv_addr x; /* u64 */
    uint64_t value;
    uint32_t delay_us, fail;
};
extern const struct pkv_kernel pkvt_cpu_step; /* for the cpu device and what wraps it */

/* Runs all checks; fails the running test at the first that does not hold. */
void pkvt_device_suite(const struct pkvt_device_factory *factory);

#endif
