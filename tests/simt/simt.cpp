/*
 * simt.cpp: threads of a block as fibers, who runs next, barriers, and what warps do together.
 *
 * PKV_SIMT_ORDER: in_order (default), random (any thread that can go on), priority (fixed random
 * priorities, so that one warp runs far ahead of another), mixed (another one for each launch).
 * PKV_SIMT_SEED: of random numbers. PKV_SIMT_YIELD: at so many percent of atomics, fences and, in
 * the check build, of all accesses another thread may go on.
 */
#include "simt.h"

#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <deque>
#include <numeric>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define ASAN 1
#else
#define ASAN 0
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

__attribute__((weak)) void note_memory(const void *, size_t, Memory)
{
}
__attribute__((weak)) void note_free(const void *)
{
}
__attribute__((weak)) void note_launch(const void *, size_t)
{
}
__attribute__((weak)) void note_fence()
{
}
__attribute__((weak)) void note_copy(const void *, const void *, size_t)
{
}
__attribute__((weak)) void note_async(void *, const void *, size_t, bool)
{
}

namespace {

constexpr unsigned MAX_THREADS = 1024, MAX_MASKS = 16, MAX_COPIES = 64, MAX_GROUPS = 16;
constexpr size_t PAGE_BYTES = 4096, STATIC_SHARED_BYTES = 48 << 10;
constexpr size_t CANARY_BYTES = ASAN ? 0 : 64; /* ASan guards the end of an object itself */
constexpr unsigned char CANARY = 0xa5;

enum class State { Ready, Barrier, Warp, Done };

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct Fiber {
    uint3 id;
    unsigned index, lane, barriers;
    State state;
    Site site;     /* where it waits, */
    unsigned mask; /* and in a warp for whom */
    char *stack;
    void *sanitizer;
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    Copy copy[MAX_COPIES];
    unsigned copies, group_end[MAX_GROUPS], groups;
};

/* Lanes of one mask that meet. A lane is at most one meeting ahead: two tables. */
struct Meeting {
    Meet meet;
    Site site;
    unsigned mask, arrived, live, generation;
    uint64_t put[2][32];
};

struct Warp {
    unsigned valid, ended, syncs, masks;
    Meeting meeting[MAX_MASKS];
};

struct SharedObject {
    const void *key; /* NULL: the dynamic one */
    unsigned char *at;
    size_t bytes;
    bool used;
};

enum class Order { InOrder, Random, Priority, Mixed };

/* Threads that can go on, each at most once. */
class Pool {
  public:
    void reset(Order new_order, unsigned threads, Rng &rng)
    {
        order = new_order;
        first = count = 0;
        for (unsigned i = 0; order == Order::Priority && i < threads; i++) { /* of the warp first */
            const unsigned warp =
                i % 32 ? priority[i - 1] & 0xffff0000u : (unsigned)rng.next() << 16;
            priority[i] = warp | ((unsigned)rng.next() & 0xffffu);
        }
    }
    bool empty() const
    {
        return count == 0;
    }
    void put(unsigned thread)
    {
        waiting[(first + count++) % MAX_THREADS] = thread;
        if (order == Order::Priority) {
            std::push_heap(waiting, waiting + count, Lower{priority});
        }
    }
    unsigned take(Rng &rng)
    {
        count--;
        if (order == Order::InOrder) {
            const unsigned thread = waiting[first];
            first = (first + 1) % MAX_THREADS;
            return thread;
        }
        if (order == Order::Priority) {
            std::pop_heap(waiting, waiting + count + 1, Lower{priority});
        } else {
            std::swap(waiting[rng.below(count + 1)], waiting[count]);
        }
        return waiting[count];
    }

  private:
    struct Lower {
        const unsigned *priority;
        bool operator()(unsigned a, unsigned b) const
        {
            return priority[a] < priority[b];
        }
    };
    Order order = Order::InOrder;
    unsigned waiting[MAX_THREADS], first = 0, count = 0; /* a ring, where they go in order */
    unsigned priority[MAX_THREADS] = {};
};

Fiber fibers[MAX_THREADS], *current;
Warp warps[MAX_THREADS / 32];
Pool pool;
Rng rng;
Order setting, order;
unsigned yield_percent;
bool configured;

const Launch *running;
unsigned threads, alive, at_barrier, barrier_generation, barrier_yes[2], blocks_begun;
std::deque<SharedObject> shared_objects;
void *dynamic_object;
size_t static_shared_bytes;

#if defined(__x86_64__)
void *main_stack_pointer;
#else
ucontext_t main_context;
#endif
#if ASAN
void *main_sanitizer;
const void *main_bottom;
size_t main_bytes;
#endif

void configure()
{
    if (configured) {
        return;
    }
    configured = true;
    const char *text = variable("PKV_SIMT_ORDER");
    const char *const names[] = {"in_order", "random", "priority", "mixed"};
    for (unsigned i = 0; text && i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            setting = (Order)i;
            text = NULL;
        }
    }
    if (text) {
        fail("PKV_SIMT_ORDER: no order '%s'", text);
    }
    rng.seed(number("PKV_SIMT_SEED", 0));
    yield_percent = (unsigned)number("PKV_SIMT_YIELD", 0);
}

#if defined(__x86_64__)
/* What a function must preserve goes to the old stack and comes from the new one. */
extern "C" void simt_switch(void **save, void *to);
asm(".text\n"
    ".type simt_switch, @function\n"
    "simt_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n"
    ".size simt_switch, .-simt_switch\n");
#endif

/*
 * From one fiber to another; NULL: the program's own stack, which runs while no thread can go on.
 * for_good: the caller does not come back.
 */
void switch_fiber(Fiber *from, Fiber *to, bool for_good)
{
    current = to;
    if (to) {
        threadIdx = to->id;
    }
#if ASAN
    __sanitizer_start_switch_fiber(for_good ? NULL
                                   : from   ? &from->sanitizer
                                            : &main_sanitizer,
                                   to ? to->stack : main_bottom, to ? STACK_BYTES : main_bytes);
#endif
    (void)for_good;
#if defined(__x86_64__)
    simt_switch(from ? &from->stack_pointer : &main_stack_pointer,
                to ? to->stack_pointer : main_stack_pointer);
#else
    swapcontext(from ? &from->context : &main_context, to ? &to->context : &main_context);
#endif
#if ASAN
    __sanitizer_finish_switch_fiber(from ? from->sanitizer : main_sanitizer, NULL, NULL);
#endif
}

/* Whose turn it is; the caller's own, maybe. */
void leave(Fiber *fiber, bool for_good)
{
    Fiber *next = pool.empty() ? NULL : fibers + pool.take(rng);
    if (next != fiber) {
        switch_fiber(fiber, next, for_good);
    }
}

void make_ready(Fiber *fiber)
{
    fiber->state = State::Ready;
    pool.put(fiber->index);
}

bool same(Site a, Site b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

/* Waits until somebody makes the caller ready; with Ready, until it is its turn again. */
void wait(State state, Site site, unsigned mask)
{
    Fiber *fiber = current;
    fiber->site = site;
    fiber->mask = mask;
    fiber->state = state;
    if (state == State::Ready) {
        pool.put(fiber->index);
    }
    leave(fiber, false);
}

void complete(Warp *warp, Meeting *meeting)
{
    meeting->live = meeting->arrived;
    meeting->arrived = 0;
    meeting->generation++;
    if (meeting->meet == Meet::Sync && meeting->live == (warp->valid & ~warp->ended)) {
        warp->syncs++;
    }
    Fiber *first = fibers + 32 * (warp - warps);
    for (unsigned i = 0; i < 32; i++) {
        if ((meeting->live >> i & 1) && first[i].state == State::Warp &&
            first[i].mask == meeting->mask) {
            make_ready(first + i);
        }
    }
}

void end_thread(Fiber *fiber)
{
    Warp *warp = warps + fiber->index / 32;
    if (fiber->copies) {
        fail("ends with %u asynchronous copies that it has not waited for", fiber->copies);
    }
    if (at_barrier) {
        fail("ends while %u threads of its block wait at a barrier", at_barrier);
    }
    for (unsigned i = 0; i < warp->masks; i++) {
        const Meeting *meeting = &warp->meeting[i];
        if (meeting->arrived && (meeting->mask >> fiber->lane & 1)) {
            fail("ends while lanes of mask %08x wait for it at %s:%d", meeting->mask,
                 meeting->site.file, meeting->site.line);
        }
    }
    fiber->state = State::Done;
    warp->ended |= 1u << fiber->lane;
    alive--;
}

void thread_main()
{
#if ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    if (!main_bottom) { /* the first comes from the program's own stack */
        main_bottom = bottom;
        main_bytes = bytes;
    }
#endif
    running->call(running->args);
    end_thread(current);
    leave(current, true);
    abort(); /* never resumed */
}

void begin_thread(unsigned index)
{
    Fiber *fiber = fibers + index;
    fiber->index = index;
    fiber->lane = index % 32;
    fiber->barriers = fiber->copies = fiber->groups = 0;
    fiber->id = {index % blockDim.x, index / blockDim.x % blockDim.y,
                 index / blockDim.x / blockDim.y};
    if (!fiber->stack) {
        char *map = (char *)mmap(NULL, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect(map, PAGE_BYTES, PROT_NONE) != 0) {
            fail("no memory for the stack of a thread");
        }
        fiber->stack = map + PAGE_BYTES;
    }
#if defined(__x86_64__)
    void **top = (void **)(fiber->stack + STACK_BYTES - 64);
    *--top = NULL; /* the ABI wants rsp + 8 a multiple of 16 where a function begins */
    *--top = (void *)thread_main;
    fiber->stack_pointer = top - 6;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber->context, thread_main, 0);
#endif
    make_ready(fiber);
}

/* A block's shared object; that of the block before, filled anew. */
void *take_shared(const void *key, size_t bytes)
{
    SharedObject *object = NULL;
    for (SharedObject &other : shared_objects) {
        if (other.key == key && other.bytes == bytes && !other.used) {
            object = &other;
        }
    }
    if (!object) {
        void *at;
        if (posix_memalign(&at, 16, bytes + CANARY_BYTES) != 0) {
            fail("no memory for %zu bytes of shared memory", bytes);
        }
        memset((unsigned char *)at + bytes, CANARY, CANARY_BYTES);
        shared_objects.push_back({key, (unsigned char *)at, bytes, true});
        object = &shared_objects.back();
    }
    object->used = true;
    memset(object->at, 0xff, bytes);
    note_memory(object->at, bytes, Memory::Shared);
    return object->at;
}

void check_canaries()
{
    for (const SharedObject &object : shared_objects) {
        for (size_t i = 0; object.used && i < CANARY_BYTES; i++) {
            if (object.at[object.bytes + i] != CANARY) {
                fail("wrote past a shared object of %zu bytes", object.bytes);
            }
        }
    }
}

[[noreturn]] void deadlock()
{
    for (unsigned i = 0; i < threads; i++) {
        const Fiber *fiber = fibers + i;
        if (fiber->state == State::Barrier || fiber->state == State::Warp) {
            fprintf(stderr, "simt:   thread %u waits %s %s:%d, mask %08x\n", i,
                    fiber->state == State::Barrier ? "at the barrier" : "for its warp at",
                    fiber->site.file, fiber->site.line, fiber->mask);
            i |= 31; /* one a warp says enough */
        }
    }
    fail("deadlock: %u of %u threads wait and none can go on", alive, threads);
}

void run_block()
{
    for (SharedObject &object : shared_objects) {
        object.used = false;
    }
    static_shared_bytes = 0;
    blocks_begun++;
    alive = threads;
    at_barrier = 0;
    barrier_yes[0] = barrier_yes[1] = 0;
    dynamic_object = running->smem_bytes ? take_shared(NULL, running->smem_bytes) : NULL;
    for (unsigned first = 0; first < threads; first += 32) {
        Warp *warp = warps + first / 32;
        warp->valid = threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1;
        warp->ended = warp->syncs = warp->masks = 0;
    }
    pool.reset(order, threads, rng);
    for (unsigned i = 0; i < threads; i++) {
        begin_thread(i);
    }
#if ASAN
    main_bottom = NULL;
#endif
    switch_fiber(NULL, fibers + pool.take(rng), false);
    if (alive) {
        deadlock();
    }
    check_canaries();
}

/* The meeting of a mask; made at its first. */
Meeting *find_meeting(Warp *warp, unsigned mask, Site site)
{
    for (unsigned i = 0; i < warp->masks; i++) {
        if (warp->meeting[i].mask == mask) {
            return &warp->meeting[i];
        }
    }
    if (warp->masks == MAX_MASKS) {
        fail("%s:%d: more than %u masks in a warp", site.file, site.line, MAX_MASKS);
    }
    Meeting *meeting = &warp->meeting[warp->masks++];
    meeting->mask = mask;
    meeting->arrived = meeting->generation = 0;
    return meeting;
}

void check_meeting(const Warp *warp, const Meeting *meeting, Meet meet, Site site)
{
    const unsigned mask = meeting->mask;
    if (!(mask >> current->lane & 1)) {
        fail("%s:%d: lane %u is not in its own mask %08x", site.file, site.line, current->lane,
             mask);
    }
    if (mask & warp->ended) {
        fail("%s:%d: mask %08x names lanes that have ended: %08x", site.file, site.line, mask,
             mask & warp->ended);
    }
    for (unsigned i = 0; i < warp->masks; i++) {
        const Meeting *other = &warp->meeting[i];
        if (other != meeting && (other->arrived & mask)) {
            fail("%s:%d: mask %08x overlaps mask %08x, for which lanes wait at %s:%d", site.file,
                 site.line, mask, other->mask, other->site.file, other->site.line);
        }
    }
    if (meeting->arrived && (meeting->meet != meet || !same(meeting->site, site))) {
        fail("%s:%d: the warp is split: other lanes of mask %08x are at %s:%d", site.file,
             site.line, mask, meeting->site.file, meeting->site.line);
    }
}

} // namespace

void fail(const char *format, ...)
{
    fflush(stdout);
    fprintf(stderr, "simt: ");
    if (running) {
        fprintf(stderr, "kernel %s, block (%u, %u, %u)", running->name, blockIdx.x, blockIdx.y,
                blockIdx.z);
        if (current) {
            fprintf(stderr, ", thread (%u, %u, %u)", threadIdx.x, threadIdx.y, threadIdx.z);
        }
        fprintf(stderr, ": ");
    }
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    _Exit(FAILED);
}

const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = variable(name);
    char *end;
    const uint64_t value = text ? strtoull(text, &end, 0) : otherwise;
    if (text && *end) {
        fail("%s: no number: %s", name, text);
    }
    return value;
}

void run(const Launch &launch)
{
    configure();
    running = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    threads = blockDim.x * blockDim.y * blockDim.z;
    order = setting == Order::Mixed ? (Order)rng.below(3) : setting;
    note_launch(launch.args, launch.args_bytes);
    std::vector<unsigned> sequence(gridDim.x * gridDim.y * gridDim.z);
    std::iota(sequence.begin(), sequence.end(), 0u);
    for (size_t i = 0; i < sequence.size(); i++) {
        if (order != Order::InOrder) {
            std::swap(sequence[i], sequence[i + rng.below(sequence.size() - i)]);
        }
        const unsigned block = sequence[i];
        blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y,
                    block / gridDim.x / gridDim.y};
        run_block();
    }
    for (SharedObject &object : shared_objects) {
        note_free(object.at);
        free(object.at);
    }
    shared_objects.clear();
    running = NULL;
}

bool stand(Stand *stand_out)
{
    if (!current) {
        return false;
    }
    *stand_out = {current->index, blocks_begun, current->barriers, warps[current->index / 32].syncs,
                  current->stack};
    return true;
}

unsigned block_count()
{
    return blocks_begun;
}

unsigned lane()
{
    return current->lane;
}

void *dynamic_shared()
{
    if (!dynamic_object) {
        fail("dynamic shared memory in a launch without it");
    }
    return dynamic_object;
}

void *shared(const void *key, size_t bytes)
{
    for (const SharedObject &object : shared_objects) {
        if (object.used && object.key == key) {
            return object.at;
        }
    }
    static_shared_bytes += bytes;
    if (static_shared_bytes > STATIC_SHARED_BYTES) {
        fail("%zu bytes of static shared memory, at most %zu", static_shared_bytes,
             STATIC_SHARED_BYTES);
    }
    return take_shared(key, bytes);
}

unsigned barrier(bool yes, Site site)
{
    if (alive < threads) {
        fail("%s:%d: a barrier after %u threads of the block have ended", site.file, site.line,
             threads - alive);
    }
    for (unsigned i = 0; at_barrier && i < threads; i++) {
        const Fiber *fiber = fibers + i;
        if (fiber->state == State::Barrier) {
            if (!same(fiber->site, site)) {
                fail("divergent barrier: here %s:%d, thread %u at %s:%d", site.file, site.line, i,
                     fiber->site.file, fiber->site.line);
            }
            break;
        }
    }
    const unsigned parity = (barrier_generation + 1) % 2;
    barrier_yes[parity] += yes;
    if (++at_barrier == threads) {
        at_barrier = 0;
        barrier_generation++;
        barrier_yes[1 - parity] = 0;
        for (unsigned i = 0; i < threads; i++) {
            if (fibers[i].state == State::Barrier) {
                make_ready(fibers + i);
            }
        }
        wait(State::Ready, site, 0); /* who comes last has no head start */
    } else {
        wait(State::Barrier, site, 0);
    }
    current->barriers++;
    return barrier_yes[parity];
}

Table exchange(Meet meet, unsigned mask, uint64_t put, Site site)
{
    Warp *warp = warps + current->index / 32;
    Meeting *meeting = find_meeting(warp, mask, site);
    check_meeting(warp, meeting, meet, site);
    if (!meeting->arrived) {
        meeting->meet = meet;
        meeting->site = site;
    }
    const unsigned parity = meeting->generation % 2;
    meeting->put[parity][current->lane] = put;
    meeting->arrived |= 1u << current->lane;
    if (meeting->arrived == (mask & warp->valid)) {
        complete(warp, meeting);
        wait(State::Ready, site, mask);
    } else {
        wait(State::Warp, site, mask);
    }
    return {meeting->put[parity], meeting->live};
}

void may_yield()
{
    if (yield_percent && rng.below(100) < yield_percent) {
        wait(State::Ready, Site{"", 0}, 0);
    }
}

void fence()
{
    note_fence();
    may_yield();
}

/* The bytes land when the thread waits for their group; until then they read as NaN. */
void copy_async(void *to, const void *from, size_t bytes)
{
    Fiber *fiber = current;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || (uintptr_t)to % bytes ||
        (uintptr_t)from % bytes) {
        fail("asynchronous copy of %zu bytes from %p to %p: 4, 8 or 16, and aligned to it", bytes,
             from, to);
    }
    if (fiber->copies == MAX_COPIES) {
        fail("more than %u asynchronous copies of a thread in flight", MAX_COPIES);
    }
    note_async(to, from, bytes, false);
    memset(to, 0xff, bytes);
    fiber->copy[fiber->copies++] = {to, from, bytes};
}

void copy_commit()
{
    if (current->groups == MAX_GROUPS) {
        fail("more than %u groups of asynchronous copies in flight", MAX_GROUPS);
    }
    current->group_end[current->groups++] = current->copies;
}

void copy_wait(int pending)
{
    Fiber *fiber = current;
    if ((unsigned)pending >= fiber->groups) {
        return;
    }
    const unsigned done = fiber->groups - (unsigned)pending, landed = fiber->group_end[done - 1];
    for (unsigned i = 0; i < landed; i++) {
        const Copy copy = fiber->copy[i];
        note_async(copy.to, copy.from, copy.bytes, true);
        memcpy(copy.to, copy.from, copy.bytes);
    }
    std::copy(fiber->copy + landed, fiber->copy + fiber->copies, fiber->copy);
    for (unsigned i = done; i < fiber->groups; i++) {
        fiber->group_end[i - done] = fiber->group_end[i] - landed;
    }
    fiber->copies -= landed;
    fiber->groups -= done;
}

} // namespace simt
