// SPDX-License-Identifier: Apache-2.0
// The heavy part of a put: hashing, and writing what is new, on two threads (the caller's is one).
//
// The threads take tasks, largest first so that they end together. Hashing comes before writing,
// because a re-import must not write. The exception are large tensors of a size that no stored
// tensor has: they are surely new, and are written by one thread while the other hashes them.
// Without that, the one huge matrix of a VGG would be hashed and then written by one thread while
// the other has long run out of work.
//
// Bytes that have to be read (hth_put_tensor.read) may be other ones each time. A tensor that is
// not large is read once, into memory. A large one is read in pieces, and what is written is hashed
// as it is written: a file that is not what its name says never comes to be.
#include "modelstore/put_impl.h"

#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

// Below this a second thread costs more than it brings.
#define PUT_ALONE_BYTES ((uint64_t)1 << 20)
// From here on hashing takes long enough (8 ms) to be worth looking through the index for tensors
// of equal size.
#define PUT_EARLY_BYTES ((uint64_t)16 << 20)
// Up to here bytes that are read are read once; two tensors at a time are.
#define PUT_HELD_BYTES ((uint64_t)64 << 20)
// What is hashed right after it was read, while a core's cache has it.
#define PUT_NEAR_BYTES ((size_t)512 << 10)

static void put_set_failure(hth_put_job *job, hth_err err)
{
    pthread_mutex_lock(&job->lock);
    if (job->err == HTH_OK) {
        job->err = err;
        memcpy(job->detail, hth_err_detail(), strnlen(hth_err_detail(), sizeof job->detail - 1));
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->stop, true);
}

hth_err hth_put_tick(hth_put_job *job, size_t bytes)
{
    uint64_t done = atomic_fetch_add(&job->done, bytes) + bytes;
    if (job->progress != NULL && pthread_equal(job->caller, pthread_self()) &&
        job->progress(job->ctx, done / 2, job->total) != 0) {
        return hth_fail(HTH_ECANCELED, "canceled");
    }
    return atomic_load(&job->stop) ? hth_fail(HTH_ECANCELED, "canceled") : HTH_OK;
}

static hth_err put_tick(void *ctx, size_t bytes)
{
    return hth_put_tick(ctx, bytes);
}

// put_claim decides who of equal tensors does the work. HTH_ENOMEM.
static hth_err put_claim(hth_put_job *job, hth_put_item *it)
{
    hth_put_item *first;
    hth_err err = HTH_OK;
    pthread_mutex_lock(&job->lock);
    HASH_FIND(hh, job->by_id, &it->id, sizeof it->id, first);
    it->repeated = first != NULL;
    if (first == NULL) {
        HASH_ADD(hh, job->by_id, id, sizeof it->id, it);
        err = HTH_HASH_ADDED(it) ? HTH_OK : hth_no_memory("a version's list of tensors");
    }
    pthread_mutex_unlock(&job->lock);
    return err;
}

bool hth_put_is_file(const hth_put_job *job, const hth_put_item *it)
{
    return (it->fresh || it->damaged) && !it->repeated && it->t->bytes > job->inline_max;
}

// ---- bytes

const void *hth_put_bytes(const hth_put_item *it)
{
    return it->held != NULL ? it->held : it->t->data;
}

hth_err hth_put_read(const hth_put_item *it, uint64_t at, void *dst, size_t n)
{
    const hth_put_tensor *t = it->t;
    hth_err err = n > 0 ? t->read(t->read_ctx, at, dst, n) : HTH_OK;
    return hth_err_prefix(err, "tensor '%s'", t->name);
}

// put_streams tells whether an item is too large to be held: it is read in pieces.
static bool put_streams(const hth_put_item *it)
{
    return it->t->data == NULL && !hth_put_is_given(it) && it->t->bytes > PUT_HELD_BYTES;
}

// What one of the threads reads into, from task to task: the pages stay.
typedef struct put_room {
    void *p;
    size_t bytes;
} put_room;

static hth_err room_get(put_room *room, const hth_put_item *it, size_t bytes, void **out)
{
    if (room->bytes < bytes) {
        hth_free(room->p);
        room->p = hth_alloc_aligned(bytes, 4096);
        room->bytes = room->p != NULL ? bytes : 0;
    }
    *out = room->p;
    return room->p != NULL ? HTH_OK
                           : hth_fail(HTH_ENOMEM, "tensor '%s': out of memory for %zu bytes of it",
                                      it->t->name, bytes);
}

// put_sum reads `n` bytes and adds them to the sum while they are near.
static hth_err put_sum(const hth_put_item *it, uint64_t at, void *dst, size_t n, hth_id_sum *sum)
{
    for (size_t done = 0, some; done < n; done += some) {
        some = n - done < PUT_NEAR_BYTES ? n - done : PUT_NEAR_BYTES;
        HTH_TRY(hth_put_read(it, at + done, (char *)dst + done, some));
        hth_id_sum_add(sum, (char *)dst + done, some);
    }
    return HTH_OK;
}

// put_hold reads an item into memory, and finds its id. What the index may want stays until the
// put is done, other bytes until the thread's next task.
static hth_err put_hold(const hth_put_job *job, put_room *room, hth_put_item *it)
{
    size_t bytes = it->t->bytes;
    it->stays = bytes <= job->inline_max;
    if (it->stays) {
        it->held = hth_alloc(bytes + 1);
        HTH_TRY(it->held != NULL ? HTH_OK : hth_no_memory("tensor '%s'", it->t->name));
    } else {
        HTH_TRY(room_get(room, it, bytes, &it->held));
    }
    hth_id_sum *sum = hth_content_sum(it->t->dtype, &it->t->shape);
    hth_err err = put_sum(it, 0, it->held, bytes, sum);
    it->id = hth_id_sum_end(sum);
    return err;
}

static void put_release(hth_put_item *it)
{
    if (!it->stays && it->held != NULL) {
        it->held = NULL;
    }
}

void hth_put_work_fini(hth_put_job *job)
{
    for (int i = 0; i < job->n; i++) {
        if (job->items[i].stays) {
            hth_free(job->items[i].held);
        }
    }
}

// ---- work

// An item that is read in pieces, and the sum of what was read.
typedef struct put_stream {
    const hth_put_item *it;
    void *chunk;
    hth_id_sum *sum;
} put_stream;

static hth_err stream_chunk(void *ctx, size_t at, size_t n, const void **data)
{
    put_stream *s = ctx;
    *data = s->chunk;
    return put_sum(s->it, at, s->chunk, n, s->sum);
}

// stream_hash finds the id of an item that is read in pieces.
static hth_err stream_hash(hth_put_job *job, put_room *room, hth_put_item *it)
{
    put_stream s = {.it = it};
    const void *data;
    HTH_TRY(room_get(room, it, HTH_STORE_CHUNK, &s.chunk));
    s.sum = hth_content_sum(it->t->dtype, &it->t->shape);
    hth_err err = HTH_OK;
    for (size_t at = 0; at < it->t->bytes && err == HTH_OK; at += HTH_STORE_CHUNK) {
        size_t left = it->t->bytes - at, n = left < HTH_STORE_CHUNK ? left : HTH_STORE_CHUNK;
        err = stream_chunk(&s, at, n, &data);
        if (err == HTH_OK) {
            err = put_tick(job, n);
        }
    }
    it->id = hth_id_sum_end(s.sum);
    return err;
}

// stream_write writes the file of an item that is read in pieces, and stores the id of what is in
// it.
static hth_err stream_write(hth_put_job *job, put_room *room, hth_put_item *it, hth_id *id)
{
    put_stream s = {.it = it};
    HTH_TRY(room_get(room, it, HTH_STORE_CHUNK, &s.chunk));
    s.sum = hth_content_sum(it->t->dtype, &it->t->shape);
    hth_err err = hth_store_file_write_from(job->s->dir, it->temp.text, it->t->bytes, stream_chunk,
                                            &s, put_tick, job);
    *id = hth_id_sum_end(s.sum);
    return err;
}

// put_known is for an item whose id has been found.
static hth_err put_known(hth_put_job *job, hth_put_item *it)
{
    if (it->t->id != NULL && !hth_id_equal(it->t->id, &it->id)) {
        return hth_fail(HTH_ECORRUPT, "tensor '%s': its bytes are not what its id says",
                        it->t->name);
    }
    HTH_TRY(put_claim(job, it));
    if (hth_put_is_given(it)) {
        return it->repeated ? HTH_OK : hth_put_given(job, it);
    }
    if (it->early) { // should another process store the same bytes meanwhile, the files are equal
        it->fresh = true;
        return HTH_OK;
    }
    return it->repeated ? HTH_OK : hth_put_compare(job, it);
}

static hth_err put_hash(hth_put_job *job, put_room *room, hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    if (put_streams(it)) {
        HTH_TRY(stream_hash(job, room, it));
        return put_known(job, it);
    }
    if (hth_put_is_given(it)) {
        it->id = *t->id;
    } else if (t->data == NULL) {
        HTH_TRY(put_hold(job, room, it));
    } else {
        it->id = hth_content_id(t->dtype, &t->shape, t->data, t->bytes);
    }
    HTH_TRY(put_tick(job, t->bytes));
    return put_known(job, it);
}

// put_write_file makes an item's file. What is read again has to be what was hashed; of an early
// item that is known only now.
static hth_err put_write_file(hth_put_job *job, put_room *room, hth_put_item *it)
{
    const hth_put_tensor *t = it->t;
    hth_id id;
    it->temp = hth_path_of_temp();
    if (!put_streams(it)) {
        return hth_store_file_write(job->s->dir, it->temp.text, hth_put_bytes(it), t->bytes,
                                    put_tick, job);
    }
    HTH_TRY(stream_write(job, room, it, &id));
    if (it->early) {
        it->id = id;
        HTH_TRY(put_tick(job, t->bytes)); // it was hashed, too
        return put_known(job, it);
    }
    return hth_id_equal(&id, &it->id) ? HTH_OK
                                      : hth_fail(HTH_EIO, "its bytes changed while they were read");
}

static hth_err put_write(hth_put_job *job, put_room *room, hth_put_item *it)
{
    if (it->uploaded || (!it->early && !hth_put_is_file(job, it))) {
        return put_tick(job, it->t->bytes);
    }
    hth_err err = put_write_file(job, room, it);
    return err == HTH_OK || err == HTH_ECANCELED ? err
                                                 : hth_err_prefix(err, "tensor '%s'", it->t->name);
}

static void put_worker(void *ctx)
{
    hth_put_job *j = ctx;
    put_room room = {NULL, 0};
    for (int i; !atomic_load(&j->stop) && (i = atomic_fetch_add(&j->next, 1)) < j->n_tasks;) {
        const hth_put_task *task = &j->tasks[i];
        hth_err err = task->hash ? put_hash(j, &room, task->item) : HTH_OK;
        if (err == HTH_OK && task->write) {
            err = put_write(j, &room, task->item);
        }
        put_release(task->item);
        if (err != HTH_OK) {
            put_set_failure(j, err);
        }
    }
    hth_free(room.p);
}

hth_err hth_put_work(hth_put_job *job)
{
    pthread_t helper;
    bool two = job->total > PUT_ALONE_BYTES &&
               hth_thread_start("hth-put", put_worker, job, &helper) == HTH_OK;
    put_worker(job);
    if (two) {
        hth_thread_join(helper);
    }
    return hth_err_restore(job->err, job->detail);
}

static int put_larger_first(const void *a, const void *b)
{
    uint64_t x = ((const hth_put_task *)a)->item->t->bytes,
             y = ((const hth_put_task *)b)->item->t->bytes;
    return (x < y) - (x > y);
}

// put_size_taken withdraws `early` from items of a size that the store has: they may be in it
// already.
static hth_err put_size_taken(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
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

static hth_err put_sizes(hth_txn *txn, void *ctx)
{
    return hth_txn_each(txn, HTH_TABLE_TENSORS, NULL, 0, put_size_taken, ctx);
}

// put_find_early marks the large tensors whose bytes cannot be in the store, nor twice in this put.
static hth_err put_find_early(hth_put_job *job)
{
    int n = 0;
    for (; n < job->n && job->tasks[n].item->t->bytes >= PUT_EARLY_BYTES; n++) {
        uint64_t bytes = job->tasks[n].item->t->bytes;
        bool twin = (n > 0 && job->tasks[n - 1].item->t->bytes == bytes) ||
                    (n + 1 < job->n && job->tasks[n + 1].item->t->bytes == bytes);
        job->tasks[n].item->early = !twin;
    }
    return n == 0 ? HTH_OK : hth_index_read(&job->s->index, put_sizes, job);
}

hth_err hth_put_work_init(hth_put_job *job, const hth_put_tensor *tensors, int n)
{
    job->items = hth_calloc((size_t)n, sizeof *job->items);
    job->tasks = hth_calloc((size_t)n, 2 * sizeof *job->tasks);
    if (job->items == NULL || job->tasks == NULL) {
        return hth_no_memory("a list of %d tensors", n);
    }
    for (int i = 0; i < n; i++) {
        job->items[i].t = &tensors[i];
        job->tasks[i] = (hth_put_task){&job->items[i], true, true};
        job->total += tensors[i].bytes;
    }
    job->n = job->n_tasks = n;
    qsort(job->tasks, (size_t)n, sizeof *job->tasks, put_larger_first);
    HTH_TRY(put_find_early(job));
    for (int i = 0; i < n; i++) { // the hash of an early item becomes a task of its own
        hth_put_item *it = job->tasks[i].item;
        it->early = it->early && (it->t->data != NULL || put_streams(it));
        if (it->early && put_streams(it)) { // is hashed as it is written
            job->tasks[i].hash = false;
        } else if (it->early) {
            job->tasks[i].hash = false;
            job->tasks[job->n_tasks++] = (hth_put_task){job->tasks[i].item, true, false};
        }
    }
    qsort(job->tasks, (size_t)job->n_tasks, sizeof *job->tasks, put_larger_first);
    return HTH_OK;
}
