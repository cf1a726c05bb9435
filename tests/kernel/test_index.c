/*
 * INDEX: pages bit for bit as the layout says, of every number format of K, from device pages, hot
 * views with a shift and a ring, and host blocks; what lies around the pages stays.
 */
#include "tests/support/kv_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 9u /* of the sequence */

struct shape {
    enum pkv_kv_type type;
    uint32_t kv_heads, head_dim, channels, bits;
    uint32_t first_block, end_block, host_blocks;
    uint32_t shift_pages, ring_pages; /* of a hot view; ring_pages 0: nothing is reused */
    bool ties;                        /* mean 0, a step that codes fall between */
};

struct index_case {
    struct pkvt_kv_case kv;
    uint8_t *host, *pages;
    pkv_addr *block, *ring;
    uint16_t *channel;
    float *mean, *step;
    uint64_t page_bytes, pages_bytes;
    struct pkv_args_index args;
};

static pkv_addr page_at(const struct index_case *c, uint32_t block, uint32_t head)
{
    const struct pkv_kv_view *view = c->kv.views;
    return c->kv.page[0][block * view->page_stride + head * view->head_stride];
}

/* Blocks [0, host_blocks) as the host has them. */
static void move_to_host(struct index_case *c, const struct shape *s)
{
    const uint64_t bytes = (uint64_t)PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(s->type, s->head_dim);
    c->host = pkvt_alloc((uint64_t)BLOCKS * s->kv_heads * bytes);
    c->block = pkvt_alloc(BLOCKS * sizeof *c->block);
    for (uint32_t b = 0; b < s->host_blocks; b++) {
        c->block[b] = pkvi_addr(c->host + (uint64_t)b * s->kv_heads * bytes);
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            memcpy(PKV_AT(uint8_t, c->block[b]) + h * bytes, PKV_AT(uint8_t, page_at(c, b, h)),
                   bytes);
        }
    }
    c->args.blocks = pkvi_addr(c->block);
    c->args.from.first_page = s->host_blocks;
}

/* The other pages: that of block b is (b - shift_pages) mod ring_pages. Nobody may read others. */
static void shift_view(struct index_case *c, const struct shape *s)
{
    const uint32_t ring_pages = s->ring_pages > 0 ? s->ring_pages : BLOCKS;
    c->ring = pkvt_alloc(ring_pages * s->kv_heads * sizeof *c->ring);
    for (uint32_t b = s->first_block; b < s->end_block; b++) {
        for (uint32_t h = 0; h < s->kv_heads && b >= s->host_blocks; h++) {
            c->ring[(b - s->shift_pages) % ring_pages * s->kv_heads + h] = page_at(c, b, h);
        }
    }
    c->args.from.page = pkvi_addr(c->ring);
    c->args.from.head_stride = 1;
    c->args.from.page_stride = s->kv_heads;
    c->args.from.ring_pages = ring_pages;
    c->args.from.key_shift = s->shift_pages * PKV_PAGE_TOKENS;
}

static void case_open(struct index_case *c, const struct shape *s)
{
    struct pkvt_rng rng = {s->head_dim + s->channels};
    *c = (struct index_case){.kv = {.type = s->type,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .sequences = 1,
                                    .tokens = {BLOCKS * PKV_PAGE_TOKENS}}};
    pkvt_kv_case_open(&c->kv, 5);
    const uint32_t count = s->kv_heads * s->channels;
    c->channel = pkvt_alloc(count * sizeof *c->channel);
    c->mean = pkvt_normal(&rng, count, 0.5f);
    c->step = pkvt_alloc(count * sizeof *c->step);
    for (uint32_t i = 0; i < count; i++) {
        c->channel[i] = (uint16_t)pkvt_rng_below(&rng, s->head_dim);
        /* a few much too small: codes at either end */
        const float width = i % 5 == 0 ? 0.5f : pkvt_rng_uniform(&rng, 4.0f, 8.0f);
        c->step[i] = s->ties ? 0.125f : width / (float)((1u << s->bits) - 1);
        c->mean[i] = s->ties ? 0.0f : c->mean[i];
    }
    c->args = (struct pkv_args_index){.from = c->kv.views[0],
                                      .index = {.channel = pkvi_addr(c->channel),
                                                .mean = pkvi_addr(c->mean),
                                                .step = pkvi_addr(c->step),
                                                .channels = s->channels,
                                                .bits = s->bits},
                                      .kv_type = s->type,
                                      .kv_heads = s->kv_heads,
                                      .head_dim = s->head_dim,
                                      .first_block = s->first_block,
                                      .end_block = s->end_block};
    c->page_bytes = 32 * s->channels * s->bits / 8;
    assert_int_equal(c->page_bytes, pkvi_index_page_bytes(&c->args.index));
    c->pages_bytes = BLOCKS * s->kv_heads * c->page_bytes;
    c->pages = pkvt_alloc(c->pages_bytes);
    c->args.pages = pkvi_addr(c->pages);
    move_to_host(c, s);
    shift_view(c, s);
}

static void case_close(struct index_case *c)
{
    void *all[] = {c->host, c->pages, c->block, c->ring, c->channel, c->mean, c->step};
    for (uint32_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    pkvt_kv_case_close(&c->kv);
}

/* The page of a block and head, byte by byte from the words of kernels.h. */
static void want_page(const struct index_case *c, uint32_t block, uint32_t head, uint8_t *page)
{
    const struct pkv_index *index = &c->args.index;
    const float half = index->bits == 8 ? 127.5f : 7.5f;
    double k[256];
    memset(page, 0, c->page_bytes);
    for (uint32_t t = 0; t < 32; t++) {
        pkvt_kv_case_read(&c->kv, 0, head, 32 * block + t, 0, k);
        for (uint32_t i = 0; i < index->channels; i++) {
            const uint32_t at = head * index->channels + i;
            const float centred = (float)k[c->channel[at]] - c->mean[at];
            const float scaled = centred / c->step[at];
            const float code = fminf(fmaxf(rintf(scaled + half), 0.0f), 2 * half);
            if (index->bits == 8) {
                page[i / 4 * 128 + 4 * t + i % 4] = (uint8_t)code;
            } else {
                page[i / 8 * 128 + 4 * t + i % 4] |= (uint8_t)((uint32_t)code << (i % 8 / 4 * 4));
            }
        }
    }
}

static void check(const struct index_case *c, const struct shape *s)
{
    uint8_t page[32 * PKV_INDEX_CHANNELS];
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            if (b >= s->first_block && b < s->end_block) {
                want_page(c, b, h, page);
            } else {
                memset(page, 0xff, c->page_bytes);
            }
            const uint8_t *got = c->pages + (b * s->kv_heads + h) * c->page_bytes;
            for (uint32_t i = 0; i < c->page_bytes; i++) {
                if (got[i] != page[i]) {
                    fail_msg("block %u head %u byte %u is %02x, want %02x", b, h, i, got[i],
                             page[i]);
                }
            }
        }
    }
}

static const struct shape shapes[] = {
    {PKV_KV_F16, 3, 64, 32, 4, 0, 9, 0, 0, 0, false},
    {PKV_KV_F16, 3, 64, 32, 8, 2, 7, 0, 0, 0, false},
    {PKV_KV_F16, 2, 64, 64, 4, 0, 9, 5, 0, 0, false},
    {PKV_KV_F16, 3, 128, 96, 4, 3, 9, 6, 2, 3, false},
    {PKV_KV_F16, 1, 256, 256, 8, 4, 9, 0, 4, 5, false},
    {PKV_KV_F16, 1, 64, 8, 4, 8, 9, 9, 0, 0, false},
    {PKV_KV_F16, 2, 64, 24, 4, 5, 5, 0, 0, 0, false},
    {PKV_KV_BF16, 2, 80, 40, 4, 1, 8, 1, 0, 0, false},
    {PKV_KV_BF16, 2, 128, 128, 4, 0, 9, 0, 0, 0, true},
    {PKV_KV_BF16, 2, 256, 128, 8, 7, 9, 0, 7, 2, true},
    {PKV_KV_F32, 2, 32, 16, 8, 0, 9, 3, 0, 0, false},
    {PKV_KV_F32, 5, 96, 48, 4, 5, 9, 0, 3, 4, false},
    {PKV_KV_Q8_0, 2, 64, 64, 8, 0, 9, 4, 0, 0, false},
    {PKV_KV_Q8_0, 3, 32, 16, 4, 6, 9, 0, 5, 3, false},
    {PKV_KV_Q8_0, 1, 256, 256, 4, 0, 3, 0, 0, 0, false},
};

static void test_index__every_variant_and_shape__bit_for_bit(void **state)
{
    (void)state;
    PKVT_FOR_EACH_CPU(cpu)
    {
        for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            struct index_case c;
            case_open(&c, &shapes[i]);
            for (uint32_t threads = 1; threads <= 3; threads += 2) {
                memset(c.pages, 0xff, c.pages_bytes);
                pkvt_run(cpu, PKV_OP_INDEX, &c.args, threads);
                check(&c, &shapes[i]);
            }
            case_close(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index__every_variant_and_shape__bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
