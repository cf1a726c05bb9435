/*
 * host_arena.c: mmap > MADV_HUGEPAGE > mbind > parallel first touch > verify > pin, in this order:
 * advice and policy count at the first touch, and pinned pages do not move any more. What is
 * refused on the way is a note where the memory still works, else a failure that leaves nothing.
 */
#include "offload/host_arena.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/device/device.h"

#define HUGE_BYTES ((uint64_t)2 << 20)
#define TOUCH_BYTES ((uint64_t)16 << 20) /* one thread at a time; some milliseconds */
#define MOST_THREADS 16u                 /* more did not touch faster where it was measured */
#define SAMPLE_PAGES 1024u
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Where blocks lie: pieces of blocks_per_piece, each from a page on; the last may be shorter. */
struct layout {
    uint64_t block_bytes, blocks_per_piece, piece_bytes;
    uint64_t blocks, pieces, bytes;
};

struct pkvi_host_arena {
    struct pkv_device *device;
    const struct pkvi_host_calls *calls;
    struct layout layout;
    uint8_t *base;
    void *map; /* what is to be unmapped: more than [base, + bytes) where a trim was refused */
    uint64_t map_bytes;
    struct pkvi_host_report report;
    pkv_addr piece_addr[]; /* [pieces] */
};

/* What only the open needs. */
struct build {
    const struct pkvi_host_arena_config *config;
    struct pkvi_host_arena *arena;
    struct pkvi_host_report *report; /* the arena's */
    const struct pkvi_host_calls *calls;
    struct pkvi_host host;
    struct pkvi_topo *topo;            /* NULL: not looked at */
    const struct pkvi_topo_node *node; /* in topo; NULL: unknown, or the only one */
    bool one_node;
    int advice_error;
};

static void note(struct build *b, enum pkv_log_level level, const char *name, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));

static void note(struct build *b, enum pkv_log_level level, const char *name, const char *format,
                 ...)
{
    struct pkvi_host_note line = {.name = name};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line.text, sizeof line.text, format, args);
    va_end(args);
    pkvi_log(level, "host", "%s: %s", name, line.text);
    if (b->report->note_count < PKVI_HOST_NOTES) {
        b->report->notes[b->report->note_count++] = line;
    }
}

/* ---- layout ---- */

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static enum pkv_status lay_out_piece(const struct pkvi_host_arena_config *config,
                                     struct layout *layout)
{
    uint64_t piece = config->piece_bytes ? config->piece_bytes : PKVI_HOST_PIECE_BYTES;
    if (piece > PKVI_HOST_PIECE_BYTES || piece % page_bytes() != 0) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "host arena: pieces of %" PRIu64 " bytes: expected whole pages, at most "
                        "%" PRIu64,
                        piece, PKVI_HOST_PIECE_BYTES);
    }
    if (config->block_bytes == 0 || config->block_bytes > piece) {
        return PKV_FAIL(PKV_ERR_RANGE,
                        "host arena: blocks of %" PRIu64 " bytes: expected 1 to %" PRIu64,
                        config->block_bytes, piece);
    }
    layout->block_bytes = config->block_bytes;
    layout->blocks_per_piece = piece / config->block_bytes;
    layout->piece_bytes = round_up(layout->blocks_per_piece * config->block_bytes, page_bytes());
    return PKV_OK;
}

static enum pkv_status lay_out_blocks(struct layout *layout, uint64_t blocks)
{
    uint64_t full = 0, last;
    if (blocks == 0) {
        return PKV_FAIL(PKV_ERR_RANGE, "host arena: no room for one block of %" PRIu64 " bytes",
                        layout->block_bytes);
    }
    layout->blocks = blocks;
    layout->pieces = (blocks - 1) / layout->blocks_per_piece + 1;
    last = blocks - (layout->pieces - 1) * layout->blocks_per_piece;
    if (__builtin_mul_overflow(layout->pieces - 1, layout->piece_bytes, &full) ||
        full > INT64_MAX - layout->piece_bytes - HUGE_BYTES) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "host arena: %" PRIu64 " blocks of %" PRIu64 " bytes: more than there can "
                        "be",
                        blocks, layout->block_bytes);
    }
    layout->bytes = full + round_up(last * layout->block_bytes, page_bytes());
    return PKV_OK;
}

enum pkv_status pkvi_host_arena_plan(const struct pkvi_host_arena_config *config, uint64_t blocks,
                                     uint64_t *bytes_out)
{
    struct layout layout = {0};
    if (!config || !bytes_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "plan a host arena: NULL argument");
    }
    PKV_TRY(lay_out_piece(config, &layout));
    PKV_TRY(lay_out_blocks(&layout, blocks));
    *bytes_out = layout.bytes;
    return PKV_OK;
}

static enum pkv_status lay_out(const struct pkvi_host_arena_config *config, struct layout *layout)
{
    PKV_TRY(lay_out_piece(config, layout));
    uint64_t full = config->bytes / layout->piece_bytes, rest = config->bytes % layout->piece_bytes;
    return lay_out_blocks(layout, full * layout->blocks_per_piece + rest / layout->block_bytes);
}

/* ---- before anything is mapped ---- */

/* Refuse what would end in swapping or in the out-of-memory killer. */
static enum pkv_status admit(struct build *b)
{
    const struct pkvi_limits *memory = &b->host.memory;
    uint64_t bytes = b->arena->layout.bytes, tables = bytes / 512; /* 8 bytes a page of 4 KiB */
    b->calls->facts("", &b->host);
    uint64_t available = memory->memory_available_bytes;
    uint64_t used = memory->cgroup_used_bytes, limit = memory->cgroup_limit_bytes;
    b->report->available_bytes = available;
    if (bytes + tables <= available) {
        return PKV_OK;
    }
    if (limit > 0 && (used >= limit || limit - used <= available)) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "host memory: %" PRIu64 " bytes asked (page tables %" PRIu64
                        " more), %" PRIu64 " available: the cgroup's limit is %" PRIu64
                        ", in use %" PRIu64 "; docker run --memory SIZE, systemd MemoryMax=SIZE, "
                        "or memory.max of the cgroup",
                        bytes, tables, available, limit, used);
    }
    return PKV_FAIL(PKV_ERR_NO_MEMORY,
                    "host memory: %" PRIu64 " bytes asked (page tables %" PRIu64 " more), %" PRIu64
                    " available of %" PRIu64 " that this machine has; no limit to raise",
                    bytes, tables, available, memory->memory_total_bytes);
}

/* Which node, and what is known of it. */
static enum pkv_status find_node(struct build *b)
{
    struct pkv_device_info info;
    uint32_t only;
    int32_t wanted = b->config->node;
    bool named = wanted >= 0;
    if (!named) {
        PKV_TRY(pkv_device_query(b->arena->device, &info));
        wanted = info.numa_node;
    }
    b->one_node = b->calls->one_node(&only);
    if (b->one_node) {
        b->report->node = (int32_t)only;
        if (named && (uint32_t)wanted != only) {
            return PKV_FAIL(PKV_ERR_INVALID, "NUMA node %d: this machine has node %u only", wanted,
                            only);
        }
        note(b, PKV_LOG_INFO, "node", "the machine has one NUMA node: nothing to bind");
        return PKV_OK;
    }
    if (b->calls->topo_open(NULL, &b->topo) != PKV_OK) {
        b->report->node = wanted < 0 ? -1 : wanted;
        note(b, PKV_LOG_WARN, "node",
             "the machine's topology is unknown (%s): touched from any CPU", pkv_error_text());
        return PKV_OK;
    }
    if (wanted < 0 && b->topo->node_count == 1) {
        wanted = (int32_t)b->topo->nodes[0].number;
    }
    for (uint32_t i = 0; i < b->topo->node_count && wanted >= 0; i++) {
        if (b->topo->nodes[i].number == (uint32_t)wanted) {
            b->node = &b->topo->nodes[i];
            b->report->node = wanted;
            return PKV_OK;
        }
    }
    if (named) {
        return PKV_FAIL(PKV_ERR_INVALID,
                        "NUMA node %d: not one of the %u that this process may use; docker run "
                        "--cpuset-mems, numactl --membind",
                        wanted, b->topo->node_count);
    }
    note(b, PKV_LOG_WARN, "node",
         "%s: memory lies where it is touched; numactl --cpunodebind=N --membind=N keeps it on one",
         wanted < 0 ? "the device names no NUMA node"
                    : "this process may not use the device's NUMA node");
    return PKV_OK;
}

/* ---- mapping ---- */

static enum pkv_status map_memory(struct build *b, int flags)
{
    struct pkvi_host_arena *arena = b->arena;
    uint64_t bytes = arena->layout.bytes;
    uint8_t *map = b->calls->mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (map == MAP_FAILED) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "host memory: mapping of %" PRIu64 " bytes refused (%s): the limit is "
                        "address space (ulimit -v unlimited) or commit (sysctl "
                        "vm.overcommit_memory=0)",
                        bytes, strerror(errno));
    }
    uint64_t before = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
    uint64_t after = HUGE_BYTES - before;
    arena->map = map;
    arena->map_bytes = bytes + HUGE_BYTES;
    arena->base = map + before;
    /* A trim that is refused costs addresses, not memory: the rest goes at close. */
    if (before > 0 && b->calls->munmap(map, before) == 0) {
        arena->map = arena->base;
        arena->map_bytes -= before;
    }
    if (b->calls->munmap(arena->base + bytes, after) == 0) {
        arena->map_bytes -= after;
    }
    b->report->granted_bytes = bytes;
    return PKV_OK;
}

static void advise(struct build *b)
{
    uint64_t bytes = b->arena->layout.bytes;
    if (b->calls->madvise(b->arena->base, bytes, MADV_HUGEPAGE) != 0) {
        b->advice_error = errno;
        note(b, PKV_LOG_WARN, "huge pages",
             "madvise refused (%s): the kernel is built without transparent huge pages",
             strerror(b->advice_error));
    }
    if (b->calls->madvise(b->arena->base, bytes, MADV_DONTFORK) != 0) {
        note(b, PKV_LOG_WARN, "fork", "madvise refused (%s): a fork would copy all pinned memory",
             strerror(errno));
    }
}

static const char *why_not_bound(int error)
{
    switch (error) {
    case EPERM:
        return "a container's seccomp profile: docker run --cap-add SYS_NICE";
    case EINVAL:
        return "the node is outside the cpuset: docker run --cpuset-mems, numactl --membind";
    case ENOSYS:
        return "the kernel is built without NUMA";
    default:
        return "no known limit";
    }
}

static void bind_memory(struct build *b)
{
    const struct pkvi_topo_node *node = b->node;
    uint64_t bytes = b->arena->layout.bytes, available = UINT64_MAX;
    if (b->one_node || b->report->node < 0) {
        return;
    }
    if (node && node->memory_bytes > 0) {
        available = node->available_bytes > 0 ? node->available_bytes : node->memory_bytes;
    }
    if (bytes > available) { /* strict binding would end in the out-of-memory killer */
        note(b, PKV_LOG_WARN, "bind",
             "node %d has %" PRIu64 " bytes available, %" PRIu64 " asked: the rest comes from "
             "other nodes; free memory there or ask for less",
             b->report->node, available, bytes);
    }
    int error =
        b->calls->bind_memory(b->arena->base, bytes, (uint32_t)b->report->node, bytes <= available);
    if (error != 0) {
        note(b, PKV_LOG_WARN, "bind",
             "mbind to node %d refused (%s): %s; touched by threads of the node instead",
             b->report->node, strerror(error), why_not_bound(error));
    }
}

/* ---- first touch ---- */

struct touch {
    const struct pkvi_host_calls *calls;
    uint8_t *base;
    uint64_t bytes;
    _Atomic int error;   /* the last that stands for missing memory */
    _Atomic int refused; /* the last other one: touched by writes */
};

static void touch_unit(void *context, uint32_t unit, uint32_t worker)
{
    struct touch *touch = context;
    uint64_t at = unit * TOUCH_BYTES, left = touch->bytes - at;
    uint64_t bytes = left < TOUCH_BYTES ? left : TOUCH_BYTES;
    (void)worker;
    if (atomic_load_explicit(&touch->error, memory_order_relaxed) != 0 ||
        touch->calls->madvise(touch->base + at, bytes, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) {
        atomic_store_explicit(&touch->error, errno, memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&touch->refused, errno, memory_order_relaxed);
    for (uint64_t i = 0, page = page_bytes(); i < bytes; i += page) {
        *(volatile uint8_t *)(touch->base + at + i) = 0;
    }
}

/* Move to the node's CPUs, for the threads to come too; true: `before` is to be restored. */
static bool move_to_node(struct build *b, struct pkvi_topo_cpus *before)
{
    struct pkvi_topo_cpus cpus;
    unsigned long any = 0;
    if (!b->node) {
        return false;
    }
    int error = b->calls->thread_cpus(before);
    for (size_t i = 0; i < sizeof cpus.word / sizeof cpus.word[0] && error == 0; i++) {
        cpus.word[i] = before->word[i] & b->node->cpu_set.word[i];
        any |= cpus.word[i];
    }
    if (error == 0 && any == 0) {
        note(b, PKV_LOG_WARN, "touch",
             "this process may run on no CPU of node %d: touched from others; docker run "
             "--cpuset-cpus, numactl --cpunodebind=%d",
             b->report->node, b->report->node);
        return false;
    }
    if (error == 0) {
        error = b->calls->run_on(&cpus);
    }
    if (error != 0) {
        note(b, PKV_LOG_WARN, "touch", "CPU affinity refused (%s): touched from any CPU",
             strerror(error));
    }
    return error == 0;
}

static void touch_in_parallel(struct build *b, struct touch *touch)
{
    struct pkvi_pool *pool = NULL;
    uint32_t units = (uint32_t)((touch->bytes - 1) / TOUCH_BYTES + 1), threads = b->config->threads;
    if (threads == 0) {
        threads = pkvi_threads_available();
        threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    }
    threads = threads < units ? threads : units;
    if (threads > 1 && b->calls->pool_open(threads, &pool) != PKV_OK) {
        note(b, PKV_LOG_WARN, "touch", "%s: touched by one thread", pkv_error_text());
        threads = 1;
    }
    b->report->threads = threads;
    if (pool) {
        pkvi_pool_run(pool, touch_unit, touch, units);
    } else {
        for (uint32_t unit = 0; unit < units; unit++) {
            touch_unit(touch, unit, 0);
        }
    }
    pkvi_pool_close(pool);
}

static enum pkv_status touch_memory(struct build *b)
{
    struct touch touch = {
        .calls = b->calls, .base = b->arena->base, .bytes = b->arena->layout.bytes};
    struct pkvi_topo_cpus before;
    uint64_t begin = pkvi_clock_ns();
    bool moved = move_to_node(b, &before);
    touch_in_parallel(b, &touch);
    int error = moved ? b->calls->run_on(&before) : 0;
    b->report->touch_ns = pkvi_clock_ns() - begin;
    if (error != 0) {
        note(b, PKV_LOG_WARN, "touch", "CPU affinity refused (%s): this thread stays on node %d",
             strerror(error), b->report->node);
    }
    if (atomic_load(&touch.error) != 0) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "host memory: the kernel ran out of it below %" PRIu64 " bytes asked (%s), "
                        "after %" PRIu64 " were available; something else took it",
                        touch.bytes, strerror(touch.error), b->report->available_bytes);
    }
    if (atomic_load(&touch.refused) != 0) {
        note(b, PKV_LOG_INFO, "touch",
             "MADV_POPULATE_WRITE refused (%s; Linux before 5.14 has none): touched by writes",
             strerror(touch.refused));
    }
    return PKV_OK;
}

/* ---- verification ---- */

/* Share of a sample of pages that lies on the node; 0 or an errno. */
static int sample_pages(struct build *b, double *share_out)
{
    void *pages[SAMPLE_PAGES];
    int nodes[SAMPLE_PAGES];
    uint64_t all = b->arena->layout.bytes / page_bytes(), there = 0;
    uint64_t count = all < SAMPLE_PAGES ? all : SAMPLE_PAGES;
    for (uint64_t i = 0; i < count; i++) { /* all < 2^51 */
        pages[i] = b->arena->base + i * all / count * page_bytes();
    }
    int error = b->calls->page_nodes(pages, count, nodes);
    for (uint64_t i = 0; i < count && error == 0; i++) {
        there += nodes[i] == b->report->node;
    }
    *share_out = (double)there / (double)count;
    return error;
}

static void verify_node(struct build *b)
{
    struct pkvi_host_report *report = b->report;
    double share = -1;
    if (report->node < 0) {
        return;
    }
    int error = sample_pages(b, &share);
    if (error != 0) {
        int other = b->calls->node_share(b->arena->base, b->arena->layout.bytes,
                                         (uint32_t)report->node, &share);
        if (other != 0) {
            note(
                b, PKV_LOG_WARN, "placement",
                "not known: move_pages refused (%s; docker run --security-opt seccomp=PROFILE that "
                "allows it), numa_maps too (%s)",
                strerror(error), strerror(other));
            return;
        }
        note(b, PKV_LOG_INFO, "placement", "move_pages refused (%s): read from numa_maps",
             strerror(error));
    }
    report->node_share = share;
    if (share < 0.99) {
        note(b, PKV_LOG_WARN, "placement",
             "%.1f %% of the looked-at pages lie on node %d, the others are slower for the device",
             100 * share, report->node);
    }
}

static void verify_huge_pages(struct build *b)
{
    uint64_t bytes = b->arena->layout.bytes, whole = bytes / HUGE_BYTES * HUGE_BYTES, huge = 0;
    int error = b->calls->huge_bytes(b->arena->base, bytes, &huge);
    if (error != 0) {
        note(b, PKV_LOG_INFO, "huge pages", "not known: /proc/self/smaps cannot be read (%s)",
             strerror(error));
        return;
    }
    b->report->huge_share = huge < bytes ? (double)huge / (double)bytes : 1;
    if (b->advice_error != 0 || (double)huge >= 0.9 * (double)whole) {
        return;
    }
    if (strcmp(b->host.huge_pages, "always") == 0 || strcmp(b->host.huge_pages, "madvise") == 0) {
        note(b, PKV_LOG_WARN, "huge pages",
             "%" PRIu64 " of %" PRIu64 " bytes: free memory is in small pieces; as root: echo 1 > "
             "/proc/sys/vm/compact_memory, then start again",
             huge, bytes);
    } else {
        note(b, PKV_LOG_WARN, "huge pages",
             "%" PRIu64 " of %" PRIu64 " bytes: transparent huge pages are off; as root: echo "
             "madvise > /sys/kernel/mm/transparent_hugepage/enabled",
             huge, bytes);
    }
}

/* ---- pins ---- */

/* A refused pin: go on without, or fail with limit and command. `piece` is the refused one. */
static enum pkv_status refused(struct build *b, uint64_t piece, uint64_t bytes)
{
    char why[160], limit[200];
    snprintf(why, sizeof why, "%s", pkv_error_text()); /* PKV_FAIL writes where it stands */
    if (!b->host.may_lock && b->host.memlock_bytes < b->arena->layout.bytes) {
        snprintf(limit, sizeof limit,
                 "memlock is %" PRIu64 " bytes: ulimit -l unlimited, systemd "
                 "LimitMEMLOCK=infinity, docker run --ulimit memlock=-1",
                 b->host.memlock_bytes);
    } else {
        snprintf(limit, sizeof limit,
                 "memlock is not the limit: see the kernel's log (dmesg), or ask for less");
    }
    if (!b->config->allow_unpinned) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "pinned memory: piece %" PRIu64 " of %" PRIu64 " (%" PRIu64
                        " bytes) refused: %s; %s",
                        piece + 1, b->arena->layout.pieces, bytes, why, limit);
    }
    note(b, PKV_LOG_WARN, "pin",
         "%" PRIu64 " of %" PRIu64 " bytes pinned, the others slow to copy: %s; %s",
         b->report->pinned_bytes, b->arena->layout.bytes, why, limit);
    return PKV_OK;
}

static enum pkv_status pin_pieces(struct build *b)
{
    struct pkvi_host_arena *arena = b->arena;
    const struct layout *layout = &arena->layout;
    uint64_t begin = pkvi_clock_ns();
    enum pkv_status status = PKV_OK;
    for (uint64_t i = 0; i < layout->pieces && status == PKV_OK; i++) {
        uint64_t at = i * layout->piece_bytes, left = layout->bytes - at;
        uint64_t bytes = left < layout->piece_bytes ? left : layout->piece_bytes;
        status = pkvi_mem_pin(arena->device, arena->base + at, bytes, &arena->piece_addr[i]);
        if (status == PKV_ERR_DEVICE_LOST) {
            break;
        }
        if (status != PKV_OK) {
            status = refused(b, i, bytes);
            break; /* more of the same would be refused as well, slowly */
        }
        b->report->pinned_pieces++;
        b->report->pinned_bytes += bytes;
    }
    b->report->pin_ns = pkvi_clock_ns() - begin;
    return status;
}

/* ---- life ---- */

static enum pkv_status build(struct build *b)
{
    struct pkv_device_info info;
    PKV_TRY(pkv_device_query(b->arena->device, &info));
    if (info.caps & PKV_CAP_NO_DATA) { /* addresses are all that it needs */
        PKV_TRY(map_memory(b, MAP_NORESERVE));
        return pin_pieces(b);
    }
    PKV_TRY(admit(b));
    PKV_TRY(find_node(b));
    PKV_TRY(map_memory(b, 0));
    advise(b);
    bind_memory(b);
    PKV_TRY(touch_memory(b));
    verify_node(b);
    verify_huge_pages(b);
    return pin_pieces(b);
}

enum pkv_status pkvi_host_arena_open(struct pkv_device *device,
                                     const struct pkvi_host_arena_config *config,
                                     struct pkvi_host_arena **arena_out)
{
    struct layout layout = {0};
    if (!device || !config || !arena_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "open a host arena: NULL argument");
    }
    PKV_TRY(lay_out(config, &layout));
    if (layout.bytes / TOUCH_BYTES >= INT32_MAX) { /* 2^55 bytes; pkvi_pool_run() takes no more */
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "host memory: %" PRIu64 " bytes asked", layout.bytes);
    }
    struct pkvi_host_arena *arena =
        calloc(1, sizeof *arena + layout.pieces * sizeof arena->piece_addr[0]);
    if (!arena) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a host arena of %" PRIu64 " pieces",
                        layout.pieces);
    }
    struct build b = {.config = config, .arena = arena, .report = &arena->report};
    b.calls = config->calls_or_null ? config->calls_or_null : &pkvi_host_calls;
    arena->device = device;
    arena->calls = b.calls;
    arena->layout = layout;
    arena->report = (struct pkvi_host_report){.asked_bytes = config->bytes,
                                              .blocks = layout.blocks,
                                              .pieces = layout.pieces,
                                              .node = -1,
                                              .node_share = -1,
                                              .huge_share = -1};
    enum pkv_status status = build(&b);
    pkvi_topo_close(b.topo);
    if (status != PKV_OK) {
        pkvi_host_arena_close(arena);
        return status;
    }
    *arena_out = arena;
    return PKV_OK;
}

void pkvi_host_arena_close(struct pkvi_host_arena *arena)
{
    if (!arena) {
        return;
    }
    for (uint64_t i = arena->report.pinned_pieces; i > 0; i--) {
        pkvi_mem_unpin(arena->device, arena->base + (i - 1) * arena->layout.piece_bytes);
    }
    if (arena->map && arena->calls->munmap(arena->map, arena->map_bytes) != 0) {
        pkvi_log(PKV_LOG_ERROR, "host", "unmapping of %" PRIu64 " bytes refused (%s)",
                 arena->map_bytes, strerror(errno));
    }
    free(arena);
}

struct pkvi_host_block pkvi_host_arena_block(const struct pkvi_host_arena *arena, uint64_t index)
{
    const struct layout *layout = &arena->layout;
    uint64_t piece = index / layout->blocks_per_piece;
    uint64_t at = index % layout->blocks_per_piece * layout->block_bytes;
    if (index >= layout->blocks) {
        return (struct pkvi_host_block){0};
    }
    struct pkvi_host_block block = {.host = arena->base + piece * layout->piece_bytes + at,
                                    .pinned = piece < arena->report.pinned_pieces};
    block.addr = block.pinned ? arena->piece_addr[piece] + at : pkvi_addr(block.host);
    return block;
}

const struct pkvi_host_report *pkvi_host_arena_report(const struct pkvi_host_arena *arena)
{
    return &arena->report;
}
