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
    uint64_t first_free, used;
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
        return hth_fail(HTH_ENOMEM, "out of memory for a slab");
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

void hth_slab_close(hth_slab *s)
{
    if (s != NULL) {
        munmap(s->base, s->bytes);
        pthread_mutex_destroy(&s->lock);
        hth_free(s);
    }
}

static slab_head *slab_at(const hth_slab *s, uint64_t offset)
{
    return (slab_head *)(void *)(s->base + offset);
}

// ---- the free list

static void slab_unlist(hth_slab *s, const slab_head *h)
{
    if (h->last == SLAB_NOWHERE) {
        s->first_free = h->next;
    } else {
        slab_at(s, h->last)->next = h->next;
    }
    if (h->next != SLAB_NOWHERE) {
        slab_at(s, h->next)->last = h->last;
    }
}

static void slab_list(hth_slab *s, slab_head *h)
{
    uint64_t at = (uint64_t)((char *)h - s->base);
    h->used = false;
    h->last = SLAB_NOWHERE;
    h->next = s->first_free;
    if (h->next != SLAB_NOWHERE) {
        slab_at(s, h->next)->last = at;
    }
    s->first_free = at;
}

// slab_sized sets the size of the block at `at`, and tells it to the one after.
static void slab_sized(hth_slab *s, uint64_t at, uint64_t bytes)
{
    slab_at(s, at)->bytes = bytes;
    if (at + bytes < s->top) {
        slab_at(s, at + bytes)->before = bytes;
    } else {
        s->end_bytes = bytes;
    }
}

// slab_take takes `bytes` out of a free block; what is left of it stays free.
static void slab_take(hth_slab *s, slab_head *h, uint64_t bytes)
{
    uint64_t at = (uint64_t)((char *)h - s->base), rest = h->bytes - bytes;
    slab_unlist(s, h);
    if (rest >= 2 * HTH_SLAB_ALIGN) {
        slab_at(s, at + bytes)->before = bytes;
        slab_sized(s, at + bytes, rest);
        slab_list(s, slab_at(s, at + bytes));
        h->bytes = bytes;
    }
    h->used = true;
}

void *hth_slab_alloc(hth_slab *s, size_t bytes)
{
    slab_head *h = NULL;
    if (bytes > s->bytes) {
        return NULL;
    }
    uint64_t need = (bytes + 2 * HTH_SLAB_ALIGN - 1) / HTH_SLAB_ALIGN * HTH_SLAB_ALIGN;
    pthread_mutex_lock(&s->lock);
    uint64_t at = s->first_free;
    while (at != SLAB_NOWHERE && slab_at(s, at)->bytes < need) {
        at = slab_at(s, at)->next;
    }
    if (at != SLAB_NOWHERE) {
        h = slab_at(s, at);
        slab_take(s, h, need);
    } else if (need <= s->bytes - s->top) {
        h = slab_at(s, s->top);
        *h = (slab_head){.bytes = need, .before = s->end_bytes, .used = true};
        s->top += need;
        s->end_bytes = need;
    }
    s->used += h != NULL ? h->bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return h != NULL ? (char *)h + HTH_SLAB_ALIGN : NULL;
}

// slab_punch gives the whole pages of [from, to) back to the system.
static void slab_punch(hth_slab *s, uint64_t from, uint64_t to)
{
    from = from < HTH_SLAB_KEEP ? HTH_SLAB_KEEP : (from + SLAB_PAGE - 1) / SLAB_PAGE * SLAB_PAGE;
    to = to / SLAB_PAGE * SLAB_PAGE;
    if (to > from && to - from >= SLAB_PUNCH) {
        (void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                        (off_t)(to - from));
    }
}

void hth_slab_free(hth_slab *s, void *block)
{
    if (block == NULL) {
        return;
    }
    slab_head *h = (slab_head *)(void *)((char *)block - HTH_SLAB_ALIGN);
    pthread_mutex_lock(&s->lock);
    uint64_t at = (uint64_t)((char *)h - s->base), bytes = h->bytes;
    s->used -= bytes;
    if (h->before != 0 && !slab_at(s, at - h->before)->used) {
        at -= h->before;
        h = slab_at(s, at);
        slab_unlist(s, h);
        bytes += h->bytes;
    }
    if (at + bytes < s->top && !slab_at(s, at + bytes)->used) {
        const slab_head *behind = slab_at(s, at + bytes);
        slab_unlist(s, behind);
        bytes += behind->bytes;
    }
    if (at + bytes == s->top) {
        s->top = at;
        s->end_bytes = h->before;
    } else {
        slab_sized(s, at, bytes);
        slab_list(s, h);
    }
    // under the lock: nobody may take a block while its pages go
    slab_punch(s, at == s->top ? at : at + HTH_SLAB_ALIGN, at + bytes);
    pthread_mutex_unlock(&s->lock);
}

uint64_t hth_slab_used(hth_slab *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t used = s->used;
    pthread_mutex_unlock(&s->lock);
    return used;
}

uint64_t hth_slab_offset(const hth_slab *s, const void *p)
{
    return (uint64_t)((const char *)p - s->base);
}

void *hth_slab_at(const hth_slab *s, uint64_t offset, uint64_t bytes)
{
    return offset <= s->bytes && bytes <= s->bytes - offset ? s->base + offset : NULL;
}

bool hth_slab_holds(const hth_slab *s, const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p, base = (uintptr_t)s->base;
    return at >= base && at - base <= s->bytes && bytes <= s->bytes - (at - base);
}

void hth_slab_empty(hth_slab *s)
{
    (void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)s->bytes);
}
