/*
 * control.h: what a test may ask of the fake CUDA runtime (fake_cuda.cpp), for C and C++. The
 * environment says the same at the start of a program; see there.
 */
#ifndef PKV_SIMT_CONTROL_H
#define PKV_SIMT_CONTROL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* When what streams hold runs. */
enum simt_streams {
    SIMT_STREAMS_LAZY, /* when the host waits; each time the head of a stream by chance */
    /* some of it after each call besides; streams sleep now and then, and go on meanwhile only when
     * the host waits and no other can: else each would keep up with the others */
    SIMT_STREAMS_RANDOM,
    SIMT_STREAMS_EAGER, /* at once */
    /* the stream named first at once as far as it can, the others when the host waits, and the one
     * named last when no other can */
    SIMT_STREAMS_ADVERSARIAL,
    SIMT_STREAMS_THREADS, /* a thread a stream */
};

/* How streams are named: in the order of their creation since there was none, or by priority. */
#define SIMT_STREAM_NONE INT32_MIN
#define SIMT_STREAM_OF_PRIORITY(priority) (-1000 + (priority))

/* Only while there are no streams. */
void simt_set_streams(enum simt_streams streams, uint64_t seed, int32_t first, int32_t last);
/* Bytes of device memory in all. */
void simt_set_vram(uint64_t bytes);
/* The n-th allocation from now on, of the device or pinned, fails; 0: none. */
void simt_fail_allocation(uint64_t n);
/* The n-th command from now on that a stream runs fails with a cudaError_t, as a kernel that went
 * astray: every call from then on gives that error. 0, 0: forget it. */
void simt_fail_command(uint64_t n, int error);
/* What the runtime answers instead of a device, such as 35 or 100; 0: there is one. */
void simt_set_no_device(int error);
/* Device memory faults where the host touches it (not with threads, nor under ASan). */
void simt_set_guard(int on);

/* What has not been given back. */
struct simt_live {
    uint64_t device_blocks, pinned_blocks, streams, events, device_bytes;
};
struct simt_live simt_count_live(void);

#ifdef __cplusplus
}
#endif
#endif
