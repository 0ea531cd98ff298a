// SPDX-License-Identifier: Apache-2.0
// base/alloc.h - host memory, with the N-th allocation made to fail on demand.
//
// Out of memory is a normal result: every function returns NULL and leaves the sentence to the
// caller, who knows what the memory was for. Any thread.
#ifndef HTH_BASE_ALLOC_H
#define HTH_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

// hth_alloc returns `bytes` uninitialised bytes (poisoned in debug builds), or NULL. hth_alloc(0)
// is valid.
void *hth_alloc(size_t bytes);
// hth_calloc returns `n` zeroed elements of `size` bytes, or NULL, also when n*size overflows.
void *hth_calloc(size_t n, size_t size);
// hth_realloc grows or shrinks to `n` elements of `size`; on failure the old block stays as it is.
void *hth_realloc(void *p, size_t n, size_t size);
// hth_alloc_aligned returns memory aligned to `align` (a power of two); freed by hth_free.
void *hth_alloc_aligned(size_t bytes, size_t align);
// hth_alloc_large is hth_alloc_aligned for what is walked from end to end: aligned to a page, and
// in huge pages where it has some and the system gives them.
void *hth_alloc_large(size_t bytes);
char *hth_strdup(const char *s);
char *hth_strndup(const char *s, size_t n);
void *hth_memdup(const void *p, size_t bytes);
// hth_asprintf formats into a fresh string, or returns NULL.
char *hth_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// hth_free accepts NULL.
void hth_free(void *p);

// hth_fault_alloc makes the n-th allocation from now (1-based, all threads together) fail once; 0
// turns it off.
void hth_fault_alloc(uint64_t nth);
// hth_fault_call calls fn(ctx) at the n-th allocation from now, once, and lets it succeed: what
// others do in the midst of a call, in a test. The calling thread's allocations are not told from
// others'. 0 turns it off.
void hth_fault_call(uint64_t nth, void (*fn)(void *ctx), void *ctx);
// hth_alloc_count returns how many allocations were asked for since the process started.
uint64_t hth_alloc_count(void);
// hth_alloc_live returns how many blocks are allocated and not freed: leak checks in fault loops.
int64_t hth_alloc_live(void);

// hth_mul_bytes stores a*b in *out and returns 0, or returns -1 on overflow.
int hth_mul_bytes(uint64_t a, uint64_t b, uint64_t *out);

// HTH_GROW makes room for one more element in a {ptr, count, capacity} triple; evaluates to 0, or
// -1 when out of memory.
#define HTH_GROW(ptr, n, cap) ((n) < (cap) ? 0 : hth_grow_((void **)&(ptr), &(cap), sizeof *(ptr)))
int hth_grow_(void **ptr, int *cap, size_t size);

#endif
