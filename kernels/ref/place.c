/*
 * place.c: filling a hot set, plain C: pooled scores, the best of them in a heap, their entries
 * copied. A unit is one KV head.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cost.h"
#include "kernels/heap.h"
#include "kernels/kv_view.h"
#include "kernels/place_hash.h"
#include "runtime/base/thread.h"

/* A worker's room of a KV head. */
struct room {
    float *pooled; /* [end] */
    float *value;  /* [slots] */
    int32_t *id;   /* [slots] */
};

static struct room room_of(const struct pkv_args_place *args, uint32_t head)
{
    const uint64_t floats = (uint64_t)args->end + 2ull * args->slots;
    float *pooled = PKV_AT(float, args->scratch) + head * floats;
    float *value = pooled + args->end;
    return (struct room){pooled, value, (int32_t *)(void *)(value + args->slots)};
}

static void pool(const struct pkv_args_place *args, uint32_t head, const float *score,
                 float *pooled)
{
    const uint32_t reach = args->pool / 2;
    for (uint32_t t = 0; t < args->end; t++) {
        if (args->pick == PKV_PLACE_RANDOM || !score) {
            const bool blind = args->pick == PKV_PLACE_RANDOM;
            pooled[t] = blind ? pkvi_place_hash(args->seed, head, t) : 0.0f;
            continue;
        }
        const uint32_t begin = t > reach ? t - reach : 0;
        const uint32_t end = args->end - t > reach ? t + reach + 1 : args->end;
        float most = -INFINITY;
        for (uint32_t i = begin; i < end; i++) {
            most = score[i] > most ? score[i] : most;
        }
        pooled[t] = most;
    }
}

static int by_token(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The tokens of the slots, ascending: the sinks, and the best `count` others. */
static void choose(const struct pkv_args_place *args, const struct room *room, uint32_t count,
                   int32_t *token)
{
    const uint32_t sinks = args->sinks < count ? args->sinks : count;
    for (uint32_t i = 0; i < sinks; i++) {
        token[i] = (int32_t)i;
    }
    struct pkvi_heap heap = {.value = room->value, .id = room->id, .capacity = count - sinks};
    for (uint32_t t = sinks; t < args->end; t++) {
        pkvi_heap_offer(&heap, room->pooled[t], (int32_t)t);
    }
    qsort(heap.id, heap.count, sizeof *heap.id, by_token);
    memcpy(token + sinks, heap.id, heap.count * sizeof *token);
}

static const uint8_t *source(const struct pkv_args_place *args, uint32_t head, uint32_t token,
                             uint32_t entry_bytes)
{
    const uint32_t page = token / PKV_PAGE_TOKENS;
    if (page >= args->from.first_page) {
        return pkvi_kv_entry(&args->from, head, token, entry_bytes);
    }
    const pkv_addr block = PKV_AT(const pkv_addr, args->blocks)[page];
    return PKV_AT(const uint8_t, block) +
           ((uint64_t)head * PKV_PAGE_TOKENS + token % PKV_PAGE_TOKENS) * entry_bytes;
}

static void place_head(void *context, uint32_t head, uint32_t worker)
{
    (void)worker;
    const struct pkv_args_place *args = context;
    const struct room room = room_of(args, head);
    const uint32_t entry_bytes = pkvi_kv_entry_bytes(args->kv_type, args->head_dim);
    const uint32_t first = pkvi_view_first_key(&args->to, head);
    const float *score = args->from.score ? PKV_AT(const float, args->from.score) +
                                                (uint64_t)head * args->from.score_stride
                                          : NULL;
    float *kept = PKV_AT(float, args->to.score) + (uint64_t)head * args->to.score_stride;
    int32_t *token = PKV_AT(int32_t, args->slot_token) + (uint64_t)head * args->slots;
    pool(args, head, score, room.pooled);
    choose(args, &room, args->slots - first, token + first);
    for (uint32_t key = 0; key < args->slots; key++) {
        if (key < first) {
            token[key] = -1;
            kept[key] = 0.0f;
            continue;
        }
        const uint32_t t = (uint32_t)token[key];
        memcpy(pkvi_kv_entry(&args->to, head, key, entry_bytes), source(args, head, t, entry_bytes),
               entry_bytes);
        kept[key] = t < args->sinks ? INFINITY : score ? args->gain * score[t] : 0.0f;
    }
    for (uint32_t t = args->end; t < args->tokens; t++) {
        kept[args->slots + (t - args->end)] = score ? args->gain * score[t] : 0.0f;
    }
}

static enum pkv_status launch(void *native_stream, const void *args)
{
    struct pkv_args_place place = *(const struct pkv_args_place *)args;
    pkvi_pool_run(((const struct pkvi_cpu_stream *)native_stream)->pool, place_head, &place,
                  place.kv_heads);
    return PKV_OK;
}

const struct pkv_kernel pkvi_kernel_place_scalar = {
    .op = PKV_OP_PLACE,
    .variant = "scalar",
    .caps = PKV_CAP_READS_HOST,
    .args_bytes = sizeof(struct pkv_args_place),
    .launch = launch,
    .cost = pkvi_cost_place,
};
