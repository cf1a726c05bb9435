/*
 * check.cpp: compute-sanitizer's work on the CPU: accesses out of bounds, to freed memory or to
 * memory that no kernel may touch, reads of what nobody has written, and races.
 *
 * Kernels are compiled with -fsanitize=thread, but libtsan is not linked: the compiler's calls
 * arrive here. What CUDA promises makes the check exact without vector clocks: two accesses of a
 * block are ordered by a barrier between them, or in one warp by a __syncwarp of all its lanes, and
 * by nothing else; two blocks of a launch are not ordered. Each byte has a cell with its last write
 * and its last reads. Once a launch has fenced (__threadfence), its blocks are taken for ordered.
 *
 * Not seen: memcpy() and memset() of the C library, accesses that the compiler removes.
 */
#include "engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

extern "C" char __executable_start[], end[]; /* of the program, from the linker */

namespace simt {

namespace {

/* Who reads: one thread, several of a warp, of several warps, of several blocks. */
enum Who : uint64_t { Thread, OneWarp, Warps, Blocks };

/* One access. Counters are cut: only whether two are equal counts. */
struct Stamp {
    uint64_t block : 20; /* of all launches since the last renumbering; 0: none */
    uint64_t barriers : 10;
    uint64_t syncs : 9;
    uint64_t thread : 10;
    uint64_t site : 11;
    uint64_t who : 2;
    uint64_t atomic : 1;
    uint64_t known : 1; /* of a write: the byte has a value */
};

struct Cell {
    Stamp write, read;
};

constexpr size_t CELLS = 4096; /* in a page of them, made when it is first needed */
constexpr unsigned SITES = 1 << 11, LAST_BLOCK = (1 << 20) - 1, RECENT = 1024;

struct Object {
    const char *base;
    size_t bytes;
    Memory memory;
    bool freed;
    std::vector<std::unique_ptr<Cell[]>> pages;

    Cell *cell(size_t offset)
    {
        std::unique_ptr<Cell[]> &page = pages[offset / CELLS];
        if (!page) {
            page.reset(new Cell[CELLS < bytes ? CELLS : bytes]());
        }
        return &page[offset % CELLS];
    }
    bool always_known() const /* the host writes it unseen */
    {
        return memory == Memory::Managed || memory == Memory::Pinned;
    }
    const char *kind() const
    {
        return memory == Memory::Shared ? "shared" : memory == Memory::Pinned ? "pinned" : "global";
    }
};

/* Never destroyed: a thread may run when the program ends. */
std::map<const char *, Object> &objects = *new std::map<const char *, Object>;
Object *recent[RECENT]; /* by address */
const void *sites[SITES];
unsigned first_of_launch, blocks_before;
bool fenced;
const char *args_begin;
size_t args_size;

void forget_recent()
{
    memset(recent, 0, sizeof recent);
}

/* The object that an address lies in, or at whose end it is nearest. */
Object *find(const char *at)
{
    Object **slot = &recent[(uintptr_t)at / 64 % RECENT];
    if (*slot && (size_t)(at - (*slot)->base) < (*slot)->bytes) {
        return *slot;
    }
    auto next = objects.upper_bound(at);
    if (next == objects.begin()) {
        return nullptr;
    }
    return *slot = &std::prev(next)->second;
}

unsigned site_of(const void *pc)
{
    unsigned slot = (unsigned)((uintptr_t)pc * 0x9e3779b97f4a7c15u >> 53);
    for (unsigned tries = 0; tries < 64; tries++, slot = (slot + 1) % SITES) {
        if (slot && sites[slot] == pc) {
            return slot;
        }
        if (slot && !sites[slot]) {
            sites[slot] = pc;
            return slot;
        }
    }
    return 0; /* too many */
}

/* "file:line" of a call's return address, by addr2line where that is there. */
struct Place {
    char text[512];
    explicit Place(const void *pc)
    {
        char program[256], command[400];
        const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        const size_t offset = (size_t)(static_cast<const char *>(pc) - __executable_start) - 1;
        snprintf(command, sizeof command, "addr2line -pe %s 0x%zx 2>&1", program, offset);
        snprintf(text, sizeof text, "pc +0x%zx", offset);
        FILE *pipe = pc ? popen(command, "r") : nullptr;
        if (pipe) {
            if (fgets(text, sizeof text, pipe)) {
                text[strcspn(text, " \n")] = 0;
            }
            pclose(pipe);
        } else {
            snprintf(text, sizeof text, "an unknown place");
        }
    }
};

struct Access {
    const char *at;
    size_t bytes;
    bool write, atomic;
    const void *pc;
    bool moves = false; /* an asynchronous copy: takes along whether there is a value */
    const char *verb() const
    {
        return write ? "writes" : "reads";
    }
};

[[noreturn]] void fail_address(const Access &access, const Object *near)
{
    const Place here(access.pc);
    if (near && near->freed) {
        fail("%s: %s memory that was freed", here.text, access.verb());
    }
    if (near) {
        fail("%s: %s %zu bytes at %p, which is no memory of the device: %td bytes from the start "
             "of the nearest, a %s object of %zu bytes",
             here.text, access.verb(), access.bytes, (const void *)access.at,
             access.at - near->base, near->kind(), near->bytes);
    }
    fail("%s: %s %zu bytes at %p, which is no memory of the device", here.text, access.verb(),
         access.bytes, (const void *)access.at);
}

[[noreturn]] void fail_race(const Access &access, const Object *object, size_t offset,
                            const Stamp &other, bool other_writes)
{
    static const char *const who[] = {"", " and others of its warp", " and other warps",
                                      " and other blocks"};
    const Place here(access.pc), there(sites[other.site]);
    fail("%s: race in %s memory, byte %zu of %zu: %s what thread %u of %s block%s %s at %s",
         here.text, object->kind(), offset, object->bytes, access.verb(), (unsigned)other.thread,
         other.block == block_count() - blocks_before ? "the same" : "another", who[other.who],
         other_writes ? "wrote" : "read", there.text);
}

bool is_race(const Stamp &before, const Stamp &now)
{
    if (before.block < first_of_launch || before.block == 0 || (before.atomic && now.atomic)) {
        return false;
    }
    if (before.block != now.block || before.who == Blocks) {
        return !fenced;
    }
    if (before.barriers != now.barriers || (before.thread == now.thread && before.who == Thread)) {
        return false;
    }
    return before.who == Warps || before.thread / 32 != now.thread / 32 ||
           before.syncs == now.syncs;
}

Who readers(const Stamp &before, const Stamp &now)
{
    if (before.block < first_of_launch || before.block == 0) {
        return Thread;
    }
    if (before.block != now.block || before.who == Blocks) {
        return Blocks;
    }
    if (before.barriers != now.barriers) {
        return Thread;
    }
    if (before.who == Warps || before.thread / 32 != now.thread / 32) {
        return Warps;
    }
    const bool others = before.who == OneWarp || before.thread != now.thread;
    return before.syncs == now.syncs && others ? OneWarp : Thread;
}

void check_cells(const Access &access, Object *object, size_t offset, Stamp now)
{
    for (size_t i = offset; i < offset + access.bytes; i++) {
        Cell *cell = object->cell(i);
        if (!access.write && !access.moves && !cell->write.known && !object->always_known()) {
            fail("%s: reads %s memory that nobody wrote: byte %zu of %zu", Place(access.pc).text,
                 object->kind(), i, object->bytes);
        }
        if (is_race(cell->write, now)) {
            fail_race(access, object, i, cell->write, true);
        }
        if (access.write && is_race(cell->read, now)) {
            fail_race(access, object, i, cell->read, false);
        }
        if (access.write) {
            cell->write = now;
        } else {
            const Who who = readers(cell->read, now);
            cell->read = now;
            cell->read.who = who & 3;
        }
    }
}

void check(const Access &access)
{
    Stand at;
    if (!stand(&at) || (size_t)(access.at - at.stack) < STACK_BYTES) {
        return; /* not in a kernel, or on the thread's own stack */
    }
    if (!access.atomic) {
        may_yield();
    }
    Object *object = find(access.at);
    const size_t offset = object ? (size_t)(access.at - object->base) : 0;
    if (!object || object->freed || offset + access.bytes > object->bytes) {
        const bool is_argument = (size_t)(access.at - args_begin) < args_size;
        const bool is_constant = access.at >= __executable_start && access.at < end;
        if (!access.write && (is_argument || is_constant)) {
            return;
        }
        fail_address(access, object);
    }
    Stamp now = {};
    now.block = (at.block - blocks_before) & LAST_BLOCK;
    now.barriers = at.barriers & 0x3ff;
    now.syncs = at.warp_syncs & 0x1ff;
    now.thread = at.thread & 0x3ff;
    now.site = site_of(access.pc) & (SITES - 1);
    now.atomic = access.atomic;
    now.known = 1;
    check_cells(access, object, offset, now);
}

void check_aligned(const Access &access)
{
    Stand at;
    if ((uintptr_t)access.at % access.bytes && stand(&at)) {
        fail("%s: %s %zu bytes at %p, which is not aligned to them", Place(access.pc).text,
             access.verb(), access.bytes, (const void *)access.at);
    }
    check(access);
}

/* Block numbers start anew; who had a value keeps it. */
void renumber()
{
    blocks_before = block_count();
    for (auto &[base, object] : objects) {
        for (std::unique_ptr<Cell[]> &page : object.pages) {
            const size_t cells = CELLS < object.bytes ? CELLS : object.bytes;
            for (size_t i = 0; page && i < cells; i++) {
                const bool known = page[i].write.known;
                page[i] = {};
                page[i].write.known = known;
            }
        }
    }
}

} // namespace

void note_memory(const void *at, size_t bytes, Memory memory)
{
    const char *base = static_cast<const char *>(at);
    forget_recent();
    auto found = objects.find(base);
    if (found != objects.end() && found->second.bytes == bytes && memory == Memory::Shared &&
        found->second.memory == Memory::Shared) { /* of the next block */
        for (std::unique_ptr<Cell[]> &page : found->second.pages) {
            if (page) {
                memset(static_cast<void *>(page.get()), 0,
                       (CELLS < bytes ? CELLS : bytes) * sizeof(Cell));
            }
        }
        return;
    }
    auto next = objects.lower_bound(base);
    if (next != objects.begin() && std::prev(next)->first + std::prev(next)->second.bytes > base) {
        --next;
    }
    while (next != objects.end() && next->first < base + bytes) {
        next = objects.erase(next);
    }
    Object &object = objects[base];
    object.base = base;
    object.bytes = bytes;
    object.memory = memory;
    object.freed = false;
    object.pages.resize((bytes + CELLS - 1) / CELLS);
}

void note_free(const void *at)
{
    auto found = objects.find(static_cast<const char *>(at));
    forget_recent();
    if (found != objects.end() && found->second.memory == Memory::Shared) {
        objects.erase(found);
    } else if (found != objects.end()) {
        found->second.freed = true;
        found->second.pages.clear();
    }
}

void note_launch(const void *args, size_t args_bytes)
{
    args_begin = static_cast<const char *>(args);
    args_size = args_bytes;
    fenced = false;
    /* A grid of more blocks than numbers would be taken for ordered, no worse. */
    if (block_count() - blocks_before > LAST_BLOCK / 2) {
        renumber();
    }
    first_of_launch = block_count() - blocks_before + 1;
}

void note_fence()
{
    fenced = true;
}

void note_copy(const void *to, const void *from, size_t bytes)
{
    Object *target = find(static_cast<const char *>(to));
    Object *source = from ? find(static_cast<const char *>(from)) : nullptr;
    if (!target || target->freed || target->always_known()) {
        return;
    }
    const size_t offset = (size_t)(static_cast<const char *>(to) - target->base);
    const char *first = static_cast<const char *>(from);
    const bool is_known = !source || source->freed || source->always_known() ||
                          (size_t)(first - source->base) + bytes > source->bytes;
    for (size_t i = 0; i < bytes && offset + i < target->bytes; i++) {
        target->cell(offset + i)->write.known =
            is_known || source->cell((size_t)(first - source->base) + i)->write.known;
    }
}

void note_async(void *to, const void *from, size_t bytes, bool lands)
{
    const void *pc = __builtin_return_address(0);
    if (lands) {
        check_aligned({static_cast<const char *>(from), bytes, false, false, pc, true});
    }
    check_aligned({static_cast<const char *>(to), bytes, true, false, pc});
    if (lands) { /* whoever reads what nobody wrote is told then, not the copy */
        note_copy(to, from, bytes);
        return;
    }
    Object *target = find(static_cast<const char *>(to));
    for (size_t i = 0; i < bytes; i++) {
        target->cell((size_t)(static_cast<const char *>(to) - target->base) + i)->write.known = 0;
    }
}

} // namespace simt

/* What gcc -fsanitize=thread calls. */
#define PC __builtin_return_address(0)
#define CHECK(n, write, atomic)                                                                    \
    simt::check_aligned(                                                                           \
        {static_cast<const char *>(static_cast<const void *>(at)), n, write, atomic, PC})
#define ACCESSES(n)                                                                                \
    void __tsan_read##n(void *at)                                                                  \
    {                                                                                              \
        CHECK(n, false, false);                                                                    \
    }                                                                                              \
    void __tsan_write##n(void *at)                                                                 \
    {                                                                                              \
        CHECK(n, true, false);                                                                     \
    }                                                                                              \
    void __tsan_unaligned_read##n(void *at)                                                        \
    {                                                                                              \
        simt::check({static_cast<const char *>(at), n, false, false, PC});                         \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *at)                                                       \
    {                                                                                              \
        simt::check({static_cast<const char *>(at), n, true, false, PC});                          \
    }
#define ATOMICS(bits, type)                                                                        \
    type __tsan_atomic##bits##_load(const type *at, int)                                           \
    {                                                                                              \
        CHECK(sizeof(type), false, true);                                                          \
        return __atomic_load_n(at, __ATOMIC_RELAXED);                                              \
    }                                                                                              \
    type __tsan_atomic##bits##_fetch_add(type *at, type value, int)                                \
    {                                                                                              \
        CHECK(sizeof(type), true, true);                                                           \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                    \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(type *at, type *expected, type value, int,   \
                                                      int)                                         \
    {                                                                                              \
        CHECK(sizeof(type), true, true);                                                           \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_RELAXED,           \
                                           __ATOMIC_RELAXED);                                      \
    }                                                                                              \
    type __tsan_atomic##bits##_compare_exchange_val(type *at, type expected, type value, int, int) \
    {                                                                                              \
        CHECK(sizeof(type), true, true);                                                           \
        __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED,                 \
                                    __ATOMIC_RELAXED);                                             \
        return expected;                                                                           \
    }

extern "C" {

void __tsan_init();
void __tsan_vptr_read(void **);
void __tsan_vptr_update(void **, void *);
void __tsan_read_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes);

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long)

void __tsan_init()
{
}

/* Of C++ objects: none in kernels. */
void __tsan_vptr_read(void **)
{
}

void __tsan_vptr_update(void **, void *)
{
}

void __tsan_read_range(void *at, size_t bytes)
{
    simt::check({static_cast<const char *>(at), bytes, false, false, PC});
}

void __tsan_write_range(void *at, size_t bytes)
{
    simt::check({static_cast<const char *>(at), bytes, true, false, PC});
}

} // extern "C"
