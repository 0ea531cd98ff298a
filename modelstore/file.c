// SPDX-License-Identifier: Apache-2.0
// Writing starts write-back piece by piece (sync_file_range), so that the disk works while the next
// tensor is hashed and the wait at the end is short; it promises nothing by itself,
// hth_store_file_sync does.
#include "modelstore/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic uint64_t file_ops, file_fail_at; // 0: never
static atomic_int file_errnum;
static atomic_bool file_full;

void hth_store_file_fault(uint64_t nth, int errnum)
{
    atomic_store(&file_errnum, errnum);
    atomic_store(&file_fail_at, nth == 0 ? 0 : atomic_load(&file_ops) + nth);
}

void hth_store_file_full(bool full)
{
    atomic_store(&file_full, full);
}

// file_fault counts an operation and returns the errno to fail it with, 0 for none.
static int file_fault(void)
{
    uint64_t n = atomic_fetch_add_explicit(&file_ops, 1, memory_order_relaxed) + 1;
    if (atomic_load_explicit(&file_full, memory_order_relaxed)) {
        return ENOSPC;
    }
    return n == atomic_load_explicit(&file_fail_at, memory_order_relaxed)
               ? atomic_load(&file_errnum)
               : 0;
}

// file_strike carries out an injected fault; returns -1 with errno set.
static int file_strike(int errnum)
{
    if (errnum == HTH_STORE_FILE_KILL) {
        raise(SIGKILL);
    }
    errno = errnum;
    return -1;
}

hth_path hth_path_of_tensor(const hth_id *id)
{
    hth_path p;
    char hex[HTH_ID_HEX];
    hth_id_hex(id, hex);
    snprintf(p.text, sizeof p.text, "tensors/%.2s/%s", hex, hex + 2);
    return p;
}

hth_path hth_path_of_temp(void)
{
    static _Atomic uint64_t serial;
    hth_path p;
    uint64_t r = 0;
    if (getrandom(&r, sizeof r, 0) !=
        sizeof r) { // names are made with O_EXCL: a clash is an error, not a loss
        r = (uint64_t)getpid() << 32 | ++serial;
    }
    snprintf(p.text, sizeof p.text, "tmp/%016llx", (unsigned long long)r);
    return p;
}

hth_err hth_store_file_mkdir(int dir, const char *path)
{
    int fault = file_fault();
    int rc = fault ? file_strike(fault) : mkdirat(dir, path, 0777);
    return rc == 0 || errno == EEXIST ? HTH_OK
                                      : hth_fail_errno(errno, "making directory '%s'", path);
}

static int file_write_chunk(int fd, const char *data, size_t bytes, size_t at)
{
    int fault = file_fault();
    size_t end = fault ? bytes / 2 : bytes;
    for (size_t done = 0; done < end;) {
        ssize_t n = pwrite(fd, data + done, end - done, (off_t)(at + done));
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    if (fault) {
        return file_strike(fault);
    }
    sync_file_range(fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE); // a hint: no error to heed
    return 0;
}

typedef struct file_source {
    hth_err (*piece)(void *ctx, size_t at, size_t n, const void **data);
    void *ctx;
} file_source;

static hth_err file_write_all(int fd, const char *path, const file_source *from, size_t bytes,
                              hth_err (*tick)(void *ctx, size_t bytes), void *ctx)
{
    for (size_t at = 0; at < bytes; at += HTH_STORE_CHUNK) {
        size_t n = bytes - at < HTH_STORE_CHUNK ? bytes - at : HTH_STORE_CHUNK;
        const void *data;
        HTH_TRY(from->piece(from->ctx, at, n, &data));
        if (file_write_chunk(fd, data, n, at) != 0) {
            return hth_fail_errno(errno, "writing %zu bytes to '%s'", bytes, path);
        }
        if (tick != NULL) {
            HTH_TRY(tick(ctx, n));
        }
    }
    return HTH_OK;
}

hth_err
hth_store_file_write_from(int dir, const char *path, size_t bytes,
                          hth_err (*piece)(void *ctx, size_t at, size_t n, const void **data),
                          void *piece_ctx, hth_err (*tick)(void *ctx, size_t bytes), void *ctx)
{
    int fault = file_fault();
    int fd = fault ? file_strike(fault)
                   : openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return hth_fail_errno(errno, "making '%s'", path);
    }
    hth_err err = file_write_all(fd, path, &(file_source){piece, piece_ctx}, bytes, tick, ctx);
    if (close(fd) != 0 && err == HTH_OK) {
        err = hth_fail_errno(errno, "closing '%s'", path);
    }
    return err;
}

static hth_err file_memory(void *ctx, size_t at, size_t n, const void **data)
{
    *data = (const char *)ctx + at;
    return HTH_OK;
}

hth_err hth_store_file_write(int dir, const char *path, const void *data, size_t bytes,
                             hth_err (*tick)(void *ctx, size_t bytes), void *ctx)
{
    return hth_store_file_write_from(dir, path, bytes, file_memory, (void *)data, tick, ctx);
}

hth_err hth_store_file_part_open(int dir, const char *path, bool make, int *fd)
{
    int fault = make ? file_fault() : 0;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0);
    *fd = fault ? file_strike(fault) : openat(dir, path, flags, 0666);
    if (*fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        return hth_fail(HTH_EBUSY, "opening '%s': %s", path, strerror(errno));
    }
    return *fd >= 0 ? HTH_OK : hth_fail_errno(errno, "opening '%s'", path);
}

hth_err hth_store_file_part_write(int fd, const char *path, const void *data, size_t bytes,
                                  uint64_t at)
{
    return file_write_chunk(fd, data, bytes, at) == 0
               ? HTH_OK
               : hth_fail_errno(errno, "writing %zu bytes to '%s'", bytes, path);
}

hth_err hth_store_file_part_cut(int fd, const char *path, uint64_t bytes)
{
    int fault = file_fault();
    int rc = fault ? file_strike(fault) : ftruncate(fd, (off_t)bytes);
    return rc == 0 ? HTH_OK : hth_fail_errno(errno, "cutting '%s'", path);
}

hth_err hth_store_file_sync(int dir, const char *path)
{
    int fault = file_fault();
    int fd = fault ? file_strike(fault) : openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fdatasync(fd) != 0) {
        int errnum = errno;
        if (fd >= 0) {
            close(fd);
        }
        return hth_fail_errno(errnum, "syncing '%s'", path);
    }
    close(fd);
    return HTH_OK;
}

hth_err hth_store_file_rename(int dir, const char *from, const char *to)
{
    int fault = file_fault();
    int rc = fault ? file_strike(fault) : renameat(dir, from, dir, to);
    return rc == 0 ? HTH_OK : hth_fail_errno(errno, "renaming '%s' to '%s'", from, to);
}

hth_err hth_store_file_replace(int dir, const char *from, const char *to)
{
    struct stat st;
    if (fstatat(dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
        unlinkat(dir, to, AT_REMOVEDIR) != 0) {
        return hth_fail_errno(errno, "removing the folder '%s'", to);
    }
    return hth_store_file_rename(dir, from, to);
}

hth_err hth_store_file_unlink(int dir, const char *path)
{
    int fault = file_fault();
    int rc = fault ? file_strike(fault) : unlinkat(dir, path, 0);
    if (rc != 0 && errno == EISDIR) { // in a file's place
        rc = unlinkat(dir, path, AT_REMOVEDIR);
    }
    return rc == 0 || errno == ENOENT ? HTH_OK : hth_fail_errno(errno, "removing '%s'", path);
}

hth_err hth_store_file_point(const char *what)
{
    int fault = file_fault();
    return fault && file_strike(fault) ? hth_fail_errno(errno, "%s", what) : HTH_OK;
}

hth_err hth_store_file_bytes(int dir, const char *path, uint64_t *out)
{
    struct stat st;
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return hth_fail_errno(errno, "'%s'", path);
    }
    *out = (uint64_t)st.st_size;
    return HTH_OK;
}

hth_err hth_store_read_only(void)
{
    return hth_fail(HTH_EDENIED, "the store is open read-only: this needs write permission for its "
                                 "files");
}

static hth_err file_lock(int dir, const char *path, int how, int *fd)
{
    *fd = openat(dir, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) {
        return hth_fail_errno(errno, "opening '%s'", path);
    }
    int rc;
    do {
        rc = flock(*fd, how);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        int errnum = errno;
        close(*fd);
        *fd = -1;
        return errnum == EWOULDBLOCK ? hth_fail(HTH_EBUSY, "'%s' is held", path)
                                     : hth_fail_errno(errnum, "locking '%s'", path);
    }
    return HTH_OK;
}

hth_err hth_store_file_lock(int dir, const char *path, bool exclusive, int *fd)
{
    return file_lock(dir, path, exclusive ? LOCK_EX : LOCK_SH, fd);
}

hth_err hth_store_file_lock_now(int dir, const char *path, int *fd)
{
    return file_lock(dir, path, LOCK_EX | LOCK_NB, fd);
}

hth_err hth_store_file_scan(int dir, const char *path, hth_err (*fn)(void *ctx, const char *name),
                            void *ctx)
{
    int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        int errnum = errno;
        if (fd >= 0) {
            close(fd);
        }
        return hth_fail_errno(errnum, "reading directory '%s'", path);
    }
    hth_err err = HTH_OK;
    for (struct dirent *e; err == HTH_OK && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            err = fn(ctx, e->d_name);
        }
    }
    closedir(d);
    return err;
}
