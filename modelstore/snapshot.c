// SPDX-License-Identifier: Apache-2.0
// Why a copy, and why it is whole. A reader that is not in LMDB's table of readers is not waited
// for: the second commit after the one that it reads may reuse its pages while it does, and a tree
// of pages that are something else by now ends the process. Who may not write the table cannot be
// in it; neither can who sees the file through a file system that is mounted read-only, for others
// may write it through another mount.
//
// A commit writes the file's first pages (the two meta pages) last, and changes no page of the
// commit before it: those are freed by it, and reused at the earliest by the next transaction,
// which begins after it. So a copy of the file is that of the commit that its first pages tell of,
// if they are the same after all has been copied: no commit came in between, and the transaction
// that was at work wrote only pages which that commit does not use.
#include "modelstore/snapshot.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SNAPSHOT_HEAD  ((size_t)2 << 16) // both meta pages, whatever the size of a page (64 KiB)
#define SNAPSHOT_CHUNK ((size_t)1 << 20)
#define SNAPSHOT_TRIES 100

typedef struct snapshot {
    int from, to;
    char *head, *chunk; // SNAPSHOT_HEAD and SNAPSHOT_CHUNK bytes
} snapshot;

// snapshot_read reads until `bytes` are there, or the file ends; *n: how many are.
static hth_err snapshot_read(int fd, char *out, size_t bytes, off_t at, size_t *n)
{
    for (*n = 0; *n < bytes;) {
        ssize_t got = pread(fd, out + *n, bytes - *n, at + (off_t)*n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return hth_fail_errno(errno, "reading the store's index");
        }
        if (got == 0) {
            break;
        }
        *n += (size_t)got;
    }
    return HTH_OK;
}

static hth_err snapshot_write(int fd, const char *data, size_t bytes, off_t at)
{
    for (size_t n = 0; n < bytes;) {
        ssize_t put = pwrite(fd, data + n, bytes - n, at + (off_t)n);
        if (put < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "copying the store's index to memory");
        }
        n += put > 0 ? (size_t)put : 0;
    }
    return HTH_OK;
}

// snapshot_copy copies once; *same: no commit came in between.
static hth_err snapshot_copy(const snapshot *s, bool *same)
{
    size_t head, n;
    HTH_TRY(snapshot_read(s->from, s->head, SNAPSHOT_HEAD, 0, &head));
    HTH_TRY(snapshot_write(s->to, s->head, head, 0));
    off_t at = (off_t)head;
    do {
        HTH_TRY(snapshot_read(s->from, s->chunk, SNAPSHOT_CHUNK, at, &n));
        HTH_TRY(snapshot_write(s->to, s->chunk, n, at));
        at += (off_t)n;
    } while (n == SNAPSHOT_CHUNK);
    HTH_TRY(snapshot_read(s->from, s->chunk, SNAPSHOT_HEAD, 0, &n));
    *same = n == head && memcmp(s->chunk, s->head, n) == 0;
    return HTH_OK;
}

static hth_err snapshot_run(const snapshot *s)
{
    bool same = false;
    for (int tries = 0; tries < SNAPSHOT_TRIES && !same; tries++) {
        HTH_TRY(snapshot_copy(s, &same));
    }
    return same ? HTH_OK
                : hth_fail(HTH_EBUSY, "the store is being written all the time: use its server "
                                      "(--server), or get write permission for index/lock.mdb");
}

hth_err hth_snapshot_take(const char *path, int *fd)
{
    hth_err err = HTH_OK;
    snapshot s = {.from = open(path, O_RDONLY | O_CLOEXEC), .to = -1};
    *fd = -1;
    if (s.from < 0) {
        return hth_fail_errno(errno, "opening the store's index");
    }
    s.to = memfd_create("hearth-index", MFD_CLOEXEC);
    s.head = hth_alloc(SNAPSHOT_HEAD);
    s.chunk = hth_alloc(SNAPSHOT_CHUNK);
    if (s.to < 0 || s.head == NULL || s.chunk == NULL) {
        err = hth_no_memory("a copy of the store's index");
    }
    if (err == HTH_OK) {
        err = snapshot_run(&s);
    }
    if (err == HTH_OK) {
        *fd = s.to;
    } else if (s.to >= 0) {
        close(s.to);
    }
    hth_free(s.head);
    hth_free(s.chunk);
    close(s.from);
    return err;
}
