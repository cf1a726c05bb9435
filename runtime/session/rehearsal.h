/*
 * rehearsal.h: what a session whose policy recalls has beside the model's weights: of each layer
 * that is recalled the index's channels, means and steps, the mean step of the residual from the
 * layer before, and the rows of Wq that the index asks for. All of it follows from the model's
 * calibration.
 */
#ifndef PKV_SESSION_REHEARSAL_H
#define PKV_SESSION_REHEARSAL_H

#include "runtime/session/calibration.h"
#include "runtime/session/session.h"

/* Addresses from `base` on; the bytes of it all. */
uint64_t pkvi_rehearsal_lay_out(struct pkv_session *session, pkv_addr base);
/* Write what is there. Waits. */
enum pkv_status pkvi_rehearsal_fill(struct pkv_session *session,
                                    const struct pkv_calibration *calibration);

#endif
