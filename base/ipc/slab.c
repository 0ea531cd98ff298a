// SPDX-License-Identifier: Apache-2.0
// Blocks lie side by side from 0 to `top`; each begins with a head that tells its size and that of
// the one before, so that neighbours are found and joined. Free blocks are in a list, looked
// through from the one freed last, whose memory is warm; after `top` nothing has been given out.
//
// Invariants, under the lock: no two free blocks are neighbours; none ends at `top`.
#include "base/ipc/slab.h"

#include "base/alloc.h"
#include "base/ipc/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLAB_MIN     (64u << 20) // a smaller file is of no use
#define SLAB_PUNCH   (1u << 20)  // free memory in smaller pieces is not worth a system call
#define SLAB_PAGE    4096u
#define SLAB_NOWHERE UINT64_MAX

// What stands in front of a block: its size with the head, that of the block before (0: the first).
typedef struct slab_head {
    uint64_t bytes, before;
    uint64_t next, last; // of the free list: offsets of heads; SLAB_NOWHERE: the end
    bool used;
} slab_head;

_Static_assert(sizeof(slab_head) <= HTH_SLAB_ALIGN, "a head is one unit");

struct hth_slab {
    int fd;
    char *base;
    uint64_t bytes;
    pthread_mutex_t lock;
    uint64_t top, end_bytes; // end_bytes: size of the block that ends at `top`
    uint64_t first_free;
};

hth_err hth_slab_make(const char *name, uint64_t bytes, int *fd, uint64_t *made)
{
    void *p;
    hth_err err = hth_memfd_make(name, bytes, fd, &p);
    while (err != HTH_OK && bytes / 2 >= SLAB_MIN) { // where the address space is limited
        bytes /= 2;
        err = hth_memfd_make(name, bytes, fd, &p);
    }
    if (err == HTH_OK) {
        hth_memfd_drop(-1, p, bytes); // each side maps it as it may
        *made = bytes;
    }
    return err;
}

hth_err hth_slab_reader(int fd, int *reader)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *reader = fchmod(fd, S_IRUSR) == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    return *reader >= 0 ? HTH_OK : hth_fail_errno(errno, "cannot open shared memory for reading");
}

hth_err hth_slab_open(int fd, uint64_t bytes, bool owner, hth_slab **out)
{
    struct stat st;
    *out = NULL;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < bytes) {
        return hth_fail(HTH_EINVAL, "shared memory is smaller than %" PRIu64 " bytes", bytes);
    }
    hth_slab *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_no_memory("a slab");
    }
    s->base =
        mmap(NULL, bytes, PROT_READ | (owner ? PROT_WRITE : 0), MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (s->base == MAP_FAILED) {
        int e = errno;
        hth_free(s);
        return hth_fail_errno(e, "cannot map %" PRIu64 " bytes of shared memory", bytes);
    }
    (void)madvise(s->base, bytes, MADV_DONTDUMP);
    s->fd = fd;
    s->bytes = bytes;
    s->first_free = SLAB_NOWHERE;
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return HTH_OK;
}

void hth_slab_close(hth_slab *slab)
{
    if (slab != NULL) {
        munmap(slab->base, slab->bytes);
        pthread_mutex_destroy(&slab->lock);
        hth_free(slab);
    }
}

static slab_head *slab_at(const hth_slab *slab, uint64_t offset)
{
    return (slab_head *)(void *)(slab->base + offset);
}

// ---- the free list

static void slab_unlist(hth_slab *slab, const slab_head *head)
{
    if (head->last == SLAB_NOWHERE) {
        slab->first_free = head->next;
    } else {
        slab_at(slab, head->last)->next = head->next;
    }
    if (head->next != SLAB_NOWHERE) {
        slab_at(slab, head->next)->last = head->last;
    }
}

static void slab_list(hth_slab *slab, slab_head *head)
{
    uint64_t at = (uint64_t)((char *)head - slab->base);
    head->used = false;
    head->last = SLAB_NOWHERE;
    head->next = slab->first_free;
    if (head->next != SLAB_NOWHERE) {
        slab_at(slab, head->next)->last = at;
    }
    slab->first_free = at;
}

// slab_sized sets the size of the block at `at`, and tells it to the one after.
static void slab_sized(hth_slab *slab, uint64_t at, uint64_t bytes)
{
    slab_at(slab, at)->bytes = bytes;
    if (at + bytes < slab->top) {
        slab_at(slab, at + bytes)->before = bytes;
    } else {
        slab->end_bytes = bytes;
    }
}

// slab_take takes `bytes` out of a free block; what is left of it stays free.
static void slab_take(hth_slab *slab, slab_head *head, uint64_t bytes)
{
    uint64_t at = (uint64_t)((char *)head - slab->base), rest = head->bytes - bytes;
    slab_unlist(slab, head);
    if (rest >= 2 * HTH_SLAB_ALIGN) {
        slab_at(slab, at + bytes)->before = bytes;
        slab_sized(slab, at + bytes, rest);
        slab_list(slab, slab_at(slab, at + bytes));
        head->bytes = bytes;
    }
    head->used = true;
}

void *hth_slab_alloc(hth_slab *slab, size_t bytes)
{
    slab_head *h = NULL;
    if (bytes > slab->bytes) {
        return NULL;
    }
    uint64_t need = (bytes + 2 * HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
    pthread_mutex_lock(&slab->lock);
    uint64_t at = slab->first_free;
    while (at != SLAB_NOWHERE && slab_at(slab, at)->bytes < need) {
        at = slab_at(slab, at)->next;
    }
    if (at != SLAB_NOWHERE) {
        h = slab_at(slab, at);
        slab_take(slab, h, need);
    } else if (need <= slab->bytes - slab->top) {
        h = slab_at(slab, slab->top);
        *h = (slab_head){.bytes = need, .before = slab->end_bytes, .used = true};
        slab->top += need;
        slab->end_bytes = need;
    }
    pthread_mutex_unlock(&slab->lock);
    return h != NULL ? (char *)h + HTH_SLAB_ALIGN : NULL;
}

// slab_punch gives the whole pages of [from, to) back to the system.
static void slab_punch(hth_slab *slab, uint64_t from, uint64_t to)
{
    from = from < HTH_SLAB_KEEP ? HTH_SLAB_KEEP : (from + SLAB_PAGE - 1) / SLAB_PAGE * SLAB_PAGE;
    to = to / SLAB_PAGE * SLAB_PAGE;
    if (to > from && to - from >= SLAB_PUNCH) {
        (void)fallocate(slab->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                        (off_t)(to - from));
    }
}

void hth_slab_free(hth_slab *slab, void *block)
{
    if (block == NULL) {
        return;
    }
    slab_head *h = (slab_head *)(void *)((char *)block - HTH_SLAB_ALIGN);
    pthread_mutex_lock(&slab->lock);
    uint64_t at = (uint64_t)((char *)h - slab->base), bytes = h->bytes;
    if (h->before != 0 && !slab_at(slab, at - h->before)->used) {
        at -= h->before;
        h = slab_at(slab, at);
        slab_unlist(slab, h);
        bytes += h->bytes;
    }
    if (at + bytes < slab->top && !slab_at(slab, at + bytes)->used) {
        const slab_head *following = slab_at(slab, at + bytes);
        slab_unlist(slab, following);
        bytes += following->bytes;
    }
    if (at + bytes == slab->top) {
        slab->top = at;
        slab->end_bytes = h->before;
    } else {
        slab_sized(slab, at, bytes);
        slab_list(slab, h);
    }
    // under the lock: nobody may take a block while its pages go
    slab_punch(slab, at == slab->top ? at : at + HTH_SLAB_ALIGN, at + bytes);
    pthread_mutex_unlock(&slab->lock);
}

uint64_t hth_slab_offset(const hth_slab *slab, const void *p)
{
    return (uint64_t)((const char *)p - slab->base);
}

void *hth_slab_at(const hth_slab *slab, uint64_t offset, uint64_t bytes)
{
    return offset <= slab->bytes && bytes <= slab->bytes - offset ? slab->base + offset : NULL;
}

bool hth_slab_holds(const hth_slab *slab, const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p, base = (uintptr_t)slab->base;
    return at >= base && at - base <= slab->bytes && bytes <= slab->bytes - (at - base);
}
