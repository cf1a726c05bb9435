/* doctor.h: what `pivotkv doctor` says, for any machine. */
#ifndef PKV_DEVICE_DOCTOR_H
#define PKV_DEVICE_DOCTOR_H

#include "pivotkv/device.h"

/*
 * pkv_doctor() with the machine as an argument: `root` is put before /proc and /sys paths,
 * `synthetic` is a topology as in topo.h; "" and NULL are this machine. `has_cuda`: the build has
 * the cuda device.
 */
enum pkv_status pkvi_doctor_text(const char *root, const char *synthetic, bool has_cuda, bool json,
                                 char **text_out);

#endif
