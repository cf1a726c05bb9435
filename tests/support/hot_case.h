/* hot_case.h: a hot set made of some entries of a sequence of a kv_case, for tests. */
#ifndef PKV_HOT_CASE_H
#define PKV_HOT_CASE_H

#include "tests/support/kv_case.h"

struct pkvt_hot_case {
    const struct pkvt_kv_case *from;
    uint32_t sequence;
    uint32_t slots;        /* a multiple of PKV_PAGE_TOKENS */
    uint32_t end;          /* first token of the ring, likewise */
    uint32_t first_key[9]; /* of each KV head; pages before it are not there */
    /* filled in: */
    struct pkv_kv_view *view; /* [1], its ring: the sequence's own pages */
    int32_t *token;           /* [kv_heads][slots], -1 before first_key */
    uint32_t keys;            /* slots, and the ring's tokens */
    uint8_t *pages;
    pkv_addr *page;
    uint32_t *first;
    float *score; /* [kv_heads][keys + 3], random */
};

/* Ascending random tokens in the slots, their entries copied; empty: none, entries read as NaN. */
void pkvt_hot_case_open(struct pkvt_hot_case *hot, uint64_t seed, bool empty);
void pkvt_hot_case_close(struct pkvt_hot_case *hot);

/* The token of a key of a KV head. */
uint32_t pkvt_hot_case_token(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t key);

/* Does the key's slot hold exactly the entry of this token? */
bool pkvt_hot_case_holds(const struct pkvt_hot_case *hot, uint32_t kv_head, uint32_t key,
                         uint32_t token);

#endif
