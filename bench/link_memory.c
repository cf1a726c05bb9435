/*
 * link_memory.c: owns the regions: planned and refused before anything is touched, then mapped,
 * bound to their node, touched, and looked at: where the pages lie, how large they are.
 */
#include "bench/link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/addr.h"
#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/thread.h"
#include "runtime/cli/cli.h"

#define HUGE_BYTES ((uint64_t)2 << 20)
#define FILL_BYTES ((uint64_t)16 << 20) /* by one thread at a time */
#define LOOK_PAGES 1024u

/* ---- plan ---- */

static void count_bytes(struct link *link)
{
    uint64_t regions = 0;
    for (int memory = 0; memory < LINK_MEMORIES; memory++) {
        for (uint32_t node = 0; node < link->node_count; node++) {
            regions += pkvi_link_uses(link, (enum link_memory)memory, node) ? link->pairs : 0;
        }
    }
    link->host_bytes = regions * link->region_bytes;
    link->device_bytes = link->pairs * link->region_bytes + pkvi_link_compute_bytes(link);
}

/* The largest power of 2, whole MiB, that would fit as a region; 0: none. */
static uint64_t smaller_region(const struct link *link, uint64_t available)
{
    uint64_t regions = link->host_bytes / link->region_bytes + link->pairs;
    uint64_t fixed = (uint64_t)256 << 20; /* kernels, page tables, what else grows meanwhile */
    for (uint64_t bytes = PKVI_HOST_PIECE_BYTES; bytes >= (uint64_t)1 << 20; bytes /= 2) {
        if (bytes < link->region_bytes && available > fixed &&
            bytes <= (available - fixed) / regions) {
            return bytes;
        }
    }
    return 0;
}

/* On the cpu device all of it is one memory. */
static enum pkv_status admit(struct link *link)
{
    struct pkvi_limits limits;
    pkvi_limits_memory("", &limits);
    bool shared = strcmp(link->info.name, "cpu") == 0;
    uint64_t asked = link->host_bytes + (shared ? link->device_bytes : 0);
    uint64_t tables = asked / 512, available = limits.memory_available_bytes;
    uint64_t limit = (uint64_t)link->options.memory_bytes;
    available = limit > 0 && limit < available ? limit : available;
    if (asked + tables <= available &&
        (shared || link->device_bytes <= link->info.memory_free_bytes)) {
        return PKV_OK;
    }
    char advice[64] = "a smaller --region and --max-size";
    uint64_t smaller = smaller_region(link, available);
    if (smaller > 0 && asked + tables > available) {
        snprintf(advice, sizeof advice, "--region %" PRIu64 "MiB and no larger --max-size",
                 smaller >> 20);
    }
    return PKV_FAIL(PKV_ERR_NO_MEMORY,
                    "memory: %" PRIu64 " bytes asked on the host, %" PRIu64
                    " on the device%s, %" PRIu64 " for page tables; %" PRIu64 " available, %" PRIu64
                    " free on the device; use %s",
                    link->host_bytes, link->device_bytes, shared ? " (the same memory)" : "",
                    tables, available, link->info.memory_free_bytes, advice);
}

/* ---- memory that is not pinned ---- */

struct fill {
    uint8_t *base;
    uint64_t bytes;
};

static void fill_unit(void *context, uint32_t unit, uint32_t worker)
{
    const struct fill *fill = context;
    uint64_t at = unit * FILL_BYTES, left = fill->bytes - at;
    (void)worker;
    memset(fill->base + at, (int)(unit % 251 + 1), left < FILL_BYTES ? left : FILL_BYTES);
}

/* The first touch of pageable memory, and the first bytes of all. */
static enum pkv_status fill(uint8_t *base, uint64_t bytes)
{
    struct fill context = {base, bytes};
    struct pkvi_pool *pool;
    PKV_TRY(pkvi_pool_open(pkvi_threads_available(), &pool));
    pkvi_pool_run(pool, fill_unit, &context, (uint32_t)((bytes - 1) / FILL_BYTES + 1));
    pkvi_pool_close(pool);
    return PKV_OK;
}

static enum pkv_status map_pages(struct link *link, struct link_host *host, uint32_t pair,
                                 bool huge, uint32_t node)
{
    uint64_t bytes = link->region_bytes;
    uint8_t *map =
        mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "mapping of %" PRIu64 " bytes refused: %s", bytes,
                        strerror(errno));
    }
    uint64_t before = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
    if (before > 0) {
        munmap(map, before);
    }
    munmap(map + before + bytes, HUGE_BYTES - before);
    host->map[pair] = host->base[pair] = map + before;
    host->map_bytes[pair] = bytes;
    host->addr[pair] = pkvi_addr(host->base[pair]);
    /* Refused where the kernel has no huge pages: seen in huge_share. */
    (void)madvise(host->map[pair], bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (link->topo->node_count > 1) {
        int error = pkvi_topo_bind_memory(host->base[pair], bytes, link->nodes[node], false);
        if (error != 0) {
            pkvi_say_note("warning  memory is not bound to node %u: %s", link->nodes[node],
                          strerror(error));
        }
    }
    return PKV_OK;
}

static enum pkv_status open_arena(struct link *link, struct link_host *host, uint32_t pair,
                                  uint32_t node)
{
    struct pkvi_host_arena_config config = {.bytes = link->region_bytes,
                                            .block_bytes = link->region_bytes,
                                            .node = (int32_t)link->nodes[node]};
    PKV_TRY(pkvi_host_arena_open(link->device, &config, &host->arena[pair]));
    struct pkvi_host_block block = pkvi_host_arena_block(host->arena[pair], 0);
    host->base[pair] = block.host;
    host->addr[pair] = block.addr;
    return PKV_OK;
}

/* Of the first pair; unknown stays unknown. */
static void look(struct link *link, struct link_host *host, uint32_t node)
{
    void *pages[LOOK_PAGES];
    int nodes[LOOK_PAGES];
    uint64_t huge = 0, page = (uint64_t)sysconf(_SC_PAGESIZE), whole = link->region_bytes / page;
    uint32_t count = whole < LOOK_PAGES ? (uint32_t)whole : LOOK_PAGES, there = 0;
    host->node_share = host->huge_share = -1;
    if (pkvi_host_calls.huge_bytes(host->base[0], link->region_bytes, &huge) == 0) {
        host->huge_share =
            huge < link->region_bytes ? (double)huge / (double)link->region_bytes : 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = host->base[0] + whole / count * i * page;
    }
    if (count > 0 && pkvi_topo_page_nodes(pages, count, nodes) == 0) {
        for (uint32_t i = 0; i < count; i++) {
            there += nodes[i] == (int)link->nodes[node];
        }
        host->node_share = (double)there / (double)count;
    }
}

static enum pkv_status open_host(struct link *link, enum link_memory memory, uint32_t node)
{
    struct link_host *host = &link->host[memory][node];
    for (uint32_t pair = 0; pair < link->pairs; pair++) {
        PKV_TRY(memory == LINK_PINNED ? open_arena(link, host, pair, node)
                                      : map_pages(link, host, pair, memory == LINK_HUGE, node));
        PKV_TRY(fill(host->base[pair], link->region_bytes));
    }
    look(link, host, node);
    return PKV_OK;
}

/* ---- life ---- */

/* Device memory is touched by a copy into all of it. */
static enum pkv_status open_device_regions(struct link *link)
{
    const struct link_host *host = NULL;
    for (int memory = 0; memory < LINK_MEMORIES && !host; memory++) {
        host = link->host[memory][0].base[0] ? &link->host[memory][0] : NULL;
    }
    for (uint32_t pair = 0; pair < link->pairs && host; pair++) {
        PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_DEVICE, link->region_bytes,
                               &link->device_region[pair]));
        const struct pkv_span span = {
            .dst = link->device_region[pair], .src = host->addr[pair], .bytes = link->region_bytes};
        PKV_TRY(pkvi_copy_async(link->compute, &span, 1));
        PKV_TRY(pkvi_stream_sync(link->compute));
    }
    return PKV_OK;
}

enum pkv_status pkvi_link_memory_open(struct link *link)
{
    count_bytes(link);
    PKV_TRY(admit(link));
    PKV_TRY(pkvi_mem_alloc(link->device, PKV_MEM_PINNED, 2 * LINK_SCRATCH_BYTES, &link->scratch));
    for (int memory = 0; memory < LINK_MEMORIES; memory++) {
        for (uint32_t node = 0; node < link->node_count; node++) {
            if (pkvi_link_uses(link, (enum link_memory)memory, node)) {
                PKV_TRY(open_host(link, (enum link_memory)memory, node));
            }
        }
    }
    PKV_TRY(pkvi_link_compute_open(link));
    return open_device_regions(link);
}

void pkvi_link_memory_close(struct link *link)
{
    pkvi_link_compute_close(link);
    for (uint32_t pair = 0; pair < 2; pair++) {
        pkvi_mem_free(link->device, PKV_MEM_DEVICE, link->device_region[pair]);
        for (uint32_t i = 0; i < LINK_MEMORIES * LINK_NODES_MOST; i++) {
            struct link_host *host = &link->host[i / LINK_NODES_MOST][i % LINK_NODES_MOST];
            pkvi_host_arena_close(host->arena[pair]);
            if (host->map[pair]) {
                munmap(host->map[pair], host->map_bytes[pair]);
            }
        }
    }
    pkvi_mem_free(link->device, PKV_MEM_PINNED, link->scratch);
}
