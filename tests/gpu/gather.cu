/*
 * gather.cu: how fast kernels read pieces of pinned host memory, as a recall does. A program for a
 * card: a line of JSON a cell of piece x footprint x CTAs x pages x priority x idle or beside a
 * kernel that streams device memory; first the speed of large copies, which bounds them all.
 *
 *   gather [--gib 1,16] [--samples 5] [--device N]
 *
 * Exit status: 0 = measured, 1 = something failed, 77 = no device.
 */
#include <cuda_runtime.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <thread>
#include <vector>

#include <sys/mman.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t check_error = (call);                                                    \
        if (check_error != cudaSuccess) {                                                          \
            fprintf(stderr, "gather: %s: %s\n", #call, cudaGetErrorString(check_error));           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const uint64_t MOVED_BYTES = (uint64_t)64 << 20; /* of a sample */
static const uint64_t BESIDE_BYTES = (uint64_t)1 << 30; /* more than any L2 cache */
static const unsigned THREADS = 512;

/* A warp a piece; four 16-byte loads of a lane are under way at once. */
static __global__ void gather(const uint4 *source, const uint64_t *first, uint4 *target,
                              uint32_t words, uint32_t pieces)
{
    const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    for (uint32_t p = (blockIdx.x * blockDim.x + threadIdx.x) / 32; p < pieces; p += warps) {
        const uint4 *from = source + first[p];
        uint4 *to = target + (uint64_t)p * words;
        for (uint32_t w = lane; w < words; w += 128) {
            uint4 value[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (w + 32 * i < words) {
                    value[i] = from[w + 32 * i];
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (w + 32 * i < words) {
                    to[w + 32 * i] = value[i];
                }
            }
        }
    }
}

/* What a matrix times a vector does to the memory of the device. */
static __global__ void stream_memory(const uint4 *memory, uint64_t words, uint32_t *sum)
{
    uint32_t mine = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const uint4 value = memory[i];
        mine += value.x ^ value.y ^ value.z ^ value.w;
    }
    if (mine == 0x9e3779b9u) { /* so that the loads are not dropped */
        *sum = mine;
    }
}

struct bench {
    uint64_t footprint;
    const char *pages;
    uint4 *host, *target, *beside;
    uint64_t *first;
    uint32_t *sum;
    cudaStream_t low, high;
    cudaEvent_t begin, end;
    int samples, multiprocessors;
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void print_samples(std::vector<double> gbps)
{
    printf("\"samples_gbps\":[");
    for (size_t i = 0; i < gbps.size(); i++) {
        printf("%s%.3f", i ? "," : "", gbps[i]);
    }
    std::sort(gbps.begin(), gbps.end());
    printf("],\"median_gbps\":%.3f}\n", gbps[gbps.size() / 2]);
    fflush(stdout);
}

static double seconds(const bench &b)
{
    float ms = 0;
    CHECK(cudaEventSynchronize(b.end));
    CHECK(cudaEventElapsedTime(&ms, b.begin, b.end));
    return ms / 1e3;
}

static void run_cell(const bench &b, uint32_t piece, int ctas, bool high, bool beside)
{
    const uint32_t pieces = (uint32_t)(MOVED_BYTES / piece);
    std::vector<uint64_t> first(pieces);
    std::vector<double> gbps;
    uint64_t rng = 0x243f6a8885a308d3u + piece;
    const cudaStream_t stream = high ? b.high : b.low;
    for (int sample = -1; sample < b.samples; sample++) { /* the first warms up */
        for (uint64_t &at : first) {
            at = next(&rng) % (b.footprint / piece) * (piece / sizeof(uint4));
        }
        CHECK(cudaMemcpy(b.first, first.data(), first.size() * sizeof first[0],
                         cudaMemcpyHostToDevice));
        for (int i = 0; beside && i < 64; i++) { /* outlasts the sample; the rest is waited for */
            stream_memory<<<2 * b.multiprocessors, 512, 0, b.low>>>(
                b.beside, BESIDE_BYTES / sizeof(uint4), b.sum);
        }
        CHECK(cudaEventRecord(b.begin, stream));
        gather<<<ctas, THREADS, 0, stream>>>(b.host, b.first, b.target, piece / sizeof(uint4),
                                             pieces);
        CHECK(cudaEventRecord(b.end, stream));
        const double took = seconds(b);
        CHECK(cudaDeviceSynchronize());
        if (sample >= 0) {
            gbps.push_back((double)MOVED_BYTES / 1e9 / took);
        }
    }
    printf("{\"schema\":\"pivotkv/gpu-gather/1\",\"piece_bytes\":%u,\"footprint_bytes\":%" PRIu64
           ",\"ctas\":%d,\"pages\":\"%s\",\"priority\":\"%s\",\"beside\":%s,",
           piece, b.footprint, ctas, b.pages, high ? "high" : "normal", beside ? "true" : "false");
    print_samples(gbps);
}

static void run_copies(const bench &b)
{
    std::vector<double> gbps;
    for (int sample = 0; sample < b.samples; sample++) {
        CHECK(cudaEventRecord(b.begin, b.low));
        CHECK(cudaMemcpyAsync(b.target, b.host, MOVED_BYTES, cudaMemcpyHostToDevice, b.low));
        CHECK(cudaEventRecord(b.end, b.low));
        gbps.push_back((double)MOVED_BYTES / 1e9 / seconds(b));
    }
    printf("{\"schema\":\"pivotkv/gpu-gather/1\",\"copy_bytes\":%" PRIu64
           ",\"footprint_bytes\":%" PRIu64 ",\"pages\":\"%s\",",
           MOVED_BYTES, b.footprint, b.pages);
    print_samples(gbps);
}

/* Pinned memory with pages of 4 KiB or 2 MiB, all of it touched by as many threads as there are. */
static uint4 *map_pinned(uint64_t bytes, bool huge)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    const unsigned count = std::max(1u, std::thread::hardware_concurrency());
    const uint64_t share = bytes / count / 4096 * 4096;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; t++) {
        uint8_t *begin = (uint8_t *)memory + t * share;
        const uint64_t end = t + 1 == count ? bytes - t * share : share;
        threads.emplace_back([=] {
            for (uint64_t at = 0; at < end; at += 4096) {
                begin[at] = (uint8_t)at;
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    if (cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        munmap(memory, bytes);
        return NULL;
    }
    return (uint4 *)memory;
}

static void run_footprint(bench *b, uint64_t gib, bool huge)
{
    static const int ctas[] = {4, 8, 16};
    b->footprint = gib << 30;
    b->pages = huge ? "2MiB" : "4KiB";
    b->host = map_pinned(b->footprint, huge);
    if (!b->host) {
        fprintf(stderr, "gather: SKIP %" PRIu64 " GiB: not that much memory can be pinned\n", gib);
        return;
    }
    run_copies(*b);
    for (uint32_t piece = 256; piece <= 16384; piece *= 2) {
        for (int c : ctas) {
            run_cell(*b, piece, c, true, false);
            run_cell(*b, piece, c, true, true);
        }
        run_cell(*b, piece, 16, false, true);
    }
    CHECK(cudaHostUnregister(b->host));
    munmap(b->host, b->footprint);
}

static void open_bench(bench *b, int device)
{
    int least = 0, greatest = 0;
    CHECK(cudaSetDevice(device));
    CHECK(cudaDeviceGetAttribute(&b->multiprocessors, cudaDevAttrMultiProcessorCount, device));
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithPriority(&b->low, cudaStreamNonBlocking, least));
    CHECK(cudaStreamCreateWithPriority(&b->high, cudaStreamNonBlocking, greatest));
    CHECK(cudaEventCreate(&b->begin));
    CHECK(cudaEventCreate(&b->end));
    CHECK(cudaMalloc(&b->target, MOVED_BYTES));
    CHECK(cudaMalloc(&b->beside, BESIDE_BYTES));
    CHECK(cudaMemset(b->beside, 1, BESIDE_BYTES));
    CHECK(cudaMalloc(&b->first, MOVED_BYTES / 256 * sizeof *b->first));
    CHECK(cudaMalloc(&b->sum, sizeof *b->sum));
}

static int fail_usage(const char *what)
{
    fprintf(stderr, "gather: %s\nusage: gather [--gib 1,16] [--samples 5] [--device N]\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    bench b = {};
    const char *gib = "1,16";
    int count = 0, device = 0;
    b.samples = 5;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--gib") == 0 && *value) {
            gib = value;
        } else if (strcmp(argv[i], "--samples") == 0 && atoi(value) > 0) {
            b.samples = atoi(value);
        } else if (strcmp(argv[i], "--device") == 0 && *value) {
            device = atoi(value);
        } else {
            return fail_usage(argv[i]);
        }
    }
    if (cudaGetDeviceCount(&count) != cudaSuccess || count <= device) {
        fprintf(stderr, "gather: SKIP: no CUDA device\n");
        return 77;
    }
    open_bench(&b, device);
    for (const char *at = gib; *at; at += strcspn(at, ","), at += *at == ',') {
        const uint64_t size = strtoull(at, NULL, 10);
        if (size == 0 || size > 1024) {
            return fail_usage("--gib: numbers from 1 to 1024");
        }
        run_footprint(&b, size, true);
        run_footprint(&b, size, false);
    }
    return 0;
}
