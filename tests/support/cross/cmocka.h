/*
 * cmocka.h: as much of cmocka as the kernel tests use, for cross builds (cmake/kernels_only.cmake),
 * where the library is not there. The first failure ends the program.
 */
#ifndef PKV_TEST_CROSS_CMOCKA_H
#define PKV_TEST_CROSS_CMOCKA_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
};

__attribute__((format(printf, 1, 2), noreturn, unused)) static void fail_msg(const char *format,
                                                                             ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

#define assert_true(condition)                                                                     \
    ((condition) ? (void)0 : fail_msg("%s:%d: not true: %s", __FILE__, __LINE__, #condition))
#define assert_false(condition) assert_true(!(condition))
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_null(pointer) assert_true((pointer) == NULL)
#define assert_int_equal(a, b) assert_true((intmax_t)(a) == (intmax_t)(b))
#define assert_in_range(value, low, high) assert_true((value) >= (low) && (value) <= (high))
#define assert_memory_equal(a, b, bytes) assert_true(memcmp((a), (b), (bytes)) == 0)
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)

/* Ends the test function that says it. */
#define skip()                                                                                     \
    do {                                                                                           \
        printf("skipped: ");                                                                       \
        return;                                                                                    \
    } while (0)

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    pkvt_run_group((tests), sizeof(tests) / sizeof *(tests), (setup), (teardown))

static inline int pkvt_run_group(const struct CMUnitTest *tests, size_t count,
                                 int (*setup)(void **), int (*teardown)(void **))
{
    void *state = NULL;
    if (setup && setup(&state) != 0) {
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        tests[i].test(&state);
        printf("ok %s\n", tests[i].name);
    }
    return teardown && teardown(&state) != 0;
}

#endif
