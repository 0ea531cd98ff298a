// SPDX-License-Identifier: Apache-2.0
// The lock file itself is never removed: a second process could otherwise lock a name that a third
// has made anew. A connection is tried as well, for sockets of programs that know nothing of the
// lock.
#include "server/net/sockfile.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char *sockfile_path(const char *url)
{
    return strncmp(url, "ipc://", 6) == 0 ? url + 6 : NULL;
}

static int sockfile_answers(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int answers = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return answers;
}

static hth_err sockfile_clear(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? HTH_OK : hth_fail_errno(errno, "cannot use %s", path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return hth_fail(HTH_EBUSY, "%s is not a socket", path);
    }
    if (sockfile_answers(path)) {
        return hth_fail(HTH_EBUSY, "another process answers at ipc://%s", path);
    }
    return unlink(path) == 0 ? HTH_OK
                             : hth_fail_errno(errno, "cannot remove the stale socket %s", path);
}

hth_err hth_sockfile_lock(const char *path, const char *taken, int *fd)
{
    hth_err err = HTH_OK;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) {
        return hth_fail_errno(errno, "cannot open %s", path);
    }
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        err = hth_fail(HTH_EBUSY, "%s", taken);
        close(*fd);
        *fd = -1;
    }
    return err;
}

hth_err hth_sockfile_claim(const char *url, int *fd)
{
    const char *path = sockfile_path(url);
    *fd = -1;
    if (path == NULL) {
        return HTH_OK;
    }
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        return hth_fail(HTH_EINVAL, "the socket's path is too long: %s", path);
    }
    char *lock = hth_asprintf("%s.lock", path);
    char *taken = hth_asprintf("another hearthd already listens on %s", url);
    hth_err err = lock != NULL && taken != NULL ? hth_sockfile_lock(lock, taken, fd)
                                                : hth_no_memory("a path");
    hth_free(lock);
    hth_free(taken);
    if (err == HTH_OK) {
        err = sockfile_clear(path);
    }
    if (err != HTH_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return err;
}

void hth_sockfile_release(const char *url, int fd)
{
    if (fd >= 0) {
        unlink(sockfile_path(url));
        close(fd);
    }
}
