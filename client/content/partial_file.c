// SPDX-License-Identifier: Apache-2.0
// The lock is the file's own (flock), and goes with its descriptor, however its process ends. The
// disk is told early of what it will have to write, so that the sync at the end waits for little.
#include "client/content/partial_file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTIAL_EARLY ((uint64_t)8 << 20)

// partial_ours tells whether an open part may be written, and is still called so; it is locked
// then.
static bool partial_ours(int fd, const char *name, uint64_t *bytes)
{
    struct stat st, now;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1 ||
        flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return false;
    }
    *bytes = (uint64_t)st.st_size;
    return lstat(name, &now) == 0 && now.st_ino == st.st_ino && now.st_dev == st.st_dev;
}

hth_err hth_partial_file_begin(const char *path, hth_partial_file *file)
{
    hth_atomic_file *f = &file->file;
    memset(file, 0, sizeof *file);
    f->fd = -1;
    f->path = hth_strdup(path);
    f->tmp = hth_asprintf("%s" HTH_PARTIAL_TAIL, path);
    if (f->path != NULL && f->tmp != NULL) {
        f->fd = open(f->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
        file->named = f->fd >= 0 && partial_ours(f->fd, f->tmp, &file->have);
    }
    if (file->named) {
        return HTH_OK;
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    hth_free(f->path);
    hth_free(f->tmp);
    file->have = 0;
    return hth_atomic_file_begin(path, f);
}

bool hth_partial_file_read(hth_partial_file *file, void *dst, size_t n)
{
    if (file->at > file->have || n > file->have - file->at) {
        return false;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(file->file.fd, (char *)dst + done, n - done, (off_t)(file->at + done));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    file->at += n;
    return true;
}

hth_err hth_partial_file_write(hth_partial_file *file, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put =
            pwrite(file->file.fd, (const char *)data + done, n - done, (off_t)(file->at + done));
        if (put < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot write %s", file->file.path);
        }
        done += put > 0 ? (size_t)put : 0;
    }
    file->at += n;
    if (file->at - file->sent >= PARTIAL_EARLY) {
        (void)sync_file_range(file->file.fd, (off_t)file->sent, (off_t)(file->at - file->sent),
                              SYNC_FILE_RANGE_WRITE); // not all file systems have it
        file->sent = file->at;
    }
    return HTH_OK;
}

void hth_partial_file_again(hth_partial_file *file)
{
    file->have = file->at = file->sent = 0;
}

hth_err hth_partial_file_end(hth_partial_file *file, hth_partial_end end)
{
    hth_atomic_file *f = &file->file;
    if (end == HTH_PARTIAL_LEFT && file->named && file->at > 0) {
        close(f->fd);
        hth_free(f->path);
        hth_free(f->tmp);
        return HTH_OK;
    }
    bool whole = end == HTH_PARTIAL_WHOLE;
    if (whole && ftruncate(f->fd, (off_t)file->at) != 0) {
        hth_err err = hth_fail_errno(errno, "cannot write %s", f->path);
        (void)hth_atomic_file_end(f, false);
        return err;
    }
    return hth_atomic_file_end(f, whole);
}
