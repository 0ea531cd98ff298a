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

#define HOLD_PATH (sizeof HTH_STORE_HOLDS + 2 + 2 * sizeof(hth_id))

static const char *hold_path(const char *what, char path[HOLD_PATH])
{
    char hex[HTH_ID_HEX];
    hth_id id = hth_id_of(&(hth_chunk){what, strlen(what)}, 1);
    snprintf(path, HOLD_PATH, HTH_STORE_HOLDS "/%s", hth_id_hex(&id, hex));
    return path;
}

// hold_lock locks the file that has the path now; -1, HTH_OK: it has been removed meanwhile.
static hth_err hold_lock(const hth_store *store, const char *path, bool alone, int *fd)
{
    struct stat st;
    *fd = -1;
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
    if (fstat(f, &st) == 0 && st.st_nlink == 0) {
        close(f);
        return HTH_OK;
    }
    *fd = f;
    return HTH_OK;
}

hth_err hth_store_hold(hth_store *store, const char *what, bool alone, int *fd)
{
    char path[HOLD_PATH];
    *fd = -1;
    if (store->read_only) {
        return hth_store_read_only();
    }
    if (mkdirat(store->dir, HTH_STORE_HOLDS, 0777) != 0 && errno != EEXIST) {
        return hth_fail_errno(errno, "making the folder '" HTH_STORE_HOLDS "' in the store");
    }
    hth_err err;
    do {
        err = hold_lock(store, hold_path(what, path), alone, fd);
    } while (err == HTH_OK && *fd < 0);
    return err;
}

void hth_store_hold_end(hth_store *store, const char *what, int fd)
{
    char path[HOLD_PATH];
    if (fd >= 0) {
        (void)unlinkat(store->dir, hold_path(what, path), 0); // while nobody else has it
        close(fd);
    }
}

void hth_store_let_go(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}
