// SPDX-License-Identifier: Apache-2.0
// What of some objects is there. A tensor's row in the index has no dtype and shape, and does not
// say who may read it: both are in the records of the versions that name it. Those are gone through
// once for all objects, until all that the index lists are found: what is new costs no look at a
// store of thousands of versions.
#include "modelstore/check.h"
#include "modelstore/upload_impl.h"

#include "base/alloc.h"

#include <string.h>
#include <unistd.h>

hth_err hth_upload_check(const hth_manifest_tensor *object)
{
    size_t bytes;
    if (!hth_shape_known(&object->shape) || hth_dtype_bytes(object->dtype) == 0) {
        return hth_fail(HTH_EINVAL, "an object without an element type or shape");
    }
    HTH_TRY(hth_tensor_bytes(object->dtype, &object->shape, HTH_LAYOUT_PLAIN, &bytes));
    return bytes == object->bytes
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "an object of %llu bytes, whose type and shape make %zu",
                          (unsigned long long)object->bytes, bytes);
}

// An object that is looked for; the same one may be asked for several times.
typedef struct have_want {
    const hth_manifest_tensor *object;
    bool listed, found;
    int first; // which is the same; itself: none before it
    UT_hash_handle hh;
} have_want;

typedef struct have_job {
    have_want *want, *by_id;
    int n, missing; // .. listed and not found yet
    hth_store_sees sees;
    void *ctx;
} have_job;

static void have_match(have_job *job, const hth_record_tensor *tensor)
{
    have_want *w;
    HASH_FIND(hh, job->by_id, &tensor->id, sizeof tensor->id, w);
    if (w != NULL && !w->found) {
        const hth_manifest_tensor *o = w->object;
        w->found = o->dtype == tensor->dtype && o->bytes == tensor->bytes &&
                   hth_shape_equal(&o->shape, &tensor->shape);
        job->missing -= w->found && w->listed;
    }
}

static hth_err have_sees(const have_job *job, const char *name, const hth_record *record,
                         bool *sees)
{
    char *meta = hth_strndup(record->meta, record->meta_bytes);
    if (meta == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a version's text");
    }
    *sees = job->sees == NULL || job->sees(job->ctx, name, meta);
    hth_free(meta);
    return HTH_OK;
}

// have_version matches the tensors of a version, if who asks may know of them.
static hth_err have_version(hth_txn *txn, have_job *job, const char *name, int version,
                            const MDB_val *value)
{
    hth_version_key k = hth_version_key_of(name, version);
    hth_record r;
    hth_record_tensor x;
    bool sees = false;
    HTH_TRY(hth_check_record(txn, &k, value));
    HTH_TRY(hth_record_open(&r, value->mv_data, value->mv_size));
    HTH_TRY(have_sees(job, name, &r, &sees));
    for (int i = 0; sees && i < r.n_tensors; i++) {
        HTH_TRY(hth_record_next(&r, &x));
        have_match(job, &x);
    }
    return HTH_OK;
}

static hth_err have_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    have_job *j = ctx;
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    hth_err err = have_version(txn, j, name, version, value);
    if (err != HTH_OK && err != HTH_ECORRUPT) { // a damaged version has nothing for others
        return err;
    }
    return j->missing > 0 ? HTH_OK : HTH_ECANCELED; // all are found
}

static hth_err have_rows(hth_txn *txn, void *ctx)
{
    have_job *j = ctx;
    hth_tensor_row row;
    j->missing = 0;
    for (int i = 0; i < j->n; i++) {
        have_want *w = &j->want[i];
        if (w->first != i) {
            continue;
        }
        hth_err err = hth_store_row(txn, &w->object->id, &row);
        HTH_TRY(err == HTH_ENOENT ? HTH_OK : err);
        w->listed = err == HTH_OK;
        w->found = false; // of an earlier try
        j->missing += w->listed;
    }
    if (j->missing == 0) {
        return HTH_OK;
    }
    hth_err err = hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, have_row, j);
    return err == HTH_ECANCELED ? HTH_OK : err;
}

// An id is made of the element type and the shape, too: an object with another one is nowhere.
static bool have_same(const hth_manifest_tensor *a, const hth_manifest_tensor *b)
{
    return a->dtype == b->dtype && hth_shape_equal(&a->shape, &b->shape);
}

static hth_err have_find(hth_store *store, have_job *job, const hth_manifest_tensor *objects, int n)
{
    hth_err err = HTH_OK;
    job->n = n;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        have_want *w = &job->want[i], *first;
        w->object = &objects[i];
        w->first = i;
        HASH_FIND(hh, job->by_id, &objects[i].id, sizeof objects[i].id, first);
        if (first != NULL) {
            w->first = have_same(&objects[i], first->object) ? first->first : i;
            continue;
        }
        HASH_ADD_KEYPTR(hh, job->by_id, &objects[i].id, sizeof objects[i].id, w);
        err = HTH_HASH_ADDED(w) ? HTH_OK : hth_no_memory("%d objects", n);
    }
    if (err == HTH_OK) {
        err = hth_index_read(&store->index, have_rows, job);
    }
    HASH_CLEAR(hh, job->by_id);
    return err;
}

typedef struct have_sound {
    const hth_manifest_tensor *object;
    bool listed, sound, file;
} have_sound;

static hth_err have_listed(hth_txn *txn, void *ctx)
{
    have_sound *h = ctx;
    hth_tensor_row row;
    hth_check_row check;
    h->listed = h->sound = h->file = false;
    hth_err err = hth_store_row(txn, &h->object->id, &row);
    if (err == HTH_OK) {
        bool marked = hth_check_get(txn, &h->object->id, &check) == HTH_OK && check.damaged;
        h->listed = true;
        h->file = !row.inlined;
        h->sound = row.bytes == h->object->bytes && !marked;
    }
    return err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_upload_sound(hth_store *store, const hth_manifest_tensor *object, bool *listed,
                         bool *sound)
{
    have_sound h = {.object = object};
    const hth_object o = {object->id, object->dtype, object->shape, object->bytes};
    hth_object_seen seen;
    bool inlined;
    HTH_TRY(hth_index_read(&store->index, have_listed, &h));
    if (h.sound) { // bytes in the index are few: they are compared, for nothing marks them
        hth_err err = h.file ? hth_object_look(store, &o.id, o.bytes, &seen)
                             : hth_object_inlined(store, &o, &inlined);
        h.sound = err == HTH_OK;
        HTH_TRY(err == HTH_ECORRUPT ? HTH_OK : err);
    }
    *listed = h.listed;
    *sound = h.sound;
    return HTH_OK;
}

// have_uploaded tells how far the owner's upload of an object is. One that the store has does not
// need it any more.
static hth_err have_uploaded(hth_store *store, const char *owner, const hth_manifest_tensor *object,
                             bool stored, uint64_t *there)
{
    hth_upload *u;
    *there = stored ? HTH_UPLOAD_WHOLE : 0;
    HTH_TRY(hth_upload_find(store, owner, &object->id, &u));
    if (u == NULL) {
        return HTH_OK;
    }
    hth_err err = HTH_OK;
    pthread_mutex_lock(&u->lock);
    if (stored) {
        hth_upload_drop(store, u);
    } else if (!atomic_load(&u->gone) && (err = hth_upload_look(store, u, object)) == HTH_OK) {
        hth_upload_touch(store, u);
        *there = u->whole ? HTH_UPLOAD_WHOLE : u->there;
    }
    pthread_mutex_unlock(&u->lock);
    hth_upload_rele(store, u);
    return err;
}

static hth_err have_each(hth_store *store, const char *owner, have_job *job,
                         const hth_manifest_tensor *objects, int n, uint64_t *there)
{
    HTH_TRY(have_find(store, job, objects, n));
    for (int i = 0; i < n; i++) {
        bool listed, sound = false;
        if (job->want[i].first != i) {
            there[i] = there[job->want[i].first];
            continue;
        }
        if (job->want[i].found) {
            HTH_TRY(hth_upload_sound(store, &objects[i], &listed, &sound));
        }
        HTH_TRY(have_uploaded(store, owner, &objects[i], sound, &there[i]));
    }
    return HTH_OK;
}

hth_err hth_upload_have(hth_store *store, const char *owner, hth_store_sees sees, void *ctx,
                        const hth_manifest_tensor *objects, int n, uint64_t *there)
{
    int lock;
    for (int i = 0; i < n; i++) {
        hth_err err = hth_upload_check(&objects[i]);
        HTH_TRY(hth_err_prefix(err, "object %d", i));
    }
    if (store->read_only) {
        return hth_store_read_only();
    }
    have_job j = {.sees = sees, .ctx = ctx, .want = hth_calloc((size_t)n, sizeof *j.want)};
    if (j.want == NULL) {
        return hth_no_memory("%d objects", n);
    }
    hth_err err = hth_store_file_lock(store->dir, HTH_STORE_LOCK, false, &lock);
    if (err == HTH_OK) {
        err = have_each(store, owner, &j, objects, n, there);
        close(lock);
    }
    hth_free(j.want);
    return err;
}
