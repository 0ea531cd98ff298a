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

void hth_upload_forget(hth_upload *upload)
{
    if (upload->sum != NULL) {
        (void)hth_id_sum_end(upload->sum);
    }
    upload->sum = NULL;
    upload->whole = false;
    upload->there = 0;
    upload->n_parts = 0;
    upload->seen = (hth_object_seen){0, 0, 0, 0};
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

// file_hash adds the bytes between two offsets to the sum, and moves upload->there along.
static hth_err file_hash(hth_upload *upload, int fd, const char *path, uint64_t to)
{
    char *chunk = hth_alloc(FILE_CHUNK);
    hth_err err = chunk != NULL ? HTH_OK : hth_no_memory("an upload");
    while (err == HTH_OK && upload->there < to) {
        uint64_t left = to - upload->there;
        ssize_t n =
            pread(fd, chunk, left < FILE_CHUNK ? (size_t)left : FILE_CHUNK, (off_t)upload->there);
        if (n > 0) {
            hth_id_sum_add(upload->sum, chunk, (size_t)n);
            upload->there += (uint64_t)n;
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
static bool file_ended(hth_upload *upload)
{
    hth_id id = hth_id_sum_end(upload->sum);
    upload->sum = NULL;
    upload->whole = hth_id_equal(&id, &upload->key.id);
    return upload->whole;
}

static void file_begin(hth_upload *upload)
{
    hth_upload_forget(upload);
    upload->sum = hth_content_sum(upload->dtype, &upload->shape);
}

// file_recover hashes what is there of a file in a state that is not known. Its end may have holes.
static hth_err file_recover(hth_upload *upload, int fd, const char *path, uint64_t size)
{
    if (size == upload->bytes) {
        file_begin(upload);
        HTH_TRY(file_hash(upload, fd, path, size));
        if (file_ended(upload)) {
            return file_state(fd, path, &upload->seen);
        }
    }
    uint64_t keep = size > HTH_UPLOAD_AHEAD && size <= upload->bytes ? size - HTH_UPLOAD_AHEAD : 0;
    file_begin(upload);
    HTH_TRY(file_hash(upload, fd, path, keep)); // without memory for that nothing is cut
    HTH_TRY(hth_store_file_part_cut(fd, path, keep));
    return file_state(fd, path, &upload->seen);
}

static hth_err upload_known(hth_upload *upload, const hth_manifest_tensor *object)
{
    if (upload->known &&
        (upload->dtype != object->dtype || !shape_same(&upload->shape, &object->shape))) {
        return hth_fail(HTH_EINVAL, "it is being uploaded with another element type or shape");
    }
    upload->known = true;
    upload->dtype = object->dtype;
    upload->shape = object->shape;
    upload->bytes = object->bytes;
    return HTH_OK;
}

hth_err hth_upload_look(hth_store *store, hth_upload *upload, const hth_manifest_tensor *object)
{
    hth_path path = hth_upload_path(&upload->key);
    hth_object_seen now;
    int fd;
    if (atomic_load(&upload->gone)) { // the file, if there is one, is another upload's
        hth_upload_forget(upload);
        return HTH_OK;
    }
    HTH_TRY(upload_known(upload, object));
    hth_err err = hth_store_file_part_open(store->dir, path.text, false, &fd);
    if (err == HTH_ENOENT) {
        hth_upload_forget(upload);
        return HTH_OK;
    }
    HTH_TRY(err);
    err = file_state(fd, path.text, &now);
    bool same = (upload->whole || upload->sum != NULL) && hth_object_same(&now, &upload->seen);
    if (err == HTH_OK && !same) {
        err = file_recover(upload, fd, path.text, now.bytes);
        if (err != HTH_OK) {
            hth_upload_forget(upload);
        }
    }
    close(fd);
    return err;
}

// file_catch_up hashes pieces that came early, as far as they follow on what is there.
static hth_err file_catch_up(hth_upload *upload, int fd, const char *path)
{
    for (int i = 0; i < upload->n_parts;) {
        if (upload->part[i].from > upload->there) {
            i++;
            continue;
        }
        if (upload->part[i].to > upload->there) {
            HTH_TRY(file_hash(upload, fd, path, upload->part[i].to));
            upload->part[i] = upload->part[--upload->n_parts];
            i = 0; // an earlier one may follow on it
        } else {
            upload->part[i] = upload->part[--upload->n_parts];
        }
    }
    return HTH_OK;
}

static hth_err file_write(hth_upload *upload, int fd, const char *path, uint64_t at,
                          const void *data, size_t n)
{
    HTH_TRY(hth_store_file_part_write(fd, path, data, n, at));
    if (at == upload->there) {
        if (upload->sum == NULL) {
            upload->sum = hth_content_sum(upload->dtype, &upload->shape);
        }
        hth_id_sum_add(upload->sum, data, n);
        upload->there += n;
    } else {
        upload->part[upload->n_parts++] = (hth_upload_part){at, at + n};
        upload->sum =
            upload->sum != NULL ? upload->sum : hth_content_sum(upload->dtype, &upload->shape);
    }
    hth_err err = file_catch_up(upload, fd, path);
    hth_err state = file_state(fd, path, &upload->seen);
    HTH_TRY(err);
    return state;
}

hth_err hth_upload_write(hth_store *store, hth_upload *upload, const hth_manifest_tensor *object,
                         uint64_t at, const void *data, size_t n)
{
    hth_path path = hth_upload_path(&upload->key);
    int fd;
    if (upload->whole || at + n <= upload->there) {
        return HTH_OK;
    }
    if (at > upload->there && at + n - upload->there > HTH_UPLOAD_AHEAD) {
        return hth_fail(HTH_EINVAL,
                        "bytes from %llu on leave a gap: %llu are there, and a piece may end %llu "
                        "beyond them",
                        (unsigned long long)at, (unsigned long long)upload->there,
                        (unsigned long long)HTH_UPLOAD_AHEAD);
    }
    if (at > upload->there && upload->n_parts == HTH_UPLOAD_PARTS) {
        return hth_fail(HTH_EBUSY, "%d pieces came before the one at %llu", HTH_UPLOAD_PARTS,
                        (unsigned long long)upload->there);
    }
    size_t old = at < upload->there ? (size_t)(upload->there - at) : 0;
    HTH_TRY(hth_store_file_part_open(store->dir, path.text, true, &fd));
    hth_err err = file_write(upload, fd, path.text, at + old, (const char *)data + old, n - old);
    close(fd);
    HTH_TRY(err);
    if (upload->there == object->bytes && !file_ended(upload)) {
        return hth_fail(HTH_ECORRUPT, "what was uploaded is not what its id says");
    }
    return HTH_OK;
}

void hth_upload_touch(hth_store *store, hth_upload *upload)
{
    hth_path path = hth_upload_path(&upload->key);
    struct stat st;
    uint64_t now = hth_store_wall_ns();
    struct timespec t = {(time_t)(now / 1000000000u), (long)(now % 1000000000u)};
    const struct timespec times[2] = {t, t};
    atomic_store(&upload->touched_ns, now);
    if (fstatat(store->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return; // nothing is there yet
    }
    hth_object_seen before = hth_object_seen_of(&st);
    if (utimensat(store->dir, path.text, times, AT_SYMLINK_NOFOLLOW) == 0 &&
        hth_object_same(&before, &upload->seen) &&
        fstatat(store->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        upload->seen = hth_object_seen_of(&st);
    }
}
