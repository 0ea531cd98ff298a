// SPDX-License-Identifier: Apache-2.0
// Reading past the system's cache (O_DIRECT) needs buffers, offsets and sizes at multiples of the
// disk's blocks: pieces are, and the last one is cut off by the end of the file. A file system that
// takes the flag and then refuses to read is read by the cache after all.
#include "modelstore/object.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OBJECT_CHUNK ((size_t)1 << 20)
#define OBJECT_ALIGN 4096

bool hth_object_same(const hth_object_seen *a, const hth_object_seen *b)
{
    return a->ino == b->ino && a->bytes == b->bytes && a->written_ns == b->written_ns &&
           a->changed_ns == b->changed_ns;
}

static int64_t object_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

hth_object_seen hth_object_seen_of(const struct stat *st)
{
    return (hth_object_seen){st->st_ino, (uint64_t)st->st_size, object_ns(st->st_mtim),
                             object_ns(st->st_ctim)};
}

static hth_err object_is(const struct stat *st, const hth_path *path, uint64_t bytes,
                         hth_object_seen *out)
{
    if (!S_ISREG(st->st_mode)) {
        return hth_fail(HTH_ECORRUPT, "its file '%s' is not a regular file", path->text);
    }
    *out = hth_object_seen_of(st);
    return out->bytes == bytes
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT, "its file '%s' has %llu bytes, not %llu bytes", path->text,
                          (unsigned long long)out->bytes, (unsigned long long)bytes);
}

// object_absent is for a file that could not be looked at or opened.
static hth_err object_absent(int errnum, const hth_path *path)
{
    switch (errnum) {
    case ENOENT:
    case ENOTDIR:
        return hth_fail(HTH_ECORRUPT, "its file '%s' is missing", path->text);
    case ELOOP:
        return hth_fail(HTH_ECORRUPT, "its file '%s' is not a regular file", path->text);
    case EIO:
    case EUCLEAN:
        return hth_fail(HTH_ECORRUPT, "its file '%s': %s", path->text, strerror(errnum));
    default:
        return hth_fail_errno(errnum, "opening '%s'", path->text);
    }
}

hth_err hth_object_look(const hth_store *store, const hth_id *id, uint64_t bytes,
                        hth_object_seen *out)
{
    struct stat st;
    hth_path path = hth_path_of_tensor(id);
    *out = (hth_object_seen){.ino = 0};
    return fstatat(store->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) == 0
               ? object_is(&st, &path, bytes, out)
               : object_absent(errno, &path);
}

hth_err hth_object_open(const hth_store *store, const hth_id *id, uint64_t bytes, bool direct,
                        int *fd, hth_object_seen *seen)
{
    struct stat st;
    const int how = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    hth_path path = hth_path_of_tensor(id);
    *fd = -1;
    HTH_TRY(
        hth_object_look(store, id, bytes, seen)); // before it is opened: a device may act on that
    int f = openat(store->dir, path.text, how | (direct ? O_DIRECT : 0));
    if (f < 0 && direct && errno == EINVAL) {
        f = openat(store->dir, path.text, how);
    }
    if (f < 0) {
        return object_absent(errno, &path);
    }
    hth_err err = fstat(f, &st) == 0 ? object_is(&st, &path, bytes, seen)
                                     : hth_fail_errno(errno, "reading '%s'", path.text);
    if (err != HTH_OK) {
        close(f);
        return err;
    }
    *fd = f;
    return HTH_OK;
}

// object_chunk reads as much as there is of a piece; -1: errno.
static ssize_t object_chunk(int fd, char *buffer, uint64_t at)
{
    for (;;) {
        ssize_t n = pread(fd, buffer, OBJECT_CHUNK, (off_t)at);
        int how = n < 0 && errno == EINVAL ? fcntl(fd, F_GETFL) : -1;
        if (how >= 0 && (how & O_DIRECT) != 0 && fcntl(fd, F_SETFL, how & ~O_DIRECT) == 0) {
            continue; // this file system does not read past the cache
        }
        if (n >= 0 || errno != EINTR) {
            return n;
        }
    }
}

hth_err hth_object_read(int fd, const hth_id *id, uint64_t bytes, hth_object_take take, void *ctx)
{
    hth_path path = hth_path_of_tensor(id);
    char *buffer = hth_alloc_aligned(OBJECT_CHUNK, OBJECT_ALIGN);
    if (buffer == NULL) {
        return hth_no_memory("reading '%s'", path.text);
    }
    hth_err err = HTH_OK;
    for (uint64_t at = 0; at < bytes && err == HTH_OK;) {
        ssize_t n = object_chunk(fd, buffer, at);
        uint64_t left = bytes - at, end = at + (left < OBJECT_CHUNK ? left : OBJECT_CHUNK);
        if (n < 0 && (errno == EIO || errno == EUCLEAN)) {
            err = hth_fail(HTH_ECORRUPT, "its file '%s' cannot be read between bytes %llu and %llu",
                           path.text, (unsigned long long)at, (unsigned long long)end);
        } else if (n < 0) {
            err = hth_fail_errno(errno, "reading '%s'", path.text);
        } else if (n == 0) {
            err = hth_fail(HTH_ECORRUPT, "its file '%s' ends at byte %llu of %llu", path.text,
                           (unsigned long long)at, (unsigned long long)bytes);
        } else {
            size_t some = (uint64_t)n < left ? (size_t)n : (size_t)left;
            err = take(ctx, buffer, at, some);
            at += some;
        }
    }
    hth_free(buffer);
    return err;
}

typedef struct object_sum {
    hth_id_sum *sum;
    hth_object_tick tick;
    void *ctx;
} object_sum;

static hth_err object_add(void *ctx, const void *data, uint64_t at, size_t bytes)
{
    const object_sum *o = ctx;
    hth_id_sum_add(o->sum, data, bytes);
    return o->tick != NULL ? o->tick(o->ctx, bytes) : HTH_OK;
}

hth_err hth_object_check(const hth_store *store, const hth_object *object, bool direct,
                         hth_object_tick tick, void *ctx, hth_object_seen *seen)
{
    int fd;
    HTH_TRY(hth_object_open(store, &object->id, object->bytes, direct, &fd, seen));
    object_sum sum = {hth_content_sum(object->dtype, &object->shape), tick, ctx};
    hth_err err = hth_object_read(fd, &object->id, object->bytes, object_add, &sum);
    hth_id id = hth_id_sum_end(sum.sum);
    close(fd);
    if (err == HTH_OK && !hth_id_equal(&id, &object->id)) {
        hth_path path = hth_path_of_tensor(&object->id);
        err = hth_fail(HTH_ECORRUPT, "its file '%s' does not have the bytes that were stored",
                       path.text);
    }
    return err;
}

// ---- in the index

typedef struct object_place {
    const hth_id *id;
    const hth_object *o; // NULL: its bytes are not asked for
    bool file;
} object_place;

static hth_err object_place_of(hth_txn *txn, void *ctx)
{
    object_place *p = ctx;
    hth_tensor_row row;
    MDB_val v;
    HTH_TRY(hth_store_row(txn, p->id, &row));
    p->file = row.inlined == 0;
    if (p->o == NULL) {
        return HTH_OK;
    }
    if (row.bytes != p->o->bytes) {
        return hth_fail(HTH_ECORRUPT, "the store's index has it with %llu bytes, not %llu bytes",
                        (unsigned long long)row.bytes, (unsigned long long)p->o->bytes);
    }
    if (p->file) {
        return HTH_OK;
    }
    hth_err err = hth_txn_get(txn, HTH_TABLE_INLINES, p->id, sizeof *p->id, &v);
    if (err == HTH_ENOENT || (err == HTH_OK && v.mv_size != p->o->bytes)) {
        return hth_fail(HTH_ECORRUPT, "its bytes in the store's index are missing");
    }
    HTH_TRY(err);
    hth_id id = hth_content_id(p->o->dtype, &p->o->shape, v.mv_data, v.mv_size);
    return hth_id_equal(&id, p->id)
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT,
                          "its bytes in the store's index are not those that were stored");
}

hth_err hth_object_is_file(hth_store *store, const hth_id *id, bool *file)
{
    object_place p = {.id = id};
    HTH_TRY(hth_index_read(&store->index, object_place_of, &p));
    *file = p.file;
    return HTH_OK;
}

hth_err hth_object_inlined(hth_store *store, const hth_object *object, bool *inlined)
{
    object_place p = {.id = &object->id, .o = object};
    hth_err err = hth_index_read(&store->index, object_place_of, &p);
    *inlined = !p.file;
    return err == HTH_ENOENT ? hth_fail(HTH_ECORRUPT, "the store's index does not list it") : err;
}
