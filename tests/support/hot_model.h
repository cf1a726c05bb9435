/*
 * hot_model.h: a naive tier with hot sets: K and V of every token, in double what each row attends
 * to, what scores come to, what a slot may hold. Knows recipes by their words (policy_ops.h), not
 * how the tier goes about them.
 */
#ifndef PKV_HOT_MODEL_H
#define PKV_HOT_MODEL_H

#include "kernels/kernels.h"
#include "pivotkv/impl/policy_ops.h"
#include "pivotkv/model.h"
#include "tests/support/pkv_test.h"

enum {
    PKVT_HOT_LAYERS = 4,
    PKVT_HOT_HEADS = 4, /* KV heads */
    PKVT_HOT_CONTEXT = 640,
    PKVT_HOT_COLS = 128,   /* of q */
    PKVT_HOT_KV_COLS = 64, /* of k */
};

/* Where a failure is. */
extern struct pkvt_hot_at {
    uint64_t seed;
    uint32_t operation, seq, layer, head;
    const char *what;
} pkvt_hot_at;

#define PKVT_HOT_CHECK(condition, ...)                                                             \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            pkvt_hot_where();                                                                      \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)
void pkvt_hot_where(void);

struct pkvt_hot_shape {
    struct pkv_layer_info layer[PKVT_HOT_LAYERS];
    uint32_t layers;
    enum pkv_kv_type kv_type;
    float scale, softcap;
    struct pkv_recipe recipe;
};

/* What the device has of one KV head of a sequence in a layer. */
struct pkvt_hot_set {
    uint32_t slots, first;           /* keys [first, slots) are there */
    uint32_t ring_first, ring_end;   /* pages */
    int32_t token[PKVT_HOT_CONTEXT]; /* [slots] */
    float score[2 * PKVT_HOT_CONTEXT];
};

struct pkvt_hot_seq {
    bool open, parked, was_hot;
    bool placed; /* its hot set is up to date */
    uint32_t tokens, high;
    float k[PKVT_HOT_LAYERS][PKVT_HOT_CONTEXT][PKVT_HOT_KV_COLS]; /* as kept */
    float v[PKVT_HOT_LAYERS][PKVT_HOT_CONTEXT][PKVT_HOT_KV_COLS];
    double key[PKVT_HOT_LAYERS][PKVT_HOT_HEADS][PKVT_HOT_CONTEXT]; /* by token */
    double sum[PKVT_HOT_LAYERS][PKVT_HOT_HEADS][PKVT_HOT_CONTEXT]; /* scores so far */
    struct pkvt_hot_set set[PKVT_HOT_LAYERS][PKVT_HOT_HEADS];      /* after the last pass */
};

/* Rows of a pass in a layer. */
struct pkvt_hot_rows {
    uint32_t layer, first, rows; /* first: position */
    bool summing;                /* scores of the passes before it count too */
    const float *q, *k, *v, *out;
};

/* What of a layer's columns the model keeps, as its number format does. */
void pkvt_hot_keep(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                   const struct pkvt_hot_rows *rows);

/* Rows attended to everything. */
void pkvt_hot_check_all(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                        const struct pkvt_hot_rows *rows);
/* The same, and then `now` was filled, of `room` slots; picked: rows attended to that alone. */
void pkvt_hot_check_placed(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                           const struct pkvt_hot_rows *rows, uint32_t head, uint32_t room,
                           bool picked, const struct pkvt_hot_set *now);
/* Rows attended to `now`, which the set of the pass before became. keeps: what left the ring has
 * found free slots (KEEP). */
void pkvt_hot_check_step(const struct pkvt_hot_shape *shape, struct pkvt_hot_seq *seq,
                         const struct pkvt_hot_rows *rows, uint32_t head, uint32_t room, bool keeps,
                         const struct pkvt_hot_set *now);

#endif
