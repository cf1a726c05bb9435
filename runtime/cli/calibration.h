/* calibration.h: what was measured about a model, kept between runs. docs/recall.md */
#ifndef PKV_CLI_CALIBRATION_H
#define PKV_CLI_CALIBRATION_H

#include "runtime/cli/engine.h"

/*
 * Where the calibration of the engine's model is kept: CACHE/calibration/IDENTITY.pkvcal; its
 * weights are loaded. NULL: nowhere, free() it.
 */
char *pkvi_cli_calibration_path(const struct pkvi_engine *engine,
                                const struct pkvi_engine_options *options);

/*
 * The calibration of the engine's model, whose weights are loaded: from the cache, else measured
 * now, which a note tells, and put there. What is wrong with the cache is one note more, and all
 * goes on without it. NULL: it cannot be measured; a note says why. Close it.
 */
struct pkv_calibration *pkvi_cli_calibration_get(const struct pkvi_engine *engine,
                                                 const struct pkvi_engine_options *options);

#endif
