/*
 * index.c: index pages of blocks that are full. K goes 16 tokens at a time into a panel whose lanes
 * are tokens; codes are whole floats until four bytes of a token meet. A unit is a block and a KV
 * head.
 */
#include <string.h>

#include "kernels/cost.h"
#include "kernels/cpu/kv_panel.h"
#include "kernels/kv_view.h"
#include "runtime/base/thread.h"

#define PANEL_CHANNELS 512u /* of a head: no model that is loaded has more */

/* One KV head's part of a launch, and a page of it. */
struct page {
    const uint8_t *from; /* entries */
    uint8_t *to;
    const uint16_t *channel; /* [channels] */
    const float *mean, *step;
};

static struct page page_of(const struct pkv_args_index *args, uint32_t unit)
{
    const uint32_t block = args->first_block + unit / args->kv_heads, head = unit % args->kv_heads;
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint64_t at = (uint64_t)head * args->index.channels;
    struct page page = {
        .to = PKV_AT(uint8_t, args->pages) +
              ((uint64_t)block * args->kv_heads + head) * pkvi_index_page_bytes(&args->index),
        .channel = PKV_AT(const uint16_t, args->index.channel) + at,
        .mean = PKV_AT(const float, args->index.mean) + at,
        .step = PKV_AT(const float, args->index.step) + at,
    };
    if (block >= args->from.first_page) {
        page.from = pkvi_kv_entry(&args->from, head, block * PKV_PAGE_TOKENS - args->from.key_shift,
                                  entry_bytes);
    } else {
        page.from = PKV_AT(const uint8_t, PKV_AT(const pkv_addr, args->blocks)[block]) +
                    (uint64_t)head * PKV_PAGE_TOKENS * entry_bytes;
    }
    return page;
}

/* Codes of channel i of 16 tokens, whole numbers. Adding 1.5 * 2^23 rounds to the nearest even. */
PKV_INLINE struct v16 codes_of(const struct page *page, const float *panel, uint32_t i, float half)
{
    const struct v16 shift = v16_set1(0x1.8p23f), zero = v16_set1(0.0f);
    struct v16 x = v16_sub(v16_load(panel + page->channel[i] * V16_LANES), v16_set1(page->mean[i]));
    x = v16_add(v16_div(x, v16_set1(page->step[i])), v16_set1(half));
    x = v16_min(v16_max(x, zero), v16_set1(2 * half));
    return v16_sub(v16_add(x, shift), shift);
}

/* Byte b of a group: one channel, or two. */
PKV_INLINE struct v16 byte_of(const uint32_t bits, const struct page *page, const float *panel,
                              uint32_t group, uint32_t b)
{
    if (bits == 8) {
        return codes_of(page, panel, 4 * group + b, 127.5f);
    }
    const struct v16 low = codes_of(page, panel, 8 * group + b, 7.5f);
    const struct v16 high = codes_of(page, panel, 8 * group + 4 + b, 7.5f);
    return v16_fma(high, v16_set1(16.0f), low);
}

/* Two bytes as a number below 2^16, in the low bits of a float of 2^23 and more. */
PKV_INLINE struct v16 pair_of(struct v16 low, struct v16 high)
{
    return v16_add(v16_fma(high, v16_set1(256.0f), low), v16_set1(0x1p23f));
}

/* 16 tokens' words of every group. */
PKV_INLINE void put_codes(const uint32_t bits, const struct page *page, const float *panel,
                          uint32_t groups, uint8_t *to)
{
    for (uint32_t g = 0; g < groups; g++) {
        struct v16 byte[4];
        for (uint32_t b = 0; b < 4; b++) {
            byte[b] = byte_of(bits, page, panel, g, b);
        }
        float pair[2][V16_LANES];
        v16_store(pair[0], pair_of(byte[0], byte[1]));
        v16_store(pair[1], pair_of(byte[2], byte[3]));
        uint32_t low[V16_LANES], high[V16_LANES];
        memcpy(low, pair[0], sizeof low);
        memcpy(high, pair[1], sizeof high);
        for (uint32_t t = 0; t < V16_LANES; t++) {
            low[t] = (low[t] & 0xffffu) | high[t] << 16;
        }
        memcpy(to + (uint64_t)g * PKV_PAGE_TOKENS * 4, low, sizeof low);
    }
}

static void index_page(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_index *args = context;
    const struct page page = page_of(args, unit);
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    float panel[PANEL_CHANNELS * V16_LANES];
    for (uint32_t t = 0; t < PKV_PAGE_TOKENS; t += V16_LANES) {
        kv_keys(args->kv_type, page.from + (uint64_t)t * entry_bytes, entry_bytes, args->head_dim,
                panel);
        if (args->index.bits == 8) {
            put_codes(8, &page, panel, args->index.channels / 4, page.to + 4 * t);
        } else {
            put_codes(4, &page, panel, args->index.channels / 8, page.to + 4 * t);
        }
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_index index = *(const struct pkv_args_index *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, index_page, &index,
                  (index.end_block - index.first_block) * index.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel PKV_ISA_NAME(pkvi_kernel_index) = {
    .op = PKV_OP_INDEX,
    .variant = PKV_ISA_TEXT,
    .caps = PKV_CAP_READS_HOST,
    .args_bytes = sizeof(struct pkv_args_index),
    .launch = launch,
    .cost = pkvi_cost_index,
};
