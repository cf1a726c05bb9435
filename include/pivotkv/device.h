/* device.h: opening a device. What a device can do is in impl/device_ops.h, for authors. */
#ifndef PIVOTKV_DEVICE_H
#define PIVOTKV_DEVICE_H

#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_device;
struct pkv_stream;
struct pkv_event;

enum pkv_mem { PKV_MEM_DEVICE, PKV_MEM_PINNED, PKV_MEM_HOST };
enum pkv_stream_kind { PKV_COMPUTE, PKV_RECALL, PKV_LOAD, PKV_STORE };

/* Order in which the cpu device runs what its streams hold; for tests. */
enum pkv_schedule {
    PKV_SCHEDULE_WORKERS, /* each stream on its own thread: the product */
    PKV_SCHEDULE_LAZY,    /* nothing runs before the host waits; then a stream by chance goes on */
    PKV_SCHEDULE_RANDOM,  /* one thread, a stream by chance at every step */
    PKV_SCHEDULE_ADVERSARIAL, /* the stream named first always runs first when it may */
};

/* Begin with pkv_device_config_default(). */
struct pkv_device_config {
    uint32_t struct_bytes;
    uint32_t threads;      /* compute threads, at most min(affinity, cgroup quota); 0 = that */
    enum pkv_cpu cpu;      /* kernels of the cpu device */
    uint64_t memory_bytes; /* most device memory to give out, 0 = no limit */
    double link_gbps;      /* emulated link of the cpu device: 1e9 bytes a second, 0 = none */
    double link_latency_us;
    enum pkv_schedule schedule;
    uint64_t schedule_seed;
    uint32_t schedule_first; /* stream kind that PKV_SCHEDULE_ADVERSARIAL prefers */
    uint32_t schedule_last;  /* 1 + stream kind that it runs when no other may; 0 = none */
    const char *profile; /* sim: file of `pivotkv link --profile`; borrowed while it is opened */
};

struct pkv_device_info {
    const char *name;
    const char *variant; /* kernels: "avx2", ... */
    uint32_t threads, caps;
    uint64_t memory_total_bytes, memory_free_bytes;
    int32_t numa_node;        /* -1 = unknown */
    double link_gbps;         /* sim: large copies from host memory, 1e9 bytes a second; else 0 */
    uint64_t host_free_bytes; /* for pinned and other host memory; 0: the device's memory is that */
};

PKV_API struct pkv_device_config pkv_device_config_default(void);

/*
 * Open a device by name: "cpu"; "cuda" where it was built in; "sim", which computes nothing and
 * tells how long a device like its profile would take (link_gbps and link_latency_us, where given,
 * take the place of the profile's link; threads and cpu are the profile's).
 * PKV_ERR_UNSUPPORTED: no such device in this build, or the CPU lacks the asked instruction set.
 * PKV_ERR_CORRUPT, PKV_ERR_IO: the profile. PKV_ERR_NO_MEMORY: nothing was opened.
 */
PKV_API enum pkv_status pkv_device_open(const char *name, const struct pkv_device_config *config,
                                        struct pkv_device **device_out);

/* Close it; NULL is allowed. Everything made from it must have been closed before. */
PKV_API void pkv_device_close(struct pkv_device *device);

PKV_API enum pkv_status pkv_device_query(struct pkv_device *device,
                                         struct pkv_device_info *info_out);

/*
 * Device memory for whoever makes kernels of their own or drives a tier (tier.h); 64-byte aligned
 * at least, not cleared. PKV_ERR_INVALID: 0 bytes; PKV_ERR_NO_MEMORY tells what is there;
 * *addr_out is not written then. Free what no stream uses any more; address 0 is allowed.
 */
PKV_API enum pkv_status pkv_memory_alloc(struct pkv_device *device, uint64_t bytes,
                                         pkv_addr *addr_out);
PKV_API void pkv_memory_free(struct pkv_device *device, pkv_addr addr);

/*
 * Nanoseconds on the clock by which the device's host goes: the machine's monotonic clock, or of
 * "sim" a virtual one that its calls and waits move forward. For measuring steps.
 */
PKV_API uint64_t pkv_device_clock_ns(struct pkv_device *device);

/*
 * What this machine has for the runtime (CPU, caches, NUMA, memory and its limits, huge pages, GPU
 * driver), and the commands that would change what is in the way: lines to read, or one JSON object
 * {cpu, nodes, memory, gpu, findings: [{name, state: ok|note|change, text, fix}]}. The text belongs
 * to the caller, who calls free().
 * PKV_ERR_NO_MEMORY, PKV_ERR_IO: nothing is written. Cost: some 10 ms.
 */
PKV_API enum pkv_status pkv_doctor(bool json, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
