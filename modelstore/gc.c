// SPDX-License-Identifier: Apache-2.0
// Garbage collection: forget tensors that no version uses, then remove every file that the index
// does not name.
//
// The lock file is held alone: no put is between "the index has it" and its commit, no piece of an
// upload is being written, and all of tmp/ but uploads is litter of killed processes. The index
// forgets first: killed in between, the files are strays and go the next time. What is used is
// counted from the versions' records: a count in the index that is wrong, because a bit of it is,
// must not cost a tensor. A view of a removed file stays valid, the system keeps a mapped file's
// bytes.
#include "modelstore/upload_impl.h"
#include "modelstore/uses.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct gc_count {
    hth_id id;
    hth_tensor_row row;
} gc_count;

typedef struct gc_job {
    hth_store *s;
    hth_id *dead; // no longer referenced
    int n_dead, cap_dead;
    gc_count *wrong; // counts that are not what the records say
    int n_wrong, cap_wrong;
    hth_uses uses;
    uint64_t files, bytes, inlined, inlined_bytes;
    char folder[24]; // "tensors/ab", "tmp"
} gc_job;

static hth_err gc_wrong(gc_job *job, const hth_id *id, hth_tensor_row row, uint32_t uses)
{
    if (HTH_GROW(job->wrong, job->n_wrong, job->cap_wrong) != 0) {
        return hth_no_memory("collecting garbage");
    }
    row.refs = uses;
    job->wrong[job->n_wrong++] = (gc_count){*id, row};
    return HTH_OK;
}

static hth_err gc_find_dead(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    gc_job *j = ctx;
    hth_tensor_row row;
    if (key->mv_size != sizeof(hth_id) || value->mv_size != sizeof row) {
        return hth_fail(HTH_ECORRUPT, "the store's list of tensors is damaged");
    }
    hth_id id;
    memcpy(&row, value->mv_data, sizeof row);
    memcpy(&id, key->mv_data, sizeof id);
    uint32_t uses = hth_uses_of(&j->uses, &id);
    if (row.refs > 0 || uses > 0) {
        return row.refs == uses ? HTH_OK : gc_wrong(j, &id, row, uses);
    }
    if (HTH_GROW(j->dead, j->n_dead, j->cap_dead) != 0) {
        return hth_no_memory("collecting garbage");
    }
    memcpy(&j->dead[j->n_dead++], key->mv_data, sizeof(hth_id));
    j->inlined += row.inlined;
    j->inlined_bytes += row.inlined ? row.bytes : 0;
    return HTH_OK;
}

static hth_err gc_forget(hth_txn *txn, void *ctx)
{
    gc_job *j = ctx;
    j->n_dead = j->n_wrong = 0;
    j->inlined = j->inlined_bytes = 0;
    hth_uses_fini(&j->uses); // of an earlier try
    HTH_TRY(hth_uses_count(txn, &j->uses));
    if (j->uses.unreadable > 0) {
        return hth_fail(HTH_ECORRUPT,
                        "nothing is removed: the record of %s is damaged, so the tensors that it "
                        "uses are unknown; import that model again, or remove that version",
                        j->uses.example);
    }
    HTH_TRY(hth_txn_each(txn, HTH_TABLE_TENSORS, NULL, 0, gc_find_dead, j));
    for (int i = 0; i < j->n_dead; i++) {
        HTH_TRY(hth_txn_del(txn, HTH_TABLE_TENSORS, &j->dead[i], sizeof *j->dead));
        HTH_TRY(hth_txn_del(txn, HTH_TABLE_INLINES, &j->dead[i], sizeof *j->dead));
        HTH_TRY(hth_check_del(txn, &j->dead[i]));
    }
    for (int i = 0; i < j->n_wrong; i++) {
        const gc_count *c = &j->wrong[i];
        HTH_TRY(hth_txn_put(txn, HTH_TABLE_TENSORS, &c->id, sizeof c->id, &c->row, sizeof c->row));
    }
    return HTH_OK;
}

static hth_err gc_remove(gc_job *job, const char *name)
{
    char path[300];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", job->folder, name);
    HTH_TRY(hth_store_file_bytes(job->s->dir, path, &bytes));
    HTH_TRY(hth_store_file_unlink(job->s->dir, path));
    job->files++;
    job->bytes += bytes;
    return HTH_OK;
}

// gc_tmp_entry spares uploads that have time.
static hth_err gc_tmp_entry(void *ctx, const char *name)
{
    gc_job *j = ctx;
    uint64_t bytes = 0;
    bool removed;
    HTH_TRY(hth_upload_collect(j->s, name, &bytes, &removed));
    j->files += removed;
    j->bytes += bytes;
    return HTH_OK;
}

// gc_parse_id reads the id out of "ab" and "cdef..".
static bool gc_parse_id(const char *folder, const char *name, hth_id *out)
{
    char hex[HTH_ID_HEX], again[HTH_ID_HEX];
    if (strlen(name) != HTH_ID_HEX - 3) {
        return false;
    }
    memcpy(hex, folder, 2);
    memcpy(hex + 2, name, HTH_ID_HEX - 2);
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        out->byte[i] = (uint8_t)byte;
    }
    return strcmp(hth_id_hex(out, again), hex) == 0;
}

static hth_err gc_look(hth_txn *txn, void *ctx)
{
    hth_tensor_row row;
    return hth_store_row(txn, ctx, &row);
}

static hth_err gc_tensor_entry(void *ctx, const char *name)
{
    gc_job *j = ctx;
    hth_id id;
    if (!gc_parse_id(j->folder + sizeof "tensors", name, &id)) {
        return HTH_OK; // not a name of ours: not ours to remove
    }
    if (hth_uses_of(&j->uses, &id) > 0) {
        return HTH_OK; // the index has lost its row
    }
    hth_err err = hth_index_read(&j->s->index, gc_look, &id);
    return err == HTH_ENOENT ? gc_remove(j, name) : err;
}

static hth_err gc_folder(void *ctx, const char *name)
{
    gc_job *j = ctx;
    if (strlen(name) != 2) {
        return HTH_OK;
    }
    snprintf(j->folder, sizeof j->folder, "tensors/%s", name);
    return hth_store_file_scan(j->s->dir, j->folder, gc_tensor_entry, j);
}

static hth_err gc_run(gc_job *job)
{
    HTH_TRY(hth_index_write(&job->s->index, gc_forget, job));
    HTH_TRY(hth_store_file_scan(job->s->dir, "tensors", gc_folder, job));
    snprintf(job->folder, sizeof job->folder, "tmp");
    return hth_store_file_scan(job->s->dir, "tmp", gc_tmp_entry, job);
}

// gc_locked takes over the lock file.
static hth_err gc_locked(hth_store *store, int lock, uint64_t *files, uint64_t *bytes)
{
    gc_job j = {.s = store};
    hth_err err = gc_run(&j);
    close(lock);
    hth_free(j.dead);
    hth_free(j.wrong);
    hth_uses_fini(&j.uses);
    *files = j.files + j.inlined;
    *bytes = j.bytes + j.inlined_bytes;
    hth_log(INFO, STORE, "gc", "files=%llu bytes=%llu", (unsigned long long)*files,
            (unsigned long long)*bytes);
    return err;
}

hth_err hth_store_gc(hth_store *store, uint64_t *files, uint64_t *bytes)
{
    int lock;
    if (store->read_only) {
        return hth_store_read_only();
    }
    HTH_TRY(hth_store_file_lock_now(store->dir, HTH_STORE_LOCK, &lock));
    return gc_locked(store, lock, files, bytes);
}

void hth_store_collect(hth_store *store)
{
    uint64_t files, bytes;
    hth_err err = hth_store_gc(store, &files, &bytes);
    if (err == HTH_EBUSY) {
        hth_log(INFO, STORE, "gc-later", "%s", hth_err_detail());
    } else if (err != HTH_OK) {
        hth_log(WARN, STORE, "gc", "%s", hth_err_detail());
    }
}
