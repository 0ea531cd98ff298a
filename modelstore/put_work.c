// SPDX-License-Identifier: Apache-2.0
// The heavy part of a put: hashing, and writing what is new, on two threads (the caller's is one).
//
// The threads take tasks, largest first so that they end together. Hashing comes before writing,
// because a re-import must not write. The exception are large tensors of a size that no stored
// tensor has: they are surely new, and are written by one thread while the other hashes them.
// Without that, the one huge matrix of a VGG would be hashed and then written by one thread while
// the other has long run out of work.
#include "modelstore/put_impl.h"

#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

// Below this a second thread costs more than it brings.
#define PUT_ALONE_BYTES ((uint64_t)1 << 20)
// From here on hashing takes long enough (8 ms) to be worth looking through the index for tensors
// of equal size.
#define PUT_EARLY_BYTES ((uint64_t)16 << 20)

static void put_set_failure(hth_put_job *j, hth_err err)
{
    pthread_mutex_lock(&j->lock);
    if (j->err == HTH_OK) {
        j->err = err;
        memcpy(j->detail, hth_err_detail(), strnlen(hth_err_detail(), sizeof j->detail - 1));
    }
    pthread_mutex_unlock(&j->lock);
    atomic_store(&j->stop, true);
}

hth_err hth_put_tick(hth_put_job *j, size_t bytes)
{
    uint64_t done = atomic_fetch_add(&j->done, bytes) + bytes;
    if (j->progress != NULL && pthread_equal(j->caller, pthread_self()) &&
        j->progress(j->ctx, done / 2, j->total) != 0) {
        return hth_fail(HTH_ECANCELED, "canceled");
    }
    return atomic_load(&j->stop) ? hth_fail(HTH_ECANCELED, "canceled") : HTH_OK;
}

static hth_err put_tick(void *ctx, size_t bytes)
{
    return hth_put_tick(ctx, bytes);
}

// put_claim decides who of equal tensors does the work. HTH_ENOMEM.
static hth_err put_claim(hth_put_job *j, hth_put_item *it)
{
    hth_put_item *first;
    hth_err err = HTH_OK;
    pthread_mutex_lock(&j->lock);
    HASH_FIND(hh, j->by_id, &it->id, sizeof it->id, first);
    it->repeated = first != NULL;
    if (first == NULL) {
        HASH_ADD(hh, j->by_id, id, sizeof it->id, it);
        err = HTH_HASH_ADDED(it)
                  ? HTH_OK
                  : hth_fail(HTH_ENOMEM, "out of memory for a version's list of tensors");
    }
    pthread_mutex_unlock(&j->lock);
    return err;
}

bool hth_put_is_file(const hth_put_job *j, const hth_put_item *it)
{
    return (it->fresh || it->damaged) && !it->repeated && it->t->bytes > j->inline_max;
}

static hth_err put_hash(hth_put_job *j, hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    it->id = hth_content_id(t->dtype, &t->shape, t->data, t->bytes);
    HTH_TRY(put_tick(j, t->bytes));
    HTH_TRY(put_claim(j, it));
    if (it->early) { // should another process store the same bytes meanwhile, the files are equal
        it->fresh = true;
        return HTH_OK;
    }
    return it->repeated ? HTH_OK : hth_put_compare(j, it);
}

static hth_err put_write(hth_put_job *j, hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    if (!it->early && !hth_put_is_file(j, it)) {
        return put_tick(j, t->bytes);
    }
    it->temp = hth_path_of_temp();
    hth_err err = hth_store_file_write(j->s->dir, it->temp.text, t->data, t->bytes, put_tick, j);
    return err == HTH_OK || err == HTH_ECANCELED ? err
                                                 : hth_err_prefix(err, "tensor '%s'", t->name);
}

static void put_worker(void *ctx)
{
    hth_put_job *j = ctx;
    for (int i; !atomic_load(&j->stop) && (i = atomic_fetch_add(&j->next, 1)) < j->n_tasks;) {
        const hth_put_task *task = &j->tasks[i];
        hth_err err = task->hash ? put_hash(j, task->item) : HTH_OK;
        err = err == HTH_OK && task->write ? put_write(j, task->item) : err;
        if (err != HTH_OK) {
            put_set_failure(j, err);
        }
    }
}

hth_err hth_put_work(hth_put_job *j)
{
    pthread_t helper;
    bool two =
        j->total > PUT_ALONE_BYTES && hth_thread_start("hth-put", put_worker, j, &helper) == HTH_OK;
    put_worker(j);
    if (two) {
        hth_thread_join(helper);
    }
    return j->err == HTH_OK ? HTH_OK : hth_fail(j->err, "%s", j->detail);
}

static int put_larger_first(const void *a, const void *b)
{
    uint64_t x = ((const hth_put_task *)a)->item->t->bytes,
             y = ((const hth_put_task *)b)->item->t->bytes;
    return (x < y) - (x > y);
}

// put_size_taken withdraws `early` from items of a size that the store has: they may be in it
// already.
static hth_err put_size_taken(hth_txn *t, void *ctx, const MDB_val *key, const MDB_val *value)
{
    hth_put_job *j = ctx;
    hth_tensor_row row;
    if (value->mv_size != sizeof row) {
        return hth_fail(HTH_ECORRUPT, "the store's list of tensors is damaged");
    }
    memcpy(&row, value->mv_data, sizeof row);
    for (int i = 0; i < j->n_tasks && j->tasks[i].item->t->bytes >= PUT_EARLY_BYTES; i++) {
        j->tasks[i].item->early &= j->tasks[i].item->t->bytes != row.bytes;
    }
    return HTH_OK;
}

static hth_err put_sizes(hth_txn *t, void *ctx)
{
    return hth_txn_each(t, HTH_TABLE_TENSORS, NULL, 0, put_size_taken, ctx);
}

// put_find_early marks the large tensors whose bytes cannot be in the store, nor twice in this put.
static hth_err put_find_early(hth_put_job *j)
{
    int n = 0;
    for (; n < j->n && j->tasks[n].item->t->bytes >= PUT_EARLY_BYTES; n++) {
        uint64_t bytes = j->tasks[n].item->t->bytes;
        bool twin = (n > 0 && j->tasks[n - 1].item->t->bytes == bytes) ||
                    (n + 1 < j->n && j->tasks[n + 1].item->t->bytes == bytes);
        j->tasks[n].item->early = !twin;
    }
    return n == 0 ? HTH_OK : hth_index_read(&j->s->index, put_sizes, j);
}

hth_err hth_put_work_init(hth_put_job *j, const hth_put_tensor *tensors, int n)
{
    j->items = hth_calloc((size_t)n, sizeof *j->items);
    j->tasks = hth_calloc((size_t)n, 2 * sizeof *j->tasks);
    if (j->items == NULL || j->tasks == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a list of %d tensors", n);
    }
    for (int i = 0; i < n; i++) {
        j->items[i].t = &tensors[i];
        j->tasks[i] = (hth_put_task){&j->items[i], true, true};
        j->total += tensors[i].bytes;
    }
    j->n = j->n_tasks = n;
    qsort(j->tasks, (size_t)n, sizeof *j->tasks, put_larger_first);
    HTH_TRY(put_find_early(j));
    for (int i = 0; i < n; i++) { // the hash of an early item becomes a task of its own
        if (j->tasks[i].item->early) {
            j->tasks[i].hash = false;
            j->tasks[j->n_tasks++] = (hth_put_task){j->tasks[i].item, true, false};
        }
    }
    qsort(j->tasks, (size_t)j->n_tasks, sizeof *j->tasks, put_larger_first);
    return HTH_OK;
}
