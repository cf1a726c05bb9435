/*
 * cost.h: what one launch of an operation costs, the same for every CPU variant. Upper bounds:
 * arithmetic, and each byte of device memory that is read or written, counted once.
 */
#ifndef PKV_COST_H
#define PKV_COST_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void pkvi_cost_norm(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_glu(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_rope_table(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_rope(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_append(const void *args, struct pkv_cost *cost_out);
/* Reads the spans: they must be host memory, never a GPU's (device_ops.h, cost). */
void pkvi_cost_attend(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_softcap(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_topk(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_score(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_place(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_compete(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_keep(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_gather(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_thin(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_index(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_predict(const void *args, struct pkv_cost *cost_out);
void pkvi_cost_recall(const void *args, struct pkv_cost *cost_out);

#ifdef __cplusplus
}
#endif

#endif
