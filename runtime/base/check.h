/* check.h: how code inside the library fails. The first to detect an error words it; the others
 * unwind. */
#ifndef PKV_BASE_CHECK_H
#define PKV_BASE_CHECK_H

#include "pivotkv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write the thread's message and return status; callers use PKV_FAIL. */
enum pkv_status pkvi_fail(enum pkv_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A status with its one line of text: `return PKV_FAIL(PKV_ERR_RANGE, "ctx %u: ...", n);` */
#define PKV_FAIL(status, ...) pkvi_fail((status), __VA_ARGS__)

/* Pass a failure on. Only where nothing is to be released; else `goto err_<what it undoes>`. */
#define PKV_TRY(expression)                                                                        \
    do {                                                                                           \
        enum pkv_status pkvi_try_status = (expression);                                            \
        if (pkvi_try_status != PKV_OK) {                                                           \
            return pkvi_try_status;                                                                \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
