/* futex.h: sleeping on a 32-bit word (Linux futex), and the pause of a spin loop. */
#ifndef PKV_BASE_FUTEX_H
#define PKV_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word == expected; may return early, so callers check and repeat. */
void pkvi_futex_wait(_Atomic uint32_t *word, uint32_t expected);

/* The same for at most `ns` nanoseconds. */
void pkvi_futex_wait_for(_Atomic uint32_t *word, uint32_t expected, uint64_t ns);

/* Wake at most `count` threads that sleep on word. Only the address is used. */
void pkvi_futex_wake(_Atomic uint32_t *word, uint32_t count);

/*
 * Spin for about spin_ns while *word == expected. Returns the last value seen (acquire).
 * Cost: one pause (tens of ns) a turn, the clock every few turns.
 */
uint32_t pkvi_spin_while(_Atomic uint32_t *word, uint32_t expected, uint64_t spin_ns);

#endif
