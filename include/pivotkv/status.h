/* status.h: what every call of PivotKV returns, and where its message is. */
#ifndef PIVOTKV_STATUS_H
#define PIVOTKV_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(PKV_BUILDING) && defined(__GNUC__)
#define PKV_API __attribute__((visibility("default")))
#else
#define PKV_API
#endif

/*
 * One list makes the enum, the names and the texts. Negative codes are grouped by
 * what must be made anew after them: the call (-1..), the request (-10..),
 * the session (-20..), the device (-30..).
 */
#define PKV_STATUS_LIST(X)                                                                         \
    X(PKV_OK, 0, "ok")                                                                             \
    X(PKV_PENDING, 1, "not finished yet")                                                          \
    X(PKV_ERR_INVALID, -1, "invalid argument")                                                     \
    X(PKV_ERR_UNSUPPORTED, -2, "not supported")                                                    \
    X(PKV_ERR_RANGE, -3, "out of range")                                                           \
    X(PKV_ERR_NO_MEMORY, -10, "out of memory")                                                     \
    X(PKV_ERR_NO_SLOT, -11, "no free sequence slot")                                               \
    X(PKV_ERR_CANCELED, -12, "canceled")                                                           \
    X(PKV_ERR_CORRUPT, -13, "damaged data")                                                        \
    X(PKV_ERR_IO, -14, "input/output error")                                                       \
    X(PKV_ERR_STATE, -20, "wrong state")                                                           \
    X(PKV_ERR_DEVICE_LOST, -30, "device lost")

enum pkv_status {
#define PKV_STATUS_ENUM(name, value, text) name = value,
    PKV_STATUS_LIST(PKV_STATUS_ENUM)
#undef PKV_STATUS_ENUM
};

/* Name of a status, such as "PKV_ERR_INVALID"; "PKV_?" for an unknown number. */
PKV_API const char *pkv_status_name(enum pkv_status status);

/* Short text of a status, such as "invalid argument". */
PKV_API const char *pkv_status_text(enum pkv_status status);

/*
 * Message of the last failed call of this thread: one line, at most 511 bytes, "" if none
 * failed yet. Threads: each thread has its own slot; valid until its next failing call.
 */
PKV_API const char *pkv_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
