// SPDX-License-Identifier: Apache-2.0
// base/thread_cache.h - memory that a thread frees is kept for its next allocations of the same
// size.
//
// A thread that serves requests allocates and frees the same few dozen sizes for each of them, all
// small; the C library's allocator takes longer for that than anything else does. A thread says
// that it wants this by hth_thread_cache_begin; for all others, and everything larger, it is the C
// library's allocator and nothing else, which also knows of all that is kept: any of these blocks
// may be freed by free, and any of its blocks by hth_thread_cache_free.
#ifndef HTH_BASE_THREAD_CACHE_H
#define HTH_BASE_THREAD_CACHE_H

#include <stddef.h>

// Of all that a thread keeps. Where that is reached, all is given back: sizes that are freed here
// and allocated elsewhere, or grew, would take the place of those that are asked for.
#define HTH_KEEP_BYTES ((size_t)1 << 20)
#define HTH_KEEP_LARGE 4096 // a larger block is never kept

// hth_thread_cache_begin has the calling thread keep what it frees, until hth_thread_cache_end,
// which frees all of it. Without memory for that it does not. Under sanitizers, and in debug
// builds, no thread does: they are to see each block that is freed.
void hth_thread_cache_begin(void);
void hth_thread_cache_end(void);
size_t hth_thread_cache_kept(void); // bytes that the calling thread keeps

// malloc, realloc and free; also as functions for libraries.
void *hth_thread_cache_malloc(size_t bytes);
// hth_thread_cache_aligned is posix_memalign's block, NULL: no memory. `align` is a power of two.
void *hth_thread_cache_aligned(size_t bytes, size_t align);
void *hth_thread_cache_realloc(void *p, size_t bytes);
void hth_thread_cache_free(void *p);

#endif
