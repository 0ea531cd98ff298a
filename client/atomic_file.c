// SPDX-License-Identifier: Apache-2.0
// The temporary name ends in the process id and a number, so that writers of one path do not meet.
// One that was killed leaves its file, and process ids come again, in containers the same ones each
// time: a name that is taken is passed over.
#include "client/atomic_file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define TEMPORARIES 1000 // names that may be taken

static int whole_write_all(int fd, const uint8_t *p, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        if (n > 0) {
            p += n;
            bytes -= (size_t)n;
        }
    }
    return 0;
}

// whole_open opens a file that was not there.
static hth_err whole_open(const char *path, hth_atomic_file *file)
{
    static atomic_uint serial;
    for (int i = 0; i < TEMPORARIES; i++) {
        hth_free(file->tmp);
        file->tmp = hth_asprintf("%s.%d.%u.tmp", path, (int)getpid(), atomic_fetch_add(&serial, 1));
        if (file->tmp == NULL) {
            return hth_no_memory("a path");
        }
        file->fd = open(file->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd >= 0) {
            return HTH_OK;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return hth_fail_errno(errno, "cannot write %s", path);
}

hth_err hth_atomic_file_begin(const char *path, hth_atomic_file *file)
{
    *file = (hth_atomic_file){.path = hth_strdup(path), .fd = -1};
    hth_err err = file->path != NULL ? whole_open(path, file) : hth_no_memory("a path");
    if (err != HTH_OK) {
        hth_free(file->path);
        hth_free(file->tmp);
        *file = (hth_atomic_file){.fd = -1};
    }
    return err;
}

hth_err hth_atomic_file_end(hth_atomic_file *file, bool keep)
{
    bool failed = keep && (fsync(file->fd) != 0 || rename(file->tmp, file->path) != 0);
    hth_err err = failed ? hth_fail_errno(errno, "cannot write %s", file->path) : HTH_OK;
    close(file->fd);
    if (failed || !keep) {
        unlink(file->tmp);
    }
    hth_free(file->path);
    hth_free(file->tmp);
    *file = (hth_atomic_file){.fd = -1};
    return err;
}

hth_err hth_atomic_file_put(int fd, const char *shown, const hth_atomic_file_piece *piece,
                            size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (whole_write_all(fd, piece[i].data, piece[i].bytes) != 0) {
            return hth_fail_errno(errno, "cannot write %s", shown);
        }
    }
    return HTH_OK;
}

hth_err hth_atomic_file_write(const char *path, const hth_atomic_file_piece *piece, size_t count)
{
    hth_atomic_file w;
    HTH_TRY(hth_atomic_file_begin(path, &w));
    hth_err err = hth_atomic_file_put(w.fd, path, piece, count);
    hth_err end = hth_atomic_file_end(&w, err == HTH_OK);
    HTH_TRY(err);
    return end;
}
