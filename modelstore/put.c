// SPDX-License-Identifier: Apache-2.0
// Putting a version: hash, write what is new, sync, and name it in one transaction.
//
// 1. Tensors are hashed; those that are new and too big to be inlined are written to files under
//    tmp/, whose way to the disk starts at once (put_work.c).
// 2. Each new file is synced: by then mostly on the disk already.
// 3. In one write transaction: files get their names, the directories are synced, references are
//    counted, the version is recorded. LMDB's commit is the moment at which the version exists.
//
// What the store has already is compared with what was brought, and what is damaged of it is
// written again, in the same way and with the same commit (put_mend.c).
//
// Invariants: the index never names a file that is not whole on the disk. While a put makes files
// it holds the lock file shared, gc holds it alone: a tensor that step 1 found in the index is
// still there in step 3. A failed put removes its temporary files, and its renamed ones if no other
// put has committed the same id meanwhile (looked up while holding LMDB's write lock, under which
// renames happen). What clients uploaded gets its name in tmp/ back instead.
#include "modelstore/put_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/stats.h"

#include <string.h>
#include <unistd.h>

static hth_err put_sync_files(hth_put_job *job)
{
    for (int i = 0; i < job->n; i++) {
        hth_put_item *it = &job->items[i];
        if (it->temp.text[0] != '\0') {
            HTH_TRY(it->uploaded ? hth_put_given_sync(job, it)
                                 : hth_store_file_sync(job->s->dir, it->temp.text));
        }
    }
    return HTH_OK;
}

// put_name_files renames the new files into place and syncs the directories that changed.
static hth_err put_name_files(hth_put_job *job)
{
    bool used[256] = {false};
    for (int i = 0; i < job->n; i++) {
        hth_put_item *it = &job->items[i];
        if (it->temp.text[0] == '\0' || it->renamed) {
            continue;
        }
        hth_path to = hth_path_of_tensor(&it->id), parent = to;
        parent.text[sizeof "tensors/ab" - 1] = '\0';
        if (!used[it->id.byte[0]]) {
            used[it->id.byte[0]] = true;
            HTH_TRY(hth_store_file_mkdir(job->s->dir, parent.text));
        }
        hth_object_seen seen;
        it->there = hth_object_look(job->s, &it->id, it->t->bytes, &seen) == HTH_OK;
        HTH_TRY(it->uploaded ? hth_put_given_place(job, it, &to)
                             : hth_store_file_replace(job->s->dir, it->temp.text, to.text));
        it->renamed = true;
    }
    bool any = false;
    for (int b = 0; b < 256; b++) {
        hth_path p = hth_path_of_tensor(&(hth_id){.byte = {(uint8_t)b}});
        p.text[sizeof "tensors/ab" - 1] = '\0';
        HTH_TRY(used[b] ? hth_store_file_sync(job->s->dir, p.text) : HTH_OK);
        any |= used[b];
    }
    return any ? hth_store_file_sync(job->s->dir, "tensors") : HTH_OK;
}

static hth_err put_reference(hth_txn *txn, hth_put_job *job, const hth_put_item *it)
{
    hth_tensor_row row = {.inlined = !hth_put_is_file(job, it), .bytes = it->t->bytes};
    hth_err err = hth_store_row(txn, &it->id, &row);
    if (err == HTH_ENOENT) {
        if (row.inlined) {
            HTH_TRY(hth_txn_put(txn, HTH_TABLE_INLINES, &it->id, sizeof it->id, hth_put_bytes(it),
                                it->t->bytes));
        }
        err = HTH_OK;
    }
    HTH_TRY(err);
    row.refs++;
    return hth_txn_put(txn, HTH_TABLE_TENSORS, &it->id, sizeof it->id, &row, sizeof row);
}

// put_checked has the index remember what it has to be: the files that were made are read, and
// right.
static hth_err put_checked(hth_txn *txn, hth_put_job *job)
{
    hth_check_row row = {.checked_ns = hth_store_wall_ns()};
    for (int i = 0; i < job->n; i++) {
        const hth_put_item *it = &job->items[i];
        if (it->renamed) {
            HTH_TRY(hth_object_look(job->s, &it->id, it->t->bytes, &row.seen));
            HTH_TRY(hth_check_put(txn, &it->id, &row));
        }
    }
    return HTH_OK;
}

// put_same tells whether version `last` of the model has the same content: its record, or, where
// that is damaged, what it was.
static hth_err put_same(hth_txn *txn, hth_put_job *job, int last, bool *same)
{
    MDB_val v;
    hth_record_sum sum, mine = hth_check_sum(job->record.data, job->record.n);
    hth_version_key key = hth_version_key_of(job->name, last);
    *same = false;
    if (last == 0) {
        return HTH_OK;
    }
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, &v));
    hth_err err = hth_check_sum_get(txn, &key, &sum);
    if (err == HTH_ENOENT) {
        sum = hth_check_sum(v.mv_data, v.mv_size);
        err = HTH_OK;
    }
    *same = err == HTH_OK && hth_id_equal(&sum.sum, &mine.sum);
    return err;
}

// put_look finds out what the put would be: another version, and of which the content is not its
// own.
static hth_err put_look(hth_txn *txn, void *ctx)
{
    hth_put_job *j = ctx;
    HTH_TRY(hth_store_last(txn, j->name, &j->asked_of));
    return put_same(txn, j, j->asked_of, &j->result.unchanged);
}

// put_ask asks whether another version may follow; outside the transaction, for the answer may need
// the index, too.
static hth_err put_ask(hth_put_job *job)
{
    if (job->ask == NULL) {
        return HTH_OK;
    }
    HTH_TRY(hth_index_read(&job->s->index, put_look, job));
    return job->asked_of > 0 && !job->result.unchanged ? job->ask->may(job->ask->ctx) : HTH_OK;
}

static hth_err put_number(hth_txn *txn, const hth_put_job *job, int last, uint32_t *number)
{
    MDB_val v;
    hth_err err = hth_txn_get(txn, HTH_TABLE_MODELS, job->name, strlen(job->name), &v);
    *number = 0;
    if (err == HTH_OK && v.mv_size == sizeof *number) {
        memcpy(number, v.mv_data, sizeof *number);
    } else if (err != HTH_ENOENT) {
        HTH_TRY(err);
        return hth_fail(HTH_ECORRUPT, "the store's list of models is damaged");
    }
    *number = *number > (uint32_t)last ? *number : (uint32_t)last; // never over one that exists
    ++*number;
    return hth_txn_put(txn, HTH_TABLE_MODELS, job->name, strlen(job->name), number, sizeof *number);
}

// put_renew has a version with the content that is put count as made now.
static hth_err put_renew(hth_txn *txn, const hth_put_job *job, int version)
{
    hth_version_key key = hth_version_key_of(job->name, version);
    HTH_TRY(
        hth_txn_put(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, job->record.data, job->record.n));
    return hth_check_sum_put(txn, &key, job->record.data, job->record.n);
}

// put_commit is step 3; repeated when the index's map had to grow.
static hth_err put_commit(hth_txn *txn, void *ctx)
{
    hth_put_job *j = ctx;
    int last = 0;
    uint32_t number;
    HTH_TRY(hth_alias_taken(txn, j->name));
    HTH_TRY(hth_store_last(txn, j->name, &last));
    HTH_TRY(put_same(txn, j, last, &j->result.unchanged));
    if (j->ask != NULL && last != j->asked_of && !j->result.unchanged) {
        return hth_fail(HTH_EBUSY, "it was replaced or removed meanwhile");
    }
    HTH_TRY(put_name_files(j));
    HTH_TRY(hth_put_mend_records(txn, j));
    HTH_TRY(hth_put_mend(txn, j));
    HTH_TRY(put_checked(txn, j));
    if (j->result.unchanged) {
        j->result.version = last;
        return j->ask != NULL && j->ask->renew ? put_renew(txn, j, last) : HTH_OK;
    }
    for (int i = 0; i < j->n; i++) {
        HTH_TRY(j->items[i].repeated ? HTH_OK : put_reference(txn, j, &j->items[i]));
    }
    HTH_TRY(put_number(txn, j, last, &number));
    hth_version_key key = hth_version_key_of(j->name, (int)number);
    HTH_TRY(hth_txn_put(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, j->record.data, j->record.n));
    HTH_TRY(hth_check_sum_put(txn, &key, j->record.data, j->record.n));
    j->result.version = (int)number;
    return hth_store_changed(txn);
}

// put_undo_item removes an item's file unless the index names it. An uploaded file gets its old
// name back instead, so that the next put can use it; that put hashes it again first.
static hth_err put_undo_item(hth_txn *txn, const hth_put_job *job, hth_put_item *it)
{
    hth_tensor_row row;
    if (!it->renamed) {
        return it->temp.text[0] == '\0' || it->uploaded
                   ? HTH_OK
                   : hth_store_file_unlink(job->s->dir, it->temp.text);
    }
    if (it->there || hth_store_row(txn, &it->id, &row) != HTH_ENOENT) {
        return HTH_OK;
    }
    hth_path path = hth_path_of_tensor(&it->id);
    if (!it->uploaded) {
        return hth_store_file_unlink(job->s->dir, path.text);
    }
    HTH_TRY(hth_store_file_rename(job->s->dir, path.text, it->temp.text));
    it->renamed = false;
    return HTH_OK;
}

static hth_err put_undo(hth_txn *txn, void *ctx)
{
    hth_put_job *j = ctx;
    for (int i = 0; i < j->n; i++) {
        HTH_TRY(put_undo_item(txn, j, &j->items[i]));
    }
    return HTH_OK;
}

// put_clean undoes a failed put; the failure's sentence stays.
static hth_err put_clean(hth_put_job *job, hth_err failure)
{
    char detail[sizeof job->detail];
    memcpy(detail, hth_err_detail(), strlen(hth_err_detail()) + 1);
    if (hth_index_write(&job->s->index, put_undo, job) != HTH_OK) { // gc will find them
        hth_log(WARN, STORE, "put-left-files", "model=%s reason='%s'", job->name, hth_err_detail());
    }
    return hth_fail(failure, "%s", detail);
}

static hth_err put_record(hth_put_job *job, const void *skeleton, size_t skeleton_bytes,
                          const char *meta)
{
    uint64_t created = hth_store_wall_ns();
    HTH_TRY(hth_record_head(&job->record, created, meta, skeleton, skeleton_bytes, job->n));
    hth_put_item *seen = NULL;
    hth_err err = HTH_OK;
    for (int i = 0; i < job->n;
         i++) { // who did the work was chance; the record is a function of the content
        hth_put_item *worker;
        HASH_FIND(hh, job->by_id, &job->items[i].id, sizeof(hth_id), worker);
        job->items[i].fresh = worker->fresh;
        job->items[i].damaged = worker->damaged;
    }
    HASH_CLEAR(hh, job->by_id);
    for (int i = 0; i < job->n && err == HTH_OK; i++) {
        hth_put_item *it = &job->items[i], *first;
        HASH_FIND(hh, seen, &it->id, sizeof it->id, first);
        if (first == NULL) {
            HASH_ADD(hh, seen, id, sizeof it->id, it);
            err = HTH_HASH_ADDED(it) ? HTH_OK : hth_no_memory("a version's record");
        }
        if (err == HTH_OK) {
            err = hth_record_add(&job->record, it->t, &it->id, first != NULL);
        }
        bool shared = first != NULL || !it->fresh;
        job->result.tensors_new += !shared;
        job->result.tensors_shared += shared;
        job->result.bytes_new += shared ? 0 : it->t->bytes;
        job->result.bytes_shared += shared ? it->t->bytes : 0;
        bool repaired = first == NULL && it->damaged;
        job->result.tensors_repaired += repaired;
        job->result.bytes_repaired += repaired ? it->t->bytes : 0;
    }
    HASH_CLEAR(hh, seen);
    return err;
}

static hth_err put_check(const hth_put_tensor *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        const hth_put_tensor *t = &tensors[i];
        size_t bytes;
        if (t->name == NULL || !hth_shape_known(&t->shape) || hth_dtype_bytes(t->dtype) == 0) {
            return hth_fail(HTH_EINVAL, "tensor %d ('%s') has no name, dtype or shape", i,
                            t->name ? t->name : "");
        }
        HTH_TRY(hth_tensor_bytes(t->dtype, &t->shape, HTH_LAYOUT_PLAIN, &bytes));
        if (bytes != t->bytes) {
            return hth_fail(HTH_EINVAL, "tensor '%s' has %zu bytes, its dtype and shape need %zu",
                            t->name, t->bytes, bytes);
        }
    }
    return HTH_OK;
}

static hth_err put_run(hth_put_job *job, const hth_put_tensor *tensors, int n, const void *skeleton,
                       size_t skeleton_bytes, const char *meta)
{
    uint64_t t0 = hth_now_ns();
    HTH_TRY(hth_put_work_init(job, tensors, n));
    HTH_TRY(hth_put_work(job));
    HTH_TRY(put_record(job, skeleton, skeleton_bytes, meta));
    uint64_t t1 = hth_now_ns();
    HTH_TRY(put_sync_files(job));
    HTH_TRY(put_ask(job));
    uint64_t t2 = hth_now_ns();
    HTH_TRY(hth_index_write(&job->s->index, put_commit, job));
    uint64_t t3 = hth_now_ns();
    hth_log(
        INFO, STORE, "put",
        "model=%s version=%d bytes=%llu new=%llu hash_write_us=%llu sync_us=%llu commit_us=%llu",
        job->name, job->result.version, (unsigned long long)job->total,
        (unsigned long long)job->result.bytes_new, (unsigned long long)(t1 - t0) / 1000,
        (unsigned long long)(t2 - t1) / 1000, (unsigned long long)(t3 - t2) / 1000);
    return HTH_OK;
}

static void put_tell_repaired(const hth_put_job *job)
{
    const hth_put_result *r = &job->result;
    if (r->tensors_repaired > 0 || r->record_repaired) {
        hth_stat_add(HTH_STAT_STORE_REPAIRED, r->tensors_repaired + r->record_repaired);
        hth_log(WARN, STORE, "repaired", "model=%s version=%d tensors=%llu bytes=%llu record=%d",
                job->name, r->version, (unsigned long long)r->tensors_repaired,
                (unsigned long long)r->bytes_repaired, r->record_repaired);
    }
}

// put_do does what the job says: its store, name, and whom it asks and tells.
static hth_err put_do(hth_put_job *j, const void *skeleton, size_t skeleton_bytes, const char *meta,
                      const hth_put_tensor *tensors, int n, hth_put_result *out)
{
    hth_store *store = j->s;
    int lock;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_store_check_new(j->name));
    HTH_TRY(put_check(tensors, n));
    if (store->read_only) {
        return hth_store_read_only();
    }
    HTH_TRY(hth_store_alias_free(store, j->name)); // before the work; again when it is committed
    HTH_TRY(hth_store_file_lock(store->dir, HTH_STORE_LOCK, false, &lock));
    j->caller = pthread_self();
    j->inline_max = (size_t)hth_setting_int(HTH_SET_STORE_INLINE_BYTES);
    pthread_mutex_init(&j->lock, NULL);
    hth_err err = put_run(j, tensors, n, skeleton, skeleton_bytes, meta);
    if (err == HTH_OK) {
        *out = j->result;
        hth_put_given_end(j);
        hth_stat_add(HTH_STAT_STORE_BYTES_WRITTEN, j->result.bytes_new);
        hth_stat_add(HTH_STAT_STORE_BYTES_SHARED, j->result.bytes_shared);
        put_tell_repaired(j);
    } else {
        err = put_clean(j, hth_err_prefix(err, "model '%s'", j->name));
    }
    HASH_CLEAR(hh, j->by_id);
    pthread_mutex_destroy(&j->lock);
    hth_free(j->record.data);
    hth_put_work_fini(j);
    hth_free(j->items);
    hth_free(j->tasks);
    close(lock);
    return err;
}

hth_err hth_store_put(hth_store *store, const char *name, const void *skeleton,
                      size_t skeleton_bytes, const char *meta, const hth_put_tensor *tensors, int n,
                      hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    hth_put_job j = {.s = store, .name = name, .progress = progress, .ctx = ctx};
    return put_do(&j, skeleton, skeleton_bytes, meta, tensors, n, out);
}

hth_err hth_store_put_if(hth_store *store, const char *name, const char *meta,
                         const hth_put_tensor *tensors, int n, const hth_put_ask *ask,
                         hth_progress_fn progress, void *ctx, hth_put_result *out)
{
    hth_put_job j = {.s = store, .name = name, .ask = ask, .progress = progress, .ctx = ctx};
    return put_do(&j, "", 0, meta, tensors, n, out);
}
