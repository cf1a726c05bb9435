/* index.c: index pages of blocks that are full, plain reference. A unit is a block and a KV head.
 */
#include <math.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/kv_view.h"
#include "kernels/ref/kv.h"
#include "runtime/base/thread.h"

static const uint8_t *page_of(const struct pkv_args_index *args, uint32_t block, uint32_t head)
{
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    if (block >= args->from.first_page) {
        return pkvi_kv_entry(&args->from, head, block * PKV_PAGE_TOKENS - args->from.key_shift,
                             entry_bytes);
    }
    return PKV_AT(const uint8_t, PKV_AT(const pkv_addr, args->blocks)[block]) +
           (uint64_t)head * PKV_PAGE_TOKENS * entry_bytes;
}

static void put_code(const struct pkv_index *index, uint8_t *page, uint32_t token, uint32_t channel,
                     uint32_t code)
{
    if (index->bits == 8) {
        page[(channel / 4 * PKV_PAGE_TOKENS + token) * 4 + channel % 4] = (uint8_t)code;
        return;
    }
    uint8_t *byte = page + (channel / 8 * PKV_PAGE_TOKENS + token) * 4 + channel % 4;
    *byte = (uint8_t)(*byte | code << (channel % 8 / 4 * 4));
}

static void index_page(void *context, uint32_t unit, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_index *args = context;
    const struct pkv_index *index = &args->index;
    const uint32_t block = args->first_block + unit / args->kv_heads, head = unit % args->kv_heads;
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint32_t page_bytes = pkvi_index_page_bytes(index);
    const float half = index->bits == 8 ? 127.5f : 7.5f;
    const uint8_t *from = page_of(args, block, head);
    uint8_t *page =
        PKV_AT(uint8_t, args->pages) + ((uint64_t)block * args->kv_heads + head) * page_bytes;
    memset(page, 0, page_bytes);
    for (uint32_t c = 0; c < index->channels; c++) {
        const uint32_t at = head * index->channels + c;
        const uint32_t channel = PKV_AT(const uint16_t, index->channel)[at];
        const float mean = PKV_AT(const float, index->mean)[at];
        const float step = PKV_AT(const float, index->step)[at];
        for (uint32_t t = 0; t < PKV_PAGE_TOKENS; t++) {
            const float k = pkvi_ref_kv_load(args->kv_type, from + (uint64_t)t * entry_bytes,
                                             args->head_dim, channel);
            const float code = rintf((k - mean) / step + half);
            put_code(index, page, t, c, (uint32_t)fminf(fmaxf(code, 0.0f), 2.0f * half));
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

const struct pkv_kernel pkvi_kernel_index_scalar = {
    .op = PKV_OP_INDEX,
    .variant = "scalar",
    .caps = PKV_CAP_READS_HOST,
    .args_bytes = sizeof(struct pkv_args_index),
    .launch = launch,
    .cost = pkvi_cost_index,
};
