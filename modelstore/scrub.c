// SPDX-License-Identifier: Apache-2.0
#include "modelstore/scrub.h"

#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"

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

static hth_err scrub_version_row(hth_txn *t, void *ctx, const MDB_val *key, const MDB_val *value)
{
    scrub_versions *l = ctx;
    if (HTH_GROW(l->v, l->n, l->cap) != 0) {
        return hth_fail(HTH_ENOMEM, "out of memory for a list of versions");
    }
    l->n += hth_version_key_parse(key, l->v[l->n].name, &l->v[l->n].version) == HTH_OK;
    return HTH_OK;
}

static hth_err scrub_version_rows(hth_txn *t, void *ctx)
{
    ((scrub_versions *)ctx)->n = 0;
    return hth_txn_each(t, HTH_TABLE_VERSIONS, NULL, 0, scrub_version_row, ctx);
}

static hth_err scrub_add(scrub_job *j, const hth_manifest_tensor *t)
{
    scrub_tensor *x;
    HASH_FIND(hh, j->tensors, &t->id, sizeof t->id, x);
    if (x != NULL) {
        return HTH_OK;
    }
    if ((x = hth_calloc(1, sizeof *x)) != NULL) {
        x->o = (hth_object){t->id, t->dtype, t->shape, t->bytes};
        HASH_ADD(hh, j->tensors, o.id, sizeof x->o.id, x);
        if (!HTH_HASH_ADDED(x)) {
            hth_free(x);
            x = NULL;
        }
    }
    return x != NULL ? HTH_OK : hth_fail(HTH_ENOMEM, "out of memory for a list of tensors");
}

static void scrub_damaged(scrub_job *j, const char *what)
{
    j->out->damaged++;
    j->state.index_damages++;
    hth_log(ERROR, STORE, "damaged", "file=" HTH_STORE_INDEX_FILE ": %s", what);
}

static hth_err scrub_record(scrub_job *j, const scrub_version *v)
{
    hth_manifest m;
    hth_err err = hth_store_get(j->s, v->name, v->version, &m);
    for (int i = 0; i < m.n_tensors && err == HTH_OK; i++) {
        err = scrub_add(j, &m.tensors[i]);
    }
    hth_manifest_fini(&m);
    if (err == HTH_ECORRUPT && j->index) {
        scrub_damaged(j, hth_err_detail());
    }
    return err == HTH_ENOENT || err == HTH_ECORRUPT ? HTH_OK : err;
}

static hth_err scrub_list(scrub_job *j)
{
    scrub_versions l = {.n = 0};
    hth_err err = hth_index_read(&j->s->index, scrub_version_rows, &l);
    for (int i = 0; i < l.n && err == HTH_OK; i++) {
        err = scrub_record(j, &l.v[i]);
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

static hth_err scrub_look_up(hth_txn *t, void *ctx)
{
    scrub_row *r = ctx;
    hth_tensor_row row;
    HTH_TRY(hth_store_row(t, r->id, &row));
    r->file = row.inlined == 0;
    hth_err err = hth_check_get(t, r->id, &r->row);
    r->known = err == HTH_OK;
    return err == HTH_ENOENT ? HTH_OK : err;
}

static void scrub_at(scrub_job *j, uint64_t ns)
{
    j->out->next_ns = ns < j->out->next_ns ? ns : j->out->next_ns;
}

// scrub_small compares a tensor that is in the index with its id.
static hth_err scrub_small(scrub_job *j, const scrub_tensor *x)
{
    bool inlined;
    hth_err err = j->index ? hth_object_inlined(j->s, &x->o, &inlined) : HTH_OK;
    if (err == HTH_ECORRUPT && j->index) {
        scrub_damaged(j, hth_err_detail());
    }
    return err == HTH_ECORRUPT ? HTH_OK : err;
}

// scrub_look decides whether a tensor's file is due.
static hth_err scrub_look(scrub_job *j, scrub_tensor *x)
{
    uint64_t now = hth_store_wall_ns();
    scrub_row r = {.id = &x->o.id};
    hth_object_seen seen;
    hth_err err = hth_index_read(&j->s->index, scrub_look_up, &r);
    if (err != HTH_OK || !r.file) { // without a row: the index's own check reports that
        return err == HTH_OK || err == HTH_ENOENT ? scrub_small(j, x) : err;
    }
    j->state.tensors++;
    j->state.bytes += x->o.bytes;
    bool same = r.known && hth_object_look(j->s, &x->o.id, x->o.bytes, &seen) == HTH_OK &&
                hth_object_same(&seen, &r.row.seen) && r.row.checked_ns <= now;
    x->checked_ns = same ? r.row.checked_ns : 0;
    if (!same || now - x->checked_ns >= j->again_ns) {
        j->due[j->n_due++] = x;
    } else {
        scrub_at(j, x->checked_ns + j->again_ns);
    }
    return HTH_OK;
}

static int scrub_older(const void *a, const void *b)
{
    uint64_t x = (*(scrub_tensor *const *)a)->checked_ns,
             y = (*(scrub_tensor *const *)b)->checked_ns;
    return (x > y) - (x < y);
}

static hth_err scrub_due(scrub_job *j)
{
    j->due = hth_calloc(HASH_COUNT(j->tensors) + 1u, sizeof *j->due);
    if (j->due == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a list of tensors");
    }
    for (scrub_tensor *x = j->tensors; x != NULL; x = x->hh.next) {
        HTH_TRY(scrub_look(j, x));
    }
    qsort(j->due, (size_t)j->n_due, sizeof *j->due, scrub_older);
    uint64_t days = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_DAYS);
    uint64_t rate = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_RATE);
    if (j->state.bytes / rate > days * 86400) {
        hth_log(WARN, STORE, "scrub-slow",
                "bytes=%llu: store.scrub_rate is too low to read them within store.scrub_days",
                (unsigned long long)j->state.bytes);
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

static hth_err scrub_read(scrub_job *j)
{
    uint64_t bytes = 0;
    for (int i = 0; i < j->n_due; i++) {
        const scrub_tensor *x = j->due[i];
        hth_object_seen seen;
        hth_err err = hth_check_read(j->s, &x->o, true, scrub_tick, j, &seen);
        if (err != HTH_OK && err != HTH_ECORRUPT) {
            return err;
        }
        j->out->damaged += err != HTH_OK;
        j->out->tensors++;
        j->out->bytes += x->o.bytes;
        bytes += x->o.bytes;
        j->due[i]->checked_ns = hth_store_wall_ns();
        scrub_at(j, x->checked_ns + j->again_ns);
        if (bytes >= SCRUB_KEEP_BYTES || i % SCRUB_KEEP_FILES == SCRUB_KEEP_FILES - 1) {
            hth_check_flush(j->s);
            bytes = 0;
        }
    }
    return HTH_OK;
}

// ---- what is kept of it

static void scrub_report(void *ctx, const char *what)
{
    scrub_damaged(ctx, what);
}

static hth_err scrub_save(hth_txn *t, void *ctx)
{
    const scrub_job *j = ctx;
    return hth_scrub_state_put(t, &j->state);
}

static hth_err scrub_load(hth_txn *t, void *ctx)
{
    scrub_job *j = ctx;
    return hth_scrub_state_get(t, &j->state);
}

// scrub_copy has a copy of an index that is whole. It is all that says which tensors are what;
// where there is no room for it, it is tried again with the next change.
static void scrub_copy(scrub_job *j)
{
    uint64_t changes = hth_store_change_count(j->s);
    if (!j->index || j->state.index_damages > 0 || changes == j->state.copied_changes) {
        return;
    }
    if (hth_index_copy(&j->s->index, j->s->dir) == HTH_OK) {
        j->state.copied_changes = changes;
    } else {
        hth_log(WARN, STORE, "index-not-copied", "%s", hth_err_detail());
    }
}

static hth_err scrub_keep(scrub_job *j)
{
    uint64_t now = hth_store_wall_ns();
    j->state.passed_ns = now;
    j->state.oldest_ns = now;
    for (const scrub_tensor *x = j->tensors; x != NULL; x = x->hh.next) {
        bool file = x->checked_ns != 0; // all files have been read some time now
        j->state.oldest_ns =
            file && x->checked_ns < j->state.oldest_ns ? x->checked_ns : j->state.oldest_ns;
    }
    return hth_index_write(&j->s->index, scrub_save, j);
}

static hth_err scrub_run(scrub_job *j)
{
    uint64_t now = hth_store_wall_ns();
    HTH_TRY(hth_index_read(&j->s->index, scrub_load, j));
    j->index = j->state.index_ns > now || now - j->state.index_ns >= SCRUB_DAY_NS;
    if (j->index) {
        j->state.index_damages = 0;
        j->state.index_ns = now;
        HTH_TRY(hth_check_sums_fill(j->s));
        HTH_TRY(hth_index_check(j->s, scrub_report, j));
    }
    j->state.tensors = j->state.bytes = 0;
    HTH_TRY(scrub_list(j));
    HTH_TRY(scrub_due(j));
    hth_err err = scrub_read(j);
    hth_check_flush(j->s);
    HTH_TRY(err);
    scrub_at(j, j->state.index_ns + SCRUB_DAY_NS);
    scrub_copy(j);
    return j->n_due > 0 || j->index ? scrub_keep(j) : HTH_OK;
}

hth_err hth_scrub_pass(hth_store *s, hth_err (*wait)(void *ctx, uint64_t ns), void *ctx,
                       hth_scrub_result *out)
{
    scrub_job j = {.s = s, .wait = wait, .ctx = ctx, .out = out};
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
