// SPDX-License-Identifier: Apache-2.0
#include "modelstore/scrub.h"

#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRUB_DAY_NS ((uint64_t)86400 * 1000000000u)
// What is remembered together: a write to the index waits for the disk.
#define SCRUB_KEEP_FILES 256
#define SCRUB_KEEP_BYTES ((uint64_t)64 << 20)

typedef struct scrub_tensor {
    hth_object o;
    uint64_t checked_ns; // 0: never, or it is another file now
    UT_hash_handle hh;
} scrub_tensor;

typedef struct scrub_job {
    hth_store *s;
    hth_err (*wait)(void *ctx, uint64_t ns);
    void *ctx;
    hth_scrub_result *out;
    hth_scrub_state state;
    bool index; // it is the index's turn
    scrub_tensor *tensors;
    scrub_tensor **due; // read longest ago first
    int n_due;
    uint64_t again_ns;   // how long after it was read a file is due
    uint64_t allowed_ns; // when the next bytes may be read
} scrub_job;

// ---- what is stored

typedef struct scrub_version {
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
} scrub_version;

typedef struct scrub_versions {
    scrub_version *v;
    int n, cap;
} scrub_versions;

static hth_err scrub_version_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    scrub_versions *l = ctx;
    if (HTH_GROW(l->v, l->n, l->cap) != 0) {
        return hth_no_memory("a list of versions");
    }
    l->n += hth_version_key_parse(key, l->v[l->n].name, &l->v[l->n].version) == HTH_OK;
    return HTH_OK;
}

static hth_err scrub_version_rows(hth_txn *txn, void *ctx)
{
    ((scrub_versions *)ctx)->n = 0;
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, scrub_version_row, ctx);
}

static hth_err scrub_add(scrub_job *job, const hth_manifest_tensor *tensor)
{
    scrub_tensor *x;
    HASH_FIND(hh, job->tensors, &tensor->id, sizeof tensor->id, x);
    if (x != NULL) {
        return HTH_OK;
    }
    if ((x = hth_calloc(1, sizeof *x)) != NULL) {
        x->o = (hth_object){tensor->id, tensor->dtype, tensor->shape, tensor->bytes};
        HASH_ADD(hh, job->tensors, o.id, sizeof x->o.id, x);
        if (!HTH_HASH_ADDED(x)) {
            hth_free(x);
            x = NULL;
        }
    }
    return x != NULL ? HTH_OK : hth_no_memory("a list of tensors");
}

static void scrub_damaged(scrub_job *job, const char *what)
{
    job->out->damaged++;
    job->state.index_damages++;
    hth_log(ERROR, STORE, "damaged", "file=" HTH_STORE_INDEX_FILE ": %s", what);
}

static hth_err scrub_record(scrub_job *job, const scrub_version *version)
{
    hth_manifest m;
    hth_err err = hth_store_get(job->s, version->name, version->version, &m);
    for (int i = 0; i < m.n_tensors && err == HTH_OK; i++) {
        err = scrub_add(job, &m.tensors[i]);
    }
    hth_manifest_fini(&m);
    if (err == HTH_ECORRUPT && job->index) {
        scrub_damaged(job, hth_err_detail());
    }
    return err == HTH_ENOENT || err == HTH_ECORRUPT ? HTH_OK : err;
}

static hth_err scrub_list(scrub_job *job)
{
    scrub_versions l = {.n = 0};
    hth_err err = hth_index_read(&job->s->index, scrub_version_rows, &l);
    for (int i = 0; i < l.n && err == HTH_OK; i++) {
        err = scrub_record(job, &l.v[i]);
    }
    hth_free(l.v);
    return err;
}

// ---- what is due

typedef struct scrub_row {
    const hth_id *id;
    hth_check_row row;
    bool file, known;
} scrub_row;

static hth_err scrub_look_up(hth_txn *txn, void *ctx)
{
    scrub_row *r = ctx;
    hth_tensor_row row;
    HTH_TRY(hth_store_row(txn, r->id, &row));
    r->file = row.inlined == 0;
    hth_err err = hth_check_get(txn, r->id, &r->row);
    r->known = err == HTH_OK;
    return err == HTH_ENOENT ? HTH_OK : err;
}

static void scrub_at(scrub_job *job, uint64_t ns)
{
    job->out->next_ns = ns < job->out->next_ns ? ns : job->out->next_ns;
}

// scrub_small compares a tensor that is in the index with its id.
static hth_err scrub_small(scrub_job *job, const scrub_tensor *tensor)
{
    bool inlined;
    hth_err err = job->index ? hth_object_inlined(job->s, &tensor->o, &inlined) : HTH_OK;
    if (err == HTH_ECORRUPT && job->index) {
        scrub_damaged(job, hth_err_detail());
    }
    return err == HTH_ECORRUPT ? HTH_OK : err;
}

// scrub_look decides whether a tensor's file is due.
static hth_err scrub_look(scrub_job *job, scrub_tensor *tensor)
{
    uint64_t now = hth_store_wall_ns();
    scrub_row r = {.id = &tensor->o.id};
    hth_object_seen seen;
    hth_err err = hth_index_read(&job->s->index, scrub_look_up, &r);
    if (err != HTH_OK || !r.file) { // without a row: the index's own check reports that
        return err == HTH_OK || err == HTH_ENOENT ? scrub_small(job, tensor) : err;
    }
    job->state.tensors++;
    job->state.bytes += tensor->o.bytes;
    bool same = r.known &&
                hth_object_look(job->s, &tensor->o.id, tensor->o.bytes, &seen) == HTH_OK &&
                hth_object_same(&seen, &r.row.seen) && r.row.checked_ns <= now;
    tensor->checked_ns = same ? r.row.checked_ns : 0;
    if (!same || now - tensor->checked_ns >= job->again_ns) {
        job->due[job->n_due++] = tensor;
    } else {
        scrub_at(job, tensor->checked_ns + job->again_ns);
    }
    return HTH_OK;
}

static int scrub_older(const void *a, const void *b)
{
    uint64_t x = (*(scrub_tensor *const *)a)->checked_ns,
             y = (*(scrub_tensor *const *)b)->checked_ns;
    return (x > y) - (x < y);
}

static hth_err scrub_due(scrub_job *job)
{
    job->due = hth_calloc(HASH_COUNT(job->tensors) + 1u, sizeof *job->due);
    if (job->due == NULL) {
        return hth_no_memory("a list of tensors");
    }
    for (scrub_tensor *x = job->tensors; x != NULL; x = x->hh.next) {
        HTH_TRY(scrub_look(job, x));
    }
    qsort(job->due, (size_t)job->n_due, sizeof *job->due, scrub_older);
    uint64_t days = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_DAYS);
    uint64_t rate = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_RATE);
    if (job->state.bytes / rate > days * 86400) {
        hth_log(WARN, STORE, "scrub-slow",
                "bytes=%llu: store.scrub_rate is too low to read them within store.scrub_days",
                (unsigned long long)job->state.bytes);
    }
    return HTH_OK;
}

// ---- reading

// scrub_tick keeps to the rate; time in which nothing was read is not made up for.
static hth_err scrub_tick(void *ctx, size_t bytes)
{
    scrub_job *j = ctx;
    double rate = hth_setting_real(HTH_SET_STORE_SCRUB_RATE);
    uint64_t now = hth_now_ns();
    j->allowed_ns = j->allowed_ns > now ? j->allowed_ns : now;
    j->allowed_ns += (uint64_t)((double)bytes * 1e9 / rate);
    return j->wait(j->ctx, j->allowed_ns - now);
}

// scrub_read goes on after a file that cannot be read, and returns the first one's error at last.
static hth_err scrub_read(scrub_job *job)
{
    uint64_t bytes = 0;
    hth_err first = HTH_OK;
    char detail[1024] = "";
    for (int i = 0; i < job->n_due; i++) {
        const scrub_tensor *x = job->due[i];
        hth_object_seen seen;
        hth_err err = hth_check_read(job->s, &x->o, true, scrub_tick, job, &seen);
        if (err == HTH_ECANCELED) {
            return err;
        }
        if (err != HTH_OK && err != HTH_ECORRUPT) {
            if (first == HTH_OK) {
                first = err;
                snprintf(detail, sizeof detail, "%s", hth_err_detail());
            }
            continue;
        }
        job->out->damaged += err != HTH_OK;
        job->out->tensors++;
        job->out->bytes += x->o.bytes;
        bytes += x->o.bytes;
        job->due[i]->checked_ns = hth_store_wall_ns();
        scrub_at(job, x->checked_ns + job->again_ns);
        if (bytes >= SCRUB_KEEP_BYTES || i % SCRUB_KEEP_FILES == SCRUB_KEEP_FILES - 1) {
            hth_check_flush(job->s);
            bytes = 0;
        }
    }
    return hth_err_restore(first, detail);
}

// ---- what is kept of it

static void scrub_report(void *ctx, const char *what)
{
    scrub_damaged(ctx, what);
}

static hth_err scrub_save(hth_txn *txn, void *ctx)
{
    const scrub_job *j = ctx;
    return hth_scrub_state_put(txn, &j->state);
}

static hth_err scrub_load(hth_txn *txn, void *ctx)
{
    scrub_job *j = ctx;
    return hth_scrub_state_get(txn, &j->state);
}

// scrub_copy has a copy of an index that is whole. It is all that says which tensors are what;
// where there is no room for it, it is tried again with the next change.
static void scrub_copy(scrub_job *job)
{
    uint64_t changes = hth_store_change_count(job->s);
    if (job->state.index_damages > 0 || changes == job->state.copied_changes) {
        return;
    }
    if (hth_index_copy(&job->s->index, job->s->dir) == HTH_OK) {
        job->state.copied_changes = changes;
    } else {
        hth_log(WARN, STORE, "index-not-copied", "%s", hth_err_detail());
    }
}

static hth_err scrub_keep(scrub_job *job)
{
    uint64_t now = hth_store_wall_ns();
    job->state.passed_ns = now;
    job->state.oldest_ns = now;
    for (const scrub_tensor *x = job->tensors; x != NULL; x = x->hh.next) {
        bool file = x->checked_ns != 0; // all files have been read some time now
        job->state.oldest_ns =
            file && x->checked_ns < job->state.oldest_ns ? x->checked_ns : job->state.oldest_ns;
    }
    return hth_index_write(&job->s->index, scrub_save, job);
}

static hth_err scrub_run(scrub_job *job)
{
    uint64_t now = hth_store_wall_ns();
    hth_err err = hth_index_pages(&job->s->index); // all that follows goes through them
    if (err == HTH_ECORRUPT) {
        scrub_damaged(job, hth_err_detail());
    }
    HTH_TRY(err);
    HTH_TRY(hth_index_read(&job->s->index, scrub_load, job));
    job->index = job->state.index_ns > now || now - job->state.index_ns >= SCRUB_DAY_NS;
    if (job->index) {
        job->state.index_damages = 0;
        job->state.index_ns = now;
        HTH_TRY(hth_index_check(job->s, scrub_report, job));
        HTH_TRY(hth_check_sums_fill(job->s));
    }
    job->state.tensors = job->state.bytes = 0;
    HTH_TRY(scrub_list(job));
    HTH_TRY(scrub_due(job));
    if (job->index) { // before the reading, which takes days, and may fail or be ended
        scrub_copy(job);
        HTH_TRY(hth_index_write(&job->s->index, scrub_save, job));
    }
    err = scrub_read(job);
    hth_check_flush(job->s);
    HTH_TRY(err);
    scrub_at(job, job->state.index_ns + SCRUB_DAY_NS);
    return job->n_due > 0 || job->index ? scrub_keep(job) : HTH_OK;
}

hth_err hth_scrub_pass(hth_store *store, hth_err (*wait)(void *ctx, uint64_t ns), void *ctx,
                       hth_scrub_result *out)
{
    scrub_job j = {.s = store, .wait = wait, .ctx = ctx, .out = out};
    uint64_t days = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_DAYS), start = hth_now_ns();
    *out = (hth_scrub_result){.next_ns = UINT64_MAX};
    if (days == 0) {
        return HTH_OK;
    }
    j.again_ns = days * SCRUB_DAY_NS / 4 * 3;
    hth_err err = scrub_run(&j);
    scrub_tensor *x, *next;
    HASH_ITER (hh, j.tensors, x, next) {
        HASH_DEL(j.tensors, x);
        hth_free(x);
    }
    hth_free(j.due);
    if (err == HTH_OK && j.n_due > 0) {
        hth_log(INFO, STORE, "scrub", "tensors=%llu bytes=%llu damaged=%llu ms=%llu",
                (unsigned long long)out->tensors, (unsigned long long)out->bytes,
                (unsigned long long)out->damaged,
                (unsigned long long)(hth_now_ns() - start) / 1000000u);
    }
    return err;
}
