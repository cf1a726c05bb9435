/* sampler.h: from logits to a token, as a pure function of (seed, position, logits, past). */
#ifndef PIVOTKV_SAMPLER_H
#define PIVOTKV_SAMPLER_H

#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
};

/* Begin with pkv_sampler_config_default(): temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no
 * penalties. */
struct pkv_sampler_config {
    uint32_t struct_bytes;
    uint64_t seed;
    float temperature;                 /* 0 = greedy; 0 .. 100 */
    uint32_t top_k;                    /* 0 = all */
    float top_p;                       /* (0, 1] */
    float min_p;                       /* [0, 1] */
    float repeat_penalty;              /* 1 = none; (0, 10] */
    float presence_penalty;            /* [-2, 2] */
    float frequency_penalty;           /* [-2, 2] */
    uint32_t penalty_last;             /* tokens looked back at, 0 = none; default 64 */
    const struct pkv_logit_bias *bias; /* borrowed for the sampler's life */
    uint32_t bias_count;
};
PKV_API struct pkv_sampler_config pkv_sampler_config_default(void);

/* PKV_ERR_INVALID / PKV_ERR_RANGE name the field and its allowed values (nan and inf are refused).
 */
PKV_API enum pkv_status pkv_sampler_config_check(const struct pkv_sampler_config *config,
                                                 uint32_t vocab);

struct pkv_sampler;
/* Allocates all it will ever need. */
PKV_API enum pkv_status pkv_sampler_open(const struct pkv_sampler_config *config, uint32_t vocab,
                                         struct pkv_sampler **sampler_out);
PKV_API void pkv_sampler_close(struct pkv_sampler *sampler);

/*
 * Stages, in this order: bias, penalties, greedy if temperature is 0, top_k, top_p, min_p,
 * temperature, draw (runtime/text/sampler.c says each exactly). A logit that is not finite is never
 * chosen.
 *
 * Choose the token that follows `past` (its last penalty_last tokens count). `position` = number of
 * tokens before it. logits: f32 [vocab], not changed. Allocates nothing; equal inputs give equal
 * tokens, whatever was sampled before. Ties go to the smaller id. Threads: one call at a time a
 * sampler. PKV_ERR_CORRUPT: no logit is finite; PKV_ERR_RANGE: an id of the past is outside the
 * vocabulary.
 */
PKV_API enum pkv_status pkv_sampler_pick(struct pkv_sampler *sampler, const float *logits,
                                         const int32_t *past, size_t past_count, uint64_t position,
                                         int32_t *id_out);

/*
 * Stop strings over a stream of bytes: at most 64, each of 1 to 4096 bytes (PKV_ERR_RANGE) of
 * UTF-8 (PKV_ERR_INVALID). The
 * text ends where one is complete first, before the longest of those complete there; so it does not
 * depend on how the stream is cut.
 */
struct pkv_stop;
PKV_API enum pkv_status pkv_stop_open(const char *const *strings, uint32_t count,
                                      struct pkv_stop **stop_out);
PKV_API void pkv_stop_close(struct pkv_stop *stop);
PKV_API void pkv_stop_reset(struct pkv_stop *stop);
/* Longest stop string in bytes: the most that is held back. */
PKV_API size_t pkv_stop_most_bytes(const struct pkv_stop *stop);
/*
 * Feed bytes; gives those that can no longer be part of a stop string. *stopped_out: a stop string
 * was met; the bytes before it have come out, it and what follows never do. out must hold bytes +
 * pkv_stop_most_bytes(). Returns the number of bytes written.
 */
PKV_API size_t pkv_stop_push(struct pkv_stop *stop, const char *data, size_t bytes, char *out,
                             bool *stopped_out);
/* What is still held back, at the end of the text. */
PKV_API size_t pkv_stop_finish(struct pkv_stop *stop, char *out);

#ifdef __cplusplus
}
#endif
#endif
