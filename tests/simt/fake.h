/* fake.h: what the parts of the fake CUDA runtime share. */
#ifndef PKV_SIMT_FAKE_H
#define PKV_SIMT_FAKE_H

#include <cuda_runtime_api.h>

#include <functional>
#include <mutex>
#include <vector>

namespace fake {

struct Range {
    const void *at;
    size_t bytes;
};

/* One command of a stream. */
struct Command {
    std::function<void()> run;
    std::vector<Range> ranges; /* host memory that must stay until it has run */
    cudaEvent_t event = nullptr;
    uint64_t number = 0; /* waits until the event has passed so many records; 0: records it */
};

extern std::mutex &api; /* held in every call */

/* For the caller, and kept for cudaGetLastError(). `why` goes to stderr: a mistake of the caller.
 */
cudaError_t answer(cudaError_t error, const char *why = nullptr);
/* With api held. */
cudaError_t submit(cudaStream_t stream, Command command);
/* All of it in one allocation of the device, or of pinned memory where that may be. */
bool is_device(const void *at, size_t bytes);
bool is_reachable(const void *at, size_t bytes);
size_t vram_free();
size_t vram_total();
/* The error instead of a device, or that of a command that failed. */
cudaError_t trouble();

} // namespace fake

#endif
