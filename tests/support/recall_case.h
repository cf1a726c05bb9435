/*
 * recall_case.h: the memory of hot sets whose entries are recalled, for tests of PREDICT and
 * RECALL. What nobody fills, and what lies between the parts, is all ones.
 */
#ifndef PKV_RECALL_CASE_H
#define PKV_RECALL_CASE_H

#include "kernels/recall_plan.h"
#include "tests/support/kernel_test.h"

struct pkvt_recall_case {
    uint32_t views, heads, kv_heads, head_dim, score_stride, index_page_bytes;
    struct pkv_recall_state state; /* slots, blocks, cap; open() puts in where the parts are */
    /* filled in: */
    struct pkv_kv_view *view; /* [views]: their score */
    uint64_t view_bytes, bytes;
    uint8_t *memory, *before;
};

void pkvt_recall_case_open(struct pkvt_recall_case *c);
void pkvt_recall_case_close(struct pkvt_recall_case *c);

/* A part of a view's state (its score: part 0), as it is and as it should be. */
void *pkvt_recall_now(const struct pkvt_recall_case *c, uint32_t view, uint64_t part);
void *pkvt_recall_before(const struct pkvt_recall_case *c, uint32_t view, uint64_t part);

/* Makes `before` what is now, and back. */
void pkvt_recall_case_keep(struct pkvt_recall_case *c);
void pkvt_recall_case_restore(struct pkvt_recall_case *c);

/* Every byte is as in `before`. */
void pkvt_recall_case_assert_same(const struct pkvt_recall_case *c);

#endif
