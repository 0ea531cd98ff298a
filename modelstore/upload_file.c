// SPDX-License-Identifier: Apache-2.0
// The file of an upload. A piece at the end of what is there is hashed from the memory that it came
// in, one that came early from the file, when what was missing before it is there. What is hashed
// is never written again, so a second writer cannot change it.
#include "modelstore/upload_impl.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_CHUNK ((size_t)1 << 20)

static bool shape_same(const hth_shape *a, const hth_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof a->dim[0]) == 0;
}

void hth_upload_forget(hth_upload *u)
{
    if (u->sum != NULL) {
        (void)hth_id_sum_end(u->sum);
    }
    u->sum = NULL;
    u->whole = false;
    u->there = 0;
    u->n_parts = 0;
    u->seen = (hth_object_seen){0, 0, 0, 0};
}

static hth_err file_state(int fd, const char *path, hth_object_seen *out)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return hth_fail_errno(errno, "'%s'", path);
    }
    *out = hth_object_seen_of(&st);
    return S_ISREG(st.st_mode) ? HTH_OK : hth_fail(HTH_EIO, "'%s' is not a regular file", path);
}

// file_hash adds the bytes between two offsets to the sum, and moves u->there along.
static hth_err file_hash(hth_upload *u, int fd, const char *path, uint64_t to)
{
    char *chunk = hth_alloc(FILE_CHUNK);
    hth_err err = chunk != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for an upload");
    while (err == HTH_OK && u->there < to) {
        uint64_t left = to - u->there;
        ssize_t n =
            pread(fd, chunk, left < FILE_CHUNK ? (size_t)left : FILE_CHUNK, (off_t)u->there);
        if (n > 0) {
            hth_id_sum_add(u->sum, chunk, (size_t)n);
            u->there += (uint64_t)n;
        } else if (n == 0) {
            err = hth_fail(HTH_EIO, "'%s' has become shorter", path);
        } else if (errno != EINTR) {
            err = hth_fail_errno(errno, "reading '%s'", path);
        }
    }
    hth_free(chunk);
    return err;
}

// file_ended compares what is there, all of it, with the id.
static bool file_ended(hth_upload *u)
{
    hth_id id = hth_id_sum_end(u->sum);
    u->sum = NULL;
    u->whole = hth_id_equal(&id, &u->key.id);
    return u->whole;
}

static void file_begin(hth_upload *u)
{
    hth_upload_forget(u);
    u->sum = hth_content_sum(u->dtype, &u->shape);
}

// file_recover hashes what is there of a file in a state that is not known. Its end may have holes.
static hth_err file_recover(hth_upload *u, int fd, const char *path, uint64_t size)
{
    if (size == u->bytes) {
        file_begin(u);
        HTH_TRY(file_hash(u, fd, path, size));
        if (file_ended(u)) {
            return file_state(fd, path, &u->seen);
        }
    }
    uint64_t keep = size > HTH_UPLOAD_AHEAD && size <= u->bytes ? size - HTH_UPLOAD_AHEAD : 0;
    HTH_TRY(hth_store_file_part_cut(fd, path, keep));
    file_begin(u);
    HTH_TRY(file_hash(u, fd, path, keep));
    return file_state(fd, path, &u->seen);
}

static hth_err upload_known(hth_upload *u, const hth_manifest_tensor *object)
{
    if (u->known && (u->dtype != object->dtype || !shape_same(&u->shape, &object->shape))) {
        return hth_fail(HTH_EINVAL, "it is being uploaded with another element type or shape");
    }
    u->known = true;
    u->dtype = object->dtype;
    u->shape = object->shape;
    u->bytes = object->bytes;
    atomic_store(&u->counted, object->bytes);
    return HTH_OK;
}

hth_err hth_upload_look(hth_store *s, hth_upload *u, const hth_manifest_tensor *object)
{
    hth_path path = hth_upload_path(&u->key);
    hth_object_seen now;
    int fd;
    HTH_TRY(upload_known(u, object));
    hth_err err = hth_store_file_part_open(s->dir, path.text, false, &fd);
    if (err == HTH_ENOENT) {
        hth_upload_forget(u);
        return HTH_OK;
    }
    HTH_TRY(err);
    err = file_state(fd, path.text, &now);
    bool same = (u->whole || u->sum != NULL) && hth_object_same(&now, &u->seen);
    if (err == HTH_OK && !same) {
        err = file_recover(u, fd, path.text, now.bytes);
        if (err != HTH_OK) {
            hth_upload_forget(u);
        }
    }
    close(fd);
    return err;
}

// file_catch_up hashes pieces that came early, as far as they follow on what is there.
static hth_err file_catch_up(hth_upload *u, int fd, const char *path)
{
    for (int i = 0; i < u->n_parts;) {
        if (u->part[i].from > u->there) {
            i++;
            continue;
        }
        if (u->part[i].to > u->there) {
            HTH_TRY(file_hash(u, fd, path, u->part[i].to));
            u->part[i] = u->part[--u->n_parts];
            i = 0; // an earlier one may follow on it
        } else {
            u->part[i] = u->part[--u->n_parts];
        }
    }
    return HTH_OK;
}

static hth_err file_write(hth_upload *u, int fd, const char *path, uint64_t at, const void *data,
                          size_t n)
{
    HTH_TRY(hth_store_file_part_write(fd, path, data, n, at));
    if (at == u->there) {
        if (u->sum == NULL) {
            u->sum = hth_content_sum(u->dtype, &u->shape);
        }
        hth_id_sum_add(u->sum, data, n);
        u->there += n;
    } else {
        u->part[u->n_parts++] = (hth_upload_part){at, at + n};
        u->sum = u->sum != NULL ? u->sum : hth_content_sum(u->dtype, &u->shape);
    }
    hth_err err = file_catch_up(u, fd, path);
    hth_err state = file_state(fd, path, &u->seen);
    return err != HTH_OK ? err : state;
}

hth_err hth_upload_write(hth_store *s, hth_upload *u, const hth_manifest_tensor *object,
                         uint64_t at, const void *data, size_t n)
{
    hth_path path = hth_upload_path(&u->key);
    int fd;
    if (u->whole || at + n <= u->there) {
        return HTH_OK;
    }
    if (at > u->there && at + n - u->there > HTH_UPLOAD_AHEAD) {
        return hth_fail(HTH_EINVAL,
                        "bytes from %llu on leave a gap: %llu are there, and a piece may end %llu "
                        "beyond them",
                        (unsigned long long)at, (unsigned long long)u->there,
                        (unsigned long long)HTH_UPLOAD_AHEAD);
    }
    if (at > u->there && u->n_parts == HTH_UPLOAD_PARTS) {
        return hth_fail(HTH_EBUSY, "%d pieces came before the one at %llu", HTH_UPLOAD_PARTS,
                        (unsigned long long)u->there);
    }
    size_t old = at < u->there ? (size_t)(u->there - at) : 0;
    HTH_TRY(hth_store_file_part_open(s->dir, path.text, true, &fd));
    hth_err err = file_write(u, fd, path.text, at + old, (const char *)data + old, n - old);
    close(fd);
    HTH_TRY(err);
    if (u->there == object->bytes && !file_ended(u)) {
        return hth_fail(HTH_ECORRUPT, "what was uploaded is not what its id says");
    }
    return HTH_OK;
}

void hth_upload_touch(hth_store *s, hth_upload *u)
{
    hth_path path = hth_upload_path(&u->key);
    struct stat st;
    uint64_t now = hth_store_wall_ns();
    struct timespec t = {(time_t)(now / 1000000000u), (long)(now % 1000000000u)};
    const struct timespec times[2] = {t, t};
    atomic_store(&u->touched_ns, now);
    if (fstatat(s->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return; // nothing is there yet
    }
    hth_object_seen before = hth_object_seen_of(&st);
    if (utimensat(s->dir, path.text, times, AT_SYMLINK_NOFOLLOW) == 0 &&
        hth_object_same(&before, &u->seen) &&
        fstatat(s->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        u->seen = hth_object_seen_of(&st);
    }
}
