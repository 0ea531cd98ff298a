// SPDX-License-Identifier: Apache-2.0
#include "base/thread_cache.h"

#include "base/alloc.h"
#include "base/test.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool keeps(void)
{
    void *p = hth_thread_cache_malloc(100);
    hth_thread_cache_free(p);
    return hth_thread_cache_kept() > 0;
}

void __asan_init(void) __attribute__((weak));
void __tsan_init(void) __attribute__((weak));
void __msan_init(void) __attribute__((weak));

// A sanitizer, whosever, is there to see each block that is freed.
static void leaves_sanitizers(void **state)
{
    (void)state;
    bool there = __asan_init != NULL || __tsan_init != NULL || __msan_init != NULL;
    hth_thread_cache_begin();
    bool kept = keeps();
    hth_thread_cache_end();
    assert_int_equal(there, HTH_SANITIZED);
    assert_false(there && kept);
}

// A freed block of a size is the next one of that size, for libraries and for hth_alloc alike.
static void gives_again(void **state)
{
    (void)state;
    hth_thread_cache_begin();
    if (!keeps()) { // a build that is to see each block that is freed
        hth_thread_cache_end();
        skip();
    }
    for (size_t n = 0; n <= HTH_KEEP_LARGE - 16; n++) {
        void *p = hth_thread_cache_malloc(n);
        memset(p, 1, n);
        uintptr_t at = (uintptr_t)p;
        hth_thread_cache_free(p);
        p = hth_alloc(n);
        assert_true((uintptr_t)p == at);
        hth_free(p);
        uint8_t *zero = hth_calloc(1, n);
        assert_true((uintptr_t)zero == at);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(zero[i], 0);
            zero[i] = 0xff;
        }
        hth_free(zero);
    }
    hth_thread_cache_end();
    assert_int_equal(hth_thread_cache_kept(), 0);
    assert_false(keeps());
}

// An aligned block, too, is the next one of its size; it is taken where that suits.
static void gives_aligned(void **state)
{
    (void)state;
    hth_thread_cache_begin();
    if (!keeps()) {
        hth_thread_cache_end();
        skip();
    }
    int again = 0, n_sizes = 0;
    for (size_t n = 1; n <= HTH_KEEP_LARGE + 100; n += 7) {
        for (size_t align = 8; align <= 4096; align *= 8) {
            void *p = hth_alloc_aligned(n, align);
            assert_true((uintptr_t)p % align == 0);
            memset(p, 1, n);
            hth_free(p);
            size_t kept = hth_thread_cache_kept();
            p = hth_alloc_aligned(n, align);
            assert_true((uintptr_t)p % align == 0);
            memset(p, 2, n);
            again += align == 64 && hth_thread_cache_kept() < kept;
            hth_free(p);
        }
        n_sizes++;
    }
    // the C library gives some larger blocks than were asked for, which count as larger ones
    assert_true(again > n_sizes * 3 / 4);
    hth_thread_cache_end();
}

// What is kept is bounded, and of small blocks only. Blocks are different ones while they are used.
static void bounded(void **state)
{
    (void)state;
    enum { N = 1000 };
    static char *p[N];
    hth_thread_cache_begin();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            size_t n = (size_t)(i * 37) % 8000 + 1;
            p[i] = hth_thread_cache_malloc(n);
            memset(p[i], i, n);
            p[i] = hth_thread_cache_realloc(p[i], n + 9);
        }
        for (int i = 0; i < N; i++) {
            size_t n = (size_t)(i * 37) % 8000 + 1;
            assert_int_equal((uint8_t)p[i][0], (uint8_t)i);
            assert_int_equal((uint8_t)p[i][n - 1], (uint8_t)i);
            hth_thread_cache_free(p[i]);
            assert_true(hth_thread_cache_kept() <= HTH_KEEP_BYTES);
        }
    }
    size_t kept = hth_thread_cache_kept();
    void *large = hth_thread_cache_malloc(HTH_KEEP_LARGE + 100);
    hth_thread_cache_free(large);
    hth_thread_cache_free(NULL);
    assert_int_equal(hth_thread_cache_kept(), kept);
    hth_thread_cache_end();
}

// Blocks that come from elsewhere and are never asked for do not keep others out.
static void makes_room(void **state)
{
    (void)state;
    hth_thread_cache_begin();
    if (!keeps()) {
        hth_thread_cache_end();
        skip();
    }
    for (size_t i = 0; i < 2 * HTH_KEEP_BYTES / 1000; i++) {
        hth_thread_cache_free(malloc(1000));
    }
    assert_true(hth_thread_cache_kept() <= HTH_KEEP_BYTES);
    void *p = hth_thread_cache_realloc(NULL, 100);
    uintptr_t at = (uintptr_t)p;
    hth_thread_cache_free(p);
    p = hth_thread_cache_malloc(100);
    assert_true((uintptr_t)p == at);
    hth_thread_cache_free(p);
    hth_thread_cache_end();
}

static void *elsewhere(void *p)
{
    hth_thread_cache_free(p); // keeps nothing: it did not say so
    return hth_thread_cache_kept() == 0 ? hth_thread_cache_malloc(64) : NULL;
}

// Blocks go to other threads and come from them, and free takes them.
static void threads(void **state)
{
    (void)state;
    pthread_t other;
    void *came;
    hth_thread_cache_begin();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&other, NULL, elsewhere, hth_thread_cache_malloc(64)), 0);
        pthread_join(other, &came);
        assert_non_null(came);
        hth_thread_cache_free(came);
    }
    free(hth_thread_cache_malloc(64));
    hth_thread_cache_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_sanitizers), cmocka_unit_test(gives_again),
        cmocka_unit_test(gives_aligned),     cmocka_unit_test(bounded),
        cmocka_unit_test(makes_room),        cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
