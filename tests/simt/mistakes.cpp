/*
 * mistakes.cpp NAME: one deliberate mistake of a kernel or of host code, or none ("right_...").
 * Exit status: 0 nobody noticed, 1 the result is wrong ("wrong result"), 3 the runtime refused
 * ("refused"), else what noticed it ended the program. test_mistakes.py knows what must happen.
 */
#include "mistakes.h"

#include <cuda_fp16.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

namespace {

constexpr unsigned N = 4096, BLOCKS = 8, TILES = 6;

void need(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "refused: %s\n", cudaGetErrorName(error));
        exit(3);
    }
}

/* Device memory and pinned memory of the same size. */
struct Pair {
    float *device, *host;
    size_t bytes;
    explicit Pair(size_t count) : bytes(count * sizeof(float))
    {
        need(cudaMalloc(reinterpret_cast<void **>(&device), bytes));
        need(cudaMallocHost(reinterpret_cast<void **>(&host), bytes));
        for (size_t i = 0; i < count; i++) {
            host[i] = (float)(i % 13);
        }
    }
    Pair(const Pair &) = delete;
    void free_all()
    {
        need(cudaFree(device));
        need(cudaFreeHost(host));
    }
    void up(cudaStream_t stream)
    {
        need(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    }
    void down(cudaStream_t stream)
    {
        need(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
        need(cudaStreamSynchronize(stream));
    }
};

struct Streams {
    cudaStream_t first, second;
    cudaEvent_t event;
};

/* The number of wrong sums of `per` values. */
unsigned count_wrong(const float *got, unsigned sums, unsigned per)
{
    unsigned wrong = 0;
    for (unsigned s = 0; s < sums; s++) {
        float want = 0.0f;
        for (unsigned i = s * per; i < (s + 1) * per; i++) {
            want += (float)(i % 13);
        }
        wrong += got[s] != want;
    }
    return wrong;
}

unsigned run_sum(enum mistake mistake, cudaStream_t stream)
{
    const unsigned sums = mistake == BLOCKS_ADD ? 1 : BLOCKS;
    Pair x(BLOCKS * MISTAKE_THREADS), out(BLOCKS + 1);
    std::vector<float> pageable(BLOCKS * MISTAKE_THREADS);
    memcpy(pageable.data(), x.host, x.bytes);
    x.up(stream);
    need(cudaMemsetAsync(out.device, 0, out.bytes, stream));
    need(mistake_sum(mistake == HOST_MEMORY ? pageable.data() : x.device, BLOCKS * MISTAKE_THREADS,
                     mistake == PAST_INPUT ? BLOCKS + 1 : BLOCKS, out.device, mistake, stream));
    out.down(stream);
    const unsigned wrong = count_wrong(out.host, sums, BLOCKS / sums * MISTAKE_THREADS);
    x.free_all();
    out.free_all();
    return wrong;
}

unsigned run_tiles(enum mistake mistake, cudaStream_t stream)
{
    Pair x(TILES * MISTAKE_TILE), out(TILES);
    const bool is_cut = mistake == UNSET_COPY || mistake == COPY_UNUSED;
    need(cudaMemcpyAsync(x.device, x.host, x.bytes - is_cut * sizeof(float), cudaMemcpyHostToDevice,
                         stream));
    need(cudaMemsetAsync(out.device, 0, out.bytes, stream));
    need(mistake_tiles(x.device, TILES, out.device, mistake, stream));
    out.down(stream);
    out.host[TILES - 1] += mistake == COPY_UNUSED ? x.host[TILES * MISTAKE_TILE - 1] : 0.0f;
    const unsigned wrong = count_wrong(out.host, TILES, MISTAKE_TILE);
    x.free_all();
    out.free_all();
    return wrong;
}

unsigned run_product(enum mistake mistake, cudaStream_t stream)
{
    Pair a(128), b(64), d(128);
    float left[16][16], right[8][16];
    for (unsigned i = 0; i < 256; i++) {
        left[i / 16][i % 16] = (float)(i * 7 % 11) - 5.0f;
        const __half value = __float2half(left[i / 16][i % 16]);
        memcpy(reinterpret_cast<char *>(a.host) + 2 * i, &value, 2);
    }
    for (unsigned i = 0; i < 128; i++) {
        right[i / 16][i % 16] = (float)(i * 5 % 9) - 4.0f;
        const __half value = __float2half(right[i / 16][i % 16]);
        memcpy(reinterpret_cast<char *>(b.host) + 2 * i, &value, 2);
    }
    a.up(stream);
    b.up(stream);
    need(mistake_product(a.device, b.device, d.device, mistake, stream));
    d.down(stream);
    unsigned wrong = 0;
    for (unsigned i = 0; i < 128; i++) {
        float want = 0.0f;
        for (unsigned k = 0; k < 16; k++) {
            want += left[i / 8][k] * right[i % 8][k];
        }
        wrong += d.host[i] != want;
    }
    a.free_all();
    b.free_all();
    d.free_all();
    return wrong;
}

/* x * 2 + 1, in every value. */
unsigned count_unscaled(const float *x)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < N; i++) {
        wrong += x[i] != 2.0f * (float)(i % 13) + 1.0f;
    }
    return wrong;
}

unsigned no_sync(const Streams &streams)
{
    Pair x(N);
    x.up(streams.first);
    need(mistake_scale(x.device, 2.0f, 1.0f, N, streams.first));
    need(cudaMemcpyAsync(x.host, x.device, x.bytes, cudaMemcpyDeviceToHost, streams.first));
    const unsigned wrong = count_unscaled(x.host);
    need(cudaStreamSynchronize(streams.first));
    x.free_all();
    return wrong;
}

/* The source is filled again while a copy may still read it. */
unsigned refill(const Streams &streams)
{
    Pair x(N);
    x.up(streams.first);
    memset(x.host, 0, x.bytes);
    need(mistake_scale(x.device, 2.0f, 1.0f, N, streams.first));
    x.down(streams.first);
    const unsigned wrong = count_unscaled(x.host);
    x.free_all();
    return wrong;
}

enum class Wait { Right, Missing, BeforeRecord };

/* One stream computes, the other takes the result away. */
unsigned two_streams(const Streams &streams, Wait wait)
{
    Pair x(N);
    x.up(streams.first);
    if (wait == Wait::BeforeRecord) {
        need(cudaStreamWaitEvent(streams.second, streams.event, 0));
    }
    need(mistake_scale(x.device, 2.0f, 1.0f, N, streams.first));
    need(cudaEventRecord(streams.event, streams.first));
    if (wait == Wait::Right) {
        need(cudaStreamWaitEvent(streams.second, streams.event, 0));
    }
    x.down(streams.second);
    const unsigned wrong = count_unscaled(x.host);
    need(cudaStreamSynchronize(streams.first));
    x.free_all();
    return wrong;
}

unsigned pageable(const Streams &streams)
{
    Pair x(N);
    const std::vector<float> source(N, 1.0f);
    need(cudaMemcpyAsync(x.device, source.data(), x.bytes, cudaMemcpyHostToDevice, streams.first));
    return 0;
}

unsigned wrong_kind(const Streams &streams)
{
    Pair x(N);
    need(cudaMemcpyAsync(x.host, x.device, x.bytes, cudaMemcpyHostToDevice, streams.first));
    return 0;
}

unsigned wrong_length(const Streams &streams)
{
    Pair x(N);
    need(cudaMemcpyAsync(x.device, x.host, x.bytes + 4, cudaMemcpyHostToDevice, streams.first));
    return 0;
}

unsigned null_stream(const Streams &)
{
    Pair x(N);
    x.up(nullptr);
    return 0;
}

unsigned host_reads_device(const Streams &streams)
{
    Pair x(N);
    x.up(streams.first);
    need(cudaStreamSynchronize(streams.first));
    const float value = *const_cast<volatile float *>(x.device + 5);
    return value != 5.0f;
}

unsigned use_after_free(const Streams &streams)
{
    Pair x(N);
    float *gone = x.device;
    x.up(streams.first);
    need(cudaFree(gone));
    need(mistake_scale(gone, 2.0f, 1.0f, N, streams.first));
    need(cudaStreamSynchronize(streams.first));
    return 0;
}

/* Memory of the caller is given back while a copy may still read it. */
unsigned unpin_early(const Streams &streams)
{
    Pair x(N);
    std::vector<float> source(N, 1.0f);
    need(cudaHostRegister(source.data(), x.bytes, cudaHostRegisterDefault));
    need(cudaMemcpyAsync(x.device, source.data(), x.bytes, cudaMemcpyHostToDevice, streams.first));
    need(cudaHostUnregister(source.data()));
    return 0;
}

/* A kernel on memory that no copy has filled. */
unsigned unset_input(const Streams &streams)
{
    Pair x(N);
    need(mistake_scale(x.device, 2.0f, 1.0f, N, streams.first));
    x.down(streams.first);
    return count_unscaled(x.host);
}

unsigned right_streams(const Streams &streams)
{
    return two_streams(streams, Wait::Right);
}

unsigned no_wait(const Streams &streams)
{
    return two_streams(streams, Wait::Missing);
}

unsigned wait_before_record(const Streams &streams)
{
    return two_streams(streams, Wait::BeforeRecord);
}

struct KernelCase {
    const char *name;
    unsigned (*run)(enum mistake mistake, cudaStream_t stream);
    enum mistake mistake;
};

const KernelCase kernel_cases[] = {
    {"right_sum", run_sum, RIGHT},
    {"right_tiles", run_tiles, RIGHT},
    {"right_product", run_product, RIGHT},
    {"no_barrier", run_sum, NO_BARRIER},
    {"loop_barrier", run_sum, LOOP_BARRIER},
    {"divergent", run_sum, DIVERGENT},
    {"early_end", run_sum, EARLY_END},
    {"past_shared", run_sum, PAST_SHARED},
    {"past_output", run_sum, PAST_OUTPUT},
    {"past_input", run_sum, PAST_INPUT},
    {"absent_lanes", run_sum, ABSENT_LANES},
    {"blocks_add", run_sum, BLOCKS_ADD},
    {"lanes_trade", run_sum, LANES_TRADE},
    {"misaligned", run_sum, MISALIGNED},
    {"unset", run_sum, UNSET},
    {"host_memory", run_sum, HOST_MEMORY},
    {"no_copy_wait", run_tiles, NO_COPY_WAIT},
    {"no_copy_barrier", run_tiles, NO_COPY_BARRIER},
    {"no_end_barrier", run_tiles, NO_END_BARRIER},
    {"unset_copy", run_tiles, UNSET_COPY},
    {"right_copy", run_tiles, COPY_UNUSED},
    {"fragment", run_product, FRAGMENT},
};

struct HostCase {
    const char *name;
    unsigned (*run)(const Streams &streams);
};

const HostCase host_cases[] = {
    {"right_streams", right_streams},
    {"no_sync", no_sync},
    {"refill", refill},
    {"no_wait", no_wait},
    {"wait_before_record", wait_before_record},
    {"pageable", pageable},
    {"wrong_kind", wrong_kind},
    {"wrong_length", wrong_length},
    {"null_stream", null_stream},
    {"host_reads_device", host_reads_device},
    {"use_after_free", use_after_free},
    {"unpin_early", unpin_early},
    {"unset_input", unset_input},
};

/* -1: no such name. */
int run(const char *name, const Streams &streams)
{
    for (const KernelCase &one : kernel_cases) {
        if (strcmp(one.name, name) == 0) {
            return one.run(one.mistake, streams.first) != 0;
        }
    }
    for (const HostCase &one : host_cases) {
        if (strcmp(one.name, name) == 0) {
            return one.run(streams) != 0;
        }
    }
    return -1;
}

} // namespace

int main(int argc, char **argv)
{
    Streams streams;
    need(cudaStreamCreateWithFlags(&streams.first, cudaStreamNonBlocking));
    need(cudaStreamCreateWithFlags(&streams.second, cudaStreamNonBlocking));
    need(cudaEventCreateWithFlags(&streams.event, cudaEventDisableTiming));
    const int wrong = argc == 2 ? run(argv[1], streams) : -1;
    if (wrong < 0) {
        fprintf(stderr, "usage: mistakes NAME\n");
        return 2;
    }
    if (wrong) {
        fprintf(stderr, "wrong result\n");
    }
    need(cudaEventDestroy(streams.event));
    need(cudaStreamDestroy(streams.first));
    need(cudaStreamDestroy(streams.second));
    return wrong;
}
