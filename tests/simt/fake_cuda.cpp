/*
 * fake_cuda.cpp: the part of the CUDA runtime that host code uses, on the CPU: streams, events,
 * memory, copies, launches. Stricter than CUDA: the null stream, pageable memory in asynchronous
 * copies, and copies past an allocation are errors.
 *
 * Environment (control.h says what they mean): PKV_SIMT_STREAMS (lazy, random, eager, adversarial,
 * threads), PKV_SIMT_FIRST and PKV_SIMT_LAST (streams by number, or p and a priority),
 * PKV_SIMT_SEED, PKV_SIMT_VRAM (bytes), PKV_SIMT_FAIL_ALLOCATION, PKV_SIMT_GUARD=1,
 * PKV_SIMT_NO_DEVICE (an error).
 */
#include "fake.h"

#include "control.h"
#include "engine.h"
#include "simt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#else
#define ASAN 0
#endif

struct CUevent_st {
    uint64_t recorded, passed; /* numbers of records asked for, and done */
    bool timed;
    std::chrono::steady_clock::time_point at;
};

struct CUstream_st {
    std::deque<fake::Command> queue;
    int32_t number;
    int priority;
    bool asleep; /* with SIMT_STREAMS_RANDOM: goes on when the host waits and no other can */
    bool busy, stop;
    std::thread worker;
};

namespace fake {

/* Never destroyed: workers may outlive main(). */
std::mutex &api = *new std::mutex;

namespace {

using Lock = std::unique_lock<std::mutex>;

enum class Kind { Device, Pinned, Registered, Managed };

struct Block {
    size_t bytes, mapped;
    Kind kind;
};

constexpr size_t PAGE_BYTES = 4096;
constexpr unsigned char FRESH = 0xa5; /* what new device memory holds */
constexpr size_t ASLEEP_STEPS = 32;   /* of all streams, on average, before others are asleep */
constexpr size_t DEFAULT_SMEM = 48 << 10, MOST_SMEM = 227 << 10;

std::mutex &execution = *new std::mutex; /* one command runs at a time; taken after api */
std::condition_variable &changed = *new std::condition_variable;
std::map<const unsigned char *, Block> &blocks = *new std::map<const unsigned char *, Block>;
std::vector<cudaStream_t> &streams = *new std::vector<cudaStream_t>;
std::map<const void *, size_t> &smem_limit = *new std::map<const void *, size_t>;
simt::Rng rng;
simt_streams mode;
int32_t stream_first = SIMT_STREAM_NONE, stream_last = SIMT_STREAM_NONE, streams_made;
bool guard;
size_t vram_bytes = (size_t)1 << 30, used_bytes;
uint64_t allocations_left, commands_left, live_events;
cudaError_t command_error, device_error, no_device;
thread_local cudaError_t last_error;

int32_t stream_name(const char *variable)
{
    const char *text = simt::variable(variable);
    return !text            ? SIMT_STREAM_NONE
           : text[0] == 'p' ? SIMT_STREAM_OF_PRIORITY(atoi(text + 1))
                            : atoi(text);
}

/* Before main(), so that what a test sets later holds. */
__attribute__((constructor)) void configure()
{
    static const char *const names[] = {"lazy", "random", "eager", "adversarial", "threads"};
    const char *text = simt::variable("PKV_SIMT_STREAMS");
    for (int i = 0; text && i < 5; i++) {
        if (strcmp(text, names[i]) == 0) {
            mode = (simt_streams)i;
            text = nullptr;
        }
    }
    if (text) {
        simt::fail("PKV_SIMT_STREAMS: no way to run streams: %s", text);
    }
    rng.seed(simt::number("PKV_SIMT_SEED", 0));
    stream_first = stream_name("PKV_SIMT_FIRST");
    stream_last = stream_name("PKV_SIMT_LAST");
    vram_bytes = simt::number("PKV_SIMT_VRAM", vram_bytes);
    allocations_left = simt::number("PKV_SIMT_FAIL_ALLOCATION", 0);
    guard = simt::number("PKV_SIMT_GUARD", 0) && mode != SIMT_STREAMS_THREADS && !ASAN;
    no_device = (cudaError_t)simt::number("PKV_SIMT_NO_DEVICE", 0);
}

/* The block that holds all of a range, or NULL. */
const Block *find(const void *at, size_t bytes, const unsigned char **base_out = nullptr)
{
    const unsigned char *begin = static_cast<const unsigned char *>(at);
    auto next = blocks.upper_bound(begin);
    if (next == blocks.begin()) {
        return nullptr;
    }
    --next;
    if ((size_t)(begin - next->first) + bytes > next->second.bytes) {
        return nullptr;
    }
    if (base_out) {
        *base_out = next->first;
    }
    return &next->second;
}

void set_protection(bool open)
{
    for (const auto &[base, block] : blocks) {
        if (guard && block.kind == Kind::Device) {
            mprotect(const_cast<unsigned char *>(base), block.mapped,
                     open ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }
}

/* Between an allocation's end and that of its page nothing may have changed. */
void check_tails()
{
    for (const auto &[base, block] : blocks) {
        for (size_t i = block.bytes; block.kind == Kind::Device && i < block.mapped; i++) {
            if (base[i] != FRESH) {
                simt::fail("%zu bytes past device memory of %zu bytes were written",
                           i - block.bytes + 1, block.bytes);
            }
        }
    }
}

bool can_run(const Command &command)
{
    return command.number == 0 || command.event->passed >= command.number;
}

/* Without api held in worker threads, with it elsewhere. */
void execute(const Command &command)
{
    if (!command.run) {
        return;
    }
    std::lock_guard<std::mutex> lock(execution);
    set_protection(true);
    command.run();
    if (mode != SIMT_STREAMS_THREADS) { /* the others may be allocating */
        check_tails();
    }
    set_protection(false);
}

void finish(const Command &command)
{
    if (command.run && commands_left && --commands_left == 0) {
        device_error = command_error;
    }
    if (command.event && command.number == 0) {
        command.event->passed++;
        command.event->at = std::chrono::steady_clock::now();
    }
}

bool is_named(const CUstream_st *stream, int32_t name)
{
    return stream->number == name || SIMT_STREAM_OF_PRIORITY(stream->priority) == name;
}

int rank_of(const CUstream_st *stream)
{
    return mode == SIMT_STREAMS_RANDOM        ? !stream->asleep
           : mode != SIMT_STREAMS_ADVERSARIAL ? 1
           : is_named(stream, stream_first)   ? 2
           : is_named(stream, stream_last)    ? 0
                                              : 1;
}

/* One command of a stream by chance, among those of the highest rank, at least `least`. */
bool step(int least)
{
    CUstream_st *picked = nullptr;
    unsigned candidates = 0;
    if (mode == SIMT_STREAMS_RANDOM && rng.below(ASLEEP_STEPS) == 0) {
        for (CUstream_st *stream : streams) {
            stream->asleep = rng.below(2);
        }
    }
    for (CUstream_st *stream : streams) {
        const int rank = rank_of(stream);
        if (stream->queue.empty() || rank < least || !can_run(stream->queue.front())) {
            continue;
        }
        if (rank > least) {
            least = rank;
            candidates = 0;
        }
        if (rng.below(++candidates) == 0) {
            picked = stream;
        }
    }
    if (!picked) {
        return false;
    }
    const Command command = std::move(picked->queue.front());
    picked->queue.pop_front();
    execute(command);
    finish(command);
    return true;
}

void run_worker(CUstream_st *stream)
{
    Lock lock(api);
    for (;;) {
        changed.wait(lock, [stream] {
            return stream->stop || (!stream->queue.empty() && can_run(stream->queue.front()));
        });
        if (stream->queue.empty()) {
            return;
        }
        const Command command = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        lock.unlock();
        execute(command);
        lock.lock();
        finish(command);
        stream->busy = false;
        changed.notify_all();
    }
}

template <class Done> void wait_until(Lock &lock, Done done)
{
    if (mode == SIMT_STREAMS_THREADS) {
        changed.wait(lock, done);
        return;
    }
    while (!done()) {
        if (!step(0)) {
            simt::fail("the host waits for what no stream can reach");
        }
    }
}

bool is_idle(const CUstream_st *stream)
{
    return stream->queue.empty() && !stream->busy;
}

bool all_idle()
{
    return std::all_of(streams.begin(), streams.end(), is_idle);
}

/* Polling makes progress. */
void poll()
{
    if (mode != SIMT_STREAMS_THREADS) {
        step(0);
    }
}

void *map_device(size_t bytes, size_t *mapped_out)
{
    void *at = nullptr;
    if (ASAN) {
        *mapped_out = bytes;
        return posix_memalign(&at, 256, bytes) == 0 ? at : nullptr;
    }
    *mapped_out = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    unsigned char *map = static_cast<unsigned char *>(
        mmap(nullptr, *mapped_out + 2 * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED) {
        return nullptr;
    }
    at = map + PAGE_BYTES; /* pages that fault on both sides */
    return mprotect(at, *mapped_out, PROT_READ | PROT_WRITE) == 0 ? at : nullptr;
}

cudaError_t allocate(void **at_out, size_t bytes, Kind kind)
{
    *at_out = nullptr;
    if (allocations_left && --allocations_left == 0) {
        return answer(cudaErrorMemoryAllocation);
    }
    if (kind == Kind::Device && bytes > vram_bytes - used_bytes) {
        return answer(cudaErrorMemoryAllocation);
    }
    if (bytes == 0) {
        return cudaSuccess;
    }
    size_t mapped;
    void *at = map_device(bytes, &mapped);
    if (!at) {
        return answer(cudaErrorMemoryAllocation);
    }
    std::lock_guard<std::mutex> lock(execution);
    memset(at, FRESH, mapped);
    blocks[static_cast<unsigned char *>(at)] = {bytes, mapped, kind};
    used_bytes += kind == Kind::Device ? bytes : 0;
    simt::note_memory(at, bytes,
                      kind == Kind::Device ? simt::Memory::Device : simt::Memory::Pinned);
    set_protection(false);
    *at_out = at;
    return cudaSuccess;
}

/* Waits for everything, as cudaFree() does. */
cudaError_t release(void *at, Kind kind)
{
    Lock lock(api);
    if (!at) {
        return cudaSuccess;
    }
    wait_until(lock, all_idle);
    const auto found = blocks.find(static_cast<unsigned char *>(at));
    if (found == blocks.end() || found->second.kind != kind) {
        return answer(cudaErrorInvalidValue, "free of what is no allocation of that kind");
    }
    std::lock_guard<std::mutex> execution_lock(execution);
    simt::note_free(at);
    used_bytes -= kind == Kind::Device ? found->second.bytes : 0;
    if (ASAN) {
        free(at);
    } else { /* the addresses stay taken: a use after this faults */
        mmap(at, found->second.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    blocks.erase(found);
    return cudaSuccess;
}

bool overlaps(const Range &range, const void *at, size_t bytes)
{
    const unsigned char *a = static_cast<const unsigned char *>(range.at);
    const unsigned char *b = static_cast<const unsigned char *>(at);
    return a < b + bytes && b < a + range.bytes;
}

/* Does a stream still hold a copy from or to this memory? */
bool is_wanted(const void *at, size_t bytes)
{
    for (const CUstream_st *stream : streams) {
        for (const Command &command : stream->queue) {
            for (const Range &range : command.ranges) {
                if (overlaps(range, at, bytes)) {
                    return true;
                }
            }
        }
    }
    return false;
}

void forget_managed(const void *at, size_t bytes)
{
    for (auto block = blocks.begin(); block != blocks.end();) {
        const Range range = {block->first, block->second.bytes};
        const bool is_gone = block->second.kind == Kind::Managed && overlaps(range, at, bytes);
        block = is_gone ? blocks.erase(block) : std::next(block);
    }
}

cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const Block *target = find(to, bytes), *source = find(from, bytes);
    if (!target || !source) {
        return answer(cudaErrorInvalidValue,
                      "asynchronous copy with pageable memory, or past an allocation");
    }
    const bool to_device = target->kind == Kind::Device, from_device = source->kind == Kind::Device;
    const bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to_device != want_to || from_device != want_from)) {
        return answer(cudaErrorInvalidValue, "the kind of a copy does not fit its pointers");
    }
    return cudaSuccess;
}

void copy(void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
    simt::note_copy(to, from, bytes);
}

} // namespace

cudaError_t answer(cudaError_t error, const char *why)
{
    if (error != cudaSuccess) {
        last_error = error;
        if (why) {
            fprintf(stderr, "fake_cuda: %s\n", why);
        }
    }
    return error;
}

cudaError_t trouble()
{
    return no_device ? answer(no_device) : device_error ? answer(device_error) : cudaSuccess;
}

cudaError_t submit(cudaStream_t stream, Command command)
{
    if (cudaError_t error = trouble()) {
        return error;
    }
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
        return answer(cudaErrorInvalidResourceHandle, "the null stream, or one that was closed");
    }
    stream->queue.push_back(std::move(command));
    changed.notify_all();
    if (mode == SIMT_STREAMS_EAGER) {
        while (step(0)) {
        }
    } else if (mode == SIMT_STREAMS_ADVERSARIAL) {
        while (step(2)) {
        }
    } else if (mode == SIMT_STREAMS_RANDOM) {
        while (rng.below(2) && step(1)) {
        }
    }
    return cudaSuccess;
}

bool is_device(const void *at, size_t bytes)
{
    const Block *block = find(at, bytes);
    return block && block->kind != Kind::Pinned && block->kind != Kind::Registered;
}

bool is_reachable(const void *at, size_t bytes)
{
    return find(at, bytes) != nullptr;
}

size_t vram_free()
{
    return vram_bytes > used_bytes ? vram_bytes - used_bytes : 0;
}

size_t vram_total()
{
    return vram_bytes;
}

} // namespace fake

using namespace fake;

cudaError_t simt::launch(const char *name, const void *kernel, dim3 grid, dim3 block,
                         size_t smem_bytes, cudaStream_t stream, void (*call)(const void *),
                         std::shared_ptr<void> args, size_t args_bytes)
{
    Lock lock(api);
    const size_t threads = (size_t)block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
        return answer(cudaErrorInvalidConfiguration, "grid or block of a size no device has");
    }
    const auto limit = smem_limit.find(kernel);
    if (smem_bytes > (limit == smem_limit.end() ? DEFAULT_SMEM : limit->second)) {
        return answer(cudaErrorInvalidValue, "more dynamic shared memory than was asked for");
    }
    const simt::Launch what = {name, grid, block, smem_bytes, call, args.get(), args_bytes};
    return submit(stream, {[what, args] { simt::run(what); }, {}});
}

extern "C" {

void simt_set_streams(enum simt_streams new_mode, uint64_t seed, int32_t first, int32_t last)
{
    Lock lock(api);
    if (!streams.empty()) {
        simt::fail("simt_set_streams() while there are streams");
    }
    mode = new_mode;
    rng.seed(seed);
    stream_first = first;
    stream_last = last;
    guard = guard && mode != SIMT_STREAMS_THREADS;
}

void simt_set_vram(uint64_t bytes)
{
    Lock lock(api);
    vram_bytes = bytes;
}

void simt_fail_allocation(uint64_t n)
{
    Lock lock(api);
    allocations_left = n;
}

void simt_fail_command(uint64_t n, int error)
{
    Lock lock(api);
    commands_left = n;
    command_error = (cudaError_t)error;
    device_error = n ? device_error : cudaSuccess;
}

void simt_set_no_device(int error)
{
    Lock lock(api);
    no_device = (cudaError_t)error;
}

void simt_set_guard(int on)
{
    Lock lock(api);
    set_protection(true);
    guard = on && mode != SIMT_STREAMS_THREADS && !ASAN;
    set_protection(false);
}

struct simt_live simt_count_live(void)
{
    Lock lock(api);
    struct simt_live live = {};
    for (const auto &[base, block] : blocks) {
        live.device_blocks += block.kind == Kind::Device;
        live.pinned_blocks += block.kind == Kind::Pinned || block.kind == Kind::Registered;
    }
    live.streams = streams.size();
    live.events = live_events;
    live.device_bytes = used_bytes;
    return live;
}

/* Errors. */
cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* Memory. */
cudaError_t cudaMalloc(void **at_out, size_t bytes)
{
    Lock lock(api);
    const cudaError_t error = trouble();
    return error ? error : allocate(at_out, bytes, Kind::Device);
}

cudaError_t cudaHostAlloc(void **at_out, size_t bytes, unsigned flags)
{
    Lock lock(api);
    (void)flags;
    const cudaError_t error = trouble();
    return error ? error : allocate(at_out, bytes, Kind::Pinned);
}

cudaError_t cudaMallocHost(void **at_out, size_t bytes)
{
    return cudaHostAlloc(at_out, bytes, cudaHostAllocDefault);
}

/* Both sides may touch it, and free() gives it back: its block is forgotten when another overlaps.
 */
cudaError_t cudaMallocManaged(void **at_out, size_t bytes, unsigned flags)
{
    Lock lock(api);
    (void)flags;
    if (posix_memalign(at_out, 64, bytes) != 0) {
        return answer(cudaErrorMemoryAllocation);
    }
    forget_managed(*at_out, bytes);
    blocks[static_cast<unsigned char *>(*at_out)] = {bytes, bytes, Kind::Managed};
    simt::note_memory(*at_out, bytes, simt::Memory::Managed);
    return trouble();
}

cudaError_t cudaFree(void *at)
{
    return release(at, Kind::Device);
}

cudaError_t cudaFreeHost(void *at)
{
    return release(at, Kind::Pinned);
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    Lock lock(api);
    (void)flags;
    if (cudaError_t error = trouble()) {
        return error;
    }
    if (allocations_left && --allocations_left == 0) {
        return answer(cudaErrorMemoryAllocation);
    }
    unsigned char *begin = static_cast<unsigned char *>(at);
    const auto next = blocks.lower_bound(begin);
    if (bytes == 0 || !at) {
        return answer(cudaErrorInvalidValue, "nothing to register");
    }
    forget_managed(at, bytes);
    if (find(at, 1) || (next != blocks.end() && next->first < begin + bytes)) {
        return answer(cudaErrorHostMemoryAlreadyRegistered);
    }
    blocks[begin] = {bytes, bytes, Kind::Registered};
    std::lock_guard<std::mutex> execution_lock(execution);
    simt::note_memory(at, bytes, simt::Memory::Pinned);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    Lock lock(api);
    const auto found = blocks.find(static_cast<unsigned char *>(at));
    if (found == blocks.end() || found->second.kind != Kind::Registered) {
        return answer(cudaErrorHostMemoryNotRegistered, "unregisters what is not registered");
    }
    if (is_wanted(at, found->second.bytes)) {
        return answer(cudaErrorInvalidValue, "unregisters memory that a copy still needs");
    }
    std::lock_guard<std::mutex> execution_lock(execution);
    simt::note_free(at);
    blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device_out, void *at, unsigned flags)
{
    Lock lock(api);
    const Block *block = find(at, 1);
    if (flags || !block || block->kind == Kind::Device) {
        return answer(cudaErrorInvalidValue, "no device address: not pinned");
    }
    *device_out = at;
    return cudaSuccess;
}

/* Copies. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    Lock lock(api);
    if (bytes == 0) {
        return trouble();
    }
    if (cudaError_t error = check_copy(to, from, bytes, kind)) {
        return error;
    }
    return submit(stream, {[=] { copy(to, from, bytes); }, {{to, bytes}, {from, bytes}}});
}

/* In any order, as CUDA says; sources are read in the order of the stream or now. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes,
                                 size_t count, cudaMemcpyAttributes *attributes,
                                 size_t *first_of_attribute, size_t attribute_count,
                                 cudaStream_t stream)
{
    Lock lock(api);
    if (count == 0 || attribute_count == 0 || attribute_count > count ||
        first_of_attribute[0] != 0) {
        return answer(cudaErrorInvalidValue, "a batch without copies, or without attributes");
    }
    std::vector<std::function<void()>> copies;
    std::vector<Range> ranges;
    size_t attribute = 0;
    for (size_t i = 0; i < count; i++) {
        attribute += attribute + 1 < attribute_count && first_of_attribute[attribute + 1] == i;
        void *target = to[i];
        const void *source = from[i];
        const size_t size = bytes[i];
        if (size == 0) {
            return answer(cudaErrorInvalidValue, "a copy of nothing in a batch");
        }
        if (cudaError_t error = check_copy(target, source, size, cudaMemcpyDefault)) {
            return error;
        }
        const cudaMemcpySrcAccessOrder when = attributes[attribute].srcAccessOrder;
        ranges.push_back({target, size});
        if (when == cudaMemcpySrcAccessOrderDuringApiCall) {
            const unsigned char *first = static_cast<const unsigned char *>(source);
            const auto kept = std::make_shared<std::vector<unsigned char>>(first, first + size);
            copies.push_back([=] { copy(target, kept->data(), size); });
        } else if (when == cudaMemcpySrcAccessOrderStream || when == cudaMemcpySrcAccessOrderAny) {
            ranges.push_back({source, size});
            copies.push_back([=] { copy(target, source, size); });
        } else {
            return answer(cudaErrorInvalidValue, "a batch that does not say when sources are read");
        }
    }
    for (size_t i = copies.size(); i > 1; i--) {
        std::swap(copies[i - 1], copies[rng.below(i)]);
    }
    const auto run = [copies] {
        for (const auto &one : copies) {
            one();
        }
    };
    return submit(stream, {run, std::move(ranges)});
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    Lock lock(api);
    if (bytes && !is_device(to, bytes)) {
        return answer(cudaErrorInvalidValue, "sets memory outside an allocation");
    }
    return submit(stream, {[=] {
                               memset(to, value, bytes);
                               simt::note_copy(to, nullptr, bytes);
                           },
                           {}});
}

/* Streams. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *least_out, int *greatest_out)
{
    *least_out = 0;
    *greatest_out = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream_out, unsigned flags, int priority)
{
    Lock lock(api);
    if (cudaError_t error = trouble()) {
        return error;
    }
    if (flags != cudaStreamNonBlocking) {
        return answer(cudaErrorInvalidValue, "a stream that would wait for the null stream");
    }
    streams_made = streams.empty() ? 0 : streams_made;
    CUstream_st *stream = new CUstream_st();
    stream->number = streams_made++;
    stream->priority = std::clamp(priority, -5, 0);
    streams.push_back(stream);
    if (mode == SIMT_STREAMS_THREADS) {
        stream->worker = std::thread(run_worker, stream);
    }
    *stream_out = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_out, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream_out, flags, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority_out)
{
    *priority_out = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Lock lock(api);
    if (!device_error) {
        wait_until(lock, [stream] { return is_idle(stream); });
    }
    return trouble();
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Lock lock(api);
    poll();
    const cudaError_t error = trouble();
    return error ? error : is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    Lock lock(api);
    if (!device_error) {
        wait_until(lock, all_idle);
    }
    return trouble();
}

/* What it still holds runs first. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Lock lock(api);
    wait_until(lock, [stream] { return is_idle(stream); });
    stream->stop = true;
    changed.notify_all();
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    lock.unlock();
    if (stream->worker.joinable()) {
        stream->worker.join();
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context)
{
    Lock lock(api);
    return submit(stream, {[=] { function(context); }, {}});
}

/* Events. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned flags)
{
    Lock lock(api);
    if (cudaError_t error = trouble()) {
        return error;
    }
    *event_out = new CUevent_st();
    (*event_out)->timed = !(flags & cudaEventDisableTiming);
    live_events++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Lock lock(api);
    wait_until(lock, [event] { return event->passed == event->recorded; });
    for (const CUstream_st *stream : streams) {
        for (const Command &command : stream->queue) {
            if (command.event == event) { /* CUDA lets it pass; here it must not be looked at */
                wait_until(lock, all_idle);
                break;
            }
        }
    }
    delete event;
    live_events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Lock lock(api);
    event->recorded++;
    const cudaError_t error = submit(stream, {nullptr, {}, event, 0});
    event->recorded -= error != cudaSuccess;
    return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    Lock lock(api);
    (void)flags;
    if (event->recorded == 0) {
        return trouble(); /* waits for nothing */
    }
    return submit(stream, {nullptr, {}, event, event->recorded});
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Lock lock(api);
    const uint64_t number = event->recorded;
    if (!device_error) {
        wait_until(lock, [=] { return event->passed >= number; });
    }
    return trouble();
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Lock lock(api);
    if (event->passed < event->recorded) {
        poll();
    }
    const cudaError_t error = trouble();
    return error ? error : event->passed < event->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms_out, cudaEvent_t begin, cudaEvent_t end)
{
    Lock lock(api);
    if (!begin->timed || !end->timed || !begin->recorded || !end->recorded) {
        return answer(cudaErrorInvalidResourceHandle, "an event without a time");
    }
    if (begin->passed < begin->recorded || end->passed < end->recorded) {
        return answer(cudaErrorNotReady);
    }
    *ms_out = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
    return trouble();
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    Lock lock(api);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > MOST_SMEM) {
            return answer(cudaErrorInvalidValue, "more shared memory than a block may have");
        }
        smem_limit[kernel] = (size_t)value;
    }
    return trouble();
}

} // extern "C"
