/*
 * Opening and encoding with the n-th allocation failing, for every n there is: PKV_ERR_NO_MEMORY,
 * nothing lost, ids as before.
 */
#include "tests/support/pkv_test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/text.h"
#include "tests/support/vocab_builder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FAILS_ALLOCATIONS 0
#endif
#endif
#ifndef FAILS_ALLOCATIONS
#define FAILS_ALLOCATIONS 1
#endif

#if FAILS_ALLOCATIONS
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void __libc_free(void *old);

#define EXPORTED __attribute__((visibility("default"))) /* for the allocations of libraries too */

static volatile long until_failure = -1; /* -1 = never */
static volatile long live;

static bool fails(void)
{
    return until_failure >= 0 && until_failure-- == 0;
}

EXPORTED void *malloc(size_t bytes)
{
    void *data = fails() ? NULL : __libc_malloc(bytes);
    live += data != NULL;
    return data;
}

EXPORTED void *calloc(size_t count, size_t bytes)
{
    void *data = fails() ? NULL : __libc_calloc(count, bytes);
    live += data != NULL;
    return data;
}

EXPORTED void *realloc(void *old, size_t bytes)
{
    void *data = fails() ? NULL : __libc_realloc(old, bytes);
    live += data != NULL && old == NULL;
    return data;
}

EXPORTED void free(void *old)
{
    live -= old != NULL;
    __libc_free(old);
}

/* A text with markers, words, bytes that are not UTF-8, and more ids than fit at first. */
static enum pkv_status encode(const struct pkv_tokenizer *tokenizer, struct pkv_ids *ids)
{
    static const char text[] = "hello w<tool>ab \xff<tool>"
                               "qwertyuiopasdfghjklzxcvbnmqwertyuiopasdfghjklzxcvbnmqwertyuiop"
                               "1234567890123456789012345678901234567890";
    return pkv_encode(tokenizer, text, sizeof text - 1, PKV_ENCODE_SPECIAL | PKV_ENCODE_BOS, ids);
}

static void check_open(struct pkvt_gguf *gguf)
{
    pkvt_gguf_write(gguf);
    const char *path = pkvt_memory_file(gguf->file, gguf->file_bytes);
    pkvt_gguf_free(gguf);
    enum pkv_status status = PKV_ERR_NO_MEMORY;
    long n = 0;
    for (; status != PKV_OK; n++) {
        struct pkv_tokenizer *tokenizer = NULL;
        long before = live;
        until_failure = n;
        status = pkv_tokenizer_open(path, &tokenizer);
        until_failure = -1;
        if (status == PKV_OK) {
            pkv_tokenizer_close(tokenizer);
        } else {
            assert_int_equal(status, PKV_ERR_NO_MEMORY);
        }
        assert_int_equal(live, before);
    }
    assert_true(n > 12);
}

static void check_encode(struct pkvt_gguf *gguf)
{
    struct pkv_tokenizer *tokenizer = pkvt_open_tokenizer(gguf);
    enum pkv_status status = PKV_ERR_NO_MEMORY;
    long n = 0;
    for (; status != PKV_OK; n++) {
        struct pkv_ids ids = {0};
        long before = live;
        assert_ok(pkv_ids_append(&ids, 7));
        until_failure = n;
        status = encode(tokenizer, &ids);
        until_failure = -1;
        if (status != PKV_OK) {
            assert_int_equal(status, PKV_ERR_NO_MEMORY);
            assert_int_equal(ids.count, 1);
        }
        assert_int_equal(ids.id[0], 7);
        pkv_ids_free(&ids);
        assert_int_equal(live, before);
    }
    assert_true(n > 5);
    pkv_tokenizer_close(tokenizer);
}

static void test_open__each_allocation_fails__nothing_lost(void **state)
{
    (void)state;
    check_open(pkvt_small_bpe());
    check_open(pkvt_small_spm());
}

static void test_encode__each_allocation_fails__ids_as_before(void **state)
{
    (void)state;
    check_encode(pkvt_small_bpe());
    check_encode(pkvt_small_spm());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open__each_allocation_fails__nothing_lost),
        cmocka_unit_test(test_encode__each_allocation_fails__ids_as_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    fputs("SKIP: sanitizers own the allocator\n", stderr);
    return 77;
}
#endif
