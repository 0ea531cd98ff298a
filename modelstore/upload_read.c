// SPDX-License-Identifier: Apache-2.0
// Bytes of an object, wherever they are: in the index, in a tensor's file, or in an upload.
#include "modelstore/check.h"
#include "modelstore/upload_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef struct read_job {
    const hth_manifest_tensor *object;
    uint64_t at;
    void *dst;
    size_t n;
    bool listed, copied;
} read_job;

// read_listed copies what is in the index.
static hth_err read_listed(hth_txn *txn, void *ctx)
{
    read_job *j = ctx;
    const hth_id *id = &j->object->id;
    hth_tensor_row row;
    hth_check_row check;
    MDB_val v;
    j->listed = j->copied = false;
    hth_err err = hth_store_row(txn, id, &row);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    j->listed = true;
    if (hth_check_get(txn, id, &check) == HTH_OK && check.damaged) {
        return hth_fail(HTH_ECORRUPT, "it is marked as damaged");
    }
    if (!row.inlined) {
        return HTH_OK;
    }
    err = hth_txn_get(txn, HTH_TABLE_INLINES, id, sizeof *id, &v);
    if (err != HTH_OK || v.mv_size != j->object->bytes) {
        return hth_fail(HTH_ECORRUPT, "its bytes in the store's index are missing");
    }
    memcpy(j->dst, (const char *)v.mv_data + j->at, j->n);
    j->copied = true;
    return HTH_OK;
}

static hth_err read_file(int fd, const char *path, uint64_t at, void *dst, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)dst + done, n - done, (off_t)(at + done));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return got == 0 ? hth_fail(HTH_ECORRUPT, "its file '%s' has become shorter", path)
                            : hth_fail(HTH_ECORRUPT, "its file '%s': %s", path, strerror(errno));
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return HTH_OK;
}

static hth_err read_upload(hth_store *store, const char *owner, const read_job *job)
{
    hth_upload *u = NULL;
    int fd;
    HTH_TRY(owner != NULL ? hth_upload_find(store, owner, &job->object->id, &u) : HTH_OK);
    if (u == NULL) {
        return hth_fail(HTH_ENOENT, "it is neither in the store nor was it uploaded");
    }
    hth_path path = hth_upload_path(&u->key);
    pthread_mutex_lock(&u->lock);
    hth_err err;
    HTH_GOTO(hth_upload_look(store, u, job->object), done);
    if (!u->whole) {
        err = hth_fail(HTH_ENOENT, "it was not uploaded as a whole");
        goto done;
    }
    HTH_GOTO(hth_store_file_part_open(store->dir, path.text, false, &fd), done);
    err = read_file(fd, path.text, job->at, job->dst, job->n);
    close(fd);
done:
    pthread_mutex_unlock(&u->lock);
    hth_upload_rele(store, u);
    return err;
}

static hth_err read_object(hth_store *store, const char *owner, read_job *job)
{
    int fd, lock;
    hth_object_seen seen;
    HTH_TRY(hth_index_read(&store->index, read_listed, job));
    if (job->copied) {
        return HTH_OK;
    }
    if (!job->listed) {
        HTH_TRY(store->read_only ? hth_store_read_only() : HTH_OK);
        HTH_TRY(hth_store_file_lock(store->dir, HTH_STORE_LOCK, false, &lock));
        hth_err err = read_upload(store, owner, job);
        close(lock);
        return err;
    }
    HTH_TRY(hth_object_open(store, &job->object->id, job->object->bytes, false, &fd, &seen));
    hth_path path = hth_path_of_tensor(&job->object->id);
    hth_err err = read_file(fd, path.text, job->at, job->dst, job->n);
    close(fd);
    return err;
}

hth_err hth_upload_read(hth_store *store, const char *owner, const hth_manifest_tensor *object,
                        uint64_t at, void *dst, size_t n)
{
    read_job j = {.object = object, .at = at, .dst = dst, .n = n};
    char hex[HTH_ID_HEX];
    hth_err err = at <= object->bytes && n <= object->bytes - at
                      ? read_object(store, owner, &j)
                      : hth_fail(HTH_EINVAL, "it has %llu bytes, %zu from %llu on were asked for",
                                 (unsigned long long)object->bytes, n, (unsigned long long)at);
    return hth_err_prefix(err, "object %.12s", hth_id_hex(&object->id, hex));
}
