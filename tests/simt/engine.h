/* engine.h: what the parts of the shim say to each other. Kernels see simt.h. */
#ifndef PKV_SIMT_ENGINE_H
#define PKV_SIMT_ENGINE_H

#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

namespace simt {

/* Exit status of a program in which fail() was called. */
constexpr int FAILED = 86;
constexpr size_t STACK_BYTES = 128 << 10;

/* xorshift64: the same numbers everywhere. */
struct Rng {
    uint64_t state = 88172645463325252u;
    void seed(uint64_t seed)
    {
        state = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
    }
    uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
    unsigned below(size_t limit)
    {
        return (unsigned)(next() >> 11) % (unsigned)limit;
    }
};

/* "simt: kernel ... block ... thread ...: text" on stderr, then the end of the program. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Launch {
    const char *name;
    dim3 grid, block;
    size_t smem_bytes;
    void (*call)(const void *args);
    const void *args;
    size_t args_bytes;
};
/* Every block of the grid, one after the other. */
void run(const Launch &launch);

/* Where the running thread stands; false outside kernels. */
struct Stand {
    unsigned thread, block, barriers, warp_syncs; /* block: counted over all launches */
    const char *stack;
};
bool stand(Stand *stand_out);
unsigned block_count();
void may_yield();
const char *variable(const char *name); /* of the environment, or NULL */
uint64_t number(const char *name, uint64_t otherwise);

/* The check build's part (check.cpp); nothing elsewhere. */
enum class Memory { Device, Pinned, Managed, Shared };
void note_memory(const void *at, size_t bytes, Memory memory);
void note_free(const void *at);
void note_launch(const void *args, size_t args_bytes);
void note_fence();
void note_copy(const void *to, const void *from, size_t bytes); /* from NULL: set */
/* An asynchronous copy of a thread begins (nothing may read `to`), or lands. */
void note_async(void *to, const void *from, size_t bytes, bool lands);

} // namespace simt

#endif
