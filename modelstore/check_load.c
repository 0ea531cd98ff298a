// SPDX-License-Identifier: Apache-2.0
// What a model's loading checks. Files that have to be read are, on several threads: a load waits
// for it.
#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// More would only take the disk, and processors, from others; below some bytes one is enough.
#define LOAD_THREADS     4
#define LOAD_ALONE_BYTES ((uint64_t)8 << 20)

typedef struct load_job {
    hth_store *s;
    const hth_manifest *m;
    int *todo; // tensors whose files have to be read
    int n;
    uint64_t bytes;
    atomic_int next;
    atomic_bool stop;
    pthread_mutex_t lock;
    hth_err err; // the first failure; guarded by lock
    char detail[1024];
} load_job;

static void load_failed(load_job *job, hth_err err)
{
    pthread_mutex_lock(&job->lock);
    if (job->err == HTH_OK) {
        job->err = err;
        snprintf(job->detail, sizeof job->detail, "%s", hth_err_detail());
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->stop, true);
}

static void load_work(void *ctx)
{
    load_job *j = ctx;
    for (int i; !atomic_load(&j->stop) && (i = atomic_fetch_add(&j->next, 1)) < j->n;) {
        const hth_manifest_tensor *t = &j->m->tensors[j->todo[i]];
        hth_object_seen seen;
        const hth_object o = {t->id, t->dtype, t->shape, t->bytes};
        hth_err err = hth_check_read(j->s, &o, false, NULL, NULL, &seen);
        if (err != HTH_OK) {
            load_failed(j, hth_err_prefix(err, "tensor '%s'", t->name));
        }
    }
}

// load_look finds out which files have to be read.
static hth_err load_look(load_job *job)
{
    for (int i = 0; i < job->m->n_tensors; i++) {
        const hth_manifest_tensor *t = &job->m->tensors[i];
        const hth_object o = {t->id, t->dtype, t->shape, t->bytes};
        hth_object_seen seen;
        bool file = false, needed = false;
        hth_err err = hth_object_is_file(job->s, &t->id, &file);
        if (err == HTH_OK && file) {
            err = hth_check_look(job->s, &o, &seen, &needed);
        }
        if (err != HTH_OK && err != HTH_ENOENT) { // the view says what is not there
            return hth_err_prefix(err, "tensor '%s'", t->name);
        }
        if (needed) {
            job->todo[job->n++] = i;
            job->bytes += t->bytes;
        }
    }
    return HTH_OK;
}

static void load_read(load_job *job)
{
    pthread_t helper[LOAD_THREADS - 1];
    int helpers = 0, most = job->n - 1 < LOAD_THREADS - 1 ? job->n - 1 : LOAD_THREADS - 1;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    most = most < cores - 1 ? most : (int)cores - 1;
    while (job->bytes > LOAD_ALONE_BYTES && helpers < most &&
           hth_thread_start("hth-check", load_work, job, &helper[helpers]) == HTH_OK) {
        helpers++;
    }
    load_work(job);
    while (helpers > 0) {
        hth_thread_join(helper[--helpers]);
    }
}

hth_err hth_store_check(hth_store *store, const hth_manifest *manifest)
{
    load_job j = {.s = store, .m = manifest};
    j.todo = hth_calloc((size_t)manifest->n_tensors + 1, sizeof *j.todo);
    if (j.todo == NULL) {
        return hth_no_memory("a list of %d tensors", manifest->n_tensors);
    }
    hth_err err = load_look(&j);
    if (err == HTH_OK && j.n > 0) {
        pthread_mutex_init(&j.lock, NULL);
        load_read(&j);
        pthread_mutex_destroy(&j.lock);
        hth_check_flush(store);
        err = hth_err_restore(j.err, j.detail);
    }
    hth_free(j.todo);
    return err;
}

// ---- what is loaded

typedef struct load_marks {
    const hth_manifest *m;
    int damaged; // the first tensor that is marked, -1: none is
} load_marks;

static hth_err load_marked(hth_txn *txn, void *ctx)
{
    load_marks *l = ctx;
    hth_check_health health;
    l->damaged = -1;
    HTH_TRY(hth_check_health_get(txn, &health));
    for (int i = 0; i < l->m->n_tensors && l->damaged < 0 && health.damaged > 0; i++) {
        hth_check_row row;
        hth_err err = hth_check_get(txn, &l->m->tensors[i].id, &row);
        if (err != HTH_OK && err != HTH_ENOENT) {
            return err;
        }
        l->damaged = err == HTH_OK && row.damaged != 0 ? i : -1;
    }
    return HTH_OK;
}

hth_err hth_store_sound(hth_store *store, const hth_manifest *manifest)
{
    load_marks l = {.m = manifest};
    HTH_TRY(hth_index_read(&store->index, load_marked, &l));
    if (l.damaged >= 0) {
        hth_path path = hth_path_of_tensor(&manifest->tensors[l.damaged].id);
        return hth_fail(HTH_ECORRUPT,
                        "tensor '%s': its file '%s' does not have the bytes that were stored",
                        manifest->tensors[l.damaged].name, path.text);
    }
    for (int i = 0; i < manifest->n_tensors; i++) {
        if (hth_store_view_stale(store, &manifest->tensors[i])) {
            return hth_fail(HTH_EBUSY, "tensor '%s' has been repaired", manifest->tensors[i].name);
        }
    }
    return HTH_OK;
}
