// SPDX-License-Identifier: Apache-2.0
// The allocator is the C library's, or what a thread keeps of it (thread_cache.h); what is added is
// a count, so that a test can fail the N-th allocation for N = 1, 2, .. until the tested call
// succeeds, and see that nothing stays behind.
#include "base/alloc.h"

#include "base/thread_cache.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALLOC_PAGE 4096u
#define ALLOC_HUGE ((size_t)2 << 20)

static _Atomic uint64_t alloc_count;
static _Atomic int64_t alloc_live;
static _Atomic uint64_t alloc_fail_at; // absolute count at which to fail; 0: never

static void (*_Atomic alloc_fn)(void *ctx); // what happens there; NULL: the allocation fails
static void *_Atomic alloc_ctx;

static int alloc_refused(void)
{
    uint64_t n = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
    if (n != atomic_load_explicit(&alloc_fail_at, memory_order_relaxed)) {
        return 0;
    }
    void (*fn)(void *ctx) = atomic_load(&alloc_fn);
    if (fn != NULL) {
        fn(atomic_load(&alloc_ctx));
    }
    return fn == NULL;
}

static void *alloc_counted(void *p)
{
    if (p != NULL) {
        atomic_fetch_add_explicit(&alloc_live, 1, memory_order_relaxed);
    }
    return p;
}

void *hth_alloc(size_t bytes)
{
    if (alloc_refused()) {
        return NULL;
    }
    void *p = alloc_counted(hth_thread_cache_malloc(bytes ? bytes : 1));
#ifdef HTH_DEBUG
    if (p != NULL) {
        memset(p, 0xA5, bytes < 4096 ? bytes : 4096);
    }
#endif
    return p;
}

void *hth_calloc(size_t n, size_t size)
{
    uint64_t bytes; // checked here, too: some debugging allocators abort on overflow
    if (alloc_refused() || hth_mul_bytes(n, size, &bytes) != 0) {
        return NULL;
    }
    bytes += bytes == 0;
    if (bytes > HTH_KEEP_LARGE) {
        return alloc_counted(calloc(1, bytes)); // fresh pages are zero already
    }
    void *p = hth_thread_cache_malloc(bytes);
    return alloc_counted(p != NULL ? memset(p, 0, bytes) : NULL);
}

void *hth_realloc(void *p, size_t n, size_t size)
{
    uint64_t bytes;
    if (alloc_refused() || hth_mul_bytes(n, size, &bytes) != 0) {
        return NULL;
    }
    void *q = hth_thread_cache_realloc(p, bytes ? bytes : 1);
    return p == NULL ? alloc_counted(q) : q;
}

void *hth_alloc_aligned(size_t bytes, size_t align)
{
    if (alloc_refused()) {
        return NULL;
    }
    return alloc_counted(hth_thread_cache_aligned(bytes ? bytes : 1, align));
}

void *hth_alloc_large(size_t bytes)
{
    size_t huge = bytes / ALLOC_HUGE * ALLOC_HUGE;
    void *p = hth_alloc_aligned(bytes, huge > 0 ? ALLOC_HUGE : ALLOC_PAGE);
    if (p != NULL && huge > 0) {
        (void)madvise(p, huge, MADV_HUGEPAGE); // advice: without it the pages are only smaller
    }
    return p;
}

char *hth_strndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    char *p = hth_alloc(n + 1);
    if (p != NULL) {
        memcpy(p, s, n);
        p[n] = '\0';
    }
    return p;
}

char *hth_strdup(const char *s)
{
    return hth_strndup(s, SIZE_MAX - 1);
}

void *hth_memdup(const void *src, size_t bytes)
{
    void *p = hth_alloc(bytes);
    if (p != NULL && bytes > 0) {
        memcpy(p, src, bytes);
    }
    return p;
}

char *hth_asprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : hth_alloc((size_t)n + 1);
    if (p != NULL) {
        va_start(ap, fmt);
        vsnprintf(p, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return p;
}

void hth_free(void *p)
{
    if (p != NULL) {
        atomic_fetch_sub_explicit(&alloc_live, 1, memory_order_relaxed);
        hth_thread_cache_free(p);
    }
}

static void fault_set(uint64_t nth, void (*fn)(void *ctx), void *ctx)
{
    atomic_store(&alloc_fail_at, 0);
    atomic_store(&alloc_fn, fn);
    atomic_store(&alloc_ctx, ctx);
    atomic_store(&alloc_fail_at, nth == 0 ? 0 : atomic_load(&alloc_count) + nth);
}

void hth_fault_alloc(uint64_t nth)
{
    fault_set(nth, NULL, NULL);
}

void hth_fault_call(uint64_t nth, void (*fn)(void *ctx), void *ctx)
{
    fault_set(nth, fn, ctx);
}

uint64_t hth_alloc_count(void)
{
    return atomic_load(&alloc_count);
}

int64_t hth_alloc_live(void)
{
    return atomic_load(&alloc_live);
}

int hth_mul_bytes(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out) ? -1 : 0;
}

int hth_grow_(void **ptr, int *cap, size_t size)
{
    int want = *cap < 8 ? 8 : *cap + *cap / 2;
    void *p = hth_realloc(*ptr, (size_t)want, size);
    if (p == NULL) {
        return -1;
    }
    *ptr = p;
    *cap = want;
    return 0;
}
