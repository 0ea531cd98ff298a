// SPDX-License-Identifier: Apache-2.0
// A hold is a lock on a file in holds/: the system drops it with the process that has it, so none
// outlives its user.
#include "modelstore/hold.h"

#include "base/id.h"
#include "modelstore/file.h"
#include "modelstore/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

hth_err hth_store_hold(hth_store *store, const char *what, bool alone, int *fd)
{
    char path[sizeof HTH_STORE_HOLDS + 2 + 2 * sizeof(hth_id)], hex[HTH_ID_HEX];
    *fd = -1;
    if (store->read_only) {
        return hth_store_read_only();
    }
    hth_id id = hth_id_of(&(hth_chunk){what, strlen(what)}, 1);
    hth_id_hex(&id, hex);
    snprintf(path, sizeof path, HTH_STORE_HOLDS "/%s", hex);
    if (mkdirat(store->dir, HTH_STORE_HOLDS, 0777) != 0 && errno != EEXIST) {
        return hth_fail_errno(errno, "making the folder '" HTH_STORE_HOLDS "' in the store");
    }
    int f = openat(store->dir, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (f < 0) {
        return hth_fail_errno(errno, "opening '%s'", path);
    }
    if (flock(f, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
        int errnum = errno;
        close(f);
        return errnum == EWOULDBLOCK ? hth_fail(HTH_EBUSY, "it is in use")
                                     : hth_fail_errno(errnum, "locking '%s'", path);
    }
    *fd = f;
    return HTH_OK;
}

void hth_store_let_go(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}
