// SPDX-License-Identifier: Apache-2.0
// Views of stored tensors, one per id and process, alive as long as somebody holds them.
//
// The table does not own: it lists constants that others hold. A lookup may meet a constant whose
// last reference has just been dropped and whose release waits for the table's lock; such a one is
// left alone (its count is 0 and never rises again) and a fresh view takes its place in the table.
// Release removes an entry only if it is its own. The table is the process's, not the store's:
// views outlive their store, and equal ids are equal bytes anywhere.
#include "modelstore/store_impl.h"

#include "base/hash.h"
#include "base/stats.h"

#include <errno.h>
#include <fcntl.h>
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
    UT_hash_handle hh; // by c->id
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

static hth_err view_open_file(hth_store *s, const hth_manifest_tensor *t, view *v)
{
    hth_path path = hth_path_of_tensor(&t->id);
    struct stat st;
    int fd = openat(s->dir, path.text, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT
                   ? hth_fail(HTH_ECORRUPT, "tensor '%s': its file '%s' is missing", t->name,
                              path.text)
                   : hth_fail_errno(errno, "tensor '%s': opening '%s'", t->name, path.text);
    }
    hth_err err = HTH_OK;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != t->bytes) {
        err = hth_fail(HTH_ECORRUPT, "tensor '%s': its file '%s' does not have %llu bytes", t->name,
                       path.text, (unsigned long long)t->bytes);
    } else if ((v->map = view_map(fd, t->bytes)) == NULL) {
        err = hth_fail_errno(errno, "tensor '%s': mapping '%s'", t->name, path.text);
    }
    close(fd);
    return err;
}

typedef struct view_job {
    const hth_manifest_tensor *t;
    hth_tensor_row row;
    void *copy;
} view_job;

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
                   : hth_fail(HTH_ECORRUPT, "tensor '%s': wrong size", j->t->name);
    }
    err = hth_txn_get(txn, HTH_TABLE_INLINES, &j->t->id, sizeof j->t->id, &v);
    if (err != HTH_OK || v.mv_size != j->t->bytes) {
        return hth_fail(HTH_ECORRUPT, "tensor '%s': its bytes in the index are damaged",
                        j->t->name);
    }
    hth_free(j->copy);
    j->copy = hth_alloc_aligned(v.mv_size, 64);
    if (j->copy == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for tensor '%s'", j->t->name);
    }
    memcpy(j->copy, v.mv_data, v.mv_size);
    return HTH_OK;
}

static void view_release(hth_const *c)
{
    view *v = c->owner, *listed;
    pthread_mutex_lock(&view_lock);
    HASH_FIND(hh, views, &c->id, sizeof c->id, listed);
    if (listed == v) {
        HASH_DEL(views, v);
    }
    pthread_mutex_unlock(&view_lock);
    if (v->map != NULL) {
        munmap(v->map, c->bytes);
    }
    hth_free(v->copy);
    hth_free(v);
}

// view_find returns the live view of an id with one more reference, or NULL. Under view_lock.
static hth_const *view_find(const hth_id *id)
{
    view *v;
    HASH_FIND(hh, views, id, sizeof *id, v);
    if (v == NULL) {
        return NULL;
    }
    int refs = atomic_load(&v->c->refs);
    while (refs > 0 && !atomic_compare_exchange_weak(&v->c->refs, &refs, refs + 1)) {
    }
    if (refs == 0) { // being released: it no longer counts as listed
        HASH_DEL(views, v);
        return NULL;
    }
    return v->c;
}

static hth_err view_make(hth_store *s, const hth_manifest_tensor *t, hth_const **out)
{
    view_job j = {.t = t};
    view *v = hth_calloc(1, sizeof *v);
    hth_const *c = hth_calloc(1, sizeof *c);
    hth_err err = HTH_OK;
    if (v == NULL || c == NULL) {
        HTH_GOTO(hth_fail(HTH_ENOMEM, "out of memory for a view of tensor '%s'", t->name), fail);
    }
    HTH_GOTO(hth_index_read(&s->index, view_read_row, &j), fail);
    v->copy = j.copy;
    if (!j.row.inlined) {
        HTH_GOTO(view_open_file(s, t, v), fail);
    }
    atomic_init(&c->refs, 1);
    c->id = t->id;
    c->dtype = t->dtype;
    c->shape = t->shape;
    c->bytes = t->bytes;
    c->data = v->map ? v->map : v->copy;
    c->release = view_release;
    c->owner = v;
    v->c = c;
    hth_stat_add(HTH_STAT_STORE_BYTES_MAPPED, t->bytes);
    *out = c;
    return HTH_OK;
fail:
    hth_free(j.copy);
    hth_free(v);
    hth_free(c);
    return err;
}

hth_err hth_store_view(hth_store *s, const hth_manifest_tensor *t, hth_const **out)
{
    hth_err err = HTH_OK;
    bool listed = true;
    pthread_mutex_lock(&view_lock);
    *out = view_find(&t->id);
    if (*out == NULL) {
        err = view_make(s, t, out);
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
        return hth_fail(HTH_ENOMEM, "out of memory for a view of tensor '%s'", t->name);
    }
    return err;
}

hth_err hth_store_verify(hth_store *s, const char *name, int version)
{
    hth_manifest m;
    HTH_TRY(hth_store_get(s, name, version, &m));
    hth_err err = HTH_OK;
    for (int i = 0; i < m.n_tensors && err == HTH_OK; i++) {
        const hth_manifest_tensor *t = &m.tensors[i];
        hth_const *c;
        err = hth_store_view(s, t, &c);
        if (err == HTH_OK) {
            hth_id id = hth_content_id(t->dtype, &t->shape, c->data, c->bytes);
            if (!hth_id_equal(&id, &t->id)) {
                err = hth_fail(HTH_ECORRUPT,
                               "tensor '%s' of '%s:%d': its bytes are not those that were stored",
                               t->name, name, m.version);
            }
            hth_const_rele(c);
        }
    }
    hth_manifest_fini(&m);
    return err;
}
