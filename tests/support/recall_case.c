/* recall_case.c: memory of hot sets whose entries are recalled. */
#include "tests/support/recall_case.h"

#include <stdlib.h>
#include <string.h>

/* Room for a part, and a gap behind it. */
static uint64_t place(uint64_t *at, uint64_t words)
{
    const uint64_t begin = *at;
    *at += (words * 4 + 63) / 64 * 64 + 64;
    return begin;
}

void pkvt_recall_case_open(struct pkvt_recall_case *c)
{
    struct pkv_recall_state *state = &c->state;
    const uint64_t kv_heads = c->kv_heads;
    uint64_t at = 0;
    place(&at, kv_heads * c->score_stride);
    state->slot_token = place(&at, kv_heads * state->slots);
    state->query = place(&at, (uint64_t)c->heads * c->head_dim);
    state->gain = place(&at, c->heads);
    state->resident = place(&at, kv_heads * state->blocks);
    state->swap = place(&at, kv_heads * state->cap * 2);
    state->index = place(&at, kv_heads * state->blocks * c->index_page_bytes / 4);
    c->view_bytes = at;
    c->bytes = at * c->views;
    c->memory = pkvt_alloc(c->bytes);
    c->before = malloc(c->bytes);
    assert_non_null(c->before);
    c->view = pkvt_alloc(c->views * sizeof *c->view);
    for (uint32_t i = 0; i < c->views; i++) {
        c->view[i] = (struct pkv_kv_view){.score = pkvi_addr(c->memory + i * c->view_bytes),
                                          .score_stride = c->score_stride};
    }
}

void pkvt_recall_case_close(struct pkvt_recall_case *c)
{
    free(c->memory);
    free(c->before);
    free(c->view);
    *c = (struct pkvt_recall_case){0};
}

void *pkvt_recall_now(const struct pkvt_recall_case *c, uint32_t view, uint64_t part)
{
    return c->memory + view * c->view_bytes + part;
}

void *pkvt_recall_before(const struct pkvt_recall_case *c, uint32_t view, uint64_t part)
{
    return c->before + view * c->view_bytes + part;
}

void pkvt_recall_case_keep(struct pkvt_recall_case *c)
{
    memcpy(c->before, c->memory, c->bytes);
}

void pkvt_recall_case_restore(struct pkvt_recall_case *c)
{
    memcpy(c->memory, c->before, c->bytes);
}

void pkvt_recall_case_assert_same(const struct pkvt_recall_case *c)
{
    for (uint64_t i = 0; i < c->bytes; i++) {
        if (c->memory[i] != c->before[i]) {
            fail_msg(
                "byte %lu of view %lu is %02x, was %02x; slot_token is at %lu, query %lu, gain "
                "%lu, resident %lu, swap %lu, index %lu",
                (unsigned long)(i % c->view_bytes), (unsigned long)(i / c->view_bytes),
                c->memory[i], c->before[i], (unsigned long)c->state.slot_token,
                (unsigned long)c->state.query, (unsigned long)c->state.gain,
                (unsigned long)c->state.resident, (unsigned long)c->state.swap,
                (unsigned long)c->state.index);
        }
    }
}
