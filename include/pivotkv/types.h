/*
 * types.h: the glossary, and the few plain types everybody shares.
 *
 *   token     one position of a sequence
 *   entry     K and V of one token for one KV head in one layer, K then V, contiguous
 *   block     32 consecutive tokens of one layer, all KV heads
 *   page      32 entries of one KV head: the unit of the device pool
 *   slot      room for one entry in a page
 *   row       one token of one sequence in the step that runs now
 *   tier      where an entry lives: device or host
 *   layer, head (query head), kv_head
 *   pivot     an entry kept on the device because its prompt score was high
 *   recall    fetching an entry from the host tier because the next layer will want it
 *   rehearsal predicting which ones, with part of the next layer's query weights
 *
 * `index`, `count` and `bytes` are three different words. Units stand last in a name
 * (`_bytes _tokens _ns`), outputs are last arguments and end in `_out`.
 */
#ifndef PIVOTKV_TYPES_H
#define PIVOTKV_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pivotkv/status.h"

#define PKV_PAGE_TOKENS 32u /* entries in a page, tokens in a block */

/* What a kernel dereferences; need not equal a host pointer. 0 = none. */
typedef uint64_t pkv_addr;

/* Number format of K and V in the cache. */
enum pkv_kv_type { PKV_KV_F16, PKV_KV_BF16, PKV_KV_F32, PKV_KV_Q8_0, PKV_KV_TYPE_COUNT };

/* "f16", "bf16", "f32", "q8_0"; NULL for an unknown number. */
PKV_API const char *pkv_kv_type_name(enum pkv_kv_type type);

/* Reads such a name. PKV_ERR_INVALID if it is none of them; nothing is written then. */
PKV_API enum pkv_status pkv_kv_type_parse(const char *name, enum pkv_kv_type *type_out);

/* Instruction set of the CPU kernels. */
enum pkv_cpu { PKV_CPU_AUTO, PKV_CPU_SCALAR, PKV_CPU_AVX2, PKV_CPU_AVX512, PKV_CPU_NEON };

#endif
