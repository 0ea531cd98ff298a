// SPDX-License-Identifier: Apache-2.0
#include "base/thread_cache.h"

#include "base/sanitized.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

// Class c holds blocks of at least 16c + 8 bytes and less than 16 more: the sizes in which the GNU
// C library gives them. None is below 24.
#define KEEP_CLASSES (HTH_KEEP_LARGE / 16 + 1)

// What is kept begins with where the next one is.
typedef struct kept {
    struct kept *next;
} kept;

typedef struct keep {
    size_t bytes;
    kept *first[KEEP_CLASSES];
} keep;

static _Thread_local keep *keep_mine;

static size_t class_bytes(size_t c)
{
    return 16 * c + 8;
}

// class_for is the first class whose blocks hold so many bytes.
static size_t class_for(size_t bytes)
{
    return bytes <= class_bytes(1) ? 1 : (bytes - 8 + 15) / 16;
}

// class_of is the class that a block is in; 0: none.
static size_t class_of(void *p)
{
    size_t bytes = malloc_usable_size(p), c = bytes < class_bytes(1) ? 0 : (bytes - 8) / 16;
    return c < KEEP_CLASSES ? c : 0;
}

void hth_thread_cache_begin(void)
{
#if !defined(HTH_DEBUG) && !HTH_SANITIZED
    keep_mine = keep_mine != NULL ? keep_mine : calloc(1, sizeof *keep_mine);
#endif
}

static void keep_empty(keep *k)
{
    for (size_t c = 0; c < KEEP_CLASSES; c++) {
        for (kept *p = k->first[c], *next; p != NULL; p = next) {
            next = p->next;
            free(p);
        }
        k->first[c] = NULL;
    }
    k->bytes = 0;
}

void hth_thread_cache_end(void)
{
    keep *k = keep_mine;
    keep_mine = NULL;
    if (k != NULL) {
        keep_empty(k);
        free(k);
    }
}

size_t hth_thread_cache_kept(void)
{
    return keep_mine != NULL ? keep_mine->bytes : 0;
}

// keep_take takes what was kept last of a class.
static void *keep_take(keep *k, size_t c)
{
    kept *p = k->first[c];
    k->first[c] = p->next;
    k->bytes -= class_bytes(c);
    return p;
}

void *hth_thread_cache_malloc(size_t bytes)
{
    keep *k = keep_mine;
    size_t c = k != NULL && bytes <= HTH_KEEP_LARGE ? class_for(bytes) : 0;
    return c > 0 && k->first[c] != NULL ? keep_take(k, c) : malloc(bytes);
}

// Where the block that was kept last is aligned, it was often made by this very call. The C library
// makes some a little larger than they were asked for.
void *hth_thread_cache_aligned(size_t bytes, size_t align)
{
    keep *k = keep_mine;
    void *p;
    size_t c = k != NULL && bytes <= HTH_KEEP_LARGE ? class_for(bytes) : KEEP_CLASSES;
    for (size_t end = c + 3; c < end && c < KEEP_CLASSES; c++) {
        if (k->first[c] != NULL && (uintptr_t)k->first[c] % align == 0) {
            return keep_take(k, c);
        }
    }
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

void *hth_thread_cache_realloc(void *p, size_t bytes)
{
    return p != NULL ? realloc(p, bytes) : hth_thread_cache_malloc(bytes);
}

void hth_thread_cache_free(void *p)
{
    keep *k = keep_mine;
    size_t c = k != NULL && p != NULL ? class_of(p) : 0;
    if (c == 0) {
        free(p);
        return;
    }
    if (k->bytes + class_bytes(c) > HTH_KEEP_BYTES) {
        keep_empty(k);
    }
    kept *b = p;
    b->next = k->first[c];
    k->first[c] = b;
    k->bytes += class_bytes(c);
}
