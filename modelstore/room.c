// SPDX-License-Identifier: Apache-2.0
// Room on the store's file system, asked for and kept. What is kept is a file without a name: it is
// gone with its descriptor, however the process ends.
#include "modelstore/store_impl.h"

#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define ROOM_TMP "tmp"

hth_err hth_store_room(hth_store *store, uint64_t *bytes)
{
    struct statvfs v;
    *bytes = 0;
    if (store->read_only) {
        return hth_store_read_only();
    }
    if (fstatvfs(store->dir, &v) != 0) {
        return hth_fail_errno(errno, "the store's file system");
    }
    *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    return HTH_OK;
}

hth_err hth_store_reserve(hth_store *store, uint64_t bytes, int *fd)
{
    uint64_t room;
    hth_size need, there;
    HTH_TRY(hth_store_room(store, &room));
    hth_size_pair(bytes, room, &need, &there);
    *fd = openat(store->dir, ROOM_TMP, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    int rc = *fd < 0 ? 0 : fallocate(*fd, 0, 0, (off_t)bytes);
    int errnum = rc != 0 ? errno : 0;
    bool full = errnum == ENOSPC || errnum == EDQUOT || bytes > room;
    if (rc != 0 || full) { // else the file system keeps nothing: what there is now has to do
        close(*fd);
        *fd = -1;
    }
    return full ? hth_fail(HTH_EIO, "%s are needed, the store's file system has %s left", need.text,
                           there.text)
                : HTH_OK;
}

void hth_store_unreserve(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}
