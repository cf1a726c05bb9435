/*
 * ahead.h: fetching what is to be read next into the cache, bit by bit beside the arithmetic:
 * decode is bound by memory, and the hardware foresees neither the next page nor the turn from K
 * to V.
 */
#ifndef PKV_CPU_AHEAD_H
#define PKV_CPU_AHEAD_H

#include "kernels/cpu/isa.h"
#include "kernels/kv_view.h"

#define AHEAD_LINE_BYTES 64u

struct ahead {
    const struct pkv_kv_view *view;
    const struct pkv_kv_tile *tile; /* of the pages before the view's first */
    uint32_t kv_head, entry_bytes;
    uint32_t key, end;   /* keys left */
    const uint8_t *line; /* in the page at hand */
    uint32_t line_count; /* left in it */
};

/* The next `line_count` lines at most, all of one page, for the caller to fetch. */
struct ahead_lines {
    const uint8_t *line;
    uint32_t count;
};

PKV_INLINE struct ahead_lines ahead_take(struct ahead *ahead, uint32_t line_count)
{
    if (ahead->line_count == 0 && ahead->key < ahead->end) {
        ahead->line = pkvi_kv_entry_or_tile(ahead->view, ahead->tile, ahead->kv_head, ahead->key,
                                            ahead->entry_bytes);
        ahead->line_count = PKV_PAGE_TOKENS * ahead->entry_bytes / AHEAD_LINE_BYTES;
        ahead->key += PKV_PAGE_TOKENS;
    }
    uint32_t count = line_count < ahead->line_count ? line_count : ahead->line_count;
    struct ahead_lines taken = {ahead->line, count};
    ahead->line += count * AHEAD_LINE_BYTES;
    ahead->line_count -= count;
    return taken;
}

PKV_INLINE void ahead_fetch(const uint8_t *line)
{
    __builtin_prefetch(line, 0, 2);
}

/* All at once: where a step takes so long that a burst of them does not matter. */
PKV_INLINE void fetch_ahead(struct ahead *ahead, uint32_t line_count)
{
    while (line_count > 0) {
        struct ahead_lines lines = ahead_take(ahead, line_count);
        if (lines.count == 0) {
            return;
        }
        for (uint32_t i = 0; i < lines.count; i++) {
            ahead_fetch(lines.line + i * AHEAD_LINE_BYTES);
        }
        line_count -= lines.count;
    }
}

/* Lines of a split for each of `steps` steps. */
PKV_INLINE uint32_t ahead_lines(uint32_t entry_bytes, uint32_t steps)
{
    return (PKV_SPLIT_KEYS * entry_bytes / AHEAD_LINE_BYTES + steps - 1) / steps;
}

#endif
