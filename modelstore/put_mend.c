// SPDX-License-Identifier: Apache-2.0
// What a put does about damage: it has the right bytes, so it compares what the store has of them,
// and writes what is not whole again, the tensor's file, its bytes in the index, its row, or the
// version's record.
//
// A file is replaced by a rename, with everything else that the put commits: until then the store
// is as it was, and those who have the old file mapped keep it. Comparing costs one more read of
// what is shared, which is in memory where it is in use.
#include "modelstore/put_impl.h"
#include "modelstore/uses.h"

#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct mend_compare {
    hth_put_job *j;
    const hth_put_item *it;
    void *chunk;          // of an item whose bytes are read
    uint64_t first, last; // bytes that differ; first > last: none
} mend_compare;

static hth_err mend_chunk(void *ctx, const void *data, uint64_t at, size_t bytes)
{
    mend_compare *c = ctx;
    const uint8_t *have = data, *want = hth_put_bytes(c->it);
    if (want == NULL) {
        assert(bytes <= HTH_STORE_CHUNK);
        HTH_TRY(hth_put_read(c->it, at, c->chunk, bytes));
        want = c->chunk;
    } else {
        want += at;
    }
    bool same = memcmp(have, want, bytes) == 0;
    for (size_t i = 0; i < bytes && !same; i++) {
        if (have[i] != want[i]) {
            c->first = c->first < at + i ? c->first : at + i;
            c->last = at + i;
        }
    }
    return hth_put_tick(c->j, 0);
}

static void mend_found(hth_put_item *it, const char *what)
{
    hth_path path = hth_path_of_tensor(&it->id);
    it->damaged = true;
    hth_log(WARN, STORE, "repairing", "tensor='%s' file=%s: %s", it->t->name, path.text, what);
}

// mend_file reads the file of a tensor that the index lists with one.
static hth_err mend_file(hth_put_job *job, hth_put_item *it)
{
    int fd;
    char what[80];
    hth_object_seen seen;
    mend_compare c = {.j = job, .it = it, .first = UINT64_MAX};
    if (hth_put_bytes(it) == NULL && (c.chunk = hth_alloc(HTH_STORE_CHUNK)) == NULL) {
        return hth_no_memory("comparing tensor '%s'", it->t->name);
    }
    hth_err err = hth_object_open(job->s, &it->id, it->t->bytes, false, &fd, &seen);
    if (err == HTH_OK) {
        err = hth_object_read(fd, &it->id, it->t->bytes, mend_chunk, &c);
        close(fd);
    }
    hth_free(c.chunk);
    if (err == HTH_ECORRUPT) {
        mend_found(it, hth_err_detail());
        return HTH_OK;
    }
    if (err == HTH_OK && c.first <= c.last) {
        snprintf(what, sizeof what, "bytes %llu to %llu are not those that were stored",
                 (unsigned long long)c.first, (unsigned long long)c.last);
        mend_found(it, what);
    }
    return err;
}

typedef struct mend_look {
    const hth_put_job *j;
    hth_put_item *it;
    bool listed, inlined, same, marked;
} mend_look;

static hth_err mend_row(hth_txn *txn, void *ctx)
{
    mend_look *l = ctx;
    const hth_put_tensor *tensor = l->it->t;
    hth_tensor_row row;
    hth_check_row check;
    MDB_val v;
    l->listed = l->inlined = l->same = l->marked = false;
    hth_err err = hth_store_row(txn, &l->it->id, &row);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    l->listed = true;
    l->same = row.bytes == tensor->bytes && row.inlined <= 1;
    l->inlined = row.inlined != 0;
    if (l->same && l->inlined) {
        err = hth_txn_get(txn, HTH_TABLE_INLINES, &l->it->id, sizeof l->it->id, &v);
        l->same = err == HTH_OK && v.mv_size == tensor->bytes && hth_put_bytes(l->it) != NULL &&
                  memcmp(v.mv_data, hth_put_bytes(l->it), tensor->bytes) == 0;
    }
    err = err == HTH_ENOENT ? HTH_OK : err;
    l->marked = err == HTH_OK && hth_check_get(txn, &l->it->id, &check) == HTH_OK && check.damaged;
    return err;
}

hth_err hth_put_compare(hth_put_job *job, hth_put_item *it)
{
    mend_look l = {.j = job, .it = it};
    HTH_TRY(hth_index_read(&job->s->index, mend_row, &l));
    it->fresh = !l.listed;
    it->damaged = false;
    if (l.listed && (!l.same || l.marked)) {
        mend_found(it, l.marked ? "it is marked as damaged"
                                : "its bytes in the store's index are not those that were stored");
    } else if (l.listed && !l.inlined) {
        return mend_file(job, it);
    }
    return HTH_OK;
}

// ---- in the transaction

// mend_tensor has the index list a tensor as it is now. `uses`: the versions that have it, the one
// that is being put not counted.
static hth_err mend_tensor(hth_txn *txn, const hth_put_job *job, const hth_put_item *it,
                           uint32_t uses)
{
    hth_tensor_row row = {
        .refs = uses, .inlined = !hth_put_is_file(job, it), .bytes = it->t->bytes};
    HTH_TRY(hth_check_del(txn, &it->id));
    HTH_TRY(row.inlined ? hth_txn_put(txn, HTH_TABLE_INLINES, &it->id, sizeof it->id,
                                      hth_put_bytes(it), it->t->bytes)
                        : hth_txn_del(txn, HTH_TABLE_INLINES, &it->id, sizeof it->id));
    return hth_txn_put(txn, HTH_TABLE_TENSORS, &it->id, sizeof it->id, &row, sizeof row);
}

hth_err hth_put_mend(hth_txn *txn, hth_put_job *job)
{
    hth_uses uses = {.by_id = NULL};
    int n = 0;
    for (int i = 0; i < job->n; i++) {
        const hth_put_item *it = &job->items[i];
        n += !it->repeated && (it->damaged || (it->fresh && job->result.unchanged));
    }
    if (n == 0) {
        return HTH_OK;
    }
    hth_err err = hth_uses_count(txn, &uses);
    for (int i = 0; i < job->n && err == HTH_OK; i++) {
        const hth_put_item *it = &job->items[i];
        if (!it->repeated && (it->damaged || (it->fresh && job->result.unchanged))) {
            err = mend_tensor(txn, job, it, hth_uses_of(&uses, &it->id));
        }
    }
    hth_uses_fini(&uses);
    HTH_TRY(err);
    return hth_check_event(txn);
}

typedef struct mend_record {
    hth_put_job *j;
    hth_record_sum mine;
    int after, version; // the first one after `after` that is to be written; 0: none
    uint64_t created_ns;
} mend_record;

// mend_record_row finds the next version whose record has my sum and is not what it says.
static hth_err mend_record_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    mend_record *m = ctx;
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    hth_record_sum sum;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    if (strcmp(name, m->j->name) != 0) {
        return HTH_ECANCELED; // past the model's rows
    }
    hth_version_key k = hth_version_key_of(name, version);
    hth_err err = version > m->after ? hth_check_sum_get(txn, &k, &sum) : HTH_ENOENT;
    if (err != HTH_OK || !hth_id_equal(&sum.sum, &m->mine.sum)) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    hth_record_sum have = hth_check_sum(value->mv_data, value->mv_size);
    if (have.created_ns == sum.created_ns && hth_id_equal(&have.sum, &sum.sum)) {
        return HTH_OK;
    }
    m->version = version;
    m->created_ns = sum.created_ns;
    return HTH_ECANCELED;
}

hth_err hth_put_mend_records(hth_txn *txn, hth_put_job *job)
{
    mend_record m = {.j = job, .mine = hth_check_sum(job->record.data, job->record.n)};
    hth_version_key from = hth_version_key_of(job->name, 0);
    job->result.record_repaired = false;
    for (;;) {
        m.version = 0;
        hth_err err =
            hth_txn_each(txn, HTH_TABLE_VERSIONS, from.text, from.bytes, mend_record_row, &m);
        if (err != HTH_OK && err != HTH_ECANCELED) {
            return err;
        }
        if (m.version == 0) {
            break;
        }
        hth_version_key key = hth_version_key_of(job->name, m.version);
        uint64_t created_ns; // of what is being put
        memcpy(&created_ns, job->record.data, sizeof created_ns);
        memcpy(job->record.data, &m.created_ns, sizeof m.created_ns);
        err = hth_txn_put(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, job->record.data,
                          job->record.n);
        memcpy(job->record.data, &created_ns, sizeof created_ns);
        HTH_TRY(err);
        m.after = m.version;
        job->result.record_repaired = true;
    }
    return job->result.record_repaired ? hth_check_event(txn) : HTH_OK;
}
