/* pivotkv.h: everything a user of libpivotkv includes. */
#ifndef PIVOTKV_PIVOTKV_H
#define PIVOTKV_PIVOTKV_H

#include "pivotkv/calibration.h"
#include "pivotkv/device.h"
#include "pivotkv/log.h"
#include "pivotkv/model.h"
#include "pivotkv/policy.h"
#include "pivotkv/sampler.h"
#include "pivotkv/saved.h"
#include "pivotkv/session.h"
#include "pivotkv/status.h"
#include "pivotkv/text.h"
#include "pivotkv/tier.h"
#include "pivotkv/types.h"
#include "pivotkv/version.h"

#endif
