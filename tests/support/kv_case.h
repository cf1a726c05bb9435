/* kv_case.h: sequences whose K and V lie scattered over pages, for tests of append and attend. */
#ifndef PKV_KV_CASE_H
#define PKV_KV_CASE_H

#include "tests/support/kernel_test.h"

struct pkvt_kv_case {
    enum pkv_kv_type type;
    uint32_t kv_heads, head_dim, sequences, ring_pages; /* ring_pages 0: nothing is reused */
    uint32_t tokens[8];                                 /* of each sequence */
    uint32_t stride;                                    /* floats of a row of k and v */
    float *k[8], *v[8];                                 /* f32 [tokens][stride], as appended */
    struct pkv_kv_view *views;                          /* [sequences] */
    uint8_t *pages[8];                                  /* storage of a sequence */
    pkv_addr *page[8];                                  /* its page table */
};

/*
 * Random K and V for every token of every sequence, appended by the scalar kernel. Set type,
 * kv_heads, head_dim, sequences, tokens and ring_pages before. What no token fills reads as NaN.
 */
void pkvt_kv_case_open(struct pkvt_kv_case *c, uint64_t seed);
void pkvt_kv_case_close(struct pkvt_kv_case *c);

/* What the pages hold for a token, decoded here: K (which = 0) or V (1), [head_dim]. */
void pkvt_kv_case_read(const struct pkvt_kv_case *c, uint32_t sequence, uint32_t kv_head,
                       uint32_t position, uint32_t which, double *out);

#endif
