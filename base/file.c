// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *file_kind(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    case S_IFLNK:
        return "a link";
    case S_IFCHR:
        return "a character device";
    case S_IFBLK:
        return "a block device";
    default:
        return "something else";
    }
}

static uint64_t file_changed_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

// file_look fills *out and *st for a descriptor of whatever kind; out->fd is `fd`.
static hth_err file_look(int fd, const char *shown, hth_file *out, struct stat *st)
{
    if (fstat(fd, st) != 0) {
        return hth_fail_errno(errno, "cannot read '%s'", shown);
    }
    if (!S_ISREG(st->st_mode)) {
        return hth_fail(HTH_EINVAL, "'%s' is %s, not a regular file", shown,
                        file_kind(st->st_mode));
    }
    *out = (hth_file){fd, (uint64_t)st->st_size, file_changed_ns(st)};
    return HTH_OK;
}

// file_reopen opens for reading what `fd`, opened by O_PATH, stands for; -1: errno. Where there is
// no /proc it is opened by its name.
static int file_reopen(int fd, int folder, const char *path)
{
    const int how = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    char name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int f = open(name, how);
    return f >= 0 || errno != ENOENT ? f : openat(folder, path, how);
}

// file_finish goes on from `fd`, opened by O_PATH, which it closes.
static hth_err file_finish(int fd, int folder, const char *path, const char *shown, hth_file *out)
{
    struct stat seen, now;
    int f = -1;
    hth_err err;
    HTH_GOTO(file_look(fd, shown, out, &seen), fail);
    f = file_reopen(fd, folder, path);
    if (f < 0) {
        err = hth_fail_errno(errno, "cannot open '%s'", shown);
        goto fail;
    }
    HTH_GOTO(file_look(f, shown, out, &now), fail);
    if (seen.st_dev != now.st_dev || seen.st_ino != now.st_ino) {
        err = hth_fail(HTH_EBUSY, "'%s' was replaced by another file while it was being opened",
                       shown);
        goto fail;
    }
    close(fd);
    return HTH_OK;
fail:
    close(fd);
    if (f >= 0) {
        close(f);
    }
    out->fd = -1;
    return err;
}

hth_err hth_file_open(const char *path, const char *shown, hth_file *out)
{
    *out = (hth_file){.fd = -1};
    int fd = open(path, O_PATH | O_CLOEXEC);
    return fd >= 0 ? file_finish(fd, AT_FDCWD, path, shown, out)
                   : hth_fail_errno(errno, "cannot open '%s'", shown);
}

// ---- below a folder

static hth_err beneath_denied(const char *shown)
{
    return hth_fail(HTH_EDENIED, "'%s' points outside its folder", shown);
}

// beneath_walk is for kernels before 5.6 and sandboxes that do not know openat2: part by part, and
// no part may be a link.
static int beneath_walk(int folder, const char *path)
{
    char part[NAME_MAX + 1];
    int at = dup(folder);
    for (const char *p = path + strspn(path, "/"); at >= 0 && *p != 0;) {
        size_t n = strcspn(p, "/");
        bool last = p[n + strspn(p + n, "/")] == 0;
        int next = -1;
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
        } else {
            memcpy(part, p, n);
            part[n] = 0;
            next = openat(at, part, O_PATH | O_CLOEXEC | O_NOFOLLOW | (last ? 0 : O_DIRECTORY));
        }
        int e = errno;
        close(at);
        errno = e;
        at = next;
        p += n + strspn(p + n, "/");
    }
    return at;
}

static bool beneath_written(const char *path)
{
    bool good = path[0] != 0 && path[0] != '/';
    for (const char *part = path; good && part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        good = strncmp(part, "..", 2) != 0 || (part[2] != '/' && part[2] != 0);
    }
    return good;
}

hth_err hth_file_open_at(int folder, const char *path, const char *shown, hth_file *out)
{
    const struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    *out = (hth_file){.fd = -1};
    if (!beneath_written(path)) {
        return beneath_denied(shown);
    }
    int fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
        fd = beneath_walk(folder, path);
    }
    if (fd < 0) {
        return errno == EXDEV || errno == ELOOP ? beneath_denied(shown)
                                                : hth_fail_errno(errno, "cannot open '%s'", shown);
    }
    return file_finish(fd, folder, path, shown, out);
}

// ---- from others

// mount_of finds the mount that a descriptor's file lies in; -1: nobody says so. Nothing is asked
// of the file system itself, which may be a process of another user.
static long mount_of(int fd)
{
    char path[48], line[128];
    long id = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(path, "re");
    while (f != NULL && id < 0 && fgets(line, sizeof line, f) != NULL) {
        id = strncmp(line, "mnt_id:", 7) == 0 ? strtol(line + 7, NULL, 10) : -1;
    }
    if (f != NULL) {
        fclose(f);
    }
    return id;
}

// The mount that this process's own root lies in. In a chroot the list of mounts may lack it.
static long mount_of_root(void)
{
    int fd = open("/", O_PATH | O_CLOEXEC);
    long id = fd >= 0 ? mount_of(fd) : -1;
    if (fd >= 0) {
        close(fd);
    }
    return id;
}

// mount_is_ours tells whether a mount is the one of this process's root, or another that it sees
// and for which no process answers: that may never do so. The root was given by who started us.
static bool mount_is_ours(long id)
{
    if (id >= 0 && id == mount_of_root()) {
        return true;
    }
    char *line = NULL;
    size_t cap = 0;
    bool found = false, ours = false;
    FILE *f = id >= 0 ? fopen("/proc/self/mountinfo", "re") : NULL;
    while (f != NULL && !found && getline(&line, &cap, f) > 0) {
        found = strtol(line, NULL, 10) == id;
        const char *type = found ? strstr(line, " - ") : NULL;
        ours = type != NULL && strncmp(type + 3, "fuse", 4) != 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    free(line);
    return ours;
}

static hth_err file_take_look(int fd, const char *shown, int wants, const char *word, hth_file *out)
{
    struct stat st;
    int how = fcntl(fd, F_GETFL);
    if (how < 0) {
        return hth_fail_errno(errno, "cannot use '%s'", shown);
    }
    if ((how & O_PATH) != 0 || ((how & O_ACCMODE) != wants && (how & O_ACCMODE) != O_RDWR)) {
        return hth_fail(HTH_EDENIED, "'%s' is not open for %s", shown, word);
    }
    if (!mount_is_ours(mount_of(fd))) {
        return hth_fail(HTH_EDENIED,
                        "'%s' is on a file system that the server cannot see, or on FUSE", shown);
    }
    return file_look(fd, shown, out, &st);
}

hth_err hth_file_take(int fd, const char *shown, hth_file *out)
{
    hth_file f;
    HTH_TRY(file_take_look(fd, shown, O_RDONLY, "reading", &f));
    *out = f;
    return HTH_OK;
}

hth_err hth_file_take_to_write(int fd, const char *shown)
{
    hth_file f;
    return file_take_look(fd, shown, O_WRONLY, "writing", &f);
}

hth_err hth_file_again(int fd, const char *shown, hth_file *out)
{
    struct stat st;
    int f = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    *out = (hth_file){.fd = -1};
    if (f < 0) {
        return hth_fail_errno(errno, "cannot read '%s'", shown);
    }
    hth_err err = file_look(f, shown, out, &st);
    if (err != HTH_OK) {
        close(f);
        out->fd = -1;
    }
    return err;
}

void hth_file_close(hth_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
}

// ---- reading

static hth_err file_changed(const char *shown)
{
    return hth_fail(HTH_EIO, "'%s' changed while it was being read", shown);
}

hth_err hth_file_read(const hth_file *file, const char *shown, uint64_t at, void *dst, size_t n)
{
    char *p = dst;
    while (n > 0) {
        ssize_t got = pread(file->fd, p, n, (off_t)at);
        if (got == 0) {
            return file_changed(shown);
        }
        if (got < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot read '%s'", shown);
        }
        if (got > 0) {
            p += got;
            at += (uint64_t)got;
            n -= (size_t)got;
        }
    }
    return HTH_OK;
}

hth_err hth_file_unchanged(const hth_file *file, const char *shown)
{
    struct stat st;
    hth_file now;
    HTH_TRY(file_look(file->fd, shown, &now, &st));
    return now.bytes == file->bytes && now.changed_ns == file->changed_ns ? HTH_OK
                                                                          : file_changed(shown);
}

hth_err hth_file_load_open(const hth_file *file, const char *shown, size_t most, void **out,
                           size_t *bytes)
{
    if (file->bytes > most) {
        return hth_fail(HTH_ETOOBIG, "%s has %llu bytes; at most %zu are read", shown,
                        (unsigned long long)file->bytes, most);
    }
    size_t n = (size_t)file->bytes;
    char *p = hth_alloc_aligned(n + 1, 64);
    if (p == NULL) {
        return hth_no_memory("the %zu bytes of %s", n, shown);
    }
    hth_err err = hth_file_read(file, shown, 0, p, n);
    if (err != HTH_OK) {
        hth_free(p);
        return err;
    }
    p[n] = 0;
    *out = p;
    *bytes = n;
    return HTH_OK;
}

hth_err hth_file_load(const char *path, size_t most, void **out, size_t *bytes)
{
    hth_file f;
    HTH_TRY(hth_file_open(path, path, &f));
    hth_err err = hth_file_load_open(&f, path, most, out, bytes);
    hth_file_close(&f);
    return err;
}

// ---- of this process's user

typedef struct own_bytes {
    char *data; // hth_alloc'd
    size_t n, cap;
} own_bytes;

// own_room makes room for `cap` bytes and a zero.
static hth_err own_room(own_bytes *bytes, size_t cap, const char *shown)
{
    char *data = hth_alloc_aligned(cap + 1, 64);
    if (data == NULL) {
        return hth_no_memory("%zu bytes of %s", cap, shown);
    }
    if (bytes->n > 0) {
        memcpy(data, bytes->data, bytes->n);
    }
    hth_free(bytes->data);
    bytes->data = data;
    bytes->cap = cap;
    return HTH_OK;
}

// own_read reads up to `n` bytes, as one call gives them; *got 0: the end.
static hth_err own_read(int fd, const char *shown, char *dst, size_t n, size_t *got)
{
    ssize_t rc = read(fd, dst, n);
    while (rc < 0 && (errno == EINTR || errno == EAGAIN)) {
        if (errno == EAGAIN) { // standard input may have been opened as non-blocking
            poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1);
        }
        rc = read(fd, dst, n);
    }
    *got = rc > 0 ? (size_t)rc : 0;
    return rc >= 0 ? HTH_OK : hth_fail_errno(errno, "cannot read '%s'", shown);
}

// own_fill reads until there are `until` bytes, or no more.
static hth_err own_fill(int fd, const char *shown, size_t until, own_bytes *bytes, bool *ended)
{
    while (bytes->n < until && !*ended) {
        size_t got = 0;
        if (bytes->n == bytes->cap) {
            HTH_TRY(own_room(bytes, bytes->cap > until / 2 ? until : 2 * bytes->cap, shown));
        }
        size_t room = (bytes->cap < until ? bytes->cap : until) - bytes->n;
        HTH_TRY(own_read(fd, shown, bytes->data + bytes->n, room, &got));
        bytes->n += got;
        *ended = got == 0;
    }
    return HTH_OK;
}

static hth_err own_load(int fd, const char *shown, size_t most, hth_file_begins begins,
                        own_bytes *bytes)
{
    struct stat st;
    bool ended = false;
    size_t more, end = SIZE_MAX, begin = most < HTH_FILE_BEGINS ? most : HTH_FILE_BEGINS;
    char one;
    if (fstat(fd, &st) != 0) {
        return hth_fail_errno(errno, "cannot read '%s'", shown);
    }
    if (S_ISDIR(st.st_mode)) {
        return hth_fail(HTH_EINVAL, "'%s' is a folder, not a file", shown);
    }
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > most) {
        return hth_fail(HTH_ETOOBIG, "%s has %llu bytes; at most %zu are read", shown,
                        (unsigned long long)st.st_size, most);
    }
    size_t known = S_ISREG(st.st_mode) ? (size_t)st.st_size + 1 : 0; // one: to see the end
    HTH_TRY(own_room(bytes, known > begin ? known : begin, shown));
    HTH_TRY(own_fill(fd, shown, begin, bytes, &ended));
    hth_err err = begins != NULL ? begins(bytes->data, bytes->n, &end) : HTH_OK;
    if (err != HTH_OK) {
        return hth_err_prefix(err, "%s", shown);
    }
    HTH_TRY(own_fill(fd, shown, end < most ? end : most, bytes, &ended));
    if (!ended && end > most) {
        HTH_TRY(own_read(fd, shown, &one, 1, &more));
        ended = more == 0;
    }
    return ended || bytes->n >= end
               ? HTH_OK
               : hth_fail(HTH_ETOOBIG, "%s has more than %zu bytes; at most that many are read",
                          shown, most);
}

hth_err hth_file_load_own(const char *path, size_t most, hth_file_begins begins, void **out,
                          size_t *bytes)
{
    bool in = strcmp(path, "-") == 0;
    const char *shown = in ? "standard input" : path;
    own_bytes b = {NULL, 0, 0};
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot open '%s'", path);
    }
    hth_err err = own_load(fd, shown, most, begins, &b);
    if (!in) {
        close(fd);
    }
    if (err != HTH_OK) {
        hth_free(b.data);
        return err;
    }
    b.data[b.n] = 0;
    *out = b.data;
    *bytes = b.n;
    return HTH_OK;
}
