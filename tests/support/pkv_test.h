/* pkv_test.h: the one way tests include cmocka, and what they share. */
#ifndef PKV_TEST_H
#define PKV_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pivotkv/status.h"

/* 1 under ASan or TSan, where everything takes ten times as long and allocators are not ours. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PKVT_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PKVT_SANITIZED 1
#endif
#endif
#ifndef PKVT_SANITIZED
#define PKVT_SANITIZED 0
#endif

/* Fails the test unless the call gave PKV_OK, printing its message. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        enum pkv_status assert_ok_status = (expression);                                           \
        if (assert_ok_status != PKV_OK) {                                                          \
            fail_msg("%s: %s: %s", #expression, pkv_status_name(assert_ok_status),                 \
                     pkv_error_text());                                                            \
        }                                                                                          \
    } while (0)
#define assert_status(expression, status)                                                          \
    do {                                                                                           \
        enum pkv_status assert_status_got = (expression);                                          \
        if (assert_status_got != (status)) {                                                       \
            fail_msg("%s: got %s (%s), want %s", #expression, pkv_status_name(assert_status_got),  \
                     pkv_error_text(), pkv_status_name(status));                                   \
        }                                                                                          \
    } while (0)

/* xoshiro-like generator of the tests: the same numbers everywhere. */
struct pkvt_rng {
    uint64_t state;
};
uint64_t pkvt_rng_u64(struct pkvt_rng *rng);
uint32_t pkvt_rng_below(struct pkvt_rng *rng, uint32_t limit);
float pkvt_rng_uniform(struct pkvt_rng *rng, float low, float high);
float pkvt_rng_normal(struct pkvt_rng *rng);

/* Path of a file in tests/, found through PIVOTKV_SOURCE or the folder the build came from; static
 * buffers. */
const char *pkvt_path(const char *relative);

/* Whole file, 0 behind it; fails the test if unreadable. Freed with free(). */
char *pkvt_read_file(const char *path, size_t *bytes_out);

/* Path of a real model (PIVOTKV_MODEL_SMOLLM2, PIVOTKV_MODEL_GEMMA3, else the cache folder), or
 * NULL. */
const char *pkvt_model_path(const char *name);

#endif
