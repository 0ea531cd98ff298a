// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

hth_err hth_memfd_make(const char *name, size_t bytes, int *fd, void **out)
{
    void *p = MAP_FAILED;
    *out = NULL;
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) {
        return hth_fail_errno(errno, "cannot make shared memory");
    }
    if (ftruncate(*fd, (off_t)bytes) == 0 &&
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    }
    if (p == MAP_FAILED) {
        int e = errno;
        close(*fd);
        *fd = -1;
        return hth_fail_errno(e, "cannot make %zu bytes of shared memory", bytes);
    }
    *out = p;
    return HTH_OK;
}

void hth_memfd_drop(int fd, void *p, size_t bytes)
{
    if (p != NULL) {
        munmap(p, bytes);
    }
    if (fd >= 0) {
        close(fd);
    }
}

hth_err hth_memfd_check(int fd, uint64_t bytes)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstatfs(fd, &fs) != 0 ||
        fs.f_type != TMPFS_MAGIC || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return hth_fail(HTH_EDENIED,
                        "shared memory must be a memfd that is sealed against shrinking");
    }
    return bytes > 0 && (uint64_t)st.st_size >= bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "the shared memory is smaller than %" PRIu64 " bytes", bytes);
}
