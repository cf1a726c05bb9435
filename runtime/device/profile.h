/*
 * profile.h: what a device and its link to the host can do, measured or made up, as one JSON file.
 * `pivotkv link --profile FILE` writes it; whoever predicts time reads it. docs/link.md describes
 * the format.
 */
#ifndef PKV_DEVICE_PROFILE_H
#define PKV_DEVICE_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pivotkv/status.h"

#define PKVI_PROFILE_POINTS 64u
#define PKVI_PROFILE_FILE_BYTES ((uint64_t)1 << 20) /* most that is read */

/* "host_to_device", "device_to_host", "both" at once */
enum pkvi_profile_direction {
    PKVI_PROFILE_LOAD,
    PKVI_PROFILE_STORE,
    PKVI_PROFILE_BOTH,
    PKVI_PROFILE_DIRECTIONS
};

struct pkvi_profile_point {
    uint64_t piece_bytes;
    double gbps; /* 1e9 bytes a second; both directions: their sum */
};

/* At least one point; piece_bytes ascend. */
struct pkvi_profile_curve {
    uint32_t count;
    struct pkvi_profile_point point[PKVI_PROFILE_POINTS];
};

/* Kinds of kernels that reach different shares of what the device can do. Other weight types go
 * with the nearest. */
enum pkvi_profile_kind {
    PKVI_PROFILE_LINEAR_Q4,
    PKVI_PROFILE_LINEAR_Q8,
    PKVI_PROFILE_LINEAR_F32,
    PKVI_PROFILE_ATTEND,
    PKVI_PROFILE_ROWS, /* norms, rotations and the like: a row at a time */
    PKVI_PROFILE_KINDS
};
/* "linear_q4", ... */
extern const char *const pkvi_profile_kinds[PKVI_PROFILE_KINDS + 1];

#define PKVI_PROFILE_KERNEL_POINTS 8u

/* Device bytes a second of launches that do so many operations a byte; flops_per_byte ascend. */
struct pkvi_profile_kernel {
    double launch_us; /* that one with next to no work takes on its stream */
    uint32_t count;
    struct {
        double flops_per_byte, gbps;
    } point[PKVI_PROFILE_KERNEL_POINTS];
};

struct pkvi_profile {
    char machine[128], device[16], variant[16];
    uint32_t threads;
    bool cached;                           /* measured within the last-level cache: too fast */
    bool emulated;                         /* the link is an emulated one */
    double read_gbps, int8_gops, f32_gops; /* of device memory, of kernels; 1e9 a second */
    double launch_us;                      /* that a launch takes on its stream */
    double launch_call_us;                 /* that it keeps the host */
    double launch_latency_us;              /* from the call to its end, as the host sees it */
    double copy_call_us;                   /* as launches, of the smallest piece */
    double copy_latency_us[2];             /* [load, store] */
    /* What follows is not known (false, 0) of a file of version 1. */
    bool has_kernels;
    double wait_us; /* from the end of what a stream waits for to its going on */
    /* Speed of a kernel that reads device memory, and of a copy, while the other one runs: a part
     * of 1; 0 = not known. */
    double beside_kernel, beside_copy;
    struct pkvi_profile_kernel kernel[PKVI_PROFILE_KINDS];
    struct {
        struct pkvi_profile_curve contiguous; /* a call a piece */
        struct pkvi_profile_curve gather;     /* many pieces a call, by chance in host memory */
    } link[PKVI_PROFILE_DIRECTIONS];
};

/*
 * Read a text; `name` is for messages. PKV_ERR_CORRUPT: no JSON, a member that is missing, unknown
 * or not what it should be; PKV_ERR_UNSUPPORTED: another schema. *profile_out is written only if
 * all is right.
 */
enum pkv_status pkvi_profile_parse(const char *text, size_t bytes, const char *name,
                                   struct pkvi_profile *profile_out);

/* The same from a file. PKV_ERR_IO: it cannot be read, is no regular file or too long. */
enum pkv_status pkvi_profile_read(const char *path, struct pkvi_profile *profile_out);

/* The text that pkvi_profile_parse() reads; freed with free(). */
enum pkv_status pkvi_profile_format(const struct pkvi_profile *profile, char **text_out);

/*
 * Write a file: under another name beside it first, then to disk, then renamed, so that `path`
 * holds the old bytes or all of the new ones. PKV_ERR_IO: the old ones. PKV_ERR_CORRUPT: the
 * profile is not one that could be read again.
 */
enum pkv_status pkvi_profile_write(const char *path, const struct pkvi_profile *profile);

/* Could it be written? Looks before minutes are spent; leaves nothing. */
enum pkv_status pkvi_profile_probe(const char *path);

#endif
