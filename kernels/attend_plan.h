/* attend_plan.h: the scratch memory of attention. */
#ifndef PKV_ATTEND_PLAN_H
#define PKV_ATTEND_PLAN_H

#include "kernels/kernels.h"

/* Scratch that one worker needs, whatever the variant; a multiple of 64. */
uint64_t pkvi_attend_worker_bytes(uint32_t group, uint32_t head_dim);

#endif
