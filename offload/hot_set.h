/* hot_set.h: what hot_set.c (passes) and hot_move.c (parking, forks, files) share: where the parts
 * of a hot set lie. */
#ifndef PKV_OFFLOAD_HOT_SET_H
#define PKV_OFFLOAD_HOT_SET_H

#include "offload/tier_impl.h"

/* pkv_addr [pages by key][kv_heads] of a layer: slots, then the ring. */
static inline pkv_addr pkvi_hot_row(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    return t->hot_table + ((uint64_t)s * t->hot_entries + t->layer[l].hot_base) * sizeof(pkv_addr);
}

static inline uint32_t pkvi_hot_score_stride(const struct pkvi_tier *t, uint32_t l)
{
    return t->layer[l].hot_slots + t->tail_pages * PKV_PAGE_TOKENS;
}

/* f32 [kv_heads][score stride], of a sequence that is on the device */
static inline pkv_addr pkvi_hot_scores(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    return t->hot_state + t->seq[s].share * t->hot_state_bytes + t->layer[l].hot_state;
}

/* Where the tokens of a layer's slots stand, i32 [kv_heads][hot_slots], from the state's begin. */
static inline uint64_t pkvi_hot_tokens_at(const struct pkvi_tier *t, uint32_t l)
{
    return t->layer[l].hot_state +
           (uint64_t)t->layer[l].info.kv_heads * pkvi_hot_score_stride(t, l) * sizeof(float);
}

static inline pkv_addr pkvi_hot_slot_tokens(const struct pkvi_tier *t, uint32_t s, uint32_t l)
{
    return t->hot_state + t->seq[s].share * t->hot_state_bytes + pkvi_hot_tokens_at(t, l);
}

/* Pages of the slots, where there are none yet; and back. */
enum pkv_status pkvi_hot_take_slots(struct pkvi_tier *tier, uint32_t seq, uint32_t layer);
void pkvi_hot_release_slots(struct pkvi_tier *tier, uint32_t seq);
/* The ring's pages behind the slots, in the pinned twin, to upload where they are others now. */
void pkvi_hot_write_ring(struct pkvi_tier *tier, uint32_t seq, uint32_t layer, uint32_t end_page);
/* What a pass, or the ring's next page that leaves, reads of a sequence: pages by key, first keys;
 * and host blocks. */
enum pkv_status pkvi_hot_upload_tables(struct pkvi_copies *copies, uint32_t seq, bool blocks);

#endif
