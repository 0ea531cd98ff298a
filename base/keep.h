// SPDX-License-Identifier: Apache-2.0
// base/keep.h - memory that a thread frees is kept for its next allocations of the same size.
//
// A thread that serves requests allocates and frees the same few dozen sizes for each of them, all
// small; the C library's allocator takes longer for that than anything else does. A thread says
// that it wants this by hth_keep_begin; for all others, and everything larger, it is the C
// library's allocator and nothing else, which also knows of all that is kept: any of these blocks
// may be freed by free, and any of its blocks by hth_keep_free.
#ifndef HTH_BASE_KEEP_H
#define HTH_BASE_KEEP_H

#include <stddef.h>

// Of all that a thread keeps. Where that is reached, all is given back: sizes that are freed here
// and allocated elsewhere, or grew, would take the place of those that are asked for.
#define HTH_KEEP_BYTES ((size_t)1 << 20)
#define HTH_KEEP_LARGE 4096 // a larger block is never kept

// hth_keep_begin has the calling thread keep what it frees, until hth_keep_end, which frees all of
// it. Without memory for that it does not. Under sanitizers, and in debug builds, no thread does:
// they are to see each block that is freed.
void hth_keep_begin(void);
void hth_keep_end(void);
size_t hth_keep_kept(void); // bytes that the calling thread keeps

// malloc, realloc and free; also as functions for libraries.
void *hth_keep_malloc(size_t bytes);
// hth_keep_aligned is posix_memalign's block, NULL: no memory. `align` is a power of two.
void *hth_keep_aligned(size_t bytes, size_t align);
void *hth_keep_realloc(void *p, size_t bytes);
void hth_keep_free(void *p);

#endif
