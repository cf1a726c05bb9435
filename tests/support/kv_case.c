/* kv_case.c: sequences whose K and V lie scattered over pages. */
#include "tests/support/kv_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void open_pages(struct pkvt_kv_case *c, uint32_t sequence, struct pkvt_rng *rng)
{
    uint64_t page_bytes = (uint64_t)PKV_PAGE_TOKENS * pkvi_kv_entry_bytes(c->type, c->head_dim);
    uint32_t per_head = (c->tokens[sequence] + PKV_PAGE_TOKENS - 1) / PKV_PAGE_TOKENS;
    if (c->ring_pages > 0 && per_head > c->ring_pages) {
        per_head = c->ring_pages;
    }
    uint32_t count = per_head * c->kv_heads;
    c->pages[sequence] = pkvt_alloc(count * page_bytes);
    c->page[sequence] = pkvt_alloc(count * sizeof(pkv_addr));
    for (uint32_t i = 0; i < count; i++) {
        c->page[sequence][i] = pkvi_addr(c->pages[sequence] + i * page_bytes);
    }
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = pkvt_rng_below(rng, i);
        pkv_addr page = c->page[sequence][i - 1];
        c->page[sequence][i - 1] = c->page[sequence][j];
        c->page[sequence][j] = page;
    }
    bool by_page = sequence % 2 == 1; /* both orders of a table are in use */
    c->views[sequence] = (struct pkv_kv_view){.page = pkvi_addr(c->page[sequence]),
                                              .head_stride = by_page ? 1 : per_head,
                                              .page_stride = by_page ? c->kv_heads : 1,
                                              .ring_pages = per_head};
}

void pkvt_kv_case_open(struct pkvt_kv_case *c, uint64_t seed)
{
    struct pkvt_rng rng = {seed};
    c->stride = c->kv_heads * c->head_dim + 5;
    c->views = pkvt_alloc(c->sequences * sizeof *c->views);
    struct pkv_row_span *span = pkvt_alloc(sizeof *span);
    for (uint32_t s = 0; s < c->sequences; s++) {
        open_pages(c, s, &rng);
        c->k[s] = pkvt_normal(&rng, (uint64_t)c->tokens[s] * c->stride, 1.0f);
        c->v[s] = pkvt_normal(&rng, (uint64_t)c->tokens[s] * c->stride, 1.0f);
        *span = (struct pkv_row_span){.view = s, .rows = c->tokens[s]};
        struct pkv_args_append args = {.k = pkvi_addr(c->k[s]),
                                       .v = pkvi_addr(c->v[s]),
                                       .views = pkvi_addr(c->views),
                                       .spans = pkvi_addr(span),
                                       .kv_type = c->type,
                                       .span_count = 1,
                                       .rows = c->tokens[s],
                                       .kv_heads = c->kv_heads,
                                       .head_dim = c->head_dim,
                                       .k_stride = c->stride,
                                       .v_stride = c->stride};
        pkvt_run(PKV_CPU_SCALAR, PKV_OP_APPEND, &args, 1);
    }
    free(span);
}

void pkvt_kv_case_close(struct pkvt_kv_case *c)
{
    for (uint32_t s = 0; s < c->sequences; s++) {
        free(c->k[s]);
        free(c->v[s]);
        free(c->pages[s]);
        free(c->page[s]);
    }
    free(c->views);
    *c = (struct pkvt_kv_case){0};
}

/* Values from the definition of the formats. */
static double f16_value(const uint8_t *in)
{
    uint32_t half = in[0] | (uint32_t)in[1] << 8, mantissa = half & 1023;
    int exponent = (int)(half >> 10 & 31);
    double value = exponent == 31  ? NAN
                   : exponent == 0 ? ldexp(mantissa, -24)
                                   : ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -value : value;
}

static double f32_value(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double value_of(const struct pkvt_kv_case *c, const uint8_t *in, uint32_t i)
{
    uint32_t bits;
    switch (c->type) {
    case PKV_KV_F16:
        return f16_value(in + 2 * i);
    case PKV_KV_BF16:
        return f32_value(((uint32_t)in[2 * i] | (uint32_t)in[2 * i + 1] << 8) << 16);
    case PKV_KV_F32:
        memcpy(&bits, in + 4 * i, sizeof bits);
        return f32_value(bits);
    case PKV_KV_Q8_0:
        return (int8_t)in[i] * f16_value(in + c->head_dim + i / 32 * 2);
    case PKV_KV_TYPE_COUNT:
        break;
    }
    return NAN;
}

void pkvt_kv_case_read(const struct pkvt_kv_case *c, uint32_t sequence, uint32_t kv_head,
                       uint32_t position, uint32_t which, double *out)
{
    const struct pkv_kv_view *view = &c->views[sequence];
    uint32_t entry_bytes = pkvi_kv_entry_bytes(c->type, c->head_dim);
    uint32_t page = position / PKV_PAGE_TOKENS % view->ring_pages;
    pkv_addr base = c->page[sequence][page * view->page_stride + kv_head * view->head_stride];
    const uint8_t *entry = PKV_AT(const uint8_t, base) + position % PKV_PAGE_TOKENS * entry_bytes;
    for (uint32_t i = 0; i < c->head_dim; i++) {
        out[i] = value_of(c, entry + which * (entry_bytes / 2), i);
    }
}
