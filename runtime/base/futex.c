/* futex.c: the futex system call, which libc does not wrap. */
#include "runtime/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"

void pkvi_futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void pkvi_futex_wait_for(_Atomic uint32_t *word, uint32_t expected, uint64_t ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, NULL, 0);
}

void pkvi_futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

uint32_t pkvi_spin_while(_Atomic uint32_t *word, uint32_t expected, uint64_t spin_ns)
{
    uint64_t end_ns = spin_ns == 0 ? 0 : pkvi_clock_ns() + spin_ns;
    for (;;) {
        for (int i = 0; i < 32; i++) {
            uint32_t value = atomic_load_explicit(word, memory_order_acquire);
            if (value != expected) {
                return value;
            }
            pause_cpu();
        }
        if (pkvi_clock_ns() >= end_ns) {
            return expected;
        }
    }
}
