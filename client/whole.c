// SPDX-License-Identifier: Apache-2.0
// The temporary name ends in the process id and a number, so that writers of one path do not meet.
#include "client/whole.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

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

hth_err hth_whole_write(const char *path, const hth_whole_piece *piece, size_t n)
{
    static atomic_uint serial;
    char *tmp = hth_asprintf("%s.%d.%u.tmp", path, (int)getpid(), atomic_fetch_add(&serial, 1));
    if (tmp == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a path");
    }
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int failed = fd < 0;
    for (size_t i = 0; i < n && !failed; i++) {
        failed = whole_write_all(fd, piece[i].data, piece[i].bytes);
    }
    failed = failed || fsync(fd) != 0 || rename(tmp, path) != 0;
    hth_err err = failed ? hth_fail_errno(errno, "cannot write %s", path) : HTH_OK;
    if (fd >= 0) {
        close(fd);
        if (failed) {
            unlink(tmp);
        }
    }
    hth_free(tmp);
    return err;
}
