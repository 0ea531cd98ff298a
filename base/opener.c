// SPDX-License-Identifier: Apache-2.0
#include "base/opener.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    hth_opener_fn fn;
    void *ctx;
} opener;

void hth_opener_set(hth_opener_fn fn, void *ctx)
{
    opener.fn = fn;
    opener.ctx = ctx;
}

// scratch_make returns a descriptor or -1: errno. File systems without O_TMPFILE get a file that
// loses its name at once.
static int scratch_make(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
        return fd;
    }
    char *path = hth_asprintf("%s/hearth-spill-XXXXXX", folder);
    if (path == NULL) {
        errno = ENOMEM;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    hth_free(path);
    return fd;
}

hth_err hth_open_here(hth_open_use use, const char *path, int *fd)
{
    hth_file f = {.fd = -1};
    if (use == HTH_OPEN_SCRATCH) {
        *fd = scratch_make(path);
        return *fd >= 0 ? HTH_OK : hth_fail_errno(errno, "cannot make a file in '%s'", path);
    }
    hth_err err = hth_file_open(path, path, &f);
    *fd = f.fd;
    return err;
}

static hth_err opener_open(hth_open_use use, const char *path, int *fd)
{
    return opener.fn != NULL ? opener.fn(opener.ctx, use, path, fd) : hth_open_here(use, path, fd);
}

hth_err hth_open_data(const char *path, hth_file *out)
{
    int fd;
    *out = (hth_file){.fd = -1};
    HTH_TRY(opener_open(HTH_OPEN_DATA, path, &fd));
    hth_err err = hth_file_again(fd, path, out);
    close(fd);
    return err;
}

hth_err hth_open_scratch(const char *folder, int *fd)
{
    return opener_open(HTH_OPEN_SCRATCH, folder, fd);
}
