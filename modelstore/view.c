// SPDX-License-Identifier: Apache-2.0
// Views of stored tensors, one per id and process, alive as long as somebody holds them.
//
// The table does not own: it lists constants that others hold. A lookup may meet a constant whose
// last reference has just been dropped and whose release waits for the table's lock; such a one is
// left alone (its count is 0 and never rises again) and a fresh view takes its place in the table.
// Release removes an entry only if it is its own. The table is the process's, not the store's:
// views outlive their store, and equal ids are equal bytes anywhere.
//
// A view is of one file. When an import has put another in its place, because that one was damaged,
// those who have the old view keep it, and whoever asks now gets one of the new file.
#include "modelstore/check.h"

#include "base/hash.h"
#include "base/stats.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// From here on a mapping starts at a multiple, so that the system may use huge pages for it.
#define VIEW_ALIGN ((size_t)2 << 20)

typedef struct view {
    hth_const *c;
    void *map; // NULL: `copy` holds the bytes
    void *copy;
    hth_object_seen seen; // the file; zero: there is none
    UT_hash_handle hh;    // by c->id
} view;

static pthread_mutex_t view_lock = PTHREAD_MUTEX_INITIALIZER;
static view *views; // guarded by view_lock

// view_map maps a file read-only, large ones at a multiple of VIEW_ALIGN; NULL with errno set on
// failure.
static void *view_map(int fd, size_t bytes)
{
    if (bytes < VIEW_ALIGN) {
        void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    size_t room = bytes + VIEW_ALIGN, page = (size_t)sysconf(_SC_PAGESIZE);
    char *base = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
    char *at = base + (VIEW_ALIGN - (uintptr_t)base % VIEW_ALIGN) % VIEW_ALIGN;
    if (mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int errnum = errno;
        munmap(base, room);
        errno = errnum;
        return NULL;
    }
    char *end = at + (bytes + page - 1) / page * page;
    if (at > base) {
        munmap(base, (size_t)(at - base));
    }
    if (base + room > end) {
        munmap(end, (size_t)(base + room - end));
    }
    madvise(at, bytes, MADV_HUGEPAGE); // where the file system cannot, nothing is lost
    return at;
}

static hth_err view_open_file(hth_store *store, const hth_manifest_tensor *tensor, view *v)
{
    int fd;
    hth_err err = hth_object_open(store, &tensor->id, tensor->bytes, false, &fd, &v->seen);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "tensor '%s'", tensor->name);
    }
    v->map = view_map(fd, tensor->bytes);
    if (v->map == NULL) {
        hth_path path = hth_path_of_tensor(&tensor->id);
        err = hth_fail_errno(errno, "tensor '%s': mapping '%s'", tensor->name, path.text);
    }
    close(fd);
    return err;
}

// ---- from the index

typedef struct view_job {
    const hth_manifest_tensor *t;
    hth_tensor_row row;
    bool wanted; // the bytes, where the index has them
    void *copy;
} view_job;

// view_copy copies a tensor's bytes out of the index, if they are the right ones.
static hth_err view_copy(view_job *job, const MDB_val *val)
{
    const hth_manifest_tensor *t = job->t;
    hth_id id = hth_content_id(t->dtype, &t->shape, val->mv_data, val->mv_size);
    if (!hth_id_equal(&id, &t->id)) {
        return hth_fail(
            HTH_ECORRUPT,
            "tensor '%s': its bytes in the store's index are not those that were stored", t->name);
    }
    hth_free(job->copy);
    job->copy = hth_alloc_aligned(val->mv_size, 64);
    if (job->copy == NULL) {
        return hth_no_memory("tensor '%s'", t->name);
    }
    memcpy(job->copy, val->mv_data, val->mv_size);
    return HTH_OK;
}

static hth_err view_read_row(hth_txn *txn, void *ctx)
{
    view_job *j = ctx;
    MDB_val v;
    hth_err err = hth_store_row(txn, &j->t->id, &j->row);
    if (err != HTH_OK) {
        return err == HTH_ENOENT
                   ? hth_fail(err, "tensor '%s' is no longer in the store", j->t->name)
                   : err;
    }
    if (!j->row.inlined) {
        return j->row.bytes == j->t->bytes
                   ? HTH_OK
                   : hth_fail(HTH_ECORRUPT, "tensor '%s': the store's index has it with %llu bytes",
                              j->t->name, (unsigned long long)j->row.bytes);
    }
    if (!j->wanted) {
        return HTH_OK;
    }
    err = hth_txn_get(txn, HTH_TABLE_INLINES, &j->t->id, sizeof j->t->id, &v);
    if (err != HTH_OK || v.mv_size != j->t->bytes) {
        return hth_fail(HTH_ECORRUPT, "tensor '%s': its bytes in the store's index are missing",
                        j->t->name);
    }
    return view_copy(j, &v);
}

static void view_release(hth_const *constant)
{
    view *v = constant->owner, *listed;
    pthread_mutex_lock(&view_lock);
    HASH_FIND(hh, views, &constant->id, sizeof constant->id, listed);
    if (listed == v) {
        HASH_DEL(views, v);
    }
    pthread_mutex_unlock(&view_lock);
    if (v->map != NULL) {
        munmap(v->map, constant->bytes);
    }
    hth_free(v->copy);
    hth_free(v);
}

// view_find returns the live view of an id, of the file `seen`, with one more reference, or NULL.
// Under view_lock.
static hth_const *view_find(const hth_id *id, const hth_object_seen *seen)
{
    view *v;
    HASH_FIND(hh, views, id, sizeof *id, v);
    if (v == NULL) {
        return NULL;
    }
    int refs = v->seen.ino == seen->ino ? atomic_load(&v->c->refs) : 0;
    while (refs > 0 && !atomic_compare_exchange_weak(&v->c->refs, &refs, refs + 1)) {
    }
    if (refs ==
        0) { // being released, or of a file that was replaced: it no longer counts as listed
        HASH_DEL(views, v);
        return NULL;
    }
    return v->c;
}

static hth_err view_make(hth_store *store, const hth_manifest_tensor *tensor, hth_const **out)
{
    view_job j = {.t = tensor, .wanted = true};
    view *v = hth_calloc(1, sizeof *v);
    hth_const *c = hth_calloc(1, sizeof *c);
    hth_err err = HTH_OK;
    if (v == NULL || c == NULL) {
        HTH_GOTO(hth_no_memory("a view of tensor '%s'", tensor->name), fail);
    }
    HTH_GOTO(hth_index_read(&store->index, view_read_row, &j), fail);
    v->copy = j.copy;
    if (!j.row.inlined) {
        HTH_GOTO(view_open_file(store, tensor, v), fail);
    }
    atomic_init(&c->refs, 1);
    c->id = tensor->id;
    c->dtype = tensor->dtype;
    c->shape = tensor->shape;
    c->bytes = tensor->bytes;
    c->data = v->map ? v->map : v->copy;
    c->release = view_release;
    c->owner = v;
    v->c = c;
    hth_stat_add(HTH_STAT_STORE_BYTES_MAPPED, tensor->bytes);
    *out = c;
    return HTH_OK;
fail:
    hth_free(j.copy);
    hth_free(v);
    hth_free(c);
    return err;
}

// ---- checked

// view_check finds out which file the tensor has, and reads it where that has to be done before its
// content is used. *seen is zero for one that is in the index.
static hth_err view_check(hth_store *store, const hth_manifest_tensor *tensor,
                          hth_object_seen *seen)
{
    view_job j = {.t = tensor};
    bool needed = false;
    const hth_object o = {tensor->id, tensor->dtype, tensor->shape, tensor->bytes};
    *seen = (hth_object_seen){.ino = 0};
    HTH_TRY(hth_index_read(&store->index, view_read_row, &j));
    if (j.row.inlined) {
        return HTH_OK;
    }
    hth_err err = hth_check_look(store, &o, seen, &needed);
    if (err == HTH_OK && needed) {
        err = hth_check_read(store, &o, false, NULL, NULL, seen);
    }
    return hth_err_prefix(err, "tensor '%s'", tensor->name);
}

hth_err hth_store_view(hth_store *store, const hth_manifest_tensor *tensor, hth_const **out)
{
    bool listed = true;
    hth_object_seen seen;
    *out = NULL;
    hth_err err = view_check(store, tensor, &seen);
    if (err != HTH_OK) {
        return err;
    }
    pthread_mutex_lock(&view_lock);
    *out = view_find(&tensor->id, &seen);
    if (*out == NULL) {
        err = view_make(store, tensor, out);
        if (err == HTH_OK) {
            view *v = (*out)->owner;
            HASH_ADD_KEYPTR(hh, views, &v->c->id, sizeof v->c->id, v);
            listed = HTH_HASH_ADDED(v);
        }
    }
    pthread_mutex_unlock(&view_lock);
    if (!listed) {
        hth_const_rele(*out); // a second view of the id would be a second mapping
        *out = NULL;
        return hth_no_memory("a view of tensor '%s'", tensor->name);
    }
    return err;
}

bool hth_store_view_stale(hth_store *store, const hth_manifest_tensor *tensor)
{
    view *v;
    hth_object_seen seen;
    pthread_mutex_lock(&view_lock);
    HASH_FIND(hh, views, &tensor->id, sizeof tensor->id, v);
    bool file = v != NULL && v->seen.ino != 0;
    uint64_t ino = file ? v->seen.ino : 0;
    pthread_mutex_unlock(&view_lock);
    return file &&
           (hth_object_look(store, &tensor->id, tensor->bytes, &seen) != HTH_OK || seen.ino != ino);
}
